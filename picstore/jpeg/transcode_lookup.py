"""Lookup tables of Huffman codes for the kernels of ``transcode``; the decoder has other tables."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from picstore.arrays import U16, U32
from picstore.jpeg.huffman import MAX_CODE_BITS, HuffmanTable, pack_tables
from picstore.kernels.jit import device_function, kernel

# Number of the stream's next bits that index a lookup table. Longer codes, 0.3 % with T.81's AC tables, are searched.
LOOKUP_BITS = 11
# Fields of an entry of ``several``, the lookup table of AC codes. In the lowest 6 bits: number of bits that codes and
# values take. From bit SKIP_SHIFT on: number of coefficients, plus 128 (END_OF_BLOCK) if the block ends.
# NO_ENTRY, for a missing entry, has 64 coefficients and no bits.
SKIP_SHIFT, END_OF_BLOCK, NO_ENTRY = 6, 128 << 6, 64 << 6
# Bit that stands for END_OF_BLOCK while ``several`` is built. Until then entries may have up to 12 · 16 coefficients,
# which would set the bit END_OF_BLOCK; at the end, entries of more than 63 coefficients become NO_ENTRY.
_END = 1 << 14


@lru_cache(maxsize=16)
def make_lookups(dc: tuple[HuffmanTable, ...], ac: tuple[HuffmanTable, ...]) -> tuple[U16, U16, U32, U32]:
    """Build the lookup tables of ``block_starts`` for DC tables, then AC tables.

    An index of the first two arrays is the value of the next LOOKUP_BITS bits.

    Returns:
        single: uint16 (tables, 2**LOOKUP_BITS), the first symbol | length of its code << 8; 0 for a longer code or
            none.
        several: uint16 (tables, 2**LOOKUP_BITS), for AC tables only, all symbols in the bits: number of bits they take
            | number of coefficients << SKIP_SHIFT | END_OF_BLOCK if the last symbol ends the block; NO_ENTRY for a
            longer code or none, and for more than 63 coefficients. Entries have 16 bits, so that the AC tables stay in
            the first-level cache.
        ranges: uint32 (tables, 3, 18), for each code length the first code, the last code + 1, and the index of the
            first code's symbol.
        symbols: uint32 (tables, 256), symbols in the order of their codes.
    """
    tables = dc + ac
    shape = (len(tables), 1 << LOOKUP_BITS)
    single, several = np.zeros(shape, np.uint16), np.zeros(shape, np.uint16)
    ranges, symbols = np.zeros((len(tables), 3, 18), np.uint32), np.zeros((len(tables), 256), np.uint32)
    fill_tables(pack_tables(tables), len(dc), single, several, ranges, symbols)
    return single, several, ranges, symbols


@kernel(
    "(Array(uint8, 2, 'C', readonly=True), int64, uint16[:, ::1], uint16[:, ::1], uint32[:, :, ::1], uint32[:, ::1])"
)
def fill_tables(raw, dc, single, several, ranges, symbols):
    """Fill the arrays that ``make_lookups`` returns; ``raw`` is the result of ``pack_tables``, the DC tables first."""
    windows = np.zeros(2 << LOOKUP_BITS, np.uint16)
    for k in range(raw.shape[0]):
        # Copy by a loop, because numba takes 2 s to compile an assignment of arrays and its errors for wrong shapes.
        for j in range(256):
            symbols[k, j] = raw[k, MAX_CODE_BITS + j]
        _fill_single(raw[k, :MAX_CODE_BITS], symbols[k], single[k], ranges[k])
        if k >= dc:
            for width in range(1, LOOKUP_BITS + 1):
                _fill_several(raw[k, :MAX_CODE_BITS], symbols[k], width, windows)
            for j in range(1 << LOOKUP_BITS):
                entry = windows[(1 << LOOKUP_BITS) + j]
                coefficients = (entry >> SKIP_SHIFT) & 255
                end = END_OF_BLOCK if entry & _END else 0
                fits = entry and coefficients < 64
                several[k, j] = (entry & 63) | coefficients << SKIP_SHIFT | end if fits else NO_ENTRY


@device_function
def _fill_single(counts, symbols, single, ranges):
    code = k = index = 0
    for length in range(1, MAX_CODE_BITS + 1):
        ranges[0, length] = code
        ranges[2, length] = k
        for _ in range(counts[length - 1]):
            if length <= LOOKUP_BITS:
                span = 1 << (LOOKUP_BITS - length)
                single[index : index + span] = symbols[k] | length << 8
                index += span
            code += 1
            k += 1
        ranges[1, length] = code
        code <<= 1


@device_function
def _fill_several(counts, symbols, width, windows):
    """Write the entry (see SKIP_SHIFT) for each value w of the next ``width`` bits to ``windows[2**width + w]``.

    Smaller widths must be filled first, because entries of the bits after the first code and value are added.
    """
    k = 0
    index = 1 << width
    for length in range(1, width + 1):
        for _ in range(counts[length - 1]):
            symbol = np.int64(symbols[k])
            size = symbol & 15
            rest = width - length - size
            ends = size == 0 and symbol != 0xF0
            entry = (length + size) | (_END if ends else ((symbol >> 4) + 1) << SKIP_SHIFT)
            span = 1 << (width - length)
            windows[index : index + span] = entry
            if rest > 0 and not ends:
                for first in range(index, index + span, 1 << rest):
                    # Add the entry for the bits after this code and value. No field overflows: a window's codes and
                    # values have at most 27 bits, and at most 12 symbols skip 16 coefficients each.
                    for j in range(1 << rest):
                        windows[first + j] += windows[(1 << rest) + j]
            index += span
            k += 1
    windows[index : 2 << width] = 0
