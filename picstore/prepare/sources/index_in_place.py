"""Picstore's index of images in place as a source: images are read where they lie, and keep their ids and order."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np

from picstore.errors import Damage, NotADataset, UsageError
from picstore.prepare.sources.inputs import Input, Listing, Partition
from picstore.prepare.sources.source_file import printable
from picstore.prepare.sources.source_kinds import SourceFormat, SourceProbe
from picstore.storage.annotations import OWN
from picstore.storage.dataset import Dataset
from picstore.storage.format.container import Container
from picstore.storage.location.resolve import MANIFEST, Location, Where
from picstore.storage.record_counts import end_of_ids
from picstore.storage.record_table import path_in
from picstore.storage.references import ReferencesRoot


def list_index(location: Location, *, root: Where | None = None) -> Listing:
    """List an index's records, except deleted ones, in stored order; raise UsageError if the dataset holds its images.

    ``root`` is the folder of the images, as for :class:`Dataset`.
    """
    dataset = Dataset(location, root=root)
    if dataset.references is None:
        raise UsageError(f"{location} is a picstore dataset already; `picstore shuffle` makes a copy of it")
    numbers = np.flatnonzero(dataset.live.counts)
    provenance = dataset.manifest.provenance
    has_targets = provenance.get("source") == "coco" or "targets" in provenance
    inputs: list[Input] = []
    ids: list[int] = []  # record ids of the inputs; −1 if the record is damaged, and so its id is unknown
    for number in numbers.tolist():
        try:
            container = dataset.containers.index(number)
        except (Damage, NotADataset) as error:
            found = _unreadable(dataset, number, error)
            inputs, ids = inputs + found, ids + [-1] * len(found)
            continue
        labels = dataset.labels(container.index["id"], container.index["label"])
        for k in np.flatnonzero(dataset.live.mask(number)).tolist():
            ids.append(int(container.index["id"][k]) if container.good[k] else -1)
            one = _input(container, k, int(labels[k]), dataset.references)
            inputs.append(replace(one, targets=OWN) if has_targets else one)
    unknown = itertools.count(end_of_ids(np.array(ids, np.int64)))
    ends = np.cumsum(dataset.live.counts[numbers])
    last_of_file = np.diff(dataset.rows["file"][numbers], append=-1) != 0
    partition = Partition(
        uuid=dataset.order_uuid,
        ids=tuple(next(unknown) if id_ == -1 else id_ for id_ in ids),
        containers=(0, *ends.tolist()),
        rows=(0, *ends[last_of_file].tolist()),
    )
    unkept = sorted(set(dataset.columns) - {"label"})
    remarks = [f"the columns {', '.join(unkept)} of {location} are left out"] if unkept else []
    listing = Listing("index", inputs, dataset.classes, dataset.manifest.attachments, remarks, partition=partition)
    return replace(listing, maps=provenance.get("maps", {}))


def _unreadable(dataset: Dataset, number: int, error: Damage | NotADataset) -> list[Input]:
    ref = dataset.containers.container_ref(number)
    what = error.what if isinstance(error, Damage) else "the file is missing"
    problem, count = f"damaged: {what}", int(dataset.live.counts[number])
    return [Input(f"{ref.name}@{ref.offset}/{k}", -1, ref.name, problem=problem) for k in range(count)]


def _input(container: Container, k: int, label: int, root: ReferencesRoot) -> Input:
    """Return the input of an index's record; targets in the extra are in pixels of the upright image."""
    try:
        extra = container.extra_json(k)
        if not container.good[k]:
            raise container.ref.corrupt("its reference is damaged")
    except Damage as error:
        name, problem = f"{container.ref.name}@{container.ref.offset}/{k}", f"damaged: {error.what}"
        return Input(name, label, container.ref.name, problem=problem)
    image = _blob(container, container.index[k], label)
    attached = zip(container.fields, container.attached[k], strict=True)
    attachments = tuple((name, _blob(container, cell, -1)) for name, cell in attached if cell["length"])
    if any(root.leads_out(blob.path) for blob in (image, *(blob for _, blob in attachments))):
        return Input(image.name, label, image.path, problem="a link leads out of the folder of the index")
    return replace(image, name=path_in(extra) or image.name, extra=extra, upright=True, attachments=attachments)


def _blob(container: Container, cell: Any, label: int) -> Input:
    """Return the input of an image or attachment from its cell (offset, length, crc) in a container's index."""
    path, offset = container.locate(int(cell["offset"]))
    return Input(printable(path), label, path, offset, int(cell["length"]), crc=int(cell["crc"]))


def recognizes(probe: SourceProbe) -> bool:
    """Return whether a location is a picstore dataset."""
    return MANIFEST in probe.files


FORMAT = SourceFormat(list_index, options=("root",), recognizes=recognizes, object_stores=True)
