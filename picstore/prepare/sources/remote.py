"""Sources in object stores: folders of classes, WebDataset's tars and ImageNet's, read by ranges."""

from __future__ import annotations

from collections.abc import Sequence

from picstore.errors import NotADataset, UsageError
from picstore.prepare.inputs import Input, Listing
from picstore.prepare.sources.imagenet import list_tars
from picstore.prepare.sources.webdataset import has_pairs, list_samples
from picstore.storage.location import Location

KINDS = ("folder", "webdataset", "imagenet")


def list_remote(place: Location, *, kind: str = "auto") -> Listing:
    """List a source in an object store.

    Args:
        place: a prefix, or one tar.
        kind: of ``KINDS``, or ``"auto"``: tars are webdataset where neighbours in them share a key, otherwise
            imagenet; anything else is a folder.

    Raises:
        NotADataset: there is nothing.
        UsageError: this kind is not read from an object store.
    """
    if kind not in ("auto", *KINDS):
        raise UsageError(f"the source {kind} is not read from an object store, {' and '.join(KINDS)} are; copy {place}")
    objects = sorted(place.files()) or [("", place.size())]  # one object has none below it
    seen = [(name, size) for name, size in objects if not any(part.startswith(".") for part in name.split("/"))]
    names = [str(place / name) if name else str(place) for name, _ in seen if "/" not in name]
    tars = [name for name in names if name.endswith(".tar")]
    if kind == "auto":
        kind = "folder" if len(tars) < len(seen) or not tars else "webdataset" if has_pairs(tars[0]) else "imagenet"
    if kind == "folder":
        listing = _list_folder(place, seen)
    else:
        listing = list_samples(tars) if kind == "webdataset" else list_tars(tars)
    if not listing.inputs:
        raise NotADataset(f"{place} holds no images (read as source {kind})")
    return listing


def _list_folder(place: Location, objects: Sequence[tuple[str, int]]) -> Listing:
    """As ``folder_source``: a class for each first part of a name that has several."""
    classes = sorted({name.partition("/")[0] for name, _ in objects if "/" in name})
    if not classes:
        inputs = [Input(name, 0, str(place / name), 0, size) for name, size in objects if name]
        return Listing("folder", inputs, [str(place).rpartition("/")[2]])
    label_of = {name: label for label, name in enumerate(classes)}
    nested = [(name, size) for name, size in objects if "/" in name]
    # In the order of a walk through folders, not of whole names: "a-b/x" stands behind "a/x".
    nested.sort(key=lambda entry: entry[0].split("/"))
    inputs = [Input(name, label_of[name.partition("/")[0]], str(place / name), 0, size) for name, size in nested]
    listing = Listing("folder", inputs, classes)
    if ignored := len(objects) - len(nested):
        files = "1 object" if ignored == 1 else f"{ignored:,} objects"
        listing.remarks.append(f"{files} directly in {place}, in no class folder: left out")
    return listing
