"""Single batches: those of a loader that was iterated, at any step; and the steps at which a record is seen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import picstore
from picstore.errors import UsageError
from picstore.storage.edits.live_records import LiveRecords
from picstore.train.order.dataset_order import DatasetOrder
from picstore.train.order.drawn_samples import drawn_samples
from picstore.train.order.epoch_order import EpochOrder
from picstore.train.order.global_batches import RankShard

Make = Callable[..., Path]
CROP: list[Any] = [picstore.RandomResizedCrop(24), picstore.RandomHorizontalFlip()]
PLACE = ["rank", "step", "slot"]
FLOATS = [*CROP, picstore.ColorJitter(0.4), picstore.Normalize((0.5,) * 3, (0.2,) * 3)]


def assert_equal(one: Any, other: Any) -> None:
    """Compare tensors, or lists or dicts of them, bit for bit."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        one, other = list(one.values()), list(other.values())
    if isinstance(one, list):
        assert len(one) == len(other)
        for mine, theirs in zip(one, other, strict=True):
            assert_equal(mine, theirs)
    else:
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    "options",
    [
        {"transform": FLOATS},
        {"transform": [*FLOATS, picstore.RandomChoice([picstore.MixUp(0.8), picstore.CutMix(1.0)])]},
        {"transform": [picstore.RandomHorizontalFlip()]},
        {"transform": CROP, "aug_repeats": 2, "shuffle": False, "drop_last": False},
        {"transform": picstore.Views(large=(2, CROP), small=(3, CROP[:1]))},
        {"transform": CROP, "balance": "label", "repeat": 2.5, "dtype": torch.float16},
        {"transform": CROP, "rank": 1, "world_size": 2, "targets": ["extra"]},
    ],
)
def test_a_single_batch_is_the_one_that_iterating_gives(make_dataset: Make, options: dict[str, Any]) -> None:
    path = make_dataset(50)
    loader = picstore.Loader(path, batch_size=6, seed=3, isolate=False, **options)
    alone = picstore.Loader(path, batch_size=6, seed=3, isolate=False, **options)
    for epoch in range(2):
        for step, batch in enumerate(loader):
            if step % 3 == epoch:
                made, _ = alone.make_batch(epoch, step)
                assert_equal(made.images, batch.images)
                assert_equal([made.labels, made.ids], [batch.labels, batch.ids])
                assert made.targets == batch.targets
    assert alone.state_dict() == picstore.Loader(path, batch_size=6, seed=3, isolate=False, **options).state_dict()
    loader.close()


def test_a_damaged_record_is_replaced_as_in_the_loader(make_dataset: Make) -> None:
    path = make_dataset(50)
    first = picstore.Dataset(path).containers.container_ref(0)
    raw = bytearray((path / first.name).read_bytes())
    tables = picstore.Dataset(path).containers.index(0)
    raw[first.offset + int(tables.index["offset"][1]) + 50] ^= 1
    (path / first.name).write_bytes(raw)
    loader = picstore.Loader(path, batch_size=10, transform=CROP, isolate=False)
    replaced = 0
    for step, batch in enumerate(loader):
        made, single = loader.make_batch(0, step)
        assert_equal([made.images, made.ids], [batch.images, batch.ids])
        replaced += len(single.host.damage)
    assert replaced == 1
    loader.close()


@pytest.mark.parametrize("batch", [-1, 5])
def test_a_batch_that_an_epoch_does_not_have_is_refused(make_dataset: Make, batch: int) -> None:
    loader = picstore.Loader(make_dataset(50), batch_size=10, transform=CROP)
    with pytest.raises(UsageError, match="5"):
        loader.make_batch(0, batch)


def test_a_mux_makes_single_batches_too(make_dataset: Make) -> None:
    sources = [(picstore.Dataset(make_dataset(20, name=name)), base, 3) for name, base in (("a", 0), ("b", 5))]
    mux = picstore.DataMux(sources, transform=CROP, isolate=False, epoch_batches=4)
    for step, batch in enumerate(mux):
        if step in (1, 3):
            assert_equal(mux.make_batch(0, step)[0].images, batch.images)
    mux.close()


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=12).filter(any),
    st.integers(0, 99),
    st.integers(0, 5),
    st.integers(1, 6),
    st.booleans(),
)
def test_the_sample_of_each_record_is_found(
    counts: list[int], seed: int, epoch: int, lanes: int, shuffle: bool
) -> None:
    order = EpochOrder(counts, seed=seed, epoch=epoch, lanes=lanes if shuffle else 1, shuffle=shuffle)
    samples = order.locate(np.arange(order.records))
    assert order.find(samples.container, samples.record).tolist() == list(range(order.records))


@given(st.integers(1, 60), st.integers(1, 4), st.integers(1, 20), st.integers(1, 9), st.booleans())
def test_rank_batch_and_slot_of_each_sample_are_found(
    records: int, world_size: int, batch: int, lanes: int, drop_last: bool
) -> None:
    def shard(rank: int) -> RankShard:
        return RankShard(
            records=records, lanes=lanes, batch=batch, rank=rank, world_size=world_size, drop_last=drop_last
        )

    try:
        shards = [shard(rank) for rank in range(world_size)]
    except UsageError:
        return
    expected = []
    for rank, each in enumerate(shards):
        for number in range(each.batches):
            samples = EpochOrder([records], seed=1, epoch=0, lanes=lanes).locate(each.samples(number))
            expected += [(number, rank, slot, record) for slot, record in enumerate(samples.record.tolist())]
    drawn = drawn_samples(DatasetOrder(shards[0], 1), [LiveRecords.from_deleted([records], np.zeros(0, int), file="")])
    found = drawn.find(0, np.arange(records), 0, shards[0].batches)
    assert found[["step", "rank", "slot", "position"]].tolist() == sorted(expected)


@pytest.mark.parametrize(
    "options",
    [{}, {"shuffle": False}, {"balance": "label"}, {"repeat": 2.3}, {"repeat": 0.4}, {"world_size": 2, "rank": 0}],
)
def test_the_steps_at_which_each_record_is_seen_are_those_of_the_batches(
    make_dataset: Make, options: dict[str, Any]
) -> None:
    whole = picstore.Dataset(make_dataset(50)).without([3, 17])
    for dataset in (whole, whole.select(np.arange(0, 48, 2))):
        ranks = range(options.get("world_size", 1))
        of_ranks = [{**options, "rank": rank, "world_size": len(ranks)} for rank in ranks]
        loaders = [picstore.Loader(dataset, batch_size=5, transform=CROP, **each) for each in of_ranks]
        for epoch in (0, 4):
            seen: dict[int, set[tuple[int, int, int]]] = {}
            for rank, loader in enumerate(loaders):
                for step in range(len(loader)):
                    for slot, number in enumerate(loader.make_batch(epoch, step)[0].ids.tolist()):
                        seen.setdefault(number, set()).add((rank, step, slot))
            for position, number in enumerate(dataset.ids.tolist()):
                steps = epoch * len(loaders[0]), (epoch + 1) * len(loaders[0])
                found = drawn_samples(loaders[0].order, [dataset.live]).find(0, np.array([position]), *steps)
                places = [(rank, step - steps[0], slot) for rank, step, slot in found[PLACE].tolist()]
                assert sorted(places) == sorted(seen.get(number, set()))
