"""Decoding of a box of a tiled JPEG in place, without first writing a stream of the box's tiles.

The rows of tiles that the box touches are split by the stored lengths of their segments. MCUs left of the box, in the
first tile of a row, are read only for their DC, without an inverse DCT; the last tile of a row is read up to the box's
right edge. The pixels are those of a full decode; ``jpeg/cut.py`` explains the margin.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from picstore.arrays import I64, U8
from picstore.jpeg.bit_reader import TOO_SHORT, unstuff_segment
from picstore.jpeg.cut import (
    MIN_CUT_WIDTH,
    PREFETCH_ROWS,
    TiledJpegs,
    holds_box,
    is_grid,
    prefetch_tile_row,
    tile_row_ranges,
)
from picstore.jpeg.decoder import parse, scan
from picstore.jpeg.decoder.decode_baseline import BUFFER_TOO_SMALL, WORKSPACE, begin, decode_rows, has_room
from picstore.jpeg.tiles import CUT_MARGIN, HEADER, HEIGHT, INTERVAL, MCU_HEIGHT, MCU_WIDTH, WIDTH
from picstore.kernels.jit import array_at, device_function, inlined, kernel

# Error code for a JPEG whose restart segments do not form whole rows of tiles, or whose headers contradict its tiling.
NO_GRID = -30
# Error code for a box that is empty, or not within the rows of the image that were read into memory.
OUTSIDE = -32
_u64 = np.uint64


def _allocate(size: int) -> U8:
    return np.empty(size, np.uint8)


def decode_box(
    tiled: TiledJpegs, box: I64, *, factor: int = 1, allocate: Callable[[int], U8] = _allocate
) -> tuple[U8, I64] | None:
    """Decode a box of a tiled JPEG.

    Args:
        tiled: one JPEG.
        box: int64 (4,): left, top, right, bottom in pixels, not empty, within the image.
        factor: divisor of the sides, 1, 2, 4 or 8. Each side of the box lies at a multiple of ``factor``, or at the
            image's edge.
        allocate: function that returns a uint8 buffer of at least the given number of bytes.

    Returns:
        Pixels of an area that contains the box, uint8 (height, width, 3), with arbitrary values outside of the box; and
        the area's left, top, width and height in full-size pixels of the image, int64 (4,). None if the JPEG is
        damaged, of another kind or not tiled, or if the box is not within the image.
    """
    rect = np.empty(4, np.int64)
    rows = tiled.addresses[0], tiled.sizes[0], tiled.tilings[0], np.ascontiguousarray(box, np.int64), factor
    code = open_box(*rows, WORKSPACE.arrays, rect)
    if code == BUFFER_TOO_SMALL:
        WORKSPACE.grow()
        code = open_box(*rows, WORKSPACE.arrays, rect)
    if code:
        return None
    frame = WORKSPACE.frame
    width, height = frame[[scan.PIXELS_WIDTH, scan.PIXELS_HEIGHT]].tolist()
    pixels = allocate(3 * width * height)
    frame[scan.OUT], frame[scan.RING] = pixels.ctypes.data, height
    if decode_rows(frame.ctypes.data, height):
        return None
    return pixels[: 3 * width * height].reshape(height, width, 3), rect


@kernel(
    "int64(uint64[::1], int64[::1], int64[::1], int64[::1], int64, Tuple((int64[::1], uint8[::1], uint64[::1], "
    "int16[::1], uint8[::1], int64[::1])), int64[::1])"
)
def open_box(addresses, sizes, tiling, box, factor, workspace, rect):
    """Parse a JPEG up to the first pixel of a box, where ``decode_rows`` continues.

    Args:
        addresses, sizes, tiling: the JPEG's row of each array of ``jpeg.cut.TiledJpegs``.
        box: int64 (4,): left, top, right, bottom in pixels, not empty, within the image.
        factor, workspace: arguments of ``decode_baseline.open_stream``.
        rect: int64 (4,), takes left, top, width and height of the decoded pixels. Rows above the box are not written.

    Returns:
        Result of ``decode_baseline.open_stream``, or NO_GRID, or OUTSIDE.
    """
    frame, tables, _, _, scratch, segments = workspace
    source = array_at(addresses[0], sizes[0], np.uint8)
    lengths = array_at(addresses[1], sizes[1], np.uint16)
    if not is_grid(source.size, tiling, lengths):
        return NO_GRID
    if not holds_box(tiling, box):
        return OUTSIDE
    code = parse.parse_frame(addresses[0], source.size, frame, _u64(tables.ctypes.data))
    if code:
        return code
    if not has_tiling(frame, tiling):
        return NO_GRID
    tiles = _set_rect(tiling, box, factor, rect)
    frame[parse.WIDTH], frame[parse.HEIGHT] = rect[2], rect[3]
    per_row = (tiling[WIDTH] + tiling[INTERVAL] * tiling[MCU_WIDTH] - 1) // (tiling[INTERVAL] * tiling[MCU_WIDTH])
    begins, ends = tile_row_ranges(lengths, tiling[HEADER], per_row, tiles)
    size = (ends - begins).sum()
    columns = (rect[2] + tiling[MCU_WIDTH] - 1) // tiling[MCU_WIDTH]
    # A block takes at least two bits, for a DC and an AC code, so this test limits allocations by the size of the data.
    if 8 * size < 2 * parse.blocks_of_mcu(frame) * columns * begins.size:
        return TOO_SHORT
    if not has_room(frame, size, (tiles[2] - tiles[0]) * begins.size, factor, scratch, segments):
        return BUFFER_TOO_SMALL
    length = _unstuff_tiles(source, lengths, per_row, tiles, (begins, ends), segments, scratch, frame)
    if length < 0:
        return length
    begin(workspace, length)
    first = rect[0] // tiling[MCU_WIDTH]
    frame[scan.SKIPPED] = first - tiles[0] * tiling[INTERVAL]
    frame[scan.ENDS_EARLY] = first + columns < tiles[2] * tiling[INTERVAL]
    frame[scan.WRITTEN] = (box[1] - rect[1]) // factor
    return 0


@device_function
def has_tiling(frame, tiling):
    """Return whether headers match a tiling except in height, which differs if only some rows of tiles are read."""
    return (
        frame[parse.WIDTH] == tiling[WIDTH]
        and 8 * frame[parse.HORIZONTAL] == tiling[MCU_WIDTH]
        and 8 * frame[parse.VERTICAL] == tiling[MCU_HEIGHT]
        and frame[parse.INTERVAL] == tiling[INTERVAL]
        and frame[parse.START] == tiling[HEADER]
    )


@inlined
def least_width(factor):
    """Return the smallest width in pixels to decode for a box at 1 / ``factor``, unless the image is narrower.

    A narrower part could have rows of 2 chroma samples, which ``ycc_to_rgb`` repeats instead of interpolating.
    """
    return (MIN_CUT_WIDTH - 1) * factor + 1


@device_function
def _set_rect(tiling, box, factor, rect):
    """Write to ``rect`` left, top, width and height of the pixels that must be decoded for a box.

    Return the tiles that hold the pixels of ``rect``: first column, first row, last column + 1, last row + 1.
    """
    width, mcu_width, mcu_height = tiling[WIDTH], tiling[MCU_WIDTH], tiling[MCU_HEIGHT]
    least = min(least_width(factor), width)
    left = min(max(box[0] - CUT_MARGIN, 0), width - least) // mcu_width
    top = max(box[1] - CUT_MARGIN, 0) // mcu_height
    rect[0], rect[1] = left * mcu_width, top * mcu_height
    rect[2] = min(max(box[2] + CUT_MARGIN, rect[0] + least), width) - rect[0]
    rect[3] = min(box[3] + CUT_MARGIN, tiling[HEIGHT]) - rect[1]
    tile_width = tiling[INTERVAL] * mcu_width
    right, bottom = rect[0] + rect[2], rect[1] + rect[3]
    return rect[0] // tile_width, top, (right - 1) // tile_width + 1, (bottom - 1) // mcu_height + 1


@device_function
def _unstuff_tiles(source, lengths, per_row, tiles, ranges, segments, scratch, frame):
    """Copy the segments of ``tiles`` without stuffed zeros to ``scratch``, after the space for planes of samples.

    Write each segment's offset to ``segments``. Return the number of copied bytes, or BAD_MARKER.
    """
    left, top, right, _ = tiles
    begins, _ = ranges
    begin, target, length, count = _u64(source.ctypes.data), _u64(scratch.ctypes.data), 0, 0
    target += _u64(scan.planes_length(frame))
    for row in range(PREFETCH_ROWS):
        prefetch_tile_row(source, ranges, row)
    for row in range(begins.size):
        prefetch_tile_row(source, ranges, row + PREFETCH_ROWS)
        offset = begins[row]
        for k in range((top + row) * per_row + left, (top + row) * per_row + right):
            segments[count] = length
            size = np.int64(lengths[k])
            readable = source.size - offset
            written = unstuff_segment(begin + _u64(offset), size, readable, target + _u64(length))
            if written < 0:
                return written
            length += written
            offset += size + 2
            count += 1
    segments[count] = length
    return length
