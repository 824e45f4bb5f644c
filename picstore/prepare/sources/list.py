"""Caffe's list of paths and labels."""

from __future__ import annotations

from pathlib import Path

from picstore.errors import UsageError
from picstore.prepare.inputs import Input, Listing, printable
from picstore.prepare.sources.kind import Glance, Source


def list_source(path: Path, *, root: Path | None = None) -> Listing:
    """``path label`` a line; the path may hold spaces, the label is an integer.

    Args:
        path: the list.
        root: where its paths begin; by default where the list lies.
    """
    root = path.parent if root is None else root
    inputs = []
    text = path.read_bytes().decode("utf-8", "surrogateescape")
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            name, label = line.strip().rsplit(None, 1)
            inputs.append(Input(printable(name), int(label), str(root / name)))
        except ValueError as error:
            raise UsageError(f"{printable(str(path))} line {number}: not `path label`: {printable(line)!r}") from error
    return Listing("list", inputs, [])


def looks_like(glance: Glance) -> bool:
    """Any file that no other source knows."""
    return not glance.is_folder


SOURCE = Source(list_source, options=("root",), guess=looks_like)
