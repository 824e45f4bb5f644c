"""The order of buckets: batches of one bucket each, the same on any ranks and after resuming."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from grids import examples
from hypothesis import given
from hypothesis import strategies as st

from picstore.arrays import Table
from picstore.errors import UsageError
from picstore.storage.edits.live_records import LiveRecords
from picstore.train.order import bucket_plan, epoch_order
from picstore.train.order.bucket_order import BucketOrder
from picstore.train.order.bucket_plan import BucketPlan, BucketTable
from picstore.train.order.epoch_order import ALONE, IN_CONTAINER, SET_ASIDE, EpochOrder
from picstore.train.order.requests import SourceRequest

Record = tuple[int, int]  # container and number in it


class Case:
    """Records of containers in random buckets."""

    def __init__(self, counts: list[int], buckets: int, seed: int, *, deleted: tuple[int, ...] = ()) -> None:
        self.live = LiveRecords.from_deleted(counts, np.array(deleted, np.int64), file="here")
        generator = np.random.default_rng(seed)
        shares = generator.dirichlet(np.full(buckets, 0.7))
        self.buckets = generator.choice(buckets, len(self.live), p=shares).astype(np.uint8)
        self.source: Any = SimpleNamespace(dataset=SimpleNamespace(live=self.live))
        self.seed = seed

    def order(self, sizes: tuple[int, ...], rank: int = 0, world_size: int = 1, **options: Any) -> BucketOrder:
        fields = {"lanes": 4, "seed": self.seed, **options}
        batches = tuple((size,) for size in sizes)
        table = BucketTable.count(self.live.counts, self.buckets, len(sizes))
        return BucketOrder(table=table, batch_sizes=batches, rank=rank, world_size=world_size, **fields)

    def bucket(self, record: Record) -> int:
        """The bucket of a stored record."""
        container, number = record
        within = int(self.live.mask(container)[:number].sum())
        return int(self.buckets[int(self.live.counts[:container].sum()) + within])

    def requests(self, order: BucketOrder, *, epoch: int = 1, first: int = 0, step: int = 0) -> list[SourceRequest]:
        made = order.requests([self.source], epoch=epoch, first=first, step=step)
        count = len(range(first, order.length(epoch), max(1, step)))
        return [request for (request,) in islice(made, count)]


def records_of(request: SourceRequest) -> list[Record]:
    return list(zip(request.samples.container.tolist(), request.samples.record.tolist(), strict=True))


@st.composite
def cases(draw: st.DrawFn) -> tuple[Case, tuple[int, ...]]:
    """A case, and global batch sizes of at least 8, which leave two samples to each of up to 4 ranks."""
    counts = draw(st.lists(st.integers(0, 12), min_size=4, max_size=14).filter(lambda counts: sum(counts) > 20))
    buckets = draw(st.integers(1, 4))
    sizes = draw(st.lists(st.integers(1, 3), min_size=buckets, max_size=buckets))
    return Case(counts, buckets, draw(st.integers(0, 2**32)), deleted=(0, 3)), tuple(7 + size for size in sizes)


@pytest.fixture(autouse=True, params=["small", "large"])
def _steps(request: pytest.FixtureRequest) -> Any:
    """Steps that take a part of a batch and of the containers, or a whole epoch."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "small":
            patch.setattr(bucket_plan, "_CHUNK", 7)
            patch.setattr(bucket_plan, "_NEAR", 1)
            patch.setattr(bucket_plan, "_SPAN", 2)
            patch.setattr(bucket_plan, "_BLOCK", 3)
            patch.setattr(epoch_order, "_PART", 3)
        yield


def expected_batches(case: Case, sizes: tuple[int, ...], *, lanes: int, drop_last: bool) -> list[list[Record]]:
    """The batches of docs/order-batches.md, sample after sample."""
    order = EpochOrder(case.live.counts, seed=case.seed, epoch=1, lanes=lanes)
    located = order.locate(np.arange(order.records))
    numbers = case.live.to_record_numbers(located.container, located.record)
    made, waiting = [], {bucket: [] for bucket in range(len(sizes))}
    left = Counter(case.buckets.tolist())
    for record in zip(located.container.tolist(), numbers.tolist(), strict=True):
        bucket = case.bucket(record)
        waiting[bucket].append(record)
        left[bucket] -= 1
        # The last batch has at least half of the usual samples.
        full = len(waiting[bucket]) == sizes[bucket]
        if not drop_last and 0 < left[bucket] < sizes[bucket]:
            full = (left[bucket] == sizes[bucket] // 2 and len(waiting[bucket]) + left[bucket] > sizes[bucket]) or full
        if full or (not drop_last and not left[bucket]):
            made.append(waiting[bucket])
            waiting[bucket] = []
    return made


@examples(40)
@given(drawn=cases(), drop_last=st.booleans())
def test_batches_are_those_of_the_specification(drawn: tuple[Case, tuple[int, ...]], drop_last: bool) -> None:
    case, sizes = drawn
    expected = expected_batches(case, sizes, lanes=4, drop_last=drop_last)
    if not expected:
        with pytest.raises(UsageError, match="make no batch"):
            case.order(sizes, drop_last=drop_last)
        return
    order = case.order(sizes, drop_last=drop_last)
    found = case.requests(order)
    assert [records_of(request) for request in found] == expected
    assert [case.bucket(batch[0]) for batch in expected] == [request.plan for request in found]
    assert order.length(1) == len(expected)
    if not drop_last:
        assert sorted(record for batch in expected for record in batch) == sorted(
            (container, number)
            for container in range(len(case.live.counts))
            for number in np.flatnonzero(case.live.mask(container)).tolist()
        )


@examples(40)
@given(drawn=cases(), data=st.data())
def test_global_batches_of_buckets_do_not_depend_on_world_size_or_resume(
    drawn: tuple[Case, tuple[int, ...]], data: st.DataObject
) -> None:
    case, sizes = drawn
    if not expected_batches(case, sizes, lanes=4, drop_last=True):
        return
    alone = case.order(sizes)
    whole = case.requests(alone)
    first = data.draw(st.integers(0, len(whole)))
    assert [(records_of(each), each.plan) for each in case.requests(alone, first=first)] == [
        (records_of(each), each.plan) for each in whole[first:]
    ]
    for world_size in (2, 3, 4):
        orders = [case.order(sizes, rank, world_size) for rank in range(world_size)]
        ranks = [case.requests(order, first=first) for order in orders]
        for expected, parts in zip(whole[first:], zip(*ranks, strict=True), strict=True):
            assert {part.plan for part in parts} == {expected.plan}
            lengths = [len(part.slots) for part in parts]
            assert max(lengths) - min(lengths) <= 1
            assert [part.weight for part in parts] == [world_size * each / sum(lengths) for each in lengths]
            joined = sum((Counter(records_of(part)) for part in parts), Counter())
            assert joined == Counter(records_of(expected))
        state = orders[0].state(1, first)
        assert alone.position(state) == (1, first) == orders[-1].position(alone.state(1, first))


@examples(40)
@given(drawn=cases(), world_size=st.sampled_from([1, 2, 3, 4]), shuffle=st.booleans(), drop_last=st.booleans())
def test_an_epoch_that_is_entered_at_any_batch_goes_on_as_if_gone_through(
    drawn: tuple[Case, tuple[int, ...]], world_size: int, shuffle: bool, drop_last: bool
) -> None:
    case, sizes = drawn
    options: dict[str, Any] = {"drop_last": drop_last, "shuffle": shuffle, "lanes": 4 if shuffle else world_size}
    try:
        order = case.order(sizes, 0, world_size, **options)
    except UsageError:
        return
    plan = order._plan(case.live, 1)
    whole = batches_of(plan, 0)
    assert len(whole) == order.length(1)
    counts = np.zeros(len(sizes), np.int64)
    for sample in range(plan.order.records):
        located = plan.order.locate(np.array([sample]))
        assert plan._counts.before(sample).tolist() == counts.tolist()
        assert plan.complete(sample) == sum(batch["number"][-1] < sample for batch in whole)
        counts[order.table.of(located.container, located.record)] += 1
    for first in range(len(whole) + 2):
        start = plan.start(first)
        assert start == (
            whole[first - 1]["number"][-1] + 1 if 0 < first <= len(whole) else plan.order.records * (first > 0)
        )
        found = batches_of(plan, start)
        assert [batch.tolist() for batch in found] == [batch.tolist() for batch in whole[first:]]


def batches_of(plan: BucketPlan, start: int) -> list[Table]:
    """The samples of each batch from a sample on, in the order of batches."""
    found = [
        planned.samples[planned.group == batch]
        for planned in plan.chunks(start)
        for batch in np.flatnonzero(planned.complete).tolist()
    ]
    return sorted(found, key=lambda batch: int(batch["number"][-1]))


@examples(40)
@given(drawn=cases(), world_size=st.sampled_from([1, 2, 3, 4]), shuffle=st.booleans())
def test_without_drop_last_every_record_comes_once_and_no_batch_is_empty(
    drawn: tuple[Case, tuple[int, ...]], world_size: int, shuffle: bool
) -> None:
    case, sizes = drawn
    options: dict[str, Any] = {"drop_last": False, "shuffle": shuffle, "lanes": 4 if shuffle else world_size}
    held = Counter(case.buckets.tolist())
    if min(held.values()) < world_size:
        with pytest.raises(UsageError, match="too few for"):
            case.order(sizes, 0, world_size, **options)
        return
    ranks = [case.requests(case.order(sizes, rank, world_size, **options)) for rank in range(world_size)]
    records = [record for batches in ranks for batch in batches for record in records_of(batch)]
    assert len(records) == len(set(records)) == len(case.live)
    for parts in zip(*ranks, strict=True):
        assert len({part.plan for part in parts}) == 1
        assert {case.bucket(record) for part in parts for record in records_of(part)} == {parts[0].plan}
        lengths = [len(part.slots) for part in parts]
        assert min(lengths) > 0 and max(lengths) - min(lengths) <= 1
        assert max(lengths) <= -(-sizes[parts[0].plan] // world_size)


@examples(60)
@given(drawn=cases(), data=st.data(), world_size=st.sampled_from([1, 2, 3, 4]), step=st.sampled_from([0, 1, 3]))
def test_records_are_in_containers_of_lanes_set_aside_or_read_alone(
    drawn: tuple[Case, tuple[int, ...]], data: st.DataObject, world_size: int, step: int
) -> None:
    case, sizes = drawn
    if not expected_batches(case, sizes, lanes=4, drop_last=True):
        return
    rank = data.draw(st.integers(0, world_size - 1))
    order = case.order(sizes, rank, world_size)
    first = data.draw(st.integers(0, order.length(1)))
    aside: Counter[Record] = Counter()
    closed: set[tuple[int, int]] = set()
    read_alone = 0
    for request in case.requests(order, first=first, step=step):
        samples = request.samples
        assert samples.held is not None
        runs = list(zip(samples.container.tolist(), samples.lane.tolist(), strict=True))
        for record, run, held in zip(records_of(request), runs, samples.held.tolist(), strict=True):
            if held == IN_CONTAINER:
                assert run not in closed and order.rank_shares.reads(rank, np.array([run[1]]))[0]
            elif held == SET_ASIDE:
                assert run in closed
                aside[record] -= 1
                assert aside[record] >= 0
            else:
                assert held == ALONE
                read_alone += 1
        for leaving in request.leaving:
            run = leaving.container, leaving.lane
            assert run not in closed
            closed.add(run)
            aside.update((leaving.container, record) for record in leaving.records.tolist())
    if step == 0:
        assert not +aside or first + len(closed) < 0
    if world_size == 1 and first == 0 and step <= 1:
        assert read_alone == 0
