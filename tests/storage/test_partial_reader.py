"""Containers read in part: what is taken, what it is checked by, and what damage costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hostile import write_dataset
from hypothesis import given
from hypothesis import strategies as st
from tiled import WIDTH, noise, record

import picstore
from picstore.arrays import I64, Table
from picstore.jpeg.cut import TiledJpegs, cut_batch
from picstore.jpeg.tiles import rows_to_cut
from picstore.prepare.image.training_jpeg import parse_image_info
from picstore.prepare.upkeep.verify_dataset import verify
from picstore.storage import dataset_reader, partial_reader
from picstore.storage.format import segment_table
from picstore.storage.format.container import Container
from picstore.storage.format.segment_table import row_checksums, row_ends
from picstore.storage.location.abstract_location import Piece
from picstore.storage.location.local import Folder


def rows_of(first: int, stop: int) -> Callable[[Table], I64]:
    return lambda entries: np.tile(np.array([[first, stop]]), (len(entries), 1))


@pytest.fixture(autouse=True)
def _any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read containers in part whatever the size of their images, and join no ranges."""
    monkeypatch.setattr(dataset_reader, "MIN_MEAN", 0)
    monkeypatch.setattr(segment_table, "MIN_BYTES", 0)
    monkeypatch.setattr(partial_reader, "_NEAR", 0)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    attachments = {"mask": b"mask" * 100}
    records = [record(k, attachments=attachments) for k in range(4)]
    return write_dataset(tmp_path / "set", records, fields=["mask"], container_size=8 << 20)


def read(root: Path, first: int = 10, stop: int = 14, *, attachments: bool = False) -> Container:
    return read_from(picstore.Dataset(root), first, stop, attachments=attachments)


def read_from(dataset: picstore.Dataset, first: int = 10, stop: int = 14, *, attachments: bool = False) -> Container:
    (result,) = dataset.containers.read_in_part(
        [0], rows_of(first, stop), mask=dataset.live.mask, attachments=attachments
    )
    if isinstance(result, picstore.Damage):
        raise result
    return result


def offset_of(root: Path, number: int, row: int) -> int:
    """Where a row of tiles, or with −1 the header of an image begins in the only file."""
    container = picstore.Dataset(root).containers.read(0)
    ends = row_ends(container.info(number), int(container.index["length"][number]))
    assert ends is not None
    return container.ref.offset + int(container.index["offset"][number]) + (int(ends[row]) if row >= 0 else 0)


def flip(root: Path, offset: int) -> None:
    path = root / "0000" / "000000.pic"
    data = bytearray(path.read_bytes())
    data[offset] ^= 4
    path.write_bytes(data)


@given(st.integers(0, WIDTH - 1), st.integers(0, 255), st.integers(1, WIDTH), st.integers(1, 256))
def test_a_cut_needs_no_byte_beyond_the_header_and_its_rows(left: int, top: int, width: int, height: int) -> None:
    data = noise(3, height=256)
    info = parse_image_info(data)
    tiling = np.array([[WIDTH, 256, 16, 16, info.restart_interval, info.header_length]])
    box = np.array([[left, top, min(left + width, WIDTH), min(top + height, 256)]])
    ends = row_ends(info, len(data))
    assert ends is not None
    first, stop = rows_to_cut(box, tiling)[0].tolist()
    rows = data[: ends[0]] + data[ends[first] : ends[stop]]
    segments = info.segments.reshape(len(ends) - 1, -1)[first:stop].ravel()
    shift = np.array([0, 16 * first, 0, 16 * first])
    in_rows = tiling - [0, 256 - 16 * (stop - first), 0, 0, 0, 0]
    whole = cut_batch(TiledJpegs.from_streams([data], tiling, [info.segments]), box)
    part = cut_batch(TiledJpegs.from_streams([rows], in_rows, [segments]), box - shift)
    assert (part.rects + shift * [1, 1, 0, 0]).tolist() == whole.rects.tolist()
    assert np.array_equal(*(each.data[: each.offsets[1]] for each in (whole, part)))


def test_rows_headers_and_tables_are_read_and_nothing_else(root: Path) -> None:
    from picstore.train.batching.views_reach import layouts_of

    whole, part = picstore.Dataset(root).containers.read(0), read(root)
    assert part.read_size < whole.size / 5 and len(part.buffer) < part.read_size
    assert np.array_equal(part.index, whole.index) and part.good.all() and not part.damage
    for k in range(4):
        info, held = whole.info(k), layouts_of(part.held[[k]])[0]
        ends = row_ends(info, int(whole.index["length"][k]))
        assert ends is not None and part.segment_table is not None
        assert part.jpeg(k) == bytes(whole.jpeg(k)[: ends[0]]) + bytes(whole.jpeg(k)[ends[10] : ends[14]])
        assert held.tolist() == [WIDTH, 4 * 16, 16, 16, info.restart_interval, info.header_length]
        first, count = part.held[k][["segment_first", "segment_count"]].tolist()
        per_row = len(info.segments) // len(ends[1:])
        assert np.array_equal(part.segment_table[first : first + count], info.segments[10 * per_row : 14 * per_row])
    assert part.tops.tolist() == [160] * 4


def test_tables_are_read_once_and_damage_beside_them_is_not_kept(root: Path) -> None:
    dataset, offset = picstore.Dataset(root), offset_of(root, 1, 12)
    first = read_from(dataset)
    flip(root, offset)
    damaged = read_from(dataset)
    flip(root, offset)
    again = read_from(dataset)
    assert damaged.good.tolist() == [True, False, True, True] and len(damaged.damage) == 1
    for read_later in (damaged, again):
        assert read_later.read_size == len(read_later.buffer) == len(first.buffer) < first.read_size
    assert again.good.all() and not again.damage and bytes(again.buffer) == bytes(first.buffer)


def test_tables_beyond_what_is_kept_are_read_each_time(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial_reader, "_KEPT_BYTES", 100)
    dataset = picstore.Dataset(root)
    for container in (read_from(dataset), read_from(dataset)):
        assert container.read_size > len(container.buffer)


def test_attachments_are_read_where_they_are_asked_for(root: Path) -> None:
    assert bytes(read(root, attachments=True).attachments(2)["mask"]) == b"mask" * 100


@pytest.mark.parametrize("row", [-1, 10, 13])
def test_damage_in_what_is_needed_costs_the_record_and_names_its_place(root: Path, row: int) -> None:
    at = offset_of(root, 2, row)
    flip(root, at + 3)
    part = read(root)
    assert part.good.tolist() == [True, True, False, True]
    (damage,) = part.damage
    name = f"tile row {row}" if row >= 0 else "the header"
    assert damage.what == f"{name} of record 2 fails its CRC"
    assert (damage.file, damage.offset) == ("0000/000000.pic", at)


@pytest.mark.parametrize("row", [9, 14])
def test_damage_elsewhere_costs_nothing(root: Path, row: int) -> None:
    flip(root, offset_of(root, 2, row) + 3)
    assert read(root).good.all()


def test_a_damaged_attachment_costs_its_record(root: Path) -> None:
    container = picstore.Dataset(root).containers.read(0)
    flip(root, container.ref.offset + int(container.attached["offset"][1, 0]))
    assert read(root).good.all()
    assert read(root, attachments=True).good.tolist() == [True, False, True, True]


def test_damaged_tables_are_read_as_those_of_a_whole_container(root: Path) -> None:
    flip(root, 4096 + 64 + 3 * 64)
    assert read(root).good.tolist() == [True, True, True, False]
    assert read(root).read_size == picstore.Dataset(root).containers.read(0).size


def test_what_is_not_in_memory_is_fetched_and_read_as_what_is(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = read(root, attachments=True)
    cached: list[bool] = []
    read_cached = Folder.read_cached

    def never(folder: Folder, pieces: Sequence[Piece]) -> bool:
        read_cached(folder, pieces)
        for _, memory in pieces:
            memory[:] = bytes(len(memory))
        cached.append(False)
        return False

    monkeypatch.setattr(Folder, "read_cached", never)
    part = read(root, attachments=True)
    assert len(cached) == 2 and part.buffer == expected.buffer and part.read_size == expected.read_size
    assert part.good.all() and np.array_equal(part.held, expected.held)


def test_one_thread_reads_a_folders_large_images_and_several_all_else(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert picstore.Dataset(root).containers.readers.threads == 1
    assert picstore.Dataset(root, cache=tmp_path / "cache").containers.readers.threads > 1
    monkeypatch.setattr(dataset_reader, "MIN_MEAN", 1 << 30)
    assert picstore.Dataset(root).containers.readers.threads > 1


def test_a_file_that_ends_early_is_damage_only_where_bytes_are_missing(root: Path) -> None:
    path = root / "0000" / "000000.pic"
    data = path.read_bytes()
    ends = [offset_of(root, 3, row) for row in (20, 12)]
    path.write_bytes(data[: ends[0]])
    assert read(root).good.all()
    path.write_bytes(data[: ends[1]])
    with pytest.raises(picstore.Damage, match="ends after"):
        read(root)


def test_containers_that_are_read_together_fail_alone(tmp_path: Path) -> None:
    root = write_dataset(tmp_path / "set", [record(k) for k in range(4)], container_size=1 << 16)
    dataset = picstore.Dataset(root)
    refs = [dataset.containers.container_ref(number) for number in range(4)]
    assert [each.ordinal for each in refs] == [0, 1, 2, 3]
    flip(root, refs[1].offset + 64 + 3)
    path = root / refs[0].name
    path.write_bytes(path.read_bytes()[: refs[3].offset + 100])
    first, second, third, last = dataset.containers.read_in_part(
        range(4), rows_of(10, 14), mask=dataset.live.mask, attachments=False
    )
    assert isinstance(first, Container) and isinstance(second, Container) and isinstance(third, Container)
    assert [each.good.tolist() for each in (first, second, third)] == [[True], [False], [True]]
    assert isinstance(last, picstore.Damage) and last.offset == refs[3].offset and last.__cause__ is None
    path.unlink()
    (gone,) = dataset.containers.read_in_part([2], rows_of(10, 14), mask=dataset.live.mask, attachments=False)
    assert isinstance(gone, picstore.Damage)
    assert (gone.what, gone.file, gone.offset) == ("the file is missing", refs[2].name, refs[2].offset)


def test_most_of_a_container_is_read_at_once(root: Path) -> None:
    assert read(root, 0, 40).read_size == picstore.Dataset(root).containers.read(0).size


def test_records_without_row_checksums_are_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_table, "MIN_BYTES", 1 << 30)
    root = write_dataset(tmp_path / "old", [record(k) for k in range(3)])
    assert not picstore.Dataset(root).containers.read(0).index["flags"].any()
    assert bytes(read(root).jpeg(1)) == noise(1)


def test_deleted_records_are_not_read(root: Path) -> None:
    before = read(root)
    picstore.Dataset(root).without([1]).save()
    part = read(root)
    assert not len(part.jpeg(1)) and part.jpeg(2) == before.jpeg(2) and part.read_size < before.read_size


def test_a_data_set_with_a_cache_reads_and_keeps_whole_containers(root: Path, tmp_path: Path) -> None:
    dataset = picstore.Dataset(root, cache=tmp_path / "cache")
    for _ in range(2):
        assert bytes(read_from(dataset, 1, 2).jpeg(1)) == noise(1)


def test_verify_tells_of_row_checksums_that_are_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = row_checksums
    monkeypatch.setattr(
        "picstore.storage.format.container_writer.row_checksums", lambda jpeg, info: wrong(jpeg, info) ^ np.uint16(1)
    )
    root = write_dataset(tmp_path / "wrong", [record(0)])
    (finding,) = verify(root, workers=1).findings
    assert finding.problem == "record 0: the checksum of its header is wrong" and finding.records_lost == 1


def test_layouts_of_the_index_give_the_rows_of_the_format(root: Path) -> None:
    from picstore.train.batching.views_reach import layouts_of

    entries = picstore.Dataset(root).entries(0)
    boxes = np.tile(np.array([[0, 160, 10, 223]]), (len(entries), 1))
    assert rows_to_cut(boxes, layouts_of(entries)).tolist() == [[9, 14]] * 4
