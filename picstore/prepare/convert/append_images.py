"""``convert --append``: add the images of a source to a finished data set, as new files and a new manifest.

The data set is complete at any time, since no reader sees the new rows before the manifest is replaced. An append that
is given up leaves files that no manifest names; the next append uses higher file numbers.
"""

from __future__ import annotations

import contextlib
import reprlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from picstore.errors import Conflict, Damage, NotADataset, UsageError
from picstore.prepare.convert import conversion_job, ledger, resumable_job
from picstore.prepare.convert.conversion_job import ConvertOptions
from picstore.prepare.convert.finish_dataset import ConversionResult, read_row_summaries
from picstore.prepare.convert.row_counts import join_row_counts
from picstore.prepare.convert.source_samples import same_images, sample_numbers, sample_sizes
from picstore.prepare.sources.input_table import InputView
from picstore.prepare.sources.inputs import Input, Listing, relabel_input
from picstore.prepare.sources.labels import number_of_text
from picstore.storage.class_names import JoinedNames
from picstore.storage.dataset import Dataset
from picstore.storage.edits.columns import LABEL
from picstore.storage.format.container_index import FileSummary
from picstore.storage.location.resolve import LEDGER, UNFINISHED, Location, Where, WritableLocation, locate_writable
from picstore.storage.manifest import Manifest, read_manifest
from picstore.storage.manifest_writer import append_rows, changed_meanwhile, publish_edit
from picstore.storage.record_counts import RecordCounts

_MAX_CONFLICTS = 1000  # edits by others that may be faster, one after the other


def append(listing: Listing, destination: Where, options: ConvertOptions, *, resume: bool = False) -> ConversionResult:
    """Convert every input of a source, and add the records to a data set with ids above its own.

    Labels are matched by class name where source and data set have names; new names follow the existing ones.

    Args:
        destination: the data set; its number of streams may differ from ``options.shape``.
        resume: go on with an interrupted append of the same source with the same settings.

    Returns:
        The manifest of the whole data set, and the tally of the new inputs.

    Raises:
        UsageError: source and data set do not fit together, or another append is unfinished.
        Conflict: another append ended since this one looked at the data set, or the classes were changed meanwhile.
        Unfinished: an append was begun here, and ``resume`` is false.
        NotADataset, Damage: the data set or the job file cannot be read.
        MissingDependency: the encoder asked for is not installed.
        PicstoreError: a row dies again and again, or its files were lost.
    """
    conversion_job.require_no_partition(listing)
    clock = conversion_job.StageClock(options.progress)
    clock.begin_stage("sampling")
    conversion_job.start_engine(options.encode)
    root = locate_writable(destination)
    manifest = read_manifest(root)
    if manifest.references is not None:
        raise UsageError(f"{root} is an index, which takes no images; convert it, and append to that")
    _join_classes(manifest, listing)  # fails before anything is converted
    described = conversion_job.describe_job(listing, options)
    settings = {name: value for name, value in described.items() if name not in ("verb", "dedupe")}
    begun = resumable_job.find_job(root, {"verb": "append", **settings}, resume=resume)
    conversion_job.require_same_images(root, begun, listing)
    if begun is None and resume and _is_last_append(root, manifest, settings, listing):
        return _read_append(root, manifest, len(listing.inputs))
    resumed = begun is not None
    if begun is None:
        begun = _describe_append(root, listing, settings, conversion_job.choose_rows(listing, options))
    with resumable_job.hold_job(root, begun):
        manifest = read_manifest(root)
        if _is_published(manifest, begun):
            resumable_job.remove_job(root)
            if not resumed:
                raise changed_meanwhile(root)
            return _read_append(root, manifest, len(listing.inputs))
        classes, inputs = _join_classes(manifest, listing)
        if begun["classes"] != list(classes):
            raise Conflict(f"the classes of {root} were changed since the append began; remove {root / UNFINISHED}")
        plan = conversion_job.RowPlan(
            inputs=inputs,
            rows=begun["rows"],
            duplicates=listing.duplicates or {},
            attachments=manifest.attachments,
            first_id=begun["first_id"],
            first_file=begun["first_file"],
        )
        streams = options.shape.streams
        return conversion_job.run_job(
            root, plan, options, clock, partial(_finish_append, root, begun, settings, streams)
        )


def _describe_append(root: Location, listing: Listing, settings: dict[str, Any], rows: int) -> dict[str, Any]:
    """Make the job of an append to the data set as it is now."""
    dataset = Dataset(root)
    return resumable_job.new_job(
        verb="append",
        **settings,
        rows=rows,
        samples=sample_sizes(listing.inputs),
        first_file=_next_file(root, dataset.manifest),
        first_id=_next_id(dataset),
        classes=list(_join_classes(dataset.manifest, listing)[0]),
        earlier_appends=_count_appends(dataset.manifest),
    )


def _finish_append(
    root: WritableLocation,
    begun: dict[str, Any],
    settings: dict[str, Any],
    streams: int,
    written: Mapping[int, ledger.WrittenFragment],
) -> ConversionResult:
    """Write ledger, index and manifest, in this order; deletions and columns saved since the append began stay."""
    earlier = ledger.read_earlier_lines(root / LEDGER, begun["first_id"])
    tallies = ledger.write_ledger(root, begun["rows"], written, earlier=earlier)
    total = sum(tallies, ledger.Tally())
    remedy = f"remove {root / UNFINISHED} and append again"
    summaries = read_row_summaries(root, tallies, streams, remedy=remedy, first_file=begun["first_file"])
    event = {**settings, "outcome": total.outcome()}
    count = partial(join_row_counts, root, tallies, summaries, first_file=begun["first_file"])
    for _ in range(_MAX_CONFLICTS):
        with contextlib.suppress(Conflict):
            return ConversionResult(_publish_append(root, begun, summaries, event, streams, count), total)
    raise changed_meanwhile(root)


def _publish_append(
    root: WritableLocation,
    begun: dict[str, Any],
    summaries: list[FileSummary],
    event: dict[str, Any],
    streams: int,
    count: Callable[..., RecordCounts | None],
) -> Manifest:
    """Add the files of an append to the data set as it is now; Conflict if it is edited at the same moment.

    ``count`` gives the counts of the new records, by their fields and relabelling.
    """
    dataset = Dataset(root)
    old = dataset.manifest
    if _is_published(old, begun):  # by another process that went on with the same append in an object store
        return old
    if begun["classes"][: len(old.classes)] != list(old.classes):
        raise UsageError(f"the classes of {root} were changed since the append began; remove {root / UNFINISHED}")
    manifest, index = append_rows(
        old,
        dataset.rows,
        summaries,
        streams=max(streams, old.streams),
        classes=tuple(begun["classes"]),
        provenance={**old.provenance, "appended": [*old.provenance.get("appended", ()), event]},
    )
    if manifest.edits is not None:
        (root / manifest.edits.index).write(index)
    publish_edit(root, old.uuid, manifest, _count_all(dataset, count))
    return manifest


def _count_all(dataset: Dataset, count: Callable[..., RecordCounts | None]) -> RecordCounts | None:
    """Add the counts of a data set and of new records, which may have labels in its columns already."""
    with contextlib.suppress(Damage, NotADataset):
        relabel = dataset.labels if LABEL in dataset.columns else None
        new = count(fields=dataset.manifest.attachments, relabel=relabel)
        return None if new is None else RecordCounts.join([dataset.record_counts(), new])
    return None


def _count_appends(manifest: Manifest) -> int:
    return len(manifest.provenance.get("appended", ()))


def _is_published(manifest: Manifest, begun: dict[str, Any]) -> bool:
    """Whether the job's append has been published: there are more appends than at its start, and one runs at a time."""
    return _count_appends(manifest) > int(begun.get("earlier_appends", 1 << 62))


def _read_append(root: Location, manifest: Manifest, inputs: int) -> ConversionResult:
    """Read the result of the last append, which was finished before."""
    return ConversionResult(manifest, ledger.tally_lines(_last_lines(root, inputs)))


def _last_lines(root: Location, inputs: int) -> list[ledger.LedgerLine]:
    return list(deque(ledger.read_lines(root / LEDGER, skip_damaged=True), maxlen=inputs))


def _join_classes(manifest: Manifest, listing: Listing) -> tuple[tuple[str, ...], Sequence[Input]]:
    """Join the classes of a data set and of a source; return them, and the inputs with labels into them.

    UsageError if attachments or classes do not fit together.
    """
    if unknown := set(listing.attachments) - set(manifest.attachments):
        raise UsageError(
            f"the source has attachments {min(unknown)!r}, the data set {list(manifest.attachments)}; "
            "append a source without further attachments"
        )
    old, new = manifest.classes, listing.classes
    if not new:
        largest = max((source.label for source in listing.inputs), default=-1)
        if old and largest >= len(old):
            raise UsageError(
                f"the source has the label {largest} without a name; append labels of 0 to {len(old) - 1}, or name them"
            )
        _refuse_names_that_are_numbers(old, listing.inputs)
        return old, listing.inputs
    # Labels of a data set without class names would become ambiguous; an empty data set has none.
    if not old and manifest.images:
        raise UsageError(
            f"the source names its classes and the data set does not; append numbers as labels, instead of "
            f"{reprlib.repr(list(new))}"
        )
    joined = JoinedNames(old)
    labels = joined.add(new)
    if labels == tuple(range(len(new))):
        return tuple(joined.names), listing.inputs
    return tuple(joined.names), InputView(listing.inputs, change=partial(relabel_input, labels=labels))


def _refuse_names_that_are_numbers(classes: Sequence[str], inputs: Sequence[Input]) -> None:
    """Raise UsageError for a label without a name that is the number of one class and the name of another one."""
    moved = {number_of_text(name) for number, name in enumerate(classes) if number_of_text(name) not in (None, number)}
    if moved and (label := next((one.label for one in inputs if one.label in moved), None)) is not None:
        raise UsageError(
            f"the label {label} is the name of a class and the number of another one, {classes[label]!r}; give the "
            "source's classes by --classes"
        )


def _is_last_append(root: Location, manifest: Manifest, settings: dict[str, Any], listing: Listing) -> bool:
    """Whether the last append had these settings and, by the sizes in the ledger, these images."""
    appended = manifest.provenance.get("appended", ())
    if not appended or {**appended[-1], "outcome": None} != {**settings, "outcome": None}:
        return False
    try:
        lines = _last_lines(root, len(listing.inputs))
    except NotADataset:  # a shuffled copy, which names the appends of its source and has no ledger
        return False
    sizes = [lines[k].source_bytes for k in sample_numbers(len(lines))]
    return len(lines) == len(listing.inputs) and same_images(sample_sizes(listing.inputs), sizes)


def _next_file(root: Location, manifest: Manifest) -> int:
    """Return a file number above all numbers in use, also by an append that was given up.

    A store may list files late, so the manifest's files count whether they are listed or not.
    """
    names = [name.rpartition("/")[2].removesuffix(".pic") for name, _ in root.files() if name.endswith(".pic")]
    numbers = [int(name) for name in names if name.isdecimal()]
    return 1 + max([*numbers, *(entry.file for entry in manifest.files)], default=-1)


def _next_id(dataset: Dataset) -> int:
    """Return an id above the ids of all inputs so far, failed ones included."""
    provenance = dataset.manifest.provenance
    inputs: list[int] = [provenance.get("inputs", 0), *(each["inputs"] for each in provenance.get("appended", ()))]
    return max(sum(inputs), 1 + int(np.max(dataset.containers.ids(), initial=-1)))
