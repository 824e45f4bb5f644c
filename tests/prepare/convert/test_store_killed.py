"""A store that is killed while convert reads from it or writes to it."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from commands import picstore_command
from engine_tasks import InlineEngine
from samples import jpeg

from picstore.errors import PicstoreError
from picstore.prepare.convert.conversion_job import ConvertOptions, convert
from picstore.prepare.convert.row_division import DatasetShape
from picstore.prepare.image.encode_settings import EncodeSettings
from picstore.prepare.sources.open import open_source
from picstore.storage.location import obstore_file
from picstore.storage.location.resolve import Location, locate
from picstore.storage.location.resumed_download import Retries

SHAPE = DatasetShape(streams=2, file_size=32 << 10, container_size=16 << 10)
OPTIONS = ("--streams", 2, "--file-size", "32KiB", "--container-size", "16KiB", "--workers", 2)
OUTAGE = 1.0  # seconds, after which the killed server is back


class Port:
    """A port that forwards to a server and can be killed: open connections are cut, new ones refused.

    moto keeps objects in memory, so that killing its process would empty the store, as no real store is emptied.

    Attributes:
        bytes: number of bytes forwarded in both directions.
        kill_at: number of bytes at which the port is killed; it comes back after ``outage`` seconds, or never.
    """

    def __init__(self, server: str) -> None:
        self._server = ("127.0.0.1", int(server.rpartition(":")[2]))
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._address = self._listener.getsockname()
        self.url = f"http://127.0.0.1:{self._address[1]}"
        self.bytes, self.kill_at, self.outage, self.kills = 0, 1 << 62, 0.0, 0
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def start(self) -> None:
        self._listener = socket.create_server(self._address)
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def kill(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            connections, self._open = self._open, set()
        for each in connections:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.create_connection(self._server)
                with self._lock:
                    self._open |= {client, server}
                for pair in ((client, server), (server, client)):
                    threading.Thread(target=self._pump, args=pair, daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 14):
                target.sendall(data)
                if self._counts(len(data)):
                    self.kill()
                    if self.outage:
                        time.sleep(self.outage)
                        self.start()
                    return
            target.shutdown(socket.SHUT_WR)

    def _counts(self, size: int) -> bool:
        """Count bytes; returns whether they reach the number at which the port is killed."""
        with self._lock:
            self.bytes += size
            if self.bytes < self.kill_at:
                return False
            self.kill_at, self.kills = 1 << 62, self.kills + 1
            return True


@pytest.fixture
def port(s3: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Port]:
    between = Port(s3)
    monkeypatch.setattr(obstore_file, "_clients", {})
    monkeypatch.setenv("AWS_ENDPOINT_URL", between.url)
    yield between
    between.kill()


def contents(location: Location, prefix: str = "") -> dict[str, bytes]:
    found = {}
    for name, is_folder in location.entries():
        if is_folder:
            found |= contents(location / name, f"{prefix}{name}/")
        elif prefix + name != "edits/lock":
            found[prefix + name] = (location / name).read_all(1 << 30)
    return {name: data for name, data in found.items() if data}


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["from a store", "into a store"])
def test_a_server_killed_under_convert_changes_no_byte(
    tmp_path: Path, bucket: str, port: Port, monkeypatch: pytest.MonkeyPatch, direction: str
) -> None:
    for k in range(60):
        noise = np.random.default_rng(k).integers(0, 256, (60, 80, 3), dtype=np.uint8)
        data = jpeg(k, width=80, height=60) + noise.tobytes()
        if direction == "from a store":
            (locate(f"{bucket}/source") / f"{k:02d}.jpg").write(data)
        else:
            (tmp_path / "source").mkdir(exist_ok=True)
            (tmp_path / "source" / f"{k:02d}.jpg").write_bytes(data)
    source = f"{bucket}/source" if direction == "from a store" else str(tmp_path / "source")
    out = str(tmp_path / "out") if direction == "from a store" else f"{bucket}/out"
    port.bytes = 0
    options = ConvertOptions(encode=EncodeSettings(), shape=SHAPE, workers=InlineEngine(1))
    convert(open_source(source), f"{out}-whole", options)
    traffic, whole = port.bytes, contents(locate(f"{out}-whole"))
    assert len(whole) > 4

    port.bytes, port.kill_at, port.outage = 0, traffic * 6 // 10, OUTAGE
    picstore_command("convert", source, f"{out}-back", *OPTIONS, process=True)
    assert port.kills == 1
    assert contents(locate(f"{out}-back")) == whole

    monkeypatch.setattr(obstore_file, "retries", lambda **_: Retries(1000, base=3, seconds=1, longest=0.3))
    monkeypatch.setattr(obstore_file, "_clients", {})
    port.bytes, port.kill_at, port.outage = 0, traffic * 6 // 10, 0
    with pytest.raises(PicstoreError, match=r"cannot be reached|settings"):
        convert(open_source(source), f"{out}-resumed", options)
    assert port.kills == 2
    port.start()
    convert(open_source(source), f"{out}-resumed", options, resume=True)
    assert contents(locate(f"{out}-resumed")) == whole
