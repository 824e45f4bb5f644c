"""Huffman tables of a JPEG (ITU-T T.81, annexes C and K)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from picstore.arrays import U32
from picstore.errors import ImageError

LONGEST = 16  # bits of a code


@dataclass(frozen=True, slots=True)
class HuffmanTable:
    """A table as a DHT segment holds it (T.81, B.2.4.2).

    Attributes:
        counts: 16 bytes, how many codes have 1, 2, … 16 bits.
        symbols: in the order of their codes.

    Raises:
        ImageError: the lengths make no prefix code, or symbols are missing.
    """

    counts: bytes
    symbols: bytes

    def __post_init__(self) -> None:
        if len(self.counts) != LONGEST or sum(self.counts) != len(self.symbols) or len(self.symbols) > 256:
            raise ImageError("a Huffman table is cut off")
        room = 1
        for count in self.counts:
            room = 2 * room - count
            if room < 1:  # the code of all ones stays free (C.2), and libjpeg insists
                raise ImageError("a Huffman table has more codes than fit")

    def extended(self, symbols: Iterable[int]) -> HuffmanTable | None:
        """This table with codes for more symbols; None if there is no room.

        The new codes are as long as the longest there is, or longer, and come after it, so all others stay, and with
        them every bit that was coded. A code of all ones is left over, as the standard wants (C.2).
        """
        added = bytes(sorted(symbols))
        if len(self.symbols) + len(added) > 256:
            return None
        longest = max((k + 1 for k in range(LONGEST) if self.counts[k]), default=1)
        room = 1  # codes of the length looked at that are free
        for length, count in enumerate(self.counts, start=1):
            room = 2 * room - count
            if length >= longest and room > len(added) and count + len(added) <= 255:
                counts = bytearray(self.counts)
                counts[length - 1] += len(added)
                return HuffmanTable(bytes(counts), self.symbols + added)
        return None

    def codes(self) -> tuple[U32, U32]:
        """Code of every symbol and its length in bits, uint32 (256,) each; length 0 where there is none (C.1, C.2)."""
        codes, lengths = np.zeros(256, np.uint32), np.zeros(256, np.uint32)
        code = k = 0
        for length, count in enumerate(self.counts, start=1):
            for symbol in self.symbols[k : k + count]:
                codes[symbol], lengths[symbol] = code, length
                code += 1
            k += count
            code <<= 1
        return codes, lengths


def optimal_table(frequencies: Sequence[int]) -> HuffmanTable:
    """The table that codes symbols of these frequencies in the fewest bits, no code longer than 16 or all ones (K.2).

    Args:
        frequencies: of symbol 0, 1, …; those of 0 get no code.
    """
    # A symbol that never comes keeps the code of all ones to itself; it is the rarest, so its code is the longest.
    weights: dict[tuple[int, ...], int] = {(symbol,): count for symbol, count in enumerate(frequencies) if count}
    weights[(256,)] = 0
    depth = dict.fromkeys((s for group in weights for s in group), 0)
    while len(weights) > 1:
        first, second = sorted(weights, key=lambda group: (weights[group], -max(group)))[:2]
        for symbol in first + second:
            depth[symbol] += 1
        weights[first + second] = weights.pop(first) + weights.pop(second)
    per_length = [0] * (max(max(depth.values()), LONGEST) + 1)
    for bits in depth.values():
        per_length[bits] += 1
    for bits in range(len(per_length) - 1, LONGEST, -1):
        while per_length[bits] > 0:  # move pairs of too long codes up (figure K.3)
            shorter = bits - 2
            while per_length[shorter] == 0:
                shorter -= 1
            per_length[bits] -= 2
            per_length[bits - 1] += 1
            per_length[shorter + 1] += 2
            per_length[shorter] -= 1
    longest = max(bits for bits in range(LONGEST + 1) if per_length[bits])
    per_length[longest] -= 1  # the code of all ones
    ordered = sorted((symbol for symbol in depth if symbol != 256), key=lambda symbol: (depth[symbol], symbol))
    return HuffmanTable(bytes(per_length[1 : LONGEST + 1]), bytes(ordered))
