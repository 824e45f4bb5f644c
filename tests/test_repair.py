"""picstore repair: what is left of a damaged data set can be read, and what is lost is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from commands import picstore_command, picstore_json, tree

import picstore
from picstore.errors import Corrupt
from picstore.prepare.repair import repair
from picstore.prepare.shuffle import shuffle
from picstore.prepare.verify import verify


@pytest.fixture
def dataset(make_dataset: Callable[..., Path]) -> Path:
    """120 records in 3 streams and several files and containers."""
    return make_dataset(120, container_size=12 << 10, file_size=30 << 10)


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    path.write_bytes(data)


def test_a_sound_data_set_stays_as_it_is(dataset: Path) -> None:
    before = tree(dataset)
    done = repair(dataset)
    assert (done.index, done.lost, tree(dataset)) == (False, 0, before)


@pytest.mark.parametrize("tail", [0, 100])
def test_a_lost_index_is_made_anew_to_the_same_bytes(dataset: Path, tail: int) -> None:
    """Even where a file's footer is lost too, as its containers are found by their headers."""
    before = tree(dataset)
    (dataset / "picstore.idx").unlink()
    file = dataset / "0001" / "000000.pic"
    file.write_bytes(file.read_bytes()[: file.stat().st_size - tail])
    assert picstore_json("repair", dataset)["index"]
    assert tree(dataset)["picstore.idx"] == before["picstore.idx"]
    assert len(list(picstore.Dataset(dataset))) == 120


def test_an_index_that_cannot_be_made_anew_is_not_guessed(dataset: Path) -> None:
    flip(dataset / "picstore.idx", 100)
    (dataset / "0001" / "000000.pic").unlink()
    before = tree(dataset)
    with pytest.raises(Corrupt, match="restore it from a copy"):
        repair(dataset)
    assert tree(dataset) == before


def test_records_that_cannot_be_read_are_deleted_and_named(dataset: Path, tmp_path: Path) -> None:
    opened = picstore.Dataset(dataset)
    place, entry = opened.place(1), opened.entries(1)[2]
    flip(dataset / place.name, place.offset + int(entry["offset"]) + 50)
    cut = dataset / "0000" / "000000.pic"
    rows = [row for row in opened.rows if (row["stream"], row["file"]) == (0, 0)]
    cut.write_bytes(cut.read_bytes()[: int(rows[1]["offset"]) + 100])
    gone = opened.manifest.files[-1]
    (dataset / f"{gone.stream:04d}" / f"{gone.file:06d}.pic").unlink()
    lost = 1 + sum(int(row["records"]) for row in rows[1:]) + gone.records
    said = picstore_command("repair", dataset).stdout
    assert place.name in said
    assert f"{lost} lost records deleted, {120 - lost} images left" in said
    repaired = picstore.Dataset(dataset)
    assert len(list(repaired)) == len(repaired) == 120 - lost
    assert int(entry["id"]) not in repaired.ids
    loader = picstore.Loader(dataset, batch_size=5, threads=1, isolate=False, drop_last=False, on_damage="raise")
    assert sorted(id_ for batch in loader for id_ in batch.ids.tolist()) == sorted(repaired.ids.tolist())
    assert picstore_json("repair", dataset)["records_lost"] == 0
    assert picstore_json("verify", dataset, code=3)["records_lost"] == 0
    shuffle(dataset, tmp_path / "out", seed=0, method="transpose", workers=1)
    assert verify(tmp_path / "out", workers=1)[1] == []
    assert sorted(picstore.Dataset(tmp_path / "out").ids.tolist()) == sorted(repaired.ids.tolist())
    assert picstore_json("info", dataset)["images"] == 120 - lost
