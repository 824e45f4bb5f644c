"""Inverse DCT of two blocks at a time to 8 × 8, 4 × 4, 2 × 2 or 1 samples, bit for bit as libjpeg-turbo.

The transform to 8 × 8 samples is libjpeg's "islow" (jidctint.c). Transforms to fewer samples (jidctred.c) decode an
image at a reduced scale, from the same frequencies as in libjpeg. The algorithm, in integers, is from Loeffler,
Ligtenberg and Moschytz, "Practical fast 1-D DCT algorithms with 11 multiplications" (ICASSP 1989). The first pass
transforms columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from operator import add, mul, or_, sub
from typing import Any

import numpy as np

from picstore.kernels.jit import device_function, load_u16, store_u8
from picstore.kernels.simd import Vector, VectorMemory, transposed, vector_function

_u64, _i16 = np.uint64, np.int16
# Two numbers of fractional bits: of the constants below; and of the results of the first of two 1-D transforms.
FRACTION, PASS_FRACTION = 13, 2


def _fixed(value: float) -> int:
    return round(value * (1 << FRACTION))


# Factors of the inverse DCT to 8 samples: sqrt(2) times cosines of multiples of pi/16, and sums of such numbers; each
# sum is rounded from the exact sum, as in libjpeg.
A, B, C = _fixed(0.541196100), _fixed(0.765366865), -_fixed(1.847759065)
D = _fixed(1.175875602)
ONES = _fixed(0.298631336), _fixed(2.053119869), _fixed(3.072711026), _fixed(1.501321110)
TWOS = -_fixed(0.899976223), -_fixed(2.562915447), -_fixed(1.961570560), -_fixed(0.390180644)

# Inverse DCT to 4 samples: factors of coefficients 7, 5, 3 and 1, for the inner and for the outer two samples.
FOUR = (
    (-_fixed(0.211164243), _fixed(1.451774981), -_fixed(2.172734803), _fixed(1.061594337)),
    (-_fixed(0.509795579), -_fixed(0.601344887), _fixed(0.899976223), _fixed(2.562915447)),
)
# Inverse DCT to 4 samples: factors of coefficients 2 and 6.
FOUR_EVEN = _fixed(1.847759065), -_fixed(0.765366865)
# Inverse DCT to 2 samples: factors of coefficients 1, 3, 5 and 7.
TWO = _fixed(3.624509785), -_fixed(1.272758580), _fixed(0.850430095), -_fixed(0.720959822)


@dataclass(frozen=True)
class _Wide:
    """Intermediate int32 results for an int16 vector: one vector for elements 0 to 3 of every 8, one for 4 to 7."""

    halves: list[Vector]

    def __add__(self, other: _Wide) -> _Wide:
        return _Wide(list(map(add, self.halves, other.halves)))

    def __sub__(self, other: _Wide) -> _Wide:
        return _Wide(list(map(sub, self.halves, other.halves)))

    def packed(self, shift: int) -> Vector:
        """Return the integers, shifted right by ``shift`` bits and saturated to 16 bits, as one vector."""
        low, high = self.halves
        return (low >> shift).packed(high >> shift)


def _summed(a: Vector, b: Vector, *factors: tuple[int, int]) -> list[_Wide]:
    """Return, for each pair of ``factors``, the sum of ``a`` times the first and ``b`` times the second factor."""
    return [_Wide(a.interleaved_sums(b, a.filled(*pair))) for pair in factors]


def _transform(x: list[Vector], shift: int) -> list[Vector]:
    """Compute sixteen 1-D inverse DCTs of 8 coefficients in parallel, in 16-bit vector elements, with saturation."""
    # To round, add 1 << (shift - 1), which does not fit int16, as the product of 16 and a smaller number.
    sixteen, unit = x[0].filled(16), (1 << FRACTION, (1 << (shift - 1)) // 16)
    (sum04,), (difference04,) = _summed(x[0] + x[4], sixteen, unit), _summed(x[0] - x[4], sixteen, unit)
    rotated2, rotated6 = _summed(x[2], x[6], (A, A + C), (A + B, A))
    even = [sum04 + rotated6, difference04 + rotated2, difference04 - rotated2, sum04 - rotated6]
    w3, w4 = _summed(x[7] + x[3], x[5] + x[1], (D + TWOS[2], D), (D, D + TWOS[3]))
    odd0, odd3 = _summed(x[7], x[1], (TWOS[0], ONES[3] + TWOS[0]), (ONES[0] + TWOS[0], TWOS[0]))
    odd1, odd2 = _summed(x[5], x[3], (TWOS[1], ONES[2] + TWOS[1]), (ONES[1] + TWOS[1], TWOS[1]))
    odd = [odd0 + w4, odd1 + w3, odd2 + w4, odd3 + w3]
    sums = [even[k] + odd[k] for k in range(4)] + [even[k] - odd[k] for k in (3, 2, 1, 0)]
    return [each.packed(shift) for each in sums]


def _take_rows(memory: VectorMemory, block: Any, quantization: Any, used: Iterable[int]) -> list[Vector]:
    """Load and dequantize the rows ``used`` (indices) of a pair of blocks; set all 8 rows in memory to zero."""
    rows = [memory.load(memory.offset(block, 32 * k), 16, 16) for k in used]
    for k in range(8):
        memory.store(memory.offset(block, 32 * k), memory.zeros(16, 16))
    flat = reduce(or_, rows[1:]).is_zero()
    factors = [memory.load(memory.offset(quantization, 32 * k), 16, 16) for k in used]
    rows = list(map(mul, rows, factors))
    # If only row 0 has coefficients, libjpeg's SIMD code shifts them left without saturation, so that coefficients of
    # more than 14 bits wrap around; do the same.
    rows[0] = (rows[0] << PASS_FRACTION >> PASS_FRACTION).chosen(flat, rows[0])
    return rows


@vector_function(5)
def inverse_dct(memory: VectorMemory, block: Any, quantization: Any, out: Any, step: Any, stride: Any) -> None:
    """Compute the samples of two blocks, and set the blocks' coefficients to zero; all arguments are uint64.

    Args:
        block: address of coefficients, int16 (8, 16): each row holds a row of the first block, then of the second.
        quantization: address of the quantization table, int16 (8, 16), each row twice.
        out: address of the first sample of the first block, uint8.
        step: bytes from ``out`` to the first sample of the second block.
        stride: bytes between rows of samples.
    """
    rows = _take_rows(memory, block, quantization, range(8))
    columns = transposed(_transform(rows, FRACTION - PASS_FRACTION))
    columns = _transform(columns, FRACTION + PASS_FRACTION + 3)
    samples = transposed([columns[k].packed(columns[k + 1]) ^ -128 for k in range(0, 8, 2)])
    for two in samples:
        for k in range(2):
            memory.store(out, two.shuffled(two, range(8 * k, 8 * k + 8)))
            memory.store(memory.offset(out, step), two.shuffled(two, range(16 + 8 * k, 24 + 8 * k)))
            out = memory.offset(out, stride)


def _four_samples(products: Callable[[str, tuple[int, int]], _Wide], shift: int) -> list[_Wide]:
    """Compute 1-D inverse DCTs to 4 samples.

    ``products`` returns the sum of two products, coefficient times factor; ``"26"`` stands for coefficients 2 and 6.
    """
    # ``"0"`` stands for coefficient 0 and the constant 16; 16 times its factor is 1/2 after the shift, for rounding.
    first = products("0", (1 << (FRACTION + 1), (1 << (shift - 1)) // 16))
    even = products("26", FOUR_EVEN)
    inner, outer = (products("75", factors[:2]) + products("31", factors[2:]) for factors in FOUR)
    above, below = first + even, first - even
    return [above + outer, below + inner, below - inner, above - outer]


@vector_function(5)
def _inverse_dct_4(memory: VectorMemory, block: Any, quantization: Any, out: Any, step: Any, stride: Any) -> None:
    """Compute the 4 × 4 samples of each of two blocks reduced by 2; arguments are those of ``inverse_dct``."""
    # libjpeg does not use row 4 of the coefficients for 4 samples.
    used = 0, 1, 2, 3, 5, 6, 7
    row = dict(zip(used, _take_rows(memory, block, quantization, used), strict=True))
    shift = FRACTION - PASS_FRACTION + 1
    pairs = {"0": (row[0], row[0].filled(16)), "26": (row[2], row[6]), "75": (row[7], row[5]), "31": (row[3], row[1])}
    rows = [each.packed(shift) for each in _four_samples(lambda name, f: _summed(*pairs[name], f)[0], shift)]
    # Each 128 bits hold two columns of 4 values: 0 and 1, 2 and 3, 4 and 5, 6 and 7.
    upper, lower = rows[0].interleaved(rows[1]), rows[2].interleaved(rows[3])
    columns = [two.cast(16) for a, b in zip(upper, lower, strict=True) for two in a.cast(32).interleaved(b.cast(32))]
    c01, c23, c45, c67 = columns
    halves = {
        "0": c01.interleaved(c01.filled(16))[0],
        "26": c23.interleaved(c67)[0],
        "75": c67.interleaved(c45)[1],
        "31": c23.interleaved(c01)[1],
    }
    shift = FRACTION + PASS_FRACTION + 4
    sums = _four_samples(lambda name, f: _Wide([halves[name].sums_of_products(halves[name].filled(*f))]), shift)
    words = [each.halves[0] >> shift for each in sums]
    samples = words[0].packed(words[1]).packed(words[2].packed(words[3])) ^ -128
    rows_of = [16 * half + 4 * k + r for half in range(2) for r in range(4) for k in range(4)]
    fours = samples.shuffled(samples, rows_of).cast(32)
    for k in range(4):
        memory.store(out, fours.shuffled(fours, [k]))
        memory.store(memory.offset(out, step), fours.shuffled(fours, [4 + k]))
        out = memory.offset(out, stride)


@vector_function(5)
def _inverse_dct_2(memory: VectorMemory, block: Any, quantization: Any, out: Any, step: Any, stride: Any) -> None:
    """Compute the 2 × 2 samples of each of two blocks reduced by 4; arguments are those of ``inverse_dct``."""
    # libjpeg uses only row 0 and the odd rows of the coefficients for 2 samples.
    used = 0, 1, 3, 5, 7
    rows = [memory.load(memory.offset(block, 32 * k), 16, 16) for k in used]
    for k in range(8):
        memory.store(memory.offset(block, 32 * k), memory.zeros(16, 16))
    rows = [row * memory.load(memory.offset(quantization, 32 * k), 16, 16) for k, row in zip(used, rows, strict=True)]
    first = _Wide([half.cast(32) >> 14 - FRACTION for half in rows[0].filled(0).interleaved(rows[0])])
    odd = _summed(rows[1], rows[2], TWO[:2])[0] + _summed(rows[3], rows[4], TWO[2:])[0]
    shift = FRACTION - PASS_FRACTION + 2
    wide = [[half + (1 << (shift - 1)) >> shift for half in each.halves] for each in (first + odd, first - odd)]
    # After the first pass, each block has an upper and a lower row of 8 values. ``odds`` has 128 bits for each block:
    # values 1, 3, 5 and 7 of its upper row, then of its lower row. ``firsts`` has value 0 of each row, twice.
    upper, lower = (low.packed(high) for low, high in wide)
    odds = upper.shuffled(
        lower, [8 * half + 16 * row + k for half in range(2) for row in range(2) for k in (1, 3, 5, 7)]
    )
    firsts = wide[0][0].shuffled(
        wide[1][0], [4 * half + 8 * row for half in range(2) for row in range(2) for _ in "01"]
    )
    parts = odds.sums_of_products(odds.filled(*TWO))
    total = (parts + parts.shuffled(parts, [k ^ 1 for k in range(8)])) * parts.filled(1, -1)
    shift = FRACTION + PASS_FRACTION + 5
    words = (firsts << FRACTION + 2) + total + (1 << (shift - 1)) >> shift
    halves = words.packed(words)
    samples = (halves.packed(halves) ^ -128).cast(16)
    for k in range(2):
        memory.store(out, samples.shuffled(samples, [k]))
        memory.store(memory.offset(out, step), samples.shuffled(samples, [8 + k]))
        out = memory.offset(out, stride)


@device_function
def _store_mean(block, quantization, out):
    """Store the mean of a block as its only sample; as in libjpeg, it wraps around modulo 1024 before it is clamped."""
    level = (np.int64(_i16(load_u16(block))) * np.int64(_i16(load_u16(quantization))) + 4) >> 3
    level = ((level + 512) & 1023) - 512
    store_u8(out, np.uint8(min(max(level + 128, 0), 255)))


@device_function
def inverse_dct_reduced(side, block, quantization, out, step, stride):
    """Compute ``side`` × ``side`` samples for each of two blocks, where ``side`` is 4, 2 or 1.

    The other arguments are those of ``inverse_dct``. If ``side`` is 1, a block holds only its DC coefficient, which is
    not set to zero.
    """
    if side == 4:
        _inverse_dct_4(block, quantization, out, step, stride)
    elif side == 2:
        _inverse_dct_2(block, quantization, out, step, stride)
    else:
        _store_mean(block, quantization, out)
        _store_mean(block + _u64(16), quantization, out + step)
