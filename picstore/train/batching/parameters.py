"""Parameters of the random transforms, drawn for all images of a batch at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from picstore.arrays import I64
from picstore.train.order.requests import SourceRequest, TrainingSource
from picstore.train.transforms.batch_random import BatchRandom
from picstore.train.transforms.color_program import ColorProgram, compose_color
from picstore.train.transforms.geometry import Geometry, compose
from picstore.train.transforms.views import ViewGroup

_FAR = 1 << 40  # pixels; beyond every image


@dataclass(frozen=True, slots=True)
class TransformParams:
    """Composed geometry and colour of a group's views in a batch: row v · n + i is view v of slot i, of n slots."""

    geometry: Geometry
    program: ColorProgram

    def select_slots(self, slots: I64, *, count: int) -> TransformParams:
        """The parameters of some slots, in this order, in each of ``count`` views; a slot may come twice."""
        n = len(self.geometry.size) // count
        rows = view_rows(slots, count=count, n=n)
        return TransformParams(
            Geometry.concatenate([self.geometry], rows), ColorProgram.concatenate([self.program], rows)
        )


def view_rows(slots: I64, *, count: int, n: int) -> I64:
    """Rows of slots in each view of a group, view after view: int64 (count · len(slots),)."""
    rows: I64 = (n * np.arange(count)[:, None] + slots).reshape(-1)
    return rows


def draw_geometry(
    source: TrainingSource, group: ViewGroup, epoch: int, ids: I64, sizes: I64, copies: I64 | int = 0
) -> tuple[Geometry, BatchRandom]:
    """Draw the geometry of a group's views of images, by the record's id (n,) and the image's width and height (n, 2).

    Views are counted on through the ``copies`` of a record in an epoch, (n,) or one for all.

    Returns:
        The geometry, view after view, and the numbers that follow, for colors.

    Raises:
        UsageError: a transform refuses an image.
    """
    earlier = source.plan.view_count * np.broadcast_to(copies, ids.shape)
    views = group.first + np.repeat(np.arange(group.count), len(ids)) + np.tile(earlier, group.count)
    draws = BatchRandom(source.seed, epoch, np.tile(ids, group.count), views)
    return compose(group.geometry, Geometry.identity(*np.tile(sizes.T, group.count)), draws), draws


def joint_reach(geometries: Sequence[Geometry], n: int) -> I64:
    """The box around what all views of each of n images reach: int64 (n, 4), as ``Geometry.reach``."""
    if len(geometries) == 1 and len(geometries[0].size) == n:
        return geometries[0].reach
    reach = np.concatenate([geometry.reach.reshape(-1, n, 4) for geometry in geometries])
    empty = np.logical_or.reduce(reach[:, :, :2] >= reach[:, :, 2:], axis=2, keepdims=True)
    low = np.where(empty, _FAR, reach[:, :, :2]).min(axis=0)
    high = np.where(empty, -_FAR, reach[:, :, 2:]).max(axis=0)
    return np.concatenate([low, high], axis=1)


def make_params(
    requests: Sequence[SourceRequest], ids: I64, sizes: I64, *, sources: Sequence[TrainingSource]
) -> tuple[TransformParams, ...]:
    """Draw the parameters of each group's transforms, given by slot the record's id and its width and height (n, 2)."""
    return tuple(
        _make_group(requests, ids, sizes, sources=sources, number=number)
        for number in range(len(sources[0].plan.groups))
    )


def _make_group(
    requests: Sequence[SourceRequest], ids: I64, sizes: I64, *, sources: Sequence[TrainingSource], number: int
) -> TransformParams:
    geometries, programs, rows = [], [], []
    for request in requests:
        source, slots = sources[request.source], request.slots
        group = source.plan.groups[number]
        copies = 0 if request.samples.copy is None else request.samples.copy
        geometry, draws = draw_geometry(source, group, request.epoch, ids[slots], sizes[slots], copies)
        geometries.append(geometry)
        programs.append(compose_color(group.color, geometry.size, draws))
        rows.append(view_rows(slots, count=group.count, n=len(ids)))
    drawn = np.concatenate(rows)
    if len(requests) == 1 and np.array_equal(drawn, np.arange(len(drawn))):
        return TransformParams(geometries[0], programs[0])
    order = np.argsort(drawn)
    return TransformParams(Geometry.concatenate(geometries, order), ColorProgram.concatenate(programs, order))
