"""Conversion of rows of pixels to samples of Y, Cb and Cr, and chroma subsampling, bit for bit as libjpeg-turbo."""

from __future__ import annotations

from typing import Any

import numpy as np

from picstore.kernels.jit import device_function, memcpy, store_u8
from picstore.kernels.simd import Vector, VectorMemory, load_u8, vector_function

# Pixels or samples to process at a time. Up to STEP - 1 samples beyond a row's end are written, so callers leave room.
STEP = 16
# Number to add to Cb and Cr, in units of 2**-16: their center 128, and almost 1/2, which rounds halves down.
_CENTER = (128 << 16) + (1 << 15) - 1
_u64 = np.uint64


def _convert(memory: VectorMemory, color: tuple[Vector, ...], out: Any, step: Any) -> None:
    """Convert 16 pixels from RGB; store Y at ``out``, Cb ``step`` bytes later and Cr 2 · ``step`` later (JFIF 1.02)."""
    r, g, b = (each.widened(32, signed=False) for each in color)
    luma = r * 19595 + g * 38470 + b * 7471 + (1 << 15)
    blue, red = (b << 15) - r * 11059 - g * 21709 + _CENTER, (r << 15) - g * 27439 - b * 5329 + _CENTER
    for plane in (luma, blue, red):
        memory.store(out, (plane >> 16).narrowed(8))
        out = memory.offset(out, step)


@vector_function(3)
def _convert_pixels(memory: VectorMemory, source: Any, out: Any, step: Any) -> None:
    """Convert 16 pixels, whose channels are interleaved in memory, to Y, Cb and Cr."""
    pixels = memory.load(source, 3 * STEP, 8)
    _convert(memory, tuple(pixels.shuffled(pixels, range(c, 3 * STEP, 3)) for c in range(3)), out, step)


@vector_function(4)
def _convert_planes(memory: VectorMemory, source: Any, plane: Any, out: Any, step: Any) -> None:
    """Convert 16 pixels to Y, Cb and Cr; each channel's plane begins ``plane`` bytes after the previous one."""
    green = memory.offset(source, plane)
    addresses = source, green, memory.offset(green, plane)
    _convert(memory, tuple(memory.load(each, STEP, 8) for each in addresses), out, step)


def _pairs(memory: VectorMemory, row: Any) -> Vector:
    """Return 16 sums: of samples 0 and 1, 2 and 3, … of 32 samples of a row."""
    samples = memory.load(row, 2 * STEP, 8)
    left, right = (samples.shuffled(samples, range(k, 2 * STEP, 2)).widened(16, signed=False) for k in (0, 1))
    return left + right


def _alternating(memory: VectorMemory, even: int, odd: int) -> Vector:
    zeros = memory.zeros(STEP, 16)
    return (zeros + even).shuffled(zeros + odd, [k + STEP * (k % 2) for k in range(STEP)])


@vector_function(3)
def _halve_both(memory: VectorMemory, row: Any, below: Any, out: Any) -> None:
    """Store the means of 16 squares of 2 × 2 samples; halves are rounded down and up alternately."""
    sums = _pairs(memory, row) + _pairs(memory, below) + _alternating(memory, 1, 2)
    memory.store(out, (sums >> 2).narrowed(8))


@vector_function(2)
def _halve_across(memory: VectorMemory, row: Any, out: Any) -> None:
    """Store the means of 16 pairs of neighboring samples; halves are rounded down and up alternately."""
    memory.store(out, (_pairs(memory, row) + _alternating(memory, 0, 1) >> 1).narrowed(8))


@device_function
def convert_row(source, steps, width, padded, out, plane, spare):
    """Convert a row of pixels to rows of Y, Cb and Cr, each padded with copies of its last sample.

    Args:
        source: address of the first pixel.
        steps: bytes from one pixel to the next, and from one channel to the next: (3, 1) for interleaved channels, (1,
            any) for planes, (1, 0) for a grey image, of which only the row of Y is written.
        width, padded: numbers of samples in a row without and with padding.
        out: address of the row of Y, with STEP - 1 writable bytes after the row.
        plane: bytes from one output row to the next.
        spare: address of 3 * STEP bytes of scratch.
    """
    across, channel = steps
    whole = width // STEP * STEP
    if channel == 0:
        memcpy(out, source, width)
        whole = width
    for k in range(0, whole if channel else 0, STEP):
        if across == 3:
            _convert_pixels(source + _u64(3 * k), out + _u64(k), plane)
        else:
            _convert_planes(source + _u64(k), _u64(channel), out + _u64(k), plane)
    if whole < width:
        for k in range(width - whole):
            for c in range(3):
                store_u8(spare + _u64(3 * k + c), load_u8(source + _u64((whole + k) * across + c * channel)))
        _convert_pixels(spare, out + _u64(whole), plane)
    for c in range(3 if channel else 1):
        first = out + _u64(c) * plane
        last = load_u8(first + _u64(width - 1))
        for k in range(width, padded):
            store_u8(first + _u64(k), last)


@device_function
def halve_row(row, below, count, out):
    """Write ``count`` means of 2 neighbors in a row, or of 2 × 2 samples if ``below`` is the next row."""
    for k in range(0, count, STEP):
        if row == below:
            _halve_across(row + _u64(2 * k), out + _u64(k))
        else:
            _halve_both(row + _u64(2 * k), below + _u64(2 * k), out + _u64(k))
