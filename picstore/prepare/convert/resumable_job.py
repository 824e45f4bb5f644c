"""Job file of a conversion, ``unfinished/job.json``: its settings and number of rows, which make it resumable."""

from __future__ import annotations

import contextlib
import json
import re
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from picstore.errors import Conflict, Damage, NotADataset, Unfinished, UsageError
from picstore.storage.format.layout import ALIGNMENT, MAX_CONTAINER, MAX_MANIFEST
from picstore.storage.location.resolve import MANIFEST, UNFINISHED, Location, WritableLocation

_JOB = "job.json"
_FRAGMENT = re.compile(r"row-\d+\.jsonl")
_SHARD = re.compile(rf"{UNFINISHED}/shard-(\d{{1,6}})-of-(\d{{1,6}})\.json")
_RESUMABLE = ("convert", "index", "append")  # verbs; the others begin again
MIB = 1 << 20
TARGET_ROWS = 256  # work for every core of a large machine, and a short tail
MAX_SHARDS = 100_000
MIN_FILE_BYTES = 2 * MIB  # files of 1 MiB take 6 % of a conversion's time, of 256 KiB a third


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetShape:
    """Streams and sizes of a data set.

    Attributes:
        streams: sub-directories that records are dealt to, 1 to 9999.
        file_size: target size of each file in bytes; shuffling holds one file in memory.
        container_size: bytes of a container, the unit of reading and checking; 4 KiB to 1 GiB.
        seed: random seed of the permutations that deal records to streams, 64 bits.

    Raises:
        UsageError: a value is out of its range.
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
    """One of ``count`` runs that share a conversion; it makes every ``count``-th row, starting with row ``index``.

    Raises:
        UsageError: ``index`` is not below ``count``, or ``count`` is above MAX_SHARDS.
    """

    index: int
    count: int

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count <= MAX_SHARDS:
            raise UsageError(f"there is no shard {self}; give 0/N to N-1/N, for N shards, at most {MAX_SHARDS}")

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Read a shard written as ``0/4``; UsageError for another text."""
        match = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", text)
        if match is None:
            raise UsageError(f"shard {text!r} is not understood; write 0/4 for the first of four")
        return cls(int(match[1]), int(match[2]))

    def rows(self, rows: int) -> range:
        """Return the numbers of this shard's rows, out of ``rows``."""
        return range(self.index, rows, self.count)

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


def count_rows(inputs: int, mean_bytes: float, shape: DatasetShape) -> int:
    """Choose the number of rows for ``inputs`` images of ``mean_bytes`` each.

    It is the smallest that keeps files below ``file_size``, or more, up to TARGET_ROWS, as long as files have
    MIN_FILE_BYTES.
    """
    total = inputs * mean_bytes
    needed = -int(-total // (shape.streams * shape.file_size))
    possible = int(total // (shape.streams * MIN_FILE_BYTES))
    return max(1, min(inputs, max(needed, min(TARGET_ROWS, possible))))


def row_slice(inputs: int, rows: int, row: int) -> range:
    """Return the numbers of a row's inputs: contiguous, and as many as in other rows or one more."""
    return range(row * inputs // rows, (row + 1) * inputs // rows)


def begin_job(
    root: WritableLocation, settings: dict[str, Any], *, resume: bool, shard: Shard | None = None
) -> dict[str, Any]:
    """Check that a job can begin or go on at a location; return it as its first run saved it.

    Shards have a job file each, so that any number of them may begin at once in stores without locks.

    Args:
        settings: of the job; a saved one must have the same, and has ``rows`` too.
        resume: go on with a job that was begun before.

    Raises:
        UsageError: the location holds a data set, or a job with other settings or other shards.
        Unfinished: it holds a job, and ``resume`` is false.
        NotADataset: it holds files of something else.
        Damage: the job file cannot be read.
    """
    if (root / MANIFEST).is_file():
        raise UsageError(f"{root} is already a data set; choose another destination or remove it")
    names = {name for name, _ in root.files()}
    others = _find_shards(names)
    if shard is None and others:
        raise UsageError(f"{root} is made by {others[0].count} shards; put them together with `picstore merge {root}`")
    if shard is not None and f"{UNFINISHED}/{_JOB}" in names:
        raise UsageError(f"{root} was begun without --shard; continue it without, or choose another destination")
    if (begun := find_job(root, settings, resume=resume, shard=shard)) is not None:
        return begun
    if others and shard is not None:
        if others[0].count != shard.count:
            raise UsageError(
                f"{root} is made by {others[0].count} shards, not by {shard.count}; give --shard I/{others[0].count}"
            )
        return _require_same(root, _read_job(root / _job_name(others[0])), settings)
    if root.is_file() or any(not name.startswith(f"{UNFINISHED}/") for name in names):
        raise NotADataset(f"{root} exists and is not a picstore data set; choose an empty destination")
    return settings


def find_job(
    root: WritableLocation, settings: dict[str, Any], *, resume: bool, shard: Shard | None = None
) -> dict[str, Any] | None:
    """Read the job file at a location, None if there is none; UsageError, Unfinished, Damage as in ``begin_job``."""
    path = root / _job_name(shard)
    if not path.is_file():
        fragments = filter(_FRAGMENT.fullmatch, _unfinished_names(root))
        if shard is None and any((root / UNFINISHED / name).is_file() for name in fragments):  # not only listed
            raise UsageError(f"{root / UNFINISHED} holds rows of a job that was removed; remove it too")
        return None
    saved = _read_job(path)
    if not resume:
        verb = saved.get("verb")
        remedy = "; continue it with --resume, or" if verb in _RESUMABLE else ", which cannot be continued;"
        raise Unfinished(f"{root} has an unfinished {verb}{remedy} remove {_leftover(root)}")
    return _require_same(root, saved, settings)


@contextlib.contextmanager
def hold_job(root: WritableLocation, job: dict[str, Any], shard: Shard | None = None) -> Iterator[bool]:
    """Write the job file, which makes an unfinished data set, and lock it; at most one process makes a data set.

    Whatever was decided before may have changed when the lock is held: look at the location again.

    Args:
        job: the job as it was saved, to go on with it, or a new one, from :func:`new_job`.

    Yields:
        Whether the job file was written now.

    Raises:
        Conflict: another process has begun or ended a job here meanwhile.
        UsageError: another process is at work on this job, or the file system has no locks.
    """
    path = root / _job_name(shard)
    text = json.dumps(job, indent=1)
    made = path.write_new(text.encode())
    with path.lock(f"{root} is being written by another process"):
        if not made and _read_job(path) != json.loads(text):
            raise Conflict(f"another process has begun a job in {root} meanwhile; look at it before you go on")
        yield made


def new_job(**settings: Any) -> dict[str, Any]:
    """Make the document of a job file, with a random ``run`` that tells jobs of the same settings apart."""
    return {**settings, "run": secrets.token_hex(8)}


def require_free(root: WritableLocation, shard: Shard | None = None) -> None:
    """Look again, with the job held, whether others have begun or finished a data set here since ``begin_job``.

    UsageError, and the job is given up, if so.
    """
    if (root / MANIFEST).is_file():
        remove_job(root)
        raise UsageError(f"{root} is already a data set; choose another destination or remove it")
    names = {f"{UNFINISHED}/{name}" for name in _unfinished_names(root)}
    if _find_shards(names) if shard is None else f"{UNFINISHED}/{_JOB}" in names:
        (root / _job_name(shard)).remove()
        raise Conflict(f"another process has begun a job in {root} meanwhile; look at it before you go on")


def read_shards(root: Location) -> dict[Shard, dict[str, Any]]:
    """Read the jobs of all shards that were begun at a location; Damage if one cannot be read."""
    names = {f"{UNFINISHED}/{name}" for name, _ in (root / UNFINISHED).files()}
    return {shard: _read_job(root / _job_name(shard)) for shard in _find_shards(names)}


def _find_shards(names: Iterable[str]) -> list[Shard]:
    """Return the shards whose job files are among the names of a location's files."""
    found = (_SHARD.fullmatch(name) for name in sorted(names))
    return [Shard(int(match[1]), int(match[2])) for match in found if match is not None]


def _job_name(shard: Shard | None = None) -> str:
    return f"{UNFINISHED}/" + (_JOB if shard is None else f"shard-{shard.index}-of-{shard.count}.json")


def _leftover(root: Location) -> Location:
    """Return what to remove to give a job up: ``unfinished/`` of a data set, else all of it."""
    return root / UNFINISHED if (root / MANIFEST).is_file() else root


def _read_job(path: Location) -> dict[str, Any]:
    job = None
    with contextlib.suppress(ValueError):
        job = json.loads(path.read_all(MAX_MANIFEST))
    if not isinstance(job, dict):
        leftover = _leftover(path.parent.parent)
        raise Damage(f"not a job that picstore wrote; remove {leftover} and run the command again", str(path))
    return job


def _require_same(root: Location, saved: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    for name, value in settings.items():
        if saved.get(name) != value:
            raise UsageError(
                f"{root} was begun with {name} {saved.get(name)!r}, now it is {value!r}; "
                f"resume with the first, or remove {_leftover(root)}"
            )
    return saved


def remove_job(root: WritableLocation) -> None:
    """Remove ``unfinished/``, with the job held; the job files last, so that no other job takes its rows for its own.

    They stay if something else cannot be removed. A store may list it still when it is removed.
    """
    clear_job(root)
    folder = root / UNFINISHED
    others = [name for name, _ in folder.files() if not _is_job_file(name)]
    if not any((folder / name).is_file() for name in others):
        folder.remove()


def clear_job(root: WritableLocation) -> None:
    """Remove all of ``unfinished/`` but the job files, with the job held."""
    (root / UNFINISHED).remove(keep=list(filter(_is_job_file, _unfinished_names(root))))


def remove_finished_job(root: WritableLocation, settings: dict[str, Any], uuid: str) -> None:
    """Remove the job of these settings that was killed after it had finished the data set ``uuid``; others stay."""
    with contextlib.suppress(UsageError, NotADataset, Damage):
        if (begun := find_job(root, settings, resume=True)) is not None and begun.get("retry") != uuid:
            with hold_job(root, begun):
                remove_job(root)


def _unfinished_names(root: Location) -> set[str]:
    """Return the names in ``unfinished/``, an empty set where there is none."""
    return {name.partition("/")[0] for name, _ in (root / UNFINISHED).files()}


def _is_job_file(name: str) -> bool:
    return name == _JOB or _SHARD.fullmatch(f"{UNFINISHED}/{name}") is not None
