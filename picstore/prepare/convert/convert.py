"""Converting a source: list it, cut it into rows, convert each row, write the manifest.

A row is the unit of work, of resuming and of blame: its files and its ledger fragment are a pure function of its inputs
and of the job, so any number of workers writes the same bytes, and a row that died is simply run again.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from picstore._version import __version__
from picstore.errors import ImageError, PicstoreError, UsageError
from picstore.prepare.convert import job, ledger
from picstore.prepare.convert.merge_shards import Converted, already, complete, tally_of
from picstore.prepare.convert.row_reuse import Kept, folder_of, kept_rows
from picstore.prepare.convert.row_writer import RowWriter, make_record
from picstore.prepare.engine import processes
from picstore.prepare.image.coordinates import map_targets
from picstore.prepare.image.mozjpeg import require_mozjpeg
from picstore.prepare.image.settings import IMAGE_TIMEOUT, EncodeSettings
from picstore.prepare.image.training_jpeg import TrainingJpeg, make_training_jpeg
from picstore.prepare.progress import Progress, ProgressCallback, progress_callback
from picstore.prepare.sources.inputs import Input, Listing, read_input
from picstore.prepare.sources.read_ahead import ReadAhead
from picstore.storage.location.local import Folder
from picstore.storage.location.resolve import MANIFEST, UNFINISHED, Location, Where, locate

_SAMPLES = 32  # images converted in advance to learn how many make a row
_POSITION = "row-{:06d}.at"


@dataclass(frozen=True, slots=True)
class RowTask:
    """All that one row needs.

    Attributes:
        marks: a folder of this machine for the rows' positions.
        attachments: names of those that records may have.
        blamed: inputs at which its process died before, with the reason.
        image_timeout: seconds that decoding and encoding an image may take; 0 is no limit.
        duplicates: those of its inputs that are left out, with the input that they repeat.
        first_file: number of the file that row 0 writes.
        kept: where the files of before lie that the row is to be made of as far as they go; see ``kept``.
    """

    root: Location
    row: int
    first_id: int
    inputs: Sequence[Input]
    encode: EncodeSettings
    shape: job.DatasetShape
    marks: Path
    attachments: tuple[str, ...] = ()
    blamed: dict[int, str] = field(default_factory=dict)
    image_timeout: float = 0
    duplicates: dict[int, int] = field(default_factory=dict)
    first_file: int = 0
    kept: Location | None = None

    @property
    def position(self) -> Path:
        """The file in which the row's process notes the input at which it is."""
        return self.marks / _POSITION.format(self.row)


def convert(  # noqa: PLR0913 - all but four have a default
    listing: Listing,
    destination: Where,
    *,
    encode: EncodeSettings,
    shape: job.DatasetShape,
    workers: int | processes.Engine,
    resume: bool = False,
    shard: job.Shard | None = None,
    progress: Progress | None = None,
    image_timeout: float = IMAGE_TIMEOUT,
) -> Converted:
    """Convert every input of a source into a new data set; inputs that fail stand in the ledger.

    Args:
        listing: the source.
        destination: a directory or a URL's place that does not exist, is empty, or (``resume``) was begun by the same
            job.
        workers: processes, or another engine; they do not change the result.
        shard: make only the rows of this shard, and no data set of them; see ``merge_shards``.
        image_timeout: seconds; an image whose decoding and encoding takes longer fails. 0 is no limit.

    Raises:
        UsageError, NotADataset, Unfinished: the destination cannot be used; see :func:`job.begin_job`.
        MissingDependency: the encoder asked for is not installed.
    """
    processes.start_fork_server(*encode.warmup_modules)
    clock = _Clock()
    destination = locate(destination)
    if encode.encoder == "mozjpeg":
        require_mozjpeg()
    inputs = listing.inputs
    wanted = describe(listing, encode, shape)
    outline = {**wanted, "classes": listing.classes, "attachments": list(listing.attachments)}
    if resume and (destination / MANIFEST).is_file():
        return already(destination, wanted)
    begun = job.begin_job(destination, wanted if shard is None else outline, resume=resume, shard=shard)
    if "rows" not in begun:
        samplers = workers if isinstance(workers, int) else processes.default_workers()
        mean = mean_bytes(inputs, encode, samplers, image_timeout)
        begun = {**begun, "rows": job.count_rows(len(inputs), mean, shape)}
    job.save_job(destination, begun, shard)
    rows = int(begun["rows"])
    doubles = listing.duplicates or {}
    clock.end("sampling")
    mine = range(rows) if shard is None else shard.rows(rows)
    with job.lock_job(destination, *([shard] if shard else [])), marks_of(destination) as marks:
        if shard is None:
            destination.sweep()
        ready = set(ledger.finished_rows(destination, rows)).intersection(mine)
        kept = kept_rows(destination) if resume else set()
        tasks = deque(
            RowTask(
                destination,
                row,
                ids.start,
                inputs[ids.start : ids.stop],
                encode,
                shape,
                marks,
                listing.attachments,
                image_timeout=image_timeout,
                duplicates={k: doubles[k] for k in ids if k in doubles} if doubles else {},
                kept=folder_of(destination, row) if row in kept else None,
            )
            for row in sorted(set(mine) - ready)
            for ids in [job.row_slice(len(inputs), rows, row)]
        )
        if progress is not None:
            total = sum(len(job.row_slice(len(inputs), rows, row)) for row in mine)
            progress.set_total(total, total - sum(len(task.inputs) for task in tasks))
        run_rows(tasks, processes.as_engine(workers), progress_callback(progress))
        clock.end("rows")
        if shard is not None:
            return Converted(None, tally_of(destination, mine), clock.seconds)
        done = complete(destination, {**outline, "rows": rows})
    job.remove_job(destination)
    clock.end("finishing")
    return replace(done, seconds=clock.seconds)


def describe(listing: Listing, encode: EncodeSettings, shape: job.DatasetShape) -> dict[str, Any]:
    """A conversion as its manifest tells of it; one that is resumed must be the same."""
    wanted = {
        "verb": "convert",
        "picstore": __version__,
        "source": listing.kind,
        "inputs": len(listing.inputs),
        "inputs_sha256": listing.digest(),
        "encode": encode.to_json(),
        "shape": job.settings_to_json(shape),
    }
    return wanted if listing.duplicates is None else {**wanted, "dedupe": True}


class _Clock:
    """Seconds of the stages, one after the other."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._since = time.monotonic()

    def end(self, stage: str) -> None:
        now = time.monotonic()
        self.seconds[stage], self._since = now - self._since, now


@contextlib.contextmanager
def marks_of(destination: Location) -> Iterator[Path]:
    """A folder for the rows' positions: files that are written in place, which no object store can do."""
    if isinstance(destination, Folder):
        yield destination.path / UNFINISHED
        return
    with tempfile.TemporaryDirectory(prefix="picstore-") as folder:
        yield Path(folder)


def run_rows(tasks: deque[RowTask], crew: processes.Engine, on_progress: ProgressCallback) -> None:
    """Run the rows. A row whose process dies runs again; the input at which it dies twice is blamed and left out.

    One that takes too long is left out at once: waiting again would hardly help.
    """
    suspects: set[int] = set()
    function = convert_row if isinstance(crew, processes.LocalEngine) else convert_row_apart
    for task, outcome in crew.run(function, tasks, on_progress=on_progress):
        if isinstance(outcome, processes.Died):
            suspect = _position(task)
            if suspect in task.blamed:
                raise PicstoreError(f"row {task.row} of {task.root} died again and again: {outcome}")
            if outcome.timed_out:
                reason = f"took longer than --image-timeout allows ({task.image_timeout:g} s)"
                task = replace(task, blamed={**task.blamed, suspect: reason})
            elif suspect in suspects:
                task = replace(task, blamed={**task.blamed, suspect: f"ended the process that decoded it: {outcome}"})
            suspects.add(suspect)
            tasks.append(task)


def convert_row_apart(task: RowTask, on_progress: ProgressCallback) -> None:
    """Convert a row in a process of its own on whatever machine this is, so that blame is laid where it was seen."""
    processes.start_fork_server(*task.encode.warmup_modules)
    with tempfile.TemporaryDirectory(prefix="picstore-") as marks:
        run_rows(deque([replace(task, marks=Path(marks))]), processes.LocalEngine(1), on_progress)


def _position(task: RowTask) -> int:
    """The id at which a row's process was when it died."""
    try:
        written = task.position.read_bytes()
    except FileNotFoundError:
        written = b""
    return int.from_bytes(written, "little") if written else task.first_id


def convert_row(task: RowTask, on_progress: ProgressCallback) -> None:
    """Write file ``task.row`` of every stream and then the row's ledger fragment.

    Holds one container a stream and one image in memory, and where the row keeps records one more a stream.
    """
    lines = []
    kept = Kept(task.kept, task.attachments)
    passed_over = kept.ids | task.duplicates.keys() | task.blamed.keys()
    read = (source for id_, source in enumerate(task.inputs, start=task.first_id) if id_ not in passed_over)
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
            with ReadAhead(read) as ahead:
                for id_, source in enumerate(task.inputs, start=task.first_id):
                    os.pwrite(descriptor, id_.to_bytes(8, "little"), 0)
                    lines.append(kept.move(id_, writer) or _convert_one(source, id_, task, writer, ahead))
                    on_progress(1)
            writer.close()
    finally:
        os.close(descriptor)
    ledger.write_fragment(task.root, task.row, lines)
    if task.kept is not None:
        task.kept.remove()
    task.position.unlink()


def _convert_one(source: Input, id_: int, task: RowTask, writer: RowWriter, ahead: ReadAhead) -> ledger.Line:
    if id_ in task.duplicates:
        return ledger.duplicate(source.name, id_, task.duplicates[id_])
    if id_ in task.blamed:
        return ledger.Line(source.name, id_, ledger.FAILED, task.blamed[id_])
    try:
        data = ahead.read(source)
        with processes.time_limit(task.image_timeout):
            made = make_training_jpeg(data, settings=task.encode, name=source.name)
        attachments = _read_attachments(source, ahead.read)
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
    elif source.annotated is None:
        return extra
    return map_targets(extra, made.coordinates, annotated=source.annotated)


def _read_attachments(source: Input, read: Callable[[Input], bytes]) -> dict[str, bytes]:
    return {name: _read_attachment(name, attached, read) for name, attached in source.attachments}


def _read_attachment(name: str, attached: Input, read: Callable[[Input], bytes]) -> bytes:
    try:
        return read(attached)
    except ImageError as error:
        raise ImageError(f"{name} {attached.name} {error}") from error


def mean_bytes(inputs: Sequence[Input], encode: EncodeSettings, workers: int, image_timeout: float) -> float:
    """Mean bytes of the images that the inputs will become, of a few converted in advance."""
    step = max(1, len(inputs) // _SAMPLES)
    tasks = deque((inputs[k], encode, image_timeout) for k in range(0, min(len(inputs), step * _SAMPLES), step))
    outcomes = [outcome for _, outcome in processes.run(size_of, tasks, workers=workers)]
    sizes = [size for size in outcomes if size is not None and not isinstance(size, processes.Died)]
    return sum(sizes) / len(sizes) if sizes else 1.0


def size_of(task: tuple[Input, EncodeSettings, float], _: ProgressCallback) -> int | None:
    """Bytes of the training JPEG and the attachments that an input becomes; None if it fails."""
    source, encode, image_timeout = task
    try:
        data = read_input(source)
        with processes.time_limit(image_timeout):
            made = make_training_jpeg(data, settings=encode, name=source.name)
        attachments = _read_attachments(source, read_input)
    except ImageError:
        return None
    return len(made.jpeg) + sum(map(len, attachments.values()))
