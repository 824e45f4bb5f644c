"""Connections without a request: they end, and keep no other out."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from picstore.viewer.security import Connections


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer after the seconds in the path."""
    if scope["type"] == "http":
        await asyncio.sleep(float(scope["path"][1:] or 0))
        await PlainTextResponse("answered")(scope, receive, send)


@asynccontextmanager
async def server(**limits: Any) -> AsyncIterator[tuple[int, Connections]]:
    """A server with such limits; its port and connections."""
    connections = Connections(answer, **limits)
    make: Any = connections.wrap(H11Protocol)
    running = uvicorn.Server(uvicorn.Config(connections, http=make, ws="none", log_level="error", lifespan="off"))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        task = asyncio.create_task(running._serve([listening]))
        yield listening.getsockname()[1], connections
        running.should_exit = running.force_exit = True
        await task


async def ask(port: int, path: str = "/") -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    try:
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


def test_idle_connections_beyond_the_limit_keep_no_request_out() -> None:
    async def run() -> None:
        async with server(most=8) as (port, connections):
            slow = asyncio.create_task(ask(port, "/1"))
            await asyncio.sleep(0.1)
            idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(50)]
            assert b"answered" in await ask(port)
            assert len(connections._open) <= 8
            assert b"answered" in await slow  # its connection had a request
            for _, writer in idle:
                writer.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    "sent", [b"", b"GET / HTTP/1.1\r\nHost: localhost\r\n", b"POST / HTTP/1.1\r\nContent-Length: 9"]
)
def test_a_connection_whose_headers_do_not_end_is_closed(sent: bytes) -> None:
    async def run() -> None:
        async with server(seconds=0.3) as (port, connections):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            ended = asyncio.create_task(reader.read())
            begun = asyncio.get_running_loop().time()
            while not ended.done():
                await asyncio.sleep(0.02)
                if sent:
                    writer.write(b"x-more: and more\r\n")
                assert asyncio.get_running_loop().time() - begun < 2
            writer.close()
            await asyncio.gather(ended, writer.wait_closed(), return_exceptions=True)
            assert not connections._open

    asyncio.run(run())


def test_a_request_may_take_longer_than_a_connection_waits() -> None:
    async def run() -> None:
        async with server(seconds=0.2) as (port, _):
            assert b"answered" in await ask(port, "/0.5")

    asyncio.run(run())


def test_the_limit_leaves_descriptors_to_the_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (64, 64))
    assert Connections(answer).most == 16
