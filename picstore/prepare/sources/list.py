"""Caffe's list of paths and labels."""

from __future__ import annotations

from picstore.errors import UsageError
from picstore.prepare.sources.base import Source, SourceProbe
from picstore.prepare.sources.inputs import Input, Listing, printable
from picstore.storage.location.resolve import Location, Where, locate


def list_source(place: Location, *, root: Where | None = None) -> Listing:
    """``path label`` a line; the path may hold spaces, the label is an integer.

    Args:
        place: the list.
        root: where its paths begin; by default where the list lies.
    """
    top = place.parent if root is None else locate(root)
    inputs = []
    for number, raw in enumerate(place.lines(), start=1):
        line = raw.decode("utf-8", "surrogateescape").removesuffix("\n")
        if not line.strip():
            continue
        try:
            name, label = line.strip().rsplit(None, 1)
            inputs.append(Input(printable(name), int(label), str(top / name)))
        except ValueError as error:
            raise UsageError(f"{printable(str(place))} line {number}: not `path label`: {printable(line)!r}") from error
    return Listing("list", inputs, [])


def looks_like(glance: SourceProbe) -> bool:
    """Any file that no other source knows."""
    return not glance.is_folder


SOURCE = Source(list_source, options=("root",), guess=looks_like, stores=True)
