"""Lookup tables of Huffman codes for the kernels."""

from __future__ import annotations

from functools import lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from picstore.compiled import kernel
from picstore.jpeg.tables import LONGEST, U32, HuffmanTable

U16: TypeAlias = npt.NDArray[np.uint16]

LOOK = 12  # bits looked up at once; longer codes are rare (T.81's own tables: 0.3 % of AC symbols) and found by search
PASSED, END = 5, 1 << 11  # of an entry of ``many``: shift of the coefficients passed; flag that the block ends


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
    for k, table in enumerate(tables):
        symbols[k, : len(table.symbols)] = np.frombuffer(table.symbols, np.uint8)
        _fill_one(np.frombuffer(table.counts, np.uint8).astype(np.int64), symbols[k], one[k], slow[k])
    for k in range(len(dc), len(tables)):
        _fill_many(one[k], many[k])
    return one, many, slow, symbols


@kernel
def _fill_one(counts, symbols, one, slow):  # type: ignore[no-untyped-def]
    code = 0
    k = 0
    for length in range(1, LONGEST + 1):
        slow[0, length] = code
        slow[2, length] = k
        for _ in range(counts[length - 1]):
            if length <= LOOK:
                entry = symbols[k] | length << 8
                first = code << (LOOK - length)
                for j in range(first, first + (1 << (LOOK - length))):
                    one[j] = entry
            code += 1
            k += 1
        slow[1, length] = code
        code <<= 1


@kernel
def _fill_many(one, many):  # type: ignore[no-untyped-def]
    for window in range(1 << LOOK):
        bits = 0
        passed = 0
        entry = 0
        while bits < LOOK:
            ahead = np.int64(one[(window << bits) & ((1 << LOOK) - 1)])
            length, symbol = ahead >> 8, ahead & 255
            if ahead == 0 or bits + length > LOOK:
                break
            bits += length + (symbol & 15)
            if symbol & 15 == 0 and symbol != 0xF0:
                entry = bits | passed << PASSED | END
                break
            passed += (symbol >> 4) + 1
            if passed > 63:
                break
            entry = bits | passed << PASSED
        many[window] = entry
