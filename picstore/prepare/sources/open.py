"""Opening a source: which kind it is of, and its inputs as one flat list in a fixed order.

An input names bytes (a file, a stretch of one, or a place that a reader knows) and a label, nothing is read yet. Its
position in the list is its id. Each kind is a module of ``picstore.prepare.sources``, or an entry point of the group
``picstore.sources`` in anybody's package.
"""

from __future__ import annotations

import importlib
from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points

from picstore.errors import NotADataset, PicstoreError, UsageError
from picstore.prepare.sources.base import Source, SourceProbe, path_of
from picstore.prepare.sources.inputs import Input, Listing, printable, read_input
from picstore.storage.location.local import Folder
from picstore.storage.location.resolve import Location, Where, locate

__all__ = ["KINDS", "Input", "Listing", "Source", "SourceProbe", "open_source", "read_input"]

ENTRY_POINTS = "picstore.sources"
# In the order of guessing: what has a magic number or an index comes before the last two, which any folder or file may
# be; sources of other packages come between.
KINDS = (
    "mds",
    "litdata",
    "ffcv",
    "parquet",
    "hdf5",
    "lmdb",
    "recordio",
    "tfrecord",
    "picpoc",
    "table",
    "webdataset",
    "imagenet",
    "coco",
    "folder",
    "list",
)


def open_source(where: Where, *, kind: str = "auto", classes: Where | None = None, **options: object) -> Listing:
    """List a source.

    Args:
        where: the source, here or in an object store, as may be the files that options name.
        kind: one of KINDS or the name of an entry point; or ``"auto"``: the first kind that recognises it. Annotations
            make it coco.
        classes: a file of class names, one a line, in the order of labels: names integers, and gives names that order.
        options: those of the kind, None for its default: ``root``, ``synsets``, ``annotations``, ``image_field``,
            ``label_field``.

    Raises:
        NotADataset: there is no such place, or it holds no images.
        UsageError: an option belongs to another source, the source is not what it should be, or a source of its kind is
            read from files of this machine only.
        MissingDependency: the library that reads it is not installed.
        Damage: it can be told what it is, but not read at all.
    """
    place = locate(where)
    if not place.exists() and "{" not in place.name:
        raise NotADataset(f"{place} does not exist")
    given = {name: value for name, value in options.items() if value is not None}
    if kind == "auto":
        kind = "coco" if "annotations" in given else _guess(place)
    source = _find(kind)
    for name in given:
        if name not in source.options:
            belongs = " or ".join(other for other in sorted(KINDS) if name in _find(other).options)
            raise UsageError(f"--{name.replace('_', '-')} belongs to the source {belongs}; {place} is read as {kind}")
    listing = source.list(place if source.stores else path_of(place), **given)
    if not listing.inputs:
        raise NotADataset(f"{place} holds no images (read as source {listing.kind})")
    return listing if classes is None else _in_order_of(listing, locate(classes))


def _guess(place: Location) -> str:
    glance = SourceProbe.at(place)
    for kind in (*KINDS[:-2], *sorted(_plugins()), *KINDS[-2:]):
        source = _find(kind)
        if kind not in KINDS and not source.stores and not isinstance(place, Folder):
            continue  # another package's, which may look at the path
        if source.guess is not None and source.guess(glance):
            return kind
    raise NotADataset(f"{place} is nothing that can be converted")


def _find(kind: str) -> Source:
    if kind in KINDS:
        found = importlib.import_module(f"picstore.prepare.sources.{kind}").SOURCE
    else:
        plugins = _plugins()
        if kind not in plugins:
            raise UsageError(f"no source is called {kind}; there are auto, {', '.join(sorted({*KINDS, *plugins}))}")
        try:
            found = plugins[kind].load()
        except Exception as error:  # of another package, whatever is wrong with it
            raise PicstoreError(f"the source {kind} ({plugins[kind].value}) cannot be loaded: {error!r}") from error
    return found if isinstance(found, Source) else Source(found)


def _plugins() -> dict[str, EntryPoint]:
    """Sources of other packages, by name; they are not loaded until they are asked for."""
    return {point.name: point for point in entry_points(group=ENTRY_POINTS)}


def read_names(path: Location) -> list[str]:
    """The names in a file, one a line; NotADataset where it cannot be read."""
    names = [line.strip() for line in b"".join(path.lines()).decode("utf-8", "surrogateescape").splitlines()]
    return [printable(name) for name in names if name]


def _in_order_of(listing: Listing, classes: Location) -> Listing:
    """The listing with class names from a file, and with labels in its order where it has names of its own."""
    names = read_names(classes)
    if unknown := sorted(set(listing.classes) - set(names)):
        raise UsageError(f"{len(unknown)} classes are not in {classes}, the first is {unknown[0]!r}")
    place = [names.index(name) for name in listing.classes]
    inputs = listing.inputs
    if place:
        inputs = [replace(one, label=place[one.label]) if one.label >= 0 else one for one in inputs]
    elif (highest := max(one.label for one in inputs)) >= len(names):
        raise UsageError(f"{classes} has {len(names):,} names, but there are labels up to {highest:,}")
    return replace(listing, inputs=inputs, classes=names)
