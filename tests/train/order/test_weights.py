"""Weighted epochs: each record as often as its share says, on any rank and after any resume."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from grids import examples
from hypothesis import given
from hypothesis import strategies as st

import picstore
from picstore.errors import UsageError
from picstore.storage.edits.live_records import LiveRecords
from picstore.train.order.dataset_order import DatasetOrder
from picstore.train.order.epoch_order import EpochOrder, Samples
from picstore.train.order.global_batches import RankShard
from picstore.train.order.weights import RecordShares, record_shares

Make = Callable[..., Path]


def loader_of(dataset: Path | picstore.Dataset, **options: Any) -> picstore.Loader:
    return picstore.Loader(dataset, **{"batch_size": 5, "threads": 2, "isolate": False, **options})


def epoch_of(shares: RecordShares, counts: list[int], epoch: int, *, shuffle: bool = True) -> list[tuple[int, int]]:
    """Number and copy of the record of each sample of an epoch."""
    order = EpochOrder(shares.counts(epoch), seed=3, epoch=epoch, lanes=4 if shuffle else 1, shuffle=shuffle)
    samples = shares.to_records(order.locate(np.arange(order.records)), epoch)
    starts = np.cumsum(counts) - counts
    return list(zip((starts[samples.container] + samples.record).tolist(), samples.copy.tolist(), strict=True))


@examples(40)
@given(
    data=st.data(),
    counts=st.lists(st.integers(0, 9), min_size=1, max_size=12).filter(any),
    shuffle=st.booleans(),
    seed=st.integers(0, 2**64 - 1),
    dtype=st.sampled_from(["float64", "float32", "int32", "uint8"]),
)
def test_an_epoch_rounds_each_records_share_and_all_epochs_give_it_exactly(
    data: st.DataObject, counts: list[int], shuffle: bool, seed: int, dtype: str
) -> None:
    records = sum(counts)
    drawn = data.draw(st.lists(st.integers(0, 100), min_size=records, max_size=records).filter(any))
    weights, samples = np.array(drawn, dtype), data.draw(st.integers(1, 4 * records))
    shares = RecordShares.weighted(np.array(counts), weights, samples, seed=seed)
    expected = weights.astype(np.float64) / weights.sum(dtype=np.float64) * samples
    totals: Counter[int] = Counter()
    epochs = 20
    for epoch in range(epochs):
        found = epoch_of(shares, counts, epoch, shuffle=shuffle)
        assert len(found) == samples
        times = Counter(record for record, _ in found)
        for record in range(records):
            assert abs(times[record] - expected[record]) < 1 + 1e-6
            assert times[record] <= shares.copies
        assert sorted(found) == [(record, copy) for record in sorted(times) for copy in range(times[record])]
        if not shuffle:
            assert found == sorted(found)
        totals.update(times)
    for record in range(records):
        assert abs(totals[record] - epochs * expected[record]) < 2.5
        assert weights[record] or not totals[record]


@given(counts=st.lists(st.integers(0, 9), min_size=1, max_size=12).filter(any), repeat=st.integers(1, 4))
def test_repeating_gives_each_record_equally_often(counts: list[int], repeat: int) -> None:
    shares = RecordShares.equal(np.array(counts), repeat * sum(counts), seed=1)
    times = Counter(epoch_of(shares, counts, 5))
    assert times == {(record, copy): 1 for record in range(sum(counts)) for copy in range(repeat)}
    assert shares.copies == repeat


def test_short_epochs_give_each_record_equally_often_over_time() -> None:
    counts = [7, 0, 12, 31]
    shares = RecordShares.equal(np.array(counts), 15, seed=1)
    times = Counter(record for epoch in range(100) for record, _ in epoch_of(shares, counts, epoch))
    assert set(times) == set(range(50))
    assert all(abs(times[record] - 30) < 2.5 for record in range(50))


def test_shares_do_not_depend_on_how_many_weights_are_added_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    counts = generator.integers(0, 9, 40)
    weights = generator.random(counts.sum())
    weights[[0, -1]] = 0, 200
    whole = RecordShares.weighted(counts, weights, len(weights), seed=0)
    monkeypatch.setattr("picstore.train.order.weights._CHUNK", 7)
    pieces = RecordShares.weighted(counts, weights, len(weights), seed=0)
    assert whole.bounds.tolist() == pieces.bounds.tolist()
    assert whole.bounds[-1] == len(weights) << 30
    assert (whole.digest, whole.copies) == (pieces.digest, pieces.copies)
    assert epoch_of(whole, counts, 3) == epoch_of(pieces, counts, 3)


@given(numbers=st.lists(st.integers(0, 4), min_size=20, max_size=20).filter(any))
def test_weights_that_are_numbers_of_values_are_those_values(numbers: list[int]) -> None:
    counts, values = np.array([7, 0, 4, 9]), np.array([0, 0.3, 1, 5, 1e-9])
    listed = RecordShares.weighted(counts, values[numbers], 30, seed=1)
    numbered = RecordShares.weighted(counts, np.array(numbers, np.uint8), 30, seed=1, values=values)
    assert (numbered.digest, numbered.copies) == (listed.digest, listed.copies)
    assert epoch_of(numbered, counts, 2) == epoch_of(listed, counts, 2)


@examples(40)
@given(
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    repeat=st.sampled_from([1, 3]),
    epoch=st.integers(0, 99),
    equal=st.booleans(),
)
def test_the_samples_of_a_record_are_those_that_the_epoch_maps_to_it(
    counts: list[int], repeat: int, epoch: int, equal: bool
) -> None:
    records, starts = sum(counts), np.cumsum([0, *counts])
    weights = np.random.default_rng(records).random(records)
    shares = RecordShares.weighted(np.array(counts), weights, repeat * records, seed=7)
    if equal:
        shares = RecordShares.equal(np.array(counts), 2 * records // 3 + 1, seed=7)
    epoch_counts, found = shares.counts(epoch), []
    for container, count in enumerate(epoch_counts.tolist()):
        samples = Samples(*np.array([[container] * count, range(count), [0] * count], np.int64), np.zeros(count, bool))
        mapped = shares.to_records(samples, epoch).record
        records = np.arange(counts[container])
        begins, times = shares.samples_of(np.full(len(records), container), records, epoch)
        for record, begin, number in zip(records, begins, times, strict=True):
            assert list(range(begin, begin + number)) == np.flatnonzero(mapped == record).tolist()
            found += [starts[container] + record] * number
    assert np.bincount(found, minlength=sum(counts)).tolist() == shares.times(epoch).tolist()
    assert len(found) == shares.samples


@pytest.mark.parametrize("factor", [1e308, 1e300, 5e-324 * 2**20, 1e-310])
def test_weights_of_any_finite_size_give_the_shares_of_their_ratios(make_dataset: Make, factor: float) -> None:
    dataset = picstore.Dataset(make_dataset())
    ratios = 0.5 ** (dataset.ids % 4)
    usual, extreme = (loader_of(dataset, weights=weights, repeat=2) for weights in (ratios, ratios * factor))
    times = [Counter(id_ for batch in loader for id_ in batch.ids.tolist()) for loader in (usual, extreme)]
    assert all(abs(times[0][id_] - times[1][id_]) <= 1 for id_ in dataset.ids.tolist())
    assert len(times[1]) > 40
    same = [loader_of(dataset, weights=np.full(50, each)).state_dict() for each in (1.0, 5e-324, 2.0**1023)]
    assert same[0] == same[1] == same[2]


def test_long_doubles_beyond_float64_are_weights_too(make_dataset: Make) -> None:
    if np.finfo(np.longdouble).max <= np.finfo(np.float64).max:
        pytest.skip("this machine's long double is float64")
    weights = np.ones(50, np.longdouble) * np.longdouble("1e400")
    loader = loader_of(picstore.Dataset(make_dataset()), weights=weights)
    assert sorted(id_ for batch in loader for id_ in batch.ids.tolist()) == list(range(50))


@examples(60)
@given(
    counts=st.lists(st.integers(1, 9), min_size=6, max_size=12).filter(lambda counts: sum(counts) > 10),
    per_rank=st.integers(1, 3),
    seed=st.integers(0, 2**64 - 1),
    data=st.data(),
)
def test_weighted_global_batches_do_not_depend_on_world_size_or_resume(
    counts: list[int], per_rank: int, seed: int, data: st.DataObject
) -> None:
    live = LiveRecords.from_deleted(counts, np.array([0, 4]), file="here")
    weights = np.random.default_rng(seed).random(len(live)) ** 3
    shares = RecordShares.weighted(live.counts, weights, 2 * len(live), seed=seed)
    source: Any = SimpleNamespace(dataset=SimpleNamespace(live=live))

    def batches(rank: int, world_size: int, first: int = 0) -> list[Counter[tuple[int, int, int]]]:
        size = 6 * per_rank // world_size
        shard = RankShard(records=shares.samples, lanes=12, batch=size * world_size, rank=rank, world_size=world_size)
        order = DatasetOrder(shard, seed, "", shares)
        found = []
        for request in islice(order.requests([source], epoch=2, first=first), order.length(2) - first):
            samples = request[0].samples
            rows = zip(samples.container.tolist(), samples.record.tolist(), samples.copy.tolist(), strict=True)
            found.append(Counter(rows))
        return found

    whole = batches(0, 1)
    first = data.draw(st.integers(0, len(whole)))
    assert batches(0, 1, first) == whole[first:]
    for world_size in (2, 3):
        ranks = [batches(rank, world_size, first) for rank in range(world_size)]
        assert [sum(parts, Counter()) for parts in zip(*ranks, strict=True)] == whole[first:]


def test_a_loader_goes_on_in_an_epoch_of_the_same_weights_only(make_dataset: Make) -> None:
    path = make_dataset()
    dataset = picstore.Dataset(path)
    weighted = dataset.with_columns({"weight": dataset.ids % 4})
    weights = {"weights": dataset.ids % 4, "repeat": 2}
    loader = loader_of(weighted, weights="weight", repeat=2)
    batches = [batch.ids.tolist() for batch in loader]
    assert len(batches) == len(loader) == 20
    loader.load_state_dict({**loader.state_dict(), "epoch": 0, "samples": 35})
    state = loader.state_dict()
    assert len(json.dumps(state)) < 1024
    other = loader_of(weighted, **weights, isolate=True)
    other.load_state_dict(state)
    assert [batch.ids.tolist() for batch in other] == batches[7:]
    other.close()
    for wrong in ({}, {"repeat": 2}, {"weights": dataset.ids % 4}, {"balance": "label", "repeat": 2}):
        with pytest.raises(UsageError, match="the state has weights"):
            loader_of(weighted, **wrong).load_state_dict(state)
    with pytest.raises(UsageError, match="the state has weights None"):
        loader_of(dataset, repeat=2).load_state_dict(loader_of(dataset).state_dict())


def test_a_state_without_weights_or_selection_has_the_fields_that_it_had(make_dataset: Make) -> None:
    dataset = picstore.Dataset(make_dataset())
    state = loader_of(dataset, repeat=1).state_dict()
    assert state == {
        "version": 2,
        "dataset": dataset.uuid,
        "seed": 0,
        "shuffle": True,
        "lanes": 32,
        "world_size": 1,
        "epoch": 0,
        "samples": 0,
        "global_batch": loader_of(dataset).batch_size,
        "drop_last": True,
    }


@pytest.mark.parametrize("views", [False, True])
def test_copies_have_own_transforms_and_the_first_is_as_without_weights(make_dataset: Make, views: bool) -> None:
    path = make_dataset(20)
    steps = [picstore.RandomResizedCrop(16), picstore.ColorJitter(0.4)]
    transform = picstore.Views(one=(2, steps)) if views else steps

    def images(**options: Any) -> dict[int, list[torch.Tensor]]:
        found: dict[int, list[torch.Tensor]] = {}
        for batch in loader_of(path, transform=transform, **options):
            for k, id_ in enumerate(batch.ids.tolist()):
                found.setdefault(id_, []).append(batch.images["one"][:, k] if views else batch.images[k])
        return found

    once, thrice = images(), images(repeat=3)
    for id_, (image,) in once.items():
        assert len(thrice[id_]) == 3
        assert sum(torch.equal(image, copy) for copy in thrice[id_]) == 1
        different = torch.cat(thrice[id_]) if views else torch.stack(thrice[id_])
        assert len(torch.unique(different.flatten(1), dim=0)) == (6 if views else 3)


def test_balance_gives_each_class_as_many_samples(make_dataset: Make) -> None:
    dataset = picstore.Dataset(make_dataset())
    dataset = dataset.with_columns({"label": np.minimum(dataset.ids // 20, 2), "kind": ["a"] * 49 + ["b"]})
    for name, sizes in {"label": 50 / 3, "kind": 25}.items():
        loader, found = loader_of(dataset, balance=name), Counter[Any]()
        of_id = dict(zip(dataset.ids.tolist(), np.array(dataset.table[name]).tolist(), strict=True))
        for _ in range(6):
            epoch = [of_id[id_] for batch in loader for id_ in batch.ids.tolist()]
            assert len(epoch) == 50
            found.update(epoch)
        assert all(abs(count / 6 - sizes) < 1.5 for count in found.values())


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"weights": [1.0] * 9}, "each of 10 records"),
        ({"weights": [[1.0]] * 10}, "each of 10 records"),
        ({"weights": ["1"] * 10}, "each of 10 records"),
        ({"weights": [1.0] * 9 + [[1.0]]}, "each of 10 records"),
        ({"weights": [1.0] * 9 + [-1]}, "1 of 10 are negative, the first is -1.0, of position 9"),
        ({"weights": [np.nan, np.nan] + [1.0] * 8}, "2 of 10 are not finite"),
        ({"weights": [np.inf] + [1.0] * 9}, "not finite"),
        ({"weights": [0] * 10}, "all are zero"),
        ({"weights": "nothing"}, "no column 'nothing'"),
        ({"weights": "caption"}, "each of 10 records"),
        ({"weights": "score"}, "9 of 10 are not finite"),
        ({"balance": "score"}, "integers or texts"),
        ({"balance": "caption"}, "integers or texts"),
        ({"balance": "nothing"}, "no column 'nothing'"),
        ({"balance": "label", "weights": [1] * 10}, "exclude each other"),
        ({"repeat": 0}, "positive"),
        ({"repeat": -1}, "positive"),
        ({"repeat": np.nan}, "positive"),
        ({"repeat": "2"}, "positive"),
        ({"repeat": 0.01}, "0.01 times 10 records"),
        ({"repeat": 1 << 40}, "times 10 records"),
    ],
)
def test_weights_that_say_nothing_are_refused_when_the_loader_is_made(
    make_dataset: Make, options: dict[str, Any], reason: str
) -> None:
    dataset = picstore.Dataset(make_dataset(10)).with_columns({"score": [1.5], "caption": ["a"]}, ids=[3])
    with pytest.raises(UsageError, match=reason):
        loader_of(dataset, **options)


def test_an_epoch_may_be_a_single_sample(make_dataset: Make) -> None:
    dataset = picstore.Dataset(make_dataset(10))
    shares = record_shares(dataset, weights=None, balance=None, repeat=0.1, seed=0)
    assert shares is not None and shares.samples == 1
