"""Cutting of a batch's streams: crops of compressed bytes, to the tiles that transforms reach, before decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from picstore.arrays import I64, U8
from picstore.jpeg.cut import TiledJpegs, cut_batch
from picstore.train.batching.gather import Lengths
from picstore.train.batching.parameters import boxes_to_cut
from picstore.train.buffers import CUTS


@dataclass(frozen=True, slots=True)
class Stream:
    """The JPEG to decode for a slot: ``width`` × ``height`` pixels from (``left``, ``top``) of the stored image on."""

    jpeg: memoryview | U8
    left: int
    top: int
    width: int
    height: int


def cut_streams(jpegs: Sequence[memoryview], layouts: I64, segments: Sequence[Lengths], reach: I64) -> list[Stream]:
    """Cut streams to ``Geometry.reach``; those needed whole, or without stored lengths of segments, are not copied.

    The result is valid until this thread's next cut.
    """
    size = layouts[:, :2]
    streams = [Stream(jpeg, 0, 0, width, height) for jpeg, (width, height) in zip(jpegs, size.tolist(), strict=True)]
    boxes = boxes_to_cut(reach, size)
    chosen = np.flatnonzero(((boxes[:, 2:] - boxes[:, :2]) < size).any(axis=1)).tolist()
    if not chosen:
        return streams
    tiled = TiledJpegs.from_streams([jpegs[k] for k in chosen], layouts[chosen], [segments[k] for k in chosen])
    cuts = cut_batch(tiled, boxes[chosen], out=CUTS.at_least(int(tiled.sizes[:, 0].sum())))
    ends = cuts.offsets.tolist()
    for i, (k, rect) in enumerate(zip(chosen, cuts.rects.tolist(), strict=True)):
        streams[k] = Stream(cuts.data[ends[i] : ends[i + 1]], *rect)
    return streams
