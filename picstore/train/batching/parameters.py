"""What becomes of the images of a batch: the parameters of all transforms, drawn for all of them at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from picstore.arrays import I64
from picstore.train.order.requests import Part, Source
from picstore.train.transforms.batch_random import BatchRandom
from picstore.train.transforms.color_program import ColorProgram, compose_color
from picstore.train.transforms.geometry import Geometry, compose

if TYPE_CHECKING:
    from picstore.train.batching.gather import BatchRecords


@dataclass(frozen=True, slots=True)
class TransformParams:
    """What becomes of the images of a batch: parameters by slot."""

    geometry: Geometry
    program: ColorProgram

    def of_slots(self, slots: I64) -> TransformParams:
        """That of some slots, in this order; a slot may come twice."""
        return TransformParams(
            Geometry.concatenate([self.geometry], slots), ColorProgram.concatenate([self.program], slots)
        )


def make_params(draft: BatchRecords, parts: Sequence[Part], *, sources: Sequence[Source]) -> TransformParams:
    """Draw the parameters of all transforms."""
    geometries, programs = [], []
    for part in parts:
        source = sources[part.source]
        draws = BatchRandom(source.seed, part.epoch, draft.ids[part.slots])
        identity = Geometry.identity(draft.layouts[part.slots, 0], draft.layouts[part.slots, 1])
        geometry = compose(source.recipe.geometry, identity, draws)
        geometries.append(geometry)
        programs.append(compose_color(source.recipe.color, geometry.size, draws))
    slots = np.concatenate([part.slots for part in parts])
    if len(parts) == 1 and np.array_equal(slots, np.arange(len(slots))):
        return TransformParams(geometries[0], programs[0])
    order = np.argsort(slots)
    return TransformParams(Geometry.concatenate(geometries, order), ColorProgram.concatenate(programs, order))
