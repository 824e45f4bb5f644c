"""Caffe's list of paths and labels as a source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from picstore.errors import UsageError
from picstore.prepare.sources.input_table import InputView
from picstore.prepare.sources.inputs import Input, Listing
from picstore.prepare.sources.labels import number_of_text, take_label
from picstore.prepare.sources.named_files import named_file
from picstore.prepare.sources.refused_files import require_text
from picstore.prepare.sources.samples import SourceSample, build_listing, refuse_all_elsewhere
from picstore.prepare.sources.source_file import printable
from picstore.prepare.sources.source_kinds import SourceFormat, SourceProbe
from picstore.storage.location.resolve import Location, Where, locate
from picstore.storage.location.text_files import text_lines

_SHOWN = 80  # characters of a line, in a message


def list_paths(location: Location, *, root: Where | None = None) -> Listing:
    """List the lines ``path label``; paths may hold spaces, and are relative to ``root`` or the list's folder.

    Labels are integers; or names, which ``--classes`` must number. A line without a label is an input that fails.
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
        except ValueError:
            problem = f"line {number}: not `path label`: {printable(line[:_SHOWN])!r}"
            yield SourceSample(printable(f"{location.name} line {number}"), str(location), problem=problem)
            continue
        sample = SourceSample(printable(name), str(root), extra={"label": printable(label)})
        sample.label = take_label(sample.extra, "label")
        try:
            sample.path = str(named_file(root, name))
        except UsageError as error:
            sample.problem = f"{error}; --root names another folder"
        yield sample


def require_integers(listing: Listing, location: Location) -> Listing:
    """Return the listing with integer labels; inputs with another label fail.

    UsageError if most labels are not integers: they are names, which a file of classes must number.
    """
    names = listing.classes
    found = [number_of_text(name) for name in names]
    numbers = [number if isinstance(number, int) else None for number in found]
    used = [one.label for one in listing.inputs if one.label >= 0]
    if 2 * sum(numbers[label] is None for label in used) >= len(used):
        named = next(name for name, number in zip(names, numbers, strict=True) if number is None)
        raise UsageError(f"{location}: the label {named!r} must be an integer, or a name in a file for --classes")

    def change(one: Input) -> Input:
        if one.label < 0:
            return one
        number = numbers[one.label]
        if number is not None:
            return replace(one, label=number)
        return replace(one, label=-1, problem=one.problem or f"its label {names[one.label]!r} is not an integer")

    remarks = [remark for remark in listing.remarks if not remark.startswith("labels: ")]
    return replace(listing, inputs=InputView(listing.inputs, change=change), classes=[], remarks=remarks)


def recognizes(probe: SourceProbe) -> bool:
    """Whether it is a file."""
    return not probe.is_folder


FORMAT = SourceFormat(list_paths, options=("root",), recognizes=recognizes, object_stores=True)
