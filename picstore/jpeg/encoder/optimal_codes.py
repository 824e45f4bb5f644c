"""Optimal Huffman codes by a kernel, equal to libjpeg-turbo's (ITU-T T.81, K.2)."""

from __future__ import annotations

import numpy as np

from picstore.jpeg.huffman import MAX_CODE_BITS
from picstore.kernels.jit import device_function

_MERGED = 1 << 62  # key of a tree that is part of another; keys are weight << 9 | 511 - number


@device_function
def optimal_codes(frequencies, counts, symbols, codes):
    """Compute the code of the fewest bits, with no code longer than 16 bits or of all ones.

    Args:
        frequencies: uint32 (256,), of each symbol.
        counts: uint8 (16,), takes the number of codes of 1, 2, … 16 bits.
        symbols: uint8 (256,), takes the symbols in the order of their codes.
        codes: uint32 (256,), takes for each symbol its code << 5 | bits.
    """
    number, weights = np.empty(257, np.int64), np.empty(257, np.int64)
    found = 0
    for symbol in range(256):
        if frequencies[symbol]:
            number[found], weights[found] = symbol, frequencies[symbol]
            found += 1
    number[found], weights[found] = 256, 1  # takes the code of all ones
    depth, per_length = np.zeros(257, np.int64), np.zeros(257, np.int64)
    _find_depths(weights[: found + 1], depth)
    for k in range(found + 1):
        per_length[depth[k]] += 1
    _limit_lengths(per_length)
    for length in range(MAX_CODE_BITS):
        counts[length] = per_length[length + 1]
    count = 0
    for length in range(1, per_length.size):  # limiting the lengths keeps the order
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
    """Return the least key and its number, and put the largest in its place."""
    least = _MERGED
    for k in range(keys.size):
        least = min(least, keys[k])
    number = 511 - (least & 511)
    if least < _MERGED:
        keys[number] = _MERGED
    return least, number


@device_function
def _find_depths(weights, depth):
    """Compute the depth of each leaf of Huffman's tree; of equal weights the later ones are merged first."""
    following = np.full(weights.size, -1, np.int64)  # leaves of a tree form a chain
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
    """Move codes of more than 16 bits up (figure K.3), and take away the code of all ones."""
    for bits in range(per_length.size - 1, MAX_CODE_BITS, -1):
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
