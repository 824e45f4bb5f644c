"""Deleted records: no reader gives them any more, and epochs are exact over those that are left."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import one_line, picstore_command, picstore_json, tree
from engine_tasks import InlineEngine
from grids import examples, slow_except
from hypothesis import given
from hypothesis import strategies as st

import picstore
from picstore.errors import Corrupt, UnsupportedVersion, UsageError
from picstore.prepare.exports.run_export import export
from picstore.prepare.upkeep.shuffled_copy import shuffle
from picstore.prepare.upkeep.verify_dataset import verify
from picstore.storage.edits.live_records import LiveRecords

Make = Callable[..., Path]
GONE = [0, 7, 8, 9, 31, 49]


def loader_of(dataset: Path | picstore.Dataset, **options: Any) -> picstore.Loader:
    return picstore.Loader(dataset, **{"batch_size": 4, "threads": 2, "isolate": False, **options})


def ids_of(loader: picstore.Loader) -> list[int]:
    return [id_ for batch in loader for id_ in batch.ids.tolist()]


def ids_in(path: Path) -> set[int]:
    return {record.id for record in picstore.Dataset(path)}


@given(data=st.data(), counts=st.lists(st.integers(1, 9), min_size=1, max_size=20))
def test_numbers_among_what_is_left_are_a_lists_without_the_deleted(data: st.DataObject, counts: list[int]) -> None:
    total = sum(counts)
    deleted = sorted(data.draw(st.sets(st.integers(0, total - 1))))
    live = LiveRecords.from_deleted(counts, np.array(deleted, dtype=np.int64), file="here")
    positions = [(container, record) for container, count in enumerate(counts) for record in range(count)]
    left = [position for position in range(total) if position not in set(deleted)]
    assert len(live) == len(left)
    assert live.to_stored(np.arange(len(left))).tolist() == left
    by_container = Counter(positions[position][0] for position in left)
    assert live.counts.tolist() == [by_container[container] for container in range(len(counts))]
    for container in range(len(counts)):
        records = [positions[position][1] for position in left if positions[position][0] == container]
        numbers = np.arange(len(records))
        assert live.to_record_numbers(np.full(len(records), container), numbers).tolist() == records
        assert np.flatnonzero(live.mask(container)).tolist() == records


@examples(50)
@given(data=st.data(), counts=st.lists(st.integers(1, 9), min_size=1, max_size=20), seed=st.integers(0, 2**64 - 1))
def test_an_epoch_is_each_record_left_exactly_once_on_ranks_equally_long(
    data: st.DataObject, counts: list[int], seed: int
) -> None:
    from picstore.train.order.epoch_order import EpochOrder
    from picstore.train.order.global_batches import RankShard

    deleted = sorted(data.draw(st.sets(st.integers(0, sum(counts) - 1))))
    live = LiveRecords.from_deleted(counts, np.array(deleted, dtype=np.int64), file="here")
    world_size = 2
    if len(live) < world_size:
        return
    found = []
    for rank in range(world_size):
        shard = RankShard(records=len(live), lanes=4, batch=6, rank=rank, world_size=world_size, drop_last=False)
        order = EpochOrder(live.counts, seed=seed, epoch=1, lanes=4)
        samples = order.locate(np.concatenate([shard.samples(batch) for batch in range(shard.batches)]))
        found += (live.starts[samples.container] + live.to_record_numbers(samples.container, samples.record)).tolist()
    assert sorted(found) == sorted(set(range(sum(counts))) - set(deleted))


@pytest.mark.parametrize("deleted", [[-1], [3, 3], [2, 1], [10]])
def test_tombstones_of_another_data_set_are_refused(deleted: list[int]) -> None:
    with pytest.raises(Corrupt, match="belong to another dataset"):
        LiveRecords.from_deleted([4, 6], np.array(deleted), file="here")


def test_deleting_writes_no_image_again_and_all_readers_leave_records_out(make_dataset: Make, tmp_path: Path) -> None:
    path = make_dataset()
    before = tree(path)
    ids_file = tmp_path / "ids.txt"
    ids_file.write_text("7\n8\n\n9\n49\n")
    said = picstore_json("delete", path, "--ids", ids_file, "--id", 0, "--id", 31)
    assert (said["deleted"], said["images"]) == (6, 44)
    after = tree(path)
    assert {name for name in before if after[name] != before[name]} == {"picstore.json", "picstore.copy.json"}
    dataset = picstore.Dataset(path)
    left = set(range(50)) - set(GONE)
    assert said["uuid"] == dataset.uuid
    assert len(dataset) == 44
    assert {record.id for record in dataset} == {dataset[k].id for k in range(44)} == set(dataset.ids.tolist()) == left
    assert [record.id for record in dataset] == [dataset[k].id for k in range(44)] == dataset.ids.tolist()
    assert dataset[-1].id == dataset[43].id
    with pytest.raises(IndexError):
        dataset[44]
    facts = picstore_json("info", path)
    assert (facts["images"], facts["deleted"], facts["order"]["records"], facts["format_version"]) == (44, 6, 44, 2)
    manifest, findings, _ = verify(path, decode=True, workers=1)
    assert (manifest.images_left, findings) == (44, [])
    assert export(path, tmp_path / "out", format="folder", workers=InlineEngine(1)).images == 44
    for method in ("transpose", "uniform"):
        shuffle(path, tmp_path / method, seed=1, method=method, workers=1)
        assert ids_in(tmp_path / method) == left
        assert picstore.Dataset(tmp_path / method).manifest.edits is None


@pytest.mark.parametrize(
    ("shuffled", "isolate"), slow_except([(False, False), (True, True)], product([False, True], [False, True]))
)
def test_a_loader_yields_each_record_that_is_left_once_and_no_other(
    make_dataset: Make, shuffled: bool, isolate: bool
) -> None:
    dataset = picstore.Dataset(make_dataset()).without(GONE)
    loader = loader_of(dataset, shuffle=shuffled, drop_last=False, isolate=isolate)
    for _ in range(2 if shuffled else 1):
        assert sorted(ids_of(loader)) == sorted(set(range(50)) - set(GONE))
    loader.close()


def test_ranks_have_equal_counts_and_a_loader_goes_on_where_another_was(make_dataset: Make) -> None:
    dataset = picstore.Dataset(make_dataset()).without(GONE)
    ranks = [loader_of(dataset, rank=rank, world_size=4, batch_size=3) for rank in range(4)]
    epochs = [[batch.ids.tolist() for batch in loader] for loader in ranks]
    assert [len(epoch) for epoch in epochs] == [3] * 4
    together = [id_ for epoch in epochs for batch in epoch for id_ in batch]
    assert len(set(together)) == len(together) == 36
    first = iter(loader_of(dataset, seed=5))
    loader = loader_of(dataset, seed=5)
    batches = [batch.ids.tolist() for batch in first]
    taken = iter(loader)
    for _ in range(4):
        next(taken)
    other = loader_of(dataset, seed=5)
    other.load_state_dict(loader.state_dict())
    assert [batch.ids.tolist() for batch in other] == batches[4:]


def test_a_state_of_before_an_edit_is_refused_and_its_version_still_opens(make_dataset: Make) -> None:
    path = make_dataset()
    old = picstore.Dataset(path)
    state = loader_of(old, seed=1).state_dict()
    old.without([3]).save()
    with pytest.raises(UsageError, match="dataset"):
        loader_of(path, seed=1).load_state_dict(state)
    version = picstore.Dataset(path, version=old.uuid)
    loader_of(version, seed=1).load_state_dict(state)
    assert len(version) == 50
    with pytest.raises(UsageError, match="has no version"):
        picstore.Dataset(path, version="../picstore")


def test_who_has_a_data_set_open_goes_on_with_what_was_opened(make_dataset: Make) -> None:
    path = make_dataset()
    dataset, loader = picstore.Dataset(path), loader_of(path, drop_last=False, isolate=True)
    picstore.Dataset(path).without(GONE).save()
    assert len(list(dataset)) == len(dataset) == 50
    assert sorted(ids_of(loader)) == list(range(50))  # by a process that is started only now
    assert len(copy.deepcopy(dataset)) == 50
    loader.close()


def test_what_is_not_saved_has_its_future_uuid_and_survives_pickling(make_dataset: Make) -> None:
    path = make_dataset()
    view = picstore.Dataset(path).without([1, 2])
    assert len(picstore.Dataset(path)) == 50
    other = copy.deepcopy(view)
    assert (other.uuid, other.ids.tolist()) == (view.uuid, view.ids.tolist())
    one_by_one = picstore.Dataset(path).without([2]).save().without([1])
    assert one_by_one.save().uuid == view.uuid == picstore.Dataset(path).uuid
    assert view.save().uuid == view.uuid  # made by somebody else in the meantime


def test_two_edits_of_one_version_cannot_both_be_saved(make_dataset: Make) -> None:
    path = make_dataset()
    one, other = picstore.Dataset(path).without([1]), picstore.Dataset(path).without([2])
    one.save()
    with pytest.raises(UsageError, match="edited since"):
        other.save()
    assert len(picstore.Dataset(path)) == 49


def test_a_program_that_knows_only_version_1_refuses_an_edited_data_set(
    make_dataset: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    from picstore.storage import manifest

    path = make_dataset(10)
    picstore.Dataset(path).without([1]).save()
    monkeypatch.setattr(manifest, "_CHECKS", {1: manifest.check_plain})
    with pytest.raises(UnsupportedVersion, match="upgrade"):
        picstore.Dataset(path)


def test_a_lost_record_is_never_replaced_by_one_that_is_deleted(make_dataset: Make) -> None:
    path = make_dataset(30, streams=1)
    dataset = picstore.Dataset(path)
    entries, ref = dataset.entries(0), dataset.containers.container_ref(0)
    file = path / ref.name
    data = bytearray(file.read_bytes())
    data[ref.offset + int(entries["offset"][0]) + 40] ^= 1
    file.write_bytes(data)
    gone = entries["id"][1:-1].tolist()
    loader = loader_of(picstore.Dataset(path).without(gone), drop_last=False)
    found = ids_of(loader)
    assert loader.damaged == 1
    assert not set(found) & {*gone, int(entries["id"][0])}
    assert len(found) == 30 - len(gone)


def test_damage_of_deleted_records_costs_nothing(make_dataset: Make, tmp_path: Path) -> None:
    path = make_dataset(30)
    dataset = picstore.Dataset(path)
    entries, ref = dataset.entries(0), dataset.containers.container_ref(0)
    data = bytearray((path / ref.name).read_bytes())
    data[ref.offset + int(entries["offset"][0]) + 40] ^= 1
    (path / ref.name).write_bytes(data)
    assert sum(finding.records_lost for finding in verify(path, workers=1)[1]) == 1
    dataset.without([int(entries["id"][0])]).save()
    assert verify(path, workers=1)[1] == []
    shuffle(path, tmp_path / "out", seed=0, method="transpose", workers=1)
    assert len(picstore.Dataset(tmp_path / "out")) == 29


def test_damaged_tombstones_are_named(make_dataset: Make) -> None:
    path = make_dataset(10)
    edited = picstore.Dataset(path).without([1]).save()
    part = edited.manifest.edits.tombstones
    data = bytearray((path / part.file).read_bytes())
    data[-1] ^= 1
    (path / part.file).write_bytes(data)
    with pytest.raises(Corrupt, match="fails its CRC"):
        picstore.Dataset(path)
    assert [finding.file for finding in verify(path, workers=1)[1]] == [part.file]
    (path / part.file).unlink()
    with pytest.raises(Corrupt, match="is missing"):
        picstore.Dataset(path)


def test_ids_that_no_record_has_are_refused_and_nothing_is_deleted(make_dataset: Make, tmp_path: Path) -> None:
    path = make_dataset(10)
    assert "no record with the id 10" in one_line(picstore_command("delete", path, "--id", 3, "--id", 10, code=2))
    assert "nothing to delete" in one_line(picstore_command("delete", path, code=2))
    (tmp_path / "ids").write_text("1\nabc\n")
    assert "line 2" in one_line(picstore_command("delete", path, "--ids", tmp_path / "ids", code=2))
    assert len(picstore.Dataset(path)) == 10


def test_what_is_kept_in_a_cache_is_found_again_after_deleting(make_dataset: Make, tmp_path: Path) -> None:
    path = make_dataset()
    list(picstore.Dataset(path, cache=tmp_path / "cache"))
    kept = tree(tmp_path / "cache")
    dataset = picstore.Dataset(path, cache=tmp_path / "cache").without(GONE).save()
    assert len(list(dataset)) == 44
    assert tree(tmp_path / "cache") == kept


def test_a_mux_leaves_deleted_records_out(make_dataset: Make, tmp_path: Path) -> None:
    one, other = make_dataset(20, name="one"), make_dataset(20, name="other")
    picstore.Dataset(one).without(range(10)).save()
    (tmp_path / "mux.tsv").write_text(f"{one} 0 2\n{other} 100 2\n")
    mux = picstore.DataMux(tmp_path / "mux.tsv", threads=2, isolate=False, epoch_batches=10)
    ids = [
        (label >= 100, id_)
        for batch in mux
        for label, id_ in zip(batch.labels.tolist(), batch.ids.tolist(), strict=True)
    ]
    mux.close()
    assert Counter(id_ for other, id_ in ids if not other) == dict.fromkeys(range(10, 20), 2)


@pytest.mark.slow
def test_a_data_set_in_a_store_is_edited_there(make_dataset: Make, bucket: str) -> None:
    from picstore.storage.location.resolve import locate

    path = make_dataset(20)
    for file in sorted(file for file in path.rglob("*") if file.is_file()):
        (locate(f"{bucket}/copy") / file.relative_to(path).as_posix()).write(file.read_bytes())
    picstore_command("delete", f"{bucket}/copy", "--id", 4)
    there = picstore.Dataset(f"{bucket}/copy")
    here = picstore.Dataset(path).without([4])
    assert (there.uuid, there.ids.tolist()) == (here.uuid, here.ids.tolist())
