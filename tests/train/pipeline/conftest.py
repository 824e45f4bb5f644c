"""The end of threads that earlier tests have left."""

from __future__ import annotations

import pytest
from own_threads import threads_left


@pytest.fixture
def no_earlier_threads() -> None:
    """For tests that count threads: an earlier one may have left a loader in a cycle, which no collection has met."""
    assert threads_left() == []
