"""Images that transforms make, as the page shows them: what a recipe draws, and the batches of a training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from picstore.arrays import U8, Array
from picstore.train.batching.host_batch import HostBatch
from picstore.train.batching.parameters import TransformParams
from picstore.train.batching.spec import OutputSpec
from picstore.viewer.parameters import describe, frame_of, normalization


@dataclass(frozen=True, slots=True)
class DrawnImage:
    """An image that was made of a record.

    Attributes:
        group, view: name of its group of views, "" for a list of transforms, and its number there.
        id, label: of its record.
        frame: corners of what was cut out, in pixels of the record's image.
        parameters: what was done to it, in words.
        note: remark, e.g. that the record replaces a damaged one.
    """

    group: str
    view: int
    slot: int
    id: str
    label: int
    width: int
    height: int
    frame: list[list[float]]
    parameters: list[str]
    source_size: list[int]
    position: int = -1
    note: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """Images and their pixels, uint8 (height, width, 3) each; ``facts`` says more of all of them."""

    images: list[DrawnImage]
    pixels: list[U8]
    facts: dict[str, Any] = field(default_factory=dict)


def draw_views(
    images: Any, host: HostBatch, params: Sequence[TransformParams], output: OutputSpec, *, slots: Sequence[int]
) -> Drawn:
    """Describe the images of some slots of a batch, by group, view and slot.

    Args:
        images: by group and view, of all slots: arrays (3, H, W), normalized or not.
        host: the batch.
        slots: the slots to show, all views of each.
    """
    made, pixels = [], []
    for slot in slots:
        for group, views, param in zip(output.groups, images, params, strict=True):
            for view, of_slots in enumerate(views):
                row = view * len(host.ids) + slot
                geometry = param.geometry
                pixels.append(to_levels(np.asarray(of_slots[slot]), param, row))
                width, height = geometry.size[row].tolist()
                made.append(
                    DrawnImage(
                        group=group.name,
                        view=view,
                        slot=slot,
                        id=str(int(host.ids[slot].astype(np.uint64))),
                        label=int(host.labels[slot]),
                        width=width,
                        height=height,
                        frame=frame_of(geometry, row),
                        parameters=describe(geometry, param.program, row),
                        source_size=geometry.source_size[row].tolist(),
                    )
                )
    return Drawn(made, pixels)


def to_levels(image: Array, params: TransformParams, row: int) -> U8:
    """Turn an image (3, H, W) back into levels, uint8 (H, W, 3): that is, undo its normalization."""
    image = image.transpose(1, 2, 0)
    if image.dtype == np.uint8:
        return np.ascontiguousarray(image)
    mean, deviation = normalization(params.program, row)
    levels = (image.astype(np.float32) * deviation.astype(np.float32) + mean.astype(np.float32)) * 255
    return np.clip(np.rint(levels), 0, 255).astype(np.uint8)
