"""States of mixtures: how far each source has come, by the states of both versions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from picstore.errors import UsageError
from picstore.train.order.mux_order import MuxSchedule, _taken


@pytest.mark.parametrize("world_size", [1, 4])
def test_a_state_of_version_1_counts_batches_of_one_rank(world_size: int) -> None:
    state = {"version": 1, "counts": [1, 2], "samples": 7, "world_size": world_size}
    assert _taken(state, 2) == ([2 * world_size, 4 * world_size], 1)


def test_a_state_of_version_2_names_what_each_source_gave() -> None:
    assert _taken({"version": 2, "counts": [1, 2], "taken": [5, 9], "read": 3}, 2) == ([5, 9], 3)


@pytest.mark.parametrize("wrong", [{"counts": [0, 0]}, {"counts": [1]}, {"world_size": 0}, {"samples": -1}])
def test_states_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        _taken({"version": 1, "counts": [1, 2], "samples": 7, "world_size": 4, **wrong}, 2)


@st.composite
def schedules(draw: st.DrawFn) -> MuxSchedule:
    sources = draw(st.integers(1, 4))
    steps = sorted({0, *draw(st.lists(st.integers(1, 40), max_size=4))})
    counts = st.lists(st.integers(0, 5), min_size=sources, max_size=sources).filter(any)
    return MuxSchedule(tuple(steps), tuple(tuple(draw(counts)) for _ in steps))


@given(schedules())
def test_what_was_taken_is_the_sum_of_the_counts_before(schedule: MuxSchedule) -> None:
    taken = [0] * len(schedule.counts[0])
    for batch in range(60):
        assert schedule.taken(batch) == tuple(taken)
        assert schedule.batch_after(taken) == batch
        piece = max(k for k, step in enumerate(schedule.steps) if step <= batch)
        assert schedule.counts_at(batch) == schedule.counts[piece]
        taken = [one + other for one, other in zip(taken, schedule.counts[piece], strict=True)]


@given(schedules(), st.lists(st.integers(0, 200), min_size=4, max_size=4))
def test_samples_that_no_batch_is_after_have_no_batch(schedule: MuxSchedule, drawn: list[int]) -> None:
    taken = tuple(drawn[: len(schedule.counts[0])])
    every = [schedule.taken(batch) for batch in range(sum(taken) + 2)]
    assert schedule.batch_after(taken) == (every.index(taken) if taken in every else None)


def test_counts_are_multiplied_in_all_batches() -> None:
    schedule = MuxSchedule((0, 10), ((3, 5), (0, 9))).times(4)
    assert schedule == MuxSchedule((0, 10), ((12, 20), (0, 36)))
    assert MuxSchedule.constant([2, 1]).taken(7) == (14, 7)


def test_a_batch_far_ahead_is_found_in_no_time() -> None:
    schedule = MuxSchedule((0, 10**9), ((3, 5), (0, 9)))
    assert schedule.taken(10**12) == (3 * 10**9, 5 * 10**9 + 9 * (10**12 - 10**9))
    assert schedule.batch_after(schedule.taken(10**12)) == 10**12


@pytest.mark.parametrize(
    ("steps", "counts", "message"),
    [
        ((0, 5, 5), ((1,), (2,), (3,)), r"steps \[0, 5, 5\]"),
        ((0, 7, 5), ((1,), (2,), (3,)), "ascending order"),
        ((0, 7), ((1, 2), (0, 0)), r"counts \[0, 0\] at step 7"),
        ((0,), ((1, -1),), r"counts \[1, -1\] at step 0"),
    ],
)
def test_steps_and_counts_that_cannot_be_are_refused(
    steps: tuple[int, ...], counts: tuple[tuple[int, ...], ...], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        MuxSchedule(steps, counts)
