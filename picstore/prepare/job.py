"""A job: what a conversion is to do, cut into rows; on disk it is what makes a conversion resumable."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any

from picstore.errors import Damage, NotADataset, Unfinished, UsageError
from picstore.storage.layout import ALIGNMENT, MAX_CONTAINER, MAX_MANIFEST
from picstore.storage.location import MANIFEST, UNFINISHED, Location

KIB, MIB = 1 << 10, 1 << 20
WISHED_ROWS = 256  # enough for every core of a large machine, and for a short tail, where the data allows it
SMALLEST_FILE = 1 * MIB  # bytes; below, starting processes and syncing files would take a third of the time of convert


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The geometry of a data set.

    Attributes:
        streams: files are spread over so many sub-directories.
        file_size: bytes that a file should not exceed by much: one is shuffled in memory.
        container_size: bytes of the unit of reading and checking.
        seed: of the permutations that deal records to streams.
    """

    streams: int = 16
    file_size: int = 256 * MIB
    container_size: int = 8 * MIB
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.streams <= 9999:
            raise UsageError(f"{self.streams} streams; 1 to 9999 are possible")
        if not ALIGNMENT <= self.container_size <= MAX_CONTAINER:
            raise UsageError(f"a container of {self.container_size} bytes; 4KiB to 1GiB are possible")
        if self.file_size < ALIGNMENT:
            raise UsageError(f"files of {self.file_size} bytes; at least 4KiB are needed")
        if not 0 <= self.seed < 1 << 64:
            raise UsageError(f"seed {self.seed}; 0 to 2**64 - 1 are possible")


def count_rows(inputs: int, mean_bytes: float, shape: Shape) -> int:
    """How many rows a list of inputs is cut into.

    As many as keep files below ``file_size``; more, up to WISHED_ROWS, while files do not fall below SMALLEST_FILE.
    """
    total = inputs * mean_bytes
    needed = -int(-total // (shape.streams * shape.file_size))
    possible = int(total // (shape.streams * SMALLEST_FILE))
    return max(1, min(inputs, max(needed, min(WISHED_ROWS, possible))))


def row_slice(inputs: int, rows: int, row: int) -> range:
    """The ids of one row: contiguous, and rows differ by at most one."""
    return range(row * inputs // rows, (row + 1) * inputs // rows)


def begin(root: Location, job: dict[str, Any], *, resume: bool) -> dict[str, Any]:
    """Claim a place for a job and remember it there; returns the job as it was first begun.

    ``job["rows"]`` may be missing when resuming: it is taken from the first run.

    Raises:
        UsageError: the directory is finished, foreign, or was begun with other settings.
        Unfinished: it was begun before, and ``resume`` is not given.
        Damage: what it was begun with cannot be read.
    """
    path = _job_path(root)
    if (root / MANIFEST).is_file():
        raise UsageError(f"{root} is already a data set; choose another destination or remove it")
    if path.is_file():
        if not resume:
            raise Unfinished(f"{root} is an unfinished {job['verb']}; continue it with --resume, or remove it")
        return _same_job(root, _read_job(path), job)
    if root.is_file() or any(not name.startswith(f"{UNFINISHED}/") for name, _ in root.files()):
        raise NotADataset(f"{root} exists and is not a picstore data set; choose an empty destination")
    return job


def remember(root: Location, job: dict[str, Any]) -> None:
    """Write the job down; from now on the directory is an unfinished data set."""
    _job_path(root).write(json.dumps(job, indent=1).encode())


def _job_path(root: Location) -> Location:
    return root / UNFINISHED / "job.json"


def _read_job(path: Location) -> dict[str, Any]:
    try:
        job = json.loads(path.read_all(MAX_MANIFEST))
    except ValueError as error:
        raise Damage("not a job that picstore wrote; remove the directory and begin anew", str(path)) from error
    if not isinstance(job, dict):
        raise Damage("not a job that picstore wrote; remove the directory and begin anew", str(path))
    return job


def _same_job(root: Location, old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    for name, value in new.items():
        if old.get(name) != value:
            raise UsageError(
                f"{root} was begun with {name} {old.get(name)!r}, now it is {value!r}; "
                "resume with what it was begun with, or remove it"
            )
    return old


def lock(root: Location) -> AbstractContextManager[None]:
    """Hold the place while writing to it, so that two runs do not write the same files. Ends with the process."""
    return _job_path(root).lock(f"{root} is being written by another process")


def end(root: Location) -> None:
    """Forget the job: the manifest is written, the data set is finished."""
    (root / UNFINISHED).remove()


def to_json(value: Any) -> dict[str, Any]:
    """A frozen dataclass of settings as JSON values."""
    document: dict[str, Any] = json.loads(json.dumps(asdict(value)))
    return document
