"""Forward DCT and quantization of an 8 × 8 block, equal to libjpeg-turbo's "islow" bit for bit.

``idct.py`` has the same constants, for the inverse transform. The first pass transforms rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from picstore.arrays import U16
from picstore.jpeg.decoder.coefficients import ZIGZAG
from picstore.jpeg.decoder.idct import FRACTION, ONES, PASS_FRACTION, TWOS, A, B, C, D
from picstore.kernels.simd import Vector, VectorMemory, transposed, vector_function


def _transform(x: list[Vector], *, first: bool) -> list[Vector]:
    """Compute eight 1-D forward DCTs of 8 samples in parallel, in 16-bit elements, as first or second of two passes.

    Only int16 vectors that have just been widened to int32 are multiplied, because LLVM does this in half the time.
    """
    shift = FRACTION - PASS_FRACTION if first else FRACTION + PASS_FRACTION
    sums, differences = [x[k] + x[7 - k] for k in range(4)], [x[k] - x[7 - k] for k in (3, 2, 1, 0)]
    outer, inner = sums[0] + sums[3], sums[1] + sums[2]
    ends = outer + inner, outer - inner
    if first:
        zero, four = (each << PASS_FRACTION for each in ends)
    else:
        zero, four = (each + (1 << (PASS_FRACTION - 1)) >> PASS_FRACTION for each in ends)
    high, low = (sums[0] - sums[3]).widened(32), (sums[1] - sums[2]).widened(32)
    two, six = high * (A + B) + low * A, high * A + low * (A + C)
    a, b, c, d = (each.widened(32) for each in differences)
    z3, z4 = (differences[0] + differences[2]).widened(32), (differences[1] + differences[3]).widened(32)
    w3, w4 = z3 * (D + TWOS[2]) + z4 * D, z3 * D + z4 * (D + TWOS[3])
    seven = a * (ONES[0] + TWOS[0]) + d * TWOS[0] + w3
    five = b * (ONES[1] + TWOS[1]) + c * TWOS[1] + w4
    three = c * (ONES[2] + TWOS[1]) + b * TWOS[1] + w3
    one = d * (ONES[3] + TWOS[0]) + a * TWOS[0] + w4
    one, two, three, five, six, seven = (
        (each + (1 << (shift - 1)) >> shift).narrowed(16) for each in (one, two, three, five, six, seven)
    )
    return [zero, one, two, three, four, five, six, seven]


def make_divisors(factors: list[int]) -> U16:
    """Compute numbers by which a block is quantized without divisions.

    Args:
        factors: 64 quantization factors, row by row.

    Returns:
        uint16 (3, 64): for each factor an addend, a reciprocal and a scale. For a value below 2**14, ``(value + addend)
        * reciprocal * scale >> 32`` is the rounded quotient of the value by 8 times the factor, because the DCT scales
        by 8 (A. Fog, "Optimizing subroutines in assembly language", 16.9).
    """
    divisors = np.zeros((3, 64), np.uint16)
    for k, factor in enumerate(factors):
        divisor = 8 * factor
        addend, bits = divisor // 2, 15 + divisor.bit_length()
        reciprocal, rest = divmod(1 << bits, divisor)
        if rest == 0:
            reciprocal, bits = reciprocal >> 1, bits - 1
        elif 2 * rest <= divisor:
            addend += 1
        else:
            reciprocal += 1
        divisors[:, k] = addend, reciprocal, 1 << (32 - bits)
    return divisors


def _times(left: Vector, right: Vector) -> Vector:
    """Return the upper 16 bits of the products of unsigned 16-bit elements; one operand must be below 2**15."""
    return (left.widened(32, signed=False) * right.widened(32, signed=False) >> 16).narrowed(16)


def _quantized(memory: VectorMemory, row: Vector, divisors: Any) -> Vector:
    addend, reciprocal, scale = (memory.load(memory.offset(divisors, 128 * k), 8, 16) for k in range(3))
    sign = row >> 15
    magnitude = _times(_times((row ^ sign) - sign + addend, reciprocal), scale)
    return (magnitude ^ sign) - sign


@vector_function(4, returns=True)
def forward_dct(memory: VectorMemory, samples: Any, stride: Any, divisors: Any, out: Any) -> Any:
    """Compute the quantized coefficients of a block; all arguments are uint64.

    Args:
        samples: address of the first sample, uint8.
        stride: bytes between rows of samples.
        divisors: address of the result of ``make_divisors``.
        out: address of 64 int16, which take the coefficients in zigzag order.

    Returns:
        uint64 whose bit *k* is set if coefficient *k* is not zero.
    """
    rows = []
    for _ in range(8):
        rows.append(memory.load(samples, 8, 8).widened(16, signed=False) - 128)
        samples = memory.offset(samples, stride)
    rows = _transform(transposed(_transform(transposed(rows), first=True)), first=False)
    rows = [_quantized(memory, row, memory.offset(divisors, 16 * k)) for k, row in enumerate(rows)]
    while len(rows) > 1:
        count = 2 * rows[0].value.type.count
        rows = [left.shuffled(right, range(count)) for left, right in zip(rows[::2], rows[1::2], strict=True)]
    block = rows[0].shuffled(rows[0], ZIGZAG.tolist())
    memory.store(out, block)
    return block.nonzero()
