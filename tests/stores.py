"""An S3 server for tests, and a proxy that fails as told."""

from __future__ import annotations

import contextlib
import http.client
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

UNAVAILABLE, BREAK = "503 Service Unavailable", "half of the answer, then nothing"


@contextlib.contextmanager
def s3_server() -> Iterator[str]:
    """moto's server in a process of its own; yields its URL."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(300):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


def request(url: str, method: str = "GET", data: bytes | None = None) -> bytes:
    """What the server answers, as some other client than ours gets it."""
    with urllib.request.urlopen(urllib.request.Request(url, method=method, data=data), timeout=30) as answer:  # noqa: S310 - a URL of these tests
        return answer.read()


class Proxy:
    """Hands requests on to a server, but fails those that ``failures`` says, in order: UNAVAILABLE or BREAK.

    Attributes:
        forever: fails every request from now on, once ``failures`` is empty.
        after: a number of requests and what becomes of all that follow them.
        requests: method and path of all that came.
    """

    def __init__(self, server: str) -> None:
        self.failures: deque[str] = deque()
        self.forever = ""
        self.after = (1 << 62, "")
        self.requests: list[str] = []
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                proxy._handle(self, server)

            do_PUT = do_POST = do_DELETE = do_HEAD = do_GET  # noqa: N815 - names of http.server

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,))

    def _handle(self, handler: BaseHTTPRequestHandler, server: str) -> None:
        body = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        self.requests.append(f"{handler.command} {handler.path}")
        if len(self.requests) > self.after[0]:
            self.forever = self.after[1]
        failure = self.failures.popleft() if self.failures else self.forever
        if failure == UNAVAILABLE:
            handler.send_error(503)
            return
        upstream = http.client.HTTPConnection(server.removeprefix("http://"), timeout=30)
        with contextlib.closing(upstream):
            upstream.request(handler.command, handler.path, body, dict(handler.headers))
            answer = upstream.getresponse()
            data = answer.read()
            handler.send_response_only(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("transfer-encoding", "content-length", "connection"):
                    handler.send_header(name, value)
            size = int(answer.headers.get("Content-Length", 0)) if handler.command == "HEAD" else len(data)
            handler.send_header("Content-Length", str(size))
            handler.end_headers()
            if failure == BREAK:
                handler.wfile.write(data[: len(data) // 2])
                handler.close_connection = True
            elif handler.command != "HEAD":
                handler.wfile.write(data)

    def __enter__(self) -> Proxy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()
