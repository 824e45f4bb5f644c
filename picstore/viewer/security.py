"""Protection of the page's server from other users and other web sites, and limits on its connections.

Every user and every web page of the machine can reach the server. Therefore all pages and pictures have addresses below
a secret path, ``/TOKEN/``; whoever knows the address may see the dataset. A cookie instead would be sent to every port
of the host, where another user may listen; a path is sent only to its server. Links, reloads and bookmarks work,
because the address suffices.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import re
import resource
import secrets
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias, cast

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_Address: TypeAlias = tuple[Any, ...]  # Host and port of a client.

_MOST = 128  # Largest number of open connections of all clients; a browser opens six.
_SECONDS = 10.0  # Time after which a connection without a complete request is ended.
_HOST = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?", re.IGNORECASE)
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors "
)
_HEADERS = {
    "content-security-policy": f"{_POLICY}'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
# With ``embed``, pages of this machine on any port, such as a notebook, may show the page in a frame if they know the
# secret address. The header X-Frame-Options is left out, because it cannot list several origins.
_EMBEDDED = _HEADERS | {"content-security-policy": f"{_POLICY}http://localhost:* http://127.0.0.1:*"}
del _EMBEDDED["x-frame-options"]
_REDIRECT = """<!doctype html>
<html lang="en">
  <head><meta charset="utf-8" /><meta http-equiv="refresh" content="0; url={address}" /><title>picstore</title></head>
  <body><p><a href="{address}">picstore view</a></p></body>
</html>
"""


def new_token() -> str:
    """Return a new secret token of 256 random bits, as text for URLs."""
    return secrets.token_urlsafe(32)


@contextlib.contextmanager
def redirecting_file(address: str) -> Iterator[str]:
    """Write a file that redirects a browser to an address, and yield the file's URL; remove the file at the end.

    A browser is started with the file's URL, not with the secret address, because all users can see a process's
    arguments. Only this user can open the file, because its folder has mode 0700.
    """
    with tempfile.TemporaryDirectory(prefix="picstore-view-") as folder:
        file = Path(folder) / "open.html"
        file.touch(mode=0o600)
        file.write_text(_REDIRECT.format(address=address), encoding="utf-8")
        yield file.as_uri()


class Guard:
    """Middleware that answers 403 to requests for other hosts, from other web sites, or outside of the secret path.

    Args:
        embed: whether pages of this machine, such as notebooks, may show the page in a frame.
    """

    def __init__(self, app: ASGIApp, *, token: str, embed: bool = False) -> None:
        self._app, self._token = app, token
        self._headers = _EMBEDDED if embed else _HEADERS
        self._shown_in = ("document", "iframe") if embed else ("document",)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Pass on messages about the server's start and end ("lifespan"); ignore all others that are not HTTP requests.
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = MutableHeaders(scope=message)
                for name, value in self._headers.items():
                    added[name] = value
            await send(message)

        token, slash, path = scope["path"][1:].partition("/")
        problem = self._problem(token, is_page=not path, scope=scope)
        if problem:
            await JSONResponse({"error": problem}, 403)(scope, receive, send_guarded)
        elif not slash:
            # Redirect to the address that ends in a slash, because the page refers to its files by relative addresses.
            await RedirectResponse(f"/{token}/")(scope, receive, send_guarded)
        else:
            await self._app({**scope, "root_path": f"/{token}"}, receive, send_guarded)

    def _problem(self, token: str, *, is_page: bool, scope: Scope) -> str:
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin")
        if not is_local(host):
            return "This server answers only to localhost."
        if not hmac.compare_digest(token.encode("utf-8", "surrogateescape"), self._token.encode()):
            return "Open the address that `picstore view` has printed; it holds a token."
        if origin not in (None, f"http://{host}"):
            return "Requests of other sites are refused."
        # The browser states which site caused the request; "none" stands for a typed address or a bookmark. Accept
        # links to the page from any site, because they may be in a web terminal or in the file that --open writes.
        site = headers.get("sec-fetch-site", "same-origin")
        navigates = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") in self._shown_in
        link = is_page and navigates
        reads = scope["method"] in ("GET", "HEAD")
        if site != "same-origin" and not (reads and (site == "none" or link)):
            return "Requests of other sites are refused."
        return ""


def is_local(host: str) -> bool:
    """Return whether a Host header names the loopback interface, with any port because a tunnel may change it."""
    return _HOST.fullmatch(host) is not None


class Connections:
    """Open connections of the server, limited in number and waiting time because any user of the machine can open them.

    A connection on which no request is completed for ``seconds`` is ended, whatever bytes the client has sent. If
    ``most`` connections are open, a new connection ends the one that has waited longest.
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
        """Return a function that creates protocols by ``make``; this object counts their connections."""
        return lambda *values, **options: _Connection(make(*values, **options), self)

    def opened(self, connection: _Connection) -> None:
        """Count a new connection; if there are too many, end the connection that has waited longest."""
        if len(self._open) >= self.most:
            longest = next(iter(self._waiting), connection.address)
            self._open.get(longest, connection).abort()
            self.closed(longest)
            if longest == connection.address:
                return
        self._open[connection.address] = connection
        self._begin_wait(connection.address)

    def closed(self, address: _Address) -> None:
        """Stop counting the connection of the client at ``address``, because it has ended."""
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
    """Protocol that reports the connection's begin and end, and passes all events to an inner protocol."""

    def __init__(self, inner: asyncio.Protocol, connections: Connections) -> None:
        self._inner, self._connections = inner, connections
        self.address: _Address = ()

    def abort(self) -> None:
        """Close the connection immediately, and discard bytes that were written but not sent."""
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
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
