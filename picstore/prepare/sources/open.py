"""Open a source: recognize its kind and list its inputs in a fixed order.

An input names bytes (a file, a byte range of one, or a row that a reader finds) and a label; listing reads no image.
Its position in the list is its id. Each kind is a module of ``picstore.prepare.sources``, or an entry point of the
group ``picstore.sources`` in any installed package.
"""

from __future__ import annotations

import importlib
from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points

from picstore.errors import NotADataset, PicstoreError, UsageError
from picstore.prepare.engine.processes import Engine
from picstore.prepare.sources.base import SourceFormat, SourceProbe, local_path
from picstore.prepare.sources.folder import refuse_parts
from picstore.prepare.sources.input_table import InputView
from picstore.prepare.sources.inputs import Input, Listing, read_input
from picstore.prepare.sources.source_file import printable
from picstore.storage.location.local import Folder
from picstore.storage.location.resolve import Location, Where, locate

__all__ = ["KINDS", "Input", "Listing", "SourceFormat", "SourceProbe", "open_source", "read_input"]

_WITH_MAGIC = (
    "index",
    "mds",
    "litdata",
    "ffcv",
    "parquet",
    "hdf5",
    "lmdb",
    "recordio",
    "tfrecord",
    "picpoc",
)  # or an index
_GENERAL = ("folder", "list")  # any folder and any file
# In the order of recognition; entry points of other packages are tried before _GENERAL.
KINDS = (*_WITH_MAGIC, "table", "webdataset", "imagenet", "coco", *_GENERAL)


def open_source(
    where: Where, *, kind: str = "auto", classes: Where | None = None, engine: Engine | None = None, **options: object
) -> Listing:
    """List a source.

    Args:
        where: the source, local or in an object store, as may be the files that options name.
        kind: one of KINDS or the name of an entry point; or ``"auto"``: the first kind that recognizes it. The option
            ``annotations`` selects coco.
        classes: a file of class names, one per line, in the order of labels. It names integer labels, or reorders
            labels that have names.
        engine: runs tasks that list parts of a large source; None for no tasks.
        options: the kind's own, None for the default: ``root``, ``synsets``, ``annotations``, ``image_field``,
            ``label_field``.

    Raises:
        NotADataset: the source does not exist, or it holds no images.
        UsageError: an option belongs to another kind, the source is not of its kind, or its kind is read from local
            files only.
        MissingDependency: the library that reads it is not installed.
        Damage: it is of its kind, but damaged so that nothing can be listed.
        PicstoreError: an entry point cannot be loaded, or an object store cannot be reached.
    """
    location = locate(where)
    if not location.exists() and "{" not in location.name:
        raise NotADataset(f"{location} does not exist")
    given = {name: value for name, value in options.items() if value is not None}
    if kind == "auto":
        kind = "coco" if "annotations" in given else _recognize(location)
    format_ = _load_format(kind)
    for name in given:
        if name not in format_.options:
            belongs = " or ".join(other for other in sorted(KINDS) if name in _load_format(other).options)
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"{option} belongs to the source {belongs}; {location} is read as {kind}; give --source")
    if format_.takes_engine:
        given["engine"] = engine
    listing = format_.list_inputs(location if format_.object_stores else local_path(location), **given)
    if not listing.inputs:
        raise NotADataset(f"{location} holds no images (read as source {listing.kind})")
    if classes is None and kind == "folder":
        refuse_parts(listing, location)
    if classes is None and kind == "list" and listing.classes:
        named = next(name for name in listing.classes if not name.lstrip("+-").isdecimal())
        raise UsageError(f"{location}: the label {named!r} must be an integer, or a name in a file for --classes")
    return listing if classes is None else _with_classes(listing, locate(classes))


def _recognize(location: Location) -> str:
    probe = SourceProbe.inspect(location)
    for kind in (*KINDS[: -len(_GENERAL)], *sorted(_plugins()), *_GENERAL):
        format_ = _load_format(kind)
        if kind not in KINDS and not format_.object_stores and not isinstance(location, Folder):
            continue  # a plug-in for local files may use the probe's path
        if format_.recognizes is not None and format_.recognizes(probe):
            return kind
    raise NotADataset(f"{location} is nothing that can be converted")


def _load_format(kind: str) -> SourceFormat:
    if kind in KINDS:
        found = importlib.import_module(f"picstore.prepare.sources.{kind}").FORMAT
    else:
        plugins = _plugins()
        if kind not in plugins:
            raise UsageError(f"no source is called {kind}; there are auto, {', '.join(sorted({*KINDS, *plugins}))}")
        try:
            found = plugins[kind].load()
        except Exception as error:  # another package's import can raise anything
            raise PicstoreError(f"the source {kind} ({plugins[kind].value}) cannot be loaded: {error!r}") from error
    return found if isinstance(found, SourceFormat) else SourceFormat(found)


def _plugins() -> dict[str, EntryPoint]:
    """Entry points of other packages by name, not loaded yet."""
    return {point.name: point for point in entry_points(group="picstore.sources")}


def _with_classes(listing: Listing, classes: Location) -> Listing:
    """Give a listing the class names of a file's lines; labels that have names follow the file's order."""
    lines = [line.strip() for line in b"".join(classes.lines()).decode("utf-8", "surrogateescape").splitlines()]
    names = [printable(line) for line in lines if line]
    if unknown := sorted(set(listing.classes) - set(names)):
        raise UsageError(f"{len(unknown)} classes are not in {classes}, the first is {unknown[0]!r}")
    labels = [names.index(name) for name in listing.classes]
    inputs = listing.inputs
    if labels:
        inputs = InputView(inputs, change=lambda one: replace(one, label=labels[one.label]) if one.label >= 0 else one)
    elif (highest := max(one.label for one in inputs)) >= len(names):
        raise UsageError(f"{classes} has {len(names):,} names, but there are labels up to {highest:,}")
    return replace(listing, inputs=inputs, classes=names)
