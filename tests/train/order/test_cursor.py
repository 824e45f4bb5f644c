"""Position of a loader: what follows an epoch, a break and a state, here and in the workers of a DataLoader."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from picstore.errors import UsageError
from picstore.train.order import cursor
from picstore.train.order.cursor import EpochCursor, Worker

HERE = Worker()


def made(*, batches: int | None = 3, whole: bool = False) -> EpochCursor:
    return EpochCursor(lambda _: batches, whole=whole)


def taken(of: EpochCursor, count: int, worker: Worker = HERE) -> list[tuple[int, int]]:
    """The batches of an iteration that is broken off after some, as a loader takes them."""
    epoch, batch = of.start_iteration(worker)
    found = []
    for _ in range(count):
        found.append((epoch, batch))
        batch += worker.step
        of.advance(epoch, batch, worker)
    return found


def peek(of: EpochCursor, count: int) -> None:
    """Take some batches of an iteration that is dropped then."""
    start = of._peeked or of.position
    taken(of, count)
    of.end_early(*start)


def in_worker(patch: pytest.MonkeyPatch, number: int, count: int = 2) -> Worker:
    patch.setattr(cursor, "get_worker_info", lambda: SimpleNamespace(id=number, num_workers=count))
    return Worker(number, count)


def test_an_iteration_goes_on_after_the_last_batch_taken() -> None:
    of = made()
    assert of.position == (0, 0)
    assert taken(of, 2) == [(0, 0), (0, 1)]
    assert of.position == (0, 2)
    assert taken(of, 1) == [(0, 2)]
    assert of.position == (1, 0)
    assert taken(of, 3) == [(1, 0), (1, 1), (1, 2)]


def test_where_iterations_are_epochs_a_break_begins_the_next() -> None:
    of = made(whole=True)
    assert taken(of, 2) == [(0, 0), (0, 1)]
    assert of.position == (0, 2)  # which a state would go on with
    assert taken(of, 0) == []
    assert of.position == (1, 0)
    assert taken(of, 3)[0] == (1, 0)
    assert taken(of, 1) == [(2, 0)]


def test_a_state_goes_on_in_the_middle_of_its_epoch_once() -> None:
    for whole in (False, True):
        of = made(whole=whole)
        of.load(4, 2)
        assert of.position == (4, 2)
        of.set_epoch(4)
        assert taken(of, 1) == [(4, 2)]
        of.set_epoch(4)
        assert taken(of, 1) == [(4, 0)]
        of.load(4, 3)  # the end
        assert of.position == (5, 0)


def test_a_dropped_look_at_one_batch_is_not_an_epoch() -> None:
    for start in ((0, 0), (4, 1)):
        for count in (0, 1):
            of = made(whole=True)
            of.load(*start)
            peek(of, count)
            assert of.position == (start[0], start[1] + count)
            assert taken(of, 1) == [start]
            assert taken(of, 1) == [(start[0] + 1, 0)]


def test_set_epoch_goes_on_in_the_middle_of_the_epoch_that_was_peeked() -> None:
    of = made(whole=True)
    of.load(4, 1)
    peek(of, 1)
    of.set_epoch(4)
    assert taken(of, 1) == [(4, 1)]
    of.load(4, 1)
    peek(of, 1)
    of.set_epoch(3)
    assert taken(of, 1) == [(3, 0)]


def test_a_second_look_two_batches_and_a_whole_epoch_are_epochs() -> None:
    of = made(whole=True)
    peek(of, 1)
    peek(of, 1)
    assert taken(of, 1) == [(1, 0)]
    of.set_epoch(5)
    peek(of, 2)
    assert taken(of, 1) == [(6, 0)]
    of = made(whole=True, batches=1)
    peek(of, 1)
    assert taken(of, 1) == [(1, 0)]


def test_a_state_of_the_position_after_a_look_goes_on_behind_it() -> None:
    of = made(whole=True)
    peek(of, 1)
    of.load(*of.position)
    assert taken(of, 1) == [(0, 1)]


def test_workers_begin_the_epoch_that_was_peeked_before() -> None:
    with pytest.MonkeyPatch.context() as patch:
        of = made(batches=9, whole=True)
        peek(of, 1)
        assert not of.in_workers
        assert taken(of, 1, in_worker(patch, 1)) == [(0, 1)]


def test_an_endless_order_in_workers_keeps_a_state_loaded_meanwhile() -> None:
    with pytest.MonkeyPatch.context() as patch:
        of = made(batches=None)
        worker = in_worker(patch, 0)
        epoch, batch = of.start_iteration(worker)
        patch.undo()
        of._publish(0, 70)  # The original loader takes a state.
        in_worker(patch, 0)
        of.advance(epoch, batch + worker.step, worker)
        assert of.start_iteration(worker) == (0, 70)


def test_another_epoch_than_the_states_begins_at_its_first_batch() -> None:
    of = made()
    of.load(4, 2)
    of.set_epoch(6)
    assert taken(of, 1) == [(6, 0)]
    with pytest.raises(UsageError):
        of.set_epoch(-1)


def test_callers_who_count_from_a_state_are_followed() -> None:
    of = made()
    of.load(4, 2)
    of.follow_epoch(0)
    assert taken(of, 1) == [(4, 2)]
    of.follow_epoch(1)
    assert taken(of, 1) == [(5, 0)]
    of = made()
    of.follow_epoch(7)
    assert taken(of, 1) == [(7, 0)]


def test_workers_take_the_batches_of_an_epoch_in_turn() -> None:
    with pytest.MonkeyPatch.context() as patch:
        of = made(batches=5, whole=True)
        assert not of.in_workers
        for epoch in range(3):
            for number in (1, 0):
                worker = in_worker(patch, number)
                count = 3 - number
                assert taken(of, count, worker) == [(epoch, number + 2 * k) for k in range(count)]
                assert of.position == (epoch, number + 2 * count)
                assert not of.in_workers
        patch.undo()
        assert of.in_workers
        of.set_epoch(7)
        assert of.position == (7, 0) and not of.in_workers


def test_a_worker_that_has_not_begun_stands_at_its_own_first_batch() -> None:
    with pytest.MonkeyPatch.context() as patch:
        of = made(batches=9)
        of.load(3, 2)
        in_worker(patch, 1)
        assert of.position == (3, 3)
        of.move_to(5, 6)
        assert of.position == (5, 6)
        in_worker(patch, 0)
        assert of.position == (3, 2)


def test_workers_of_an_endless_order_go_on_where_each_has_come() -> None:
    with pytest.MonkeyPatch.context() as patch:
        of = made(batches=None)
        for first in (0, 2):
            for number in range(2):
                assert taken(of, 1, in_worker(patch, number)) == [(0, first + number)]


def test_workers_begin_after_the_batches_that_were_taken_without_them() -> None:
    for whole, expected in ((False, (0, 3)), (True, (1, 1))):
        with pytest.MonkeyPatch.context() as patch:
            of = made(batches=9, whole=whole)
            assert len(taken(of, 2)) == 2
            assert taken(of, 1, in_worker(patch, 1)) == [expected]
