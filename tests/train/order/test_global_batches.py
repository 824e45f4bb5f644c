"""Rank shards: each rank's part of the global batches; rank and world size of a process."""

from __future__ import annotations

import pytest
from grids import examples
from hypothesis import assume, given
from hypothesis import strategies as st

from picstore.errors import UsageError
from picstore.train.order.global_batches import EvenDivision, RankShard, divide
from picstore.train.order.rank_shares import MIN_LANES, default_lanes, find_rank


def batches(shard: RankShard) -> list[list[int]]:
    """Numbers of the samples in each batch of a shard."""
    return [shard.samples(k).tolist() for k in range(shard.batches)]


def shards(world_size: int, **fields: object) -> list[RankShard]:
    return [RankShard(rank=rank, world_size=world_size, **fields) for rank in range(world_size)]  # type: ignore[arg-type]


@given(
    records=st.integers(1, 400),
    world_size=st.integers(1, 20),
    batch=st.integers(1, 80),
    lanes=st.integers(1, 40),
    drop_last=st.booleans(),
)
@examples(300)
def test_ranks_share_every_global_batch_evenly_and_take_each_sample_once(
    records: int, world_size: int, batch: int, lanes: int, drop_last: bool
) -> None:
    assume(records >= (batch if drop_last else world_size) and batch >= world_size)
    ranks = shards(world_size, records=records, lanes=lanes, batch=batch, drop_last=drop_last)
    found = [batches(shard) for shard in ranks]
    taken = [sample for rank in found for each in rank for sample in each]
    assert sorted(taken) == list(range(len(taken)))
    assert records - len(taken) < batch if drop_last else len(taken) == records
    assert len({len(rank) for rank in found}) == 1
    for parts in zip(*found, strict=True):
        lengths = [len(part) for part in parts]
        assert min(lengths) > 0 and max(lengths) - min(lengths) <= 1
        assert lengths == sorted(lengths, reverse=True) or sum(lengths) != batch
        assert all(part == sorted(part) for part in parts)
    if batch % world_size == 0 and lanes % world_size == 0:
        assert max(sum(map(len, rank)) for rank in found) <= ranks[0].samples_of_rank


@given(
    records=st.integers(1, 600),
    lanes=st.integers(1, 70),
    batch=st.integers(2, 97),
    worlds=st.permutations(range(1, 98)),
)
@examples(30)
def test_every_world_size_has_the_same_global_batches(records: int, lanes: int, batch: int, worlds: list[int]) -> None:
    assume(records >= batch)
    alone = [set(each) for each in batches(RankShard(records=records, lanes=lanes, batch=batch))]
    assert alone == [set(range(k, k + batch)) for k in range(0, records - batch + 1, batch)]
    for world_size in [size for size in worlds if size <= batch][:3]:
        columns = zip(*map(batches, shards(world_size, records=records, lanes=lanes, batch=batch)), strict=True)
        assert [set().union(*column) for column in columns] == alone


@given(records=st.integers(1, 400), world_size=st.integers(1, 20), batch=st.integers(1, 80), lanes=st.integers(1, 40))
def test_weighted_means_of_ranks_have_the_global_mean_as_their_mean(
    records: int, world_size: int, batch: int, lanes: int
) -> None:
    assume(batch >= world_size and records >= world_size)
    ranks = shards(world_size, records=records, lanes=lanes, batch=batch, drop_last=False)
    for number in range(ranks[0].batches):
        parts = [shard.samples(number).tolist() for shard in ranks]
        means = [shard.weight(number) * sum(part) / len(part) for shard, part in zip(ranks, parts, strict=True)]
        whole = [sample for part in parts for sample in part]
        assert sum(means) / world_size == pytest.approx(sum(whole) / len(whole))


@given(records=st.integers(1, 200), world_size=st.integers(1, 9))
def test_with_a_lane_for_each_rank_it_reads_a_contiguous_range(records: int, world_size: int) -> None:
    assume(records >= world_size)
    for shard in shards(world_size, records=records, lanes=world_size, batch=3 * world_size, drop_last=False):
        mine = [sample // world_size for each in batches(shard) for sample in each]
        assert mine == list(range(len(mine)))
        assert all(sample % world_size == shard.rank for each in batches(shard) for sample in each)


@pytest.mark.parametrize("drop_last", [False, True])
def test_fewer_records_than_ranks_are_refused(drop_last: bool) -> None:
    with pytest.raises(UsageError, match="3 records are too few for 4 ranks"):
        RankShard(records=3, lanes=4, batch=4, world_size=4, drop_last=drop_last)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"batch": 0}, "global batch of 0"),
        ({"batch": 3, "world_size": 4}, "global batch of 3 leaves some of 4 ranks without a sample"),
        ({"rank": 2, "world_size": 2}, "rank 2 of world size 2"),
        ({"rank": -1, "world_size": 2}, "rank -1"),
        ({"world_size": 0}, "world size 0"),
        ({"lanes": 0}, "lanes is 0; give 1 to 65,536"),
        ({"batch": 101}, "100 records make no batch of 101"),
    ],
)
def test_a_share_that_cannot_be_is_refused(fields: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        RankShard(**{"records": 100, "lanes": 32, "batch": 10, **fields})  # type: ignore[arg-type]


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


KEYS = (1, 2)


def bounds(division: EvenDivision) -> list[tuple[int, int]]:
    return [(division.start(k), division.start(k + 1)) for k in range(division.batches)]


@given(samples=st.integers(1, 500), size=st.integers(1, 60), world_size=st.integers(1, 60), drop_last=st.booleans())
@examples(400)
def test_batches_follow_each_other_and_have_a_sample_for_each_rank(
    samples: int, size: int, world_size: int, drop_last: bool
) -> None:
    assume(world_size <= size and world_size <= samples)
    found = bounds(EvenDivision(samples, size, world_size, drop_last))
    assert [start for start, _ in found] == [0, *(stop for _, stop in found)][: len(found)]
    assert all(stop - start >= world_size for start, stop in found)
    if drop_last:
        assert all(stop - start == size for start, stop in found)
        assert len(found) == samples // size
    else:
        assert found[-1][1] == samples
        assert all(stop - start == size for start, stop in found[:-2])
        assert max(stop - start for start, stop in found) <= (size if size >= 2 * world_size else 2 * size - 1)


@given(samples=st.integers(1, 500), size=st.integers(2, 60), drop_last=st.booleans())
def test_no_world_size_with_two_samples_a_rank_changes_the_batches(samples: int, size: int, drop_last: bool) -> None:
    alone = bounds(EvenDivision(samples, size, 1, drop_last))
    for world_size in range(2, min(size // 2, samples) + 1):
        assert bounds(EvenDivision(samples, size, world_size, drop_last)) == alone


def test_a_last_batch_takes_over_samples_until_it_has_half_a_batch() -> None:
    assert bounds(EvenDivision(9, 8, 1, drop_last=False)) == [(0, 5), (5, 9)]
    assert bounds(EvenDivision(12, 8, 1, drop_last=False)) == [(0, 8), (8, 12)]
    assert bounds(EvenDivision(3, 8, 1, drop_last=False)) == [(0, 3)]


def test_a_small_rest_joins_the_last_batch_where_ranks_have_one_sample() -> None:
    assert bounds(EvenDivision(5, 2, 2, drop_last=False)) == [(0, 2), (2, 5)]
    assert bounds(EvenDivision(5, 2, 1, drop_last=False)) == [(0, 2), (2, 4), (4, 5)]


@given(samples=st.integers(1, 300), size=st.integers(1, 60), world_size=st.integers(1, 60), drop_last=st.booleans())
@examples(300)
def test_the_batch_of_each_sample_is_found(samples: int, size: int, world_size: int, drop_last: bool) -> None:
    assume(world_size <= size and world_size <= samples)
    division = EvenDivision(samples, size, world_size, drop_last)
    expected = [k for k, (start, stop) in enumerate(bounds(division)) for _ in range(start, stop)]
    assert [division.batch_of(sample) for sample in range(len(expected))] == expected
    for batch in range(division.batches + 5):  # a DataLoader's worker counts on
        assert division.batch_of(division.start(batch)) == batch


@given(count=st.integers(1, 400), size=st.integers(1, 40), world_size=st.integers(1, 40), drop_last=st.booleans())
@examples(300)
def test_a_bucket_of_one_size_is_divided_as_an_epoch_is(
    count: int, size: int, world_size: int, drop_last: bool
) -> None:
    assume(world_size <= size and world_size <= count)
    ends = divide(count, [size], KEYS, world_size=world_size, drop_last=drop_last).ends.tolist()
    assert ends == [stop for _, stop in bounds(EvenDivision(count, size, world_size, drop_last))]


@given(
    count=st.integers(1, 400),
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=4),
    world_size=st.integers(1, 4),
    drop_last=st.booleans(),
)
def test_all_epochs_of_several_sizes_have_the_same_number_of_batches(
    count: int, sizes: list[int], world_size: int, drop_last: bool
) -> None:
    assume(count >= world_size)
    whole = [size * world_size for size in sizes]
    epochs = [divide(count, whole, (5, key), world_size=world_size, drop_last=drop_last) for key in range(4)]
    assert len({len(epoch.ends) for epoch in epochs}) == 1
    for epoch in epochs:
        lengths = [stop - start for start, stop in zip([0, *epoch.ends.tolist()], epoch.ends.tolist(), strict=False)]
        assert all(length >= world_size for length in lengths)
        assert all(length == whole[plan] for length, plan in zip(lengths[:-2], epoch.plans.tolist(), strict=False))
        assert sum(lengths) == count or drop_last


@given(
    count=st.integers(100, 400), sizes=st.lists(st.integers(1, 12), min_size=1, max_size=4), epoch=st.integers(0, 99)
)
def test_each_full_batch_has_the_size_of_its_plan_and_every_plan_is_drawn(
    count: int, sizes: list[int], epoch: int
) -> None:
    found = divide(count, sizes, (1, epoch), world_size=1, drop_last=True)
    ends, plans = found.ends.tolist(), found.plans.tolist()
    assert [stop - start for start, stop in zip([0, *ends], ends, strict=False)] == [sizes[plan] for plan in plans]
    assert ends[-1] <= count
    other = divide(count, sizes, (1, epoch + 1), world_size=1, drop_last=True)
    assert sorted(other.plans.tolist()) == sorted(plans)  # epochs have the same ones
    if len(plans) > 30:
        assert set(plans) == set(range(len(sizes)))
