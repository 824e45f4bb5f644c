"""A server of S3's read requests for the files of a folder; unlike one in memory it has them again after a restart.

``python -m benchmarks.torture.folder_store FOLDER PORT``; its buckets are the folder's sub-folders.
"""

from __future__ import annotations

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = Path(sys.argv[1]) / unquote(urlsplit(self.path).path).lstrip("/")
        status, body, size, first = 404, b"<Error><Code>NoSuchKey</Code></Error>", 0, 0
        if path.is_file():
            status, body, size = 200, path.read_bytes(), path.stat().st_size
            if wanted := self.headers.get("Range"):
                first, last = (int(number) for number in wanted.removeprefix("bytes=").split("-"))
                status, body = 206, body[first : last + 1]
        self.send_response(status)
        self.send_header("Last-Modified", self.date_time_string(0))
        self.send_header("ETag", '"0"')
        self.send_header("Content-Range", f"bytes {first}-{first + len(body) - 1}/{size}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815 - a name of http.server

    def log_message(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), _Handler).serve_forever()
