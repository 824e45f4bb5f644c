"""Containers beyond 4 GiB of their file: every reader takes offsets of 64 bits. The file is sparse."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from samples import picture

import picstore
from picstore.prepare.convert.row_division import DatasetShape
from picstore.storage.format.container import Container
from picstore.storage.location.abstract_location import fresh
from picstore.storage.location.atomic_file import AtomicFile

pytestmark = pytest.mark.slow

HOLE = 64 << 20  # bytes of the attachments of zeros
FAR = range(65, 106)  # ids of the records beyond 4 GiB; the last one is alone in a container of HOLE bytes
SHAPE = DatasetShape(streams=1, container_size=16 << 10, file_size=1 << 34)


def require_sparse_files(folder: Path) -> None:
    """Skip the test where a hole in a file takes space."""
    probe = folder / "probe"
    with probe.open("wb") as file:
        file.write(b"x")
        file.seek(HOLE)
        file.write(b"x")
    taken = probe.stat().st_blocks * 512
    probe.unlink()
    if taken > HOLE // 2:
        pytest.skip("the file system has no sparse files: this takes 4 GiB there")


def write(path: Path, hole: bytes) -> None:
    with picstore.Writer(path, classes=["near", "far"], attachments=["hole"], shape=SHAPE) as writer:
        for number in range(FAR.stop):
            alone = 0 < number < FAR.start or number == FAR[-1]
            image = picture(number, width=40, height=30)
            writer.add(image, "far" if number in FAR else "near", attachments={"hole": hole} if alone else None)


@pytest.fixture(scope="module")
def near(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same records without the holes."""
    write(path := tmp_path_factory.mktemp("near") / "set", b"")
    return path


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of one file of 4.4 GB, by Writer, whose attachments of zeros are holes in the file."""
    folder = tmp_path_factory.mktemp("large")
    require_sparse_files(folder)
    hole, write_all = bytes(HOLE), AtomicFile.write

    def write_sparse(self: AtomicFile, data: Any) -> None:
        if data is hole or (len(data) == HOLE and data == hole):
            self._out.seek(HOLE, os.SEEK_CUR)
        else:
            write_all(self, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AtomicFile, "write", write_sparse)
        write(folder / "set", hole)
    return folder / "set"


def content(records: Any) -> list[tuple[int, int, bytes]]:
    return [(record.id, record.label, record.jpeg) for record in records]


def far_containers(path: Path) -> tuple[Any, list[int]]:
    """The reader of a data set, and numbers of its containers beyond 4 GiB."""
    reader = picstore.Dataset(path).containers
    far = np.flatnonzero(reader.rows["offset"] > 1 << 32).tolist()
    assert len(far) >= 3 and int(reader.rows["records"][far].sum()) == len(FAR)
    return reader, far


def test_records_beyond_4_gib_are_those_of_a_small_file(large: Path, near: Path) -> None:
    far_containers(large)
    wanted = content(picstore.Dataset(near)[FAR.start :])
    assert content(picstore.Dataset(large)[FAR.start :]) == wanted
    assert content(picstore.Dataset(large)[number] for number in FAR) == wanted


def test_the_kernel_reads_containers_beyond_4_gib(large: Path) -> None:
    reader, far = far_containers(large)
    reader.use_kernel()
    for number, found in zip(far[:-1], reader._sound.read(far[:-1], fresh), strict=True):
        assert isinstance(found, Container)
        assert bytes(found.buffer) == bytes(reader.read(number).buffer)


@pytest.mark.parametrize("isolate", [False, True])
def test_a_loader_reads_beyond_4_gib_whole_and_in_part(large: Path, near: Path, isolate: bool) -> None:
    def images(path: Path) -> dict[int, bytes]:
        dataset = picstore.Dataset(path).select(np.array(FAR))
        loader = picstore.Loader(
            dataset, batch_size=8, drop_last=False, transform=[picstore.Resize((16, 16))], isolate=isolate, threads=1
        )
        try:
            return {
                int(batch.ids[k]): batch.images[k].numpy().tobytes() for batch in loader for k in range(len(batch.ids))
            }
        finally:
            read.append(loader.stats.bytes)
            loader.close()

    read: list[int] = []
    assert images(large) == images(near)
    assert sorted(images(near)) == list(FAR)
    assert read[0] < HOLE // 8, "the container with the hole is read in part"


@pytest.mark.nightly  # reads 4 GiB
def test_verify_reads_beyond_4_gib(large: Path) -> None:
    found = picstore.verify(large, workers=1)
    assert found.ok and found.damage == [] and found.images == FAR.stop


def test_shuffle_copies_what_lies_beyond_4_gib(large: Path, near: Path, tmp_path: Path) -> None:
    far = picstore.Dataset(large).select(np.array(FAR[:-1]))
    picstore.shuffle(far, tmp_path / "shuffled", workers=1, seed=1)
    shuffled = content(picstore.Dataset(tmp_path / "shuffled"))
    assert sorted(shuffled) == content(picstore.Dataset(near)[FAR.start : FAR[-1]])
    assert shuffled != sorted(shuffled)
