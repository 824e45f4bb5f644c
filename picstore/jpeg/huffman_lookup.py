"""Lookup tables of Huffman codes for the kernels."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from picstore.arrays import U16, U32
from picstore.jpeg.huffman import LONGEST, HuffmanTable
from picstore.kernels.jit import device_function, kernel

LOOK = 12  # bits looked up at once; longer codes are rare (T.81's own tables: 0.3 % of AC symbols) and found by search
PASSED, END = 6, 1 << 14  # of an entry of ``many``: shift of the coefficients passed; flag that the block ends


@lru_cache(maxsize=16)
def lookups(dc: tuple[HuffmanTable, ...], ac: tuple[HuffmanTable, ...]) -> tuple[U16, U16, U32, U32]:
    """What ``entropy.scan`` looks up, for the DC tables and then the AC tables; cached, as encoders repeat themselves.

    Returns:
        one: uint16 (tables, 2**LOOK), by the next LOOK bits the first symbol: symbol | length of its code << 8; 0 for a
            longer or no code.
        many: uint16 (tables, 2**LOOK), for AC tables only, as many symbols as lie in those bits: the bits they take |
            coefficients they pass << PASSED | END if the last one ends the block; 0 as above. 16 bits, so that the
            AC tables stay in the first-level cache.
        slow: uint32 (tables, 3, 18), for each length the first code, one past the last, and where its first symbol is.
        symbols: uint32 (tables, 256).
    """
    tables = dc + ac
    shape = (len(tables), 1 << LOOK)
    one, many = np.zeros(shape, np.uint16), np.zeros(shape, np.uint16)
    slow, symbols = np.zeros((len(tables), 3, 18), np.uint32), np.zeros((len(tables), 256), np.uint32)
    raw = b"".join(table.counts + table.symbols.ljust(256, b"\0") for table in tables)
    _fill(np.frombuffer(raw, np.uint8).reshape(-1, LONGEST + 256), len(dc), one, many, slow, symbols)
    return one, many, slow, symbols


@kernel
def _fill(raw, dc, one, many, slow, symbols):  # type: ignore[no-untyped-def]
    """Fill all tables; of ``raw``, uint8 (tables, 272), the counts and symbols, the first ``dc`` are for DC."""
    parts = np.zeros(2 << LOOK, np.uint16)
    for k in range(raw.shape[0]):
        for j in range(256):  # to assign an array takes numba 2 s to compile, for its error messages
            symbols[k, j] = raw[k, LONGEST + j]
        _fill_one(raw[k, :LONGEST], symbols[k], one[k], slow[k])
        if k >= dc:
            for width in range(1, LOOK + 1):
                _fill_many(raw[k, :LONGEST], symbols[k], width, parts)
            for j in range(1 << LOOK):
                many[k, j] = parts[(1 << LOOK) + j]


@device_function
def _fill_one(counts, symbols, one, slow):  # type: ignore[no-untyped-def]
    code = k = at = 0
    for length in range(1, LONGEST + 1):
        slow[0, length] = code
        slow[2, length] = k
        for _ in range(counts[length - 1]):
            if length <= LOOK:
                span = 1 << (LOOK - length)
                one[at : at + span] = symbols[k] | length << 8
                at += span
            code += 1
            k += 1
        slow[1, length] = code
        code <<= 1


@device_function
def _fill_many(counts, symbols, width, parts):  # type: ignore[no-untyped-def]
    """Make what ``many`` holds, for windows of ``width`` bits, at 2**width in ``parts``, where the narrower ones are.

    Behind a code and its value that end within the window lies a narrower window.
    """
    k = 0
    at = 1 << width
    for length in range(1, width + 1):
        for _ in range(counts[length - 1]):
            symbol = np.int64(symbols[k])
            size = symbol & 15
            rest = width - length - size
            ends = size == 0 and symbol != 0xF0
            entry = (length + size) | (END if ends else ((symbol >> 4) + 1) << PASSED)
            span = 1 << (width - length)
            parts[at : at + span] = entry
            if rest > 0 and not ends:
                for to in range(at, at + span, 1 << rest):
                    for j in range(1 << rest):  # fields do not overflow: 27 bits, and 12 symbols of 16 coefficients
                        parts[to + j] += parts[(1 << rest) + j]
            at += span
            k += 1
    parts[at : 2 << width] = 0
