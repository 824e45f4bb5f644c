"""Job file ``unfinished/job.json`` of a command that makes a dataset, from which an interrupted command resumes.

The file holds the settings of the job and values chosen when the job began, such as the number of rows. Ledger
fragments lie beside it: a row with an undamaged fragment is finished. Each shard of a conversion has its own job file,
so that any number of shards may begin at once in stores without locks.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
from collections.abc import Iterable, Iterator
from typing import Any

from picstore.errors import Conflict, Damage, NotADataset, Unfinished, UsageError
from picstore.prepare.convert.row_division import Shard
from picstore.storage.format.layout import MAX_MANIFEST
from picstore.storage.location.resolve import MANIFEST, UNFINISHED, Location, WritableLocation

_JOB = "job.json"
_FRAGMENT = re.compile(r"row-\d+\.jsonl")
_SHARD = re.compile(rf"{UNFINISHED}/shard-(\d{{1,6}})-of-(\d{{1,6}})\.json")
# Verbs whose interrupted jobs can be continued by --resume. Jobs of other verbs have to start over.
_RESUMABLE = ("convert", "index", "append")


def begin_job(
    root: WritableLocation, settings: dict[str, Any], *, resume: bool, shard: Shard | None = None
) -> dict[str, Any]:
    """Check that a job can begin or resume at a location; return the saved job, or ``settings`` for a new job.

    Raises:
        UsageError: the location holds a dataset, or a job with other settings or other shards.
        Unfinished: the location holds a job, and ``resume`` is false.
        NotADataset: the location holds other files.
        Damage: the job file cannot be read.
    """
    if (root / MANIFEST).is_file():
        raise UsageError(f"{root} is already a dataset; choose another destination or remove it")
    names = {name for name, _ in root.files()}
    others = _find_shards(names)
    if shard is None and others:
        raise UsageError(f"{root} is made by {others[0].count} shards; put them together with `picstore merge {root}`")
    if shard is not None and f"{UNFINISHED}/{_JOB}" in names:
        raise UsageError(f"{root} was begun without --shard; continue it without, or choose another destination")
    if (saved := find_job(root, settings, resume=resume, shard=shard)) is not None:
        return saved
    if others and shard is not None:
        if others[0].count != shard.count:
            raise UsageError(
                f"{root} is made by {others[0].count} shards, not by {shard.count}; give --shard I/{others[0].count}"
            )
        return _require_same(root, _read_job(root / _job_name(others[0])), settings)
    if root.is_file() or any(not name.startswith(f"{UNFINISHED}/") for name in names):
        raise NotADataset(f"{root} exists and is not a picstore dataset; choose an empty destination")
    return settings


def find_job(
    root: WritableLocation, settings: dict[str, Any], *, resume: bool, shard: Shard | None = None
) -> dict[str, Any] | None:
    """Read the job file at a location; return None if it does not exist. Errors are those of ``begin_job``."""
    path = root / _job_name(shard)
    if not path.is_file():
        fragments = filter(_FRAGMENT.fullmatch, _unfinished_names(root))
        # Look up each listed fragment, because an object store may still list a fragment that was removed.
        if shard is None and any((root / UNFINISHED / name).is_file() for name in fragments):
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
    """Write the job file, which marks a dataset as unfinished, and lock the job, so that only one process runs it.

    Yield whether this call created the job file. The caller must then check the location again, because another process
    may have changed it before the lock. ``job`` is the content of the existing job file, or a result of
    :func:`new_job`.

    Raises:
        Conflict: another process has begun or ended a job here meanwhile.
        UsageError: another process is running this job, or the file system does not support locks.
    """
    path = root / _job_name(shard)
    text = json.dumps(job, indent=1)
    made = path.write_new(text.encode())
    with path.lock(f"{root} is being written by another process"):
        if not made and _read_job(path) != json.loads(text):
            raise Conflict(f"another process has begun a job in {root} meanwhile; look at it before you go on")
        yield made


def new_job(**settings: Any) -> dict[str, Any]:
    """Return the content of a new job file, with a random ``run`` that distinguishes jobs with equal settings."""
    return {**settings, "run": secrets.token_hex(8)}


def require_free(root: WritableLocation, shard: Shard | None = None) -> None:
    """Check, after locking the job, whether another process has begun or finished a dataset at ``root`` meanwhile.

    If so, abandon the job, and raise UsageError for a finished dataset, Conflict for an unfinished dataset.
    """
    if (root / MANIFEST).is_file():
        remove_job(root)
        raise UsageError(f"{root} is already a dataset; choose another destination or remove it")
    names = {f"{UNFINISHED}/{name}" for name in _unfinished_names(root)}
    if _find_shards(names) if shard is None else f"{UNFINISHED}/{_JOB}" in names:
        (root / _job_name(shard)).remove()
        raise Conflict(f"another process has begun a job in {root} meanwhile; look at it before you go on")


def read_shards(root: Location) -> dict[Shard, dict[str, Any]]:
    """Read the job files of all shards begun at a location; raise Damage if a job file cannot be read."""
    names = {f"{UNFINISHED}/{name}" for name, _ in (root / UNFINISHED).files()}
    return {shard: _read_job(root / _job_name(shard)) for shard in _find_shards(names)}


def _find_shards(names: Iterable[str]) -> list[Shard]:
    found = (_SHARD.fullmatch(name) for name in sorted(names))
    return [Shard(int(match[1]), int(match[2])) for match in found if match is not None]


def _job_name(shard: Shard | None = None) -> str:
    return f"{UNFINISHED}/" + (_JOB if shard is None else f"shard-{shard.index}-of-{shard.count}.json")


def _leftover(root: Location) -> Location:
    """Return the folder to remove to abandon a job: ``unfinished/`` of a finished dataset, else the whole location."""
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
    """Remove the folder ``unfinished/`` of a locked job.

    The job files are removed last, because without them a new job could take over this job's rows. If another file
    cannot be removed, they stay. A removed file counts as removed even if the object store still lists it.
    """
    clear_job(root)
    folder = root / UNFINISHED
    others = [name for name, _ in folder.files() if not _is_job_file(name)]
    if not any((folder / name).is_file() for name in others):
        folder.remove()


def clear_job(root: WritableLocation) -> None:
    """Remove everything in ``unfinished/`` except the job files; the caller must hold the job's lock."""
    (root / UNFINISHED).remove(keep=list(filter(_is_job_file, _unfinished_names(root))))


def remove_finished_job(root: WritableLocation, settings: dict[str, Any], uuid: str) -> None:
    """Remove a leftover job with these ``settings``, unless the job retries failed inputs of the dataset ``uuid``."""
    with contextlib.suppress(UsageError, NotADataset, Damage):
        if (saved := find_job(root, settings, resume=True)) is not None and saved.get("retry") != uuid:
            with hold_job(root, saved):
                remove_job(root)


def _unfinished_names(root: Location) -> set[str]:
    return {name.partition("/")[0] for name, _ in (root / UNFINISHED).files()}


def _is_job_file(name: str) -> bool:
    return name == _JOB or _SHARD.fullmatch(f"{UNFINISHED}/{name}") is not None
