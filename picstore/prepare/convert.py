"""Converting a source: list it, cut it into rows, convert each row, write the manifest.

A row is the unit of work, of resuming and of blame: its files and its ledger fragment are a pure function of its inputs
and of the job, so any number of workers writes the same bytes, and a row that died is simply run again.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from picstore import __version__
from picstore.errors import ImageError, PicstoreError, UsageError
from picstore.prepare import engine, job, ledger
from picstore.prepare.inputs import Input, Listing, read_input
from picstore.prepare.mozjpeg import require_mozjpeg
from picstore.prepare.pack import RowWriter, make_record
from picstore.prepare.placement import move_targets
from picstore.prepare.settings import EncodeSettings
from picstore.prepare.training_jpeg import TrainingJpeg, make_training_jpeg
from picstore.storage.file import FileSummary, read_summary
from picstore.storage.location import LEDGER, MANIFEST, UNFINISHED, Folder, Location, Where, file_name, locate, many
from picstore.storage.manifest import Manifest, finish, read_manifest

_SAMPLES = 32  # images converted in advance to learn how many make a row
_POSITION = "row-{:06d}.at"


class Progress(Protocol):
    """What shows a user how far the work is."""

    def begin(self, total: int, done: int) -> None:
        """``total`` inputs there are, ``done`` of them were finished by an earlier run."""

    def advance(self, count: int) -> None:
        """``count`` more inputs are done."""


@dataclass(frozen=True, slots=True)
class Converted:
    """A finished conversion."""

    manifest: Manifest
    tally: ledger.Tally


@dataclass(frozen=True, slots=True)
class RowTask:
    """All that one row needs.

    Attributes:
        marks: a folder of this machine for the rows' positions.
        attachments: names of those that records may have.
        blamed: inputs at which its process died before, with the reason.
        first_file: number of the file that row 0 writes.
    """

    root: Location
    row: int
    first_id: int
    inputs: Sequence[Input]
    encode: EncodeSettings
    shape: job.Shape
    marks: Path
    attachments: tuple[str, ...] = ()
    blamed: dict[int, str] = field(default_factory=dict)
    first_file: int = 0

    @property
    def position(self) -> Path:
        """The file in which the row's process notes the input at which it is."""
        return self.marks / _POSITION.format(self.row)


def convert(
    listing: Listing,
    destination: Where,
    *,
    encode: EncodeSettings,
    shape: job.Shape,
    workers: int,
    resume: bool = False,
    progress: Progress | None = None,
) -> Converted:
    """Convert every input of a source into a new data set; inputs that fail stand in the ledger.

    Args:
        listing: the source.
        destination: a directory or a URL's place that does not exist, is empty, or (``resume``) was begun by the same
            job.
        workers: processes; they do not change the result.

    Raises:
        UsageError, NotADataset, Unfinished: the destination cannot be used; see :func:`job.begin`.
        MissingDependency: the encoder asked for is not installed.
    """
    engine.start("picstore.prepare.warm")
    destination = locate(destination)
    if encode.encoder == "mozjpeg":
        require_mozjpeg()
    inputs = listing.inputs
    wanted: dict[str, Any] = {
        "verb": "convert",
        "picstore": __version__,
        "source": listing.kind,
        "inputs": len(inputs),
        "inputs_sha256": listing.digest(),
        "encode": encode.to_json(),
        "shape": job.to_json(shape),
    }
    if resume and (destination / MANIFEST).is_file():
        return _already(destination, wanted)
    begun = job.begin(destination, wanted, resume=resume)
    if "rows" not in begun:
        mean = _mean_bytes(inputs, encode, workers)
        begun = {**begun, "rows": job.count_rows(len(inputs), mean, shape)}
        job.remember(destination, begun)
    rows = int(begun["rows"])
    with job.lock(destination), _marks(destination) as marks:
        destination.sweep()
        ready = ledger.finished_rows(destination, rows)
        tasks = deque(
            RowTask(
                destination, row, ids.start, inputs[ids.start : ids.stop], encode, shape, marks, listing.attachments
            )
            for row in sorted(set(range(rows)) - set(ready))
            for ids in [job.row_slice(len(inputs), rows, row)]
        )
        if progress is not None:
            progress.begin(len(inputs), len(inputs) - sum(len(task.inputs) for task in tasks))
        _run_rows(tasks, workers, progress)
        tallies = ledger.merge(destination, rows)
        total = sum(tallies, ledger.Tally())
        manifest = finish(
            destination,
            _collect(destination, tallies, shape.streams),
            streams=shape.streams,
            container_size=shape.container_size,
            classes=tuple(listing.classes),
            attachments=listing.attachments,
            encode=wanted.pop("encode"),
            provenance={**wanted, "outcome": total.outcome()},
        )
    job.end(destination)
    return Converted(manifest, total)


@contextlib.contextmanager
def _marks(destination: Location) -> Iterator[Path]:
    """A folder for the rows' positions: files that are written in place, which no object store can do."""
    if isinstance(destination, Folder):
        yield destination.path / UNFINISHED
        return
    with tempfile.TemporaryDirectory(prefix="picstore-") as folder:
        yield Path(folder)


def _already(root: Location, wanted: dict[str, Any]) -> Converted:
    """What to say when the data set that is to be resumed is finished."""
    manifest = read_manifest(root)
    made = {"encode": manifest.encode, **manifest.provenance}
    made.pop("outcome", None)
    if made != wanted:
        raise UsageError(f"{root} is already a data set, made of other inputs or with other settings")
    tally = ledger.Tally()
    for line in ledger.read_lines(root / LEDGER):
        tally.add(line)
    job.end(root)
    return Converted(manifest, tally)


def _run_rows(tasks: deque[RowTask], workers: int, progress: Progress | None) -> None:
    """Run the rows. A row whose process dies runs again; the input at which it dies twice is blamed and left out."""
    suspects: set[int] = set()
    report = progress.advance if progress is not None else lambda _: None
    for task, outcome in engine.run(convert_row, tasks, workers=workers, report=report):
        if isinstance(outcome, engine.Died):
            suspect = _position(task)
            if suspect in task.blamed:
                raise PicstoreError(f"row {task.row} of {task.root} died again and again: {outcome}")
            if suspect in suspects:
                task = replace(task, blamed={**task.blamed, suspect: f"ended the process that decoded it: {outcome}"})
            suspects.add(suspect)
            tasks.append(task)


def _position(task: RowTask) -> int:
    """The id at which a row's process was when it died."""
    try:
        written = task.position.read_bytes()
    except FileNotFoundError:
        written = b""
    return int.from_bytes(written, "little") if written else task.first_id


def convert_row(task: RowTask, report: engine.Report) -> None:
    """Write file ``task.row`` of every stream and then the row's ledger fragment.

    Holds one container a stream and one image in memory.
    """
    lines = []
    descriptor = os.open(task.position, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        with RowWriter(
            task.root,
            row=task.first_file + task.row,
            streams=task.shape.streams,
            container_size=task.shape.container_size,
            seed=task.shape.seed,
            fields=task.attachments,
        ) as writer:
            for id_, source in enumerate(task.inputs, start=task.first_id):
                os.pwrite(descriptor, id_.to_bytes(8, "little"), 0)
                lines.append(_convert_one(source, id_, task, writer))
                report(1)
            writer.close()
    finally:
        os.close(descriptor)
    ledger.write_fragment(task.root, task.row, lines)
    task.position.unlink()


def _convert_one(source: Input, id_: int, task: RowTask, writer: RowWriter) -> ledger.Line:
    if id_ in task.blamed:
        return ledger.Line(source.name, id_, ledger.FAILED, task.blamed[id_])
    try:
        data = read_input(source)
        made = make_training_jpeg(data, settings=task.encode, name=source.name)
        attachments = _read_attachments(source)
        extra = _extra(source, made)
        writer.add(
            make_record(made.jpeg, id=id_, label=source.label, extra=extra, attachments=attachments, info=made.info)
        )
    except (ImageError, UsageError) as error:  # the latter for an extra that is too large
        return ledger.Line(source.name, id_, ledger.FAILED, str(error))
    return ledger.Line(source.name, id_, made.status, made.reason, len(data), len(made.jpeg))


def _extra(source: Input, made: TrainingJpeg) -> Any:
    """What a record says of its input: where it came from, and its targets in pixels of the stored image."""
    extra = {"path": source.name}
    if source.extra:
        extra |= json.loads(source.extra)
    return move_targets(extra, made.placement, annotated=source.annotated)


def _read_attachments(source: Input) -> dict[str, bytes]:
    return {name: _read_attachment(name, attached) for name, attached in source.attachments}


def _read_attachment(name: str, attached: Input) -> bytes:
    try:
        return read_input(attached)
    except ImageError as error:
        raise ImageError(f"{name} {attached.name} {error}") from error


def _mean_bytes(inputs: Sequence[Input], encode: EncodeSettings, workers: int) -> float:
    """Mean bytes of the images that the inputs will become, of a few converted in advance."""
    step = max(1, len(inputs) // _SAMPLES)
    tasks = deque((inputs[k], encode) for k in range(0, min(len(inputs), step * _SAMPLES), step))
    share = -(-len(tasks) // max(1, workers))
    chunks = deque([tuple(tasks)[k : k + share] for k in range(0, len(tasks), share)])
    sizes: list[int] = []
    for _, outcome in engine.run(measure, chunks, workers=workers):
        if not isinstance(outcome, engine.Died):
            sizes.extend(outcome)
    return sum(sizes) / len(sizes) if sizes else 1.0


def measure(chunk: Sequence[tuple[Input, EncodeSettings]], report: engine.Report) -> list[int]:
    """Bytes of the training JPEGs and attachments that some inputs become, those that fail left out."""
    sizes = []
    for source, encode in chunk:
        try:
            made = make_training_jpeg(read_input(source), settings=encode, name=source.name)
            attachments = _read_attachments(source)
        except ImageError:
            continue
        finally:
            report(0)
        sizes.append(len(made.jpeg) + sum(map(len, attachments.values())))
    return sizes


def _collect(root: Location, tallies: Sequence[ledger.Tally], streams: int) -> list[FileSummary]:
    """Read back the footers of all files; what they hold must be what the ledger says was written."""
    there = {name for name, _ in root.files()}
    places = [(stream, row) for row in range(len(tallies)) for stream in range(streams)]

    def read(place: tuple[int, int]) -> FileSummary:
        return read_summary(root, stream=place[0], file=place[1])

    by_row: dict[int, list[FileSummary]] = {}
    for summary in many(read, (place for place in places if file_name(*place) in there)):
        by_row.setdefault(summary.file, []).append(summary)
    summaries = []
    for row, tally in enumerate(tallies):
        found = by_row.get(row, [])
        if sum(summary.records for summary in found) != tally.images:
            raise PicstoreError(f"files of row {row} are missing in {root}; remove {root} and convert again")
        summaries.extend(found)
    return summaries
