"""Which library for object stores: obstore against s3fs, reading ranges and writing by parts, ratios in one run.

    python scripts/bench_objects.py [--moto] [--rounds N]

Reads 256 MiB by ranges of 8 MiB from 1, 4 and 16 threads into memory of our own, and writes 256 MiB by parts of 8 MiB.
The server is this script's own, which answers from memory with sendfile and forgets what it gets: moto's, which
``--moto`` takes, serves 50 MB/s, so that there one measures moto. CPU is that of the client's process; what s3fs needs
of it, it needs under the GIL, where it stands in the way of a training loop. Needs obstore, s3fs, and moto[server].
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

MIB = 1 << 20
SIZE, STEP = 256 * MIB, 8 * MIB
_STARTED, _ENDED = (
    f"<{name}><Bucket>b</Bucket><Key>k</Key>{more}</{name}>".encode()
    for name, more in (
        ("InitiateMultipartUploadResult", "<UploadId>1</UploadId>"),
        ("CompleteMultipartUploadResult", "<ETag>e</ETag>"),
    )
)


def serve(port: int) -> None:
    """An S3 server with one object for all names: a thread a connection."""
    with tempfile.TemporaryFile() as content, socket.create_server(("127.0.0.1", port), backlog=64) as listener:
        content.write(os.urandom(SIZE))
        content.flush()
        while True:
            connection, _ = listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=_answer_all, args=(connection, content.fileno()), daemon=True).start()


def _answer_all(connection: socket.socket, content: int) -> None:
    scratch = bytearray(MIB)
    with connection, connection.makefile("rb") as stream:
        while line := stream.readline():
            method, path, _ = line.decode().split()
            headers = dict(iter(lambda: _header(stream.readline()), ("", "")))
            if "expect" in headers:
                connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            left = int(headers.get("content-length", 0))
            while left:
                left -= stream.readinto(memoryview(scratch)[: min(left, MIB)])
            if method == "GET" and "range" in headers:
                first, last = map(int, re.findall(r"\d+", headers["range"]))
                _send(connection, 206, last + 1 - first, f"Content-Range: bytes {first}-{last}/{SIZE}\r\n")
                while first <= last:
                    first += os.sendfile(connection.fileno(), content, first, last + 1 - first)
            else:
                body = b"" if method != "POST" else _STARTED if "uploads" in path else _ENDED
                _send(connection, 200, SIZE if method == "HEAD" else len(body))
                connection.sendall(body)


def _header(line: bytes) -> tuple[str, str]:
    name, _, value = line.decode().strip().partition(": ")
    return name.lower(), value


def _send(connection: socket.socket, status: int, size: int, more: str = "") -> None:
    date = "Last-Modified: Wed, 01 Jan 2025 00:00:00 GMT\r\n"
    connection.sendall(f'HTTP/1.1 {status} OK\r\nContent-Length: {size}\r\nETag: "e"\r\n{date}{more}\r\n'.encode())


@contextlib.contextmanager
def server(moto: bool) -> Iterator[None]:
    """A server in a process of its own; the environment says where."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    command = ["-m", "moto.server", "-H", "127.0.0.1", "-p", port] if moto else [__file__, "--serve", port]
    process = subprocess.Popen([sys.executable, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    os.environ.update(AWS_ENDPOINT_URL=url, AWS_ACCESS_KEY_ID="name", AWS_SECRET_ACCESS_KEY="secret")  # noqa: S106 - for a server that takes any
    os.environ.update(AWS_REGION="us-east-1", AWS_ALLOW_HTTP="true")
    try:
        for _ in range(100):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(urllib.request.Request(f"{url}/bucket", method="PUT")).read()  # noqa: S310
                break
            time.sleep(0.1)
        yield
    finally:
        process.kill()
        process.wait()


class Obstore:
    """Reading and writing with obstore."""

    def __init__(self) -> None:
        import obstore

        self._library, self._store = obstore, obstore.store.from_url("s3://bucket")

    def write(self, parts: Iterator[bytes]) -> None:
        self._library.put(self._store, "obstore", parts, chunk_size=STEP, max_concurrency=4)

    def read(self, offset: int, into: memoryview) -> None:
        into[:] = memoryview(self._library.get_range(self._store, "obstore", start=offset, length=len(into)))


class S3fs:
    """Reading and writing with s3fs."""

    def __init__(self) -> None:
        import s3fs

        self._files = s3fs.S3FileSystem(skip_instance_cache=True)

    def write(self, parts: Iterator[bytes]) -> None:
        with self._files.open("bucket/s3fs", "wb", block_size=STEP) as out:
            for part in parts:
                out.write(part)

    def read(self, offset: int, into: memoryview) -> None:
        into[:] = self._files.cat_file("bucket/s3fs", start=offset, end=offset + len(into))


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measured(action: Callable[[], object]) -> tuple[float, float]:
    """Seconds and CPU seconds."""
    start, cpu = time.perf_counter(), _cpu()
    action()
    return time.perf_counter() - start, _cpu() - cpu


def read_all(client: Obstore | S3fs, threads: int) -> None:
    memory = [bytearray(STEP) for _ in range(SIZE // STEP)]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda k: client.read(k * STEP, memoryview(memory[k])), range(len(memory))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--moto", action="store_true", help="measure against moto's server")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
    part = os.urandom(STEP)
    print(f"{'MB/s (CPU ms a 100 MB)':<26}{'obstore':>16}{'s3fs':>16}{'obstore / s3fs':>16}")
    with server(options.moto):
        clients = (Obstore(), S3fs())
        jobs: dict[str, Callable[[Obstore | S3fs], None]] = {
            "write by parts": lambda client: client.write(part for _ in range(SIZE // STEP)),
            **{f"read, {n} threads": lambda client, n=n: read_all(client, n) for n in (1, 4, 16)},
        }
        for name, job in jobs.items():
            runs = [[measured(partial(job, client)) for client in clients] for _ in range(options.rounds)]
            seconds, cpu = ([statistics.median(run[c][k] for run in runs) for c in (0, 1)] for k in (0, 1))
            cells = [f"{SIZE / s / 1e6:,.0f} ({1e8 * c / SIZE * 1e3:,.0f})" for s, c in zip(seconds, cpu, strict=True)]
            print(f"{name:<26}{cells[0]:>16}{cells[1]:>16}{seconds[1] / seconds[0]:>16.2f}")


if __name__ == "__main__":
    main()
