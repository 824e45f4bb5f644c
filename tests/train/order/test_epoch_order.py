"""The plan: exactly once, the same on every rank, a function of seed, epoch and manifest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from picstore import rng
from picstore.train.order import epoch_order
from picstore.train.order.epoch_order import EpochOrder

COUNTS = st.lists(st.integers(1, 9), min_size=1, max_size=30)
SEED = st.integers(0, 2**64 - 1)


@pytest.fixture(autouse=True, params=[3, 1 << 13])
def _part(request: pytest.FixtureRequest) -> Any:
    """Containers that are sorted at a time: few, or all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(epoch_order, "_PART", request.param)
        yield


def addresses(epoch: EpochOrder, numbers: np.ndarray | None = None) -> list[tuple[int, int]]:
    """Container and record of samples, all of the epoch by default."""
    samples = epoch.locate(np.arange(epoch.records) if numbers is None else numbers)
    return list(zip(samples.container.tolist(), samples.record.tolist(), strict=True))


def stored(counts: list[int]) -> list[tuple[int, int]]:
    return [(container, record) for container, count in enumerate(counts) for record in range(count)]


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
def test_end_is_the_last_sample_that_a_lane_takes_from_a_container(
    counts: list[int], seed: int, lanes: int, shuffle: bool
) -> None:
    epoch = EpochOrder(counts, seed=seed, epoch=0, lanes=lanes, shuffle=shuffle)
    samples = epoch.locate(np.arange(epoch.records))
    uses = list(zip(samples.lane.tolist(), samples.container.tolist(), strict=True))
    final = {use: g for g, use in enumerate(uses)}
    assert samples.end.tolist() == [final[use] for use in uses]


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
    located = epoch.locate(np.arange(epoch.records))
    assert epoch.find(located.container, located.record).tolist() == list(range(epoch.records))


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
