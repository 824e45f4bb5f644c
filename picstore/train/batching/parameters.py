"""Parameters of random transforms, drawn for all images of a batch at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import log
from typing import Any, cast

import numpy as np

from picstore import rng
from picstore.arrays import F64, I64
from picstore.errors import ImageError
from picstore.storage.annotations import parse_extra, read_objects
from picstore.train.order.requests import SourceRequest, TrainingSource
from picstore.train.transforms.batch_random import BatchRandom
from picstore.train.transforms.color_program import ColorProgram, compose_color
from picstore.train.transforms.crops import TRIES, RandomHorizontalFlip, RandomResizedCrop, RandomVerticalFlip
from picstore.train.transforms.geometry import Geometry
from picstore.train.transforms.transform_lists import compose
from picstore.train.transforms.views import ViewGroup


@dataclass(frozen=True, slots=True)
class TransformParams:
    """Geometry and color of a group of views, made by the same transforms, for the n slots of a batch.

    Row v · n + i is for view v of slot i.
    """

    geometry: Geometry
    program: ColorProgram

    def equals(self, other: TransformParams) -> bool:
        """Return whether ``other`` turns the same records into the same images; boxes of objects are not compared."""
        names = [each.name for each in fields(Geometry) if each.name != "boxes"]
        geometry = all(np.array_equal(getattr(self.geometry, n), getattr(other.geometry, n)) for n in names)
        names = [each.name for each in fields(ColorProgram)]
        return geometry and all(np.array_equal(getattr(self.program, n), getattr(other.program, n)) for n in names)

    @classmethod
    def concatenate(cls, parts: Sequence[TransformParams]) -> TransformParams:
        """Join the parameters of several batches; the rows of one batch follow the rows of the batch before."""
        order = np.arange(sum(len(each.geometry.size) for each in parts))
        return cls(
            Geometry.concatenate([each.geometry for each in parts], order),
            ColorProgram.concatenate([each.program for each in parts], order),
        )

    def select_slots(self, slots: I64, *, count: int) -> TransformParams:
        """Return the parameters of only ``slots``, for each of ``count`` views; a slot may occur twice."""
        n = len(self.geometry.size) // count
        rows = view_rows(slots, count=count, n=n)
        return TransformParams(
            Geometry.concatenate([self.geometry], rows), ColorProgram.concatenate([self.program], rows)
        )


def view_rows(slots: I64, *, count: int, n: int) -> I64:
    """Return the indices of rows of ``TransformParams`` for m ``slots`` of n, view after view: int64 (count · m,)."""
    return (n * np.arange(count)[:, None] + slots).reshape(-1)


def draw_geometry(
    source: TrainingSource,
    group: ViewGroup,
    epoch: int,
    ids: I64,
    sizes: I64,
    *,
    copies: I64 | int = 0,
    boxes: F64 | None = None,
) -> tuple[Geometry, BatchRandom]:
    """Draw the geometry of a group's views of n images.

    Args:
        ids: int64 (n,), ids of the records.
        sizes: int64 (n, 2), widths and heights of the images.
        copies: int64 (n,), or one number for all: index of an image among the epoch's samples of its record, which have
            different random numbers.
        boxes: float64 (n, m, 4), boxes of each image's m objects, for transforms that need them.

    Returns:
        The geometry of the first view of all images, then of the second, and so on; and the random generators, from
        which color transforms draw their numbers next.

    Raises:
        UsageError: a transform refuses an image.
    """
    ids, views, images = _tile_views(source, group, ids, sizes, copies)
    draws = BatchRandom(source.seed, epoch, ids, views)
    repeated = None if boxes is None else np.tile(boxes, (group.count, 1, 1))
    return compose(group.geometry, Geometry.identity(images[:, 0], images[:, 1], repeated), draws), draws


def draws_by_kernel(group: ViewGroup) -> bool:
    """Return whether kernels can draw a group's geometry: a RandomResizedCrop, then only flips."""
    crop, *flips = group.geometry or (None,)
    if type(crop) is not RandomResizedCrop or crop.single_interpolation is None:
        return False
    return all(type(each) in (RandomHorizontalFlip, RandomVerticalFlip) for each in flips)


def draw_crops(
    source: TrainingSource, group: ViewGroup, epoch: int, ids: I64, sizes: I64, *, copies: I64 | int = 0
) -> tuple[Geometry, BatchRandom] | None:
    """Compute the result of :func:`draw_geometry` by kernels; return None if an image has no pixels."""
    from picstore.train.batching.batch_kernels import draw_numbers, place_crops  # late, because it imports numba

    ids, views, images = _tile_views(source, group, ids, sizes, copies)
    crop, *flips = cast("tuple[Any, ...]", group.geometry)
    n, count, bounds = len(ids), 2 * TRIES + 2 + len(flips), crop.bounds
    low, high = map(log, bounds[2:].tolist())
    keys, numbers, ratios = np.empty(n, np.uint64), np.empty((n, count)), np.empty((n, TRIES))
    key = np.uint64(rng.key(rng.AUGMENT, source.seed, epoch))
    draw_numbers(key, ids, views, low, high - low, keys, numbers, ratios)
    ratios = np.exp(ratios)
    frame, clip, box = np.empty((n, 2, 3)), np.empty((n, 4), np.int64), np.empty((n, 4))
    chances = np.array([(each.p, *each.mirrored) for each in flips]).reshape(-1, 3)
    if not place_crops(numbers, ratios, images, bounds, chances, frame, clip, box):
        return None
    size = np.broadcast_to(np.array(crop.fixes_size[::-1], np.int64), (n, 2))
    interpolation, antialias = crop.single_interpolation, crop.antialias
    geometry = Geometry.of_crops(images, frame, clip, box, size, interpolation=interpolation, antialias=antialias)
    return geometry, BatchRandom.of_keys(keys, count)


def _tile_views(
    source: TrainingSource, group: ViewGroup, ids: I64, sizes: I64, copies: I64 | int
) -> tuple[I64, I64, I64]:
    """Return record ids, indices of views and image sizes for all images of a group, view after view."""
    earlier = source.plan.view_count * np.broadcast_to(copies, ids.shape)
    views = group.first + np.repeat(np.arange(group.count), len(ids)) + np.tile(earlier, group.count)
    return np.tile(ids, group.count), views, np.tile(sizes, (group.count, 1))


def read_boxes(extras: Sequence[bytes]) -> F64:
    """Return the boxes in n records' extras (JSON), float64 (n, m, 4), padded with NaN; all NaN for invalid JSON."""
    found = [_boxes_of(extra) for extra in extras]
    table = np.full((len(found), max(map(len, found), default=0), 4), np.nan)
    for row, boxes in zip(table, found, strict=True):
        row[: len(boxes)] = boxes
    return table


def _boxes_of(extra: bytes) -> F64:
    try:
        boxes = read_objects(parse_extra(extra), ["boxes"]).boxes
    except ImageError:  # ``add_targets`` reports the damage later.
        boxes = None
    return np.empty((0, 4)) if boxes is None else boxes


def make_params(
    requests: Sequence[SourceRequest],
    ids: I64,
    sizes: I64,
    *,
    sources: Sequence[TrainingSource],
    extras: Sequence[bytes],
) -> tuple[TransformParams, ...]:
    """Draw the parameters of the transforms of each group of views.

    Args:
        ids: int64 (n,), the id of the record in each slot.
        sizes: int64 (n, 2), width and height of the image in each slot.
        extras: for each slot, the record's annotations as JSON.
    """
    groups = range(len(sources[0].plan.groups))
    return tuple(_make_group(requests, ids, sizes, extras, sources=sources, number=number) for number in groups)


def _make_group(
    requests: Sequence[SourceRequest],
    ids: I64,
    sizes: I64,
    extras: Sequence[bytes],
    *,
    sources: Sequence[TrainingSource],
    number: int,
) -> TransformParams:
    geometries, programs, rows = [], [], []
    for request in requests:
        source, slots = sources[request.source], request.slots
        group = source.plans[request.plan].groups[number]
        copies = 0 if request.samples.copy is None else request.samples.copy
        boxes = read_boxes([extras[slot] for slot in slots.tolist()]) if group.needs_boxes else None
        images = ids[slots], sizes[slots]
        drawn = None
        if draws_by_kernel(group):
            drawn = draw_crops(source, group, request.epoch, *images, copies=copies)
        if drawn is None:
            drawn = draw_geometry(source, group, request.epoch, *images, copies=copies, boxes=boxes)
        geometry, draws = drawn
        geometries.append(geometry)
        programs.append(compose_color(group.color, geometry.size, draws))
        rows.append(view_rows(slots, count=group.count, n=len(ids)))
    of_rows = rows[0] if len(rows) == 1 else np.concatenate(rows)
    if len(requests) == 1 and np.array_equal(of_rows, np.arange(len(of_rows))):
        return TransformParams(geometries[0], programs[0])
    order = np.argsort(of_rows)
    return TransformParams(Geometry.concatenate(geometries, order), ColorProgram.concatenate(programs, order))
