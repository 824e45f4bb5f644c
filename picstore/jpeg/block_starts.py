"""Kernel that finds where each block of a scan begins, and its DC difference, in two scans at a time (T.81, F.2).

Reading Huffman codes is a chain: the beginning of a code is known only once the previous code has been looked up. While
a core waits for a lookup, it could do half as much work again, so the chains of two scans run side by side in one loop.
"""

from __future__ import annotations

import numpy as np

from picstore.jpeg.bit_reader import BAD_CODE, BAD_DC, TOO_MANY_COEFFICIENTS, TOO_SHORT, refill, search_code
from picstore.jpeg.transcode_lookup import LOOKUP_BITS, SKIP_SHIFT
from picstore.kernels.jit import array_at, device_function, inlined, kernel, load_u16

# Columns of the row, int64, that describes a scan. Addresses: DATA, the unstuffed data, followed by PADDING zeros;
# SEGMENTS, the next segment's offset in the data; BLOCKS, the blocks of an MCU, int64 (blocks, 4): component, DC table,
# AC table, whether the DC is edited; SINGLE to SYMBOLS, the arrays of ``transcode_lookup.make_lookups``; STARTS, the
# next note to write (see POSITION_SHIFT). Numbers of blocks: PER_MCU, PER_SEGMENT, and LEFT, those not yet read.
DATA, SEGMENTS, BLOCKS, SINGLE, SEVERAL, RANGES, SYMBOLS, STARTS, PER_MCU, PER_SEGMENT, LEFT = range(11)
# Further columns of a scan's row, which the kernel fills. DAMAGE: negative code of damage, or 0. UNTIL: number of
# blocks left in the segment. LIMIT: offset in the data, in bits, of the segment's end. PLANS: first column of
# the plans; a plan names the tables to read one block of an MCU.
DAMAGE, UNTIL, LIMIT, PLANS = range(11, 15)
# Fields of a plan: six columns, in the row that describes a scan, to read one block of an MCU and begin the next. AC,
# NEXT_DC, NEXT_PLAN: addresses of the block's AC table, the next block's DC table and the next block's plan. AC_NUMBER,
# NEXT_DC_NUMBER: indices of the two tables. SCAN: address of the row. Plans are written once per scan, which saves 20
# µs per image.
AC, NEXT_DC, NEXT_PLAN, AC_NUMBER, NEXT_DC_NUMBER, SCAN = range(6)
# Number of columns of a plan, and number of plans of a scan: one for each block of an MCU, at most 6.
_PLAN_COLUMNS, _MAX_BLOCKS = 6, 6
SCAN_COLUMNS = PLANS + _PLAN_COLUMNS * _MAX_BLOCKS

# Fields of the note, an int64, that the kernel writes for each block. From bit POSITION_SHIFT on: position in the data,
# in bits, of the block's DC code. From bit BITS_SHIFT on: number of bits of the DC code and difference. In the lowest
# bits: DC difference plus DIFFERENCE_BIAS.
POSITION_SHIFT, BITS_SHIFT, DIFFERENCE_BIAS = 20, 12, 2048

# A lane is the state of reading one scan, a tuple: accumulator, number of its valid bits, address of the next byte,
# index of the next coefficient in the block, address of the block's plan (0 if the lane is idle). With a sixth number,
# two lanes would not fit the registers. PLAN is the plan's index in the tuple.
PLAN = 4

_u64, _i64 = np.uint64, np.int64
_LOOKUP_SHIFT = np.uint64(64 - LOOKUP_BITS)


@kernel(
    "(int64[::1], uint8[::1], int64[::1], int64[:, ::1], Tuple((uint16[:, ::1], uint16[:, ::1], uint32[:, :, ::1], "
    "uint32[:, ::1])), int64[::1], Tuple((int64, int64)))"
)
def describe_scan(row, flat, segments, blocks, tables, starts, mcus):
    """Fill a scan's row; a kernel, because NumPy takes 1.2 µs to return the address of an array.

    Args:
        row: int64 (SCAN_COLUMNS,), takes the description of the scan.
        flat, segments, blocks, tables, starts: arrays whose addresses the row takes; callers keep the arrays alive.
        mcus: number of MCUs in a segment, and number of MCUs in the scan.
    """
    single, several, ranges, symbols = tables
    row[DATA], row[SEGMENTS], row[BLOCKS] = flat.ctypes.data, segments.ctypes.data, blocks.ctypes.data
    row[SINGLE], row[SEVERAL] = single.ctypes.data, several.ctypes.data
    row[RANGES], row[SYMBOLS], row[STARTS] = ranges.ctypes.data, symbols.ctypes.data, starts.ctypes.data
    row[PER_MCU] = blocks.shape[0]
    row[PER_SEGMENT], row[LEFT] = mcus[0] * blocks.shape[0], mcus[1] * blocks.shape[0]


@kernel("(int64[:, ::1],)")
def find_block_starts(scans):
    """Find the bit at which each block of each scan begins, and the block's DC difference.

    Args:
        scans: int64 (scans, SCAN_COLUMNS), rows that :func:`describe_scan` has filled. For each segment, the kernel
            writes a note of each block (see POSITION_SHIFT) to the array at STARTS, then a note of the bit at which the
            last block ends. It sets DAMAGE to 0, or to a code of damage.
    """
    first = _u64(scans.ctypes.data)
    a = b = _u64(0), 0, 0, 0, _u64(0)
    for k in range(scans.shape[0]):
        begun = _begin_scan(first + _u64(8 * SCAN_COLUMNS * k))
        if a[PLAN] == 0:
            a = begun
        else:
            b = begun
        while (a[PLAN] != 0) & (b[PLAN] != 0):
            a = _look_up(a)
            b = _look_up(b)
    if a[PLAN] == 0:
        a = b
    while a[PLAN] != 0:
        a = _look_up(a)


@inlined
def _look_up(lane):
    """Skip the AC codes and values that one lookup-table entry covers; return the lane (the state of reading)."""
    accumulator, valid, byte, k, plan = lane
    entry = _i64(load_u16(_u64(_load(plan, AC)) + (accumulator >> _LOOKUP_SHIFT << _u64(1))))
    # Refill after the lookup, which then need not wait: the lookup takes 11 bits, of at least 25 that are still valid.
    accumulator, valid, byte = refill(_u64(0), accumulator, valid, byte)
    k += entry >> SKIP_SHIFT
    if k < 64:
        # ``& 63`` compiles to nothing, because a processor's shift uses only the lowest 6 bits of its operand anyway.
        accumulator <<= _u64(entry & 63)
        return accumulator, valid - (entry & 63), byte, k, plan
    return _end_lookup((accumulator, valid, byte, k, plan), entry)


@inlined
def _end_lookup(lane, entry):
    """Handle a lookup-table entry that ends the block, is missing, or passes the last coefficient; return the lane.

    A lane is the state of reading a scan.
    """
    accumulator, valid, byte, k, plan = lane
    bits, ended = entry & 63, k >= 128
    if k & 64:
        bits, k = _read_ac(plan, accumulator, k - (entry >> SKIP_SHIFT))
        ended = k >= 64
        if bits == 0:
            return _stop(lane, TOO_MANY_COEFFICIENTS if k else BAD_CODE)
    lane = accumulator << _u64(bits), valid - bits, byte, k, plan
    return _begin_block(lane) if ended else lane


@device_function
def _read_ac(plan, accumulator, k):
    """Read one AC code and its value.

    Returns:
        The number of bits of code and value together, 0 if damaged; and the index of the next coefficient: 64 at the
        end of the block, 0 if no code begins here.
    """
    row = _row(plan)
    length, symbol = _look_up_code(accumulator, _load(plan, AC_NUMBER), row)
    if length == 0:
        return 0, 0
    if symbol & 15 == 0 and symbol != 0xF0:
        return length, 64
    k += (symbol >> 4) + 1
    return (0 if k > 64 else length + (symbol & 15)), k


@device_function
def _begin_scan(scan):
    """Write plans, which name each block's tables; return a lane (the state of reading) at the scan's first AC code."""
    row = array_at(scan, SCAN_COLUMNS, np.int64)
    row[DAMAGE] = 0
    blocks = array_at(_u64(row[BLOCKS]), 4 * row[PER_MCU], np.int64)
    for b in range(row[PER_MCU]):
        following = b + 1 if b + 1 < row[PER_MCU] else 0
        ac, dc = blocks[4 * b + 2], blocks[4 * following + 1]
        plan = PLANS + _PLAN_COLUMNS * b
        row[plan + AC], row[plan + AC_NUMBER] = row[SEVERAL] + _table_offset(ac), ac
        row[plan + NEXT_DC], row[plan + NEXT_DC_NUMBER] = row[SINGLE] + _table_offset(dc), dc
        row[plan + NEXT_PLAN] = _i64(scan) + 8 * (PLANS + _PLAN_COLUMNS * following)
        row[plan + SCAN] = _i64(scan)
    return _begin_segment(row)


@inlined
def _begin_segment(row):
    offsets = array_at(_u64(row[SEGMENTS]), 2, np.int64)
    row[SEGMENTS] += 8
    row[UNTIL] = min(row[PER_SEGMENT], row[LEFT])
    row[LIMIT] = 8 * offsets[1]
    last = _u64(row[PLANS + SCAN] + 8 * (PLANS + _PLAN_COLUMNS * (row[PER_MCU] - 1)))
    return _read_dc((_u64(0), 0, row[DATA] + offsets[0], 0, last))


@inlined
def _begin_block(lane):
    """Move a lane (the state of reading) to the next block's first AC code; at the end of the scan, make it idle."""
    _, valid, byte, _, plan = lane
    row = _row(plan)
    row[UNTIL] -= 1
    row[LEFT] -= 1
    position = 8 * (byte - row[DATA]) - valid
    if position > row[LIMIT]:
        return _stop(lane, TOO_SHORT)
    if row[UNTIL]:
        return _read_dc(lane)
    _note(row, position << POSITION_SHIFT)
    return _begin_segment(row) if row[LEFT] else _stop(lane, 0)


@inlined
def _read_dc(lane):
    """Write the next block's note (position, DC difference); return the lane (state of reading) after the DC code."""
    accumulator, valid, byte, _, plan = lane
    row = _row(plan)
    position = 8 * (byte - row[DATA]) - valid
    accumulator, valid, byte = refill(_u64(0), accumulator, valid, byte)
    entry = _i64(load_u16(_u64(_load(plan, NEXT_DC)) + (accumulator >> _LOOKUP_SHIFT << _u64(1))))
    if entry == 0:
        entry = _search_code(accumulator, _load(plan, NEXT_DC_NUMBER), row)
    length, size = entry >> 8, entry & 255
    bits = accumulator << _u64(length)
    value = _i64(bits >> _u64(1) >> _u64(63 - size))
    # A negative difference is coded as the difference plus 2**size - 1. Compute the number to subtract, 2**size - 1 or
    # 0, without a branch, because a processor cannot predict signs.
    below = ((1 << size) - 1) & (_i64(bits >> _u64(63)) - 1)
    _note(row, position << POSITION_SHIFT | (length + size) << BITS_SHIFT | (value - below + DIFFERENCE_BIAS))
    accumulator, valid, byte = refill(_u64(0), bits << _u64(size), valid - length - size, byte)
    lane = accumulator, valid, byte, 1, _u64(_load(plan, NEXT_PLAN))
    if length == 0 or size > 11:
        return _stop(lane, BAD_DC if length else BAD_CODE)
    return lane


@inlined
def _load(plan, column):
    return array_at(plan, _PLAN_COLUMNS, np.int64)[column]


@inlined
def _row(plan):
    return array_at(_u64(_load(plan, SCAN)), SCAN_COLUMNS, np.int64)


@inlined
def _note(row, number):
    array_at(_u64(row[STARTS]), 1, np.int64)[0] = number
    row[STARTS] += 8


@inlined
def _stop(lane, damage):
    """End the reading of a scan: store ``damage``, a code or 0, in its row; return an idle lane (state of reading)."""
    accumulator, valid, byte, k, plan = lane
    _row(plan)[DAMAGE] = damage
    return accumulator, valid, byte, k, _u64(0)


@inlined
def _table_offset(table):
    """Return the byte offset of Huffman table ``table`` in an array of lookup tables of 2**LOOKUP_BITS uint16 each."""
    return table << (LOOKUP_BITS + 1)


@device_function
def _look_up_code(accumulator, table, row):
    """Return the length and the symbol of the code in the accumulator's highest bits; length 0 means no code."""
    single = _u64(row[SINGLE] + _table_offset(table))
    entry = _i64(load_u16(single + (accumulator >> _LOOKUP_SHIFT << _u64(1))))
    if entry == 0:
        entry = _search_code(accumulator, table, row)
    return entry >> 8, entry & 255


@device_function
def _search_code(accumulator, table, row):
    """Return symbol | length << 8 of the code in the accumulator's highest bits, or 0; ``row`` describes the scan."""
    return search_code(accumulator, _u64(row[RANGES] + 4 * 54 * table), _u64(row[SYMBOLS] + 4 * 256 * table), 1)
