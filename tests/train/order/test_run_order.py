"""The order of a whole run: each record once over all ranks, the same after any resume, at any world size."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from grids import examples, slow_except
from hypothesis import assume, given
from hypothesis import strategies as st

import picstore
from picstore.train.batch import Batch
from picstore.train.mux import MuxOrder
from picstore.train.order.epoch_order import EpochOrder
from picstore.train.order.global_batches import RankShard
from picstore.train.order.mux_order import MuxSchedule

Make = Callable[..., Path]
RecordAddress = tuple[int, int]  # container and record

# Every kind of random draw: of geometry, of levels, of pixels, after Normalize.
EVERYTHING = [
    picstore.RandomResizedCrop(32),
    picstore.RandomHorizontalFlip(),
    picstore.RandomRotation(20),
    picstore.ColorJitter(0.4, 0.4, 0.4, 0.1),
    picstore.GaussianNoise(),
    picstore.GaussianBlur(5),
    picstore.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    picstore.RandomErasing(1.0, value="random"),
]
HALF = {"transform": EVERYTHING, "dtype": torch.bfloat16, "memory_format": torch.channels_last}


@dataclass(frozen=True)
class Run:
    """What the order of a run of several ranks is a function of."""

    counts: list[int]
    batch_size: int
    lanes: int
    world_size: int
    drop_last: bool
    shuffle: bool
    seed: int = 0
    epoch: int = 0
    records: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "records", sum(self.counts))

    def shard(self, rank: int) -> RankShard:
        return RankShard(
            records=self.records,
            lanes=self.lanes,
            batch=self.batch_size * self.world_size,
            rank=rank,
            world_size=self.world_size,
            drop_last=self.drop_last,
        )

    def order(self) -> EpochOrder:
        return EpochOrder(self.counts, seed=self.seed, epoch=self.epoch, lanes=self.lanes, shuffle=self.shuffle)

    def batches(self, rank: int, *, first: int = 0) -> list[list[RecordAddress]]:
        """The batches of a rank from ``first`` on, by a plan that is made for them."""
        shard, order = self.shard(rank), self.order()
        return [addresses(order, shard.samples(k)) for k in range(first, shard.batches)]


def addresses(order: EpochOrder, numbers: np.ndarray) -> list[RecordAddress]:
    samples = order.locate(numbers)
    return list(zip(samples.container.tolist(), samples.record.tolist(), strict=True))


def stored(counts: list[int]) -> list[RecordAddress]:
    return [(container, record) for container, count in enumerate(counts) for record in range(count)]


@st.composite
def runs(draw: st.DrawFn) -> Run:
    world_size = draw(st.integers(1, 8))
    run = Run(
        counts=draw(st.lists(st.integers(0, 12), min_size=1, max_size=40)),
        batch_size=draw(st.integers(1, 24)),
        lanes=draw(st.integers(1, 40)),
        world_size=world_size,
        drop_last=draw(st.booleans()),
        shuffle=draw(st.booleans()),
        seed=draw(st.integers(0, 2**64 - 1)),
        epoch=draw(st.integers(0, 1000)),
    )
    assume(run.records >= world_size * (run.batch_size if run.drop_last else 1))
    return run


# The plan.


@given(runs())
@examples(300)
def test_ranks_together_take_each_record_once_and_leave_less_than_a_batch(run: Run) -> None:
    ranks = [run.batches(rank) for rank in range(run.world_size)]
    assert len({len(batches) for batches in ranks}) == 1
    taken = [address for batches in ranks for batch in batches for address in batch]
    assert len(set(taken)) == len(taken)
    assert set(taken) <= set(stored(run.counts))
    if run.drop_last:
        assert run.records - len(taken) < run.batch_size * run.world_size
    else:
        assert len(taken) == run.records


@given(runs())
@examples(60)
def test_a_plan_made_anew_before_any_batch_goes_on_as_if_uninterrupted(run: Run) -> None:
    for rank in range(run.world_size):
        whole = run.batches(rank)
        for first in range(len(whole) + 1):
            assert run.batches(rank, first=first) == whole[first:]


@pytest.mark.slow
@given(
    lanes=st.sampled_from([1, 4, 12, 16, 24, 32, 64]),
    pick=st.lists(st.integers(0, 100), min_size=2, max_size=6),
    multiple=st.integers(1, 4),
    steps=st.lists(st.integers(1, 4), min_size=6, max_size=6),
    counts=st.lists(st.integers(1, 40), min_size=20, max_size=60),
    seed=st.integers(0, 2**64 - 1),
)
def test_a_run_of_often_changed_world_size_takes_the_same_global_batches(
    lanes: int, pick: list[int], multiple: int, steps: list[int], counts: list[int], seed: int
) -> None:
    """Not even a global batch that is a multiple of the lanes is needed, only world sizes that divide both."""
    divisors = [w for w in range(1, lanes + 1) if lanes % w == 0]
    world_sizes = [divisors[k % len(divisors)] for k in pick]
    global_batch = math.lcm(*world_sizes) * multiple
    steps[len(world_sizes) - 1] = sum(counts)  # the last one goes on to the end
    assume(sum(counts) >= global_batch)
    order = EpochOrder(counts, seed=seed, epoch=0, lanes=lanes)
    starts = range(0, sum(counts) - global_batch + 1, global_batch)
    expected = [addresses(order, np.arange(start, start + global_batch)) for start in starts]
    found: list[list[RecordAddress]] = []
    for world_size, count in zip(world_sizes, steps, strict=False):
        run = Run(counts, global_batch // world_size, lanes, world_size, drop_last=True, shuffle=True, seed=seed)
        ranks = [run.batches(rank, first=len(found))[:count] for rank in range(world_size)]
        # Rank r has every W-th sample, from the r-th on.
        found += [
            [address for row in zip(*parts, strict=True) for address in row] for parts in zip(*ranks, strict=True)
        ]
    assert found == expected


@given(
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    worlds=st.permutations(range(1, 13)),
    lanes=st.integers(1, 30),
    batches=st.integers(1, 3),
)
def test_a_mux_whose_world_size_changes_takes_the_same_samples_by_source(
    counts: list[int], worlds: list[int], lanes: int, batches: int
) -> None:
    taken = [0] * len(counts)
    done = 0
    for world_size in worlds[:3]:
        mixes = [
            MuxOrder(
                schedule=MuxSchedule.constant([12 * c for c in counts]),
                records=(1000,) * len(counts),
                lanes=lanes,
                seed=0,
                rank=r,
                world_size=world_size,
            )
            for r in range(world_size)
        ]
        for source, count in enumerate(counts):
            steps = range(done, done + batches)
            numbers = [mix.samples(source, mix.windows(k)[source]) for mix in mixes for k in steps]
            start = taken[source]
            assert sorted(np.concatenate(numbers).tolist()) == list(range(start, start + 12 * count * batches))
            taken[source] += 12 * count * batches
        done += batches


@given(
    st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**40)), min_size=2, max_size=4, unique=True),
    st.integers(1, 64),
)
@examples(50)
def test_the_orders_of_two_seeds_or_epochs_share_no_more_than_chance(names: list[tuple[int, int]], lanes: int) -> None:
    counts = [20] * 50
    ranks = []
    for seed, epoch in names:
        order = EpochOrder(counts, seed=seed, epoch=epoch, lanes=lanes)
        samples = order.locate(np.arange(order.records))
        position = np.empty(order.records)
        position[samples.container * 20 + samples.record] = np.arange(order.records)
        ranks.append(position)
    for k, one in enumerate(ranks):
        for other in ranks[:k]:
            # One record is where it was on average; each container that is may bring a few.
            assert (one == other).sum() <= 40
            # One lane leaves containers whole, so this is the correlation of two orders of 50: 0 ± 1/7.
            assert abs(np.corrcoef(one, other)[0, 1]) < 0.9


# Loaders.


def loader_of(path: Path, **options: Any) -> picstore.Loader:
    given = {"batch_size": 16, "transform": [picstore.RandomResizedCrop(16)], "threads": 1, "isolate": False, **options}
    return picstore.Loader(path, **given)


def alike(one: Batch, other: Batch) -> bool:
    assert isinstance(one.images, torch.Tensor) and isinstance(other.images, torch.Tensor)
    assert one.images.stride() == other.images.stride() and one.images.dtype == other.images.dtype
    return all(
        torch.equal(mine, theirs)
        for mine, theirs in ((one.images, other.images), (one.labels, other.labels), (one.ids, other.ids))
    )


def by_id(batches: Iterable[Batch]) -> dict[int, torch.Tensor]:
    """Images of some batches; no id may be there twice."""
    pairs = [(i, image) for batch in batches for i, image in zip(batch.ids.tolist(), batch.images, strict=True)]
    found = dict(pairs)
    assert len(found) == len(pairs)
    return found


def same_images(one: dict[int, torch.Tensor], other: dict[int, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(image, other[i]) for i, image in one.items())


RANK = {"rank": 1, "world_size": 3}


@pytest.mark.parametrize(
    ("options", "drop_last"),
    slow_except([({}, True), (RANK, False)], product([{}, {"shuffle": False}, RANK], [True, False])),
)
def test_a_loader_goes_on_from_the_state_after_every_batch_of_an_epoch(
    make_dataset: Make, options: dict[str, Any], drop_last: bool
) -> None:
    path = make_dataset(45)
    options = {**options, "batch_size": 3, "drop_last": drop_last}
    loader = loader_of(path, **options)
    states, batches = [loader.state_dict()], []
    for batch in loader:
        batches.append(batch)
        states.append(loader.state_dict())
    following = list(loader)
    for taken, state in enumerate(states):
        resumed = loader_of(path, **options)
        resumed.load_state_dict(json.loads(json.dumps(state)))
        rest = list(resumed)
        expected = batches[taken:] or following
        assert len(rest) == len(expected)
        assert all(alike(one, other) for one, other in zip(rest, expected, strict=True))


@pytest.mark.parametrize(
    "world_sizes", slow_except([((4, 2, 8, 1),)], [((4, 2, 8, 1),), ((1, 8, 4, 2),), ((2, 4, 1, 8),)])
)
def test_a_run_goes_on_at_another_world_size_in_the_middle_of_an_epoch(
    make_dataset: Make, world_sizes: tuple[int, ...]
) -> None:
    path = make_dataset(300)
    alone = [by_id([batch]) for batch in loader_of(path, batch_size=32)]
    state: dict[str, Any] | None = None
    found = []
    for turn, world_size in enumerate(world_sizes):
        ranks = [loader_of(path, batch_size=32 // world_size, rank=r, world_size=world_size) for r in range(world_size)]
        for loader in ranks:
            if state is not None:
                loader.load_state_dict(state)
        iterators = [iter(loader) for loader in ranks]
        steps = 2 if turn < 3 else len(alone) - len(found)
        found += [by_id(next(iterator) for iterator in iterators) for _ in range(steps)]
        states = [loader.state_dict() for loader in ranks]
        assert [{**other, "world_size": 0} for other in states] == [{**states[0], "world_size": 0}] * world_size
        state = states[-1]
    assert len(found) == len(alone) == 9
    assert all(same_images(one, other) for one, other in zip(found, alone, strict=True))
    assert state is not None and (state["epoch"], state["samples"]) == (1, 0)


def test_the_world_size_may_change_after_an_epoch_with_a_small_last_batch(make_dataset: Make) -> None:
    path = make_dataset(100)
    alone = loader_of(path, batch_size=32, drop_last=False)
    expected = [by_id(alone), by_id(alone)]
    state, found = {**alone.state_dict(), "epoch": 0}, []
    for world_size in (2, 4):
        ranks = [
            loader_of(path, batch_size=32 // world_size, rank=r, world_size=world_size, drop_last=False)
            for r in range(world_size)
        ]
        for loader in ranks:
            loader.load_state_dict(state)
        found.append(by_id(batch for loader in ranks for batch in loader))
        state = ranks[0].state_dict()
    assert all(same_images(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    "options",
    slow_except(
        [{"threads": 8}],
        [{"threads": 2}, {"threads": 8}, {"threads": 2, "isolate": True}],
    ),
)
def test_batches_are_the_same_to_the_bit_for_any_threads_in_any_process(
    make_dataset: Make, options: dict[str, Any]
) -> None:
    path = make_dataset(150)
    one = loader_of(path, batch_size=37, drop_last=False, **HALF)
    other = loader_of(path, batch_size=37, drop_last=False, **{**HALF, **options})
    for _ in range(2):
        pairs = list(zip(one, other, strict=True))
        assert len(pairs) == 5
        assert all(alike(*pair) for pair in pairs)
    other.close()


@pytest.mark.parametrize(
    "options",
    slow_except(
        [{"batch_size": 7}, {"lanes": 3}, {"budget": 1}, {"world_size": 2, "shuffle": False}],
        [
            {"batch_size": 1},
            {"batch_size": 7},
            {"batch_size": 120},
            {"lanes": 3},
            {"budget": 1},
            {"shuffle": False},
            {"world_size": 2},
            {"world_size": 5},
            {"world_size": 2, "shuffle": False},
        ],
    ),
)
def test_what_is_drawn_for_a_record_depends_on_no_batch_rank_or_slot(
    make_dataset: Make, options: dict[str, Any]
) -> None:
    path = make_dataset(120)
    expected = by_id(loader_of(path, drop_last=False, **HALF))
    assert len(expected) == 120
    ranks = [{"rank": rank} for rank in range(options.get("world_size", 0))] or [{}]
    found = by_id(batch for rank in ranks for batch in loader_of(path, drop_last=False, **HALF, **options, **rank))
    assert same_images(found, expected)


@pytest.mark.parametrize("change", ["seed", "epoch"])
def test_everything_is_drawn_anew_for_another_seed_or_epoch(make_dataset: Make, change: str) -> None:
    path = make_dataset(64)
    first = by_id(loader_of(path, **HALF))
    loader = loader_of(path, **HALF, seed=int(change == "seed"))
    loader.set_epoch(int(change == "epoch"))
    second = by_id(loader)
    assert first.keys() == second.keys()
    assert not any(torch.equal(image, second[i]) for i, image in first.items())
