"""Optimal Huffman codes: those of the standard's own procedure, also where codes must be shortened to 16 bits."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from grids import examples
from hypothesis import given
from hypothesis import strategies as st

from picstore.jpeg import huffman as module

FIBONACCI = [1, 1]
while len(FIBONACCI) < 40:
    FIBONACCI.append(FIBONACCI[-1] + FIBONACCI[-2])


@pytest.fixture(autouse=True, scope="module")
def _in_python() -> Iterator[None]:
    """Run the functions as Python, whose integers are the kernels' here: nothing is compiled for the tests."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_take_least", "_find_depths", "_limit_lengths"):
            patch.setattr(module, name, getattr(module, name).py_func)
        yield


def by_the_standard(frequencies: np.ndarray) -> tuple[list[int], list[int]]:
    """Numbers of codes by length and symbols in their order, by ITU-T T.81, figures K.1 to K.4, as libjpeg has them."""
    weights = {symbol: int(weight) for symbol, weight in enumerate(frequencies) if weight} | {256: 1}
    trees = {symbol: [symbol] for symbol in weights}
    depth = dict.fromkeys(weights, 0)
    while len(weights) > 1:  # of equal weights the largest number goes first
        one, other = sorted(weights, key=lambda symbol: (weights[symbol], -symbol))[:2]
        weights[one] += weights.pop(other)
        trees[one] += trees.pop(other)
        for symbol in trees[one]:
            depth[symbol] += 1
    bits = [0] * 300
    for each in depth.values():
        bits[each] += 1
    for length in range(299, 16, -1):
        while bits[length]:
            shorter = max(each for each in range(1, length - 1) if bits[each])
            bits[length] -= 2
            bits[length - 1] += 1
            bits[shorter + 1] += 2
            bits[shorter] -= 1
    bits[max(each for each in range(17) if bits[each])] -= 1
    return bits[1:17], sorted((symbol for symbol in depth if symbol < 256), key=lambda symbol: (depth[symbol], symbol))


def compare(frequencies: np.ndarray) -> None:
    counts, symbols, codes = np.zeros(16, np.uint8), np.zeros(256, np.uint8), np.zeros(256, np.uint32)
    module.optimal_codes.py_func(frequencies.astype(np.uint32), counts, symbols, codes)
    bits, order = by_the_standard(frequencies)
    assert counts.tolist() == bits
    assert symbols[: len(order)].tolist() == order
    code, rest = 0, list(order)
    for length, count in enumerate(bits, 1):
        for symbol in rest[:count]:
            assert int(codes[symbol]) == code << 5 | length
            code += 1
        rest = rest[count:]
        code <<= 1
    assert not rest


@examples(60)
@given(
    weights=st.dictionaries(st.integers(0, 255), st.sampled_from((1, 1, 2, 3, 100, 5000, *FIBONACCI)), max_size=30),
)
def test_codes_are_those_of_the_standard(weights: dict[int, int]) -> None:
    frequencies = np.zeros(256, np.int64)
    for symbol, weight in weights.items():
        frequencies[symbol] = weight
    compare(frequencies)


def test_codes_of_more_than_16_bits_are_shortened_as_the_standard_says() -> None:
    frequencies = np.zeros(256, np.int64)
    frequencies[10:50] = FIBONACCI  # a tree of 40 levels
    compare(frequencies)
    frequencies[100:130] = FIBONACCI[30]  # most codes have about as many bits
    compare(frequencies)


def test_all_symbols_and_one_symbol_have_codes() -> None:
    compare(np.arange(256, 0, -1))
    compare(np.eye(1, 256, 7, dtype=np.int64)[0])
