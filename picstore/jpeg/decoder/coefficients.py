"""Coefficients of blocks read from Huffman codes by kernels (ITU-T T.81, annex F.2), and their lookup tables.

The time goes to a chain of dependent steps: the next bits, their entry in a table in memory, its number of bits, the
next bits. So an entry stands for up to two coefficients, and all other work happens beside the chain: the accumulator
is refilled while the entry is loaded, and values are computed without branches. A reader of bits is three numbers, as
in ``bit_reader``.
"""

from __future__ import annotations

import numpy as np

from picstore.jpeg.bit_reader import refill
from picstore.jpeg.huffman import MAX_CODE_BITS
from picstore.kernels.jit import device_function, inlined, load_u16
from picstore.kernels.simd import load_byte, load_native_u64, load_u8, load_u32, store_i16, store_i32, store_native_u64

LOOKUP_BITS = 10  # bits looked up at once; longer codes are searched
_u64, _i16 = np.uint64, np.int16
_LOOKUP_SHIFT = np.uint64(64 - LOOKUP_BITS)
_RANGES = 3 * 18  # int32 numbers of a table in ``by_length``, before its symbols
BY_LENGTH = _RANGES + 256

# Fields of an entry for AC codes, 64 bits: the bits of all codes and values in it; of the first symbol the code's
# length, 63 - the value's size and the zeros before it; of the second the bit at which its value begins, 63 - its size,
# and the coefficients from the first to it, 0 for none and _ENDS if the block ends. Fields are used as shifts without
# a mask, as shifts use their last 6 bits only.
_LENGTH, _SHIFT, _SECOND, _SECOND_SHIFT, _RUN, _STEP = 8, 16, 24, 32, 40, 48
_ENDS = 64
_63 = np.uint64(63)
_MAX_INT64 = np.uint64((1 << 63) - 1)

# Offsets in bytes of the tables of an image: quantisation, int16 (4, 64); pairs of AC codes, uint64 (2,
# 2**LOOKUP_BITS); and for DC 0, DC 1, AC 0 and AC 1 single codes, int16 (4, 2**LOOKUP_BITS), and codes by length, int32
# (4, BY_LENGTH). The tables end at TABLES.
QUANTISATIONS, PAIRS = 0, 512
SINGLES = PAIRS + (16 << LOOKUP_BITS)
BY_LENGTHS = SINGLES + (8 << LOOKUP_BITS)
TABLES = BY_LENGTHS + 16 * BY_LENGTH

# Index in a block of each coefficient in the order of codes (figure A.6). Those after the last one are discarded.
DISCARD = 64
_DIAGONALS = sorted(range(64), key=lambda k: (k // 8 + k % 8, (k // 8 if (k // 8 + k % 8) % 2 else k % 8)))
ZIGZAG = np.array(_DIAGONALS + [DISCARD] * (15 + _ENDS + 64 - 63), np.uint8)


@device_function
def fill_table(counts, single, by_length):  # type: ignore[no-untyped-def]
    """Make the lookup tables of single codes (C.2); all arguments are addresses.

    Args:
        counts: 16 bytes, the number of codes of each length, followed by the symbols in the order of their codes.
        single: int16 (2**LOOKUP_BITS,), takes symbol | length << 8, 0 for a longer or no code.
        by_length: int32 (BY_LENGTH,), takes for each length the first code, the last code + 1 and the index of its
            first symbol; then the symbols.

    Returns:
        Whether the lengths have codes for all symbols.
    """
    code = k = filled = 0
    for length in range(1, MAX_CODE_BITS + 1):
        bounds = by_length + _u64(4 * length)
        store_i32(bounds, np.int32(code))
        store_i32(bounds + _u64(144), np.int32(k))
        for _ in range(load_byte(counts + _u64(length - 1))):
            symbol = load_byte(counts + _u64(MAX_CODE_BITS + k))
            store_i32(by_length + _u64(4 * (_RANGES + k)), np.int32(symbol))
            if length <= LOOKUP_BITS:
                for _ in range(min(1 << (LOOKUP_BITS - length), (1 << LOOKUP_BITS) - filled)):
                    store_i16(single + _u64(2 * filled), _i16(symbol | length << 8))
                    filled += 1
            code += 1
            k += 1
        store_i32(bounds + _u64(72), np.int32(code))
        if code >= 1 << length:  # the code of all ones stays free (C.2), and libjpeg insists
            return False
        code <<= 1
    for window in range(filled, 1 << LOOKUP_BITS):
        store_i16(single + _u64(2 * window), _i16(0))
    return True


@inlined
def _entry_of_one(length, symbol):  # type: ignore[no-untyped-def]
    """Make the entry of one AC code."""
    size = symbol & 15
    entry = (length + size) | length << _LENGTH | (63 - size) << _SHIFT | 63 << _SECOND_SHIFT
    if size == 0 and symbol != 0xF0:
        return _u64(entry | _ENDS << _STEP)
    return _u64(entry | (symbol >> 4) << _RUN)


@inlined
def _with_second(entry, length, symbol):  # type: ignore[no-untyped-def]
    """Add a second code to the entry of a first."""
    size = symbol & 15
    step = _ENDS if size == 0 and symbol != 0xF0 else (symbol >> 4) + 1
    begin = (np.int64(entry) & 63) + length
    return (entry - _u64(size << _SECOND_SHIFT)) + _u64(length + size + (begin << _SECOND) + (step << _STEP))


@device_function
def fill_pairs(single, pairs):  # type: ignore[no-untyped-def]
    """Make the lookup table of pairs of AC codes, uint64 (2**LOOKUP_BITS,), from that of single ones, by address."""
    window = 0
    while window < 1 << LOOKUP_BITS:
        head = np.int64(load_u16(single + _u64(2 * window)))
        if head == 0:  # only longer codes follow
            store_native_u64(pairs + _u64(8 * window), _u64(0))
            window += 1
            continue
        length, symbol = head >> 8, head & 255
        entry = _entry_of_one(length, symbol)
        rest = LOOKUP_BITS - length - (symbol & 15)
        alone = rest <= 0 or entry >> _u64(_STEP) != _u64(0)
        for k in range(1 << (LOOKUP_BITS - length)):
            both = entry
            if not alone and k >= 1 << rest:  # the same codes follow every value
                both = load_native_u64(pairs + _u64(8 * (window + k - (1 << rest))))
            elif not alone:
                following = np.int64(load_u16(single + _u64(2 * (k << (LOOKUP_BITS - rest)))))
                if following and following >> 8 <= rest:
                    both = _with_second(entry, following >> 8, following & 255)
            store_native_u64(pairs + _u64(8 * (window + k)), both)
        window += 1 << (LOOKUP_BITS - length)


@inlined
def _value(bits, shift):  # type: ignore[no-untyped-def]
    """Return the number in the first ``63 - shift`` bits of a word (F.2.2.1, EXTEND), 0 for none."""
    shift &= _63
    below = (_MAX_INT64 >> shift) & ~_u64(np.int64(bits) >> 63)
    return np.int64(((bits >> _u64(1)) >> shift) - below)


@device_function
def _search_code(accumulator, by_length):  # type: ignore[no-untyped-def]
    """Find the code at the head of the accumulator by its length (F.2.2.3): symbol | length << 8; 0 for none."""
    for length in range(LOOKUP_BITS + 1, MAX_CODE_BITS + 1):
        code = np.int64(accumulator >> _u64(64 - length))
        bounds = by_length + _u64(4 * length)
        begin = np.int64(load_u32(bounds))
        if begin <= code < np.int64(load_u32(bounds + _u64(72))):
            index = np.int64(load_u32(bounds + _u64(144))) + code - begin
            return np.int64(load_u32(by_length + _u64(4 * (_RANGES + index)))) | length << 8
    return 0


@inlined
def read_dc(address, tables, accumulator, valid, byte):  # type: ignore[no-untyped-def]
    """Read a DC difference: (accumulator, valid, byte, difference, whether its code is valid)."""
    single, by_length = tables
    entry = np.int64(load_u16(single + (accumulator >> _LOOKUP_SHIFT << _u64(1))))
    accumulator, valid, byte = refill(address, accumulator, valid, byte)
    if entry == 0:
        entry = _search_code(accumulator, by_length)
    length, size = entry >> 8, entry & 15
    value = _value(accumulator << _u64(length), _u64(63 - size))
    return accumulator << _u64(length + size), valid - length - size, byte, value, entry != 0


@inlined
def read_ac(address, tables, zigzag, block, accumulator, valid, byte):  # type: ignore[no-untyped-def]
    """Read the AC coefficients of a block into it: (accumulator, valid, byte, whether they are valid)."""
    pairs, by_length = tables
    k = 0
    while True:
        entry = load_native_u64(pairs + (accumulator >> _LOOKUP_SHIFT << _u64(3)))
        accumulator, valid, byte = refill(address, accumulator, valid, byte)
        if entry == 0:
            found = _search_code(accumulator, by_length)
            if found == 0:
                return accumulator, valid, byte, False
            entry = _entry_of_one(found >> 8, found & 255)
        first = k + 1 + np.int64((entry >> _u64(_RUN)) & _u64(15))
        k = first + np.int64(entry >> _u64(_STEP))
        one = _value(accumulator << ((entry >> _u64(_LENGTH)) & _63), entry >> _u64(_SHIFT))
        two = _value(accumulator << ((entry >> _u64(_SECOND)) & _63), entry >> _u64(_SECOND_SHIFT))
        # Without a second symbol, k is the index of the first, which overwrites it, or a discarded one.
        store_i16(block + (_u64(load_u8(zigzag + _u64(k))) << _u64(1)), _i16(two))
        store_i16(block + (_u64(load_u8(zigzag + _u64(first))) << _u64(1)), _i16(one))
        if k >= 63:
            break
        accumulator <<= entry & _63
        valid -= np.int64(entry & _63)
    bits = entry & _63
    if first >= 63:  # the bits after the last coefficient belong to the next block
        bits = ((entry >> _u64(_LENGTH)) & _63) + _63 - ((entry >> _u64(_SHIFT)) & _63)
    good = first == 63 or (first < 63 and (k == 63 or k == first + _ENDS))
    return accumulator << bits, valid - np.int64(bits), byte, good
