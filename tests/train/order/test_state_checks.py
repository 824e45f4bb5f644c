"""States: which of them a loader goes on with, and what it says of the others."""

from __future__ import annotations

from typing import Any

import pytest

from picstore.errors import UsageError
from picstore.train.order.rank_shares import MAX_LANES
from picstore.train.order.state_checks import VERSION, check_state, position_in_epochs, read_lanes

OWN = {"version": VERSION, "seed": 3, "lanes": 4, "shuffle": False, "world_size": 2}


def check(**changes: Any) -> None:
    state = {name: value for name, value in {**OWN, **changes}.items() if value is not None}
    check_state(state, OWN, ["seed", "lanes"], of="loader")


@pytest.mark.parametrize("version", [None, 0, VERSION + 1, True, "2", -1])
def test_states_of_other_versions_are_refused(version: Any) -> None:
    with pytest.raises(UsageError, match="of the order, this picstore goes on with versions 1 and"):
        check(version=version)


def test_states_of_version_1_differ_in_stored_order_on_several_ranks_only() -> None:
    with pytest.raises(UsageError, match="stored order on several ranks"):
        check(version=1)
    with pytest.raises(UsageError, match="stored order on several ranks"):
        check(version=1, world_size=None)
    check()
    check(version=1, shuffle=True)
    check(version=1, shuffle=None)  # of a mux
    check(version=1, world_size=1)
    check(version=1, buckets=[1])


@pytest.mark.parametrize(("name", "hint"), [("seed", "give a loader with the same"), ("lanes", "leave lanes out")])
def test_a_field_that_differs_is_named_with_both_values(name: str, hint: str) -> None:
    with pytest.raises(UsageError, match=f"the state has {name} 9, this loader {OWN[name]}; {hint}"):
        check(**{name: 9})


def test_positions_are_an_epoch_and_a_number_from_zero() -> None:
    assert position_in_epochs({"epoch": 2, "samples": 7, "batches": 1}, "samples") == (2, 7)
    for state in ({"epoch": 2}, {"samples": 1}, {"epoch": -1, "samples": 1}, {"epoch": 1, "samples": 0.5}):
        with pytest.raises(UsageError):
            position_in_epochs(state, "samples")


def test_lanes_of_a_state_are_those_that_an_order_has() -> None:
    assert [read_lanes({"lanes": lanes}) for lanes in (1, MAX_LANES)] == [1, MAX_LANES]
    for lanes in (0, MAX_LANES + 1, None, "4"):
        with pytest.raises(UsageError, match="lanes of the state"):
            read_lanes({"lanes": lanes})
