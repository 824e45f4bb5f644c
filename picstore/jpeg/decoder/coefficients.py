"""Coefficients of blocks read from Huffman codes by kernels (ITU-T T.81, annex F.2), and the codes' lookup tables.

Most time goes to a chain of dependent steps: take the next bits, look up their entry in a table, skip the entry's bits.
So an entry stands for up to two coefficients and holds the first one's value, and all other work happens beside the
chain: the accumulator is refilled while the entry is loaded, and values are computed without branches.
"""

from __future__ import annotations

import numpy as np

from picstore.jpeg.bit_reader import refill, search_code
from picstore.jpeg.huffman import MAX_CODE_BITS
from picstore.kernels.jit import device_function, inlined, load_u16
from picstore.kernels.simd import load_byte, load_native_u64, load_u8, store_i16, store_i32, store_native_u64

# Number of the stream's next bits that index a lookup table; longer codes are searched (``by_length``).
LOOKUP_BITS = 10
_u64, _i16 = np.uint64, np.int16
_LOOKUP_SHIFT = np.uint64(64 - LOOKUP_BITS)
_RANGES = 3 * 18  # number of int32 values in ``by_length`` (see ``fill_table``) before the symbols
BY_LENGTH = _RANGES + 256

# Shifts of the fields in a 64-bit lookup-table entry, which stands for one or two AC codes. 0: number of bits of all
# codes and values; _BEGIN: bit at which the last symbol's value begins; _SHIFT: 63 - size of this value; _FIRST_BITS:
# number of bits of the first symbol's code and value; _FIRST: number of coefficients that the first code takes, _LAST:
# that all codes take; a code that ends the block counts as _ENDS; _VALUE: the first of two values, int16. Shift amounts
# are masked by ``& 63`` at no cost, because the processor's shifts use only 6 bits.
_BEGIN, _SHIFT, _FIRST_BITS, _FIRST, _LAST, _VALUE = 8, 16, 24, 32, 40, 48
_ENDS = 64
_63, _255 = np.uint64(63), np.uint64(255)

# Byte offsets in an image's tables, which take TABLES bytes. At QUANTIZATIONS lie the quantization tables, int16
# (4, 128). At PAIRS lie lookup tables of pairs of AC codes, uint64 (2, 2**LOOKUP_BITS). ``fill_table`` fills arrays
# ``single`` and ``by_length`` for the Huffman tables DC 0, DC 1, AC 0 and AC 1: those at SINGLES are int16
# (4, 2**LOOKUP_BITS), those at BY_LENGTHS int32 (4, BY_LENGTH).
QUANTIZATIONS, PAIRS = 0, 1024
SINGLES = PAIRS + (16 << LOOKUP_BITS)
BY_LENGTHS = SINGLES + (8 << LOOKUP_BITS)
TABLES = BY_LENGTHS + 16 * BY_LENGTH

# For each position in zigzag order, the index of the coefficient in its block, row by row (T.81, figure A.6).
ZIGZAG = np.array(
    sorted(range(64), key=lambda k: (k // 8 + k % 8, (k // 8 if (k // 8 + k % 8) % 2 else k % 8))), np.uint8
)

# Two blocks are stored side by side: their first rows, then their second rows, …, so that one vector holds a row of
# both. PAIR_ZIGZAG has, for each position in zigzag order, the index in the first block. Positions after the last,
# which the code for the end of a block and damaged streams reach, get an index behind both blocks, which is not used.
OTHER_BLOCK = 8  # index of the second block's first coefficient, after the first block's row of 8
BLOCK_PAIR = 128 + 16
PAIR_ZIGZAG = np.array([k // 8 * 16 + k % 8 for k in ZIGZAG] + [128] * (15 + _ENDS + 64 - 63), np.uint8)


@device_function
def fill_table(counts, single, by_length):
    """Build the lookup tables of single Huffman codes (T.81, annex C.2); all arguments are addresses.

    Args:
        counts: uint8, the number of codes of 1, 2, … 16 bits, then the symbols in the order of their codes. The lengths
            must form a prefix code.
        single: int16 (2**LOOKUP_BITS,), takes for each value of the next LOOKUP_BITS bits the symbol | length << 8 of
            the first code; 0 for a longer code or none.
        by_length: int32 (BY_LENGTH,), takes for each length the first code, the last code + 1 and the index of the
            first code's symbol; then the symbols.
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
        code <<= 1
    for window in range(filled, 1 << LOOKUP_BITS):
        store_i16(single + _u64(2 * window), _i16(0))


@inlined
def _entry_of_one(length, symbol):
    """Return the 64-bit lookup-table entry that stands for a single AC code."""
    size = symbol & 15
    step = _ENDS if size == 0 and symbol != 0xF0 else (symbol >> 4) + 1
    bits = length + size
    return _u64(bits | length << _BEGIN | (63 - size) << _SHIFT | bits << _FIRST_BITS | step << _FIRST | step << _LAST)


@inlined
def _with_second(entry, length, symbol):
    """Add a second AC code to the lookup-table ``entry`` of a first code; the caller adds the first code's value."""
    one, two = np.int64(entry), np.int64(_entry_of_one(length, symbol))
    bits, first = one & 63, one >> _FIRST & 255
    last = first + (two >> _LAST & 255)
    shift = two >> _SHIFT & 63
    fields = bits << _FIRST_BITS | first << _FIRST | last << _LAST
    return _u64(fields | shift << _SHIFT | (bits + length) << _BEGIN | (bits + (two & 63)))


@device_function
def fill_pairs(single, pairs):
    """Build the lookup table of pairs of AC codes, uint64, from the table of single codes; arguments are addresses."""
    window = 0
    while window < 1 << LOOKUP_BITS:
        head = np.int64(load_u16(single + _u64(2 * window)))
        # The window (LOOKUP_BITS bits) begins with a longer code, or with no code.
        if head == 0:
            store_native_u64(pairs + _u64(8 * window), _u64(0))
            window += 1
            continue
        length, symbol = head >> 8, head & 255
        entry = _entry_of_one(length, symbol)
        size = symbol & 15
        rest = LOOKUP_BITS - length - size  # number of the window's bits after the code and its value
        # Add no second code if no bits are left or the block has ended: symbols without a value end it, except 0xF0.
        if rest <= 0 or (size == 0 and symbol != 0xF0):
            for k in range(1 << (LOOKUP_BITS - length)):
                store_native_u64(pairs + _u64(8 * (window + k)), entry)
        else:
            _fill_second(single, entry, size, rest, pairs + _u64(8 * window))
        window += 1 << (LOOKUP_BITS - length)


@inlined
def _fill_second(single, entry, size, rest, pairs):
    """Write the entries of all windows (values of the next LOOKUP_BITS bits) that begin with one code.

    ``entry`` is the entry of the code alone. After the code, a window has ``size`` bits of the code's value, then
    ``rest`` bits, which may begin with a second code.
    """
    for k in range(1 << rest):
        following = np.int64(load_u16(single + _u64(2 * (k << (LOOKUP_BITS - rest)))))
        both = entry
        fits = following and following >> 8 <= rest
        if fits:
            both = _with_second(entry, following >> 8, following & 255)
        for bits in range(1 << size):
            value = bits - ((1 << size) - 1) * (2 * bits < 1 << size) if fits else 0  # sign as in EXTEND, F.2.2.1
            store_native_u64(pairs + _u64(8 * ((bits << rest) + k)), both | _u64(value) << _u64(_VALUE))


@inlined
def _value(bits, shift):
    """Decode a word's highest ``63 - shift`` bits to a signed value (EXTEND, F.2.2.1); 0 bits give 0."""
    flip = ~(np.int64(bits) >> 63)
    return (np.int64((bits ^ _u64(flip)) >> _u64(1) >> (shift & _63)) ^ flip) - flip


@inlined
def _search_code(accumulator, by_length):
    return search_code(accumulator, by_length, by_length + _u64(4 * _RANGES), LOOKUP_BITS + 1)


@inlined
def read_dc(address, tables, accumulator, valid, byte):
    """Read a DC difference; ``tables`` holds the addresses of a Huffman table's ``single`` and ``by_length``.

    Return ``accumulator``, ``valid`` (its number of unread bits) and ``byte`` after the difference; then the
    difference; last, whether the difference's Huffman code exists.
    """
    single, by_length = tables
    entry = np.int64(load_u16(single + (accumulator >> _LOOKUP_SHIFT << _u64(1))))
    accumulator, valid, byte = refill(address, accumulator, valid, byte)
    if entry == 0:
        entry = _search_code(accumulator, by_length)
    length, size = entry >> 8, entry & 15
    value = _value(accumulator << _u64(length), _u64(63 - size))
    return accumulator << _u64(length + size), valid - length - size, byte, value, entry != 0


@inlined
def _end_of_block(entry, first, index, last):
    """Return how many bits of a block's last lookup-table entry belong to the block, and if the block ends validly."""
    bits = entry & _63
    # If the entry's first code already ends the block, the entry's second code belongs to the next block.
    if first >= last:
        bits = entry >> _u64(_FIRST_BITS) & _63
    ends = entry >> _u64(_FIRST) & _255 == _u64(_ENDS)
    return bits, ends or first == last or (first < last and (index == last or index == first + _u64(_ENDS)))


@inlined
def read_ac(address, tables, zigzag, block, accumulator, valid, byte):
    """Read a block's AC coefficients; return ``accumulator``, ``valid``, ``byte``, and whether all codes are valid.

    ``zigzag`` is the address of PAIR_ZIGZAG; ``block`` is that of the block's first coefficient in a pair of blocks.
    """
    pairs, by_length = tables
    index, last = zigzag, zigzag + _63
    while True:
        entry = load_native_u64(pairs + (accumulator >> _LOOKUP_SHIFT << _u64(3)))
        accumulator, valid, byte = refill(address, accumulator, valid, byte)
        if entry == 0:
            found = _search_code(accumulator, by_length)
            if found == 0:
                return accumulator, valid, byte, False
            entry = _entry_of_one(found >> 8, found & 255)
        first = index + (entry >> _u64(_FIRST) & _255)
        index += entry >> _u64(_LAST) & _255
        value = _value(accumulator << (entry >> _u64(_BEGIN) & _63), entry >> _u64(_SHIFT))
        # If the entry stands for one code, ``first`` equals ``index``, and the second store overwrites the first.
        store_i16(block + (_u64(load_u8(first)) << _u64(1)), _i16(entry >> _u64(_VALUE)))
        store_i16(block + (_u64(load_u8(index)) << _u64(1)), _i16(value))
        if index >= last:
            break
        accumulator <<= entry & _63
        valid -= np.int64(entry & _63)
    bits, good = _end_of_block(entry, first, index, last)
    return accumulator << bits, valid - np.int64(bits), byte, good


@inlined
def skip_ac(address, tables, accumulator, valid, byte):
    """Skip a block's AC coefficients, without storing them; return the same values as ``read_ac``."""
    pairs, by_length = tables
    index, last = _u64(0), _63
    while True:
        entry = load_native_u64(pairs + (accumulator >> _LOOKUP_SHIFT << _u64(3)))
        accumulator, valid, byte = refill(address, accumulator, valid, byte)
        if entry == 0:
            found = _search_code(accumulator, by_length)
            if found == 0:
                return accumulator, valid, byte, False
            entry = _entry_of_one(found >> 8, found & 255)
        first = index + (entry >> _u64(_FIRST) & _255)
        index += entry >> _u64(_LAST) & _255
        if index >= last:
            break
        accumulator <<= entry & _63
        valid -= np.int64(entry & _63)
    bits, good = _end_of_block(entry, first, index, last)
    return accumulator << bits, valid - np.int64(bits), byte, good
