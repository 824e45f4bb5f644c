"""Kernels that make rows of RGB pixels from rows of samples, exactly as libjpeg has them.

Chroma between samples is interpolated ("fancy upsampling"): each of the two new samples lies a quarter of the way to
its neighbour. Rows of samples must have their first and last sample repeated on both sides.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from picstore.kernels.jit import device_function, store_u8
from picstore.kernels.simd import Vector, VectorMemory, load_u8, vector_function

STEP = 16  # samples at a time; what is behind the last one of a row is read and written with it
_u64 = np.uint64


def _samples(memory: VectorMemory, address: Any, offset: int = 0) -> Vector:
    return memory.load(memory.offset(address, offset), STEP, 8).widened(16, signed=False)


def _times(vector: Vector, factor: int) -> Vector:
    """Multiples of 1 / 65536, rounded down, in 16-bit lanes."""
    return (vector.widened(32) * factor >> 16).narrowed(16)


_ZIPPED = [k // 2 + 16 * (k % 2) for k in range(32)]


def _zipped(left: Vector, right: Vector) -> Vector:
    """Vector of two vectors in turn, as bytes."""
    return left.narrowed(8).shuffled(right.narrowed(8), _ZIPPED)


@vector_function(4)
def _to_rgb(memory: VectorMemory, luma: Any, blue: Any, red: Any, out: Any) -> None:
    """16 pixels from their samples (JFIF 1.02, in 16 bits after the point)."""
    y, cb, cr = _samples(memory, luma), _samples(memory, blue) - 128, _samples(memory, red) - 128
    # 1.402 = 1 + 26345 / 65536, 1.772 = 2 - 14942 / 65536, -0.714 = 18734 / 65536 - 1: factors that fit 16 bits.
    # Twice the number and half of the product, rounded: the same as one product rounded.
    r = y + cr + (_times(cr << 1, 26345) + 1 >> 1)
    b = y + (cb << 1) + (_times(cb << 1, -14942) + 1 >> 1)
    g = y - cr + (cb.widened(32) * -22554 + cr.widened(32) * 18734 + 32768 >> 16).narrowed(16)
    r, g, b = (color.clamped(0, 255).narrowed(8) for color in (r, g, b))
    rg, bb = r.shuffled(g, range(32)), b.shuffled(b, range(32))
    for third in range(3):
        places = [(k // 3, 16 + k // 3, 32 + k // 3)[k % 3] for k in range(16 * third, 16 * third + 16)]
        memory.store(memory.offset(out, 16 * third), rg.shuffled(bb, places))


@vector_function(2)
def _twice_across(memory: VectorMemory, row: Any, out: Any) -> None:
    """32 samples of 16, interpolated."""
    near = _samples(memory, row) * 3
    left, right = near + _samples(memory, row, -1) + 1 >> 2, near + _samples(memory, row, 1) + 2 >> 2
    memory.store(out, _zipped(left, right))


@vector_function(3)
def _twice_both(memory: VectorMemory, row: Any, aside: Any, out: Any) -> None:
    """32 samples of a row of 16 and the one above or below it, interpolated."""
    before, here, after = (_samples(memory, row, k) * 3 + _samples(memory, aside, k) for k in (-1, 0, 1))
    near = here * 3
    memory.store(out, _zipped(near + before + 8 >> 4, near + after + 7 >> 4))


@vector_function(4)
def _between(memory: VectorMemory, row: Any, aside: Any, bias: Any, out: Any) -> None:
    """16 samples between a row and the one above or below it; the bias is 1 above and 2 below."""
    rounding = memory.splat(bias, STEP, 16)
    memory.store(out, (_samples(memory, row) * 3 + _samples(memory, aside) + rounding >> 2).narrowed(8))


@vector_function(2)
def _repeated(memory: VectorMemory, row: Any, out: Any) -> None:
    """32 samples of 16, each twice."""
    here = _samples(memory, row)
    memory.store(out, _zipped(here, here))


@device_function
def upsample(row, aside, below, shape, out):  # type: ignore[no-untyped-def]
    """Make a row of chroma as wide as the luma.

    Args:
        row, aside: addresses of the nearest row of samples and the next nearest.
        below: whether that is the lower of the two.
        shape: samples in a row; sampling factors of the luma.
        out: address of room for the row and 2 * STEP more.
    """
    count, across, down = shape
    narrow = count <= 2  # libjpeg does not interpolate across these, nor then down, if it would across
    for k in range(0, count, STEP):
        at = _u64(k)
        if across == 2 and narrow:
            _repeated(row + at, out + at + at)
        elif across == 2 and down == 2:
            _twice_both(row + at, aside + at, out + at + at)
        elif across == 2:
            _twice_across(row + at, out + at + at)
        else:
            _between(row + at, aside + at, _u64(2 if below else 1), out + at)


@device_function
def to_rgb(luma, blue, red, width, out, spare):  # type: ignore[no-untyped-def]
    """Make a row of pixels.

    Args:
        luma, blue, red: addresses of rows of samples, with STEP readable behind them.
        out: address of the row, of which nothing but ``3 * width`` bytes is written.
        spare: address of 3 * STEP bytes that are.
    """
    whole = width // STEP * STEP
    for k in range(0, whole, STEP):
        at = _u64(k)
        _to_rgb(luma + at, blue + at, red + at, out + at * _u64(3))
    if whole < width:
        at = _u64(whole)
        _to_rgb(luma + at, blue + at, red + at, spare)
        for k in range(3 * (width - whole)):
            store_u8(out + at * _u64(3) + _u64(k), load_u8(spare + _u64(k)))


@device_function
def to_grey(luma, width, out):  # type: ignore[no-untyped-def]
    """Make a row of grey pixels; addresses as for ``to_rgb``."""
    for k in range(width):
        value, at = load_u8(luma + _u64(k)), out + _u64(3 * k)
        store_u8(at, value)
        store_u8(at + _u64(1), value)
        store_u8(at + _u64(2), value)
