"""Affine warps of rotated or sheared images by bilinear interpolation, and of masks by nearest; soft edges.

Half-planes meet a row of the output in an interval, so bounds are checked once for a run of pixels, not in the inner
loops. The first inner loop gathers the four neighbors of each pixel as two 64-bit words, the only scalar part. The
second loop interpolates, and LLVM vectorizes it: 224 × 224 pixels take 110 µs; one loop for both took 280 µs. Weights
are 12-bit integers, and positions advance in steps of 2**-32 pixels from the start of each row, so that no result
depends on a machine's vector unit, or on the start of a run.
"""

from __future__ import annotations

import math

import numpy as np

from picstore.kernels.filters import GENTLE, POSITION_BITS, TIE
from picstore.kernels.jit import device_function, inlined, kernel, load_u16, load_u64, store_u8
from picstore.kernels.simd import load_byte, load_native_u64, load_u8, load_u32, store_i16, store_i32, store_native_u64
from picstore.kernels.strided import put_bytes

# Kernels cast integers to these types, because numba's constants are int64, and int64 + uint64 gives a float64.
_i64, _u64, _u32, _u8 = np.int64, np.uint64, np.uint32, np.uint8
_UNIT = float(1 << 32)  # int64 positions are in units of 1 / _UNIT pixels
_BITS, _ONE = POSITION_BITS, 1 << POSITION_BITS  # number of fractional bits of a weight, and the weight 1.0
# Positions in a map are rounded to 2**_STEP_BITS = _STEPS steps per pixel.
_STEP_BITS, _STEPS = 20, 1 << 20
_NOWHERE = np.uint64((1 << 64) - 1)  # stands for the row or column of a position outside of a map
_TO_BITS, _HALF_STEP = np.int64(32 - POSITION_BITS), np.int64(1 << (31 - POSITION_BITS))


@device_function
def visible_run(edges, y, width, least):
    """Return first and last + 1 of row ``y``'s pixels whose centers lie at least ``least`` pixels inside every edge."""
    low = 0.0
    high = width - 1.0
    for k in range(edges.shape[0]):
        slope = edges[k, 0]
        spare = 0.5 * slope + (y + 0.5) * edges[k, 1] + edges[k, 2] - least
        if slope > 0:
            low = max(low, -spare / slope)
        elif slope < 0:
            high = min(high, -spare / slope)
        elif not spare >= 0:
            high = -1.0
    if not low <= high:
        return 0, 0
    return math.ceil(low), math.floor(high) + 1


@device_function
def _narrow(start, step, low, high, first, last):
    """Return first and last + 1 of those x within ``first`` to ``last`` − 1 for which low ≤ start + step · x ≤ high."""
    begin, end = float(first), last - 1.0
    if step > 0:
        begin, end = max(begin, (low - start) / step), min(end, (high - start) / step)
    elif step < 0:
        begin, end = max(begin, (high - start) / step), min(end, (low - start) / step)
    elif not low <= start <= high:
        return first, first
    if not begin <= end:
        return first, first
    return math.ceil(begin), math.floor(end) + 1


@inlined
def _interpolated(top, bottom, bits, weights):
    """Return one channel's level, interpolated from 2 × 2 neighbors.

    ``top`` and ``bottom`` hold two neighboring pixels of 3 bytes each, the left one in the higher bits. ``bits`` is the
    first bit of the channel's level in the left pixel; the level in the right pixel begins 24 bits lower.
    """
    left, right, low = _u64(bits), _u64(bits - 24), _u32(0xFF)
    total = (
        weights[0] * (_u32(top >> left) & low)
        + weights[1] * (_u32(top >> right) & low)
        + weights[2] * (_u32(bottom >> left) & low)
        + weights[3] * (_u32(bottom >> right) & low)
    )
    return _u8((total + _u32(_ONE // 2)) >> _u32(_BITS))


@device_function
def _warp_inner(source, start, step, rows, line, run):
    """Interpolate the output pixels ``run`` (first, last + 1) of a row, whose neighbors all lie in ``source``."""
    start_x, start_y = start
    step_x, step_y = step
    address = _u64(source.ctypes.data)
    stride = _i64(3 * source.shape[1])
    first, last = run
    upper, lower = rows[0, first:last], rows[1, first:last]
    for i in range(upper.size):
        left, top = (start_x + i * step_x) >> _i64(32), (start_y + i * step_y) >> _i64(32)
        pixel = address + _u64(top * stride + _i64(3) * left)
        upper[i] = load_u64(pixel)
        lower[i] = load_u64(pixel + _u64(stride))
    red, green, blue = line[0, first:last], line[1, first:last], line[2, first:last]
    for i in range(upper.size):
        fx = _u32(((start_x + i * step_x) >> _i64(32 - _BITS)) & _i64(_ONE - 1))
        fy = _u32(((start_y + i * step_y) >> _i64(32 - _BITS)) & _i64(_ONE - 1))
        both = (fx * fy + _u32(_ONE // 2)) >> _u32(_BITS)
        weights = (_u32(_ONE) - fx - fy + both, fx - both, fy - both, both)
        red[i] = _interpolated(upper[i], lower[i], 56, weights)
        green[i] = _interpolated(upper[i], lower[i], 48, weights)
        blue[i] = _interpolated(upper[i], lower[i], 40, weights)


@inlined
def level_at(source, x, y, c, fill):
    """Return the level of channel ``c`` of an image's pixel (x, y); outside of the image, return the fill's level."""
    if 0 <= x < source.shape[1] and 0 <= y < source.shape[0]:
        return _i64(source[y, x, c])
    return _i64(fill[c])


@inlined
def _row_start(step, shift, offset, y, width):
    """Return, along one axis, the source position of a row's first pixel, the step to the next, and whether both fit.

    Position and step are int64 in units of 2**-32 pixels; both are 0 if one does not fit. Half of 2**-12 pixels is
    added to the position, so that truncation to 12 bits rounds.
    """
    start = 0.5 * step + shift * (y + 0.5) + offset - 0.5
    if not (abs(step) * width < GENTLE and abs(start) < GENTLE):
        return _i64(0), _i64(0), False
    return _i64(math.floor(start * _UNIT)) + _HALF_STEP, _i64(math.floor(step * _UNIT + 0.5)), True


@inlined
def _border_position(first, by, gentle, at, x, low, high):
    """Return the source position of pixel ``x`` along an axis, in units of 2**-12 pixels, moved into the clip."""
    if gentle:
        steps = (first + x * by) >> _TO_BITS
    else:
        steps = _i64(math.floor(min(max(at, float(low)), high - 1.0) * _ONE + 0.5))
    return min(max(steps, low << _BITS), (high - 1) << _BITS)


@device_function
def _warp_border(source, matrix, clip, fill, line, y, run, axes):
    """Interpolate the pixels ``run`` (first, last + 1) of output row ``y``; neighbors may lie outside clip or image.

    Beyond the clip, its border pixels repeat. Where the clip extends beyond the image, ``fill`` is used.
    """
    (first_x, by_x, gentle_x), (first_y, by_y, gentle_y) = axes
    for x in range(run[0], run[1]):
        at_x = matrix[0, 0] * (x + 0.5) + matrix[0, 1] * (y + 0.5) + matrix[0, 2] - 0.5
        at_y = matrix[1, 0] * (x + 0.5) + matrix[1, 1] * (y + 0.5) + matrix[1, 2] - 0.5
        to_x = _border_position(first_x, by_x, gentle_x, at_x, x, clip[0], clip[2])
        to_y = _border_position(first_y, by_y, gentle_y, at_y, x, clip[1], clip[3])
        left, top, fx, fy = to_x >> _BITS, to_y >> _BITS, to_x & (_ONE - 1), to_y & (_ONE - 1)
        right, bottom = min(left + 1, clip[2] - 1), min(top + 1, clip[3] - 1)
        both = (fx * fy + _ONE // 2) >> _BITS
        for c in range(3):
            total = (
                level_at(source, left, top, c, fill) * (_ONE - fx - fy + both)
                + level_at(source, right, top, c, fill) * (fx - both)
                + level_at(source, left, bottom, c, fill) * (fy - both)
                + level_at(source, right, bottom, c, fill) * both
            )
            line[c, x] = _u8((total + _ONE // 2) >> _BITS)


@device_function
def _safe(start, step, low, high, begin, end):
    """Return first and last + 1 of the output pixels from ``begin`` to ``end`` with source positions in low … high.

    The positions start + step · x are monotonic, so it is enough to move both ends inwards, by at most two pixels.
    """
    first, last = begin, end
    while first < last and not low <= (start + first * step) >> 32 <= high:
        first += 1
    while first < last and not low <= (start + (last - 1) * step) >> 32 <= high:
        last -= 1
    return first, last


@kernel("(uint8[:, :, ::1], float64[:, ::1], int64[::1], float64[:, ::1], uint8[::1], int64[::1])")
def warp(source, matrix, clip, edges, fill, target):
    """Interpolate output pixels that lie at least in part within ``edges``; ``apply_edges`` writes the other pixels.

    Args:
        source: uint8 (h, w, 3), C-contiguous.
        matrix: float64 (2, 3), map of output pixels to source pixels; finite.
        clip: int64 (4,), left, top, right, bottom in source pixels, not empty, within 2**30.
        edges: float64 (k, 3), half-planes a·x + b·y + c ≥ 0 in output pixels; the fill is outside of their
            intersection.
        fill: uint8 (3,), color of the part of the clip that lies outside of the source.
        target: ``strided_image`` of the output, uint8 (3, H, W).
    """
    height, width = target[5], target[6]
    rows = np.empty((2, width), np.uint64)
    line = np.empty((3, width), np.uint8)
    # ``_warp_inner`` may interpolate a pixel if the upper left of its four neighbors lies within these bounds. Two more
    # columns must follow that neighbor, because 8 bytes, almost 3 pixels, are read.
    low_x, high_x = max(clip[0], 0), min(clip[2] - 2, source.shape[1] - 3)
    low_y, high_y = max(clip[1], 0), min(clip[3] - 2, source.shape[0] - 2)
    for y in range(height):
        first, last = visible_run(edges, y, width, -0.5)
        to_x = _row_start(matrix[0, 0], matrix[0, 1], matrix[0, 2], y, width)
        to_y = _row_start(matrix[1, 0], matrix[1, 1], matrix[1, 2], y, width)
        begin = end = first
        if to_x[2] and to_y[2]:
            begin, end = _narrow(to_x[0] / _UNIT, matrix[0, 0], low_x, high_x + 1.0, first, last)
            begin, end = _narrow(to_y[0] / _UNIT, matrix[1, 0], low_y, high_y + 1.0, begin, end)
            from_x, until_x = _safe(to_x[0], to_x[1], low_x, high_x, begin, end)
            from_y, until_y = _safe(to_y[0], to_y[1], low_y, high_y, begin, end)
            begin, end = max(from_x, from_y), min(until_x, until_y)
        if begin < end:
            start = to_x[0] + begin * to_x[1], to_y[0] + begin * to_y[1]
            _warp_inner(source, start, (to_x[1], to_y[1]), rows, line, (begin, end))
        else:
            begin = end = first
        _warp_border(source, matrix, clip, fill, line, y, (first, begin), (to_x, to_y))
        _warp_border(source, matrix, clip, fill, line, y, (end, last), (to_x, to_y))
        for c in range(3):
            to = target[0] + c * target[1] + y * target[2] + first * target[3]
            put_bytes(line.ctypes.data + c * width + first, last - first, to, target[3])


@kernel("(float64[:, ::1], uint8[::1], boolean, int64[::1])")
def apply_edges(edges, fill, hard, target):
    """Write the fill to pixels beyond any edge, and blend pixels within half a pixel of an edge with the fill.

    Args:
        edges: float64 (k, 3), half-planes a·x + b·y + c ≥ 0 in output pixels; the fill is outside of their
            intersection.
        fill: uint8 (3,).
        hard: whether to blend no pixels, and to fill those whose centers lie beyond an edge.
        target: ``strided_image`` of the output, uint8 (3, H, W).
    """
    height, width = target[5], target[6]
    colors = np.empty((3, width), np.uint8)
    for c in range(3):
        colors[c] = fill[c]
    for y in range(height):
        first, last = visible_run(edges, y, width, -TIE if hard else -0.5)
        begin, end = (first, last) if hard else visible_run(edges, y, width, 0.5)
        if begin >= end:
            begin = end = last
        for c in range(3):
            color, to = colors.ctypes.data + c * width, target[0] + c * target[1] + y * target[2]
            put_bytes(color, first, to, target[3])
            put_bytes(color, width - last, to + last * target[3], target[3])
        for x in range(first, last):
            if begin <= x < end:
                continue
            seen = 1.0
            for k in range(edges.shape[0]):
                inside = edges[k, 0] * (x + 0.5) + edges[k, 1] * (y + 0.5) + edges[k, 2] + 0.5
                seen *= min(max(inside, 0.0), 1.0)
            weight = int(seen * _ONE + 0.5)
            for c in range(3):
                at = _u64(target[0] + c * target[1] + y * target[2] + x * target[3])
                store_u8(at, _u8((load_byte(at) * weight + _i64(fill[c]) * (_ONE - weight) + _ONE // 2) >> _BITS))


@device_function
def _copy_element(at, size, fill, to):
    """Copy an element of ``size`` bytes from address ``at`` to address ``to``; write ``fill`` if ``at`` is 0."""
    if size == 1:
        store_u8(to, load_u8(at) if at else _u8(fill))
    elif size == 2:
        store_i16(to, np.int16(load_u16(at)) if at else np.int16(fill))
    elif size == 4:
        store_i32(to, np.int32(load_u32(at)) if at else np.int32(fill))
    else:
        store_native_u64(to, load_native_u64(at) if at else fill)


@kernel("(Tuple((int64[::1], int64)), float64[:, ::1], int64[::1], float64[:, ::1], uint64, int64[::1])")
def warp_nearest(mask, matrix, clip, edges, fill, target):
    """Copy the mask's element under each output pixel's center; write ``fill`` outside of the clip, mask or edges.

    Args:
        mask: ``strided_image`` of the mask (h, w), and the size of an element in bytes: 1, 2, 4 or 8.
        matrix, clip, edges: as for ``warp``.
        fill: uint64, the bits of an element.
        target: ``strided_image`` of the output, (H, W) of the mask's dtype.
    """
    source, size = mask
    height, width = target[3], target[4]
    low_x, high_x = max(clip[0], 0), min(clip[2], source[4])
    low_y, high_y = max(clip[1], 0), min(clip[3], source[3])
    for y in range(height):
        first, last = visible_run(edges, y, width, -TIE)
        for x in range(width):
            at = 0
            if first <= x < last:
                # Midway between two pixels, take the right or lower pixel, whatever the rounding errors.
                from_x = math.floor(matrix[0, 0] * (x + 0.5) + matrix[0, 1] * (y + 0.5) + matrix[0, 2] + TIE)
                from_y = math.floor(matrix[1, 0] * (x + 0.5) + matrix[1, 1] * (y + 0.5) + matrix[1, 2] + TIE)
                if low_x <= from_x < high_x and low_y <= from_y < high_y:
                    at = source[0] + from_y * source[1] + from_x * source[2]
            _copy_element(_u64(at), size, fill, _u64(target[0] + y * target[1] + x * target[2]))


@kernel(
    "(Tuple((float32[:, :, ::1], int64[::1])), float64[:, ::1], int64[::1], float64[:, ::1], UniTuple(float64, 2), "
    "boolean, Tuple((float64[:, :, ::1], boolean[:, ::1])))"
)
def warp_map(some, matrix, bounds, edges, numbers, linear, out):  # noqa: C901 - functions of a pixel take twice the time
    """Resample a map (values per pixel, such as depth); the output shows what lies under the centers of its pixels.

    Linear interpolation takes positions in steps of 2**-20 pixels. If one of the four neighbors has no value, the
    output takes the pixel under the center unchanged.

    Args:
        some: float32 (h, w, channels), some rows and columns of the map; and int64 (2,), the map's column and row at
            which they begin.
        matrix, edges: as for ``warp``.
        bounds: int64 (4,), left, top, right, bottom of the map's pixels that may be used.
        numbers: the value outside of bounds and edges; and the number that means "no value", or NaN. NaN and infinity
            always mean "no value", in any channel.
        linear: whether to interpolate; otherwise the nearest pixel is taken.
        out: float64 (channels, H, W), the values; and bool (H, W), whether the output has a value of the map.
    """
    source, origin = some
    fill, invalid = numbers
    target, valid = out
    channels, height, width = target.shape
    # Without rotation or shear, a source column depends on x alone, and a source row on y alone. So all columns are
    # computed once for the image, at y = 0, and the source row is computed once for each y.
    slanted = matrix[0, 1] != 0 or matrix[1, 0] != 0
    # Unsigned indices, because numba tests signed ones for negative values, which would take a third of the time.
    columns, rows = np.empty((width, 3), np.uint64), np.empty((width, 3), np.uint64)
    right_weights, lower_weights = np.empty(width), np.empty(width)
    for y in range(height):
        first, last = visible_run(edges, y, width, -TIE)
        if slanted or y == 0:
            for x in range(width):
                at = matrix[0, 0] * (x + 0.5) + matrix[0, 1] * (y + 0.5) + matrix[0, 2]
                right_weights[x] = _place(at, bounds[0], bounds[2], origin[0], columns[x])
        for x in range(width if slanted else 1):
            at = matrix[1, 0] * (x + 0.5) + matrix[1, 1] * (y + 0.5) + matrix[1, 2]
            lower_weights[x] = _place(at, bounds[1], bounds[3], origin[1], rows[x])
        for x in range(width):
            k = x if slanted else 0
            near_x, near_y = columns[x, 0], rows[k, 0]
            if not (first <= x < last and near_x != _NOWHERE and near_y != _NOWHERE):
                valid[y, x] = False
                for c in range(channels):
                    target[c, y, x] = fill
                continue
            if linear:
                left, right, top, bottom = columns[x, 1], columns[x, 2], rows[k, 1], rows[k, 2]
                fx, fy = right_weights[x], lower_weights[k]
                whole = True
                for c in range(channels):
                    a, b = source[top, left, c], source[top, right, c]
                    e, f = source[bottom, left, c], source[bottom, right, c]
                    # The difference a - a is 0 for a finite number, and NaN for NaN and infinity.
                    finite = (a - a) + (b - b) + (e - e) + (f - f) == 0
                    whole &= finite & (a != invalid) & (b != invalid) & (e != invalid) & (f != invalid)
                    target[c, y, x] = (a * (1.0 - fx) + b * fx) * (1.0 - fy) + (e * (1.0 - fx) + f * fx) * fy
                valid[y, x] = whole
                if whole:
                    continue
            found = True
            for c in range(channels):
                value = source[near_y, near_x, c]
                found &= (value - value == 0) & (value != invalid)
                target[c, y, x] = value
            valid[y, x] = found


@inlined
def _place(at, low, high, origin, found):
    """Find the map's rows or columns around the position ``at`` along an axis; return the interpolation weight.

    ``found``, (3,), receives the index of the nearest one, or ``_NOWHERE`` if it is not one of ``low`` to ``high`` - 1;
    then the two indices between which to interpolate. The weight is that of the second. Indices count from ``origin``.
    """
    found[0] = _NOWHERE
    # Compare before the conversion to integers, because a position may exceed their range.
    if not low <= at + TIE < high:
        return 0.0
    steps = math.floor((at - 0.5) * _STEPS + 0.5)
    before, weight = steps >> _STEP_BITS, (steps & (_STEPS - 1)) / _STEPS
    found[0] = _u64(math.floor(at + TIE) - origin)
    found[1] = _u64(max(before, low) - origin)
    # If the second pixel has the weight 0, name the first again: 0 times a NaN in the second would be NaN.
    found[2] = _u64(min(before + (1 if weight > 0 else 0), high - 1) - origin)
    return weight
