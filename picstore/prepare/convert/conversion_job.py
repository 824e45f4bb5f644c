"""Conversion driver: start the engine, begin or find the job, run its rows, finish the data set.

``convert`` makes a new data set, or one shard of it. ``append`` and ``retry`` use the same driver, :func:`run_job`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from picstore._version import __version__
from picstore.cores import count_cores
from picstore.errors import UsageError
from picstore.prepare.convert import ledger, resumable_job
from picstore.prepare.convert.finish_dataset import ConversionResult, finish_dataset, read_result
from picstore.prepare.convert.kernel_warmup import start_fork_server
from picstore.prepare.convert.row_reuse import find_reusable_rows, reuse_folder
from picstore.prepare.convert.rows import RowTask, make_position_folder, run_rows, sample_mean_bytes
from picstore.prepare.convert.source_samples import same_images, sample_sizes
from picstore.prepare.engine import worker_processes
from picstore.prepare.image.encode_settings import IMAGE_TIMEOUT, EncodeSettings
from picstore.prepare.image.mozjpeg import require_mozjpeg
from picstore.prepare.progress import Progress, begin_stage, progress_callback
from picstore.prepare.sources.inputs import Input, Listing, Partition
from picstore.storage.format.layout import MAX_CONTAINER
from picstore.storage.location.resolve import MANIFEST, Location, Where, WritableLocation, locate_writable


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertOptions:
    """Options that convert, append and retry share.

    Attributes:
        workers: processes, or another engine; they do not change the result.
        image_timeout: seconds for decoding and encoding an image, which fails if it takes longer; 0 is no limit.
        references: folder of the source's files, for an index, which refers to images below it; None to store them.
    """

    encode: EncodeSettings
    shape: resumable_job.DatasetShape
    workers: int | worker_processes.Engine
    progress: Progress | None = None
    image_timeout: float = IMAGE_TIMEOUT
    references: Location | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPlan:
    """Division of a job's inputs into rows.

    Attributes:
        rows: number of rows of the whole job, of which ``shard`` selects some.
        duplicates: numbers of inputs that are left out, with the number of the input that each repeats.
        attachments: names of the attachments that records may have.
        first_id, first_file: id of input 0, and number of the files of row 0.
        reuse: look for former files of rows, which a retry left.
        partition: ids, containers and rows that the inputs have in their source.
    """

    inputs: Sequence[Input]
    rows: int
    duplicates: Mapping[int, int]
    attachments: tuple[str, ...]
    shard: resumable_job.Shard | None = None
    first_id: int = 0
    first_file: int = 0
    reuse: bool = False
    partition: Partition | None = None

    @property
    def own_rows(self) -> range:
        """Numbers of the rows to make, finished or not."""
        return range(self.rows) if self.shard is None else self.shard.rows(self.rows)

    def row_inputs(self, row: int) -> range:
        """Return the numbers of a row's inputs."""
        if self.partition is not None:
            return range(*self.partition.rows[row : row + 2])
        return resumable_job.row_slice(len(self.inputs), self.rows, row)

    def make_tasks(self, root: WritableLocation, options: ConvertOptions, position_folder: Path) -> deque[RowTask]:
        """Make the tasks of all rows that are not finished."""
        finished = set(ledger.finished_rows(root, self.rows))
        reusable = find_reusable_rows(root) if self.reuse else set()
        # With a partition, only that ends containers.
        shape = replace(options.shape, container_size=MAX_CONTAINER) if self.partition else options.shape
        return deque(
            RowTask(
                root,
                row,
                self._ids(numbers),
                self.inputs[numbers.start : numbers.stop],
                options.encode,
                shape,
                position_folder,
                self.attachments,
                image_timeout=options.image_timeout,
                duplicates={
                    self.first_id + k: self.first_id + self.duplicates[k]
                    for k in (numbers if self.duplicates else ())
                    if k in self.duplicates
                },
                first_file=self.first_file,
                reuse=reuse_folder(root, row) if row in reusable else None,
                container_starts=self._container_starts(numbers),
                references=options.references,
            )
            for row in self.own_rows
            if row not in finished
            for numbers in [self.row_inputs(row)]
        )

    def _ids(self, numbers: range) -> Sequence[int]:
        if self.partition is not None:
            return self.partition.ids[numbers.start : numbers.stop]
        return range(self.first_id + numbers.start, self.first_id + numbers.stop)

    def _container_starts(self, numbers: range) -> frozenset[int]:
        if self.partition is None:
            return frozenset()
        first, stop = np.searchsorted(self.partition.containers, (numbers.start, numbers.stop))
        return frozenset(self.partition.ids[k] for k in self.partition.containers[first:stop])


Finish: TypeAlias = Callable[[Mapping[int, ledger.WrittenFragment]], ConversionResult]  # of what run_rows returned


class StageClock:
    """Seconds of the stages of a conversion, one after the other, which a display names as they begin."""

    def __init__(self, progress: Progress | None, stage: str = "", since: float = 0.0) -> None:
        self.seconds: dict[str, float] = {}
        self._progress = progress
        self._stage, self._since = stage, since

    def begin_stage(self, stage: str, total: int | None = None, done: int = 0) -> None:
        """End the stage before, and begin another."""
        self.end_stage()
        self._stage, self._since = stage, time.monotonic()
        begin_stage(self._progress, stage, total, done)

    def end_stage(self) -> None:
        """Record how long the current stage took, if there is one."""
        if self._stage:
            self.seconds[self._stage] = time.monotonic() - self._since
            self._stage = ""


def convert(
    listing: Listing,
    destination: Where,
    options: ConvertOptions,
    *,
    resume: bool = False,
    shard: resumable_job.Shard | None = None,
) -> ConversionResult:
    """Convert every input of a source into a new data set; the ledger lists inputs that fail.

    Args:
        destination: a path or URL that does not exist or is empty, or, with ``resume``, where the same job was begun.
        shard: convert only the rows of this shard, and make no data set of them; see ``merge_shards``.

    Raises:
        UsageError, NotADataset, Unfinished, Damage: the destination cannot be used, or another process is at work
            there; see :mod:`resumable_job`. The job was begun with other images.
        MissingDependency: the encoder asked for is not installed.
        PicstoreError: a row dies again and again, or its files were lost.
    """
    if listing.partition is not None:
        if shard is not None or listing.duplicates is not None:
            require_no_partition(listing)
        options = replace(options, shape=replace(options.shape, streams=1))
    clock = StageClock(options.progress)
    clock.begin_stage("sampling")
    start_engine(options.encode)
    root = locate_writable(destination)
    settings = describe_job(listing, options)
    outline = {**settings, "classes": listing.classes, "attachments": list(listing.attachments)}
    if resume and (root / MANIFEST).is_file():
        return read_result(root, settings)
    begun = resumable_job.begin_job(root, settings if shard is None else outline, resume=resume, shard=shard)
    if "rows" not in begun:
        begun = {**begun, "rows": choose_rows(listing, options)}
        begun = begun if shard else resumable_job.new_job(**begun, samples=sample_sizes(listing.inputs))
    else:
        require_same_images(root, begun, listing)
    rows = int(begun["rows"])
    plan = RowPlan(
        inputs=listing.inputs,
        rows=rows,
        duplicates=listing.duplicates or {},
        attachments=listing.attachments,
        shard=shard,
        reuse=resume,
        partition=listing.partition,
    )
    with resumable_job.hold_job(root, begun, shard):
        resumable_job.require_free(root, shard)
        return run_job(root, plan, options, clock, partial(finish_dataset, root, {**outline, "rows": rows}))


def start_engine(encode: EncodeSettings) -> None:
    """Start the fork server; MissingDependency if the encoder is not installed."""
    start_fork_server(encode)
    if encode.encoder == "mozjpeg":
        require_mozjpeg()


def describe_job(listing: Listing, options: ConvertOptions) -> dict[str, Any]:
    """Describe a conversion as its manifest's provenance does; a resumed one must be described alike."""
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
    if listing.partition is not None:
        settings["index"] = listing.partition.uuid
    return settings if listing.duplicates is None else {**settings, "dedupe": True}


def require_no_partition(listing: Listing) -> None:
    """Refuse an index as a source of rows that are divided anew; UsageError."""
    if listing.partition is not None:
        raise UsageError("an index is converted as a whole; leave out --append, --retry-failed, --shard and --dedupe")


def require_same_images(root: Location, begun: dict[str, Any] | None, listing: Listing) -> None:
    """Refuse to go on with the job of another source, whose images have the same names; UsageError."""
    if begun and "samples" in begun and not same_images(sample_sizes(listing.inputs), begun["samples"]):
        raise UsageError(
            f"{root} was begun with other images of the same names; give the source that it was begun with"
        )


def choose_rows(listing: Listing, options: ConvertOptions) -> int:
    """Choose the number of rows: as many as the source's parts, or by converting a sample of the inputs."""
    inputs = listing.inputs
    if listing.partition is not None:
        return len(listing.partition.rows) - 1
    if options.references is not None:
        sizes = sample_sizes(inputs)
        return resumable_job.count_rows(len(inputs), max(1.0, sum(sizes) / len(sizes)), options.shape)
    engine = worker_processes.as_engine(options.workers)
    if not isinstance(engine, worker_processes.LocalEngine):  # the sample of a cluster is converted here
        engine = worker_processes.LocalEngine(count_cores())
    mean_bytes = sample_mean_bytes(inputs, options.encode, engine, options.image_timeout)
    return resumable_job.count_rows(len(inputs), mean_bytes, options.shape)


def run_job(
    root: WritableLocation, plan: RowPlan, options: ConvertOptions, clock: StageClock, finish: Finish
) -> ConversionResult:
    """Run the unfinished rows of a job; unless they are a shard's, ``finish`` then writes ledger, index and manifest.

    The caller holds the job. PicstoreError if a row dies again and again.
    """
    with make_position_folder(root) as position_folder:
        if plan.shard is None:
            root.sweep()
        tasks = plan.make_tasks(root, options, position_folder)
        total = sum(len(plan.row_inputs(row)) for row in plan.own_rows)
        clock.begin_stage("rows", total, total - sum(len(task.inputs) for task in tasks))
        written = run_rows(tasks, worker_processes.as_engine(options.workers), progress_callback(options.progress))
        clock.end_stage()
        if plan.shard is not None:
            tally = sum(map(ledger.tally_fragment, ledger.read_fragments(root, plan.own_rows)), ledger.Tally())
            return ConversionResult(None, tally, clock.seconds)
    clock.begin_stage("finishing")
    result = finish(written)
    resumable_job.remove_job(root)
    clock.end_stage()
    return replace(result, seconds=clock.seconds)
