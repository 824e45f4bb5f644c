"""Resampling of a decoded image in one numba kernel: crop, resize, flips and padding.

``filters.py`` has the filters. ``convert`` resizes with Lanczos, the sharpest, which takes 3 times bilinear's pixels.

All arithmetic on pixels is in integers, with 14-bit weights, so no result depends on the machine's vector unit.
``resample_passes.py`` has the vertical pass, which comes first, and the horizontal pass.

Source rows are read from the first to the last, and only within a window of the filter's height. So a decoder can
decode rows as they are needed, instead of the whole image beforehand, and only a few rows stay in the cache.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from picstore.arrays import U8
from picstore.errors import UsageError
from picstore.kernels.filter_weights import axis_weights
from picstore.kernels.filters import BILINEAR, LANCZOS, MAX_COORDINATE, NEAREST
from picstore.kernels.jit import caller, device_function, kernel
from picstore.kernels.resample_passes import (
    BLOCK,
    COLUMN,
    GROUP,
    PIXELS,
    add_fill,
    interleave,
    sum_output_columns,
    sum_output_row,
    write_rows,
)
from picstore.kernels.strided import put_bytes, strided_image

_u8, _u64 = np.uint8, np.uint64
_BLACK = (0, 0, 0)
_NO_DECODER = 0, 0

# Calls a decoder with the address of the decoder's state and a number n. The decoder must have written the first n rows
# of an image to ``source`` when it returns. The result is 0, or another number if the image is damaged.
_decode_rows = caller("int64(uint64, int64)")


def resample(
    source: U8,
    box: npt.ArrayLike,
    clip: npt.ArrayLike,
    out: U8,
    *,
    interpolation: int = BILINEAR,
    antialias: bool = True,
    flips: tuple[bool, bool] = (False, False),
    fill: npt.ArrayLike = _BLACK,
) -> None:
    """Resample a box of an image and write the result to ``out``, without the GIL.

    Args:
        source: uint8 (height, width, 3), C-contiguous.
        box: left, top, width, height of the region that becomes ``out``, in source pixels; may be fractional, and reach
            beyond the image.
        clip: left, top, right, bottom in whole source pixels. The filter uses only pixels within the clip; pixels
            outside of the image count as ``fill``. An output pixel whose center is outside of the clip is ``fill``.
        out: uint8 (3, H, W), any strides.
        interpolation: code of a filter, from ``filters.py``.
        antialias: whether to widen the filter if the box is larger than the output.
        flips: whether to mirror left to right, and whether to mirror top to bottom.
        fill: red, green, blue, 0 to 255.

    Raises:
        UsageError: an array has a wrong shape, dtype or layout or is empty, the box is empty, a coordinate exceeds
            2**24 pixels, ``fill`` is not within 0 to 255, or the interpolation is unknown.
    """
    if source.ndim != 3 or source.shape[2] != 3 or source.dtype != np.uint8 or not source.flags.c_contiguous:
        raise UsageError(f"source is {source.dtype} {source.shape}; give contiguous uint8 of shape (height, width, 3)")
    if out.ndim != 3 or out.shape[0] != 3 or out.dtype != np.uint8:
        raise UsageError(f"out is {out.dtype} {out.shape}; give uint8 of shape (3, height, width)")
    if source.size == 0 or out.size == 0:
        raise UsageError(f"source has shape {source.shape} and out {out.shape}; give each at least a pixel")
    region = np.ascontiguousarray(box, dtype=np.float64)
    visible = np.ascontiguousarray(clip, dtype=np.int64)
    color = np.array(fill, dtype=np.int32)
    if region.shape != (4,) or visible.shape != (4,) or color.shape != (3,):
        raise UsageError(
            f"box, clip and fill have shapes {region.shape}, {visible.shape} and {color.shape}; give 4, 4 and 3 numbers"
        )
    mirrored = bool(flips[0]), bool(flips[1])
    rows = len(source), *_NO_DECODER
    if not resample_box(
        source, rows, region, visible, mirrored, int(interpolation), bool(antialias), color, strided_image(out)
    ):
        raise UsageError(
            f"box {region} is empty, a coordinate of it or of clip {visible} exceeds {MAX_COORDINATE}, "
            f"fill {color} is not within 0 to 255, or interpolation {interpolation} is unknown"
        )


@device_function
def _source_range(first, count):
    """Return the first source pixel that has a weight, the last + 1, and the largest element of ``count``.

    ``first`` and ``count`` are results of ``axis_weights``; ``first`` is changed in place to count from the first pixel
    returned.
    """
    low = 0
    high = 0
    taps = 0
    for i in range(first.size):
        if count[i]:
            low = min(low, first[i]) if taps else first[i]
            high = max(high, first[i] + count[i])
            taps = max(taps, count[i])
    for i in range(first.size):
        first[i] = max(first[i] - low, 0)
    return low, high, taps


@device_function
def _copy_box(source, rows, left, top, flip, row, target):
    """Copy a box of whole source pixels to the output without resampling; return whether all rows could be decoded."""
    height, width = target[5], target[6]
    for y in range(height):
        if rows[1] and _decode_rows(rows[1], (_u64(rows[2]), top + y + 1)):
            return False
        pixels = source[(top + y) % source.shape[0], left : left + width]
        for c in range(3):
            if flip:
                for x in range(width):
                    row[x] = pixels[width - 1 - x, c]
            else:
                for x in range(width):
                    row[x] = pixels[x, c]
            put_bytes(row.ctypes.data, width, target[0] + c * target[1] + y * target[2], target[3])
    return True


@device_function
def _fill(fill, row, target):
    """Fill the whole output with the color ``fill``; ``row`` is memory to work in, uint8 (width,)."""
    for c in range(3):
        row[:] = _u8(fill[c])
        for y in range(target[5]):
            put_bytes(row.ctypes.data, target[6], target[0] + c * target[1] + y * target[2], target[3])


@device_function
def _upside_down(target):
    """Return :func:`strided_image` of the output with its rows in reverse order, so that what is written is flipped."""
    turned = target.copy()
    turned[0] += (target[5] - 1) * target[2]
    turned[2] = -target[2]
    return turned


@device_function
def _is_valid(box, clip, fill):
    """Return whether the box has an area, coordinates are bounded and ``fill`` fits into bytes; NaN fails all tests."""
    for c in range(3):
        if not 0 <= fill[c] <= 255:
            return False
    for k in range(4):
        if not (-MAX_COORDINATE <= box[k] <= MAX_COORDINATE and -MAX_COORDINATE <= clip[k] <= MAX_COORDINATE):
            return False
    return box[2] > 0 and box[3] > 0


@device_function
def _is_copy_box(size, box, clip, target):
    left, top, width, height = box[0], box[1], box[2], box[3]
    return (
        width == target[6]
        and height == target[5]
        and left == math.floor(left)
        and top == math.floor(top)
        and left >= max(clip[0], 0)
        and top >= max(clip[1], 0)
        and left + width <= min(clip[2], size[0])
        and top + height <= min(clip[3], size[1])
    )


@kernel(
    "boolean(uint8[:, :, ::1], UniTuple(int64, 3), float64[::1], int64[::1], UniTuple(boolean, 2), int64, boolean, "
    "int32[::1], int64[::1])"
)
def resample_box(  # noqa: PLR0913 - a kernel's arguments are flat
    source, rows, box, clip, flips, interpolation, antialias, fill, target
):
    """Resample as ``resample`` does, but without checks of shapes and dtypes; kernels may call this function.

    Args:
        source, box, clip, flips, interpolation, antialias, fill: as for ``resample``.
        rows: three integers: number of image rows, address of a decoder that writes rows to ``source`` on demand,
            address of the decoder's state. Both addresses are 0 for a decoded image. With a decoder, ``source`` is a
            ring buffer: image row r is at r modulo len(source), which is at least ``most_taps`` plus the rows that the
            decoder writes ahead.
        target: ``strided_image`` of the output.

    Returns:
        Whether the output was written: box, clip, interpolation and fill are valid, and all rows could be decoded.
    """
    flip, upside_down = flips
    if not _is_valid(box, clip, fill) or not NEAREST <= interpolation <= LANCZOS:
        return False
    height, width = target[5], target[6]
    if upside_down:
        target = _upside_down(target)
    byte = np.empty(width, np.uint8)
    if _is_copy_box((source.shape[1], rows[0]), box, clip, target):
        return _copy_box(source, rows, int(box[0]), int(box[1]), flip, byte, target)
    x_first, x_count, x_weights, x_missing = axis_weights(
        box[0], box[2], clip[0], clip[2], source.shape[1], interpolation, antialias, width
    )
    y_first, y_count, y_weights, y_missing = axis_weights(
        box[1], box[3], clip[1], clip[3], rows[0], interpolation, antialias, height
    )
    low, high, taps = _source_range(x_first, x_count)
    if high == 0:
        _fill(fill, byte, target)
        return True
    samples = 3 * (high - low)
    lines = np.zeros((GROUP, samples + 3 * PIXELS), np.int16)
    columns = np.zeros((high - low + taps + PIXELS, COLUMN), np.int16)  # Columns from ``high`` on have weight 0.
    addresses = np.zeros(y_weights.shape[1], np.uint64)
    total = np.empty(COLUMN // 2, np.int32)
    block = np.empty((width + PIXELS, COLUMN), np.uint8)
    scratch = np.empty((GROUP, width + PIXELS), np.uint8)
    for top in range(0, height, BLOCK):
        bottom = min(top + BLOCK, height)
        for y in range(top, bottom):
            if rows[1] and _decode_rows(rows[1], (_u64(rows[2]), y_first[y] + y_count[y])):
                return False
            line = lines[y % GROUP, :samples]
            sum_output_row(source, low, y_first[y], y_count[y], y_weights[y], addresses, line)
            if y_missing[y]:
                add_fill(line, fill, y_missing[y])
            if y % GROUP == GROUP - 1 or y == bottom - 1:
                interleave(lines, high - low, columns, (y - top) // GROUP)
        sum_output_columns(columns, (x_first, x_weights, x_missing), taps, flip, fill, total, block)
        write_rows(block, scratch, target, top, bottom)
    return True
