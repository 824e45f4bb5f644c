"""storage.dataset: random access, streaming, and damage as a user of picstore.Dataset meets it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from samples import jpeg, picture

import picstore
from picstore.errors import Corrupt, Damage, NotADataset, Truncated, UsageError
from picstore.prepare.convert.row_division import DatasetShape
from picstore.prepare.image.training_jpeg import parse_image_info
from picstore.storage.format.layout import ALIGNMENT, SEALED
from picstore.storage.location.resolve import file_name

MakeDataset = Callable[..., Path]
SMALL = DatasetShape(streams=2, container_size=8 << 10, file_size=32 << 10)


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - pathlib would open one more


def flip(path: Path, offset: int, mask: int = 1) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= mask
    path.write_bytes(data)


def test_a_data_set_has_the_records_that_were_added(make_dataset: MakeDataset) -> None:
    dataset = picstore.Dataset(make_dataset(50))
    assert len(dataset) == 50
    assert dataset.classes == [f"class{k}" for k in range(5)]
    assert sorted(record.id for record in dataset) == list(range(50))
    for record in dataset:
        assert record.label == record.id % 5
        assert record.extra == {"number": record.id}
        assert (record.width, record.height) == (60 + record.id % 7, 40 + record.id % 5)
        info = parse_image_info(record.jpeg)
        assert record.info == info
        assert np.array_equal(record.info.segments, info.segments)
        assert record.info.restart_interval > 0
        assert len(record.info.segments) > 1


def test_random_access_and_streaming_give_the_same(make_dataset: MakeDataset) -> None:
    root = make_dataset(120, container_size=8 << 10, file_size=32 << 10)
    dataset = picstore.Dataset(root)
    streamed = list(dataset)
    assert len(dataset.rows) > 15
    for k in np.random.default_rng(0).permutation(len(dataset)):
        assert dataset[int(k)] == streamed[k]
        assert dataset[k] == streamed[k]  # a numpy integer is a position too
    assert list(picstore.Dataset(str(root))) == streamed


def test_records_own_their_bytes(make_dataset: MakeDataset) -> None:
    dataset = picstore.Dataset(make_dataset(5))
    for record in (dataset[0], next(iter(dataset))):
        assert type(record.jpeg) is bytes
        assert type(record.extra_json) is bytes


def test_positions_count_as_in_a_list(make_dataset: MakeDataset) -> None:
    dataset = picstore.Dataset(make_dataset(30))
    streamed = list(dataset)
    assert dataset[-1] == streamed[-1]
    assert dataset[-30] == streamed[0]
    for cut in (slice(None), slice(3, 9), slice(-5, None), slice(None, None, -7), slice(20, 90), slice(9, 3)):
        assert dataset[cut] == streamed[cut]
    assert list(reversed(dataset)) == streamed[::-1]
    assert streamed[7] in dataset
    assert dataset.index(streamed[7]) == 7


@pytest.mark.parametrize("position", [30, -31, 1 << 70])
def test_a_position_outside_is_an_index_error(make_dataset: MakeDataset, position: int) -> None:
    with pytest.raises(IndexError, match="of a dataset of 30 records"):
        picstore.Dataset(make_dataset(30))[position]


@pytest.mark.parametrize("position", [1.5, "1", None])
def test_a_position_that_is_no_integer_is_a_type_error(make_dataset: MakeDataset, position: object) -> None:
    with pytest.raises(TypeError):
        picstore.Dataset(make_dataset(5))[position]


def test_stored_order_takes_from_all_streams_in_turn(make_dataset: MakeDataset) -> None:
    dataset = picstore.Dataset(make_dataset(120, streams=3, container_size=8 << 10, file_size=32 << 10))
    first_row = dataset.rows[dataset.rows["file"] == 0]
    assert first_row["stream"][:6].tolist() == [0, 1, 2, 0, 1, 2]


def test_extras_labels_and_attachments_come_back(tmp_path: Path) -> None:
    extras = [None, {"caption": "ein Kätzchen 🐈"}, [1, 2.5, None], "text", 0, False, {}]
    masks = [None, b"\x00\xff" * 50, b"", b"x", None, None, b"y" * 9000]
    with picstore.Writer(tmp_path / "d", attachments=["mask", "depth"], shape=SMALL) as writer:
        for k, (extra, mask) in enumerate(zip(extras, masks, strict=True)):
            attached = None if mask is None else {"mask": mask, "depth": bytes([k])}
            assert writer.add(picture(k), label=-1 if k == 0 else k * 10**12, extra=extra, attachments=attached) == k
    dataset = picstore.Dataset(tmp_path / "d")
    assert dataset.manifest.attachments == ("mask", "depth")
    for records in (list(dataset), [dataset[k] for k in range(len(dataset))]):
        assert sorted(record.id for record in records) == list(range(7))
        for record in records:
            k, mask = record.id, masks[record.id]
            assert record.extra == extras[k]
            assert record.label == (-1 if k == 0 else k * 10**12)
            kept = {} if mask is None else {"mask": mask, "depth": bytes([k])}
            assert record.attachments == {name: blob for name, blob in kept.items() if blob}


def test_what_a_writer_cannot_store_is_refused_and_adds_nothing(tmp_path: Path) -> None:
    with picstore.Writer(tmp_path / "d", classes=["a", "b"], attachments=["mask"]) as writer:
        writer.add(jpeg(0), label=1)
        for wrong in (
            {"label": 2},
            {"label": -2},
            {"attachments": {"other": b""}},
            {"extra": {1, 2}},
        ):
            with pytest.raises(UsageError):
                writer.add(jpeg(1), **wrong)
        writer.add(jpeg(2), label=-1)
    assert [(record.id, record.label) for record in picstore.Dataset(tmp_path / "d")] == [(0, 1), (1, -1)]


def test_eight_threads_read_what_one_reads(make_dataset: MakeDataset) -> None:
    dataset = picstore.Dataset(make_dataset(240, streams=3, container_size=4 << 10))
    assert len(dataset.rows) > 64  # more than are cached, so that threads evict what others use
    streamed = list(dataset)

    def read(seed: int) -> bool:
        order = np.random.default_rng(seed).permutation(len(dataset))
        return all(dataset[k] == streamed[k] for k in order)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(8)))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_reads_the_same(make_dataset: MakeDataset) -> None:
    dataset = picstore.Dataset(make_dataset(30))
    expected = [dataset[k].jpeg for k in range(30)]
    child = os.fork()
    if child == 0:
        same = [dataset[k].jpeg for k in range(30)] == expected
        os._exit(0 if same else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")
def test_nothing_stays_open(make_dataset: MakeDataset) -> None:
    root = make_dataset(60)
    before = open_descriptors()
    dataset = picstore.Dataset(root)
    stream = iter(dataset)
    next(stream)
    assert dataset[0] == next(iter(dataset))
    assert open_descriptors() == before


def test_a_data_set_can_be_moved(make_dataset: MakeDataset, tmp_path: Path) -> None:
    root = make_dataset(20)
    before = list(picstore.Dataset(root))
    shutil.move(root, tmp_path / "elsewhere")
    assert list(picstore.Dataset(tmp_path / "elsewhere")) == before


# Damage


def test_a_flipped_bit_in_an_image_costs_that_record_only(make_dataset: MakeDataset) -> None:
    root = make_dataset(50)
    streamed = list(picstore.Dataset(root))
    dataset = picstore.Dataset(root)
    row, container = dataset.rows[0], dataset.containers.read(0)
    at = int(row["offset"]) + int(container.index["offset"][1]) + 100
    flip(root / dataset.containers.container_ref(0).name, at)
    damaged = picstore.Dataset(root)
    for k in range(50):
        if k == 1:
            with pytest.raises(Corrupt) as caught:
                damaged[k]
            assert caught.value.file == dataset.containers.container_ref(0).name
        else:
            assert damaged[k] == streamed[k]
    assert damaged.containers.read(0).good.tolist() == [k != 1 for k in range(len(container))]


def test_a_flipped_bit_in_a_container_header_costs_nothing(make_dataset: MakeDataset) -> None:
    root = make_dataset(50)
    streamed = list(picstore.Dataset(root))
    dataset = picstore.Dataset(root)
    for byte in (0, 5, 8, 12, 20, 40, 63):
        flip(root / dataset.containers.container_ref(1).name, dataset.containers.container_ref(1).offset + byte, 0x10)
        damaged = picstore.Dataset(root)
        assert list(damaged) == streamed
        assert damaged[:] == streamed
        assert len(damaged.containers.read(1).damage) == 1
        flip(root / dataset.containers.container_ref(1).name, dataset.containers.container_ref(1).offset + byte, 0x10)


def test_a_lost_container_header_costs_extras_and_no_image(make_dataset: MakeDataset) -> None:
    root = make_dataset(50)
    dataset = picstore.Dataset(root)
    sound = dataset.containers.read(1)
    path, offset = root / dataset.containers.container_ref(1).name, dataset.containers.container_ref(1).offset
    data = bytearray(path.read_bytes())
    data[offset : offset + SEALED] = bytes(SEALED)
    path.write_bytes(data)
    damaged = picstore.Dataset(root)
    container = damaged.containers.read(1)
    assert container.good.all()
    assert [bytes(container.jpeg(k)) for k in range(len(container))] == [
        bytes(sound.jpeg(k)) for k in range(len(sound))
    ]
    assert damaged.entries(1).tobytes() == sound.index.tobytes()
    with pytest.raises(Corrupt, match="extras"):
        damaged[len(dataset.containers.read(0))]


def test_a_truncated_file_costs_the_containers_behind_the_cut(make_dataset: MakeDataset) -> None:
    root = make_dataset(100, streams=1, container_size=8 << 10, file_size=1 << 20)
    dataset = picstore.Dataset(root)
    streamed = list(dataset)
    path = root / file_name(0, 0)
    kept = 3
    os.truncate(path, int(dataset.rows["offset"][kept]) + 5000)
    damaged = picstore.Dataset(root)
    whole = int(dataset.rows["records"][:kept].sum())
    assert damaged[:whole] == streamed[:whole]
    with pytest.raises(Truncated):
        damaged.containers.read(kept)
    with pytest.raises(Damage):
        damaged[len(damaged) - 1]


def test_a_missing_file_is_named(make_dataset: MakeDataset) -> None:
    root = make_dataset(50)
    (root / file_name(1, 0)).unlink()
    dataset = picstore.Dataset(root)
    with pytest.raises(NotADataset, match=r"0001/000000.pic is missing"):
        list(dataset)


def test_a_file_of_another_conversion_under_the_same_name_is_noticed(tmp_path: Path) -> None:
    for name, label in (("a", 0), ("b", 1)):
        with picstore.Writer(tmp_path / name, classes=["x", "y"], shape=SMALL) as writer:
            for k in range(10):
                writer.add(jpeg(k), label=label)
    before = picstore.Dataset(tmp_path / "a")
    sizes = before.rows["size"].tolist()
    assert picstore.Dataset(tmp_path / "b").rows["size"].tolist() == sizes  # so that only the CRC can tell
    shutil.copy(tmp_path / "b" / file_name(0, 0), tmp_path / "a" / file_name(0, 0))
    mixed = picstore.Dataset(tmp_path / "a")
    with pytest.raises(Corrupt, match="differs from what the footer says"):
        mixed.containers.read(0)
    with pytest.raises(Corrupt, match="differs from what the footer says"):
        mixed[0]


def test_containers_begin_at_multiples_of_4096(make_dataset: MakeDataset) -> None:
    dataset = picstore.Dataset(make_dataset(50))
    assert (dataset.rows["offset"] % ALIGNMENT == 0).all()
    assert (dataset.rows["size"] % ALIGNMENT == 0).all()


def test_entries_leave_out_what_is_damaged(make_dataset: Callable[..., Path]) -> None:
    path = make_dataset(20)
    dataset = picstore.Dataset(path)
    ref, entries = dataset.containers.container_ref(0), dataset.entries(0)
    file = path / ref.name
    data = bytearray(file.read_bytes())
    data[ref.offset + 64 + 64] ^= 4  # the id of the second record
    file.write_bytes(data)
    left = picstore.Dataset(path).entries(0)
    assert left["id"].tolist() == [entries["id"][0], *entries["id"][2:]]
