"""Huffman tables of a JPEG: code lengths, codes added to a table, and optimal tables (ITU-T T.81, annexes C and K)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import mul

import numpy as np

from picstore.arrays import U8
from picstore.errors import ImageError
from picstore.kernels.jit import device_function

MAX_CODE_BITS = 16
# Key, in ``_find_depths``, of a tree that was merged into another; other trees have the key weight << 9 | 511 - index.
_MERGED = 1 << 62
# For a code of 1, 2, … 16 bits, the number of 16-bit words that begin with the code.
_SHARES = [1 << bits for bits in reversed(range(MAX_CODE_BITS))]


@dataclass(frozen=True, slots=True)
class HuffmanTable:
    """Table of a DHT segment (T.81, B.2.4.2).

    Attributes:
        counts: 16 bytes, the number of codes of 1, 2, … 16 bits.
        symbols: symbols, one byte each, in the order of their codes.

    Raises:
        ImageError: the counts do not give a prefix code, or symbols are missing.
    """

    counts: bytes
    symbols: bytes

    def __post_init__(self) -> None:
        if len(self.counts) != MAX_CODE_BITS or sum(self.counts) != len(self.symbols) or len(self.symbols) > 256:
            raise ImageError("a Huffman table is cut off")
        # The codes must not use all 16-bit words, because the code of all ones must stay free (C.2).
        if sum(map(mul, self.counts, _SHARES)) >= 1 << MAX_CODE_BITS:
            raise ImageError("a Huffman table has more codes than fit")

    def code_lengths(self) -> dict[int, int]:
        """Return the number of bits of each symbol's code, by symbol."""
        lengths = [bits for bits, count in enumerate(self.counts, start=1) for _ in range(count)]
        return dict(zip(self.symbols, lengths, strict=True))

    def extended(self, symbols: Iterable[int]) -> HuffmanTable | None:
        """Return a table with codes for the additional ``symbols``, or None if too few codes are free.

        Data coded with the old codes stays valid, because new codes follow the longest old code and are at least as
        long. The code of all ones stays free, as the standard requires (C.2).
        """
        added = bytes(sorted(symbols))
        if len(self.symbols) + len(added) > 256:
            return None
        longest = max((k + 1 for k in range(MAX_CODE_BITS) if self.counts[k]), default=1)
        free = 1
        for length, count in enumerate(self.counts, start=1):
            free = 2 * free - count
            if length >= longest and free > len(added) and count + len(added) <= 255:
                counts = bytearray(self.counts)
                counts[length - 1] += len(added)
                return HuffmanTable(bytes(counts), self.symbols + added)
        return None


def pack_tables(tables: Iterable[HuffmanTable]) -> U8:
    """Pack tables for kernels: uint8 (tables, 272), with the counts and then the symbols of each table."""
    raw = b"".join([table.counts + table.symbols.ljust(256, b"\0") for table in tables])
    return np.frombuffer(raw, np.uint8).reshape(-1, MAX_CODE_BITS + 256)


def optimal_table(frequencies: Sequence[int]) -> HuffmanTable:
    """Compute the table that codes symbols in the fewest bits; codes have at most 16 bits, none is all ones (K.2).

    Args:
        frequencies: frequency of symbol 0, 1, …; a symbol of frequency 0 gets no code.
    """
    # Add the symbol 256, which never occurs. It takes the code of all ones, because it is the rarest symbol and so has
    # the longest code; ``_limit_lengths`` then removes this code.
    weights: dict[tuple[int, ...], int] = {(symbol,): count for symbol, count in enumerate(frequencies) if count}
    weights[(256,)] = 0
    depth = dict.fromkeys((s for group in weights for s in group), 0)
    while len(weights) > 1:
        first, second = sorted(weights, key=lambda group: (weights[group], -max(group)))[:2]
        for symbol in first + second:
            depth[symbol] += 1
        weights[first + second] = weights.pop(first) + weights.pop(second)
    per_length = [0] * (max(max(depth.values()), MAX_CODE_BITS) + 1)
    for bits in depth.values():
        per_length[bits] += 1
    _limit_lengths.py_func(per_length)
    ordered = sorted((symbol for symbol in depth if symbol != 256), key=lambda symbol: (depth[symbol], symbol))
    return HuffmanTable(bytes(per_length[1 : MAX_CODE_BITS + 1]), bytes(ordered))


@device_function
def optimal_codes(frequencies, counts, symbols, codes):
    """Compute the code of :func:`optimal_table`, but choose among equally good codes as libjpeg-turbo does.

    Args:
        frequencies: uint32 (256,), frequency of each symbol.
        counts: uint8 (16,), takes the number of codes of 1, 2, … 16 bits.
        symbols: uint8 (256,), takes the symbols in the order of their codes.
        codes: uint32 (256,), takes for each symbol its code << 5 | number of bits.
    """
    number, weights = np.empty(257, np.int64), np.empty(257, np.int64)
    found = 0
    for symbol in range(256):
        if frequencies[symbol]:
            number[found], weights[found] = symbol, frequencies[symbol]
            found += 1
    # Add the symbol 256, which never occurs, to take the code of all ones, which ``_limit_lengths`` removes.
    number[found], weights[found] = 256, 1
    depth, per_length = np.zeros(257, np.int64), np.zeros(257, np.int64)
    _find_depths(weights[: found + 1], depth)
    for k in range(found + 1):
        per_length[depth[k]] += 1
    _limit_lengths(per_length)
    for length in range(MAX_CODE_BITS):
        counts[length] = per_length[length + 1]
    count = 0
    # Sort the symbols by their depth in the tree; limiting the lengths of codes does not change this order.
    for length in range(1, per_length.size):
        for k in range(found):
            if depth[k] == length:
                symbols[count] = number[k]
                count += 1
    code = count = 0
    for length in range(1, MAX_CODE_BITS + 1):
        for _ in range(per_length[length]):
            codes[symbols[count]] = code << 5 | length
            code += 1
            count += 1
        code <<= 1


@device_function
def _take_least(keys):
    """Return the smallest of the trees' keys (see ``_MERGED``) and the index of its tree; mark this tree as merged."""
    least = _MERGED
    for k in range(keys.size):
        least = min(least, keys[k])
    number = 511 - (least & 511)
    if least < _MERGED:
        keys[number] = _MERGED
    return least, number


@device_function
def _find_depths(weights, depth):
    """Compute the depth of each leaf of the Huffman tree; among equal weights, the highest index is merged first."""
    # ``following`` chains the leaves of each tree: the index of a leaf's next leaf, or -1 for the last.
    following = np.full(weights.size, -1, np.int64)
    keys = np.empty(weights.size, np.int64)
    for k in range(weights.size):
        keys[k] = weights[k] << 9 | 511 - k
    while True:
        weight, first = _take_least(keys)
        other, second = _take_least(keys)
        if other == _MERGED:
            return
        keys[first] = weight + (other & ~511)
        last = first
        depth[last] += 1
        while following[last] >= 0:
            last = following[last]
            depth[last] += 1
        following[last] = second
        while following[last] >= 0:
            last = following[last]
            depth[last] += 1


@device_function
def _limit_lengths(per_length):
    """Shorten codes of more than 16 bits (figure K.3), and remove the code of all ones."""
    for bits in range(len(per_length) - 1, MAX_CODE_BITS, -1):
        while per_length[bits] > 0:
            shorter = bits - 2
            while per_length[shorter] == 0:
                shorter -= 1
            per_length[bits] -= 2
            per_length[bits - 1] += 1
            per_length[shorter + 1] += 2
            per_length[shorter] -= 1
    longest = MAX_CODE_BITS
    while per_length[longest] == 0:
        longest -= 1
    per_length[longest] -= 1
