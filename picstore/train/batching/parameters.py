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


@dataclass(frozen=True, slots=True)
class TransformParams:
    """Composed geometry and colour of the images of a batch, by slot."""

    geometry: Geometry
    program: ColorProgram

    def select_slots(self, slots: I64) -> TransformParams:
        """The parameters of some slots, in this order; a slot may come twice."""
        return TransformParams(
            Geometry.concatenate([self.geometry], slots), ColorProgram.concatenate([self.program], slots)
        )


def draw_geometry(source: TrainingSource, epoch: int, ids: I64, sizes: I64) -> tuple[Geometry, BatchRandom]:
    """Draw the geometry of images of a source, by the record's id (n,) and the image's width and height (n, 2).

    Returns:
        The geometry, and the numbers that follow, for colors.

    Raises:
        UsageError: a transform refuses an image.
    """
    draws = BatchRandom(source.seed, epoch, ids)
    return compose(source.plan.geometry, Geometry.identity(*sizes.T), draws), draws


def make_params(
    requests: Sequence[SourceRequest], ids: I64, sizes: I64, *, sources: Sequence[TrainingSource]
) -> TransformParams:
    """Draw the parameters of all transforms, given by slot the record's id and its image's width and height (n, 2)."""
    geometries, programs = [], []
    for request in requests:
        source, slots = sources[request.source], request.slots
        geometry, draws = draw_geometry(source, request.epoch, ids[slots], sizes[slots])
        geometries.append(geometry)
        programs.append(compose_color(source.plan.color, geometry.size, draws))
    slots = np.concatenate([request.slots for request in requests])
    if len(requests) == 1 and np.array_equal(slots, np.arange(len(slots))):
        return TransformParams(geometries[0], programs[0])
    order = np.argsort(slots)
    return TransformParams(Geometry.concatenate(geometries, order), ColorProgram.concatenate(programs, order))
