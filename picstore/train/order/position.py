"""Positions in an endless training: epochs, and the batches or samples in or before them, as states name them."""

from __future__ import annotations

from typing import Any, NamedTuple

from picstore.train.transforms.arguments import checked_integer

# Of epochs, batches and samples: times 2**20 ranks they stay within 63 bits, and a rank that takes 10,000 samples a
# second gets there after 14 years.
MAX_POSITION = 1 << 42


class Position(NamedTuple):
    """A place in a training: the number of a batch in an epoch."""

    epoch: int
    batch: int


def check_position(**numbers: Any) -> tuple[int, ...]:
    """Return numbers of epochs, batches or samples as Python's integers, in the order given.

    UsageError, with its name, for one that is no integer, negative, or more than 2**42.
    """
    return tuple(checked_integer(value, name, 0, MAX_POSITION) for name, value in numbers.items())
