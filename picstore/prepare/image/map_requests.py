"""Requests to store maps (values on pixels, such as depth), as ``depth=../depth/*.png,unit=m`` of ``--map``."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from picstore.arrays import Array
from picstore.errors import UsageError
from picstore.storage.class_names import checked_names
from picstore.storage.format.maps import MapSpec

_TEXT = re.compile(r"[^,=:]+")
_FIELDS: dict[str, Callable[[str], Any]] = {
    "dtype": str,
    "channels": int,
    "scale": float,
    "unit": str,
    "interpolation": str,
    "fill": float,
    "invalid": float,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MapRequest:
    """User's request to store a map of a given name with each image.

    Attributes:
        files: path of a map file relative to its image's folder, with ``*`` for the image's file name without suffix;
            empty if the map is a field of the source.
        given: fields of :class:`MapSpec` that the user sets. ``dtype`` and ``channels``, if not set, are those of the
            source's first map.
    """

    name: str
    files: str
    given: Mapping[str, Any]

    @classmethod
    def parse(cls, text: str) -> MapRequest:
        """Parse ``depth`` or ``depth=../depth/*.png,scale=0.001,unit=m``; raise UsageError if the text is malformed."""
        head, *rest = text.split(",")
        name, _, files = head.partition("=")
        if not _TEXT.fullmatch(name) or (files and files.count("*") != 1):
            raise UsageError(f"map {text!r}: begin with a name, or with name=PATTERN that has one * (../depth/*.png)")
        given = dict(_parse_field(each, text) for each in rest)
        if math.isnan(given.get("invalid", 0.0)):
            del given["invalid"]  # Omit the field: NaN stands for a missing value even without it.
        request = cls(name=name, files=files, given=given)
        request.specify(np.empty((1, 1, given.get("channels", 1)), given.get("dtype", "float32")))
        return request

    def specify(self, first: Array) -> MapSpec:
        """Return the specification of all maps of this name; raise UsageError if :class:`MapSpec` rejects a field.

        ``first``, the first map, (h, w, channels), gives the dtype and number of channels that the user did not set.
        """
        fill = self.given.get("fill", self.given.get("invalid", 0.0))
        found = {"dtype": first.dtype.name, "channels": first.shape[2]}
        try:
            return MapSpec(**{**found, **self.given, "fill": fill})
        except UsageError as error:
            raise UsageError(f"map {self.name}: {error}") from error


def _parse_field(field: str, text: str) -> tuple[str, Any]:
    key, _, value = field.partition("=")
    read: Callable[[str], Any] | None = _FIELDS.get(key)
    try:
        if read is not None:
            return key, read(value)
    except ValueError:
        pass
    raise UsageError(f"map {text!r}: {field!r} is not one of {', '.join(_FIELDS)}, with = and a value")


def parse_requests(texts: Any) -> list[MapRequest]:
    """Parse the argument ``maps`` of a conversion; raise UsageError if an item is malformed or a name occurs twice."""
    requests = [MapRequest.parse(text) for text in checked_names(texts, "maps")]
    names = [each.name for each in requests]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"map {twice[0]!r} is given twice; leave one out")
    return requests
