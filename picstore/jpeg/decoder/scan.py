"""Decoding of the scan of a baseline JPEG by kernels: MCUs to samples, rows of samples to pixels, some rows at a time.

The sample planes hold two rows of MCUs, because a row of pixels needs the chroma of at most the MCUs above or below,
and so that samples are still in the nearest cache when they become pixels. Memory is accessed by address, because numba
counts the references to arrays in inlined functions, and its compiler takes twice as long with arrays.

At a reduced scale a block decodes to fewer samples. As in libjpeg (jdmaster.c), a chroma block of 4:2:0 then has twice
as many samples per side as a luma block, and is not upsampled; at 1/8 chroma is repeated, not interpolated.
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
    QUANTIZATIONS,
    SINGLES,
    read_ac,
    read_dc,
    skip_ac,
)
from picstore.jpeg.decoder.idct import inverse_dct, inverse_dct_reduced
from picstore.jpeg.decoder.parse import (
    AC,
    COMPONENTS,
    DC,
    FRAME,
    HEIGHT,
    HORIZONTAL,
    INTERVAL,
    QUANTIZATION,
    VERTICAL,
    WIDTH,
    blocks_of_mcu,
    count_mcus,
)
from picstore.jpeg.decoder.ycc_to_rgb import STEP, to_grey, to_rgb, upsample
from picstore.kernels.jit import device_function, inlined, store_u8
from picstore.kernels.simd import load_native_u64, load_u8, store_i16, store_native_u64

# Largest number of rows of pixels that a call of ``decode_scan`` writes beyond the requested rows.
MOST_SURPLUS_ROWS = 17
# Error code for a segment that has more bytes than its MCUs need.
SURPLUS_BYTES = -12

# Number of bytes to reserve before each row of samples; the last byte takes a copy of the row's first sample, so that
# interpolation needs no special case. _EDGE + STEP bytes are reserved after the row.
_EDGE = 16
_u64, _i16 = np.uint64, np.int16

# Indices in the state of a scan, int64 (STATE,), after the headers' values. PIXELS_WIDTH, PIXELS_HEIGHT: size of the
# decoded image in pixels. LUMA, CHROMA: samples per side of a luma and of a chroma block. ACROSS, DOWN: factors by
# which chroma is upsampled. OUT, RING: address of the pixel buffer, which is a ring of rows, and its number of rows.
# WRITTEN, _MCU_ROW: number of rows of pixels written, and number of rows of MCUs read.
PIXELS_WIDTH, PIXELS_HEIGHT, LUMA, CHROMA, ACROSS, DOWN, OUT, RING, WRITTEN, _MCU_ROW = range(FRAME, FRAME + 10)
# To decode only a box, in each row of MCUs: SKIPPED, number of MCUs to skip at the beginning of the first segment;
# ENDS_EARLY, whether the last segment goes on after the last MCU to decode.
SKIPPED, ENDS_EARLY = FRAME + 10, FRAME + 11
# _ACCUMULATOR, _VALID, _BYTE: accumulator, valid bits and next byte of the bit reader. _LIMIT: end of the segment in
# bits. _UNTIL: MCUs left in the segment. _SEGMENT: address of the next segment's offset.
_ACCUMULATOR, _VALID, _BYTE, _LIMIT, _UNTIL, _SEGMENT = range(FRAME + 12, FRAME + 18)
# Addresses: _FLAT of the data, _ZIGZAG of the zigzag order, _BLOCKS_AT of pairs of blocks of coefficients, _PLANES of
# the planes of samples, _PLAN of the plan. PER_MCU: number of blocks in an MCU.
_FLAT, _ZIGZAG, _BLOCKS_AT, _PLANES, _PLAN, PER_MCU = range(FRAME + 18, FRAME + 24)
STATE = FRAME + 24

# The plan describes how to decode an MCU: a row of _FIELDS numbers, uint64, for each of at most BLOCKS blocks.
BLOCKS, _FIELDS = 6, 10
# Number of uint64 in the plan: the rows of the blocks, then the DC of each of three components' previous block.
PLAN = BLOCKS * _FIELDS + 3
# Offsets in bytes in a block's row of the plan. _PREVIOUS_DC: address of the DC of the component's previous block.
# _TARGET, _STEP: address at which the block's samples are stored next, and step to the next MCU's samples. _FACTORS to
# _DC_BY_LENGTH: addresses of the tables. _ORIGIN: address of the block's samples in MCU 0 of its plane. _SIDE: samples
# per side.
_PREVIOUS_DC, _TARGET, _STEP, _FACTORS, _AC, _DC, _AC_BY_LENGTH, _DC_BY_LENGTH, _ORIGIN, _SIDE = range(
    0, 8 * _FIELDS, 8
)


@inlined
def block_sides(h, v, factor):
    """Return the samples per side of a luma and of a chroma block at 1 / ``factor``; luma is sampled ``h`` × ``v``."""
    luma = 8 // factor
    return luma, 2 * luma if h == 2 and v == 2 and factor > 1 else luma


@device_function
def set_scale(frame, factor):
    """Write the sizes of the image and its blocks at 1 / ``factor`` to ``frame``, as libjpeg's jdmaster.c does."""
    h, v = frame[HORIZONTAL], frame[VERTICAL]
    luma, chroma = block_sides(h, v, factor)
    frame[PIXELS_WIDTH], frame[PIXELS_HEIGHT] = -(-frame[WIDTH] // factor), -(-frame[HEIGHT] // factor)
    frame[LUMA], frame[CHROMA] = luma, chroma
    frame[ACROSS], frame[DOWN] = h * luma // chroma, v * luma // chroma


@device_function
def row_stride(frame):
    """Return the number of bytes from one row of samples to the next."""
    side = frame[LUMA] * frame[HORIZONTAL]
    return (frame[PIXELS_WIDTH] + side - 1) // side * side + 2 * _EDGE + STEP


@device_function
def planes_length(frame):
    """Return the bytes of three planes of two rows of MCUs each, two rows of upsampled chroma, and STEP RGB pixels."""
    return (3 * 16 * frame[VERTICAL] + 2) * row_stride(frame) + 3 * STEP


@device_function
def begin_scan(frame, tables, addresses, plan):
    """Write to ``plan`` the tables of each block of an MCU, and to ``frame`` the scan's state before its first MCU.

    Args:
        frame: values of the headers, followed by the scan's state.
        tables: address of the tables that were parsed.
        addresses: five addresses: of the data (followed by PADDING zeros) and of the segments, both as
            ``bit_reader.unstuff`` writes them; of the zigzag order; of BLOCKS pairs of zeroed blocks; of the planes
            of samples.
        plan: uint64 (PLAN,), takes addresses of tables and of samples.
    """
    h, v, stride, planes = frame[HORIZONTAL], frame[VERTICAL], row_stride(frame), addresses[4]
    count = blocks_of_mcu(frame)
    for b in range(count):
        c = max(b - h * v + 1, 0)
        x, y = (b % h, b // h) if c == 0 else (0, 0)
        side = frame[LUMA] if c == 0 else frame[CHROMA]
        dc, ac, row = frame[DC + c], 2 + frame[AC + c], _FIELDS * b
        plan[row + _PREVIOUS_DC // 8] = plan.ctypes.data + 8 * (_FIELDS * BLOCKS + c)
        plan[row + _STEP // 8] = side * h if c == 0 else side
        plan[row + _FACTORS // 8] = tables + _u64(QUANTIZATIONS + 256 * frame[QUANTIZATION + c])
        plan[row + _AC // 8] = tables + _u64(PAIRS + (8 << LOOKUP_BITS) * frame[AC + c])
        plan[row + _DC // 8] = tables + _u64(SINGLES + (2 << LOOKUP_BITS) * dc)
        plan[row + _AC_BY_LENGTH // 8] = tables + _u64(BY_LENGTHS + 4 * BY_LENGTH * ac)
        plan[row + _DC_BY_LENGTH // 8] = tables + _u64(BY_LENGTHS + 4 * BY_LENGTH * dc)
        plan[row + _ORIGIN // 8] = planes + _u64(_EDGE + (c * 16 * v + side * y) * stride + side * x)
        plan[row + _SIDE // 8] = side
    for k in range(WRITTEN, _SEGMENT):
        frame[k] = 0
    frame[_FLAT], frame[_SEGMENT] = addresses[0], addresses[1]
    frame[_ZIGZAG], frame[_BLOCKS_AT], frame[_PLANES] = addresses[2], addresses[3], planes
    frame[_PLAN], frame[PER_MCU] = plan.ctypes.data, count


@device_function
def decode_scan(frame, until_row):
    """Continue decoding a scan until ``until_row`` rows of pixels are written, or all rows of the image.

    The caller sets OUT and RING in ``frame``. Because rows of MCUs are decoded whole, up to MOST_SURPLUS_ROWS more rows
    of pixels are written.

    Returns:
        0, or a negative code of damage.
    """
    h, v, stride = frame[HORIZONTAL], frame[VERTICAL], row_stride(frame)
    columns, rows = count_mcus(frame)
    interval, flat, segments = frame[INTERVAL], _u64(frame[_FLAT]), _u64(frame[_SEGMENT])
    zigzag, blocks, plan = _u64(frame[_ZIGZAG]), _u64(frame[_BLOCKS_AT]), (_u64(frame[_PLAN]), frame[PER_MCU])
    last = plan[0] + _u64(8 * _FIELDS * BLOCKS)
    accumulator, valid, byte = _u64(frame[_ACCUMULATOR]), frame[_VALID], frame[_BYTE]
    limit, until, row = frame[_LIMIT], frame[_UNTIL], frame[_MCU_ROW]
    while row < rows and frame[WRITTEN] < until_row:
        _begin_mcu_row(plan, row, h * v, frame[LUMA] * v, frame[CHROMA], stride)
        for column in range(-frame[SKIPPED], columns):
            if until == 0:
                if limit - (byte * 8 - valid) >= 8:
                    return SURPLUS_BYTES
                byte = np.int64(load_native_u64(segments))
                segments += _u64(8)
                limit = np.int64(load_native_u64(segments)) * 8
                accumulator, valid, byte = refill(flat, _u64(0), 0, byte)
                _clear_dc(last)
                until = interval
            until -= 1
            block = blocks + _u64(2 * OTHER_BLOCK * (column & 1))
            reader, good = _read_mcu(flat, zigzag, plan, block, (accumulator, valid, byte), column < 0)
            if not good:
                return BAD_CODE
            accumulator, valid, byte = reader
            if byte * 8 - valid > limit:
                return TOO_SHORT
            if column >= 0 and (column & 1 or column == columns - 1):
                _transform_mcus(plan, blocks, _u64(stride))
        if frame[ENDS_EARLY]:
            limit = until = 0
        _write_rows(_u64(frame[_PLANES] + _EDGE), frame, row)
        row += 1
    frame[_ACCUMULATOR], frame[_VALID], frame[_BYTE] = np.int64(accumulator), valid, byte
    frame[_LIMIT], frame[_UNTIL], frame[_SEGMENT], frame[_MCU_ROW] = limit, until, np.int64(segments), row
    if row == rows and limit - (byte * 8 - valid) >= 8:
        return SURPLUS_BYTES
    return 0


@inlined
def _clear_dc(last):
    """Set the DC of each component's previous block, three values at ``last``, to zero, for a new segment."""
    for c in range(3):
        store_native_u64(last + _u64(8 * c), _u64(0))


@inlined
def _read_mcu(flat, zigzag, plan, block, reader, skips):
    """Read an MCU's coefficients; return ``reader`` after the MCU, and whether all codes are valid.

    Coefficients are stored in pairs of blocks, one block of each of two MCUs; ``block`` is the address of the MCU's
    first block. ``reader`` holds the accumulator, the number of its valid bits, and the offset of the next byte. If
    ``skips`` is true, only the DC values are read, which predict the next MCU's.
    """
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
        # A block that is reduced to one sample, its mean, needs only its DC.
        if skips or load_native_u64(entry + _u64(_SIDE)) == _u64(1):
            accumulator, valid, byte, good = skip_ac(flat, tables, accumulator, valid, byte)
        else:
            accumulator, valid, byte, good = read_ac(flat, tables, zigzag, block, accumulator, valid, byte)
        if not (found and good):
            return (accumulator, valid, byte), False
        entry += _u64(8 * _FIELDS)
        block += _u64(2 * BLOCK_PAIR)
    return (accumulator, valid, byte), True


@inlined
def _transform_mcus(plan, block, stride):
    """Compute the samples of two MCUs; advance ``_TARGET``, the address for each block's samples, by two MCUs."""
    entry = plan[0]
    end = entry + _u64(8 * _FIELDS) * _u64(plan[1])
    while entry < end:
        target, step = load_native_u64(entry + _u64(_TARGET)), load_native_u64(entry + _u64(_STEP))
        side, factors = load_native_u64(entry + _u64(_SIDE)), load_native_u64(entry + _u64(_FACTORS))
        if side == _u64(8):
            inverse_dct(block, factors, target, step, stride)
        else:
            inverse_dct_reduced(side, block, factors, target, step, stride)
        store_native_u64(entry + _u64(_TARGET), target + step + step)
        entry += _u64(8 * _FIELDS)
        block += _u64(2 * BLOCK_PAIR)


@device_function
def _begin_mcu_row(plan, row, luma, luma_rows, chroma_rows, stride):
    """Set each block's ``_TARGET`` (its samples' address) for MCU row ``row``; odd rows go to a plane's lower half."""
    begin, per_mcu = plan
    for b in range(per_mcu):
        entry = begin + _u64(8 * _FIELDS * b)
        down = row % 2 * (luma_rows if b < luma else chroma_rows) * stride
        store_native_u64(entry + _u64(_TARGET), load_native_u64(entry + _u64(_ORIGIN)) + _u64(down))


@device_function
def _write_rows(start, frame, row):
    """Write the rows of pixels that can be computed once row ``row`` of MCUs is decoded.

    If chroma is interpolated vertically, the last row of pixels must wait for the next row of MCUs.
    """
    width, height, v, stride = frame[PIXELS_WIDTH], frame[PIXELS_HEIGHT], frame[VERTICAL], row_stride(frame)
    rows, out, ring = frame[LUMA] * v, _u64(frame[OUT]), frame[RING]
    if frame[COMPONENTS] == 1:
        end = min(rows * (row + 1), height)
        for y in range(frame[WRITTEN], end):
            to_grey(start + _u64(y % (2 * rows) * stride), width, out + _u64(3 * (y % ring) * width))
        frame[WRITTEN] = max(frame[WRITTEN], end)
        return
    across, down, chroma, plane = frame[ACROSS], frame[DOWN], frame[CHROMA], 16 * v * stride
    count, last = (width + across - 1) // across, (height + down - 1) // down - 1
    for c in range(1, 3):
        for k in range(chroma):
            first = start + _u64(c * plane + (row % 2 * chroma + k) * stride)
            store_u8(first - _u64(1), load_u8(first))
            store_u8(first + _u64(count), load_u8(first + _u64(count - 1)))
    end = rows * (row + 1)
    end = height if end >= height else end - (down - 1)
    wide, smooth = start + _u64(3 * plane), frame[LUMA] > 1
    for y in range(frame[WRITTEN], end):
        near = y // down
        below = y % down
        aside = min(near + 1, last) if below else max(near - 1, 0)
        blue = start + _u64(plane + near % (2 * chroma) * stride)
        red = blue + _u64(plane)
        if across == 2 or (down == 2 and smooth):
            other = start + _u64(plane + aside % (2 * chroma) * stride)
            shape = count, across, down, smooth
            upsample(blue, other, below, shape, wide)
            upsample(red, other + _u64(plane), below, shape, wide + _u64(stride))
            blue, red = wide, wide + _u64(stride)
        spare = wide + _u64(2 * stride - _EDGE)
        to_rgb(start + _u64(y % (2 * rows) * stride), blue, red, width, out + _u64(3 * (y % ring) * width), spare)
    frame[WRITTEN] = max(frame[WRITTEN], end)
