"""Object-store servers for tests, and a proxy that fails requests."""

from __future__ import annotations

import base64
import contextlib
import email.utils
import hmac
import http.client
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import deque
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

UNAVAILABLE, BREAK = "503 Service Unavailable", "half of the answer, then nothing"


@contextlib.contextmanager
def s3_server() -> Iterator[str]:
    """Run moto's server in a process; yields its URL."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with _serving([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], port) as url:
        yield url


@contextlib.contextmanager
def _serving(command: list[str], port: int) -> Iterator[str]:
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(300):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.1)
        else:
            raise OSError(f"{command} does not answer")
        yield f"http://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


def request(url: str, method: str = "GET", data: bytes | None = None) -> bytes:
    """Body of the server's answer, without any client of ours."""
    with urllib.request.urlopen(urllib.request.Request(url, method=method, data=data), timeout=30) as answer:  # noqa: S310 - a URL of these tests
        return answer.read()


class Proxy:
    """Forwards requests to a server, but fails those that ``failures`` lists, in order: UNAVAILABLE or BREAK.

    Attributes:
        failures: failures of the next requests; an empty string lets one pass.
        forever: failure of every request once ``failures`` is empty.
        after: number of requests, and the failure of all later ones.
        requests: method and path of every request.
        refused: number of those that failed.
    """

    def __init__(self, server: str) -> None:
        self.failures: deque[str] = deque()
        self.forever = ""
        self.after = (1 << 62, "")
        self.requests: list[str] = []
        self.refused = 0
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
        self.refused += bool(failure)
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
                    self._send_header(handler, name, value)
            size = int(answer.headers.get("Content-Length", 0)) if handler.command == "HEAD" else len(data)
            handler.send_header("Content-Length", str(size))
            handler.end_headers()
            if failure == BREAK:
                handler.wfile.write(data[: len(data) // 2])
                handler.close_connection = True
            elif handler.command != "HEAD":
                handler.wfile.write(data)

    def _send_header(self, handler: BaseHTTPRequestHandler, name: str, value: str) -> None:
        handler.send_header(name, value)

    def __enter__(self) -> Proxy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


class GoogleProxy(Proxy):
    """Google's storage for its client: the S3 server, asked in Google's dialect.

    The client speaks Google's XML protocol, which has S3's verbs and answers. This class adapts the differences:
    slashes are escaped in names, credentials are stated otherwise, and conditions of writes name the generation of an
    object, a number, where S3's name its ETag. Other differences are not tested.
    """

    def __init__(self, server: str) -> None:
        super().__init__(server)
        self._etags: dict[str, str] = {}  # by generation

    def _handle(self, handler: BaseHTTPRequestHandler, server: str) -> None:
        generation = handler.headers["x-goog-if-generation-match"]
        if generation == "0":
            handler.headers["If-None-Match"] = "*"
        elif generation is not None:
            handler.headers["If-Match"] = self._etags[generation]
        path, mark, query = handler.path.partition("?")
        handler.path = urllib.parse.quote(urllib.parse.unquote(path)) + mark + query
        del handler.headers["Authorization"]
        credential = "Credential=name/20200101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
        handler.headers["Authorization"] = f"AWS4-HMAC-SHA256 {credential}"
        super()._handle(handler, server)

    def _send_header(self, handler: BaseHTTPRequestHandler, name: str, value: str) -> None:
        super()._send_header(handler, name, value)
        if name.lower() == "etag":
            generation = str(int(value.strip('"').partition("-")[0][:15], 16))
            self._etags[generation] = value
            handler.send_header("x-goog-generation", generation)


AZURITE = "3.37.0"
_AZURE_ACCOUNT = "devstoreaccount1"  # account and key of every Azurite, by its documentation
_AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


def install_azurite(npm: str) -> Path:
    """Install Azurite's blob service, Microsoft's emulator, in the user's cache: 40 s and 365 MB the first time.

    Raises:
        OSError, subprocess.SubprocessError: npm cannot install it.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "picstore-tests"
    folder = cache / f"azurite-{AZURITE}"
    if not folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as temporary:
            command = [npm, "install", "--prefix", f"{temporary}/whole", "--ignore-scripts", "--no-audit", "--no-fund"]
            subprocess.run(
                [*command, f"azurite@{AZURITE}"], check=True, capture_output=True, timeout=300, cwd=temporary
            )
            with contextlib.suppress(OSError):  # another process was faster
                Path(temporary, "whole").rename(folder)
    return folder / "node_modules" / ".bin" / "azurite-blob"


@contextlib.contextmanager
def azure_server(azurite: Path) -> Iterator[str]:
    """Run Azurite in a process, all in memory; yields its URL."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [str(azurite), "--blobHost", "127.0.0.1", "--blobPort", str(port), "--inMemoryPersistence"]
    command += ["--skipApiVersionCheck", "--disableTelemetry", "--silent"]
    with _serving(command, port) as url:
        yield url


def make_azure_container(server: str, name: str) -> None:
    """Make a container by a signed request, since Azure's client cannot."""
    headers = {"x-ms-date": email.utils.formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    lines = ["PUT", *[""] * 11, *(f"{key}:{value}" for key, value in headers.items())]
    lines += [f"/{_AZURE_ACCOUNT}/{_AZURE_ACCOUNT}/{name}", "restype:container"]
    digest = hmac.digest(base64.b64decode(_AZURE_KEY), "\n".join(lines).encode(), "sha256")
    headers["Authorization"] = f"SharedKey {_AZURE_ACCOUNT}:{base64.b64encode(digest).decode()}"
    connection = http.client.HTTPConnection(server.removeprefix("http://"), timeout=30)
    with contextlib.closing(connection):
        connection.request("PUT", f"/{_AZURE_ACCOUNT}/{name}?restype=container", headers=headers)
        answer = connection.getresponse()
        assert answer.status == 201, answer.read()
