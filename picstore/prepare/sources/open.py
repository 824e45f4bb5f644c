"""Open a source: choose its kind, split and options, and list its inputs in a fixed order.

An input has a label and names bytes: a file, a byte range of a file, or a row that a reader finds. Listing reads no
image. An input's position in the list is its id. Each kind is defined by a module of ``picstore.prepare.sources`` or
by an entry point of the group ``picstore.sources`` in any installed package.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from picstore.errors import NotADataset, UsageError, counted
from picstore.prepare.engine.worker_processes import Engine
from picstore.prepare.sources.folder import refuse_class_splits
from picstore.prepare.sources.input_table import InputView
from picstore.prepare.sources.inputs import Input, Listing, read_input, relabel_input
from picstore.prepare.sources.source_file import printable
from picstore.prepare.sources.source_kinds import (
    GENERAL,
    KINDS,
    SourceFormat,
    SourceProbe,
    load_format,
    local_path,
    recognize,
)
from picstore.prepare.sources.splits import no_split, refuse_splits, require_split, split_of_word
from picstore.prepare.sources.tables_and_lists import require_integers
from picstore.storage.annotations import check_targets
from picstore.storage.class_names import JoinedNames, from_lines
from picstore.storage.location.resolve import Location, Where, locate
from picstore.storage.location.text_files import text_of_file

__all__ = ["KINDS", "Input", "Listing", "SourceFormat", "SourceProbe", "open_source", "read_input"]

_WITH_TARGETS = ("coco", "voc", "yolo", "index")  # kinds whose formats define how targets such as boxes are written


def open_source(
    where: Where,
    *,
    kind: str = "auto",
    classes: Where | None = None,
    targets: str | None = None,
    engine: Engine | None = None,
    maps: Sequence[str] = (),
    **options: object,
) -> Listing:
    """List the inputs of a source.

    Args:
        where: the source. Sources, and files that options name, are local or in an object store.
        kind: name in ``KINDS`` or of an entry point, or ``"auto"``: coco if ``annotations`` is given, else the first
            kind that recognizes the source.
        classes: file of class names in the order of labels, one per line
            (:func:`picstore.storage.class_names.from_lines`).
        targets: how boxes, polygons and keypoints are written; see ``annotations.check_targets``. If None, their fields
            are metadata, unless the source's format defines their form.
        maps: names of fields to keep as attachments, even if the kind leaves out other fields of their type.
        engine: engine that lists parts of a large source in other processes; None to use this process only.
        options: options of the kind: ``root``, ``synsets``, ``annotations``, ``image_field``, ``label_field``,
            ``split``. None stands for an option's default.

    Raises:
        NotADataset: the source does not exist, or holds no images.
        UsageError: an option belongs to another kind, the source is not of ``kind``, or ``kind`` cannot be read from an
            object store.
        MissingDependency: the library that reads the source is not installed.
        Damage: the source is too damaged to list anything.
        PicstoreError: an entry point cannot be loaded, or an object store cannot be reached.
    """
    forms = "" if targets is None else check_targets(targets)
    location = locate(where)
    if not location.exists() and "{" not in location.name:
        raise NotADataset(f"{location} does not exist")
    given = {name: value for name, value in options.items() if value is not None}
    if kind == "auto" and "annotations" in given:
        kind = "coco"
    location = _enter_split(location, kind, given, has_classes=classes is not None)
    if kind == "auto":
        kind = recognize(location)
    format_ = load_format(kind)
    _check_options(given, format_, kind, location)
    if format_.takes_maps:
        given["maps"] = tuple(maps)
    if format_.takes_engine:
        given["engine"] = engine
    listing = format_.list_inputs(location if format_.object_stores else local_path(location), **given)
    if not listing.inputs:
        left_out = "".join(f"; {remark}" for remark in listing.remarks)
        raise NotADataset(f"{location} holds no images (read as source {listing.kind}){left_out}")
    listing = _with_targets(listing, forms)
    if classes is not None:
        return _with_classes(listing, locate(classes))
    if kind == "folder":
        refuse_class_splits(listing, location)
    return require_integers(listing, location) if kind == "list" and listing.classes else listing


def _check_options(given: Mapping[str, object], format_: SourceFormat, kind: str, location: Location) -> None:
    for name in given:
        if name in format_.options:
            continue
        if name == "split":
            raise no_split(str(given[name]), (), location)
        belongs = " or ".join(other for other in sorted(KINDS) if name in load_format(other).options)
        option = f"--{name.replace('_', '-')}"
        raise UsageError(f"{option} belongs to the source {belongs}; {location} is read as {kind}; give --source")


def _enter_split(location: Location, kind: str, options: dict[str, object], *, has_classes: bool) -> Location:
    """Return the sub-folder of ``location`` for the option ``split``, and delete ``split`` from ``options``.

    Return ``location`` itself if the options name no split, if it has no folders of splits, or if it is recognized as a
    source. Raise UsageError if the options name no split, and ``location`` has several folders, all named like splits;
    but if the user gave class names (``has_classes``), folders of images are classes.
    """
    probe = SourceProbe.inspect(location)
    splits = [name for name in probe.folders if split_of_word(name)]
    split = options.get("split")
    if not splits or kind not in ("auto", *KINDS) or kind in ("coco", "index"):
        return location
    found = recognize(location) if kind == "auto" else kind
    recognizes = load_format(found).recognizes
    if found not in GENERAL and recognizes is not None and recognizes(probe):
        # The location itself is a source, such as an index or shards that lie beside folders of splits.
        return location
    if split is not None:
        del options["split"]
        return location / require_split(str(split), splits, location)
    of_images = found == "folder" and recognize(location / splits[0]) == "folder"
    if len(splits) > 1 and len(splits) == len(probe.folders) and not (has_classes and of_images):
        refuse_splits(splits, location)
    return location


def _with_targets(listing: Listing, forms: str) -> Listing:
    """Return the listing with targets of the given ``forms``; without forms, add remarks on fields such as boxes."""
    if forms:
        if listing.kind in _WITH_TARGETS:
            raise UsageError(f"the source {listing.kind} says where its targets are; leave out --targets")
        inputs = InputView(listing.inputs, change=lambda one: replace(one, targets=forms))
        return replace(listing, inputs=inputs, targets=forms)
    remarks = [
        f"the field {name!r} of {counted(count, 'sample')} is kept as metadata, which no resizing moves; if it "
        "describes objects, name its form by --targets"
        for name, count in sorted(listing.alike.items())
        if name != "box_labels"
    ]
    return replace(listing, remarks=[*listing.remarks, *remarks])


def _with_classes(listing: Listing, classes: Location) -> Listing:
    """Return the listing with the class names of a file; if the source names its labels, number them as in the file."""
    try:
        read = from_lines(text_of_file(b"".join(classes.lines()), "surrogateescape"))
        names = [printable(name) for name in read]
        joined = JoinedNames(names)
        labels = joined.add(listing.classes)
    except UsageError as error:
        raise UsageError(f"{classes}: {error}") from error
    if unknown := joined.names[len(names) :]:
        raise UsageError(f"{counted(len(unknown), 'class', 'are')} not in {classes}, the first is {unknown[0]!r}")
    inputs = listing.inputs
    if labels != tuple(range(len(labels))):
        inputs = InputView(inputs, change=partial(relabel_input, labels=labels))
    elif not labels:
        outside = next((one.label for one in inputs if not -1 <= one.label < len(names)), None)
        if outside is not None:
            raise UsageError(f"{classes} has {len(names):,} names, but there is the label {outside}; give it a name")
    return replace(listing, inputs=inputs, classes=names)
