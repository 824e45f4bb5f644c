"""Checks of loaders' states on resume: the version, fields that must be equal, and the range of positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from picstore.errors import UsageError
from picstore.train.order.rank_shares import MAX_LANES
from picstore.train.transforms.arguments import checked_integer

# Version of the order, raised by any change of the records in a batch. docs/order.md, "States", says how earlier
# versions differ, and tests/test_versions.py fails if a change did not raise the version.
VERSION = 2
# Largest index of an epoch, batch or sample. Multiplied by 2**20 ranks it fits into 63 bits, and a rank that takes
# 10,000 samples a second reaches it after 14 years.
MAX_POSITION = 1 << 42


class Position(NamedTuple):
    """Position in a training: an epoch, and the index of a batch in the epoch."""

    epoch: int
    batch: int


def check_position(**numbers: Any) -> tuple[int, ...]:
    """Return indices of epochs, batches or samples as Python integers, in the order given.

    Raise UsageError, with the argument's name, unless each is an integer from 0 to 2**42.
    """
    return tuple(checked_integer(value, name, 0, MAX_POSITION) for name, value in numbers.items())


def check_state(state: Mapping[str, Any], own: Mapping[str, Any], names: Sequence[str], *, of: str) -> None:
    """Raise UsageError if a state differs in a field of ``names`` from ``own``, the state of this loader or mux.

    ``of`` is "loader" or "mux". A state of version 1 with several ranks and no shuffling is refused, because such
    loaders now have another order.
    """
    version = state.get("version")
    if version not in (1, VERSION) or isinstance(version, bool):
        raise UsageError(
            f"the state is of version {version!r} of the order, this picstore goes on with versions 1 and {VERSION}; "
            "use the picstore that saved it, or begin an epoch with set_epoch"
        )
    if version == 1 and state.get("shuffle") is False and state.get("world_size") != 1 and "buckets" not in state:
        raise UsageError(
            "the state has version 1, whose stored order on several ranks began other ranks' parts elsewhere; "
            "begin the epoch anew with set_epoch"
        )
    for name in names:
        if state.get(name) != own.get(name):
            hint = "leave lanes out to take over the state's" if name == "lanes" else f"give a {of} with the same"
            raise UsageError(f"the state has {name} {state.get(name)!r}, this {of} {own.get(name)!r}; {hint}")


def position_in_epochs(state: Mapping[str, Any], unit: str) -> tuple[int, int]:
    """Return a state's epoch, and the number of samples or batches (``unit``) of this epoch that precede the state."""
    epoch, position = check_position(**{name: state.get(name) for name in ("epoch", unit)})
    return epoch, position


def read_lanes(state: Mapping[str, Any]) -> int:
    """Return the number of lanes of a state; raise UsageError if it is out of range."""
    return checked_integer(state.get("lanes"), "lanes of the state", 1, MAX_LANES)
