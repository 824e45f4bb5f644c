"""One decoded image, resampled once into its place in the batch: crop, resize, flips and padding in one numba kernel.

The filter is that of torchvision with ``antialias=True``: a triangle of half-width 1, widened by the scale where the
box is larger than the output, over the pixels of ``clip`` only, the weights normalised to one. ``BILINEAR`` leaves the
triangle at half-width 1, which is plain bilinear interpolation (``align_corners=False``). ``LANCZOS`` is what convert
resizes by: half-width 3, widened likewise, as Pillow has it; it is sharper, and takes three times as many pixels.

Weights are 14-bit integers and so is all arithmetic on pixels: no result depends on a machine's vector unit. The
vertical pass goes first, along the contiguous bytes of rows, and keeps 6 bits after the point, so that there is one
rounding to 8 bits, not two, and room for what Lanczos' negative weights bring beyond white and below black, which
is clipped at the end. The horizontal pass has an output pixel's ``_BLOCK`` rows side by side in memory: every step of
it is a run of equal operations on neighbours, which LLVM turns into vector instructions; docs/design.md has the figures
of what else was tried. The kernel holds no GIL and is compiled at the first call.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from picstore.arrays import U8
from picstore.errors import UsageError
from picstore.kernels.jit import array_at, device_function, kernel
from picstore.kernels.strided import place_of, put_bytes

_GROUP = 8  # rows that are interleaved at once: LLVM interleaves stores by at most 8, and 8 bytes fill a 64-bit word
_BLOCK = 32  # rows that the horizontal pass takes at once, in 4 groups: 96 lanes with the colours
_LANES = 3 * _BLOCK

# Types of the arithmetic: numba takes plain integer constants for 64-bit ones, which would halve the vector width.
_i16, _i32, _u8, _u64 = np.int16, np.int32, np.uint8, np.uint64
_ONE = 1 << 14  # the sum of an output pixel's weights
_HALF_ROW = np.int32(1 << 7)  # half of the last place that the vertical pass drops: 14 bits of weight become 6
_HALF_PIXEL = np.int32(1 << 19)  # half a grey level after both passes: 6 + 14 bits
_FARTHEST = 1 << 24  # pixels; bounds every loop, and keeps coordinates far from what an integer holds
_BLACK = (0, 0, 0)
BILINEAR, ANTIALIASED, LANCZOS = 0, 1, 2  # filters; the first two are what ``antialias`` says elsewhere
_LOBES = 3  # of Lanczos' filter to each side
_SERIES = tuple(1 / (k * (k - 1)) for k in range(16, 0, -2))  # of the cosine, for Horner's rule


def resample(
    source: U8,
    box: npt.ArrayLike,
    clip: npt.ArrayLike,
    flip: bool,
    kind: int,
    out: U8,
    *,
    upside_down: bool = False,
    fill: npt.ArrayLike = _BLACK,
) -> None:
    """Resample a box of an image into ``out``; releases the GIL.

    Args:
        source: uint8 (height, width, 3), C-contiguous.
        box: left, top, width, height of the region that becomes ``out``, in source pixels; may be fractional, and
            may lie outside of the image.
        clip: left, top, right, bottom in whole source pixels. The filter sees nothing outside of it, and an output
            pixel whose centre lies outside is ``fill``; pixels inside the clip but outside the image count as ``fill``.
        flip: mirror the output left to right.
        kind: the filter: ``BILINEAR``, ``ANTIALIASED`` or ``LANCZOS``.
        out: uint8 (3, H, W), overwritten; any strides.
        upside_down: mirror the output top to bottom.
        fill: red, green, blue, 0 to 255.

    Raises:
        UsageError: an array has another shape, type or layout or is empty, the box is empty, or the box or the clip
            reaches more than 2**24 pixels away.
    """
    if source.ndim != 3 or source.shape[2] != 3 or source.dtype != np.uint8 or not source.flags.c_contiguous:
        raise UsageError(f"source is {source.dtype} {source.shape}; give contiguous uint8 of shape (height, width, 3)")
    if out.ndim != 3 or out.shape[0] != 3 or out.dtype != np.uint8:
        raise UsageError(f"out is {out.dtype} {out.shape}; give uint8 of shape (3, height, width)")
    if source.size == 0 or out.size == 0:
        raise UsageError(f"source has the shape {source.shape} and out {out.shape}; give images that are not empty")
    region = np.ascontiguousarray(box, dtype=np.float64)
    visible = np.ascontiguousarray(clip, dtype=np.int64)
    color = np.array(fill, dtype=np.int32)
    if region.shape != (4,) or visible.shape != (4,) or color.shape != (3,):
        raise UsageError(
            f"box, clip and fill have the shapes {region.shape}, {visible.shape} and {color.shape}; "
            "give four, four and three numbers"
        )
    flips = bool(flip), bool(upside_down)
    if not resample_box(source, region, visible, flips, int(kind), color, place_of(out)):
        raise UsageError(
            f"box {region} or clip {visible} is empty, or not within {_FARTHEST} pixels of the image, "
            f"or fill {color} not within 0 to 255"
        )


@device_function
def _tap(distance, lanczos):  # type: ignore[no-untyped-def]
    """A filter's value at a distance from its centre, as part of its half-width, up to a factor."""
    if distance >= 1.0:
        return 0.0
    if not lanczos:
        return 1.0 - distance
    angle = math.pi * distance
    if angle < 1e-5:
        return 1.0
    # sin a = cos(a - pi/2), by the cosine's series to the power of 16, 5e-13 off at most: the weights of a
    # photograph take 72 us, with the library's sine 105.
    u = (angle - math.pi / 2) ** 2
    sine = 1.0
    for reciprocal in _SERIES:
        sine = 1.0 - sine * u * reciprocal
    # sin a sin 3a = sin^2 a (3 - 4 sin^2 a)
    return sine * sine * (3.0 - 4.0 * sine * sine) / (_LOBES * angle * angle)


@device_function
def _weights(start, size, low, high, extent, kind, length):  # type: ignore[no-untyped-def]
    """One axis: for each output pixel its first source pixel, number of source pixels, their weights, and what these
    lack of _ONE: the weight of what lies outside of the image, or all where the centre lies outside of the clip.
    """
    scale = size / length
    lanczos = kind == LANCZOS
    support = 1.0 if kind == BILINEAR else max(scale, 1.0)
    if lanczos:
        support *= _LOBES
    taps = min(2 * math.ceil(support) + 1, max(min(high, extent) - max(low, 0), 1))
    first = np.zeros(length, np.int64)
    count = np.zeros(length, np.int64)
    missing = np.full(length, _ONE, np.int32)
    weights = np.zeros((length, (taps + 2) // 3 * 3), np.int16)  # the vertical pass takes three at once
    values = np.empty(min(2 * math.ceil(support) + 1, max(high - low, 1)))
    for i in range(length):
        centre = start + (i + 0.5) * scale
        if not low <= centre < high:
            continue
        begin = max(math.floor(centre - support + 0.5), low)
        end = min(math.floor(centre + support + 0.5), high)
        total = 0.0
        for j in range(begin, end):
            values[j - begin] = _tap(abs(j + 0.5 - centre) / support, lanczos)
            total += values[j - begin]
        if begin < extent and end > 0:
            first[i] = max(begin, 0)
            count[i] = min(end, extent) - first[i]
        # Rounding the running sum, not each weight, makes the integers add up to _ONE.
        running = 0.0
        before = 0
        for j in range(begin, end):
            running += values[j - begin]
            now = math.floor(running / total * _ONE + 0.5)
            if 0 <= j < extent:
                weights[i, j - first[i]] = now - before
                missing[i] -= now - before
            before = now
    return first, count, weights, missing


@device_function
def _used(first, count):  # type: ignore[no-untyped-def]
    """First and last + 1 of the source pixels that carry weight, and their greatest count; 0, 0, 0 if none does.

    Makes ``first`` count from the first of them.
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
def _vertical(rows, begin, row, count, weights, line, total):  # type: ignore[no-untyped-def]
    """One output row from ``count`` source rows, of the bytes from ``begin`` on; 6 bits after the point.

    Three source rows in a step, the weights of those beyond ``count`` being zero.
    """
    n = line.size
    end = begin + n
    last = rows.shape[0] - 1
    for k in range(0, max(count, 1), 3):
        a, b, c = _i32(weights[k]), _i32(weights[k + 1]), _i32(weights[k + 2])
        p = rows[min(row + k, last), begin:end]
        q = rows[min(row + k + 1, last), begin:end]
        r = rows[min(row + k + 2, last), begin:end]
        if count <= 3:  # the usual case, and the only one that needs no row of sums
            for i in range(n):
                line[i] = _i16((a * _i32(p[i]) + b * _i32(q[i]) + c * _i32(r[i]) + _HALF_ROW) >> _i32(8))
        elif k == 0:
            for i in range(n):
                total[i] = a * _i32(p[i]) + b * _i32(q[i]) + c * _i32(r[i]) + _HALF_ROW
        elif k + 3 < count:
            for i in range(n):
                total[i] += a * _i32(p[i]) + b * _i32(q[i]) + c * _i32(r[i])
        else:
            for i in range(n):
                line[i] = _i16((a * _i32(p[i]) + b * _i32(q[i]) + c * _i32(r[i]) + total[i]) >> _i32(8))


@device_function
def _shade(line, fill, missing):  # type: ignore[no-untyped-def]
    """Add the weight that is missing in a row of the vertical pass, in the colour of ``fill``."""
    for c in range(3):
        shade = _i16((fill[c] * missing + _HALF_ROW) >> _i32(8))
        for i in range(c, line.size, 3):
            line[i] += shade


@device_function
def _interleave(lines, mixed, columns, group):  # type: ignore[no-untyped-def]
    """(8 rows, samples) to (samples, 8 rows), then into the lanes of ``group`` of each column."""
    a, b, c, d, e, f, g, h = lines[0], lines[1], lines[2], lines[3], lines[4], lines[5], lines[6], lines[7]
    flat = mixed.reshape(mixed.size)
    for i in range(a.size):  # spelt out, LLVM makes shuffles of it: 10 us an image; with a loop over rows 38
        flat[8 * i] = a[i]
        flat[8 * i + 1] = b[i]
        flat[8 * i + 2] = c[i]
        flat[8 * i + 3] = d[i]
        flat[8 * i + 4] = e[i]
        flat[8 * i + 5] = f[i]
        flat[8 * i + 6] = g[i]
        flat[8 * i + 7] = h[i]
    width = mixed.shape[0]
    # 4 lanes at once, 6 words a column: 12 us; lane by lane 40.
    words = array_at(_u64(mixed.ctypes.data), 6 * width, np.uint64)
    target = array_at(_u64(columns.ctypes.data), _LANES // 4 * width, np.uint64)
    for x in range(width):
        for k in range(6):
            target[_LANES // 4 * x + 6 * group + k] = words[6 * x + k]


@device_function
def _horizontal(columns, axis, taps, flip, fill, total, lanes):  # type: ignore[no-untyped-def]
    """All lanes of each output column, as bytes, from those of its source columns."""
    first, weights, missing = axis
    for x in range(first.size):
        begin = first[x]
        for j in range(_LANES):
            total[j] = _HALF_PIXEL
        if missing[x]:
            for j in range(_LANES):
                total[j] += (fill[j // _GROUP % 3] << _i32(6)) * missing[x]
        for k in range(taps):
            w = _i32(weights[x, k])
            for j in range(_LANES):
                total[j] += w * _i32(columns[begin + k, j])
        to = first.size - 1 - x if flip else x
        for j in range(_LANES):
            lanes[to, j] = _u8(min(max(total[j] >> _i32(20), _i32(0)), _i32(255)))


@device_function
def _deal(lanes, word, row, place, top, bottom):  # type: ignore[no-untyped-def]
    """Lanes back to rows: a 64-bit word holds 8 rows of one pixel of one colour, the first in its lowest byte."""
    words = array_at(_u64(lanes.ctypes.data), _LANES // 8 * word.size, np.uint64)
    for group in range((bottom - top + _GROUP - 1) // _GROUP):
        for c in range(3):
            for x in range(word.size):
                word[x] = words[_LANES // 8 * x + 3 * group + c]
            y = top + _GROUP * group
            for r in range(min(_GROUP, bottom - y)):
                shift = _u64(8 * r)
                for x in range(word.size):
                    row[x] = _u8(word[x] >> shift)
                put_bytes(row.ctypes.data, word.size, place[0] + c * place[1] + (y + r) * place[2], place[3])


@device_function
def _copy(source, left, top, flip, upside_down, row, place):  # type: ignore[no-untyped-def]
    """A box of whole pixels at its own size."""
    height, width = place[5], place[6]
    for y in range(height):
        pixels = source[top + (height - 1 - y if upside_down else y), left : left + width]
        for c in range(3):
            if flip:
                for x in range(width):
                    row[x] = pixels[width - 1 - x, c]
            else:
                for x in range(width):
                    row[x] = pixels[x, c]
            put_bytes(row.ctypes.data, width, place[0] + c * place[1] + y * place[2], place[3])


@device_function
def _is_sane(box, clip, fill):  # type: ignore[no-untyped-def]
    """Whether the box is not empty, nothing is out of reach and fill is bytes; a NaN fails every comparison."""
    for c in range(3):
        if not 0 <= fill[c] <= 255:
            return False
    for k in range(4):
        if not (-_FARTHEST <= box[k] <= _FARTHEST and -_FARTHEST <= clip[k] <= _FARTHEST):
            return False
    return box[2] > 0 and box[3] > 0


@device_function
def _is_copy(source, box, clip, place):  # type: ignore[no-untyped-def]
    left, top, width, height = box[0], box[1], box[2], box[3]
    return (
        width == place[6]
        and height == place[5]
        and left == math.floor(left)
        and top == math.floor(top)
        and left >= max(clip[0], 0)
        and top >= max(clip[1], 0)
        and left + width <= min(clip[2], source.shape[1])
        and top + height <= min(clip[3], source.shape[0])
    )


@kernel
def resample_box(source, box, clip, flips, kind, fill, place):  # type: ignore[no-untyped-def]
    """What ``resample`` does, of arrays that need no checks; for kernels too. Flips are left to right, top to bottom;
    ``kind`` is the filter.

    Returns:
        Whether the box, the clip and the fill are sane; if so, the output is filled.
    """
    flip, upside_down = flips
    if not _is_sane(box, clip, fill):
        return False
    height, width = place[5], place[6]
    byte = np.empty(width, np.uint8)
    if _is_copy(source, box, clip, place):
        _copy(source, int(box[0]), int(box[1]), flip, upside_down, byte, place)
        return True
    x_first, x_count, x_weights, x_missing = _weights(box[0], box[2], clip[0], clip[2], source.shape[1], kind, width)
    y_first, y_count, y_weights, y_missing = _weights(box[1], box[3], clip[1], clip[3], source.shape[0], kind, height)
    low, high, taps = _used(x_first, x_count)
    if high == 0:
        for c in range(3):
            byte[:] = _u8(fill[c])
            for y in range(height):
                put_bytes(byte.ctypes.data, width, place[0] + c * place[1] + y * place[2], place[3])
        return True
    rows = source.reshape(source.shape[0], 3 * source.shape[1])
    samples = 3 * (high - low)
    lines = np.zeros((_GROUP, samples), np.int16)
    sums = np.empty(samples, np.int32)
    mixed = np.empty((high - low, 3 * _GROUP), np.int16)
    columns = np.zeros((high - low + taps, _LANES), np.int16)  # weights of zero read past the last
    total = np.empty(_LANES, np.int32)
    lanes = np.empty((width, _LANES), np.uint8)
    word = np.empty(width, np.uint64)
    for top in range(0, height, _BLOCK):
        bottom = min(top + _BLOCK, height)
        for y in range(top, bottom):
            line = lines[y % _GROUP]
            row = height - 1 - y if upside_down else y
            _vertical(rows, 3 * low, y_first[row], y_count[row], y_weights[row], line, sums)
            if y_missing[row]:
                _shade(line, fill, y_missing[row])
            if y % _GROUP == _GROUP - 1 or y == bottom - 1:
                _interleave(lines, mixed, columns, (y - top) // _GROUP)
        _horizontal(columns, (x_first, x_weights, x_missing), taps, flip, fill, total, lanes)
        _deal(lanes, word, byte, place, top, bottom)
    return True
