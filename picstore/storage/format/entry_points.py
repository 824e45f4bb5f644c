"""Entry points that containers store of images with long restart segments (docs/format.md, "Entry points").

A GPU reads a segment by one lane. Where tiles are whole rows, entry points divide them into parts of a tile's usual
width, each of which takes a lane.
"""

from __future__ import annotations

import numpy as np

from picstore.arrays import U16
from picstore.jpeg.tiles import entry_interval
from picstore.storage.format.layout import MCU_SIZES, SAMPLINGS, SEGMENT
from picstore.storage.format.record import NO_SEGMENTS, ImageInfo
from picstore.storage.format.segment_table import points_of_segment
from picstore.storage.format.tile_rows import row_ends
from picstore.storage.location.abstract_location import Buffer


def count_entries(jpeg: Buffer, info: ImageInfo) -> int:
    """Bound the entries of :func:`entry_points` from above, without reading the image's codes."""
    step = _step(jpeg, info)
    return 1 + len(info.segments) * points_of_segment(info.restart_interval, step) if step else 0


def entry_points(jpeg: Buffer, info: ImageInfo) -> U16:
    """Make the entries of the segment table for the entry points of an image.

    Returns:
        uint16: the MCUs from one entry point to the next, and for each segment the bits from its beginning or the entry
        point before to each entry point. Empty for an image whose tiles are narrow, or that is damaged. ``info`` may
        know them.
    """
    step = _step(jpeg, info)
    if not step:
        return NO_SEGMENTS
    count, known = count_entries(jpeg, info), info.entry_points
    if known is not None and len(known) == count and known[0] == step:
        return known
    made = compute_entry_points(jpeg, step)
    return made if len(made) == count else NO_SEGMENTS  # of an index that contradicts its JPEG


def compute_entry_points(jpeg: Buffer, step: int) -> U16:
    """Read an image's codes, and make the entries of :func:`entry_points` for one every ``step`` MCUs."""
    from picstore.jpeg.transcode import find_entry_points  # with kernels

    points = find_entry_points(memoryview(jpeg), step)
    return NO_SEGMENTS if points is None else make_entries(step, points)


def make_entries(step: int, points: U16) -> U16:
    """Join the MCUs between two entry points and the bits between them."""
    return np.concatenate([np.array([step], SEGMENT), points.ravel()])


def _step(jpeg: Buffer, info: ImageInfo) -> int:
    """Choose the MCUs between two entry points; 0 for an image that has none."""
    mcu_width = MCU_SIZES[SAMPLINGS.index(info.sampling)][0]
    step = entry_interval(info.restart_interval, mcu_width) if mcu_width else 0
    return step if step and row_ends(info, len(jpeg)) is not None else 0
