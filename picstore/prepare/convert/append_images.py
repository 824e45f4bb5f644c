"""``convert --append``: add the images of a source to a finished dataset, as new files and a new manifest.

The dataset can be read meanwhile, because readers see the new files only when the manifest is replaced. An append that
is abandoned leaves files that no manifest names; the next append uses higher file numbers.
"""

from __future__ import annotations

import contextlib
import reprlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from picstore.errors import Conflict, Damage, NotADataset, UsageError
from picstore.prepare.convert import ledger, resumable_job
from picstore.prepare.convert.conversion_job import (
    ConvertOptions,
    Job,
    begin_clock,
    choose_rows,
    require_no_partition,
    same_images,
    sample_numbers,
    sample_sizes,
)
from picstore.prepare.convert.finish_dataset import ConversionResult, read_row_summaries
from picstore.prepare.convert.row_writer import join_row_counts
from picstore.prepare.sources.input_table import InputView
from picstore.prepare.sources.inputs import Input, Listing, relabel_input
from picstore.prepare.sources.labels import number_of_text
from picstore.storage.class_names import JoinedNames
from picstore.storage.dataset import Dataset
from picstore.storage.edits.columns import LABEL
from picstore.storage.format.container_index import FileSummary
from picstore.storage.location.resolve import LEDGER, UNFINISHED, Location, Where, locate_writable
from picstore.storage.manifest import Manifest, read_manifest
from picstore.storage.manifest_writer import append_rows, changed_meanwhile, publish_edit
from picstore.storage.record_counts import RecordCounts

# Largest number of attempts to publish an append; an attempt fails if another edit is published first.
_MAX_CONFLICTS = 1000


def append(listing: Listing, destination: Where, options: ConvertOptions, *, resume: bool = False) -> ConversionResult:
    """Convert every input of a source, and append the records to a dataset, with ids above the existing ids.

    If source and dataset have class names, labels are matched by name; new names follow the existing names. Return the
    whole dataset's manifest, and counts of the new inputs by status. Errors are those of :func:`picstore.append`.
    """
    require_no_partition(listing)
    clock = begin_clock(options)
    root = locate_writable(destination)
    manifest = read_manifest(root)
    if manifest.references is not None:
        raise UsageError(f"{root} is an index, which takes no images; convert it, and append to that")
    _join_classes(manifest, listing)  # Raise UsageError before any input is converted, if classes do not fit.
    job = Job.describe(root, listing, options)
    settings = {name: value for name, value in job.settings.items() if name not in ("verb", "dedupe")}
    found = resumable_job.find_job(root, {"verb": "append", **settings}, resume=resume)
    job = replace(job, settings=settings, saved=found or {}).require_same_images()
    if found is None:
        if resume and _is_last_append(manifest, job):
            return _read_append(manifest, job)
        job = replace(job, saved=_describe_append(job, choose_rows(listing, options)))
    with job.hold():
        manifest = read_manifest(root)
        if _is_published(manifest, job):
            resumable_job.remove_job(root)
            if found is None:
                raise changed_meanwhile(root)
            return _read_append(manifest, job)
        classes, inputs = _join_classes(manifest, listing)
        if job.saved["classes"] != list(classes):
            raise Conflict(f"the classes of {root} were changed since the append began; remove {root / UNFINISHED}")
        job = replace(job, listing=replace(listing, inputs=inputs, attachments=manifest.attachments))
        return job.run(clock, partial(_finish_append, job))


def _describe_append(job: Job, rows: int) -> dict[str, Any]:
    dataset = Dataset(job.root)
    return resumable_job.new_job(
        verb="append",
        **job.settings,
        rows=rows,
        samples=sample_sizes(job.listing.inputs),
        first_file=_next_file(job.root, dataset.manifest),
        first_id=_next_id(dataset),
        classes=list(_join_classes(dataset.manifest, job.listing)[0]),
        earlier_appends=_count_appends(dataset.manifest),
    )


def _finish_append(job: Job, written: Mapping[int, ledger.WrittenFragment]) -> ConversionResult:
    """Write an append's ledger, index and manifest, in this order; keep edits published since the append began."""
    root = job.root
    earlier = ledger.read_earlier_lines(root / LEDGER, job.first_id)
    tallies = ledger.write_ledger(root, job.rows, written, earlier=earlier)
    total = sum(tallies, ledger.Tally())
    remedy = f"remove {root / UNFINISHED} and append again"
    streams = job.options.shape.streams
    summaries = read_row_summaries(root, tallies, streams, remedy=remedy, first_file=job.first_file)
    event = {**job.settings, "outcome": total.outcome()}
    count = partial(join_row_counts, root, tallies, summaries, first_file=job.first_file)
    for _ in range(_MAX_CONFLICTS):
        with contextlib.suppress(Conflict):
            return ConversionResult(_publish_append(job, summaries, event, count), total)
    raise changed_meanwhile(root)


def _publish_append(
    job: Job, summaries: list[FileSummary], event: dict[str, Any], count: Callable[..., RecordCounts | None]
) -> Manifest:
    """Publish a manifest that adds an append's files; raise Conflict if another process published an edit meanwhile."""
    root, dataset, names = job.root, Dataset(job.root), job.saved["classes"]
    old = dataset.manifest
    # Object stores have no locks, so another process may have resumed this append and published its manifest.
    if _is_published(old, job):
        return old
    if names[: len(old.classes)] != list(old.classes):
        raise UsageError(f"the classes of {root} were changed since the append began; remove {root / UNFINISHED}")
    manifest, index = append_rows(
        old,
        dataset.rows,
        summaries,
        streams=max(job.options.shape.streams, old.streams),
        classes=tuple(names),
        provenance={**old.provenance, "appended": [*old.provenance.get("appended", ()), event]},
    )
    if manifest.edits is not None:
        (root / manifest.edits.index).write(index)
    publish_edit(root, old.uuid, manifest, _count_all(dataset, count))
    return manifest


def _count_all(dataset: Dataset, count: Callable[..., RecordCounts | None]) -> RecordCounts | None:
    """Count records by edited label; ``count`` counts those of the append. Return None if a file is unreadable."""
    with contextlib.suppress(Damage, NotADataset):
        relabel = dataset.labels if LABEL in dataset.columns else None
        new = count(fields=dataset.manifest.attachments, relabel=relabel)
        return None if new is None else RecordCounts.join([dataset.record_counts(), new])
    return None


def _count_appends(manifest: Manifest) -> int:
    return len(manifest.provenance.get("appended", ()))


def _is_published(manifest: Manifest, job: Job) -> bool:
    return _count_appends(manifest) > int(job.saved.get("earlier_appends", 1 << 62))


def _read_append(manifest: Manifest, job: Job) -> ConversionResult:
    return ConversionResult(manifest, ledger.tally_lines(_last_lines(job)))


def _last_lines(job: Job) -> list[ledger.LedgerLine]:
    """Return the ledger lines of the most recent append: the last lines of the ledger, one per input of the source."""
    return list(deque(ledger.read_lines(job.root / LEDGER, skip_damaged=True), maxlen=len(job.listing.inputs)))


def _join_classes(manifest: Manifest, listing: Listing) -> tuple[tuple[str, ...], Sequence[Input]]:
    """Join the class names of dataset and source; return the joined names, and inputs whose labels index these names.

    Raise UsageError if the source's attachments or classes do not fit those of the dataset.
    """
    if unknown := set(listing.attachments) - set(manifest.attachments):
        raise UsageError(
            f"the source has attachments {min(unknown)!r}, the dataset {list(manifest.attachments)}; "
            "append a source without further attachments"
        )
    stored = manifest.provenance.get("maps", {})
    if others := [name for name, entry in listing.maps.items() if stored.get(name) != entry]:
        raise UsageError(f"map {others[0]} is not as the dataset states it: {stored.get(others[0])}")
    old, new = manifest.classes, listing.classes
    if not new:
        largest = max((source.label for source in listing.inputs), default=-1)
        if old and largest >= len(old):
            raise UsageError(
                f"the source has the label {largest} without a name; append labels of 0 to {len(old) - 1}, or name them"
            )
        _refuse_names_that_are_numbers(old, listing.inputs)
        return old, listing.inputs
    # Refuse a source's class names if the dataset has none: its labels would become indices of these names.
    if not old and manifest.images:
        raise UsageError(
            f"the source names its classes and the dataset does not; append numbers as labels, instead of "
            f"{reprlib.repr(list(new))}"
        )
    joined = JoinedNames(old)
    labels = joined.add(new)
    if labels == tuple(range(len(new))):
        return tuple(joined.names), listing.inputs
    return tuple(joined.names), InputView(listing.inputs, change=partial(relabel_input, labels=labels))


def _refuse_names_that_are_numbers(classes: Sequence[str], inputs: Sequence[Input]) -> None:
    moved = {number_of_text(name) for number, name in enumerate(classes) if number_of_text(name) not in (None, number)}
    if moved and (label := next((one.label for one in inputs if one.label in moved), None)) is not None:
        raise UsageError(
            f"the label {label} is the name of a class and the number of another one, {classes[label]!r}; give the "
            "source's classes by --classes"
        )


def _is_last_append(manifest: Manifest, job: Job) -> bool:
    """Return whether the most recent append had the job's settings, number of inputs, and sizes of sampled inputs."""
    appended = manifest.provenance.get("appended", ())
    if not appended or {**appended[-1], "outcome": None} != {**job.settings, "outcome": None}:
        return False
    try:
        lines = _last_lines(job)
    except NotADataset:  # The dataset has no ledger, as is the case for some shuffled copies.
        return False
    inputs = job.listing.inputs
    sizes = [lines[k].source_bytes for k in sample_numbers(len(lines))]
    return len(lines) == len(inputs) and same_images(sample_sizes(inputs), sizes)


def _next_file(root: Location, manifest: Manifest) -> int:
    """Return a number above all file numbers in the dataset's folder, including those of an abandoned append.

    The manifest's file numbers are considered too, because an object store may list new files late.
    """
    names = [name.rpartition("/")[2].removesuffix(".pic") for name, _ in root.files() if name.endswith(".pic")]
    numbers = [int(name) for name in names if name.isdecimal()]
    return 1 + max([*numbers, *(entry.file for entry in manifest.files)], default=-1)


def _next_id(dataset: Dataset) -> int:
    """Return an id above the ids of all earlier inputs, including failed inputs."""
    provenance = dataset.manifest.provenance
    inputs: list[int] = [provenance.get("inputs", 0), *(each["inputs"] for each in provenance.get("appended", ()))]
    return max(sum(inputs), 1 + int(np.max(dataset.containers.ids(), initial=-1)))
