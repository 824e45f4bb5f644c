"""The column that ``picstore.map`` makes: parts that an interrupted run keeps, their values joined, and the ledger.

A run keeps its state in ``mapping/COLUMN/`` of the dataset: the job, locked while it runs, and a file for each part
that is done. Nothing else of the dataset changes before all parts are done.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from picstore.arrays import I64
from picstore.display.progress import Progress, begin_stage, progress_callback
from picstore.errors import Conflict, TooManyFailures, Unfinished, UsageError, counted
from picstore.prepare.engine.worker_processes import Engine, LocalEngine, run_each
from picstore.storage.dataset import Dataset
from picstore.storage.format.checksum import crc32c
from picstore.storage.format.layout import MAX_MANIFEST
from picstore.storage.location.resolve import Location, WritableLocation, locate_writable
from picstore.train.map_batches import (
    TEXT,
    Failure,
    Form,
    MapJob,
    MapTask,
    PartValues,
    join_values,
    map_parts,
    require_form,
    run_map_task,
)
from picstore.train.transforms.arguments import name_of

MAPPING = "mapping"  # subfolder of a dataset's folder, for the files of maps (computations of a column) under way
_BATCHES_A_PART = 4  # minimum number of batches of a part, so that its last batch, which is smaller, costs little
_MOST_PARTS = 4096  # approximate maximum number of parts of a map, because each part is a file until the map ends
_MAX_PART = 1 << 32  # maximum size of a part's file in bytes
_MAX_ATTEMPTS = 100  # number of attempts to save while other processes edit the dataset


@dataclass(frozen=True, slots=True)
class MappedColumn:
    """Saved column: uuid of the saved version, number and ``Form`` of the values, failures, and ledger's location."""

    uuid: str
    values: int
    form: Form | None
    failures: tuple[Failure, ...]
    ledger: str | None


def make_mapped_column(
    dataset: Dataset,
    job: MapJob,
    column: str,
    *,
    settings: Mapping[str, Any],
    engine: Engine | int,
    resume: bool,
    limit: float,
    progress: Progress | None = None,
) -> MappedColumn:
    """Call the job's function for all images of a dataset or selection, and save the values as a column.

    Args:
        settings: what determines the values, as JSON; a resumed run must have equal settings.
        engine: engine of processes; or the number of threads of this process that make batches.
        limit: maximum number of failed images with which the column is saved.

    Raises:
        UsageError: the dataset cannot be edited, the column's name or values are not allowed, or another process is
            making the column.
        Unfinished: an earlier run was interrupted, and ``resume`` is false.
        TooManyFailures: more than ``limit`` images failed; the finished parts are kept.
        Conflict: other processes edited the dataset during each attempt to save the column.
    """
    root = _check_column(dataset, column)
    ids, counts = dataset.ids, dataset.live.counts
    parts = divide_containers(counts, job.batch_size)
    records = hashlib.sha256(counts.tobytes() + ids.tobytes()).hexdigest()[:16]
    folder = root / MAPPING / column
    with _hold(folder, {**settings, "column": column, "records": records}, resume=resume):
        done = {number: part for number in range(len(parts)) if (part := _read_part(folder, number)) is not None}
        pending = [number for number in range(len(parts)) if number not in done]
        begin_stage(progress, "mapping", sum(int(counts[list(parts[number])].sum()) for number in pending))
        failures = [failure for part in done.values() for failure in part.failures]
        expected = _expected_form(dataset, column, ids, done.values())
        try:
            for number, made in _run(job, parts, pending, engine, progress):
                if made.form is not None:
                    expected = expected or (made.form, f"record {made.ids[0]} has")
                    require_form(made.form, expected[0], int(made.ids[0]), expected[1])
                (folder / _part_name(number)).write(_pack_part(made))
                done[number] = made
                failures += made.failures
                _check_failures(failures, limit, root, folder)
        except BaseException:
            if not done:
                folder.remove()  # Nothing is done yet, so a corrected call needs no ``resume``.
            raise
        begin_stage(progress, "saving")
        ordered = [done[number] for number in range(len(parts))]
        joined = join_values(
            [(part.ids, part.values, part.form) for part in ordered if part.form is not None],
            [failure for part in ordered for failure in part.failures],
        )
        ledger = _write_ledger(root, column, joined.failures)
        uuid = _save(dataset, column, ids, joined)
        folder.remove()
    return MappedColumn(uuid, len(joined.ids), joined.form, joined.failures, ledger)


def divide_containers(counts: I64, batch_size: int) -> list[tuple[int, ...]]:
    """Divide the containers that have records into parts: runs of containers with the records of several batches.

    Args:
        counts: (n,), number of records in each container.
    """
    least = max(_BATCHES_A_PART * batch_size, int(counts.sum()) // _MOST_PARTS)
    parts: list[tuple[int, ...]] = []
    held = least
    for number in np.flatnonzero(counts).tolist():
        if held >= least:
            parts.append(())
            held = 0
        parts[-1] += (number,)
        held += int(counts[number])
    return parts


def describe_value(value: Any) -> Any:
    """Describe a transform or its argument as JSON that is the same in every process; functions by their names."""
    if isinstance(value, (bool, int, float, str, type(None))):
        return value
    if isinstance(value, Mapping):
        return {str(name): describe_value(each) for name, each in value.items()}
    if isinstance(value, (Sequence, np.ndarray)):
        return [describe_value(each) for each in value]
    if type(value).__module__.startswith("picstore."):
        held = {**getattr(value, "__dict__", {}), **{n: getattr(value, n) for n in getattr(value, "__slots__", ())}}
        return {type(value).__name__: {name: describe_value(each) for name, each in sorted(held.items())}}
    return name_of(value)


def _check_column(dataset: Dataset, column: str) -> WritableLocation:
    if not isinstance(dataset.path, Location):
        raise UsageError(f"{dataset.path} are joined datasets, which cannot get a column; give map each dataset alone")
    if not dataset.is_saved:
        raise UsageError(f"{dataset.path} has edits that are not saved, which the column would miss; save them first")
    root = locate_writable(dataset.path)
    if column not in dataset.columns:
        dataset.with_columns({column: np.zeros(0, np.int64)}, ids=[])  # raises UsageError if the name is not allowed
    return root


@contextlib.contextmanager
def _hold(folder: WritableLocation, settings: Mapping[str, Any], *, resume: bool) -> Iterator[None]:
    """Write a new run's job file, or check an interrupted run's; keep the file locked during the ``with`` block."""
    path, text = folder / "job.json", json.dumps(settings, indent=1)
    made = path.write_new(text.encode())
    with path.lock(f"the column {settings['column']!r} is being made by another process"):
        if not made:
            if not resume:
                raise Unfinished(
                    f"a run for the column {settings['column']!r} was interrupted; resume=True goes on where it "
                    f"stopped, with the same function; or remove {folder} to begin anew"
                )
            _require_same(folder, json.loads(path.read_all(MAX_MANIFEST)), json.loads(text))
        yield


def _require_same(folder: Location, saved: Any, settings: Mapping[str, Any]) -> None:
    for name, value in settings.items():
        if not isinstance(saved, dict) or saved.get(name) != value:
            what = "other records" if name == "records" else f"another {name}"
            raise UsageError(
                f"the interrupted run in {folder} has {what}; resume with what it began with, or remove the folder "
                "to begin anew"
            )


def _run(
    job: MapJob,
    parts: Sequence[tuple[int, ...]],
    pending: Sequence[int],
    engine: Engine | int,
    progress: Progress | None,
) -> Iterator[tuple[int, PartValues]]:
    on_progress = progress_callback(progress)
    if isinstance(engine, int):
        made = map_parts(job, [parts[number] for number in pending], threads=engine, on_progress=on_progress)
        yield from zip(pending, made, strict=True)
        return
    sharing = engine.workers if isinstance(engine, LocalEngine) else 0
    tasks = [MapTask(job, number, parts[number], sharing) for number in pending]
    for task, result in run_each(run_map_task, tasks, workers=engine, on_progress=on_progress):
        yield task.part, result


def _expected_form(dataset: Dataset, column: str, ids: I64, done: Iterable[PartValues]) -> tuple[Form, str] | None:
    """Return the form that values must have, and ``who`` for ``require_form``; None if values may have any form."""
    for part in done:
        if part.form is not None:
            return part.form, f"record {part.ids[0]} has"
    if column not in dataset.columns:
        return None
    held = dataset.column(column)
    if np.isin(held.ids, ids).all():  # All values of the old column are replaced, so type and shape may change.
        return None
    form = Form(TEXT) if held.ends is not None else Form(str(held.values.dtype), held.values.shape[1:])
    return form, f"the column {column!r} of other records has"


def _check_failures(failures: Sequence[Failure], limit: float, root: Location, folder: Location) -> None:
    if len(failures) <= limit:
        return
    reason, count = Counter(failure.reason for failure in failures).most_common(1)[0]
    raise TooManyFailures(
        f"{counted(len(failures), 'image')} of {root} have no value so far, more than max_errors allows, {count:,} of "
        f"them for this reason: {reason}; no column is written, and what is done is kept in {folder} for resume=True "
        "with a larger max_errors"
    )


def _write_ledger(root: WritableLocation, column: str, failures: Sequence[Failure]) -> str | None:
    path = root / f"map-{column}.jsonl"
    if not failures:
        path.remove()
        return None
    lines = (json.dumps({"status": "failed", **asdict(failure)}) + "\n" for failure in failures)
    path.write("".join(lines).encode())
    return str(path)


def _save(dataset: Dataset, column: str, ids: I64, made: PartValues) -> str:
    """Save the column in the dataset's latest version; return its uuid. Records not in ``ids`` keep their values."""
    for _ in range(_MAX_ATTEMPTS):
        latest = dataset.latest()
        owners, values = made.ids, made.values
        if column in latest.columns:
            held = latest.column(column)
            kept, old = held.of(np.setdiff1d(held.ids, ids))
            if len(kept):
                owners = np.append(kept, owners)
                values = [*old, *values] if isinstance(old, list) else np.concatenate([old, values])
        if not len(made.ids):
            return latest.uuid
        with contextlib.suppress(Conflict):  # Another process edited the dataset at this moment.
            return latest.with_columns({column: values}, ids=owners, keep=False).save().uuid
    raise Conflict(f"{dataset.path} is edited all the time; run it again with resume=True, which only saves")


def _part_name(number: int) -> str:
    return f"part-{number:06d}"


def _pack_part(part: PartValues) -> bytes:
    """Serialize a part: a line of JSON, the ids, the values if they are numbers, and the CRC-32C of these bytes."""
    texts = part.values if isinstance(part.values, list) else None
    numbers = np.zeros(0) if isinstance(part.values, list) else part.values
    head = {
        "ids": len(part.ids),
        "form": None if part.form is None else asdict(part.form),
        "failures": [asdict(failure) for failure in part.failures],
        "texts": texts,
    }
    raw = json.dumps(head).encode() + b"\n" + part.ids.tobytes() + np.ascontiguousarray(numbers).tobytes()
    return raw + crc32c(raw).to_bytes(4, "little")


def _read_part(folder: Location, number: int) -> PartValues | None:
    """Read a part's values from its file; return None, to compute them again, if the file is missing or damaged."""
    path = folder / _part_name(number)
    if not path.is_file():
        return None
    raw = path.read_all(_MAX_PART)
    if crc32c(raw[:-4]) != int.from_bytes(raw[-4:], "little"):
        return None
    head, _, body = raw[:-4].partition(b"\n")
    document = json.loads(head)
    failures = tuple(Failure(**each) for each in document["failures"])
    if document["form"] is None:
        return PartValues(np.zeros(0, np.int64), np.zeros(0), None, failures)
    form, ids = Form(document["form"]["dtype"], tuple(document["form"]["shape"])), 8 * document["ids"]
    values = document["texts"]
    if values is None:
        values = np.frombuffer(body[ids:], form.dtype).reshape(-1, *form.shape)
    return PartValues(np.frombuffer(body[:ids], np.int64), values, form, failures)
