"""Near-duplicates in a data set, or of another data set's images, by perceptual hashes of the stored JPEGs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from picstore.arrays import I64, U64
from picstore.errors import Damage, ImageError, NotADataset, UsageError
from picstore.jpeg.perceptual_hash import perceptual_hash, read_scan
from picstore.kernels.ahead import compile_ahead
from picstore.prepare.engine import worker_processes
from picstore.prepare.progress import Progress, ProgressCallback, begin_stage, progress_callback
from picstore.prepare.upkeep.hamming import MAX_DISTANCE, find_leaders, find_nearest, find_nearest_each
from picstore.results import Duplicate, DuplicateGroup
from picstore.storage.dataset import Dataset

COLUMN = "phash"  # where hashes are kept, as int64
DEFAULT_DISTANCE = 6  # docs/duplicates.md has recall and precision

_TASKS_A_WORKER = 8  # enough for an even share and for progress; opening the data set takes each one two reads


class Hashes(NamedTuple):
    """Hashes of a data set's images: ids, int64 (n,), ascending, and hashes, uint64 (n,)."""

    ids: I64
    hashes: U64


_NONE = Hashes(np.zeros(0, np.int64), np.zeros(0, np.uint64))


@dataclass(frozen=True, slots=True)
class _HashTask:
    dataset: Dataset
    containers: tuple[int, ...]


def find_duplicates(
    hashed: Hashes, other: Hashes | None = None, *, distance: int = DEFAULT_DISTANCE
) -> list[DuplicateGroup]:
    """Group images whose hashes differ in at most ``distance`` bits.

    Each duplicate is within the distance of its group's image of the lowest id, so all but that may be deleted.

    Args:
        other: hashes of another data set; then groups are of its images and their duplicates in the first data set.
        distance: 0 … 11.
    """
    if not 0 <= distance <= MAX_DISTANCE:
        raise UsageError(f"distance {distance} is out of range; give 0 to {MAX_DISTANCE}, of 64 bits")
    if other is None:
        firsts, distances = find_leaders(hashed.hashes, distance)
        members = np.flatnonzero(firsts != np.arange(len(firsts)))
        ids = hashed.ids
    else:
        firsts, distances = find_nearest(hashed.hashes, other.hashes, distance)
        members = np.flatnonzero(firsts >= 0)
        ids = other.ids
    members = members[np.argsort(firsts[members], kind="stable")]
    groups = np.split(members, np.flatnonzero(np.diff(firsts[members])) + 1) if len(members) else []
    return [
        DuplicateGroup(
            int(ids[firsts[group[0]]]),
            list(map(Duplicate, hashed.ids[group].tolist(), distances[group].tolist())),
        )
        for group in groups
    ]


def hash_images(
    dataset: Dataset, *, workers: int | worker_processes.Engine, progress: Progress | None = None
) -> Hashes:
    """Hash all images of a data set that are readable, or take their hashes from its column ``phash``."""
    live = np.flatnonzero(dataset.live.counts)
    engine = worker_processes.as_engine(workers)
    chunks = np.array_split(live, min(len(live), _TASKS_A_WORKER * engine.workers)) if len(live) else []
    tasks = [_HashTask(dataset, tuple(chunk.tolist())) for chunk in chunks]
    begin_stage(progress, "hashing", len(dataset))
    compile_ahead((read_scan, find_nearest_each))
    done = worker_processes.run_all(hash_containers, tasks, workers=engine, on_progress=progress_callback(progress))
    return _joined(part for _, part in done)


def save_hashes(dataset: Dataset, hashed: Hashes) -> Dataset:
    """Write hashes to the column ``phash``, from which :func:`hash_images` takes them; see :meth:`Dataset.save`."""
    return dataset.with_columns({COLUMN: hashed.hashes.view(np.int64)}, ids=hashed.ids).save()


def hash_containers(task: _HashTask, on_progress: ProgressCallback) -> Hashes:
    """Hash the images of some containers."""
    return _joined(_hash_container(task.dataset, number, on_progress) for number in task.containers)


def _joined(parts: Iterable[Hashes]) -> Hashes:
    """Join hashes in the order of ids, which a shuffled copy has too."""
    ids, hashes = (np.concatenate(each) for each in zip(_NONE, *parts, strict=True))
    order = np.argsort(ids, kind="stable")
    return Hashes(ids[order], hashes[order])


def _hash_container(dataset: Dataset, number: int, on_progress: ProgressCallback) -> Hashes:
    try:
        return _kept_hashes(dataset, number) or _hash_records(dataset, number)
    except (Damage, NotADataset):  # NotADataset for a missing file; `verify` reports both
        return _NONE
    finally:
        on_progress(int(dataset.live.counts[number]))


def _kept_hashes(dataset: Dataset, number: int) -> Hashes | None:
    """Take the hashes of a container from the column; None unless it has all."""
    if COLUMN not in dataset.columns:
        return None
    ids = dataset.entries(number)["id"].astype(np.int64)
    column = dataset.column(COLUMN)
    indices, found = column.find_ids(ids)
    if not found.all() or column.values.dtype != np.int64 or column.values.ndim != 1:
        return None
    return Hashes(ids, column.values[indices].view(np.uint64))


def _hash_records(dataset: Dataset, number: int) -> Hashes:
    container = dataset.containers.read(number)
    hashes = {}
    for k in np.flatnonzero(container.good & dataset.live.mask(number)).tolist():
        with contextlib.suppress(ImageError):  # of damage that its CRC does not tell
            hashes[int(container.index["id"][k])] = perceptual_hash(container.jpeg(k))
    return Hashes(np.array(list(hashes), np.int64), np.array(list(hashes.values()), np.uint64))
