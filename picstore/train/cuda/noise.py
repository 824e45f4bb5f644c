"""Random numbers of pixels on the GPU, equal to ``picstore/rng.py`` and ``train/cpu/noise.py`` bit for bit.

The float32 operations are the same in the same order; launches forbid the compiler to fuse them.
"""

from __future__ import annotations

import math

from picstore import rng
from picstore.train.cuda.triton_jit import device_function, tl

_GOLDEN = tl.constexpr(rng.GOLDEN)
_M1 = tl.constexpr(rng.MIX1)
_M2 = tl.constexpr(rng.MIX2)
_LOW31 = tl.constexpr((1 << 31) - 1)
_SCALE = tl.constexpr(2.0**-31)
_TURN = tl.constexpr(math.pi / 4 * 2.0**-30)
_CENTER = tl.constexpr(2.0**30)
_ROOT = tl.constexpr(0x3F3504F3)
_MANTISSA = tl.constexpr((1 << 23) - 1)
_LN2 = tl.constexpr(math.log(2.0))
_L3 = tl.constexpr(1 / 3)
_L5 = tl.constexpr(1 / 5)
_L7 = tl.constexpr(1 / 7)
_C4 = tl.constexpr(1 / 24)
_C6 = tl.constexpr(-1 / 720)
_C8 = tl.constexpr(1 / 40320)
_D3 = tl.constexpr(-1 / 6)
_D5 = tl.constexpr(1 / 120)
_D7 = tl.constexpr(-1 / 5040)
_D9 = tl.constexpr(1 / 362880)


@device_function
def random_bits(key, counter):
    """``rng.bits``: uint64 of a uint64 key and int64 counters."""
    z = key + (counter + 1).to(tl.uint64) * _GOLDEN
    z = (z ^ (z >> 30)) * _M1
    z = (z ^ (z >> 27)) * _M2
    return z ^ (z >> 31)


@device_function
def random_normals(key, number):
    """``standard_normals``: float32 normals by their int64 numbers."""
    z = random_bits(key, number >> 1)
    uniform = ((z >> 33).to(tl.int32).to(tl.float32) + 0.5) * _SCALE
    a = (((z >> 2) & _LOW31).to(tl.int32).to(tl.float32) - _CENTER) * _TURN
    shifted = uniform.to(tl.int32, bitcast=True) - _ROOT
    exponent = (shifted >> 23).to(tl.float32)
    m = ((shifted & _MANTISSA) + _ROOT).to(tl.float32, bitcast=True)
    s = tl.math.div_rn(m - 1.0, m + 1.0)
    q = s * s
    log = exponent * _LN2 + 2.0 * s * (1.0 + q * (_L3 + q * (_L5 + q * _L7)))
    radius = tl.math.sqrt_rn(tl.maximum(-2.0 * log, 0.0))
    q = a * a
    cosine = radius * (1.0 + q * (-0.5 + q * (_C4 + q * (_C6 + q * _C8))))
    sine = radius * a * (1.0 + q * (_D3 + q * (_D5 + q * (_D7 + q * _D9))))
    choice = (z & 3).to(tl.int32)
    cosine = tl.where((choice & 1) != 0, -cosine, cosine)
    second = ((number & 1) != 0) != ((choice & 2) != 0)
    return tl.where(second, sine, cosine)
