"""Kernels that read the coefficients of blocks from Huffman codes (ITU-T T.81, annex F.2), and their lookup tables.

What takes the time is a chain: the next bits, their entry in a table in memory, how many bits that is, the next bits.
So an entry stands for up to two coefficients, and the rest of the work is done beside the chain: the refill of the
accumulator begins while the entry is on its way, as the bits at the head suffice for it, and values are put together
without branches. A reader is three numbers, as in ``entropy``.
"""

from __future__ import annotations

import numpy as np

from picstore.kernels.jit import device_function, inlined, load_u16, load_u64
from picstore.kernels.simd import (
    load_byte,
    load_native_u64,
    load_u8,
    load_u32,
    store_i16,
    store_i32,
    store_native_u64,
)

LOOK = 10  # bits looked up at once; longer codes are found by search
LONGEST = 16
_u64, _i16 = np.uint64, np.int16
_LOOK_SHIFT = np.uint64(64 - LOOK)
_SLOW = 3 * 18  # numbers of a table in ``rare``, before its symbols
RARE = _SLOW + 256

# An entry for AC codes, 64 bits, of fields that can shift by themselves, as shifts look at their last 6 bits only: the
# bits of all codes and values in it; of the first symbol the code's length, 63 less the value's size and the zeros
# before it; of the second where its value begins, 63 less its size, and the coefficients from the first to it, 0
# without one. The last field is _ENDS if the block ends.
_LENGTH, _SHIFT, _SECOND, _SECOND_SHIFT, _RUN, _STEP = 8, 16, 24, 32, 40, 48
_ENDS = 64
_63 = np.uint64(63)
_GREATEST = np.uint64((1 << 63) - 1)

# Where the tables of an image lie, in bytes: quantisation, int16 (4, 64); and of DC 0, DC 1, AC 0 and AC 1 the single
# codes, int16 (4, 2**LOOK), and rare ones, int32 (4, RARE); pairs of AC codes, uint64 (2, 2**LOOK).
QUANTISATIONS, PAIRS = 0, 512
SINGLES = PAIRS + (16 << LOOK)
RARES = SINGLES + (8 << LOOK)
TABLES = RARES + 16 * RARE

# Where coefficients in the order of their codes lie in a block (figure A.6); those behind the last one in its waste.
WASTE = 64
_DIAGONALS = sorted(range(64), key=lambda k: (k // 8 + k % 8, (k // 8 if (k // 8 + k % 8) % 2 else k % 8)))
ZIGZAG = np.array(_DIAGONALS + [WASTE] * (15 + _ENDS + 64 - 63), np.uint8)


@device_function
def fill_table(counts, one, rare):  # type: ignore[no-untyped-def]
    """Make the lookup of single codes (C.2); all arguments are addresses.

    Args:
        counts: of 16 bytes, codes of each length, with the symbols in the order of their codes behind.
        one: int16 (2**LOOK,), takes symbol | length << 8, 0 for a longer or no code.
        rare: int32 (RARE,), takes for each length the first code, one past the last and where its first symbol is;
            then the symbols.

    Returns:
        Whether there are codes for all.
    """
    code = k = filled = 0
    for length in range(1, LONGEST + 1):
        at = rare + _u64(4 * length)
        store_i32(at, np.int32(code))
        store_i32(at + _u64(144), np.int32(k))
        for _ in range(load_byte(counts + _u64(length - 1))):
            symbol = load_byte(counts + _u64(LONGEST + k))
            store_i32(rare + _u64(4 * (_SLOW + k)), np.int32(symbol))
            if length <= LOOK:
                for _ in range(min(1 << (LOOK - length), (1 << LOOK) - filled)):
                    store_i16(one + _u64(2 * filled), _i16(symbol | length << 8))
                    filled += 1
            code += 1
            k += 1
        store_i32(at + _u64(72), np.int32(code))
        if code > 1 << length:
            return False
        code <<= 1
    for window in range(filled, 1 << LOOK):
        store_i16(one + _u64(2 * window), _i16(0))
    return True


@inlined
def _single(length, symbol):  # type: ignore[no-untyped-def]
    """The entry of one AC code."""
    size = symbol & 15
    entry = (length + size) | length << _LENGTH | (63 - size) << _SHIFT | 63 << _SECOND_SHIFT
    if size == 0 and symbol != 0xF0:
        return _u64(entry | _ENDS << _STEP)
    return _u64(entry | (symbol >> 4) << _RUN)


@inlined
def _with_second(entry, length, symbol):  # type: ignore[no-untyped-def]
    """The entry of a code with another one behind it."""
    size = symbol & 15
    step = _ENDS if size == 0 and symbol != 0xF0 else (symbol >> 4) + 1
    begin = (np.int64(entry) & 63) + length
    return (entry - _u64(size << _SECOND_SHIFT)) + _u64(length + size + (begin << _SECOND) + (step << _STEP))


@device_function
def fill_pairs(one, pairs):  # type: ignore[no-untyped-def]
    """Make the lookup of AC codes, uint64 (2**LOOK,), from that of single ones, both by address."""
    window = 0
    while window < 1 << LOOK:
        ahead = np.int64(load_u16(one + _u64(2 * window)))
        if ahead == 0:  # only longer codes follow
            store_native_u64(pairs + _u64(8 * window), _u64(0))
            window += 1
            continue
        length, symbol = ahead >> 8, ahead & 255
        entry = _single(length, symbol)
        room = LOOK - length - (symbol & 15)
        alone = room <= 0 or entry >> _u64(_STEP) != _u64(0)
        for k in range(1 << (LOOK - length)):
            both = entry
            if not alone and k >= 1 << room:  # what follows is the same whatever the value is
                both = load_native_u64(pairs + _u64(8 * (window + k - (1 << room))))
            elif not alone:
                following = np.int64(load_u16(one + _u64(2 * (k << (LOOK - room)))))
                if following and following >> 8 <= room:
                    both = _with_second(entry, following >> 8, following & 255)
            store_native_u64(pairs + _u64(8 * (window + k)), both)
        window += 1 << (LOOK - length)


@inlined
def _value(bits, shift):  # type: ignore[no-untyped-def]
    """The number in the first ``63 - shift`` bits of a word (F.2.2.1, EXTEND), 0 for none."""
    shift &= _63
    below = (_GREATEST >> shift) & ~_u64(np.int64(bits) >> 63)
    return np.int64(((bits >> _u64(1)) >> shift) - below)


@device_function
def _search(accumulator, rare):  # type: ignore[no-untyped-def]
    """The code at the head of the accumulator, by its length (F.2.2.3), symbol | length << 8; 0 if there is none."""
    for length in range(LOOK + 1, LONGEST + 1):
        code = np.int64(accumulator >> _u64(64 - length))
        at = rare + _u64(4 * length)
        begin = np.int64(load_u32(at))
        if begin <= code < np.int64(load_u32(at + _u64(72))):
            place = np.int64(load_u32(at + _u64(144))) + code - begin
            return np.int64(load_u32(rare + _u64(4 * (_SLOW + place)))) | length << 8
    return 0


@inlined
def refill(address, accumulator, valid, byte):  # type: ignore[no-untyped-def]
    """Top the accumulator up to 56 bits or more."""
    accumulator |= load_u64(address + _u64(byte)) >> _u64(valid)
    return accumulator, valid | 56, byte + ((63 - valid) >> 3)


@inlined
def read_dc(address, tables, accumulator, valid, byte):  # type: ignore[no-untyped-def]
    """Read a DC difference: (accumulator, valid, byte, difference, whether there was one)."""
    one, rare = tables
    entry = np.int64(load_u16(one + (accumulator >> _LOOK_SHIFT << _u64(1))))
    accumulator, valid, byte = refill(address, accumulator, valid, byte)
    if entry == 0:
        entry = _search(accumulator, rare)
    length, size = entry >> 8, entry & 15
    value = _value(accumulator << _u64(length), _u64(63 - size))
    return accumulator << _u64(length + size), valid - length - size, byte, value, entry != 0


@inlined
def read_ac(address, tables, zigzag, block, accumulator, valid, byte):  # type: ignore[no-untyped-def]
    """Read the AC coefficients of a block into it: (accumulator, valid, byte, whether they were good)."""
    pairs, rare = tables
    k = 0
    while True:
        entry = load_native_u64(pairs + (accumulator >> _LOOK_SHIFT << _u64(3)))
        accumulator, valid, byte = refill(address, accumulator, valid, byte)
        if entry == 0:
            ahead = _search(accumulator, rare)
            if ahead == 0:
                return accumulator, valid, byte, False
            entry = _single(ahead >> 8, ahead & 255)
        first = k + 1 + np.int64((entry >> _u64(_RUN)) & _u64(15))
        k = first + np.int64(entry >> _u64(_STEP))
        one = _value(accumulator << ((entry >> _u64(_LENGTH)) & _63), entry >> _u64(_SHIFT))
        two = _value(accumulator << ((entry >> _u64(_SECOND)) & _63), entry >> _u64(_SECOND_SHIFT))
        # Without a second symbol this is the first one's place, or a waste one.
        store_i16(block + (_u64(load_u8(zigzag + _u64(k))) << _u64(1)), _i16(two))
        store_i16(block + (_u64(load_u8(zigzag + _u64(first))) << _u64(1)), _i16(one))
        if k >= 63:
            break
        accumulator <<= entry & _63
        valid -= np.int64(entry & _63)
    bits = entry & _63
    if first >= 63:  # what follows the last coefficient is the next block's
        bits = ((entry >> _u64(_LENGTH)) & _63) + _63 - ((entry >> _u64(_SHIFT)) & _63)
    good = first == 63 or (first < 63 and (k == 63 or k == first + _ENDS))
    return accumulator << bits, valid - np.int64(bits), byte, good
