"""A stage in an object store: a server of S3's protocol on this machine."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.child import MissingError
from benchmarks.torture.verbs import Stage, Verb
from picstore.storage.location.resolve import locate


class ObjectStage(Stage):
    """A stage whose data set lies in a bucket."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.dataset: Any = locate("s3://torture/deep/ds")

    def begin(self, verb: Verb) -> None:
        self.work.mkdir(exist_ok=True)
        self.clear()
        if verb.edits:
            source = self.given / verb.edits
            for path in source.rglob("*"):
                if path.is_file():
                    (self.dataset / str(path.relative_to(source))).write(path.read_bytes())

    def files(self) -> dict[str, str]:
        found = ((name, (self.dataset / name).read_all(1 << 20)) for name, _ in self.dataset.files())
        return {name: hashlib.sha256(data).hexdigest() for name, data in found}

    def clear(self) -> None:
        self.dataset.remove()


@contextlib.contextmanager
def object_stage(folder: Path) -> Iterator[ObjectStage]:
    """Start a server and make a stage in it; MissingError without moto or obstore."""
    if find_spec("moto") is None or find_spec("obstore") is None:
        raise MissingError("moto and obstore")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    access = {"AWS_ACCESS_KEY_ID": "torture", "AWS_SECRET_ACCESS_KEY": secrets.token_hex(8), "AWS_REGION": "us-east-1"}
    os.environ.update(access, AWS_ENDPOINT_URL=f"http://127.0.0.1:{port}")
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _make_bucket(port)
        yield ObjectStage(folder)
    finally:
        server.kill()
        server.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _make_bucket(port: int) -> None:
    """Make the bucket as soon as the server answers."""
    for _ in range(600):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            connection.sendall(b"PUT /torture HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
            connection.recv(1024)
            return
        time.sleep(0.1)
    raise MissingError("moto's server does not answer")
