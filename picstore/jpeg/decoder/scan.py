"""Scan of a baseline JPEG decoded by kernels: MCU by MCU to samples, row by row to pixels.

The sample planes hold two rows of MCUs, so that samples are in the nearest cache when they become pixels: a row of
pixels needs at most the chroma of the row above or below. Memory is accessed by address: numba counts the references to
arrays that inlined functions name, and its compiler takes twice as long with arrays.
"""

from __future__ import annotations

import numpy as np

from picstore.jpeg.bit_reader import BAD_CODE, TOO_SHORT, refill
from picstore.jpeg.decoder.coefficients import (
    BLOCK_PAIR,
    BY_LENGTH,
    BY_LENGTHS,
    LOOKUP_BITS,
    OTHER_BLOCK,
    PAIRS,
    QUANTISATIONS,
    SINGLES,
    read_ac,
    read_dc,
)
from picstore.jpeg.decoder.color import STEP, to_grey, to_rgb, upsample
from picstore.jpeg.decoder.idct import inverse_dct
from picstore.jpeg.decoder.parse import AC, COMPONENTS, DC, HEIGHT, HORIZONTAL, INTERVAL, QUANTISATION, VERTICAL, WIDTH
from picstore.kernels.jit import device_function, inlined, store_u8
from picstore.kernels.simd import load_native_u64, load_u8, store_i16, store_native_u64

SURPLUS_BYTES = -12  # damage: a segment has more bytes than its MCUs need

_EDGE = 16  # bytes before each row of samples, for its repeated first one, and after it, besides STEP
_u64, _i16 = np.uint64, np.int16

# Plan of an MCU, a row of uint64 for each block. Offsets in a row, in bytes: address of the DC of the component's last
# block; address of the next samples, and the step to those of the next MCU; addresses of the tables for quantisation,
# AC and DC, and of their codes by length; address of the first samples in the planes.
BLOCKS, _FIELDS = 6, 9
PLAN = BLOCKS * _FIELDS + 3  # the last three: the DC of the last block of each component
_PREVIOUS_DC, _TARGET, _STEP, _FACTORS, _AC, _DC, _AC_BY_LENGTH, _DC_BY_LENGTH, _ORIGIN = range(0, 8 * _FIELDS, 8)


@device_function
def row_stride(frame):  # type: ignore[no-untyped-def]
    """Return the bytes between rows of samples."""
    h = frame[HORIZONTAL]
    return (frame[WIDTH] + 8 * h - 1) // (8 * h) * 8 * h + 2 * _EDGE + STEP


@device_function
def planes_length(frame):  # type: ignore[no-untyped-def]
    """Return the bytes of scratch: three planes of two rows of MCUs, two rows of wide chroma, and a few pixels."""
    return (3 * 16 * frame[VERTICAL] + 2) * row_stride(frame) + 3 * STEP


@device_function
def make_plan(frame, tables, planes, plan):  # type: ignore[no-untyped-def]
    """Write the plan, uint64 (PLAN,), of what ``parse.parse_frame`` filled; ``tables`` and ``planes`` are addresses."""
    h, v, stride = frame[HORIZONTAL], frame[VERTICAL], row_stride(frame)
    count = 1 if frame[COMPONENTS] == 1 else h * v + 2
    for b in range(count):
        c = max(b - h * v + 1, 0)
        x, y = (b % h, b // h) if c == 0 else (0, 0)
        dc, ac, row = frame[DC + c], 2 + frame[AC + c], _FIELDS * b
        plan[row + _PREVIOUS_DC // 8] = plan.ctypes.data + 8 * (_FIELDS * BLOCKS + c)
        plan[row + _STEP // 8] = 8 * h if c == 0 else 8
        plan[row + _FACTORS // 8] = tables + _u64(QUANTISATIONS + 256 * frame[QUANTISATION + c])
        plan[row + _AC // 8] = tables + _u64(PAIRS + (8 << LOOKUP_BITS) * frame[AC + c])
        plan[row + _DC // 8] = tables + _u64(SINGLES + (2 << LOOKUP_BITS) * dc)
        plan[row + _AC_BY_LENGTH // 8] = tables + _u64(BY_LENGTHS + 4 * BY_LENGTH * ac)
        plan[row + _DC_BY_LENGTH // 8] = tables + _u64(BY_LENGTHS + 4 * BY_LENGTH * dc)
        plan[row + _ORIGIN // 8] = planes + _u64(_EDGE + (c * 16 * v + 8 * y) * stride + 8 * x)


@device_function
def decode_scan(flat, segments, frame, plan, addresses):  # type: ignore[no-untyped-def]
    """Decode a scan to pixels.

    Args:
        flat, segments: addresses of the data and of its segments, as ``bit_reader.unstuff`` fills them, with PADDING.
        frame: as ``parse.parse_frame`` fills it.
        plan: address of the plan, and blocks of an MCU.
        addresses: of the zigzag order, of BLOCKS pairs of blocks of zeros, of the planes, and of the pixels.

    Returns:
        0, or negative for damage.
    """
    h, v, stride = frame[HORIZONTAL], frame[VERTICAL], row_stride(frame)
    columns, rows = (frame[WIDTH] + 8 * h - 1) // (8 * h), (frame[HEIGHT] + 8 * v - 1) // (8 * v)
    interval = frame[INTERVAL]
    last = plan[0] + _u64(8 * _FIELDS * BLOCKS)
    zigzag, blocks, planes, out = addresses
    accumulator, valid, byte = _u64(0), 0, 0
    limit = until = 0
    for row in range(rows):
        _begin_mcu_row(plan, row, h * v, v, stride)
        for column in range(0, columns, 2):
            for k in range(min(2, columns - column)):
                if until == 0:
                    if limit - (byte * 8 - valid) >= 8:
                        return SURPLUS_BYTES
                    byte = np.int64(load_native_u64(segments))
                    segments += _u64(8)
                    limit = np.int64(load_native_u64(segments)) * 8
                    accumulator, valid, byte = refill(flat, _u64(0), 0, byte)
                    for c in range(3):
                        store_native_u64(last + _u64(8 * c), _u64(0))
                    until = interval
                until -= 1
                block = blocks + _u64(2 * OTHER_BLOCK * k)
                reader, good = _read_mcu(flat, zigzag, plan, block, (accumulator, valid, byte))
                if not good:
                    return BAD_CODE
                accumulator, valid, byte = reader
                if byte * 8 - valid > limit:
                    return TOO_SHORT
            _transform_mcus(plan, blocks, _u64(stride))
        _write_rows(planes + _u64(_EDGE), frame, row, out)
    if limit - (byte * 8 - valid) >= 8:
        return SURPLUS_BYTES
    return 0


@inlined
def _read_mcu(flat, zigzag, plan, block, reader):  # type: ignore[no-untyped-def]
    """Read the coefficients of an MCU, one of two whose blocks lie side by side: the reader, whether all are valid."""
    accumulator, valid, byte = reader
    entry = plan[0]
    end = entry + _u64(8 * _FIELDS) * _u64(plan[1])
    while entry < end:
        tables = load_native_u64(entry + _u64(_DC)), load_native_u64(entry + _u64(_DC_BY_LENGTH))
        accumulator, valid, byte, value, found = read_dc(flat, tables, accumulator, valid, byte)
        before = load_native_u64(entry)
        value += np.int64(load_native_u64(before))
        store_native_u64(before, _u64(value))
        store_i16(block, _i16(value))
        tables = load_native_u64(entry + _u64(_AC)), load_native_u64(entry + _u64(_AC_BY_LENGTH))
        accumulator, valid, byte, good = read_ac(flat, tables, zigzag, block, accumulator, valid, byte)
        if not (found and good):
            return (accumulator, valid, byte), False
        entry += _u64(8 * _FIELDS)
        block += _u64(2 * BLOCK_PAIR)
    return (accumulator, valid, byte), True


@inlined
def _transform_mcus(plan, block, stride):  # type: ignore[no-untyped-def]
    """Write the samples of two MCUs, and point the plan at those of the next; after an odd one lies unused memory."""
    entry = plan[0]
    end = entry + _u64(8 * _FIELDS) * _u64(plan[1])
    while entry < end:
        target, step = load_native_u64(entry + _u64(_TARGET)), load_native_u64(entry + _u64(_STEP))
        inverse_dct(block, load_native_u64(entry + _u64(_FACTORS)), target, step, stride)
        store_native_u64(entry + _u64(_TARGET), target + step + step)
        entry += _u64(8 * _FIELDS)
        block += _u64(2 * BLOCK_PAIR)


@device_function
def _begin_mcu_row(plan, row, luma, v, stride):  # type: ignore[no-untyped-def]
    """Point the plan at the samples of a row of MCUs, in the upper or lower half of the planes."""
    begin, per_mcu = plan
    for b in range(per_mcu):
        entry = begin + _u64(8 * _FIELDS * b)
        down = row % 2 * 8 * (v if b < luma else 1) * stride
        store_native_u64(entry + _u64(_TARGET), load_native_u64(entry + _u64(_ORIGIN)) + _u64(down))


@device_function
def _write_rows(start, frame, row, out):  # type: ignore[no-untyped-def]
    """Write the pixels that a decoded row of MCUs completes; its last row of pixels may need the chroma below it."""
    width, height, h, v, stride = frame[WIDTH], frame[HEIGHT], frame[HORIZONTAL], frame[VERTICAL], row_stride(frame)
    if frame[COMPONENTS] == 1:
        for y in range(8 * row, min(8 * row + 8, height)):
            to_grey(start + _u64(y % 16 * stride), width, out + _u64(3 * y * width))
        return
    plane = 16 * v * stride
    count, last = (width + h - 1) // h, (height + v - 1) // v - 1
    for c in range(1, 3):
        for k in range(8):
            first = start + _u64(c * plane + (row % 2 * 8 + k) * stride)
            store_u8(first - _u64(1), load_u8(first))
            store_u8(first + _u64(count), load_u8(first + _u64(count - 1)))
    end = 8 * v * (row + 1)
    end = height if end >= height else end - (v - 1)
    wide = start + _u64(3 * plane)
    for y in range(max(8 * v * row - (v - 1), 0), end):
        near = y // v
        below = y % v
        aside = min(near + 1, last) if below else max(near - 1, 0)
        blue = start + _u64(plane + near % 16 * stride)
        red = blue + _u64(plane)
        if h + v > 2:
            other = start + _u64(plane + aside % 16 * stride)
            shape = count, h, v
            upsample(blue, other, below, shape, wide)
            upsample(red, other + _u64(plane), below, shape, wide + _u64(stride))
            blue, red = wide, wide + _u64(stride)
        spare = wide + _u64(2 * stride - _EDGE)
        to_rgb(start + _u64(y % (16 * v) * stride), blue, red, width, out + _u64(3 * y * width), spare)
