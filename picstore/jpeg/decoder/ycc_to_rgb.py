"""Upsampling of chroma rows, and conversion of rows of samples to RGB, by kernels, bit for bit as in libjpeg.

Chroma is interpolated ("fancy upsampling"): each sample becomes two, a quarter of the way to its two neighbors. The
caller must store a copy of the first sample before a row, and of the last sample after it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from picstore.kernels.jit import device_function, store_u8
from picstore.kernels.simd import Vector, VectorMemory, load_u8, vector_function

# Samples to process at a time. Up to STEP - 1 samples beyond a row's end are read and written, so callers leave room.
STEP = 16
_u64 = np.uint64


def _samples(memory: VectorMemory, address: Any, offset: int = 0) -> Vector:
    return memory.load(memory.offset(address, offset), STEP, 8).widened(16, signed=False)


def _times(vector: Vector, factor: int) -> Vector:
    """Return the 16-bit elements of a vector times ``factor`` / 65536, rounded down."""
    return (vector.widened(32) * factor >> 16).narrowed(16)


def _interleave(left: Vector, right: Vector) -> Vector:
    return left.narrowed(8).shuffled(right.narrowed(8), [k // 2 + 16 * (k % 2) for k in range(32)])


@vector_function(4)
def _to_rgb(memory: VectorMemory, luma: Any, blue: Any, red: Any, out: Any) -> None:
    """Convert 16 pixels from Y, Cb and Cr to RGB (JFIF 1.02, with 16 fractional bits)."""
    y, cb, cr = _samples(memory, luma), _samples(memory, blue) - 128, _samples(memory, red) - 128
    # Factors are split so that they fit 16 bits: 1.402 = 1 + 26345 / 65536, 1.772 = 2 - 14942 / 65536, and
    # -0.714 = 18734 / 65536 - 1. To round as libjpeg does, chroma is doubled, and products are halved and rounded.
    r = y + cr + (_times(cr << 1, 26345) + 1 >> 1)
    b = y + (cb << 1) + (_times(cb << 1, -14942) + 1 >> 1)
    halves = [half + 32768 >> 16 for half in cb.interleaved_sums(cr, cb.filled(-22554, 18734))]
    g = y - cr + halves[0].packed(halves[1])
    # Subtract 128, so that ``packed`` clamps colors to signed bytes. Each half of ``rg`` has 8 pixels' r, then their g.
    r, g, b = (color - 128 for color in (r, g, b))
    rg, bb = r.packed(g) ^ -128, b.packed(b) ^ -128
    for half in range(0, 32, 16):
        indexes = [half + (k // 3, 8 + k // 3, 32 + k // 3)[k % 3] for k in range(24)]
        memory.store(memory.offset(out, 3 * half // 2), rg.shuffled(bb, indexes[:16]))
        memory.store(memory.offset(out, 3 * half // 2 + 16), rg.shuffled(bb, indexes[16:]))


@vector_function(2)
def _interpolate_across(memory: VectorMemory, row: Any, out: Any) -> None:
    near = _samples(memory, row) * 3
    left, right = near + _samples(memory, row, -1) + 1 >> 2, near + _samples(memory, row, 1) + 2 >> 2
    memory.store(out, _interleave(left, right))


@vector_function(3)
def _interpolate_both(memory: VectorMemory, row: Any, aside: Any, out: Any) -> None:
    """Interpolate 16 samples vertically between a row and ``aside``, the next row up or down; then to 32 across."""
    before, here, after = (_samples(memory, row, k) * 3 + _samples(memory, aside, k) for k in (-1, 0, 1))
    near = here * 3
    memory.store(out, _interleave(near + before + 8 >> 4, near + after + 7 >> 4))


@vector_function(4)
def _interpolate_down(memory: VectorMemory, row: Any, aside: Any, bias: Any, out: Any) -> None:
    """Interpolate 16 samples between two rows; ``bias`` rounds, and is 1 if ``aside`` is above ``row``, 2 if below."""
    rounding = memory.splat(bias, STEP, 16)
    memory.store(out, (_samples(memory, row) * 3 + _samples(memory, aside) + rounding >> 2).narrowed(8))


@vector_function(2)
def _repeat_across(memory: VectorMemory, row: Any, out: Any) -> None:
    here = _samples(memory, row)
    memory.store(out, _interleave(here, here))


@device_function
def upsample(row, aside, below, shape, out):
    """Upsample a row of chroma to the width of the luma.

    Args:
        row, aside: addresses of the nearest and the second nearest row of chroma samples.
        below: whether ``aside`` lies below ``row``.
        shape: four numbers: of samples in a row; upsampling factors across and down; whether to interpolate.
        out: address of the output row, with 2 * STEP writable bytes after the row.
    """
    count, across, down, smooth = shape
    # libjpeg repeats the samples of a row of 1 or 2 instead of interpolating them.
    narrow = count <= 2 or not smooth
    for k in range(0, count, STEP):
        offset = _u64(k)
        if across == 2 and narrow:
            _repeat_across(row + offset, out + offset + offset)
        elif across == 2 and down == 2:
            _interpolate_both(row + offset, aside + offset, out + offset + offset)
        elif across == 2:
            _interpolate_across(row + offset, out + offset + offset)
        else:
            _interpolate_down(row + offset, aside + offset, _u64(2 if below else 1), out + offset)


@device_function
def to_rgb(luma, blue, red, width, out, spare):
    """Convert a row of Y, Cb and Cr samples to RGB pixels.

    Args:
        luma, blue, red: addresses of rows of Y, Cb and Cr samples, with STEP readable bytes after each row.
        out: address of the row of pixels, of which exactly ``3 * width`` bytes are written.
        spare: address of 3 * STEP bytes of scratch.
    """
    whole = width // STEP * STEP
    for k in range(0, whole, STEP):
        offset = _u64(k)
        _to_rgb(luma + offset, blue + offset, red + offset, out + offset * _u64(3))
    # For the rest of the row, convert its last 16 pixels, although some of them are already converted.
    if whole < width and width >= STEP:
        offset = _u64(width - STEP)
        _to_rgb(luma + offset, blue + offset, red + offset, out + offset * _u64(3))
    elif whole < width:
        _to_rgb(luma, blue, red, spare)
        for k in range(3 * width):
            store_u8(out + _u64(k), load_u8(spare + _u64(k)))


@device_function
def to_grey(luma, width, out):
    """Convert a row of Y samples to grey RGB pixels; addresses as for ``to_rgb``."""
    for k in range(width):
        value, pixel = load_u8(luma + _u64(k)), out + _u64(3 * k)
        store_u8(pixel, value)
        store_u8(pixel + _u64(1), value)
        store_u8(pixel + _u64(2), value)
