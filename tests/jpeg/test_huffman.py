"""Huffman tables: what makes one, room for more symbols, and the best table for given frequencies."""

from __future__ import annotations

import heapq
import io
import itertools
import math
import re

import numpy as np
import pytest
from coefficients import codes_of, read
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from picstore.errors import ImageError
from picstore.jpeg.huffman import HuffmanTable, optimal_table

# T.81, table K.3.
LUMA_DC = HuffmanTable(bytes([0, 1, 5, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0]), bytes(range(12)))
frequencies = st.lists(st.one_of(st.just(0), st.integers(1, 20), st.integers(1, 10**9)), min_size=1, max_size=256)


def length_of(table: HuffmanTable) -> dict[int, int]:
    lengths = [length for length, count in enumerate(table.counts, start=1) for _ in range(count)]
    return dict(zip(table.symbols, lengths, strict=True))


def least_bits(counts: list[int]) -> int:
    """Bits that the best prefix code takes, of any length; one more symbol of frequency 0 has a code too."""
    heap = [0, *(count for count in counts if count)]
    heapq.heapify(heap)
    total = 0
    while len(heap) > 1:
        both = heapq.heappop(heap) + heapq.heappop(heap)
        total += both
        heapq.heappush(heap, both)
    return total


@pytest.mark.parametrize(
    ("counts", "symbols", "message"),
    [
        ([0] * 15, 0, "cut off"),
        ([0] * 17, 0, "cut off"),
        ([0, 2] + [0] * 14, 1, "cut off"),
        ([0] * 8 + [255, 2] + [0] * 6, 257, "cut off"),
        ([3] + [0] * 15, 3, "more codes than fit"),
        ([1, 1, 3] + [0] * 13, 5, "more codes than fit"),
        ([2] + [0] * 15, 2, "more codes than fit"),  # the second code is all ones, which C.2 forbids
        ([1] * 16, 16, None),
        ([0] * 16, 0, None),
    ],
)
def test_lengths_that_make_no_prefix_code_are_refused(counts: list[int], symbols: int, message: str | None) -> None:
    if message is None:
        HuffmanTable(bytes(counts), bytes(k % 256 for k in range(symbols)))
        return
    with pytest.raises(ImageError, match=message):
        HuffmanTable(bytes(counts), bytes(k % 256 for k in range(symbols)))


@given(frequencies, st.sets(st.integers(0, 255), min_size=1))
def test_an_extended_table_keeps_every_code_and_has_the_new_ones(counts: list[int], more: set[int]) -> None:
    table = optimal_table(counts)
    missing = more - set(table.symbols)
    extended = table.extended(missing)
    if extended is None:
        longest = max(k + 1 for k in range(16) if table.counts[k])
        kraft = sum(count << (15 - k) for k, count in enumerate(table.counts))
        assert (1 << 16) - kraft <= len(missing) or longest == 16 or table.counts[15] + len(missing) > 255
        return
    before, after = codes_of(table.counts, table.symbols), codes_of(extended.counts, extended.symbols)
    assert before.items() <= after.items()
    assert set(after) == set(before) | missing
    assert all(set(code) != {"1"} for code in after.values())


def test_a_table_whose_16_bit_codes_are_used_up_has_no_room() -> None:
    full = HuffmanTable(bytes([1] * 16), bytes(range(16)))
    assert full.extended([16]) is None
    more = HuffmanTable(bytes([1] * 15 + [0]), bytes(range(15))).extended([16])
    assert more is not None and more.counts[15] == 1


def test_a_count_beyond_a_byte_is_no_room() -> None:
    many = HuffmanTable(bytes([0] * 15 + [250]), bytes(range(250)))
    assert many.extended(range(250, 256)) is None
    more = many.extended(range(250, 255))
    assert more is not None and more.counts[15] == 255


@given(frequencies)
def test_an_optimal_table_codes_every_symbol_that_comes_and_no_other(counts: list[int]) -> None:
    table = optimal_table(counts)
    codes = codes_of(table.counts, table.symbols)
    assert sorted(codes) == [symbol for symbol, count in enumerate(counts) if count]
    assert all(len(code) <= 16 and set(code) != {"1"} for code in codes.values())
    ordered = sorted(codes.values())
    assert not any(b.startswith(a) for a, b in itertools.pairwise(ordered))


@given(frequencies)
def test_an_optimal_table_takes_the_fewest_bits(counts: list[int]) -> None:
    lengths = length_of(optimal_table(counts))
    bits = sum(counts[symbol] * length for symbol, length in lengths.items())
    least = least_bits(counts)
    assert bits >= least - max(counts)  # all symbols but the one that shares its node with the code of all ones
    total = sum(counts)
    if total and max(lengths.values()) < 16:
        assert bits == least
        entropy = sum(c * math.log2(total / c) for c in counts if c)
        assert bits <= entropy + total + len(lengths)


def test_codes_beyond_16_bits_are_moved_up() -> None:
    fibonacci = [1, 1]
    while len(fibonacci) < 40:
        fibonacci.append(fibonacci[-1] + fibonacci[-2])
    lengths = length_of(optimal_table(fibonacci))
    assert max(lengths.values()) == 16
    assert len(lengths) == 40
    bits = sum(fibonacci[symbol] * length for symbol, length in lengths.items())
    assert least_bits(fibonacci) < bits < 1.01 * least_bits(fibonacci)


@pytest.mark.parametrize("quality", [20, 75, 95])
def test_an_optimal_table_is_as_good_as_that_of_libjpeg(quality: int) -> None:
    noise = np.random.default_rng(quality).integers(0, 256, (64, 64), np.uint8)
    picture = Image.fromarray(noise).resize((200, 160), Image.Resampling.BICUBIC)
    out = io.BytesIO()
    picture.save(out, "JPEG", quality=quality, optimize=True)
    stream = out.getvalue()
    tables = {}
    for match in re.finditer(rb"\xff\xc4", stream):
        body = stream[match.end() + 2 :]
        tables[body[0]] = (body[1:17], body[17 : 17 + sum(body[1:17])])
    found, before, counts = read(stream), 0, [0] * 12
    for block in found.blocks:
        counts[abs(block[0] - before).bit_length()] += 1
        before = block[0]
    theirs = length_of(HuffmanTable(*tables[0]))
    ours = length_of(optimal_table(counts))
    assert sum(counts[s] * bits for s, bits in ours.items()) <= sum(counts[s] * bits for s, bits in theirs.items())
