"""Runs whose world size changes: global batches are those of one rank, and every record comes as often as promised."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from itertools import islice
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from grids import examples
from hypothesis import given
from hypothesis import strategies as st

from picstore.storage.edits.live_records import LiveRecords
from picstore.train.order.bucket_order import BucketOrder
from picstore.train.order.bucket_plan import BucketTable
from picstore.train.order.dataset_order import DatasetOrder
from picstore.train.order.drawn_samples import drawn_samples
from picstore.train.order.epoch_order import ALONE
from picstore.train.order.global_batches import RankShard
from picstore.train.order.mux_order import MuxOrder, MuxSchedule
from picstore.train.order.requests import BatchRequest, Order
from picstore.train.order.weights import RecordShares

MakeOrder = Callable[[int, int], Order]  # of a rank of a world size

LATER = ("global_batch", "drop_last")  # fields of a state that came after these hashes
BATCH = 200  # two samples at least on each of 97 ranks


def source_of(counts: list[int]) -> Any:
    live = LiveRecords.from_deleted(counts, np.zeros(0, np.int64), file="here")
    return SimpleNamespace(dataset=SimpleNamespace(live=live), seed=3)


def records_of(request: BatchRequest) -> Counter[tuple[int, ...]]:
    """Source, epoch, container, record and copy of each sample."""
    found: Counter[tuple[int, ...]] = Counter()
    for part in request:
        samples = part.samples
        copies = np.zeros(len(samples)) if samples.copy is None else samples.copy
        columns = (samples.container.tolist(), samples.record.tolist(), copies.tolist())
        found.update((part.source, part.epoch, *row) for row in zip(*columns, strict=True))
    return found


def plain(lanes: int, drop_last: bool, counts: list[int]) -> tuple[MakeOrder, list[Any]]:
    def make(rank: int, world_size: int) -> Order:
        options: Any = {"rank": rank, "world_size": world_size, "lanes": lanes, "drop_last": drop_last}
        return DatasetOrder(RankShard(records=sum(counts), batch=BATCH, **options), seed=1)

    return make, [source_of(counts)]


def stored(lanes: int, drop_last: bool, counts: list[int]) -> tuple[MakeOrder, list[Any]]:
    def make(rank: int, world_size: int) -> Order:
        options: Any = {"rank": rank, "world_size": world_size, "lanes": lanes, "drop_last": drop_last}
        return DatasetOrder(RankShard(records=sum(counts), batch=BATCH, **options), seed=1, shuffle=False)

    return make, [source_of(counts)]


def weighted(lanes: int, drop_last: bool, counts: list[int]) -> tuple[MakeOrder, list[Any]]:
    shares = RecordShares.weighted(np.array(counts), np.arange(sum(counts)) % 5, 2 * sum(counts), seed=1)

    def make(rank: int, world_size: int) -> Order:
        options: Any = {"rank": rank, "world_size": world_size, "lanes": lanes, "drop_last": drop_last}
        return DatasetOrder(RankShard(records=shares.samples, batch=BATCH, **options), 1, "", shares)

    return make, [source_of(counts)]


def buckets(lanes: int, drop_last: bool, counts: list[int]) -> tuple[MakeOrder, list[Any]]:
    of_records = (np.arange(sum(counts)) // 7 % 2).astype(np.uint8)
    table = BucketTable.count(np.array(counts), of_records, 2)

    def make(rank: int, world_size: int) -> Order:
        options: Any = {"rank": rank, "world_size": world_size, "lanes": lanes, "drop_last": drop_last}
        return BucketOrder(table=table, batch_sizes=((BATCH,), (BATCH + 7,)), seed=1, **options)

    return make, [source_of(counts)]


def mixture(lanes: int, drop_last: bool, counts: list[int]) -> tuple[MakeOrder, list[Any]]:
    del drop_last  # a mixture has no end
    schedule = MuxSchedule((0, 2, 5), ((150, 50, 1), (60, 140, 0), (3, 11, 190)))

    def make(rank: int, world_size: int) -> Order:
        records = (sum(counts), sum(counts[::2]), 17)
        return MuxOrder(
            schedule=schedule, records=records, lanes=lanes, seed=1, rank=rank, world_size=world_size, epoch_batches=9
        )

    return make, [source_of(counts), source_of(counts[::2]), source_of([9, 8])]


def fixed(value: Any) -> str:
    """Text that is the same for the same numbers, whatever their type."""
    if isinstance(value, np.ndarray):
        return str(value.astype(np.int64).tolist())
    if isinstance(value, (tuple, list)):
        return f"[{','.join(map(fixed, value))}]"
    if is_dataclass(value):
        return fixed([getattr(value, each.name) for each in fields(value)])
    return f"{value:.9f}" if isinstance(value, float) else str(value)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (plain, "0a1b8530e82d0aab"),
        (stored, "b7d32c8e6888f2db"),
        (weighted, "7576df0ef4e0c37b"),
        (buckets, "9dab853fb0f08fc6"),
        (mixture, "1a3a86134a7ba13a"),
    ],
)
def test_an_order_is_what_it_has_always_been(kind: Any, expected: str) -> None:
    """All that is requested, states and seeds, so that runs resume in the same order; docs/order.py has it too."""
    counts, hashed = [*range(1, 40), *range(30, 3, -1)], hashlib.sha256()
    for drop_last, rank, world_size, lanes in (
        (True, 0, 1, 7),
        (False, 1, 3, 32),
        (False, 4, 5, 12),
        (True, 2, 40, 64),
    ):
        make, sources = kind(lanes, drop_last, counts)
        order = make(rank, world_size)
        for epoch, first, step in ((0, 0, 0), (2, 3, 0), (1, 1, 2)):
            for request in islice(order.requests(sources, epoch=epoch, first=first, step=step), 9):
                hashed.update(fixed(list(request)).encode())
        for epoch, batch in ((0, 0), (0, 1), (3, 2)):
            state = order.state(epoch, batch)
            about = (
                {name: value for name, value in state.items() if name not in LATER},
                order.position(state),
                order.batch_seed(epoch, batch),
                order.length(epoch),
                order.stage(epoch),
            )
            hashed.update(fixed([*about, order.lanes, order.lanes_read]).encode())
    assert hashed.hexdigest()[:16] == expected


@pytest.mark.parametrize("kind", [plain, stored, weighted, buckets, mixture])
@given(
    lanes=st.integers(1, 100),
    drop_last=st.booleans(),
    counts=st.lists(st.integers(1, 30), min_size=36, max_size=36),
    worlds=st.lists(st.integers(1, 97), min_size=3, max_size=3),
    steps=st.lists(st.integers(0, 2), min_size=2, max_size=2),
)
@examples(5)
def test_a_run_of_any_world_sizes_makes_the_global_batches_of_one_rank(
    kind: Any, lanes: int, drop_last: bool, counts: list[int], worlds: list[int], steps: list[int]
) -> None:
    make, sources = kind(lanes, drop_last, counts)
    alone = make(0, 1)
    length = alone.length(0)
    assert length is not None
    whole = list(map(records_of, islice(alone.requests(sources, epoch=0), length)))
    state, found = alone.state(0, 0), []
    for world_size, count in zip(worlds, [*steps, length], strict=True):
        ranks = [make(rank, world_size) for rank in range(world_size)]
        epoch, first = ranks[-1].position(state)
        assert (epoch, first) == (0, len(found))
        count = min(count, length - first)
        requests = [list(islice(order.requests(sources, epoch=0, first=first), count)) for order in ranks]
        for parts in zip(*requests, strict=True):
            sizes = [sum(len(part.slots) for part in request) for request in parts]
            assert max(sizes) - min(sizes) <= 1 <= min(sizes)
            assert [request[0].weight * sum(sizes) for request in parts] == pytest.approx(
                [world_size * size for size in sizes]
            )
            slots = [sorted(np.concatenate([part.slots for part in request]).tolist()) for request in parts]
            assert slots == [list(range(size)) for size in sizes]
            found.append(sum(map(records_of, parts), Counter()))
        state = ranks[0].state(0, first + count)
    assert found == whole
    if kind is plain and not drop_last:
        assert sum(whole, Counter()) == Counter((0, 0, c, r, 0) for c, n in enumerate(counts) for r in range(n))


@pytest.mark.parametrize("kind", [plain, stored, weighted, buckets])
@pytest.mark.parametrize("drop_last", [False, True])
def test_the_place_of_a_record_is_where_the_ranks_request_it(kind: Any, drop_last: bool) -> None:
    counts, world_size = [*range(1, 40)], 3
    make, sources = kind(7, drop_last, counts)
    places: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    for rank in range(world_size):
        order = make(rank, world_size)
        for batch, request in enumerate(islice(order.requests(sources, epoch=2), order.length(2))):
            for part in request:
                located = zip(part.samples.container.tolist(), part.samples.record.tolist(), strict=True)
                for record, slot in zip(located, part.slots.tolist(), strict=True):
                    places.setdefault(record, []).append((rank, batch, slot))
    records = [(container, record) for container, count in enumerate(counts) for record in range(count)]
    assert len(places) > len(records) // 2
    length = make(0, world_size).length(2) or 0
    drawn = drawn_samples(make(0, world_size), [sources[0].dataset.live])
    for position in range(0, len(records), 31):
        samples = drawn.find(0, np.array([position]), 2 * length, 3 * length)
        found = [(rank, step - 2 * length, slot) for rank, step, slot in samples[["rank", "step", "slot"]].tolist()]
        assert sorted(found) == sorted(places.get(records[position], []))


def test_a_loader_that_left_a_shared_lanes_container_lets_go_of_it() -> None:
    make, sources = plain(5, True, [3] * 400)
    for rank in range(3):
        order = make(rank, 3)
        read: set[tuple[int, int]] = set()
        left: set[tuple[int, int]] = set()
        for request in islice(order.requests(sources, epoch=0), 6):
            samples = request[0].samples
            inside = slice(None) if samples.held is None else samples.held != ALONE
            runs = set(zip(samples.container[inside].tolist(), samples.lane[inside].tolist(), strict=True))
            assert not runs & left
            read |= runs
            left |= {(run.container, run.lane) for run in request[0].leaving}
        assert left <= read and len(read - left) <= 4
