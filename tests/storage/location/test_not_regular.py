"""Named pipes, sockets and devices in the place of files: damage, never a wait."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import one_line, picstore_command, picstore_json
from grids import slow_except

import picstore
from picstore.errors import Damage, PicstoreError
from picstore.prepare.upkeep.repair_dataset import repair
from picstore.prepare.upkeep.verify_dataset import verify
from picstore.storage.location.local import Folder


@pytest.fixture(autouse=True)
def _end_a_wait() -> Iterator[None]:
    """Raise where a test waits for a writer that never comes."""

    def end(*_: object) -> None:
        raise TimeoutError("waits for a pipe")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def make_socket(path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY)  # a socket's path has at most 107 bytes
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as made:
        made.bind(f"/proc/self/fd/{folder}/{path.name}")
    os.close(folder)


MAKE: dict[str, Callable[[Path], Any]] = {
    "named pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "socket": make_socket,
}
FILES = ["picstore.json", "picstore.copy.json", "picstore.idx", "0001/000000.pic", "tombstones", "ledger.jsonl"]


def records(path: Path) -> list[int]:
    return [record.id for record in picstore.Dataset(path)]


def batches(path: Path) -> int:
    loader = picstore.Loader(path, batch_size=5, transform=[picstore.Resize((8, 8))], isolate=False)
    try:
        return sum(len(batch.labels) for batch in loader)
    finally:
        loader.close()


USES: list[Callable[[Path], Any]] = [
    lambda path: picstore.Dataset(path)[1],
    records,
    batches,
    lambda path: picstore_command("info", path),
    lambda path: picstore.Dataset(path).without([3]).save(),
    repair,
]


@pytest.mark.parametrize(
    ("kind", "name"),
    slow_except(
        [("named pipe", "picstore.json"), ("named pipe", "0001/000000.pic"), ("device", "0001/000000.pic")],
        [(kind, name) for kind in MAKE for name in FILES],
    ),
)
def test_a_pipe_or_device_in_a_data_set_is_damage_and_no_wait(
    kind: str, name: str, make_dataset: Callable[..., Path]
) -> None:
    path = make_dataset(30)
    if name == "tombstones":
        name = str(picstore.Dataset(path).without([1]).save().manifest.edits.tombstones.file)  # type: ignore[union-attr]
    (path / name).unlink(missing_ok=True)
    MAKE[kind](path / name)
    os.mkfifo(path / "left.partial")
    if name == "picstore.json":
        assert kind in one_line(picstore_command("info", path, code=3))
    elif name != "ledger.jsonl":  # which nothing below reads
        assert {Path(found.file).name for found in verify(path, workers=1).findings} == {Path(name).name}
    if name.endswith(".pic"):
        with pytest.raises(Damage, match=kind):
            records(path)
        assert picstore_json("verify", path, code=3)["records_lost"] > 0
    for use in USES:
        with contextlib.suppress(PicstoreError, AssertionError):  # the latter for another exit code than 0
            use(path)


@pytest.mark.parametrize("kind", MAKE)
def test_no_way_to_read_a_file_waits_for_what_is_none(kind: str, tmp_path: Path) -> None:
    MAKE[kind](tmp_path / "x")
    file = Folder(tmp_path / "x")
    ways: list[Callable[[], object]] = [
        lambda: file.read(0, 1, file="x"),
        lambda: file.read_pieces([(0, memoryview(bytearray(1)))], file="x"),
        lambda: list(file.lines()),
        lambda: file.read_all(10),
        lambda: file.open().read(),
    ]
    for way in ways:
        with pytest.raises(Damage, match="not a regular file"):
            way()
    assert not file.read_cached([(0, memoryview(bytearray(1)))])
    assert not file.is_file()
    with pytest.raises(Damage, match="not a regular file"):
        file.replace(b"new", expected=b"")


def test_a_reference_to_a_pipe_is_damage_and_no_wait(tmp_path: Path) -> None:
    from samples import jpeg

    for k in range(5):
        (tmp_path / "photos" / "a").mkdir(parents=True, exist_ok=True)
        (tmp_path / "photos" / "a" / f"{k}.jpg").write_bytes(jpeg(k))
    picstore_command("index", tmp_path / "photos", tmp_path / "index")
    (tmp_path / "photos" / "a" / "3.jpg").unlink()
    os.mkfifo(tmp_path / "photos" / "a" / "3.jpg")
    (finding,) = verify(tmp_path / "index", workers=1).findings
    assert "named pipe" in finding.problem
    assert batches(tmp_path / "index") == 5
    done = picstore_json("convert", tmp_path / "index", tmp_path / "out", "--max-errors", 1)
    assert done["images"] == 4
