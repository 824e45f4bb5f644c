"""Near-duplicates in a dataset, or of another dataset's images, by perceptual hashes of the stored JPEGs.

Hashes of 64 bits are searched by Hamming distance without comparing all pairs, by multi-index hashing (Norouzi, Punjani
and Fleet, 2012). A hash consists of three bands of bits. If the bands of two hashes differ in more than r0, r1 and r2
bits, the hashes differ in at least r0 + r1 + r2 + 3 bits. So each band has a table that maps its values to the hashes
with this value, and a search looks up all values within r0, r1 or r2 bits of the query's value. For a distance of 6,
these are 1, 1 and 2 bits, so a search looks up 300 values. A million hashes take 7 s on one core.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import NamedTuple

import numpy as np

from picstore.arrays import I64, U64
from picstore.display.progress import Progress, ProgressCallback, begin_stage, progress_callback
from picstore.errors import Damage, ImageError, NotADataset, UsageError
from picstore.jpeg.decode_any import decode_rgb
from picstore.jpeg.perceptual_hash import hash_pixels, perceptual_hash, read_scan
from picstore.kernels.ahead import compile_ahead
from picstore.kernels.jit import kernel, popcount
from picstore.prepare.engine import worker_processes
from picstore.prepare.image.decoder_process import decode_foreign
from picstore.results import Duplicate, DuplicateGroup
from picstore.storage.dataset import Dataset
from picstore.storage.format.container import Container

# Name of the dataset's column that stores images' perceptual hashes, of 64 bits, as int64.
COLUMN = "phash"
# Default distance in bits, whose recall and precision docs/archive/duplicates-2026-11.md states.
DEFAULT_DISTANCE = 6
# Largest distance in bits: above it, the search would flip 4 instead of 3 bits of a hash's band (a third of its
# bits), with 8,000 more look-ups.
MAX_DISTANCE = 11

_BITS = 22  # number of bits of the widest of the three bands into which the search divides a hash
_BANDS = ((0, 21), (21, 21), (42, _BITS))  # lowest bit and number of bits of each band of a hash

# Tasks per worker: enough for even shares and for progress, but few, because each task must open the dataset.
_TASKS_A_WORKER = 8


class Hashes(NamedTuple):
    """Ids of a dataset's images, int64 (n,), ascending, and their perceptual hashes, uint64 (n,)."""

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

    Each duplicate is within ``distance`` of its group's image, which has the group's lowest id, so duplicates may be
    deleted.

    Args:
        other: hashes of another dataset. If given, a group is an image of that dataset with its duplicates in the first
            dataset.
        distance: largest number of different bits, from 0 to 11.
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
    """Hash all readable images of a dataset, or take the hashes from its column ``phash``."""
    live = np.flatnonzero(dataset.live.counts)
    engine = worker_processes.as_engine(workers)
    chunks = np.array_split(live, min(len(live), _TASKS_A_WORKER * engine.workers)) if len(live) else []
    tasks = [_HashTask(dataset, tuple(chunk.tolist())) for chunk in chunks]
    begin_stage(progress, "hashing", len(dataset))
    compile_ahead((read_scan, find_nearest_each))
    done = worker_processes.run_each(hash_containers, tasks, workers=engine, on_progress=progress_callback(progress))
    return _joined(part for _, part in done)


def save_hashes(dataset: Dataset, hashed: Hashes) -> Dataset:
    """Write hashes to the dataset's column ``phash``, which :func:`hash_images` reads. Errors: :meth:`Dataset.save`."""
    return dataset.with_columns({COLUMN: hashed.hashes.view(np.int64)}, ids=hashed.ids).save()


def hash_containers(task: _HashTask, on_progress: ProgressCallback) -> Hashes:
    """Return the ids and perceptual hashes of the images in a task's containers, without damaged images."""
    return _joined(_hash_container(task.dataset, number, on_progress) for number in task.containers)


def _joined(parts: Iterable[Hashes]) -> Hashes:
    """Join the hashes of containers, sorted by image id, so that a shuffled copy of a dataset gives equal arrays."""
    ids, hashes = (np.concatenate(each) for each in zip(_NONE, *parts, strict=True))
    order = np.argsort(ids, kind="stable")
    return Hashes(ids[order], hashes[order])


def _hash_container(dataset: Dataset, number: int, on_progress: ProgressCallback) -> Hashes:
    try:
        return _kept_hashes(dataset, number) or _hash_records(dataset, number)
    except (Damage, NotADataset):  # Skip a damaged container or a missing file, which `verify` reports.
        return _NONE
    finally:
        on_progress(int(dataset.live.counts[number]))


def _kept_hashes(dataset: Dataset, number: int) -> Hashes | None:
    """Return the hashes of a container's images from the column ``phash``; None if an image has no hash there."""
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
        with contextlib.suppress(ImageError):  # Skip an image that is damaged although its checksum is right.
            hashes[int(container.index["id"][k])] = _hash_record(container, k)
    return Hashes(np.array(list(hashes), np.int64), np.array(list(hashes.values()), np.uint64))


def _hash_record(container: Container, k: int) -> int:
    """Hash record ``k``; decode images that only an index in place has: progressive, rotated by EXIF, or not JPEGs."""
    info, data = container.info(k), container.jpeg(k)
    if info.foreign:
        name, _ = container.locate(int(container.index["offset"][k]))
        return hash_pixels(decode_foreign(data, width=info.width, height=info.height, name=name))
    with contextlib.suppress(ImageError):
        return perceptual_hash(data)
    return hash_pixels(decode_rgb(data, width=info.width, height=info.height))


def find_nearest(queries: U64, hashes: U64, distance: int) -> tuple[I64, I64]:
    """Find the nearest hash within ``distance`` bits of each query; of equally near hashes, the first.

    Return indices in ``hashes``, and distances in bits, both int64 (queries,). Without such a hash, the index is −1,
    and the distance is ``distance`` + 1.
    """
    if not len(hashes):
        return np.full(len(queries), -1), np.full(len(queries), distance + 1)
    unique, first = np.unique(hashes, return_index=True)
    asked, inverse = np.unique(queries, return_inverse=True)
    order = np.argsort(first)
    indices, distances = _search(asked, unique[order], distance, leaders=False)
    found = np.where(indices < 0, -1, first[order][indices])
    return found[inverse], distances[inverse]


def find_leaders(hashes: U64, distance: int) -> tuple[I64, I64]:
    """Group hashes around leaders. A hash is a leader if no earlier leader is within ``distance`` bits.

    Every other hash belongs to the nearest earlier leader; equal hashes have the same leader. Return the index of each
    hash's leader (a leader's own index), and the hash's distance to the leader in bits, both int64 (hashes,).
    """
    unique, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
    order = np.argsort(first)
    indices, distances = _search(unique[order], unique[order], distance, leaders=True)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return first[order][indices][rank[inverse]], distances[rank[inverse]]


def _search(queries: U64, hashes: U64, distance: int, *, leaders: bool) -> tuple[I64, I64]:
    """Do the work of :func:`find_leaders` if ``leaders``, else of :func:`find_nearest`, for distinct ``hashes``."""
    sorted_hashes, orders = np.empty((3, len(hashes)), np.uint64), np.empty((3, len(hashes)), np.int32)
    starts = np.zeros((3, (1 << _BITS) + 1), np.int32)
    for band, (shift, bits) in enumerate(_BANDS):
        values = (hashes >> np.uint64(shift)).astype(np.int64) & ((1 << bits) - 1)
        orders[band] = np.argsort(values, kind="stable")
        sorted_hashes[band] = hashes[orders[band]]
        np.cumsum(np.bincount(values, minlength=1 << _BITS), out=starts[band, 1:])
    used = np.packbits(starts[:, 1:] > starts[:, :-1], axis=1, bitorder="little")
    # Number of bits to flip in each of the three bands; the sum is ``distance`` − 2. A hash that is not found by
    # flips in any band differs in every band by at least one bit more, so in at least ``distance`` + 1 bits altogether.
    radii = [(distance - 2 + band) // 3 for band in range(3)]
    flips = [sum(1 << bit for bit in bits) for n in range(radii[2] + 1) for bits in combinations(range(_BITS), n)]
    counts = [sum(comb(_BITS, n) for n in range(radius + 1)) for radius in radii]
    bands = np.array([(*band, count) for band, count in zip(_BANDS, counts, strict=True)])
    indices, distances = np.empty((2, len(queries)), np.int64)
    tables = sorted_hashes, orders, starts, used
    find_nearest_each(queries, tables, (bands, np.array(flips)), (distance, leaders), (indices, distances))
    return indices, distances


@kernel(
    "(uint64[::1], Tuple((uint64[:, ::1], int32[:, ::1], int32[:, ::1], uint8[:, ::1])), "
    "Tuple((int64[:, ::1], int64[::1])), Tuple((int64, boolean)), UniTuple(int64[::1], 2))"
)
def find_nearest_each(queries, tables, nearby, limits, found):
    """Write to ``found`` the index of each query's nearest hash, and the distance; see :func:`_search`."""
    hashes, orders, starts, used = tables
    bands, flips = nearby
    distance, leaders = limits
    indices, distances = found
    for i in range(queries.size):
        query, best, nearest = queries[i], distance + 1, -1
        for band in range(3):
            value = np.int64(query >> np.uint64(bands[band, 0])) & ((1 << bands[band, 1]) - 1)
            for flip in flips[: bands[band, 2]]:
                near = value ^ flip
                # Skip values that no hash has. ``used`` has one bit per value, so it fits into the CPU's cache.
                if not used[band, near >> 3] >> (near & 7) & 1:
                    continue
                for k in range(starts[band, near], starts[band, near + 1]):
                    apart = np.int64(popcount(query ^ hashes[band, k]))
                    if apart > best:
                        continue
                    j = orders[band, k]
                    closer = apart < best or j < nearest
                    if closer and not (leaders and (j >= i or indices[j] != j)):
                        best, nearest = apart, j
        indices[i], distances[i] = nearest, best
        if leaders and nearest < 0:
            indices[i], distances[i] = i, 0
