"""The kernel that reads containers: what it takes for sound, reading step by step finds sound too, and equal."""

from __future__ import annotations

import dataclasses
import os
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from grids import slow_except
from samples import picture

import picstore
from picstore.errors import Damage
from picstore.prepare.convert.row_writer import make_record
from picstore.storage.container_kernel import SoundReader
from picstore.storage.dataset_reader import ContainerReader
from picstore.storage.format.checksum import crc32c, entry_crcs
from picstore.storage.format.container import Container, ContainerRef
from picstore.storage.format.container_writer import pack_container
from picstore.storage.format.layout import ATTACHMENT, ENTRY, INDEX_ROW, SEALED
from picstore.storage.format.read_container import unpack_container
from picstore.storage.joined_manifest import RecordShift
from picstore.storage.location.abstract_location import fresh
from picstore.storage.location.resolve import file_name, locate

FIELDS = ("mask", "depth")
# Bytes of an index entry and of a header, by offset and width, in which a bound or a size lies.
ENTRY_FIELDS = ((16, 4), (20, 4), (28, 2), (30, 2), (32, 1), (40, 4), (44, 4), (48, 4), (52, 4))
HEADER_FIELDS = ((4, 2), *((at, 4) for at in range(8, 60, 4)))


def assert_equal(a: Container, b: Container) -> None:
    """Every field has the same value, and every array can be written to as before."""
    for field in dataclasses.fields(Container):
        mine, other = getattr(a, field.name), getattr(b, field.name)
        if isinstance(mine, np.ndarray):
            assert (mine.dtype, mine.shape, mine.flags.writeable) == (other.dtype, other.shape, other.flags.writeable)
            assert mine.tobytes() == other.tobytes(), field.name
        elif field.name not in ("_addresses", "_index_at"):  # which one of them has not been asked for
            assert mine == other, field.name
    assert (a.held is a.index) == (b.held is b.index)
    table = a.segment_table
    assert table is not None
    assert a.addresses() == (np.frombuffer(a.buffer, np.uint8).ctypes.data, table.ctypes.data if len(table) else 0)
    tops = a.place()[4]
    assert a.place()[2:4] == (a.index.ctypes.data, a.held.ctypes.data)
    assert tops in (a.tops.ctypes.data, 0) and (tops or not a.tops.any())


def images() -> list[bytes]:
    import io

    from PIL import Image

    made = []
    for number in range(4):
        out = io.BytesIO()
        pixels = picture(number, width=24, height=16)
        Image.fromarray(pixels).save(out, "JPEG", quality=90, restart_marker_blocks=number % 3)
        made.append(out.getvalue())
    return made


def containers(count: int, seed: int, fields: tuple[str, ...]) -> Iterator[tuple[bytearray, ContainerRef]]:
    """Containers of one to four records, of which the first is sound."""
    rng, jpegs = random.Random(seed), images()
    for number in range(count):
        records = [
            make_record(
                jpegs[rng.randrange(4)],
                id=rng.randrange(1 << 40),
                label=k,
                extra={"number": k} if number % 3 and rng.random() < 0.7 else None,
                attachments={name: rng.randbytes(rng.randrange(90)) for name in fields if rng.random() < 0.7},
            )
            for k in range(rng.randrange(1, 5))
        ]
        ref = ContainerRef("0001/000002.pic", 0, stream=1, file=2, ordinal=number)
        block = bytearray(b"".join(map(bytes, pack_container(records, fields=fields, ref=ref))))
        if number:
            harm(block, rng, records=len(records), fields=len(fields))
        yield block, ref


def harm(block: bytearray, rng: random.Random, *, records: int, fields: int) -> None:
    """Change some bytes; then, more often than not, make the checksums of entries, tables and header anew."""
    kind = rng.randrange(4)
    if kind == 0:
        at = rng.randrange(len(block))
        block[at] ^= 1 << rng.randrange(8)
    elif kind == 1:
        at = rng.randrange(len(block))
        block[at : at + 16] = bytes(len(block[at : at + 16]))
    else:
        tables = SEALED + ENTRY.itemsize * records
        cells = [tables + ATTACHMENT.itemsize * k for k in range(records * fields)]
        begins: list[tuple[int, tuple[tuple[int, int], ...]]] = [
            (SEALED + ENTRY.itemsize * k, ENTRY_FIELDS) for k in range(records)
        ]
        begins += [(at, ((0, 4), (4, 4))) for at in cells] + [(0, HEADER_FIELDS)]
        begin, places = rng.choice(begins)
        at, width = rng.choice(places)
        at += begin
        value = int.from_bytes(block[at : at + width], "little")
        value = rng.choice([0, 1, 6, 1 << 16, (1 << 32) - 1, value + 1, value - 1, value + 64]) % (1 << 8 * width)
        block[at : at + width] = value.to_bytes(width, "little")
    if rng.random() < 0.7:
        reseal(block, records=records, fields=fields)


def reseal(block: bytearray, *, records: int, fields: int) -> None:
    """Make checksums anew, so that only the bounds of sizes and places tell."""
    index = np.frombuffer(block, ENTRY, records, SEALED)
    attached = np.frombuffer(block, ATTACHMENT, records * fields, SEALED + index.nbytes)
    for table in (index, attached):
        table["entry_crc"] = entry_crcs(table.copy())
    end = SEALED + index.nbytes + attached.nbytes
    del index, attached, table
    struct.pack_into("<I", block, 32, crc32c(bytes(block[SEALED:end])))
    struct.pack_into("<I", block, 60, crc32c(bytes(block[:60])))


def unpacked(block: bytes, ref: ContainerRef, row: np.void, fields: tuple[str, ...]) -> Container | None:
    """What reading step by step makes of a container; None for damage."""
    options = {"records": int(row["records"]), "header_crc": int(row["header_crc"]), "size": int(row["size"])}
    try:
        container = unpack_container(memoryview(block), ref=ref, fields=fields, **options)  # type: ignore[arg-type]
    except Damage:
        return None
    return None if container.damage else container


@pytest.mark.parametrize(
    ("count", "fields"), slow_except([(300, ()), (300, FIELDS)], [(300, ()), (300, FIELDS), (2000, ()), (1000, FIELDS)])
)
def test_no_damaged_container_is_taken_for_a_sound_one(tmp_path: Path, count: int, fields: tuple[str, ...]) -> None:
    blocks = list(containers(count, seed=count, fields=fields))
    rows = np.zeros(count, INDEX_ROW)
    path = tmp_path / file_name(1, 2)
    path.parent.mkdir()
    with path.open("wb") as file:
        for number, (block, _) in enumerate(blocks):
            records, crc = struct.unpack_from("<I", block, 8)[0], struct.unpack_from("<I", block, 60)[0]
            rows[number] = (1, 2, file.tell(), len(block), max(1, min(records, 5)), crc, 0)
            file.write(block)
    reader = SoundReader(str(tmp_path), rows, np.arange(count, dtype=np.uint32), fields)
    sound = 0
    for (block, ref), row, found in zip(blocks, rows, reader.read(range(count), fresh), strict=True):
        if found is not None:
            expected = unpacked(bytes(block), dataclasses.replace(ref, offset=int(row["offset"])), row, fields)
            assert expected is not None
            assert_equal(found, expected)
            sound += 1
    assert 1 <= sound < count // 2


def test_whole_data_sets_are_read_alike(make_dataset: Callable[..., Path]) -> None:
    reader = picstore.Dataset(make_dataset(60)).containers
    reader.use_kernel()
    assert isinstance(reader._sound, SoundReader)
    numbers = range(len(reader.rows))
    for found, number in zip(reader._sound.read(numbers, fresh), numbers, strict=True):
        assert found is not None
        assert_equal(found, reader.read(number))


def read_all(reader: ContainerReader) -> list[Container | Damage]:
    """Read all containers, as a loader does."""
    reader.use_kernel()
    mask = lambda number: np.ones(int(reader.rows["records"][number]), np.bool_)  # noqa: E731
    numbers = range(len(reader.rows))
    return reader.read_in_part(numbers, lambda _: np.zeros((0, 2), np.int64), mask=mask, attachments=False)


def test_several_data_sets_keep_their_shifts_and_full_names(make_dataset: Callable[..., Path]) -> None:
    reader = picstore.Dataset(make_dataset(40)).containers.shifted(RecordShift(first_id=1000))
    for number, found in enumerate(read_all(reader)):
        assert isinstance(found, Container)
        assert_equal(found, reader.read(number))
        assert found.index["id"].min() >= 1000


@pytest.mark.parametrize("what", ["missing", "cut", "flipped", "folder", "pipe"])
def test_what_is_not_sound_is_told_as_by_reading_step_by_step(make_dataset: Callable[..., Path], what: str) -> None:
    path = make_dataset(40)
    reader = picstore.Dataset(path).containers
    file = path / file_name(*map(int, reader.rows[["stream", "file"]][0].tolist()))
    content = bytearray(file.read_bytes())
    file.unlink()
    if what == "cut":
        file.write_bytes(content[:5000])
    elif what == "flipped":
        content[int(reader.rows["offset"][0] + reader.rows["size"][0]) - 4097 + 512] ^= 1
        content[int(reader.rows["offset"][0]) + 70] ^= 1
        file.write_bytes(content)
    elif what == "folder":
        file.mkdir()
    elif what == "pipe":
        os.mkfifo(file)
    found = read_all(reader)
    for number, result in enumerate(found):
        expected = reader.read_whole(number, fresh)
        assert type(result) is type(expected)
        if isinstance(result, Damage):
            assert str(result) == str(expected)
        else:
            assert list(map(str, result.damage)) == list(map(str, expected.damage))  # type: ignore[union-attr]
    assert any(isinstance(result, Damage) or result.damage for result in found)


def test_nothing_is_allocated_for_bytes_that_a_file_does_not_have(tmp_path: Path) -> None:
    (tmp_path / "0000").mkdir()
    (tmp_path / file_name(0, 0)).write_bytes(bytes(9000))
    rows = np.array([(0, 0, 4096, 1 << 30, 5, 0, 0), (0, 1, 4096, 1 << 30, 5, 0, 0)], INDEX_ROW)

    def refuse(size: int) -> memoryview:
        raise AssertionError(size)

    assert SoundReader(str(tmp_path), rows, np.zeros(2, np.uint32), ()).read([0, 1], refuse) == [None, None]


def test_stores_caches_and_references_are_read_step_by_step(make_dataset: Callable[..., Path], tmp_path: Path) -> None:
    dataset = picstore.Dataset(make_dataset(20), cache=tmp_path / "cache")
    dataset.containers.use_kernel()
    assert dataset.containers._sound is None
    reader = ContainerReader(locate("https://127.0.0.1:1/train"), dataset.rows, ())
    reader.use_kernel()
    assert reader._sound is None
