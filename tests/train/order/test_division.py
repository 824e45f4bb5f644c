"""The division of an epoch into global batches: of one size, every sample once, no rank's part empty."""

from __future__ import annotations

from grids import examples
from hypothesis import assume, given
from hypothesis import strategies as st

from picstore.train.order.division import EvenDivision, divide

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
