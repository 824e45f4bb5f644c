"""States of loaders: what the state of an order must share with the order that loads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from picstore.errors import UsageError
from picstore.train.order.dealing import MAX_LANES
from picstore.train.order.position import check_position
from picstore.train.transforms.arguments import checked_integer

# Of the order, raised by any change of which records a batch has; docs/order.md, "States", tells what earlier
# versions differ in, and tests/test_versions.py fails where it was forgotten.
VERSION = 2


def check_state(state: Mapping[str, Any], own: Mapping[str, Any], names: Sequence[str], *, of: str) -> None:
    """Raise UsageError if a state differs in one of its fields from the loader or mux that loads it.

    A state of version 1 has the same order, but for the stored order on several ranks.
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
    """Read the epoch of a state and its position there, ``"samples"`` or ``"batches"``; UsageError for other values."""
    epoch, position = check_position(**{name: state.get(name) for name in ("epoch", unit)})
    return epoch, position


def read_lanes(state: Mapping[str, Any]) -> int:
    """Read the lanes of a state; UsageError for a number that no order has."""
    return checked_integer(state.get("lanes"), "lanes of the state", 1, MAX_LANES)
