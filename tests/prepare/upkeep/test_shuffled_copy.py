"""picstore shuffle: nothing lost, nothing changed, and an order that holds what the method promises."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from commands import one_line, picstore_command, picstore_json, tree

import picstore
from picstore.prepare.upkeep.shuffled_copy import shuffle

METHODS = ["transpose", "uniform"]


def content(path: Path) -> dict[int, tuple[bytes, int, bytes]]:
    return {record.id: (record.jpeg, record.label, record.extra_json) for record in picstore.Dataset(path)}


@pytest.mark.parametrize("method", METHODS)
def test_a_shuffled_copy_holds_the_same_records_in_another_order(
    make_dataset: Callable[..., Path], tmp_path: Path, method: str
) -> None:
    source = make_dataset(200, container_size=8 << 10, file_size=20 << 10)
    before = tree(source)
    picstore_command("shuffle", source, tmp_path / "out", "--method", method, "--seed", 3)
    assert tree(source) == before
    assert content(tmp_path / "out") == content(source)
    ids = [[record.id for record in picstore.Dataset(path)] for path in (source, tmp_path / "out")]
    assert ids[0] != ids[1]
    event = {"method": method, "seed": 3, "parent": picstore.Dataset(source).uuid}
    assert picstore_json("info", tmp_path / "out")["shuffle"] == event
    picstore_command("verify", "--decode", tmp_path / "out")


@pytest.mark.parametrize("method", METHODS)
def test_the_result_depends_on_the_seed_and_not_on_the_workers(
    make_dataset: Callable[..., Path], tmp_path: Path, method: str
) -> None:
    source = make_dataset(120, container_size=8 << 10, file_size=16 << 10)
    for name, workers, seed in (("a", 1, 0), ("b", 3, 0), ("c", 2, 1)):
        shuffle(source, tmp_path / name, seed=seed, method=method, workers=workers)
    assert tree(tmp_path / "a") == tree(tmp_path / "b")
    assert tree(tmp_path / "a") != tree(tmp_path / "c")


def test_transpose_makes_file_j_of_stream_s_file_s_of_stream_j(
    make_dataset: Callable[..., Path], tmp_path: Path
) -> None:
    source = make_dataset(200, streams=4, container_size=8 << 10, file_size=20 << 10)
    shuffle(source, tmp_path / "out", seed=0, method="transpose", workers=2)

    def files(path: Path) -> dict[tuple[int, int], set[int]]:
        dataset = picstore.Dataset(path)
        held: dict[tuple[int, int], set[int]] = {}
        for number in range(len(dataset.rows)):
            ref = dataset.containers.container_ref(number)
            held.setdefault((ref.stream, ref.file), set()).update(dataset.entries(number)["id"].tolist())
        return held

    old, new = files(source), files(tmp_path / "out")
    assert len(old) > 8
    assert new == {(file, stream): ids for (stream, file), ids in old.items()}


def test_uniform_leaves_no_trace_of_the_old_order(make_dataset: Callable[..., Path], tmp_path: Path) -> None:
    """Over many seeds every record comes to every tenth of the result equally often (chi-square, fixed seeds)."""
    source = make_dataset(40, streams=2, container_size=8 << 10, file_size=10 << 10, width=16, height=16)
    seeds, parts = 12, 4
    counts = np.zeros((40, parts))
    neighbors: Counter[bool] = Counter()
    for seed in range(seeds):
        out = tmp_path / f"out{seed}"
        shuffle(source, out, seed=seed, method="uniform", workers=2)
        ids = [record.id for record in picstore.Dataset(out)]
        for position, id_ in enumerate(ids):
            counts[id_, position * parts // 40] += 1
        neighbors.update(b == a + 1 for a, b in pairwise(ids))
    expected = seeds / parts
    chi_square = ((counts - expected) ** 2 / expected).sum()
    degrees = 40 * (parts - 1)
    assert abs(chi_square - degrees) < 4 * np.sqrt(2 * degrees)
    assert neighbors[True] / neighbors.total() == pytest.approx(39 / (40 * 39), abs=0.022)


def test_attachments_and_repeated_shuffles_are_kept(tmp_path: Path, make_dataset: Callable[..., Path]) -> None:
    from samples import picture

    with picstore.Writer(tmp_path / "in", attachments=["mask", "depth"]) as writer:
        for number in range(20):
            attached = {"mask": bytes([number]) * number} if number % 2 else {"depth": b"far"}
            writer.add(picture(number), extra=None, attachments=attached)
    shuffle(tmp_path / "in", tmp_path / "once", seed=1, method="uniform", workers=1)
    shuffle(tmp_path / "once", tmp_path / "twice", seed=2, method="transpose", workers=1)
    for path in (tmp_path / "once", tmp_path / "twice"):
        found = {record.id: record.attachments for record in picstore.Dataset(path)}
        assert found[6] == {"depth": b"far"}
        assert found[7] == {"mask": b"\x07" * 7}
    history = picstore_json("info", tmp_path / "twice")["shuffle_history"]
    assert [event["method"] for event in history] == ["uniform", "transpose"]


def test_a_damaged_record_stops_the_shuffle_and_leaves_no_data_set(
    make_dataset: Callable[..., Path], tmp_path: Path
) -> None:
    source = make_dataset(30)
    dataset = picstore.Dataset(source)
    ref, index = dataset.containers.container_ref(0), dataset.entries(0)
    path = source / ref.name
    data = bytearray(path.read_bytes())
    data[ref.offset + int(index[0]["offset"]) + 100] ^= 1
    path.write_bytes(data)
    error = one_line(picstore_command("shuffle", source, tmp_path / "out", code=3))
    assert ref.name in error
    assert "1 of" in error
    with pytest.raises(picstore.NotADataset, match="unfinished shuffle"):
        picstore.Dataset(tmp_path / "out")


def test_what_is_no_data_set_cannot_be_shuffled_nor_overwritten(
    make_dataset: Callable[..., Path], tmp_path: Path
) -> None:
    source = make_dataset(10)
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "a.txt").write_text("a")
    assert "not a picstore dataset" in one_line(picstore_command("shuffle", tmp_path / "foreign", "x", code=1))
    assert "empty destination" in one_line(picstore_command("shuffle", source, tmp_path / "foreign", code=1))
    assert "already a dataset" in one_line(picstore_command("shuffle", source, make_dataset(5, name="other"), code=2))
