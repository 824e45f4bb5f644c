"""Limits of the server's connections, which every user of the machine can open without a token."""

from __future__ import annotations

import asyncio
import resource
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeAlias, cast

from starlette.types import ASGIApp, Receive, Scope, Send

_MOST = 128  # connections; a browser opens six
_SECONDS = 10.0  # for the line and headers of a request
_Address: TypeAlias = tuple[Any, ...]  # host and port of the other side


class Connections:
    """Open connections by client address, and the waiting ones, the longest waiting first.

    A connection without a request for some seconds is ended, whatever bytes it has sent. A connection beyond the
    allowed number ends the one that has waited longest. So waiting connections, however many, keep no client out.

    Wraps the server's ASGI application, to know when a connection has a request, and makes the protocols of the
    server's connections.
    """

    def __init__(self, app: ASGIApp, *, most: int = _MOST, seconds: float = _SECONDS) -> None:
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.most = min(most, max(4, descriptors // 4))
        self._app, self._seconds = app, seconds
        self._open: dict[_Address, _Connection] = {}
        self._waiting: OrderedDict[_Address, asyncio.TimerHandle] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        address = scope.get("client")
        self._end_wait(address)
        try:
            await self._app(scope, receive, send)
        finally:
            self._begin_wait(address)

    def wrap(self, make: Callable[..., asyncio.Protocol]) -> Callable[..., asyncio.Protocol]:
        """Make protocols as ``make`` does, whose connections count here."""
        return lambda *values, **options: _Connection(make(*values, **options), self)

    def opened(self, connection: _Connection) -> None:
        """Count a connection; end one if there are too many."""
        if len(self._open) >= self.most:
            longest = next(iter(self._waiting), connection.address)
            self._open.get(longest, connection).abort()
            self.closed(longest)
            if longest == connection.address:
                return
        self._open[connection.address] = connection
        self._begin_wait(connection.address)

    def closed(self, address: _Address) -> None:
        """Count a connection no more."""
        self._end_wait(address)
        self._open.pop(address, None)

    def _begin_wait(self, address: _Address | None) -> None:
        if address in self._open:
            self._end_wait(address)
            loop = asyncio.get_running_loop()
            self._waiting[address] = loop.call_later(self._seconds, self._open[address].abort)

    def _end_wait(self, address: _Address | None) -> None:
        timer = None if address is None else self._waiting.pop(address, None)
        if timer is not None:
            timer.cancel()


class _Connection(asyncio.Protocol):
    """A protocol inside another, which counts its connection."""

    def __init__(self, inner: asyncio.Protocol, connections: Connections) -> None:
        self._inner, self._connections = inner, connections
        self.address: _Address = ()

    def abort(self) -> None:
        """End the connection at once."""
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # of a TCP connection
        self.address = tuple(transport.get_extra_info("peername") or (id(self), 0))[:2]
        self._connections.opened(self)
        self._inner.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.closed(self.address)
        self._inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()
