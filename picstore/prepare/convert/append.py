"""Appending to a finished data set: rows of new files behind those that are there, then a new manifest.

The rows are made as convert makes them, and until the manifest is replaced nobody sees them: the data set of before is
whole at any time. An append that is given up leaves files that no manifest names; the next one numbers its own behind.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from picstore._version import __version__
from picstore.errors import Damage, Unfinished, UsageError
from picstore.prepare.convert import job, ledger
from picstore.prepare.convert.convert import RowTask, marks_of, mean_bytes, run_rows
from picstore.prepare.convert.merge_shards import Converted, collect
from picstore.prepare.engine import processes
from picstore.prepare.image.mozjpeg import require_mozjpeg
from picstore.prepare.image.settings import IMAGE_TIMEOUT, EncodeSettings
from picstore.prepare.progress import Progress, progress_callback
from picstore.prepare.sources.inputs import Input, Listing
from picstore.storage.dataset import Dataset
from picstore.storage.format.layout import MAX_MANIFEST
from picstore.storage.location.resolve import LEDGER, UNFINISHED, Location, Where, locate
from picstore.storage.manifest import Manifest
from picstore.storage.publish import append_rows, publish_edit


def append(
    listing: Listing,
    destination: Where,
    *,
    encode: EncodeSettings,
    shape: job.DatasetShape,
    workers: int | processes.Engine,
    resume: bool = False,
    progress: Progress | None = None,
    image_timeout: float = IMAGE_TIMEOUT,
) -> Converted:
    """Convert every input of a source and add the records to a data set; its ids go on behind those that are there.

    Labels go by the names of classes where both have them; names that are new come behind those that are there.

    Args:
        listing: the source.
        destination: the data set.
        shape: of the new files; the number of streams may be another.
        workers: processes, or another engine; they do not change the result.
        resume: go on with an append of the same source with the same settings that was interrupted.
        image_timeout: as of :func:`picstore.prepare.convert.convert.convert`.

    Returns:
        The manifest of the whole data set, and what became of the new inputs.

    Raises:
        UsageError: source and data set do not fit together.
        Unfinished: an append was begun here, and ``resume`` is not given.
        NotADataset, Damage: the data set cannot be opened.
        MissingDependency: the encoder asked for is not installed.
    """
    processes.start_fork_server(*encode.warmup_modules)
    root = locate(destination)
    if encode.encoder == "mozjpeg":
        require_mozjpeg()
    manifest = Dataset(root).manifest
    classes, inputs = _join_classes(manifest, listing)
    wanted: dict[str, Any] = {
        "picstore": __version__,
        "source": listing.kind,
        "inputs": len(inputs),
        "inputs_sha256": listing.digest(),
        "encode": encode.to_json(),
        "shape": job.settings_to_json(shape),
    }
    begun = _find_job(root, wanted, resume=resume)
    if begun is None and resume and _is_last(manifest, wanted):
        return Converted(manifest, _tally_of(root, manifest))
    if begun is None:
        samplers = workers if isinstance(workers, int) else processes.default_workers()
        rows = job.count_rows(len(inputs), mean_bytes(inputs, encode, samplers, image_timeout), shape)
        first = {"first_file": _next_file(root), "first_id": _next_id(Dataset(root)), "classes": list(classes)}
        begun = {"verb": "append", **wanted, "rows": rows, **first}
        job.save_job(root, begun)
    if begun["classes"] != list(classes):
        raise UsageError(f"the classes of {root} were changed since the append began; remove {root / UNFINISHED}")
    with job.lock_job(root), marks_of(root) as marks:
        root.sweep()
        ready = set(ledger.finished_rows(root, begun["rows"]))
        tasks = deque(
            RowTask(
                root,
                row,
                begun["first_id"] + ids.start,
                inputs[ids.start : ids.stop],
                encode,
                shape,
                marks,
                manifest.attachments,
                image_timeout=image_timeout,
                duplicates=_duplicates(listing, ids, begun["first_id"]),
                first_file=begun["first_file"],
            )
            for row in range(begun["rows"])
            for ids in [job.row_slice(len(inputs), begun["rows"], row)]
            if row not in ready
        )
        if progress is not None:
            progress.set_total(len(inputs), len(inputs) - sum(len(task.inputs) for task in tasks))
        run_rows(tasks, processes.as_engine(workers), progress_callback(progress))
        done = _finish(root, begun, wanted, shape.streams)
    job.remove_job(root)
    return done


def _finish(root: Location, begun: dict[str, Any], wanted: dict[str, Any], streams: int) -> Converted:
    """Ledger, index and manifest, in this order. What was deleted or attached in the meantime stays so."""
    dataset = Dataset(root)
    tallies = ledger.merge(root, begun["rows"], kept=_lines_before(root, begun["first_id"]))
    total = sum(tallies, ledger.Tally())
    old = dataset.manifest
    provenance = {**old.provenance}
    provenance["appended"] = [*provenance.get("appended", ()), {**wanted, "outcome": total.outcome()}]
    again = f"remove {root / UNFINISHED} and append again"
    manifest, index = append_rows(
        old,
        dataset.rows,
        collect(root, tallies, streams, again=again, first_file=begun["first_file"]),
        streams=max(streams, old.streams),
        classes=tuple(begun["classes"]),
        provenance=provenance,
    )
    if manifest.edits is not None:
        (root / manifest.edits.index).write(index)
    publish_edit(root, old.uuid, manifest)
    return Converted(manifest, total)


def _duplicates(listing: Listing, numbers: range, first_id: int) -> dict[int, int]:
    """Those of some inputs that are left out, and the inputs of the same source that they repeat; by their ids."""
    doubles = listing.duplicates or {}
    return {first_id + k: first_id + doubles[k] for k in numbers if k in doubles}


def _join_classes(manifest: Manifest, listing: Listing) -> tuple[tuple[str, ...], list[Input]]:
    """The classes of both, and the inputs with labels among them."""
    if unknown := set(listing.attachments) - set(manifest.attachments):
        raise UsageError(f"the source has attachments {min(unknown)!r}, the data set {list(manifest.attachments)}")
    old, new = manifest.classes, listing.classes
    if not new:
        most = max((source.label for source in listing.inputs), default=-1)
        if old and most >= len(old):
            raise UsageError(f"the source has the label {most} without a name, the data set {len(old)} classes")
        return old, listing.inputs
    # A data set without names can only take those of the source if none of its labels had a meaning.
    if not old and manifest.images:
        raise UsageError("the source names its classes and the data set does not; append a source of plain labels")
    known = set(old)
    classes = (*old, *(name for name in dict.fromkeys(new) if name not in known))
    number = {name: label for label, name in reversed(list(enumerate(classes)))}
    labels = [number[name] for name in new]
    if labels == list(range(len(new))):
        return classes, listing.inputs
    return classes, [_relabelled(source, labels) for source in listing.inputs]


def _relabelled(source: Input, labels: Sequence[int]) -> Input:
    extra = source.extra
    if b'"box_labels"' in extra:
        fields = json.loads(extra)
        fields["box_labels"] = [labels[k] if 0 <= k < len(labels) else k for k in fields["box_labels"]]
        extra = json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()
    label = labels[source.label] if 0 <= source.label < len(labels) else source.label
    return replace(source, label=label, extra=extra)


def _find_job(root: Location, wanted: dict[str, Any], *, resume: bool) -> dict[str, Any] | None:
    """The append that was begun here, None where there is none."""
    path = root / UNFINISHED / "job.json"
    if not path.is_file():
        return None
    if not resume:
        raise Unfinished(f"{root} has an unfinished append; continue it with --resume, or remove {root / UNFINISHED}")
    try:
        begun = json.loads(path.read_all(MAX_MANIFEST))
        same = all(begun[name] == value for name, value in wanted.items()) and begun["verb"] == "append"
    except (ValueError, KeyError, TypeError) as error:
        raise Damage("not a job that picstore wrote; remove its folder and begin anew", str(path)) from error
    if not same:
        raise UsageError(f"{root} has an unfinished append of another source or with other settings; see {path}")
    return dict(begun)


def _is_last(manifest: Manifest, wanted: dict[str, Any]) -> bool:
    appended = manifest.provenance.get("appended", ())
    return bool(appended) and {**appended[-1], "outcome": None} == {**wanted, "outcome": None}


def _tally_of(root: Location, manifest: Manifest) -> ledger.Tally:
    """Of the inputs that were appended last."""
    tally = ledger.Tally()
    lines = list(ledger.read_lines(root / LEDGER))
    for line in lines[len(lines) - manifest.provenance["appended"][-1]["inputs"] :]:
        tally.add(line)
    return tally


def _next_file(root: Location) -> int:
    """A file number beyond all that are there, those of an append that was given up too."""
    names = [name.rpartition("/")[2].removesuffix(".pic") for name, _ in root.files() if name.endswith(".pic")]
    return 1 + max((int(name) for name in names if name.isdecimal()), default=-1)


def _next_id(dataset: Dataset) -> int:
    """An id beyond all inputs that there were, also those that failed."""
    provenance = dataset.manifest.provenance
    inputs: list[int] = [provenance.get("inputs", 0), *(each["inputs"] for each in provenance.get("appended", ()))]
    return max(sum(inputs), 1 + int(np.max(dataset.stored_ids(), initial=-1)))


def _lines_before(root: Location, first_id: int) -> bytes:
    """The ledger's lines of before, without those that an interrupted append has added."""
    if not (root / LEDGER).is_file():
        return b""
    return b"".join(text for text in (root / LEDGER).lines() if json.loads(text)["id"] < first_id)
