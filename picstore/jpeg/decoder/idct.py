"""Inverse DCT of an 8 × 8 block, bit for bit that of libjpeg's "islow", on those of two blocks at a time.

Constants (``dct_constants``) have 13 fractional bits; of the two passes, columns come first and keep 2 fractional bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import add, or_, sub
from typing import Any

from picstore.jpeg.dct_constants import FRACTION, ONES, PASS_FRACTION, TWOS, A, B, C, D
from picstore.kernels.simd import Vector, VectorMemory, transposed, vector_function


@dataclass(frozen=True)
class _Wide:
    """Numbers of 32 bits in two vectors: those of the lower and of the upper half of each 128 bits of 16-bit lanes."""

    halves: list[Vector]

    def __add__(self, other: _Wide) -> _Wide:
        return _Wide(list(map(add, self.halves, other.halves)))

    def __sub__(self, other: _Wide) -> _Wide:
        return _Wide(list(map(sub, self.halves, other.halves)))

    def packed(self, shift: int) -> Vector:
        """Shift to the right and saturate to 16 bits."""
        low, high = self.halves
        return (low >> shift).packed(high >> shift)


def _transform(x: list[Vector], shift: int) -> list[Vector]:
    """Compute sixteen 1-D transforms in parallel, on 16-bit lanes, with saturation."""

    def summed(a: Vector, b: Vector, *factors: tuple[int, int]) -> list[_Wide]:
        halves = a.interleaved(b)
        return [_Wide([half.sums_of_products(half.filled(*pair)) for half in halves]) for pair in factors]

    # Half of the result's unit, to round, is added as a multiple of 16, since factors have 16 bits.
    sixteen, unit = x[0].filled(16), (1 << FRACTION, (1 << (shift - 1)) // 16)
    (sum04,), (difference04,) = summed(x[0] + x[4], sixteen, unit), summed(x[0] - x[4], sixteen, unit)
    rotated2, rotated6 = summed(x[2], x[6], (A, A + C), (A + B, A))
    even = [sum04 + rotated6, difference04 + rotated2, difference04 - rotated2, sum04 - rotated6]
    w3, w4 = summed(x[7] + x[3], x[5] + x[1], (D + TWOS[2], D), (D, D + TWOS[3]))
    odd0, odd3 = summed(x[7], x[1], (TWOS[0], ONES[3] + TWOS[0]), (ONES[0] + TWOS[0], TWOS[0]))
    odd1, odd2 = summed(x[5], x[3], (TWOS[1], ONES[2] + TWOS[1]), (ONES[1] + TWOS[1], TWOS[1]))
    odd = [odd0 + w4, odd1 + w3, odd2 + w4, odd3 + w3]
    sums = [even[k] + odd[k] for k in range(4)] + [even[k] - odd[k] for k in (3, 2, 1, 0)]
    return [each.packed(shift) for each in sums]


@vector_function(5)
def inverse_dct(memory: VectorMemory, block: Any, quantisation: Any, out: Any, step: Any, stride: Any) -> None:
    """Compute the samples of two blocks, and zero their coefficients; kernels call this with uint64 arguments.

    Args:
        block: address of coefficients, int16 (8, 16): the rows of both blocks.
        quantisation: address of their quantisation table, int16 (8, 16), the rows twice.
        out: address of the first sample of the first block, uint8.
        step: bytes to that of the second block.
        stride: bytes between rows of samples.
    """
    rows = [memory.load(memory.offset(block, 32 * k), 16, 16) for k in range(8)]
    for k in range(8):
        memory.store(memory.offset(block, 32 * k), memory.zeros(16, 16))
    flat = reduce(or_, rows[1:]).is_zero()
    rows = [row * memory.load(memory.offset(quantisation, 32 * k), 16, 16) for k, row in enumerate(rows)]
    # libjpeg's SIMD shifts a block of one row of coefficients without saturation, which shows beyond 13 bits.
    rows[0] = (rows[0] << PASS_FRACTION >> PASS_FRACTION).chosen(flat, rows[0])
    columns = transposed(_transform(rows, FRACTION - PASS_FRACTION))
    columns = _transform(columns, FRACTION + PASS_FRACTION + 3)
    samples = transposed([columns[k].packed(columns[k + 1]) ^ -128 for k in range(0, 8, 2)])
    for two in samples:
        for k in range(2):
            memory.store(out, two.shuffled(two, range(8 * k, 8 * k + 8)))
            memory.store(memory.offset(out, step), two.shuffled(two, range(16 + 8 * k, 24 + 8 * k)))
            out = memory.offset(out, stride)
