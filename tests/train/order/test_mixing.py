"""States of mixtures: how far each source has come, by the states of both versions."""

from __future__ import annotations

from typing import Any

import pytest

from picstore.errors import UsageError
from picstore.train.order.mixing import _taken


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
