"""How ranks share lanes and global batches, against the rule of docs/order.md, sample by sample."""

from __future__ import annotations

from fractions import Fraction
from math import gcd

import numpy as np
import pytest
from grids import examples
from hypothesis import given
from hypothesis import strategies as st

from picstore.errors import UsageError
from picstore.train.order.rank_shares import RankShares, divide_samples, keep_own


def readers_of(lane: int, lanes: int, ranks: int, turn: int = 0) -> set[int]:
    """The ranks that read a lane, by the rule."""
    shared = lanes % ranks
    if lane < lanes - shared:
        return {(lane + turn) % ranks}
    low, part = lane - (lanes - shared), Fraction(shared, ranks)
    return {rank for rank in range(ranks) if rank * part < low + 1 and (rank + 1) * part > low}


@examples(200)
@given(st.data())
def test_lanes_of_one_reader_give_it_samples_up_to_its_share_in_each_batch(data: st.DataObject) -> None:
    ranks = st.integers(0, data.draw(st.sampled_from((1, 3, 300))))
    readers = data.draw(st.lists(st.tuples(ranks, st.integers(0, 1), st.integers(0, 2)), max_size=30))
    first, more, group = (np.array(column, np.int64) for column in zip(*readers, strict=True)) if readers else [
        np.zeros(0, np.int64)
    ] * 3  # fmt: skip
    share = data.draw(st.integers(0, 4))
    left: dict[tuple[int, int], int] = {}
    expected = []
    for rank, several, batch in readers:
        key = batch, rank
        gets = not several and left.setdefault(key, share) > 0
        left[key] = left.get(key, share) - gets
        expected.append(rank if gets else -1)
    assert keep_own(first, first + more, np.full(len(first), share), group).tolist() == expected


def deal_slowly(lanes: list[int], count: int, ranks: int, turns: list[int], first: int = 0) -> list[int]:
    """Deal the samples of a global batch one after the other, by the rule."""
    left = [len(lanes) // ranks + ((rank - first) % ranks < len(lanes) % ranks) for rank in range(ranks)]
    readers = [readers_of(lane, count, ranks, turn) for lane, turn in zip(lanes, turns, strict=True)]
    owners: list[int | None] = [None] * len(lanes)

    def give(sample: int, candidates: list[int]) -> None:
        for rank in candidates:
            if owners[sample] is None and left[rank]:
                owners[sample] = rank
                left[rank] -= 1

    for sample, own in enumerate(readers):
        if len(own) == 1:
            give(sample, list(own))
    for lane in range(count - count % ranks, count):
        for sample in range(len(lanes)):
            if lanes[sample] == lane:
                give(sample, sorted(readers[sample]))
    for sample in range(len(lanes)):
        give(sample, list(range(ranks)))
    return [owner for owner in owners if owner is not None]


@given(
    lanes=st.integers(1, 40),
    ranks=st.integers(1, 20),
    start=st.integers(0, 200),
    size=st.integers(0, 120),
    records=st.integers(1, 200),
    first=st.integers(0, 9),
)
@examples(400)
def test_samples_are_dealt_by_the_rule(lanes: int, ranks: int, start: int, size: int, records: int, first: int) -> None:
    rank_shares, numbers = RankShares(lanes, ranks), np.arange(start, start + size)
    found = rank_shares.deal(*rank_shares.lanes_of(numbers, records), first=first)
    epochs = [divmod(t, records) for t in range(start, start + size)]
    lane, turns = [index % lanes for _, index in epochs], [epoch * records % ranks for epoch, _ in epochs]
    assert found.tolist() == deal_slowly(lane, lanes, ranks, turns, first)
    for rank in range(ranks):
        mine = rank_shares.find_samples(rank, start, start + size, records=records, first=first)
        assert mine.tolist() == numbers[found == rank].tolist()


@given(lanes=st.integers(1, 80), ranks=st.integers(1, 80))
def test_ranks_read_whole_lanes_and_parts_of_two_at_most(lanes: int, ranks: int) -> None:
    rank_shares = RankShares(lanes, ranks)
    read = [[lane for lane in range(lanes) if rank_shares.reads(rank, np.array([lane]))[0]] for rank in range(ranks)]
    expected = [readers_of(lane, lanes, ranks) for lane in range(lanes)]
    assert [{rank for rank in range(ranks) if lane in read[rank]} for lane in range(lanes)] == expected
    assert [rank_shares.count_lanes(rank) for rank in range(ranks)] == [len(mine) for mine in read]
    assert all(len([lane for lane in mine if len(expected[lane]) > 1]) <= 2 for mine in read)
    assert sum(map(len, read)) == lanes + (ranks - gcd(lanes, ranks) if lanes % ranks else 0)


@given(lanes=st.integers(1, 64), ranks=st.integers(2, 97), size=st.integers(1, 40))
def test_shares_of_a_rank_count_are_filled_exactly(lanes: int, ranks: int, size: int) -> None:
    rank_shares = RankShares(lanes, ranks)
    for start in (0, 17, 1000):
        owners = rank_shares.deal(*rank_shares.lanes_of(np.arange(start, start + size * ranks), 10**6))
        assert np.bincount(owners, minlength=ranks).tolist() == [size] * ranks


@pytest.mark.parametrize("ranks", [3, 5, 6, 7, 48, 96])
def test_few_records_are_read_outside_of_a_ranks_lanes(ranks: int) -> None:
    lanes, size = 64 if ranks > 32 else 32, 16 * ranks
    rank_shares, alone, batches = RankShares(lanes, ranks), 0, 40
    for batch in range(batches):
        lane, turn = rank_shares.lanes_of(np.arange(batch * size, (batch + 1) * size), 10**9)
        owners, (first, last) = rank_shares.deal(lane, turn), rank_shares.find_readers(lane, turn)
        alone += int(((owners < first) | (owners > last)).sum())
    readers = sum(map(rank_shares.count_lanes, range(ranks)))
    assert readers / lanes + alone / (batches * size) <= (lanes + ranks) / lanes


def test_shares_differ_by_one_at_most_and_begin_with_any_rank() -> None:
    assert divide_samples(10, np.arange(4), 4).tolist() == [3, 3, 2, 2]
    assert divide_samples(10, np.arange(4), 4, first=3).tolist() == [3, 2, 2, 3]


@pytest.mark.parametrize("lanes", [0, -1, (1 << 16) + 1])
def test_a_number_of_lanes_out_of_bounds_is_refused(lanes: int) -> None:
    with pytest.raises(UsageError, match=rf"lanes is {lanes}; give 1 to 65,536"):
        RankShares(lanes)


def test_ranks_are_told_apart_however_many_there_are() -> None:
    for ranks, expected in (([0, 256, 0], [0, 256, -1]), ([1], [1])):
        first = np.array(ranks)
        assert keep_own(first, first, np.ones(len(first), dtype=np.int64)).tolist() == expected
