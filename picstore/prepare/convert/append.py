"""``convert --append``: add the images of a source to a finished data set, as new files and a new manifest.

The data set is complete at any time, since no reader sees the new rows before the manifest is replaced. An append that
is given up leaves files that no manifest names; the next append uses higher file numbers.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from picstore.errors import UsageError
from picstore.prepare.convert import convert, job, ledger
from picstore.prepare.convert.convert import ConvertOptions
from picstore.prepare.convert.finish import ConversionResult, read_row_summaries
from picstore.prepare.sources.inputs import Input, Listing
from picstore.storage.dataset import Dataset
from picstore.storage.location.resolve import LEDGER, UNFINISHED, Location, Where, locate
from picstore.storage.manifest import Manifest
from picstore.storage.publish import append_rows, publish_edit


def append(listing: Listing, destination: Where, options: ConvertOptions, *, resume: bool = False) -> ConversionResult:
    """Convert every input of a source, and add the records to a data set with ids above its own.

    Labels are matched by class name where source and data set have names; new names follow the existing ones.

    Args:
        destination: the data set; the number of its streams may differ from that of ``options.shape``.
        resume: go on with an interrupted append of the same source with the same settings.

    Returns:
        The manifest of the whole data set, and the tally of the new inputs.

    Raises:
        UsageError: source and data set do not fit together, or another append is unfinished.
        Unfinished: an append was begun here, and ``resume`` is false.
        NotADataset, Damage: the data set or the job file cannot be read.
        MissingDependency: the encoder asked for is not installed.
        PicstoreError: a row dies again and again, or its files were lost.
    """
    convert.start_engine(options.encode)
    clock = convert.StageClock()
    root = locate(destination)
    manifest = Dataset(root).manifest
    classes, inputs = _join_classes(manifest, listing)
    described = convert.describe_job(listing, options)
    settings = {name: value for name, value in described.items() if name not in ("verb", "dedupe")}
    begun = job.find_job(root, {"verb": "append", **settings}, resume=resume)
    if begun is None and resume and _is_last_append(manifest, settings):
        lines = list(ledger.read_lines(root / LEDGER))
        return ConversionResult(manifest, ledger.tally_lines(lines[len(lines) - len(inputs) :]))
    if begun is None:
        begun = {
            "verb": "append",
            **settings,
            "rows": convert.choose_rows(inputs, options),
            "first_file": _next_file(root),
            "first_id": _next_id(Dataset(root)),
            "classes": list(classes),
        }
        job.save_job(root, begun)
    if begun["classes"] != list(classes):
        raise UsageError(f"the classes of {root} were changed since the append began; remove {root / UNFINISHED}")
    clock.end_stage("sampling")
    plan = convert.RowPlan(
        inputs=inputs,
        rows=begun["rows"],
        duplicates=listing.duplicates or {},
        attachments=manifest.attachments,
        first_id=begun["first_id"],
        first_file=begun["first_file"],
    )
    streams = options.shape.streams
    return convert.run_job(root, plan, options, clock, lambda: _finish_append(root, begun, settings, streams))


def _finish_append(root: Location, begun: dict[str, Any], settings: dict[str, Any], streams: int) -> ConversionResult:
    """Write ledger, index and manifest, in this order; deletions and columns saved since the append began stay."""
    dataset = Dataset(root)
    tallies = ledger.write_ledger(root, begun["rows"], earlier=_read_earlier_lines(root, begun["first_id"]))
    total = sum(tallies, ledger.Tally())
    old = dataset.manifest
    appended = [*old.provenance.get("appended", ()), {**settings, "outcome": total.outcome()}]
    remedy = f"remove {root / UNFINISHED} and append again"
    manifest, index = append_rows(
        old,
        dataset.rows,
        read_row_summaries(root, tallies, streams, remedy=remedy, first_file=begun["first_file"]),
        streams=max(streams, old.streams),
        classes=tuple(begun["classes"]),
        provenance={**old.provenance, "appended": appended},
    )
    if manifest.edits is not None:
        (root / manifest.edits.index).write(index)
    publish_edit(root, old.uuid, manifest)
    return ConversionResult(manifest, total)


def _join_classes(manifest: Manifest, listing: Listing) -> tuple[tuple[str, ...], list[Input]]:
    """Join the classes of a data set and of a source; return them, and the inputs with labels into them.

    UsageError if attachments or classes do not fit together.
    """
    if unknown := set(listing.attachments) - set(manifest.attachments):
        raise UsageError(f"the source has attachments {min(unknown)!r}, the data set {list(manifest.attachments)}")
    old, new = manifest.classes, listing.classes
    if not new:
        largest = max((source.label for source in listing.inputs), default=-1)
        if old and largest >= len(old):
            raise UsageError(f"the source has the label {largest} without a name, the data set {len(old)} classes")
        return old, listing.inputs
    # Labels of a data set without class names would become ambiguous; an empty data set has none.
    if not old and manifest.images:
        raise UsageError("the source names its classes and the data set does not; append a source of plain labels")
    known = set(old)
    classes = (*old, *(name for name in dict.fromkeys(new) if name not in known))
    label_of = {name: label for label, name in reversed(list(enumerate(classes)))}
    labels = [label_of[name] for name in new]
    if labels == list(range(len(new))):
        return classes, listing.inputs
    return classes, [_relabel(source, labels) for source in listing.inputs]


def _relabel(source: Input, labels: Sequence[int]) -> Input:
    """Map an input's label and box labels through ``labels``; values outside of it stay."""
    extra = source.extra
    if b'"box_labels"' in extra:
        fields = json.loads(extra)
        fields["box_labels"] = [labels[k] if 0 <= k < len(labels) else k for k in fields["box_labels"]]
        extra = json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()
    label = labels[source.label] if 0 <= source.label < len(labels) else source.label
    return replace(source, label=label, extra=extra)


def _is_last_append(manifest: Manifest, settings: dict[str, Any]) -> bool:
    appended = manifest.provenance.get("appended", ())
    return bool(appended) and {**appended[-1], "outcome": None} == {**settings, "outcome": None}


def _next_file(root: Location) -> int:
    """Return a file number above those of all files, including those of an append that was given up."""
    names = [name.rpartition("/")[2].removesuffix(".pic") for name, _ in root.files() if name.endswith(".pic")]
    return 1 + max((int(name) for name in names if name.isdecimal()), default=-1)


def _next_id(dataset: Dataset) -> int:
    """Return an id above those of all inputs so far, including those that failed."""
    provenance = dataset.manifest.provenance
    inputs: list[int] = [provenance.get("inputs", 0), *(each["inputs"] for each in provenance.get("appended", ()))]
    return max(sum(inputs), 1 + int(np.max(dataset.stored_ids(), initial=-1)))


def _read_earlier_lines(root: Location, first_id: int) -> bytes:
    """Read the ledger lines of ids below ``first_id``; an interrupted append may have written others."""
    if not (root / LEDGER).is_file():
        return b""
    return b"".join(text for text in (root / LEDGER).lines() if json.loads(text)["id"] < first_id)
