"""Clients of object stores: obstore against s3fs, reading ranges and writing multipart.

The server answers from memory with sendfile and discards what it is sent; moto's serves 50 MB/s, which would measure
moto. CPU is the client's: s3fs needs it under the interpreter's lock, where it stands in a training loop's way.
"""

from __future__ import annotations

import contextlib
import os
import re
import socketserver
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler
from typing import Any

from benchmarks.child import Child
from benchmarks.harness import MEGABYTES_PER_SECOND, Case, Sample, Table, cpu_time, join, measure, tabulate
from benchmarks.options import Options

MIB = 1 << 20
SIZE, STEP = 256 * MIB, 8 * MIB
STARTED = "<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>"
ENDED = "<CompleteMultipartUploadResult><ETag>e</ETag></CompleteMultipartUploadResult>"


class _Handler(BaseHTTPRequestHandler):
    """S3 with one object for all names."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    content = 0  # file descriptor

    def _answer(self, status: int, size: int, body: str = "", **headers: str) -> None:
        self.send_response(status)
        fixed = {"Content-Length": str(size), "ETag": '"e"', "Last-Modified": "Wed, 01 Jan 2025 00:00:00 GMT"}
        for name, value in {**fixed, **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body.encode())

    def do_HEAD(self) -> None:
        self._answer(200, SIZE)

    def do_GET(self) -> None:
        first, last = map(int, re.findall(r"\d+", self.headers.get("Range", "bytes=0-0")))
        self._answer(206, last + 1 - first, Content_Range=f"bytes {first}-{last}/{SIZE}")
        while first <= last:
            first += os.sendfile(self.connection.fileno(), self.content, first, last + 1 - first)

    def do_PUT(self) -> None:
        scratch, left = bytearray(MIB), int(self.headers.get("Content-Length", 0))
        while left:
            left -= self.rfile.readinto(memoryview(scratch)[: min(left, MIB)])
        self._answer(200, 0)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = STARTED if "uploads" in self.path else ENDED
        self._answer(200, len(body), body)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 64


def serve() -> Iterator[int]:
    """Serve for as long as the process lives; the answer is the port."""
    with tempfile.TemporaryFile() as content, _Server(("127.0.0.1", 0), _Handler) as server:
        content.write(os.urandom(SIZE))
        content.flush()
        _Handler.content = content.fileno()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        threading.Event().wait()


def _obstore() -> tuple[Callable[[Iterator[bytes]], object], Callable[[int, memoryview], None]]:
    import obstore

    store = obstore.store.from_url("s3://bucket")

    def read(offset: int, into: memoryview) -> None:
        into[:] = memoryview(obstore.get_range(store, "obstore", start=offset, length=len(into)))

    return lambda chunks: obstore.put(store, "obstore", chunks, chunk_size=STEP, max_concurrency=4), read


def _s3fs() -> tuple[Callable[[Iterator[bytes]], object], Callable[[int, memoryview], None]]:
    import s3fs

    files = s3fs.S3FileSystem(skip_instance_cache=True)

    def write(chunks: Iterator[bytes]) -> None:
        with files.open("bucket/s3fs", "wb", block_size=STEP) as out:
            for chunk in chunks:
                out.write(chunk)

    def read(offset: int, into: memoryview) -> None:
        into[:] = files.cat_file("bucket/s3fs", start=offset, end=offset + len(into))

    return write, read


def objects(options: Options) -> Table:
    """256 MiB written multipart in chunks of 8 MiB, and read by ranges of 8 MiB from 1, 4 and 16 threads."""
    chunk = os.urandom(STEP)

    def write(client: Any) -> int:
        client[0](chunk for _ in range(SIZE // STEP))
        return SIZE

    def read_all(client: Any, threads: int) -> int:
        memory = [bytearray(STEP) for _ in range(SIZE // STEP)]
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda number: client[1](number * STEP, memoryview(memory[number])), range(len(memory))))
        return SIZE

    jobs: dict[str, Callable[[Any], int]] = {"write, multipart": write}
    for threads in (1, 4, 16):
        jobs[f"read, {threads} threads"] = lambda client, n=threads: read_all(client, n)
    tables = []
    with _serving():
        for name, job in jobs.items():
            cases = [Case("obstore", _with_cpu(job), _obstore), Case("s3fs", _with_cpu(job), _s3fs)]
            results = measure(cases, rounds=options.round_count(5))
            tables.append(tabulate(results, "", unit=MEGABYTES_PER_SECOND, first="obstore", names={"job": name}))
    return Table("256 MiB, a server on this machine", join(tables).rows, join(tables).samples)


def _with_cpu(job: Callable[[Any], int]) -> Callable[[Any], Sample]:
    def run(client: Any) -> Sample:
        start, cpu = time.perf_counter(), cpu_time()
        size = job(client)
        seconds, cpu = time.perf_counter() - start, cpu_time() - cpu
        return Sample(size, seconds, {"CPU ms for 100 MB": cpu / size * 1e11})

    return run


@contextlib.contextmanager
def _serving() -> Iterator[None]:
    with Child("benchmarks.convert.object_stores:serve") as child:
        os.environ.update(AWS_ENDPOINT_URL=f"http://127.0.0.1:{child.answer()}", AWS_ALLOW_HTTP="true")
        os.environ.update(AWS_ACCESS_KEY_ID="name", AWS_SECRET_ACCESS_KEY="secret", AWS_REGION="us-east-1")  # noqa: S106
        yield
        child.stop()
