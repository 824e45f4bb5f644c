"""Standard normals for kernels, as pure functions of a key and a counter: noise that is the same on every machine.

Counter c of key k gives a pair. Of the 64 bits ``bits(k, c)`` of SplitMix64 (``draw.py``) the highest 31 are the
radius, the next 31 an angle within ±45°, the last two swap the pair and turn the sign: Box and Muller ("A note on
the generation of random normal deviates", 1958) by a quarter of the circle, where short series for sine and cosine
are exact to float32. Nothing but additions, multiplications, divisions and square roots of float32, which IEEE 754
defines to the last bit, and which LLVM turns into vector instructions; ``math.log`` and its like would be neither.
The greatest magnitude is 6.7.
"""

from __future__ import annotations

import numpy as np

from picstore.arrays import F32
from picstore.kernels.jit import device_function, kernel

_f32, _i32, _u64 = np.float32, np.int32, np.uint64
_GOLDEN, _M1, _M2 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_S2, _S3, _S27, _S30, _S31, _S33 = (np.uint64(shift) for shift in (2, 3, 27, 30, 31, 33))
_I1, _I2 = np.int32(1), np.int32(2)
_LOW31 = np.uint64((1 << 31) - 1)
_ZERO, _HALF, _ONE = np.float32(0), np.float32(0.5), np.float32(1)
_SCALE = np.float32(2.0**-31)
_TURN = np.float32(np.pi / 4 * 2.0**-30)  # from a 31-bit number to the angle
_CENTRE = np.float32(2.0**30)
# The exponent of a float32 between sqrt(1/2) and sqrt(2) becomes 0 by this offset.
_ROOT = np.int32(0x3F3504F3)
_MANTISSA, _BITS = np.int32((1 << 23) - 1), np.int32(23)
_LN2 = np.float32(np.log(2.0))
_L3, _L5, _L7 = np.float32(1 / 3), np.float32(1 / 5), np.float32(1 / 7)
_C2, _C4, _C6, _C8 = np.float32(-1 / 2), np.float32(1 / 24), np.float32(-1 / 720), np.float32(1 / 40320)
_D3, _D5, _D7, _D9 = np.float32(-1 / 6), np.float32(1 / 120), np.float32(-1 / 5040), np.float32(1 / 362880)


@device_function
def _draw(key, first, uniform, angle, choice):  # type: ignore[no-untyped-def]
    """The three parts of as many words as ``choice`` has elements."""
    for j in range(choice.size):
        z = _u64(key) + _GOLDEN * _u64(first + j + 1)
        z = (z ^ (z >> _S30)) * _M1
        z = (z ^ (z >> _S27)) * _M2
        z ^= z >> _S31
        uniform[j] = (_f32(_i32(z >> _S33)) + _HALF) * _SCALE
        angle[j] = (_f32(_i32((z >> _S2) & _LOW31)) - _CENTRE) * _TURN
        choice[j] = _i32(z & _S3)


@device_function
def _split(bits, exponent):  # type: ignore[no-untyped-def]
    """Bits of float32 to those of their mantissas, from sqrt(1/2) to sqrt(2), and their exponents."""
    for j in range(bits.size):
        shifted = _i32(bits[j] - _ROOT)
        exponent[j] = _f32(_i32(shifted >> _BITS))
        bits[j] = _i32((shifted & _MANTISSA) + _ROOT)


@kernel
def fill_normals(key, first, scratch, choice, out):  # type: ignore[no-untyped-def]
    """Standard normals: pair number ``first + j`` of ``key`` into ``out[2 * j]`` and ``out[2 * j + 1]``.

    Args:
        key: uint64.
        first: int64, number of the first pair.
        scratch: float32 (3, n).
        choice: int32 (n,), scratch too.
        out: float32 (2 n,).
    """
    uniform, exponent, angle = scratch[0], scratch[1], scratch[2]
    _draw(key, first, uniform, angle, choice)
    _split(uniform.view(np.int32), exponent)
    for j in range(choice.size):
        # log u = e log 2 + log m, and log m = 2 artanh((m - 1) / (m + 1)).
        m = uniform[j]
        s = np.divide(m - _ONE, m + _ONE)
        q = s * s
        log = exponent[j] * _LN2 + _f32(2) * s * (_ONE + q * (_L3 + q * (_L5 + q * _L7)))
        radius = np.sqrt(max(_f32(-2) * log, _ZERO))
        a = angle[j]
        q = a * a
        cosine = radius * (_ONE + q * (_C2 + q * (_C4 + q * (_C6 + q * _C8))))
        sine = radius * a * (_ONE + q * (_D3 + q * (_D5 + q * (_D7 + q * _D9))))
        cosine = -cosine if choice[j] & _I1 else cosine
        out[2 * j] = sine if choice[j] & _I2 else cosine
        out[2 * j + 1] = cosine if choice[j] & _I2 else sine


def standard_normals(key: int, count: int) -> F32:
    """float32 (count,): the first pairs of normals of a key, one after the other."""
    pairs = (count + 1) // 2
    normals = np.empty(2 * pairs, dtype=np.float32)
    fill_normals(np.uint64(key), 0, np.empty((3, pairs), np.float32), np.empty(pairs, np.int32), normals)
    return normals[:count]
