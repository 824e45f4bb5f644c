"""Conversion of samples to RGB on a GPU (JFIF), with chroma interpolated as by libjpeg's "fancy upsampling"."""

from __future__ import annotations

from picstore.jpeg import gpu_segment_layout as words
from picstore.train.cuda.triton_jit import device_function, kernel, tl

_WORDS, _WIDTH, _HEIGHT = tl.constexpr(words.IMAGE_WORDS), tl.constexpr(words.WIDTH), tl.constexpr(words.HEIGHT)
_WIDER, _TALLER = tl.constexpr(words.WIDER), tl.constexpr(words.TALLER)
_COMPONENTS, _PLANE = tl.constexpr(words.COMPONENTS), tl.constexpr(words.PLANE)
_STRIDE, _PIXELS, _PITCH = tl.constexpr(words.STRIDE), tl.constexpr(words.PIXELS), tl.constexpr(words.PITCH)
_SIDE = tl.constexpr(words.SIDE)


@kernel
def to_rgb(images, planes, pixels, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Compute the pixels of ROWS rows and 4 · COLUMNS columns; the grid is (programs for the largest image, images).

    A thread computes four adjacent pixels, so rows must begin at multiples of four bytes.

    Args:
        images: int64 (n, IMAGE_WORDS), see ``jpeg/gpu_segment_layout.py``.
        planes: uint8, results of ``gpu_inverse_dct.inverse_dct``.
        pixels: uint8, receives each image's planes of red, green and blue.
    """
    image = images + tl.program_id(1).to(tl.int64) * _WORDS
    width, height = tl.load(image + _WIDTH).to(tl.int32), tl.load(image + _HEIGHT).to(tl.int32)
    if width == 0:  # The words of an image that the GPU does not decode are 0.
        return
    tiles = (width + 4 * COLUMNS - 1) // (4 * COLUMNS)
    top, begin = tl.program_id(0) // tiles * ROWS, tl.program_id(0) % tiles * COLUMNS
    if top >= height:
        return
    y, x = (top + tl.arange(0, ROWS))[:, None], 4 * (begin + tl.arange(0, COLUMNS))[None, :]
    known = (y < height) & (x < width)
    row = planes + tl.load(image + _PLANE) + y * tl.load(image + _STRIDE)
    l0, l1, l2, l3 = _bytes(_load_four(row + x, known))
    pitch = tl.load(image + _PITCH)
    out = (pixels + tl.load(image + _PIXELS) + y * pitch + x).to(tl.pointer_type(tl.int32))
    plane = pitch * height >> 2
    if tl.load(image + _COMPONENTS) == 1:
        grey = l0 | l1 << 8 | l2 << 16 | l3 << 24
        tl.store(out, grey, known)
        tl.store(out + plane, grey, known)
        tl.store(out + 2 * plane, grey, known)
        return
    b0, b1, b2, b3 = _chroma(image, 1, planes, x, y, width, height, known)
    r0, r1, r2, r3 = _chroma(image, 2, planes, x, y, width, height, known)
    red = _red(l0, r0) | _red(l1, r1) << 8 | _red(l2, r2) << 16 | _red(l3, r3) << 24
    green = _green(l0, b0, r0) | _green(l1, b1, r1) << 8 | _green(l2, b2, r2) << 16 | _green(l3, b3, r3) << 24
    blue = _blue(l0, b0) | _blue(l1, b1) << 8 | _blue(l2, b2) << 16 | _blue(l3, b3) << 24
    tl.store(out, red, known)
    tl.store(out + plane, green, known)
    tl.store(out + 2 * plane, blue, known)


@device_function
def _chroma(image, COMPONENT: tl.constexpr, planes, x, y, width, height, known):
    """Interpolate a chroma component's samples; return its values at the four adjacent pixels of each lane."""
    across, down = (tl.load(image + _WIDER) - 1).to(tl.int32), (tl.load(image + _TALLER) - 1).to(tl.int32)
    stride = tl.load(image + _STRIDE + COMPONENT)
    plane = planes + tl.load(image + _PLANE + COMPONENT)
    count, last_y = (width + across) >> across, ((height + down) >> down) - 1
    interpolates = tl.load(image + _SIDE) > 1  # If decoding divides sides by 8, libjpeg repeats chroma samples instead.
    near_y = y >> down
    near = plane + near_y * stride
    beside = plane + tl.minimum(tl.maximum(near_y + 2 * (y & 1) - 1, 0), last_y) * stride
    if across == 1:
        n = x >> 1
        before, s0, s1, after = _columns(near, n, count, known)
        v0, v1, v2, v3 = s0, s0, s1, s1
        if (count > 2) & interpolates:  # With 1 or 2 chroma samples a row, libjpeg only repeats samples.
            if down == 1:
                c_before, c0, c1, c_after = _columns(beside, n, count, known)
                before, s0, s1, after = 3 * before + c_before, 3 * s0 + c0, 3 * s1 + c1, 3 * after + c_after
                v0, v1 = (3 * s0 + before + 8) >> 4, (3 * s0 + s1 + 7) >> 4
                v2, v3 = (3 * s1 + s0 + 8) >> 4, (3 * s1 + after + 7) >> 4
            else:
                v0, v1 = (3 * s0 + before + 1) >> 2, (3 * s0 + s1 + 2) >> 2
                v2, v3 = (3 * s1 + s0 + 1) >> 2, (3 * s1 + after + 2) >> 2
    else:
        v0, v1, v2, v3 = _bytes(_load_four(near + x, known))
        if (down == 1) & interpolates:
            c0, c1, c2, c3 = _bytes(_load_four(beside + x, known))
            bias = 1 + (y & 1)
            v0, v1, v2, v3 = 3 * v0 + c0 + bias, 3 * v1 + c1 + bias, 3 * v2 + c2 + bias, 3 * v3 + c3 + bias
            v0, v1, v2, v3 = v0 >> 2, v1 >> 2, v2 >> 2, v3 >> 2
    return v0, v1, v2, v3


@device_function
def _columns(row, n, count, known):
    """Return samples n - 1 to n + 2 of a row, for even n; beyond an end of the row, the end's sample is repeated."""
    two = tl.load((row + n).to(tl.pointer_type(tl.uint16)), known, 0).to(tl.int32)
    before = tl.load(row + tl.maximum(n - 1, 0), known, 0).to(tl.int32)
    after = tl.load(row + tl.minimum(n + 2, count - 1), known, 0).to(tl.int32)
    first = two & 255
    return before, first, tl.where(n + 1 < count, two >> 8, first), after


@device_function
def _load_four(address, known):
    return tl.load(address.to(tl.pointer_type(tl.int32)), known, 0)


@device_function
def _bytes(word):
    return word & 255, (word >> 8) & 255, (word >> 16) & 255, (word >> 24) & 255


@device_function
def _level(x):
    return tl.minimum(tl.maximum(x, 0), 255)


@device_function
def _red(y, cr):
    return _level(y + ((91881 * cr + (32768 - 91881 * 128)) >> 16))


@device_function
def _green(y, cb, cr):
    return _level(y + ((-22554 * cb - 46802 * cr + (32768 + (22554 + 46802) * 128)) >> 16))


@device_function
def _blue(y, cb):
    return _level(y + ((116130 * cb + (32768 - 116130 * 128)) >> 16))
