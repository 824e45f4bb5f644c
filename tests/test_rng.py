"""draw: pure random draws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from picstore import rng

words = st.integers(0, (1 << 64) - 1)

# The 99.9 % quantiles of chi-square; the seeds are fixed, so these tests always give the same answer.
CHI2_255, CHI2_23 = 330.52, 49.73


def chi_square(counts: np.ndarray) -> float:
    expected = counts.sum() / len(counts)
    return float(((counts - expected) ** 2 / expected).sum())


def splitmix64(seed: int, count: int) -> list[int]:
    """The published generator, with its state, in plain integers."""
    outputs = []
    for _ in range(count):
        seed = (seed + 0x9E3779B97F4A7C15) % 2**64
        z = (seed ^ (seed >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        outputs.append(z ^ (z >> 31))
    return outputs


def test_the_bits_of_key_0_are_the_published_outputs_of_splitmix64() -> None:
    known = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert rng.bits(0, np.arange(3)).tolist() == known


@given(words)
def test_the_bits_of_a_key_are_those_of_splitmix64_seeded_with_it(k: int) -> None:
    assert rng.bits(k, np.arange(5)).tolist() == splitmix64(k, 5)


@given(words, st.integers(0, 1 << 40))
def test_a_counter_alone_gives_what_it_gives_among_others(k: int, c: int) -> None:
    assert int(rng.bits(k, c)) == int(rng.bits(k, np.arange(c, c + 3))[0])


@given(st.lists(words, min_size=1, max_size=9), words)
def test_arrays_of_keys_agree_with_scalar_keys(several: list[int], c: int) -> None:
    c >>= 8
    together = rng.bits(np.array(several, dtype=np.uint64), c)
    assert together.tolist() == [int(rng.bits(k, c)) for k in several]
    assert rng.unit(np.array(several, dtype=np.uint64), c).tolist() == [float(rng.unit(k, c)) for k in several]


@given(words, st.lists(words, min_size=1, max_size=9))
def test_folding_an_array_of_words_agrees_with_folding_each(first: int, last: list[int]) -> None:
    folded = rng.keys(rng.key(first), np.array(last, dtype=np.uint64))
    assert folded.tolist() == [rng.key(first, word) for word in last]


def test_a_key_depends_on_every_word_and_on_their_order() -> None:
    variants = [(), (0,), (0, 0), (0, 1), (1, 0), (1, 1), (0, 0, 0), (1, 2, 3), (3, 2, 1)]
    assert len({rng.key(*variant) for variant in variants}) == len(variants)


@given(words)
def test_words_of_a_key_are_taken_modulo_two_to_the_64(word: int) -> None:
    assert rng.key(word) == rng.key(word - (1 << 64)) == rng.key(word + (1 << 64))


@given(words, st.integers(0, 400))
def test_a_permutation_holds_every_number_once(k: int, n: int) -> None:
    permutation = rng.permutation(k, n)
    assert permutation.dtype == np.int64
    assert sorted(permutation.tolist()) == list(range(n))


@given(words, st.lists(st.integers(0, 40), min_size=1, max_size=8))
def test_permutations_that_are_drawn_together_are_those_of_each_key(k: int, counts: list[int]) -> None:
    keys = rng.keys(rng.key(k), np.arange(len(counts), dtype=np.uint64))
    drawn = rng.permutations(keys, np.array(counts))
    assert [each.tolist() for each in drawn] == [
        rng.permutation(rng.key(k, i), n).tolist() for i, n in enumerate(counts)
    ]


def test_all_permutations_of_four_are_equally_frequent() -> None:
    drawn = [tuple(rng.permutation(rng.key(rng.SHUFFLE, 7, k), 4)) for k in range(4800)]
    counts = np.unique(np.array(drawn), axis=0, return_counts=True)[1]
    assert len(counts) == 24
    assert chi_square(counts) < CHI2_23


@pytest.mark.parametrize("shift", [0, 8, 28, 48, 56])
def test_every_byte_of_the_bits_is_uniform(shift: int) -> None:
    values = rng.bits(rng.key(rng.PLAN, 1), np.arange(50_000)) >> np.uint64(shift) & np.uint64(255)
    assert chi_square(np.bincount(values.astype(np.int64), minlength=256)) < CHI2_255


def test_the_first_bits_of_consecutive_keys_are_uniform() -> None:
    values = rng.bits(rng.keys(rng.key(rng.AUGMENT, 0), np.arange(50_000, dtype=np.uint64)), 0) >> np.uint64(56)
    assert chi_square(np.bincount(values.astype(np.int64), minlength=256)) < CHI2_255


def test_unit_lies_in_0_to_1_and_has_53_bits() -> None:
    drawn = rng.unit(rng.key(3), np.arange(100_000))
    assert drawn.min() >= 0
    assert drawn.max() < 1
    assert (drawn * 2.0**53 == np.floor(drawn * 2.0**53)).all()
    assert chi_square(np.bincount((drawn * 256).astype(np.int64), minlength=256)) < CHI2_255


@given(words, st.one_of(st.integers(1, 1000), st.integers(1, 1 << 32)))
def test_below_stays_below_its_limit(k: int, limit: int) -> None:
    drawn = rng.below(k, np.arange(200), limit)
    assert drawn.dtype == np.int64
    assert drawn.min() >= 0
    assert drawn.max() < limit


def test_below_reaches_every_number_equally_often() -> None:
    counts = np.bincount(rng.below(rng.key(5), np.arange(60_000), 24), minlength=24)
    assert len(counts) == 24
    assert chi_square(counts) < CHI2_23


@pytest.mark.parametrize("limit", [0, -1, (1 << 32) + 1])
def test_below_refuses_a_limit_outside_1_to_two_to_the_32(limit: int) -> None:
    with pytest.raises(ValueError, match="limit"):
        rng.below(0, [0], limit)


@pytest.mark.parametrize("distinct", [1, 3, 40_000, 1 << 63])
def test_long_arrays_are_sorted_as_by_numpys_stable_sort(distinct: int) -> None:
    """Of random bits, of bits with the same high half, and of many equal ones."""
    values = np.random.default_rng(distinct).integers(0, distinct, 50_000, dtype=np.uint64)
    for each in (values, values << np.uint64(40), values | np.uint64(1 << 63)):
        assert rng.stable_argsort(each).tolist() == np.argsort(each, kind="stable").tolist()
