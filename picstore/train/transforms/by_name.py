"""Transforms by name: the classes, and transforms of configuration files."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from picstore import _public
from picstore.errors import UsageError

_NOT_IN_CONFIGURATIONS = {"Buckets", "PerImage", "Progressive", "Sequences", "Views"}  # they take functions or lists
TRANSFORMS: Mapping[str, Any] = {
    name: getattr(importlib.import_module(f"picstore.{module}"), name)
    for name, module in _public.modules_by_name(_public.TRANSFORMS).items()
    if name not in _NOT_IN_CONFIGURATIONS
}


def transform_from_config(table: Mapping[str, Any]) -> Any:
    """Make a transform from a configuration: a table of its ``name`` and arguments, ``transforms`` being such tables.

    Raises:
        UsageError: there is no such transform, or it does not take these arguments.
    """
    arguments = dict(table)
    name = arguments.pop("name", None)
    if isinstance(arguments.get("transforms"), list):  # of a container
        arguments["transforms"] = [transform_from_config(each) for each in arguments["transforms"]]
    if not isinstance(name, str) or name not in TRANSFORMS:
        raise UsageError(f"unknown transform {name!r}; possible are {', '.join(TRANSFORMS)}")
    try:
        return TRANSFORMS[name](**arguments)
    except TypeError as error:
        raise UsageError(f"{name} does not accept {arguments}: {error}") from error
