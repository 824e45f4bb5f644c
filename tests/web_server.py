"""A web server of a folder for tests, with ranges, and one that answers as the Hugging Face hub does."""

from __future__ import annotations

import json
import re
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

TOKEN = "hf_token_of_these_tests"  # noqa: S105 - of a server of these tests


class WebServer:
    """Serves the files of a folder.

    Attributes:
        url: of the folder.
        ranges: whether it answers range requests with ranges.
        requests: method, path and authorization of every request.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.ranges = folder, True
        self.requests: list[tuple[str, str, str | None]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
                server.requests.append((self.command, self.path, self.headers["Authorization"]))
                server.answer(self, path)

            do_HEAD = do_PUT = do_GET  # noqa: N815 - names of http.server

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,))

    def answer(self, handler: BaseHTTPRequestHandler, path: str) -> None:
        file = self.folder / path.lstrip("/")
        if not file.is_file():
            self.send(handler, 404, b"nothing here")
            return
        data = file.read_bytes()
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", handler.headers["Range"] or "")
        if match is None or not self.ranges:
            self.send(handler, 200, data)
        elif int(match[1]) >= len(data):
            self.send(handler, 416, b"", {"Content-Range": f"bytes */{len(data)}"})
        else:
            begin, last = int(match[1]), min(int(match[2]), len(data) - 1)
            self.send(handler, 206, data[begin : last + 1], {"Content-Range": f"bytes {begin}-{last}/{len(data)}"})

    def send(
        self, handler: BaseHTTPRequestHandler, status: int, body: bytes, headers: dict[str, str] | None = None
    ) -> None:
        handler.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            handler.send_header(name, value)
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(body)

    def __enter__(self) -> Any:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


class Hub(WebServer):
    """The hub, for a token: ``/datasets/OWNER/NAME/resolve/REV/path`` redirects to another server, and listings.

    The folder holds ``OWNER/NAME/REV/path``.
    """

    def __init__(self, folder: Path, files: WebServer, token: str) -> None:
        super().__init__(folder)
        self._files, self._token = files, token

    def answer(self, handler: BaseHTTPRequestHandler, path: str) -> None:
        resolve = re.fullmatch(r"/datasets/([^/]+/[^/]+)/resolve/(.*)", path)
        tree = re.fullmatch(r"/api/datasets/([^/]+/[^/]+)/tree/([^/]+)/?(.*)", path)
        if handler.headers["Authorization"] != f"Bearer {self._token}":
            self.send(handler, 401, b"{}", {"X-Error-Code": "RepoNotFound"})
        elif resolve and (self.folder / resolve[1] / resolve[2]).is_file():
            target = f"{self._files.url}/{urllib.parse.quote(f'{resolve[1]}/{resolve[2]}')}?Signature=secret"
            self.send(handler, 302, b"", {"Location": target})
        elif tree and (self.folder / tree[1] / tree[2] / tree[3]).is_dir():
            recursive = "recursive=true" in handler.path.lower()
            self.send(handler, 200, json.dumps(self._entries(*tree.groups(), recursive=recursive)).encode())
        else:
            self.send(handler, 404, b"{}", {"X-Error-Code": "EntryNotFound"})

    def _entries(self, name: str, revision: str, path: str, *, recursive: bool) -> list[dict[str, Any]]:
        root = self.folder / name / revision
        entries: list[dict[str, Any]] = []
        for each in sorted((root / path).rglob("*") if recursive else (root / path).iterdir()):
            entry = {"path": each.relative_to(root).as_posix(), "oid": "0" * 40}
            entries.append(
                entry | ({"type": "directory"} if each.is_dir() else {"type": "file", "size": each.stat().st_size})
            )
        return entries
