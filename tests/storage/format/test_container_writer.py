"""storage.file, storage.scan and storage.location: files of containers, and what is left of damaged ones."""

from __future__ import annotations

import errno
import os
import random
import struct
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from picstore.errors import (
    Corrupt,
    Damage,
    NotADataset,
    PicstoreError,
    TooLarge,
    Truncated,
    UnsupportedVersion,
    UsageError,
)
from picstore.storage.format import layout
from picstore.storage.format.checksum import crc32c
from picstore.storage.format.container import ContainerRef
from picstore.storage.format.container_index import FileSummary, read_summary
from picstore.storage.format.container_writer import FileWriter, pack_container
from picstore.storage.format.layout import ALIGNMENT, FOOTER_ROW, SEALED, FileHeader, Trailer
from picstore.storage.format.read_container import recover_containers, unpack_container
from picstore.storage.format.record import ImageInfo, Record
from picstore.storage.location import local, resolve
from picstore.storage.location.resolve import file_name, locate_writable, read_at

STREAM, FILE = 2, 5


def records(count: int, *, size: int = 700, seed: int = 0) -> list[Record]:
    """Records of noise; storage knows nothing of what is inside an image."""
    rng = random.Random(seed)
    return [
        Record(
            id=k,
            label=k % 3,
            jpeg=rng.randbytes(rng.randrange(1, size)),
            info=ImageInfo(width=k + 1, height=9),
            extra_json=b'{"k":%d}' % k,
        )
        for k in range(count)
    ]


def write(root: Path, several: list[Record], *, container_size: int = 8192) -> FileSummary:
    with FileWriter(root, stream=STREAM, file=FILE, container_size=container_size) as writer:
        for record in several:
            writer.add(record)
        return writer.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of several containers."""
    write(tmp_path, records(60))
    return tmp_path / file_name(STREAM, FILE)


def summary_of(path: Path) -> FileSummary:
    return read_summary(path.parents[1], stream=STREAM, file=FILE)


def walked(path: Path) -> list[int]:
    """Offsets of the containers that a walk finds."""
    return [container.ref.offset for container in recover_containers(path.parents[1], stream=STREAM, file=FILE)]


def contents(path: Path) -> list[tuple[int, bytes]]:
    found = []
    for container in recover_containers(path.parents[1], stream=STREAM, file=FILE):
        found += [(container.record(k).id, bytes(container.jpeg(k))) for k in np.flatnonzero(container.good)]
    return found


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    several = records(60)
    written = write(tmp_path, several)
    read = read_summary(tmp_path, stream=STREAM, file=FILE)
    assert (read.stream, read.file, read.size, read.records, read.crc) == (
        *(STREAM, FILE, (tmp_path / file_name(STREAM, FILE)).stat().st_size, 60, written.crc),
    )
    assert read.footer.dtype == FOOTER_ROW
    assert read.footer.tolist() == written.footer.tolist()
    assert contents(tmp_path / file_name(STREAM, FILE)) == [(r.id, r.jpeg) for r in several]


def test_the_same_records_give_the_same_file(tmp_path: Path) -> None:
    for name in "ab":
        write(tmp_path / name, records(30))
    a, b = ((tmp_path / name / file_name(STREAM, FILE)).read_bytes() for name in "ab")
    assert a == b


def test_footer_and_trailer_tell_where_every_container_is(path: Path) -> None:
    data = path.read_bytes()
    footer = summary_of(path).footer
    assert len(footer) > 3
    expected = ALIGNMENT
    for ordinal, row in enumerate(footer):
        assert row["offset"] == expected
        first, size = int(row["offset"]), int(row["size"])
        ref = ContainerRef("x", first, STREAM, FILE, ordinal)
        container = unpack_container(memoryview(data)[first : first + size], ref=ref, records=int(row["records"]))
        assert not container.damage
        assert row["header_crc"] == int.from_bytes(data[first + SEALED - 4 : first + SEALED], "little")
        assert row["referenced"] == 0
        expected += size
    assert data[expected:-SEALED] == footer.tobytes()


@pytest.mark.parametrize("container_size", [4096, 5000, 8192, 20000])
def test_no_container_exceeds_its_size_unless_it_has_one_record(tmp_path: Path, container_size: int) -> None:
    summary = write(tmp_path, records(150, size=6000), container_size=container_size)
    large = summary.footer[summary.footer["size"] > container_size]
    assert (large["records"] == 1).all()
    assert len(summary.footer) > 3
    # and none is left emptier than it must be: two neighbors never fit into one
    used = summary.footer["size"].astype(int)
    assert (used[:-1] + used[1:] > container_size).all()


def test_a_record_larger_than_a_container_gets_one_of_its_own(tmp_path: Path) -> None:
    several = records(3)
    several[1] = Record(id=1, label=0, jpeg=bytes(50_000), info=ImageInfo(1, 1))
    summary = write(tmp_path, several, container_size=4096)
    assert summary.footer["records"].tolist() == [1, 1, 1]
    assert summary.footer["size"].tolist() == [4096, 53248, 4096]


def test_a_record_larger_than_a_container_does_not_stay_in_memory(tmp_path: Path) -> None:
    tracemalloc.start()
    try:
        with FileWriter(tmp_path, stream=STREAM, file=FILE, container_size=8192) as writer:
            writer.add(records(1)[0])
            writer.add(replace(records(1)[0], jpeg=bytes(1 << 22)))
            assert tracemalloc.get_traced_memory()[0] < 1 << 20
            writer.close()
    finally:
        tracemalloc.stop()


def test_a_record_too_large_for_containers_is_refused_and_others_written(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(layout, "MAX_CONTAINER", 1 << 16)
    small, large, other = *records(1), replace(records(1)[0], jpeg=bytes(1 << 17)), *records(1, seed=1)
    with FileWriter(tmp_path, stream=STREAM, file=FILE, container_size=8192) as writer:
        writer.add(small)
        with pytest.raises(UsageError):
            writer.add(large)
        writer.add(other)
        assert writer.close().records == 2
    assert [jpeg for _, jpeg in contents(tmp_path / file_name(STREAM, FILE))] == [bytes(small.jpeg), bytes(other.jpeg)]


def test_a_container_ends_before_its_records_or_extras_pass_their_limits(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("picstore.storage.format.layout.MAX_RECORDS", 7)
    assert write(tmp_path / "a", records(20), container_size=1 << 20).footer["records"].tolist() == [7, 7, 6]
    monkeypatch.setattr("picstore.storage.format.layout.MAX_EXTRAS", 35)
    assert write(tmp_path / "b", records(9), container_size=1 << 20).footer["records"].tolist() == [5, 4]


def test_a_file_without_records_can_be_written_and_read(tmp_path: Path) -> None:
    assert len(write(tmp_path, []).footer) == 0
    summary = read_summary(tmp_path, stream=STREAM, file=FILE)
    assert (summary.records, len(summary.footer)) == (0, 0)


def test_an_error_while_writing_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), FileWriter(tmp_path, stream=0, file=0, container_size=4096) as writer:
        for record in records(20):
            writer.add(record)
        raise ZeroDivisionError
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


def test_a_file_has_its_name_only_once_it_is_whole(tmp_path: Path) -> None:
    with FileWriter(tmp_path, stream=0, file=0, container_size=4096) as writer:
        for record in records(20):
            writer.add(record)
        (partial,) = (p.name for p in tmp_path.rglob("*") if p.is_file())
        assert partial.startswith("000000.pic.") and partial.endswith(".partial")
        writer.close()
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == ["000000.pic"]


# Damage


def test_a_file_cut_off_anywhere_is_truncated_and_whole_containers_found(path: Path) -> None:
    data = path.read_bytes()
    footer = summary_of(path).footer
    ends = footer["offset"].astype(int) + footer["size"]
    rng = random.Random(0)
    edges = [edge + step for edge in (0, SEALED, ALIGNMENT, *ends.tolist()) for step in (-1, 0, 1)]
    lengths = {*edges, *range(len(data) - 200, len(data)), *(rng.randrange(len(data)) for _ in range(100))}
    for length in sorted(n for n in lengths if 0 <= n < len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(Truncated):
            summary_of(path)
        assert walked(path) == footer["offset"][ends <= length].tolist(), length


def test_any_flipped_bit_of_header_footer_and_trailer_is_noticed(path: Path) -> None:
    data = bytearray(path.read_bytes())
    tail = len(data) - SEALED - summary_of(path).footer.nbytes
    for bit in (*range(8 * SEALED), *range(8 * tail, 8 * len(data))):
        data[bit >> 3] ^= 1 << (bit & 7)
        path.write_bytes(data)
        with pytest.raises(Truncated if len(data) - 64 <= bit >> 3 < len(data) - 56 else Corrupt):
            summary_of(path)
        data[bit >> 3] ^= 1 << (bit & 7)


def test_bytes_after_the_trailer_are_noticed(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data + b"\0")
    with pytest.raises(Truncated):
        summary_of(path)
    path.write_bytes(data + data[-SEALED:])
    with pytest.raises(Corrupt, match="tells of a file"):
        summary_of(path)


def test_a_file_in_the_place_of_another_is_noticed(path: Path) -> None:
    root = path.parents[1]
    path.rename(path.with_name("000006.pic"))
    with pytest.raises(Corrupt, match="this is file 5 of stream 2"):
        read_summary(root, stream=STREAM, file=6)


def test_a_file_of_a_later_version_asks_for_an_upgrade(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(FileHeader(2, STREAM, FILE).pack() + data[SEALED:])
    with pytest.raises(UnsupportedVersion, match=r"format version 2.*upgrade"):
        summary_of(path)


def with_tail(path: Path, footer: np.ndarray, **changes: int) -> None:
    """Write the file anew with another footer and trailer, whose CRCs hold."""
    data = path.read_bytes()
    old = summary_of(path)
    kept = data[: len(data) - SEALED - old.footer.nbytes]
    fields = {
        "version": 1,
        "containers": len(footer),
        "footer_offset": len(kept),
        "records": old.records,
        "file_size": len(kept) + footer.nbytes + SEALED,
        "stream": STREAM,
        "file": FILE,
        "footer_crc": crc32c(footer.tobytes()),
    }
    path.write_bytes(kept + footer.tobytes() + Trailer(**{**fields, **changes}).pack())


@pytest.mark.parametrize(
    "changes",
    [
        {"containers": 0xFFFFFFFF},
        {"containers": 0},
        {"footer_offset": (1 << 64) - 1},
        {"footer_offset": 0},
        {"file_size": (1 << 64) - 1},
        {"records": 1},
        {"stream": 9},
        {"file": 9},
        {"footer_crc": 0},
    ],
)
def test_a_hostile_trailer_with_a_sound_crc_is_refused_without_allocating(path: Path, changes) -> None:
    with_tail(path, summary_of(path).footer, **changes)
    tracemalloc.start()
    try:
        with pytest.raises(Corrupt):
            summary_of(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("offset", 0),
        ("offset", 4097),
        ("offset", (1 << 64) - 4096),
        ("offset", 8192),
        ("size", 0),
        ("size", 1),
        ("size", 0xFFFFF000),
        ("size", 1 << 30),
        ("records", 0),
        ("records", (1 << 20) + 1),
        ("records", 1 << 20),
    ],
)
def test_a_hostile_footer_that_holds_its_crc_is_refused(path: Path, column: str, value: int) -> None:
    footer = summary_of(path).footer.copy()
    footer[column][0] = value
    with_tail(path, footer)
    with pytest.raises(Corrupt):
        summary_of(path)


def test_a_walk_goes_on_behind_a_damaged_container(path: Path) -> None:
    data = bytearray(path.read_bytes())
    offsets = summary_of(path).footer["offset"].tolist()
    data[offsets[1] : offsets[1] + SEALED] = bytes(SEALED)
    data[offsets[3] + 4 : offsets[3] + SEALED] = bytes(SEALED - 4)
    path.write_bytes(data)
    assert walked(path) == [offset for k, offset in enumerate(offsets) if k not in (1, 3)]


def test_a_walk_finds_containers_whose_header_or_payload_has_a_flipped_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    offsets = summary_of(path).footer["offset"].tolist()
    data[offsets[0] + 8] ^= 1
    data[offsets[1] + 4000] ^= 1
    path.write_bytes(data)
    assert walked(path) == offsets
    first, second, *others = recover_containers(path.parents[1], stream=STREAM, file=FILE)
    assert first.good.all()
    assert len(first.damage) == 1
    assert (~second.good).sum() == 1
    assert not any(container.damage for container in others)


def test_a_walk_trusts_no_container_of_another_file(path: Path) -> None:
    data = bytearray(path.read_bytes())
    offset = int(summary_of(path).footer["offset"][1])
    stranger = b"".join(pack_container(records(2), ref=ContainerRef("x", 0, STREAM, FILE + 1, 1)))
    data[offset : offset + len(stranger)] = stranger
    path.write_bytes(data)
    assert offset not in walked(path)


def test_a_walk_through_hostile_headers_allocates_nothing_for_them(path: Path) -> None:
    data = bytearray(path.read_bytes())
    for offset, size in ((4096, 1 << 30), (8192, 0xFFFFF000)):
        payload = size - SEALED - 64
        body = struct.pack("<4sHH13I", b"PICC", 0, 0, 1, size, 0, 0, 0, payload, 0, 0, 0, 0, STREAM, FILE, 0)
        data[offset : offset + SEALED] = body + struct.pack("<I", crc32c(body))
    path.write_bytes(data)
    tracemalloc.start()
    try:
        walked(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_walk_through_garbage_finds_nothing(tmp_path: Path) -> None:
    path = tmp_path / file_name(STREAM, FILE)
    path.parent.mkdir()
    garbage = bytearray(random.Random(0).randbytes(100_000))
    for offset in range(0, len(garbage), ALIGNMENT):
        garbage[offset : offset + 4] = layout.CONTAINER_MAGIC
    path.write_bytes(garbage)
    assert walked(path) == []
    with pytest.raises(Corrupt, match="no file header"):
        summary_of(path)


def test_limits_of_a_container_header_are_named() -> None:
    header = layout.ContainerHeader(*(0,) * 2, 1, (1 << 30) + 1, *(0,) * 11)
    with pytest.raises(TooLarge, match=r"size 1073741825 is over the limit 1073741824") as caught:
        header.check(file="a.pic", offset=4096)
    assert (caught.value.file, caught.value.offset) == ("a.pic", 4096)
    assert str(caught.value).startswith("a.pic at byte 4096: ")


# Reading and writing bytes


def test_read_at_gives_just_the_bytes_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(bytes(range(100)))
    assert bytes(read_at(path, 10, 5, file="f")) == bytes(range(10, 15))
    assert bytes(read_at(path, 95, 5, file="f")) == bytes(range(95, 100))
    assert bytes(read_at(path, 100, 0, file="f")) == b""
    with pytest.raises(TypeError):
        read_at(path, 0, 5, file="f")[0] = 1


@pytest.mark.parametrize(("offset", "size"), [(0, 101), (96, 5), (100, 1), (1 << 62, 1), (0, 1 << 50)])
def test_read_at_never_reads_or_allocates_beyond_the_end(tmp_path: Path, offset: int, size: int) -> None:
    path = tmp_path / "f"
    path.write_bytes(bytes(100))
    with pytest.raises(Truncated) as caught:
        read_at(path, offset, size, file="f")
    assert (caught.value.file, caught.value.offset) == ("f", offset)


def test_a_missing_file_is_named_as_missing(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "none", tmp_path / "file" / "inside", tmp_path):
        with pytest.raises(NotADataset, match=r"^0000/000000.pic is missing$"):
            read_at(path, 0, 1, file="0000/000000.pic")


def test_a_disk_that_cannot_read_is_damage_and_a_systems_refusal_is_not(tmp_path, monkeypatch) -> None:
    def fails(code: int) -> PicstoreError:
        def refuse(*_: object, **__: object) -> None:
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(local, "open_regular", refuse)
        with pytest.raises(PicstoreError) as caught:
            read_at(tmp_path / "f", 7, 1, file="f")
        return caught.value

    assert str(fails(errno.EIO)) == "f at byte 7: the disk cannot read it (Input/output error)"
    assert isinstance(fails(errno.EIO), Damage)
    assert not isinstance(fails(errno.EACCES), Damage)
    assert not isinstance(fails(errno.EMFILE), Damage)


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "f"
    locate_writable(path).write(b"first")

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(resolve.Path, "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        locate_writable(path).write(b"second")
    assert path.read_bytes() == b"first"
