"""Gaussian noise on images of bytes, and standard normals, in numba.

Normals are pure functions of a key and a counter, the same on every machine. Counter c of key k gives a pair. Of the
64 bits ``rng.bits(k, c)``, the highest 31 are the radius and the next 31 an angle within ±45°; the last two swap the
pair and change a sign. This is Box and Muller ("A note on the generation of random normal deviates", 1958) on a quarter
of the circle, where short series for sine and cosine are exact to float32. All operations are additions,
multiplications, divisions and square roots of float32, which IEEE 754 defines to the last bit and LLVM vectorizes;
neither holds for functions such as ``math.log``. The greatest magnitude is 6.7.
"""

from __future__ import annotations

import numpy as np

from picstore import rng
from picstore.arrays import F32
from picstore.kernels.jit import device_function, inlined, kernel

_CHUNK = 1024  # number of values to compute at a time, so that they and the workspace, 16 KB, stay in the CPU's cache

_f32, _i32, _u8, _u64 = np.float32, np.int32, np.uint8, np.uint64
_GOLDEN, _M1, _M2 = np.uint64(rng.GOLDEN), np.uint64(rng.MIX1), np.uint64(rng.MIX2)
_S2, _S3, _S27, _S30, _S31, _S33 = (np.uint64(shift) for shift in (2, 3, 27, 30, 31, 33))
_I1, _I2 = np.int32(1), np.int32(2)
_LOW31 = np.uint64((1 << 31) - 1)
_ZERO, _HALF, _ONE, _TOP = (np.float32(number) for number in (0, 0.5, 1, 255))
_SCALE = np.float32(2.0**-31)
_TURN = np.float32(np.pi / 4 * 2.0**-30)  # factor from integers in [−2**30, 2**30) to angles in [−π/4, π/4) radians
_CENTER = np.float32(2.0**30)
# Bits of the float32 sqrt(1/2). If they are subtracted from the bits of a number in [sqrt(1/2), sqrt(2)), the bits of
# the result's exponent are 0.
_ROOT = np.int32(0x3F3504F3)
_MANTISSA, _BITS = np.int32((1 << 23) - 1), np.int32(23)
_LN2 = np.float32(np.log(2.0))
_L3, _L5, _L7 = np.float32(1 / 3), np.float32(1 / 5), np.float32(1 / 7)
_C2, _C4, _C6, _C8 = np.float32(-1 / 2), np.float32(1 / 24), np.float32(-1 / 720), np.float32(1 / 40320)
_D3, _D5, _D7, _D9 = np.float32(-1 / 6), np.float32(1 / 120), np.float32(-1 / 5040), np.float32(1 / 362880)


@inlined
def random_bits(key, counter):
    """Return 64 random bits, uint64, of a random key and an int64 counter, as ``rng.bits`` does."""
    z = _u64(key) + _GOLDEN * _u64(counter + 1)
    z = (z ^ (z >> _S30)) * _M1
    z = (z ^ (z >> _S27)) * _M2
    return z ^ (z >> _S31)


@device_function
def _random_words(key, first, uniform, angle, choice):
    """Fill ``uniform`` (0 to 1), ``angle`` (radians), ``choice`` (0 to 3); element j uses counter ``first`` + j."""
    for j in range(choice.size):
        z = random_bits(key, first + j)
        uniform[j] = (_f32(_i32(z >> _S33)) + _HALF) * _SCALE
        angle[j] = (_f32(_i32((z >> _S2) & _LOW31)) - _CENTER) * _TURN
        choice[j] = _i32(z & _S3)


@device_function
def _split(bits, exponent):
    """Split float32 numbers, given by their bits, into exponents and mantissas from sqrt(1/2) to sqrt(2).

    ``exponent`` receives the exponents, and ``bits`` the bits of the mantissas.
    """
    for j in range(bits.size):
        shifted = _i32(bits[j] - _ROOT)
        exponent[j] = _f32(_i32(shifted >> _BITS))
        bits[j] = _i32((shifted & _MANTISSA) + _ROOT)


@kernel("(uint64, int64, float32[:, ::1], int32[::1], float32[::1])")
def fill_normals(key, first, workspace, choice, out):
    """Write standard normal numbers of a random key: pair ``first + j`` to ``out[2 * j]`` and ``out[2 * j + 1]``.

    Args:
        key: uint64.
        first: int64, index of the first pair.
        workspace, choice: float32 (3, n) and int32 (n,), memory to work in.
        out: float32 (2 n,).
    """
    uniform, exponent, angle = workspace[0], workspace[1], workspace[2]
    _random_words(key, first, uniform, angle, choice)
    _split(uniform.view(np.int32), exponent)
    for j in range(choice.size):
        # log u = e log 2 + log m for exponent e and mantissa m, and log m = 2 artanh((m - 1) / (m + 1)).
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
    """Return the first ``count`` standard normal numbers of a random key: float32 (count,)."""
    pairs = (count + 1) // 2
    normals = np.empty(2 * pairs, dtype=np.float32)
    fill_normals(np.uint64(key), 0, np.empty((3, pairs), np.float32), np.empty(pairs, np.int32), normals)
    return normals[:count]


@device_function
def _add(row, normals, mean, deviation, clip):
    for i in range(row.size):
        level = _f32(row[i]) + np.trunc(mean + deviation * normals[i])
        level = min(max(level, _ZERO), _TOP) if clip else level
        row[i] = _u8(_i32(level))  # Without ``clip``, a level beyond 0 … 255 wraps around.


@kernel("(float64[:, :, ::1], uint64[:, ::1], int64, int64, uint8[:, :, ::1])")
def add_noise(operands, key, slot, step, image):
    """Add normal noise, truncated to whole levels, to an image in place. Each plane begins with a new pair of normals.

    Args:
        operands, slot, step: ``operands[slot, step]`` of float64 (images, steps, 12) holds the noise's mean and
            standard deviation in grey levels, and 1 to clip levels or 0 to wrap them around.
        key: uint64 (images, steps), random keys of the steps.
        image: uint8 (3, height, width), C-contiguous.
    """
    numbers = operands[slot, step]
    pixels = image.shape[1] * image.shape[2]
    planes = image.reshape(3, pixels)
    pairs = (pixels + 1) // 2
    half = _CHUNK // 2
    workspace, choice = np.empty((3, half), np.float32), np.empty(half, np.int32)
    normals = np.empty(_CHUNK, np.float32)
    for c in range(3):
        for begin in range(0, pixels, _CHUNK):
            fill_normals(key[slot, step], c * pairs + begin // 2, workspace, choice, normals)
            row = planes[c][begin : begin + _CHUNK]
            _add(row, normals, _f32(numbers[0]), _f32(numbers[1]), numbers[2] != 0)
