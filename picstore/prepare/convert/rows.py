"""Rows of a conversion: the inputs of a row become one file of each stream and a ledger fragment.

A row's bytes depend on its inputs and on the job only, so any number of workers writes the same dataset, and a row
whose process died can run again. This module also leaves out images at which processes die or time out.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from picstore.display.progress import ProgressCallback
from picstore.errors import ImageError, PicstoreError, UsageError
from picstore.prepare.convert import ledger
from picstore.prepare.convert.input_records import GroupedInput, group_inputs, make_input_record
from picstore.prepare.convert.kernel_warmup import start_fork_server
from picstore.prepare.convert.row_division import DatasetShape
from picstore.prepare.convert.row_reuse import ReusableRow
from picstore.prepare.convert.row_writer import RowWriter, write_row_counts
from picstore.prepare.engine import worker_processes
from picstore.prepare.image.encode_settings import EncodeSettings
from picstore.prepare.sources.inputs import Input, ReadAhead
from picstore.storage.location.local import Folder
from picstore.storage.location.resolve import UNFINISHED, Location, WritableLocation


@dataclass(frozen=True, slots=True)
class RowTask:
    """Task to convert a row of the job: a range of inputs, which becomes a file in each stream, and ledger lines.

    Attributes:
        blamed: reason, by id, of each input that is left out because it ended a worker process.
        image_timeout: seconds for decoding and encoding an image; 0 for no limit.
        duplicates: id of the first input with the same bytes, by the id of each duplicate. Duplicates are left out.
        first_file: number of row 0's file.
        reuse: folder of the row's previous files, for a retry; see :mod:`picstore.prepare.convert.row_reuse`.
        container_starts: ids of the inputs that begin a container (block of records), if the source is an index.
        references: folder of the source's files, for records that refer to images; None to store images.
        maps: specifications of maps as in the manifest, by attachment name.
        one_by_one: whether to finish each input before reading the next, to learn which input ends the process.
    """

    root: WritableLocation
    row: int
    ids: Sequence[int]
    inputs: Sequence[Input]
    encode: EncodeSettings
    shape: DatasetShape
    position_folder: Path
    attachments: tuple[str, ...] = ()
    blamed: dict[int, str] = field(default_factory=dict)
    image_timeout: float = 0
    duplicates: dict[int, int] = field(default_factory=dict)
    first_file: int = 0
    reuse: WritableLocation | None = None
    container_starts: frozenset[int] = frozenset()
    references: Location | None = None
    maps: dict[str, Any] = field(default_factory=dict)
    one_by_one: bool = False

    @property
    def groups_inputs(self) -> bool:
        """Whether inputs are converted in groups; attachments, references or ``one_by_one`` exclude this."""
        return not self.one_by_one and not self.attachments and self.references is None

    @property
    def position_file(self) -> Path:
        """Path of the file to which a worker writes the id of its current input, to be read if the worker dies."""
        return self.position_folder / f"row-{self.row:06d}.at"


@contextlib.contextmanager
def make_position_folder(root: WritableLocation) -> Iterator[Path]:
    """Yield a local folder for the rows' ``position_file``: a temporary folder if the dataset is in an object store."""
    if isinstance(root, Folder):
        yield root.path / UNFINISHED
        return
    with tempfile.TemporaryDirectory(prefix="picstore-") as folder:
        yield Path(folder)


def run_rows(
    tasks: deque[RowTask], engine: worker_processes.Engine, on_progress: ProgressCallback
) -> dict[int, ledger.WrittenFragment]:
    """Convert rows of the job; return, by row, the tally and checksum of the ledger lines written.

    If a process dies, its row runs again. An input that ends two processes, or exceeds ``image_timeout`` once, is left
    out. Raise PicstoreError if a process dies at an input that is already left out.
    """
    written: dict[int, ledger.WrittenFragment] = {}
    suspects: set[int] = set()
    function = convert_row if isinstance(engine, worker_processes.LocalEngine) else convert_row_remotely
    for task, outcome in engine.run(function, tasks, on_progress=on_progress):
        if isinstance(outcome, worker_processes.Died):
            suspect = _read_position(task)
            if suspect in task.blamed:
                raise PicstoreError(f"row {task.row} of {task.root} died again and again: {outcome}")
            if outcome.timed_out:
                reason = f"took longer than --image-timeout allows ({task.image_timeout:g} s)"
                task = replace(task, blamed={**task.blamed, suspect: reason})
            elif suspect in suspects:
                task = replace(task, blamed={**task.blamed, suspect: f"ended the process that decoded it: {outcome}"})
            suspects.add(suspect)
            tasks.append(replace(task, one_by_one=True))
        else:
            written[task.row] = outcome
    return written


def convert_row_remotely(task: RowTask, on_progress: ProgressCallback) -> ledger.WrittenFragment:
    """Convert a row in a child process of a cluster's task, so that the task learns which input ends the process."""
    start_fork_server(task.encode)
    with tempfile.TemporaryDirectory(prefix="picstore-") as folder:
        tasks = deque([replace(task, position_folder=Path(folder))])
        return run_rows(tasks, worker_processes.LocalEngine(1), on_progress)[task.row]


def _read_position(task: RowTask) -> int:
    written = task.position_file.read_bytes() if task.position_file.is_file() else b""
    return int.from_bytes(written, "little") if written else task.ids[0]


def convert_row(task: RowTask, on_progress: ProgressCallback) -> ledger.WrittenFragment:
    """Convert a row of the job: write a file in each stream (folder) of the dataset, then the row's ledger lines.

    Memory holds one image or group of small images, and one container (block of records) of each file written or, in a
    retry, copied from.
    """
    lines = []
    reusable = ReusableRow(task.reuse, task.attachments)
    unread = reusable.settled_ids | task.duplicates.keys() | task.blamed.keys()
    numbered = list(zip(task.ids, task.inputs, strict=True))
    sources = (source for id_, source in numbered if id_ not in unread)
    descriptor = os.open(task.position_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        with RowWriter(task.root, row=task.first_file + task.row, shape=task.shape, fields=task.attachments) as writer:
            with ReadAhead(sources) as ahead:

                def read(id_: int, source: Input) -> bytes:
                    os.pwrite(descriptor, id_.to_bytes(8, "little"), 0)
                    return ahead.read(source)

                inputs: Iterator[GroupedInput] = (GroupedInput(id_, source) for id_, source in numbered)
                if task.groups_inputs:
                    inputs = group_inputs(numbered, read, task.encode, unread.__contains__)
                for each in inputs:
                    os.pwrite(descriptor, each.id.to_bytes(8, "little"), 0)
                    if each.id in task.container_starts:
                        writer.end_containers()
                    lines.append(reusable.copy_record(each.id, writer) or _convert_input(each, task, writer, ahead))
                    on_progress(1)
            writer.close()
            write_row_counts(task.root, task.row, writer.counts)
    finally:
        os.close(descriptor)
    written = ledger.write_fragment(task.root, task.row, lines)
    if task.reuse is not None:
        task.reuse.remove()
    task.position_file.unlink()
    return written


def _convert_input(each: GroupedInput, task: RowTask, writer: RowWriter, ahead: ReadAhead) -> ledger.LedgerLine:
    source, id_ = each.source, each.id
    if id_ in task.duplicates:
        return ledger.duplicate_line(source.name, id_, task.duplicates[id_])
    if id_ in task.blamed:
        return ledger.LedgerLine(source.name, id_, ledger.FAILED, task.blamed[id_])
    try:
        found = make_input_record(
            each,
            ahead.read,
            encode=task.encode,
            image_timeout=task.image_timeout,
            references=task.references,
            maps=task.maps,
        )
        writer.add(found.record, referenced=found.referenced)
    except (ImageError, UsageError) as error:
        return ledger.LedgerLine(source.name, id_, ledger.FAILED, str(error), lost=source.lost or None)
    made = found.made
    return ledger.LedgerLine(source.name, id_, made.status, made.reason, found.source_bytes, len(made.jpeg))
