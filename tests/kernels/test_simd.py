"""Vector operations: one result, with AVX2, with SSE2 and without x86's instructions."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest

from picstore.kernels import simd
from picstore.kernels.simd import VectorMemory, vector_function

FACTORS = 3, -7, 32767, -32768, 1, 0, -5, 900
PLATFORMS = pytest.mark.parametrize(("x86", "avx2"), [(True, True), (True, False), (False, False)])


@pytest.fixture(autouse=True)
def platform(monkeypatch: pytest.MonkeyPatch, x86: bool, avx2: bool) -> None:
    if avx2 > simd._has_avx2() or x86 > simd._X86:
        pytest.skip("this machine lacks the instructions")
    monkeypatch.setattr(simd, "_X86", x86)
    monkeypatch.setattr(simd, "_has_avx2", lambda: avx2)


def call(function: Any, *arrays: np.ndarray) -> None:
    """Compile a ``vector_function`` now and call it with the addresses of three arrays."""

    @numba.njit
    def run(a: int, b: int, out: int) -> None:
        function(a, b, out)

    run(*(np.uint64(array.ctypes.data) for array in arrays))


def integers(dtype: Any, seed: int) -> np.ndarray:
    """256 bits of integers, two of which are the extremes."""
    limits = np.iinfo(dtype)
    numbers = np.random.default_rng(seed).integers(limits.min, limits.max, 32 // limits.dtype.itemsize, dtype)
    numbers[1], numbers[-2] = limits.min, limits.max
    return numbers


@PLATFORMS
def test_products_of_neighbors_are_summed_in_32_bits() -> None:
    @vector_function(3)
    def sums(memory: VectorMemory, a: Any, b: Any, out: Any) -> None:
        memory.store(out, memory.load(a, 16, 16).sums_of_products(memory.load(b, 16, 16)))

    a, b, out = integers(np.int16, 0), integers(np.int16, 1), np.zeros(8, np.int32)
    call(sums, a, b, out)
    np.testing.assert_array_equal(out, (a.astype(np.int64) * b).reshape(8, 2).sum(axis=1))


@PLATFORMS
def test_vectors_times_their_factors_are_summed_for_each_half_of_128_bits() -> None:
    @vector_function(3)
    def sums(memory: VectorMemory, a: Any, b: Any, out: Any) -> None:
        one, other = memory.load(a, 16, 16), memory.load(b, 16, 16)
        for k, half in enumerate(one.interleaved_sums(other, one.filled(*FACTORS))):
            memory.store(memory.offset(out, 32 * k), half)

    a, b, out = integers(np.int16, 0), integers(np.int16, 1), np.zeros((2, 2, 4), np.int32)
    call(sums, a, b, out)
    # Halves of each 128 bits; the first vector's factors, and the second's.
    ones, others = (vector.reshape(2, 2, 4).swapaxes(0, 1).astype(np.int64) for vector in (a, b))
    np.testing.assert_array_equal(out, ones * FACTORS[::2] + others * FACTORS[1::2])


@PLATFORMS
@pytest.mark.parametrize("bits", [16, 32])
def test_packing_clamps_the_128_bits_of_two_vectors_in_turn(bits: int) -> None:
    @vector_function(3)
    def pack(memory: VectorMemory, a: Any, b: Any, out: Any) -> None:
        memory.store(out, memory.load(a, 256 // bits, bits).packed(memory.load(b, 256 // bits, bits)))

    wide, narrow = np.dtype(f"int{bits}"), np.dtype(f"int{bits // 2}")
    a, b, out = integers(wide, 0), integers(wide, 1), np.zeros(512 // bits, narrow)
    b[:4] = -3, 4, 100, -128
    call(pack, a, b, out)
    parts = np.stack([a.reshape(2, -1), b.reshape(2, -1)], axis=1)
    np.testing.assert_array_equal(out, parts.clip(np.iinfo(narrow).min, np.iinfo(narrow).max).ravel())


@pytest.mark.slow
@PLATFORMS
def test_vectors_are_chosen_by_128_bits_that_are_zero() -> None:
    @vector_function(3)
    def choose(memory: VectorMemory, a: Any, b: Any, out: Any) -> None:
        memory.store(out, memory.load(b, 16, 16).chosen(memory.load(a, 16, 16).is_zero(), memory.load(a, 16, 16)))

    b, out = integers(np.int16, 1), np.zeros(16, np.int16)
    for k in range(16):
        a = np.zeros(16, np.int16)
        a[k] = 1 << k % 15
        call(choose, a, b, out)
        half = slice(8, 16) if k < 8 else slice(8)
        a[half] = b[half]
        np.testing.assert_array_equal(out, a)
