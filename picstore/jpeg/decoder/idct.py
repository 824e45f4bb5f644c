"""Inverse DCT of an 8 × 8 block, bit for bit that of libjpeg's "islow", on eight columns or rows at a time.

Loeffler, Ligtenberg and Moschytz, "Practical fast 1-D DCT algorithms with 11 multiplications" (ICASSP 1989), in
integers: constants have 13 fractional bits; of the two passes, columns come first and keep 2 fractional bits.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Any

from picstore.kernels.simd import Vector, VectorMemory, vector_function

_FRACTION, _PASS_FRACTION = 13, 2  # fractional bits: of constants, and of the first pass


def _fixed(value: float) -> int:
    return round(value * (1 << _FRACTION))


# sqrt(2) times cosines of multiples of pi/16 and their sums, each rounded separately.
_A, _B, _C = _fixed(0.541196100), _fixed(0.765366865), -_fixed(1.847759065)
_D = _fixed(1.175875602)
_ONES = _fixed(0.298631336), _fixed(2.053119869), _fixed(3.072711026), _fixed(1.501321110)
_TWOS = -_fixed(0.899976223), -_fixed(2.562915447), -_fixed(1.961570560), -_fixed(0.390180644)


def _transform(x: list[Vector], shift: int) -> list[Vector]:
    """Compute eight 1-D transforms in parallel, on 16-bit lanes, with saturation."""

    def wide(vector: Vector) -> Vector:
        return vector.widened(32)

    half = 1 << (shift - 1)
    sum04, difference04 = (wide(x[0] + x[4]) << _FRACTION) + half, (wide(x[0] - x[4]) << _FRACTION) + half
    x2, x6 = wide(x[2]), wide(x[6])
    rotated2, rotated6 = x2 * _A + x6 * (_A + _C), x2 * (_A + _B) + x6 * _A
    even = [sum04 + rotated6, difference04 + rotated2, difference04 - rotated2, sum04 - rotated6]
    z3, z4 = wide(x[7] + x[3]), wide(x[5] + x[1])
    w3, w4 = z3 * (_D + _TWOS[2]) + z4 * _D, z3 * _D + z4 * (_D + _TWOS[3])
    x1, x3, x5, x7 = (wide(x[k]) for k in (1, 3, 5, 7))
    odd = [
        x7 * _TWOS[0] + x1 * (_ONES[3] + _TWOS[0]) + w4,
        x5 * _TWOS[1] + x3 * (_ONES[2] + _TWOS[1]) + w3,
        x5 * (_ONES[1] + _TWOS[1]) + x3 * _TWOS[1] + w4,
        x7 * (_ONES[0] + _TWOS[0]) + x1 * _TWOS[0] + w3,
    ]
    sums = [even[k] + odd[k] for k in range(4)] + [even[k] - odd[k] for k in (3, 2, 1, 0)]
    return [(s >> shift).clamped(-(1 << 15), (1 << 15) - 1).narrowed(16) for s in sums]


def _transpose(x: list[Vector]) -> list[Vector]:
    """Transpose eight vectors of eight."""
    low, high = (0, 8, 1, 9, 2, 10, 3, 11), (4, 12, 5, 13, 6, 14, 7, 15)
    for _ in range(3):  # three perfect shuffles
        x = [x[k // 2].shuffled(x[k // 2 + 4], high if k % 2 else low) for k in range(8)]
    return x


@vector_function(4)
def inverse_dct(memory: VectorMemory, block: Any, quantisation: Any, out: Any, stride: Any) -> None:
    """Compute the samples of a block, and zero its coefficients; kernels call this with uint64 arguments.

    Args:
        block: address of 64 coefficients, int16, row by row.
        quantisation: address of the quantisation table, int16, row by row.
        out: address of the first sample, uint8.
        stride: bytes between rows of samples.
    """
    rows = [memory.load(memory.offset(block, 16 * k), 8, 16) for k in range(8)]
    for k in range(8):
        memory.store(memory.offset(block, 16 * k), memory.zeros(8, 16))
    flat = reduce(or_, rows[1:]).is_zero()
    rows = [row * memory.load(memory.offset(quantisation, 16 * k), 8, 16) for k, row in enumerate(rows)]
    # libjpeg's SIMD shifts a block of one row of coefficients without saturation, which shows beyond 13 bits.
    constant = rows[0] << _PASS_FRACTION
    columns = _transpose([constant.chosen(flat, row) for row in _transform(rows, _FRACTION - _PASS_FRACTION)])
    samples = _transpose(_transform(columns, _FRACTION + _PASS_FRACTION + 3))
    for row in samples:
        memory.store(out, (row.clamped(-128, 127) + 128).narrowed(8))
        out = memory.offset(out, stride)
