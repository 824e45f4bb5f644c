"""Caffe's list of paths and labels as a source."""

from __future__ import annotations

from collections.abc import Iterator

from picstore.errors import UsageError
from picstore.prepare.sources.base import SourceFormat, SourceProbe
from picstore.prepare.sources.foreign_files import require_text
from picstore.prepare.sources.inputs import Listing
from picstore.prepare.sources.labels import take_label
from picstore.prepare.sources.named_files import named_file
from picstore.prepare.sources.samples import SourceSample, build_listing, refuse_all_elsewhere
from picstore.prepare.sources.source_file import printable
from picstore.storage.location.resolve import Location, Where, locate
from picstore.storage.location.text_files import text_lines

_SHOWN = 80  # characters of a line, in a message


def list_paths(location: Location, *, root: Where | None = None) -> Listing:
    """List the lines ``path label``; paths may hold spaces, and are relative to ``root`` or the list's folder.

    Labels are integers; or names, which ``--classes`` must number.
    """
    require_text(location)
    base = location.parent if root is None else locate(root)
    return refuse_all_elsewhere(build_listing("list", _samples(location, base), where=location), location)


def _samples(location: Location, root: Location) -> Iterator[SourceSample]:
    for number, line in enumerate(text_lines(location), start=1):
        if not line.strip():
            continue
        try:
            name, label = line.strip().rsplit(None, 1)
        except ValueError as error:
            what = f"not `path label`: {printable(line[:_SHOWN])!r}"
            raise UsageError(f"{printable(str(location))} line {number}: {what}") from error
        sample = SourceSample(printable(name), str(root), extra={"label": printable(label)})
        sample.label = take_label(sample.extra, "label")
        try:
            sample.path = str(named_file(root, name))
        except UsageError as error:
            sample.problem = f"{error}; --root names another folder"
        yield sample


def recognizes(probe: SourceProbe) -> bool:
    """Whether it is a file."""
    return not probe.is_folder


FORMAT = SourceFormat(list_paths, options=("root",), recognizes=recognizes, object_stores=True)
