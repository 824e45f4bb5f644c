"""The plan: exactly once, the same on every rank, a function of seed, epoch and manifest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from grids import examples
from hypothesis import assume, given
from hypothesis import strategies as st

from picstore import rng
from picstore.errors import UsageError
from picstore.train.order import container_order
from picstore.train.order.epoch import EpochOrder
from picstore.train.order.sharding import MIN_LANES, RankShard, default_lanes, find_rank

COUNTS = st.lists(st.integers(1, 9), min_size=1, max_size=30)
SEED = st.integers(0, 2**64 - 1)


@pytest.fixture(autouse=True, params=[3, 1 << 13])
def _part(request: pytest.FixtureRequest) -> Any:
    """Containers that are sorted at a time: few, or all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(container_order, "_PART", request.param)
        yield


def addresses(epoch: EpochOrder, numbers: np.ndarray | None = None) -> list[tuple[int, int]]:
    """Container and record of samples, all of the epoch by default."""
    samples = epoch.locate(np.arange(epoch.records) if numbers is None else numbers)
    return list(zip(samples.container.tolist(), samples.record.tolist(), strict=True))


def stored(counts: list[int]) -> list[tuple[int, int]]:
    return [(container, record) for container, count in enumerate(counts) for record in range(count)]


def batches(shard: RankShard) -> list[list[int]]:
    """Numbers of the samples in each batch of a shard."""
    return [shard.samples(*shard.bounds(k)).tolist() for k in range(shard.batches)]


def shards(world_size: int, **fields: object) -> list[RankShard]:
    return [RankShard(rank=rank, world_size=world_size, **fields) for rank in range(world_size)]  # type: ignore[arg-type]


@given(counts=COUNTS, seed=SEED, epoch=st.integers(0, 99), lanes=st.integers(1, 40))
def test_an_epoch_holds_each_record_exactly_once(counts: list[int], seed: int, epoch: int, lanes: int) -> None:
    found = addresses(EpochOrder(counts, seed=seed, epoch=epoch, lanes=lanes))
    assert sorted(found) == stored(counts)


@given(counts=COUNTS, seed=SEED, lanes=st.integers(1, 40))
def test_the_order_is_the_formula_of_the_design(counts: list[int], seed: int, lanes: int) -> None:
    """Permute containers, permute the records in each, join, cut into lanes of ceil((N - l) / L), deal in turn."""
    key = rng.key(rng.PLAN, seed, 3)
    joined = [
        (container, record)
        for container in rng.permutation(key, len(counts)).tolist()
        for record in rng.permutation(rng.key(key, container), counts[container]).tolist()
    ]
    remaining, runs = list(joined), []
    for lane in range(lanes):
        length = max(0, -(-(len(joined) - lane) // lanes))
        runs.append(remaining[:length])
        remaining = remaining[length:]
    assert not remaining
    expected = [runs[g % lanes][g // lanes] for g in range(len(joined))]
    epoch = EpochOrder(counts, seed=seed, epoch=3, lanes=lanes)
    assert addresses(epoch) == expected
    assert epoch.locate(np.arange(len(joined))).lane.tolist() == [g % lanes for g in range(len(joined))]


@given(counts=COUNTS, seed=SEED, lanes=st.integers(1, 40), shuffle=st.booleans())
def test_last_marks_the_end_of_a_lanes_use_of_a_container(
    counts: list[int], seed: int, lanes: int, shuffle: bool
) -> None:
    epoch = EpochOrder(counts, seed=seed, epoch=0, lanes=lanes, shuffle=shuffle)
    samples = epoch.locate(np.arange(epoch.records))
    uses = list(zip(samples.lane.tolist(), samples.container.tolist(), strict=True))
    final = {use: g for g, use in enumerate(uses)}
    assert samples.last.tolist() == [final[use] == g for g, use in enumerate(uses)]


@given(counts=COUNTS, seed=SEED, lanes=st.integers(1, 40), data=st.data())
def test_any_part_of_an_epoch_is_located_alone(counts: list[int], seed: int, lanes: int, data: st.DataObject) -> None:
    every = addresses(EpochOrder(counts, seed=seed, epoch=5, lanes=lanes))
    numbers = data.draw(st.lists(st.integers(0, len(every) - 1), min_size=1, max_size=20))
    alone = addresses(EpochOrder(counts, seed=seed, epoch=5, lanes=lanes), np.array(numbers))
    assert alone == [every[g] for g in numbers]


@given(counts=COUNTS, seed=SEED, lanes=st.integers(1, 40), shuffle=st.booleans())
def test_a_record_is_found_at_the_sample_that_is_located_at_it(
    counts: list[int], seed: int, lanes: int, shuffle: bool
) -> None:
    epoch = EpochOrder(counts, seed=seed, epoch=1, lanes=lanes, shuffle=shuffle)
    located = addresses(epoch)
    assert [epoch.find(*address) for address in located] == list(range(epoch.records))


def test_epochs_and_seeds_differ_and_repeat() -> None:
    orders = {
        (seed, epoch): tuple(addresses(EpochOrder([7] * 9, seed=seed, epoch=epoch, lanes=4)))
        for seed in range(3)
        for epoch in range(3)
    }
    assert len(set(orders.values())) == 9
    assert tuple(addresses(EpochOrder([7] * 9, seed=2, epoch=1, lanes=4))) == orders[2, 1]


def test_without_shuffle_the_stored_order_is_kept() -> None:
    assert addresses(EpochOrder([3, 1, 4], seed=1, epoch=2, lanes=1, shuffle=False)) == stored([3, 1, 4])


def test_a_batch_in_the_middle_of_a_hundred_million_records_is_located() -> None:
    epoch = EpochOrder(np.full(100_000, 1_000), seed=0, epoch=0, lanes=32)
    middle = epoch.records // 2
    samples = epoch.locate(np.arange(middle, middle + 256))
    assert epoch.records == 10**8
    assert len(set(zip(samples.container.tolist(), samples.record.tolist(), strict=True))) == 256
    assert len(set(samples.container.tolist())) >= 32


@given(
    records=st.integers(1, 400),
    world_size=st.integers(1, 9),
    batch_size=st.integers(1, 40),
    lanes_a_rank=st.integers(1, 6),
    shuffle=st.booleans(),
)
@examples(300)
def test_without_drop_last_every_sample_is_in_one_batch_and_no_batch_is_empty(
    records: int, world_size: int, batch_size: int, lanes_a_rank: int, shuffle: bool
) -> None:
    assume(records >= world_size)
    lanes = lanes_a_rank * world_size if shuffle else 1
    ranks = shards(world_size, records=records, lanes=lanes, batch_size=batch_size, shuffle=shuffle, drop_last=False)
    found = [batches(shard) for shard in ranks]
    assert sorted(g for rank in found for batch in rank for g in batch) == list(range(records))
    assert len({len(rank) for rank in found}) == 1
    assert all(batch for rank in found for batch in rank)
    assert max(len(batch) for rank in found for batch in rank) <= max(batch_size, 2 if world_size > 1 else 1)
    assert all(len(batch) == batch_size for rank in found for batch in rank[:-2])


@given(
    records=st.integers(1, 400),
    world_size=st.integers(1, 9),
    batch_size=st.integers(1, 40),
    lanes_a_rank=st.integers(1, 6),
    shuffle=st.booleans(),
)
@examples(300)
def test_with_drop_last_all_batches_are_whole_and_less_than_one_global_batch_is_left_out(
    records: int, world_size: int, batch_size: int, lanes_a_rank: int, shuffle: bool
) -> None:
    assume(records >= world_size * batch_size)
    lanes = lanes_a_rank * world_size if shuffle else 1
    found = [
        batches(shard)
        for shard in shards(world_size, records=records, lanes=lanes, batch_size=batch_size, shuffle=shuffle)
    ]
    seen = [g for rank in found for batch in rank for g in batch]
    assert len(seen) == len(set(seen)) and set(seen) <= set(range(records))
    assert {len(batch) for rank in found for batch in rank} == {batch_size}
    assert len({len(rank) for rank in found}) == 1
    assert records - len(seen) < world_size * batch_size


@given(records=st.integers(1, 600), lanes=st.sampled_from([1, 6, 12, 32]), multiple=st.integers(1, 3))
def test_every_world_size_that_divides_the_lanes_has_the_same_global_batches(
    records: int, lanes: int, multiple: int
) -> None:
    global_batch = lanes * multiple
    assume(records >= global_batch)
    expected = [set(range(k, k + global_batch)) for k in range(0, records - global_batch + 1, global_batch)]
    for world_size in (w for w in range(1, lanes + 1) if lanes % w == 0):
        ranks = shards(world_size, records=records, lanes=lanes, batch_size=global_batch // world_size)
        columns = zip(*(batches(shard) for shard in ranks), strict=True)
        assert [set().union(*column) for column in columns] == expected


@given(records=st.integers(1, 200), world_size=st.integers(1, 9))
def test_a_rank_reads_a_contiguous_range_of_the_stored_order(records: int, world_size: int) -> None:
    assume(records >= world_size)
    ranks = shards(world_size, records=records, lanes=1, batch_size=7, shuffle=False, drop_last=False)
    assert [g for shard in ranks for batch in batches(shard) for g in batch] == list(range(records))


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_fewer_records_than_ranks_are_refused(shuffle: bool, drop_last: bool) -> None:
    with pytest.raises(UsageError, match="3 records are too few for 4 ranks"):
        RankShard(records=3, lanes=4, batch_size=1, world_size=4, shuffle=shuffle, drop_last=drop_last)


def test_a_rank_with_nothing_left_for_the_last_batch_keeps_one_sample() -> None:
    longer, shorter = shards(2, records=9, lanes=2, batch_size=4, drop_last=False)
    assert [len(batch) for batch in batches(longer)] == [4, 1]
    assert [len(batch) for batch in batches(shorter)] == [3, 1]


def test_with_a_batch_size_of_one_the_odd_sample_joins_the_last_batch() -> None:
    longer, shorter = shards(2, records=5, lanes=2, batch_size=1, drop_last=False)
    assert [len(batch) for batch in batches(longer)] == [1, 2]
    assert [len(batch) for batch in batches(shorter)] == [1, 1]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"batch_size": 0}, "batch_size 0"),
        ({"rank": 2, "world_size": 2}, "rank 2 of world size 2"),
        ({"rank": -1, "world_size": 2}, "rank -1"),
        ({"world_size": 0}, "world size 0"),
        ({"lanes": 32, "world_size": 3}, "a multiple such as 33"),
        ({"lanes": 0}, "a multiple such as 32"),
        ({"batch_size": 101}, "100 records make no batch of 101"),
    ],
)
def test_a_share_that_cannot_be_is_refused(fields: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        RankShard(**{"records": 100, "lanes": 32, "batch_size": 10, **fields})  # type: ignore[arg-type]


@given(st.integers(1, 10_000))
def test_the_default_number_of_lanes_is_the_least_multiple_that_is_enough(world_size: int) -> None:
    lanes = default_lanes(world_size)
    assert lanes % world_size == 0 and lanes >= MIN_LANES
    assert lanes - world_size < MIN_LANES


def test_rank_and_world_size_come_from_arguments_then_the_environment() -> None:
    assert find_rank(1, 2, {"RANK": "5", "WORLD_SIZE": "8"}) == (1, 2)
    assert find_rank(None, None, {"RANK": "5", "WORLD_SIZE": "8"}) == (5, 8)
    assert find_rank(None, None, {}) == (0, 1)


@pytest.mark.parametrize(
    ("rank", "world_size", "environment", "message"),
    [
        (1, None, {}, "belong together"),
        (None, 2, {}, "belong together"),
        (2, 2, {}, "rank 2 of world size 2"),
        (0, 0, {}, "world size 0"),
        (None, None, {"RANK": "x", "WORLD_SIZE": "8"}, "RANK is 'x'"),
        (None, None, {"RANK": "5"}, "WORLD_SIZE None"),
        (None, None, {"WORLD_SIZE": "8"}, "RANK is None"),
        (None, None, {"RANK": "8", "WORLD_SIZE": "8"}, "rank 8"),
    ],
)
def test_ranks_that_cannot_be_are_refused(
    rank: int | None, world_size: int | None, environment: dict[str, str], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        find_rank(rank, world_size, environment)
