"""Job of a conversion: begin or resume a job, run its rows, and finish the dataset.

``convert`` builds a new dataset, or one shard of it. ``append_images`` and ``retry`` use the same :class:`Job`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from picstore._version import __version__
from picstore.cores import count_cores
from picstore.display.progress import Progress, begin_stage, progress_callback
from picstore.errors import ImageError, UsageError
from picstore.prepare.convert import ledger, resumable_job
from picstore.prepare.convert.finish_dataset import ConversionResult, finish_dataset, read_result
from picstore.prepare.convert.input_records import convert_sample
from picstore.prepare.convert.kernel_warmup import start_fork_server
from picstore.prepare.convert.row_division import DatasetShape, Shard, count_rows, row_slice
from picstore.prepare.convert.row_reuse import find_reusable_rows, reuse_folder
from picstore.prepare.convert.rows import RowTask, make_position_folder, run_rows
from picstore.prepare.engine import worker_processes
from picstore.prepare.image.encode_settings import IMAGE_TIMEOUT, EncodeSettings
from picstore.prepare.image.libvips import require_mozjpeg
from picstore.prepare.sources.inputs import Input, Listing, read_input
from picstore.storage.format.layout import MAX_CONTAINER
from picstore.storage.location.resolve import MANIFEST, Location, Where, WritableLocation, locate_writable

# Largest number of inputs to sample; their sizes serve to choose the number of rows, and later to recognize the source.
_SAMPLES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertOptions:
    """Options that convert, append and retry share.

    Attributes:
        workers: number of worker processes, or an engine that runs tasks; the dataset's bytes do not depend on it.
        image_timeout: seconds for decoding and encoding one image; an image that takes longer fails. 0 sets no limit.
        references: folder of the images, for an index (dataset that refers to images); None to store the images.
    """

    encode: EncodeSettings
    shape: DatasetShape
    workers: int | worker_processes.Engine
    progress: Progress | None = None
    image_timeout: float = IMAGE_TIMEOUT
    references: Location | None = None


# Function that builds the dataset after the job's last row. Its argument has, by index of each row that this run
# converted, the counts and checksum of the row's ledger lines.
Finish: TypeAlias = Callable[[Mapping[int, ledger.WrittenFragment]], ConversionResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Conversion of a source in rows; a row is a range of inputs that becomes one file in each stream (sub-directory).

    Attributes:
        root: folder of the dataset.
        listing: inputs of the source; their labels are indices of the dataset's classes.
        settings: settings that the manifest records; a job can be resumed only with equal settings.
        saved: content of the job file: ``settings``, and values chosen when the job began, such as the number of rows.
        shard: shard whose rows this run converts; None for all rows.
        reuse: whether to copy records from the rows' previous files, which ``convert --retry-failed`` saved.
    """

    root: WritableLocation
    listing: Listing
    options: ConvertOptions
    settings: dict[str, Any]
    saved: dict[str, Any] = field(default_factory=dict)
    shard: Shard | None = None
    reuse: bool = False

    @classmethod
    def describe(
        cls, root: WritableLocation, listing: Listing, options: ConvertOptions, shard: Shard | None = None
    ) -> Job:
        """Return a new job, with settings that describe the listing and the options; write nothing."""
        settings = {
            "verb": "convert" if options.references is None else "index",
            "picstore": __version__,
            "source": listing.kind,
            "inputs": len(listing.inputs),
            "inputs_sha256": listing.digest(),
            "encode": options.encode.to_json() if options.references is None else None,
            "shape": asdict(options.shape),
        }
        if options.references is not None:
            settings["references"] = str(options.references)
        if listing.targets:
            settings["targets"] = listing.targets
        if listing.maps:
            settings["maps"] = listing.maps
        if listing.partition is not None:
            settings["index"] = listing.partition.uuid
        if listing.duplicates is not None:
            settings["dedupe"] = True
        return cls(root=root, listing=listing, options=options, settings=settings, shard=shard)

    def begin(self, *, resume: bool) -> Job:
        """Return this job with ``saved``: the job file's content if the job is resumed, else new content.

        Errors are those of ``begin_job`` and :meth:`require_same_images`.
        """
        settings, inputs = self.settings, self.listing.inputs
        # ``merge_shards`` reads the names for the manifest from the shards' job files.
        if self.shard is not None:
            names = {"classes": self.listing.classes, "attachments": list(self.listing.attachments)}
            settings = {**settings, **names}
        saved = resumable_job.begin_job(self.root, settings, resume=resume, shard=self.shard)
        if "rows" in saved:
            return replace(self, saved=saved, reuse=resume).require_same_images()
        saved = {**saved, "rows": choose_rows(self.listing, self.options)}
        if self.shard is None:
            saved = resumable_job.new_job(**saved, samples=sample_sizes(inputs))
        return replace(self, saved=saved, reuse=resume)

    def require_same_images(self) -> Job:
        """Return this job; raise UsageError if it was begun when the source had other images with the same names."""
        samples = self.saved.get("samples")
        if samples is not None and not same_images(sample_sizes(self.listing.inputs), samples):
            raise UsageError(
                f"{self.root} was begun with other images of the same names; give the source that it was begun with"
            )
        return self

    def hold(self) -> AbstractContextManager[bool]:
        return resumable_job.hold_job(self.root, self.saved, self.shard)

    def run(self, clock: StageClock, finish: Finish) -> ConversionResult:
        """Convert the unfinished rows of this locked job; then call ``finish`` to build the dataset.

        The job of a shard does not call ``finish``, because ``merge_shards`` builds the dataset. Raise PicstoreError if
        the process that converts a row keeps dying.
        """
        with make_position_folder(self.root) as position_folder:
            if self.shard is None:
                self.root.sweep()
            tasks = self._make_tasks(position_folder)
            total = sum(len(self._row_inputs(row)) for row in self._own_rows)
            clock.begin_stage("rows", total, total - sum(len(task.inputs) for task in tasks))
            engine = worker_processes.as_engine(self.options.workers)
            written = run_rows(tasks, engine, progress_callback(self.options.progress))
            clock.end_stage()
            if self.shard is not None:
                fragments = ledger.read_fragments(self.root, self._own_rows)
                return ConversionResult(None, sum(map(ledger.tally_fragment, fragments), ledger.Tally()), clock.seconds)
        clock.begin_stage("finishing")
        result = finish(written)
        resumable_job.remove_job(self.root)
        clock.end_stage()
        return replace(result, seconds=clock.seconds)

    @property
    def rows(self) -> int:
        """Number of rows (files of each stream) that the whole conversion writes, including rows of other shards."""
        return int(self.saved["rows"])

    @property
    def first_id(self) -> int:
        """Id of the job's first input: 0 for a new dataset; for an append, above the ids of all earlier inputs."""
        return int(self.saved.get("first_id", 0))

    @property
    def first_file(self) -> int:
        """Number of row 0's file in each stream: 0 for a new dataset; for an append, above all existing numbers."""
        return int(self.saved.get("first_file", 0))

    @property
    def _own_rows(self) -> range:
        return range(self.rows) if self.shard is None else self.shard.rows(self.rows)

    def _row_inputs(self, row: int) -> range:
        if self.listing.partition is not None:
            return range(*self.listing.partition.rows[row : row + 2])
        return row_slice(len(self.listing.inputs), self.rows, row)

    def _make_tasks(self, position_folder: Path) -> deque[RowTask]:
        """Return a task for each row that this run must convert and that is not finished yet."""
        root, options, duplicates = self.root, self.options, self.listing.duplicates or {}
        finished = set(ledger.finished_rows(root, self.rows))
        reusable = find_reusable_rows(root) if self.reuse else set()
        # If the source is an index, containers end where the index's containers end (``container_starts``). Raise the
        # size limit of containers to the maximum, so that it does not end one earlier.
        shape = replace(options.shape, container_size=MAX_CONTAINER) if self.listing.partition else options.shape
        return deque(
            RowTask(
                root,
                row,
                self._ids(numbers),
                self.listing.inputs[numbers.start : numbers.stop],
                options.encode,
                shape,
                position_folder,
                self.listing.attachments,
                image_timeout=options.image_timeout,
                duplicates={
                    self.first_id + k: self.first_id + duplicates[k]
                    for k in (numbers if duplicates else ())
                    if k in duplicates
                },
                first_file=self.first_file,
                reuse=reuse_folder(root, row) if row in reusable else None,
                container_starts=self._container_starts(numbers),
                references=options.references,
                maps=self.listing.maps,
            )
            for row in self._own_rows
            if row not in finished
            for numbers in [self._row_inputs(row)]
        )

    def _ids(self, numbers: range) -> Sequence[int]:
        if self.listing.partition is not None:
            return self.listing.partition.ids[numbers.start : numbers.stop]
        return range(self.first_id + numbers.start, self.first_id + numbers.stop)

    def _container_starts(self, numbers: range) -> frozenset[int]:
        partition = self.listing.partition
        if partition is None:
            return frozenset()
        first, stop = np.searchsorted(partition.containers, (numbers.start, numbers.stop))
        return frozenset(partition.ids[k] for k in partition.containers[first:stop])


class StageClock:
    """Clock of a conversion's stages, such as "sampling", which announces each stage to a progress display."""

    def __init__(self, progress: Progress | None, stage: str = "", since: float = 0.0) -> None:
        self.seconds: dict[str, float] = {}
        self._progress = progress
        self._stage, self._since = stage, since

    def begin_stage(self, stage: str, total: int | None = None, done: int = 0) -> None:
        """End the current stage, if any, and begin ``stage``; earlier runs did ``done`` of its ``total`` inputs."""
        self.end_stage()
        self._stage, self._since = stage, time.monotonic()
        begin_stage(self._progress, stage, total, done)

    def end_stage(self) -> None:
        """Store in ``seconds`` how long the current stage took; do nothing between stages."""
        if self._stage:
            self.seconds[self._stage] = time.monotonic() - self._since
            self._stage = ""


def convert(
    listing: Listing,
    destination: Where,
    options: ConvertOptions,
    *,
    resume: bool = False,
    shard: Shard | None = None,
) -> ConversionResult:
    """Convert every input of a source into a new dataset; the ledger lists inputs that fail.

    With ``shard``, only the shard's rows are converted; ``merge_shards`` later builds the dataset. Arguments and errors
    are those of :func:`picstore.convert`.
    """
    if listing.partition is not None:
        if shard is not None or listing.duplicates is not None:
            require_no_partition(listing)
        options = replace(options, shape=replace(options.shape, streams=1))
    clock = begin_clock(options)
    root = locate_writable(destination)
    job = Job.describe(root, listing, options, shard)
    if resume and (root / MANIFEST).is_file():
        return read_result(root, job.settings)
    job = job.begin(resume=resume)
    classes, attachments = listing.classes, listing.attachments
    finish = partial(finish_dataset, root, job.settings, rows=job.rows, classes=classes, attachments=attachments)
    with job.hold():
        resumable_job.require_free(root, shard)
        return job.run(clock, finish)


def begin_clock(options: ConvertOptions) -> StageClock:
    """Start the fork server and a clock in the stage "sampling"; raise MissingDependency if the encoder is missing."""
    clock = StageClock(options.progress)
    clock.begin_stage("sampling")
    start_fork_server(options.encode)
    if options.encode.encoder == "mozjpeg":
        require_mozjpeg()
    return clock


def require_no_partition(listing: Listing) -> None:
    """Raise UsageError if the source is an index, which can only be converted as a whole, into a new dataset."""
    if listing.partition is not None:
        raise UsageError("an index is converted as a whole; leave out --append, --retry-failed, --shard and --dedupe")


def choose_rows(listing: Listing, options: ConvertOptions) -> int:
    """Return a conversion's number of rows (ranges of inputs): as in a source that is an index, else by a sample."""
    inputs = listing.inputs
    if listing.partition is not None:
        return len(listing.partition.rows) - 1
    if options.references is not None:
        sizes = sample_sizes(inputs)
        return count_rows(len(inputs), max(1.0, sum(sizes) / len(sizes)), options.shape)
    engine = worker_processes.as_engine(options.workers)
    # Convert the sample on this machine, even if a cluster then converts the rows: it has at most _SAMPLES inputs.
    if not isinstance(engine, worker_processes.LocalEngine):
        engine = worker_processes.LocalEngine(count_cores())
    tasks = deque(
        (k, inputs[k], options.encode, options.image_timeout, listing.maps) for k in sample_numbers(len(inputs))
    )
    converted = [size for _, size in engine.run(convert_sample, tasks) if isinstance(size, int)]
    return count_rows(len(inputs), sum(converted) / len(converted) if converted else 1.0, options.shape)


def sample_numbers(inputs: int) -> range:
    """Return the indices of up to ``_SAMPLES`` evenly spaced inputs out of ``inputs`` inputs."""
    step = max(1, inputs // _SAMPLES)
    return range(0, min(inputs, step * _SAMPLES), step)


def sample_sizes(inputs: Sequence[Input]) -> list[int]:
    """Read the sampled inputs and return their sizes in bytes; 0 for an input that cannot be read."""
    return [_size(inputs[k]) for k in sample_numbers(len(inputs))]


def _size(source: Input) -> int:
    try:
        return len(read_input(source))
    except ImageError:
        return 0


def same_images(sizes: Sequence[int], others: Sequence[int]) -> bool:
    """Return whether at least half of the sampled inputs have equal sizes in both lists; ignore size 0 (unknown)."""
    pairs = [(size, other) for size, other in zip(sizes, others, strict=True) if size and other]
    return 2 * sum(size == other for size, other in pairs) >= len(pairs)
