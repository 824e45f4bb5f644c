"""A job: what a conversion is to do, cut into rows; on disk it is what makes a conversion resumable."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

from picstore.errors import Damage, NotADataset, Unfinished, UsageError
from picstore.storage.format.layout import ALIGNMENT, MAX_CONTAINER, MAX_MANIFEST
from picstore.storage.location.resolve import MANIFEST, UNFINISHED, Location

_JOB = "job.json"
_SHARD = re.compile(rf"{UNFINISHED}/shard-(\d{{1,6}})-of-(\d{{1,6}})\.json")
KIB, MIB = 1 << 10, 1 << 20
WISHED_ROWS = 256  # enough for every core of a large machine, and for a short tail, where the data allows it
MAX_SHARDS = 100_000
SMALLEST_FILE = 1 * MIB  # bytes; below, starting processes and syncing files would take a third of the time of convert


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetShape:
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


@dataclass(frozen=True, slots=True)
class Shard:
    """One of ``count`` runs that share a conversion; it makes every ``count``-th row, beginning with row ``index``."""

    index: int
    count: int

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count <= MAX_SHARDS:
            raise UsageError(f"there is no shard {self}; of N shards the first is 0/N and the last N-1/N")

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Read ``0/4``; UsageError where it is something else."""
        match = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text)
        if match is None:
            raise UsageError(f"shard {text!r} is not understood; write 0/4 for the first of four")
        return cls(int(match[1]), int(match[2]))

    def rows(self, rows: int) -> range:
        """Those of ``rows`` that are this shard's."""
        return range(self.index, rows, self.count)

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


def count_rows(inputs: int, mean_bytes: float, shape: DatasetShape) -> int:
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


def begin_job(root: Location, job: dict[str, Any], *, resume: bool, shard: Shard | None = None) -> dict[str, Any]:
    """Claim a place for a job and see whether it was begun there; returns the job as it was first begun.

    Shards have a file each for it, so that any number of them may begin at once where no lock can be had.
    ``job["rows"]`` may be missing when resuming: it is taken from the first run.

    Raises:
        UsageError: the directory is finished, foreign, or was begun with other settings.
        Unfinished: it was begun before, and ``resume`` is not given.
        Damage: what it was begun with cannot be read.
    """
    if (root / MANIFEST).is_file():
        raise UsageError(f"{root} is already a data set; choose another destination or remove it")
    path = _job_path(root, shard)
    names = {name for name, _ in root.files()}
    others = _shards_among(names)
    if shard is None and others:
        raise UsageError(f"{root} is made by {others[0].count} shards; put them together with `picstore merge {root}`")
    if shard is not None and f"{UNFINISHED}/{_JOB}" in names:
        raise UsageError(f"{root} was begun without --shard; continue it without, or choose another destination")
    if path.is_file():
        if not resume:
            raise Unfinished(f"{root} is an unfinished {job['verb']}; continue it with --resume, or remove it")
        return _same_job(root, _read_job(path), job)
    if others and shard is not None:
        if others[0].count != shard.count:
            raise UsageError(f"{root} is made by {others[0].count} shards, not by {shard.count}")
        return _same_job(root, _read_job(_job_path(root, others[0])), job)
    if root.is_file() or any(not name.startswith(f"{UNFINISHED}/") for name in names):
        raise NotADataset(f"{root} exists and is not a picstore data set; choose an empty destination")
    return job


def save_job(root: Location, job: dict[str, Any], shard: Shard | None = None) -> None:
    """Write the job down, unless it is; from now on the directory is an unfinished data set.

    What is there stays, since another run may hold it by :func:`lock_job`.
    """
    path = _job_path(root, shard)
    if not path.is_file():
        path.write(json.dumps(job, indent=1).encode())


def read_shards(root: Location) -> dict[Shard, dict[str, Any]]:
    """The shards that were begun at a place, each with its job."""
    names = {f"{UNFINISHED}/{name}" for name, _ in (root / UNFINISHED).files()}
    return {shard: _read_job(_job_path(root, shard)) for shard in _shards_among(names)}


def _shards_among(names: Iterable[str]) -> list[Shard]:
    """The shards whose files are among the names of an unfinished data set's files."""
    found = (_SHARD.fullmatch(name) for name in sorted(names))
    return [Shard(int(match[1]), int(match[2])) for match in found if match is not None]


def _job_path(root: Location, shard: Shard | None = None) -> Location:
    return root / UNFINISHED / (_JOB if shard is None else f"shard-{shard.index}-of-{shard.count}.json")


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


def lock_job(root: Location, *shards: Shard) -> ExitStack:
    """Hold the place, or what is the shards' of it, while writing to it. Ends with the process.

    So two runs do not write the same files.
    """
    with ExitStack() as held:
        for shard in shards or (None,):
            held.enter_context(_job_path(root, shard).lock(f"{root} is being written by another process"))
        return held.pop_all()


def remove_job(root: Location) -> None:
    """Forget the job: the manifest is written, the data set is finished."""
    (root / UNFINISHED).remove()


def settings_to_json(value: Any) -> dict[str, Any]:
    """A frozen dataclass of settings as JSON values."""
    document: dict[str, Any] = json.loads(json.dumps(asdict(value)))
    return document
