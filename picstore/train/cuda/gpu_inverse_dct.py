"""libjpeg's "islow" inverse DCT and its reduced versions on a GPU, with a lane for each block.

Numbers wrap and saturate to 16 bits as in vectorized decoders, including the CPU's, so that absurd coefficients give
equal pixels too. Coefficients stay in zigzag order, because all indices are constants in the code.
"""

from __future__ import annotations

from picstore.jpeg import gpu_segment_layout as words
from picstore.jpeg.decoder import idct
from picstore.train.cuda.triton_jit import device_function, kernel, tl

_WORDS, _ACROSS, _DOWN = tl.constexpr(words.IMAGE_WORDS), tl.constexpr(words.ACROSS), tl.constexpr(words.DOWN)
_COMPONENTS, _INTERVAL = tl.constexpr(words.COMPONENTS), tl.constexpr(words.INTERVAL)
_PER_ROW, _FIRST_BLOCK = tl.constexpr(words.PER_ROW), tl.constexpr(words.FIRST_BLOCK)
_BLOCKS, _QUANTIZATION = tl.constexpr(words.BLOCKS), tl.constexpr(words.QUANTIZATION)
_PLANE, _STRIDE, _SIDE = tl.constexpr(words.PLANE), tl.constexpr(words.STRIDE), tl.constexpr(words.SIDE)
_FOUR_EVEN, _TWO = tl.constexpr(idct.FOUR_EVEN), tl.constexpr(idct.TWO)
_INNER, _OUTER = (tl.constexpr(each) for each in idct.FOUR)

# For each index of a coefficient in row order, its position in zigzag order (T.81, figure A.6).
_ORDER = sorted(range(64), key=lambda k: (k // 8 + k % 8, (k // 8 if (k // 8 + k % 8) % 2 else k % 8)))
_ZIGZAG = tl.constexpr(tuple(_ORDER.index(k) for k in range(64)))


@kernel
def inverse_dct(images, coefficients, quantization, planes, SIDE: tl.constexpr, LANES: tl.constexpr):
    """Compute the samples of LANES blocks of an image; the grid is (programs for the largest image, images).

    Args:
        images: int64 (n, IMAGE_WORDS), words of the images, see ``jpeg/gpu_segment_layout.py``.
        coefficients: int16 (blocks, 64), results of ``gpu_huffman.decode_segments``.
        quantization: int16 (tables, 64), quantization tables in zigzag order.
        planes: uint8, receives the samples of all components.
        SIDE: 8, 4, 2 or 1; only blocks that become SIDE × SIDE samples are processed.
    """
    image = images + tl.program_id(1).to(tl.int64) * _WORDS
    count = tl.load(image + _BLOCKS).to(tl.int32)
    if tl.program_id(0) * LANES >= count:
        return
    of_luma, of_chroma = tl.load(image + _SIDE) == SIDE, tl.load(image + _SIDE + 1) == SIDE
    if (of_luma | of_chroma) == 0:
        return
    number = tl.program_id(0) * LANES + tl.arange(0, LANES)
    across, down = tl.load(image + _ACROSS).to(tl.int32), tl.load(image + _DOWN).to(tl.int32)
    luma = across * down
    per_mcu = luma
    if tl.load(image + _COMPONENTS) == 3:
        per_mcu = luma + 2
    # ``coefficients`` has blocks in the order of the stream, MCU by MCU.
    mcu, block = number // per_mcu, number % per_mcu
    component = tl.maximum(block - luma + 1, 0)
    is_luma = component == 0
    known = (number < count) & tl.where(is_luma, of_luma, of_chroma)
    columns = (tl.load(image + _INTERVAL) * tl.load(image + _PER_ROW)).to(tl.int32)
    x = mcu % columns * tl.where(is_luma, across, 1) + tl.where(is_luma, block % across, 0)
    y = mcu // columns * tl.where(is_luma, down, 1) + tl.where(is_luma, block // across, 0)
    stride = tl.load(image + _STRIDE + component)
    out = planes + tl.load(image + _PLANE + component) + y.to(tl.int64) * SIDE * stride + x * SIDE
    block = coefficients.to(tl.pointer_type(tl.int64)) + (tl.load(image + _FIRST_BLOCK) + number) * 16
    table = quantization.to(tl.pointer_type(tl.int64)) + tl.load(image + _QUANTIZATION + component) * 16
    if SIDE == 1:
        level = (tl.load(block, known, 0) << 48 >> 48) * (tl.load(table, known, 0) << 48 >> 48)
        level = (level.to(tl.int32) + 4) >> 3
        # Wrap levels to 10 bits, because libjpeg looks up a sample by the lowest 10 bits.
        tl.store(out, _sample(((level + 512) & 1023) - 512).to(tl.uint8), known)
    else:
        c, q = _load_four_at_once(block, known), _load_four_at_once(table, known)
        if SIDE == 8:
            _store_eight(c, q, out, stride, known)
        elif SIDE == 4:
            _store_four(c, q, out, stride, known)
        else:
            _store_two(c, q, out, stride, known)


@device_function
def _store_eight(c, q, out, stride, known):
    below = (_number(c, 0) * 0).to(tl.int32)
    for k in tl.static_range(8, 64):
        below |= _number(c, _ZIGZAG[k])
    flat = below == 0
    made = ()
    for i in tl.static_range(8):
        made = made + _transform(_column(c, q, flat, i), 11)
    for i in tl.static_range(8):
        row = _transform(_every(made, 8, i), 18)
        low = _sample(row[0]) | _sample(row[1]) << 8 | _sample(row[2]) << 16 | _sample(row[3]) << 24
        high = _sample(row[4]) | _sample(row[5]) << 8 | _sample(row[6]) << 16 | _sample(row[7]) << 24
        eight = (out + i * stride).to(tl.pointer_type(tl.uint32))
        tl.store(eight, low, known)
        tl.store(eight + 1, high, known)


@device_function
def _store_four(c, q, out, stride, known):
    """Compute and store the 4 × 4 samples of a block reduced by 2, as libjpeg's jidctred.c does."""
    below = (_number(c, 0) * 0).to(tl.int32)
    for k in tl.static_range(8, 64):
        if k // 8 != 4:
            below |= _number(c, _ZIGZAG[k])
    flat = below == 0
    made = ()
    for i in tl.static_range(8):
        made = made + _transform_to_four(_column(c, q, flat, i), 12)
    for i in tl.static_range(4):
        row = _transform_to_four(_every(made, 4, i), 19)
        four = _sample(row[0]) | _sample(row[1]) << 8 | _sample(row[2]) << 16 | _sample(row[3]) << 24
        tl.store((out + i * stride).to(tl.pointer_type(tl.uint32)), four, known)


@device_function
def _transform_to_four(x, SHIFT: tl.constexpr):
    """Transform 8 numbers, a row or column, to 4; ignore index 4, as libjpeg does; shift results right by SHIFT."""
    x0, x1, x2, x3, _, x5, x6, x7 = x
    first = (x0 << 14) + (1 << (SHIFT - 1))
    even = x2 * _FOUR_EVEN[0] + x6 * _FOUR_EVEN[1]
    inner = x7 * _INNER[0] + x5 * _INNER[1] + x3 * _INNER[2] + x1 * _INNER[3]
    outer = x7 * _OUTER[0] + x5 * _OUTER[1] + x3 * _OUTER[2] + x1 * _OUTER[3]
    return (
        _saturated(first + even + outer, SHIFT),
        _saturated(first - even + inner, SHIFT),
        _saturated(first - even - inner, SHIFT),
        _saturated(first + even - outer, SHIFT),
    )


@device_function
def _store_two(c, q, out, stride, known):
    """Compute and store the 2 × 2 samples of a block reduced by 4, as libjpeg's jidctred.c does."""
    low, high = _transform_to_two(c, q, 0)
    l1, h1 = _transform_to_two(c, q, 1)
    l3, h3 = _transform_to_two(c, q, 3)
    l5, h5 = _transform_to_two(c, q, 5)
    l7, h7 = _transform_to_two(c, q, 7)
    _store_pair(low, l1, l3, l5, l7, out, known)
    _store_pair(high, h1, h3, h5, h7, out + stride, known)


@device_function
def _transform_to_two(c, q, I: tl.constexpr):  # noqa: E741
    """Transform the 8 coefficients of column ``I`` to 2 numbers; ignore coefficients 2, 4 and 6, as libjpeg does."""
    first = _product(c, q, _ZIGZAG[I]) << 15
    odd = _product(c, q, _ZIGZAG[8 + I]) * _TWO[0] + _product(c, q, _ZIGZAG[24 + I]) * _TWO[1]
    odd += _product(c, q, _ZIGZAG[40 + I]) * _TWO[2] + _product(c, q, _ZIGZAG[56 + I]) * _TWO[3]
    return (first + odd + (1 << 12)) >> 13, (first - odd + (1 << 12)) >> 13


@device_function
def _store_pair(x0, x1, x3, x5, x7, out, known):
    odd = _saturated(x1, 0) * _TWO[0] + _saturated(x3, 0) * _TWO[1]
    odd += _saturated(x5, 0) * _TWO[2] + _saturated(x7, 0) * _TWO[3]
    first = (x0 << 15) + (1 << 19)
    two = _sample((first + odd) >> 20) | _sample((first - odd) >> 20) << 8
    tl.store(out.to(tl.pointer_type(tl.uint16)), two.to(tl.uint16), known)


@device_function
def _transform(x, SHIFT: tl.constexpr):
    """Transform 8 numbers of 16 bits, a row or column, as libjpeg's jidctint.c does; shift results right by SHIFT."""
    x0, x1, x2, x3, x4, x5, x6, x7 = x
    rounding = 1 << (SHIFT - 1)
    sum04 = (_wrapped(x0 + x4) << 13) + rounding
    difference04 = (_wrapped(x0 - x4) << 13) + rounding
    rotated2 = x2 * 4433 + x6 * (4433 - 15137)
    rotated6 = x2 * (4433 + 6270) + x6 * 4433
    e0, e1, e2, e3 = sum04 + rotated6, difference04 + rotated2, difference04 - rotated2, sum04 - rotated6
    z3, z4 = _wrapped(x7 + x3), _wrapped(x5 + x1)
    w3 = z3 * (9633 - 16069) + z4 * 9633
    w4 = z3 * 9633 + z4 * (9633 - 3196)
    o0 = x7 * -7373 + x1 * (12299 - 7373) + w4
    o1 = x5 * -20995 + x3 * (25172 - 20995) + w3
    o2 = x5 * (16819 - 20995) + x3 * -20995 + w4
    o3 = x7 * (2446 - 7373) + x1 * -7373 + w3
    return (
        _saturated(e0 + o0, SHIFT),
        _saturated(e1 + o1, SHIFT),
        _saturated(e2 + o2, SHIFT),
        _saturated(e3 + o3, SHIFT),
        _saturated(e3 - o3, SHIFT),
        _saturated(e2 - o2, SHIFT),
        _saturated(e1 - o1, SHIFT),
        _saturated(e0 - o0, SHIFT),
    )


@device_function
def _column(c, q, flat, I: tl.constexpr):  # noqa: E741
    """Dequantize column ``I``; if the block's rows 1 to 7 are 0 (``flat``), wrap row 0 to 14 bits as libjpeg does."""
    first = _product(c, q, _ZIGZAG[I])
    column = (tl.where(flat, first << 18 >> 18, first),)
    for k in tl.static_range(1, 8):
        column = column + (_product(c, q, _ZIGZAG[8 * k + I]),)  # type: ignore[assignment]  # noqa: RUF005 - Triton unpacks none
    return column


@device_function
def _every(made, STEP: tl.constexpr, I: tl.constexpr):  # noqa: E741
    """Return row ``I`` of 8 columns; ``made`` holds the columns one after another, with STEP numbers each."""
    row = ()
    for k in tl.static_range(8):
        row = row + (made[STEP * k + I],)  # type: ignore[assignment]  # noqa: RUF005
    return row


@device_function
def _wrapped(x):
    """Wrap int32 numbers to signed integers of 16 bits."""
    return (x << 16) >> 16


@device_function
def _saturated(x, SHIFT: tl.constexpr):
    """Shift numbers right by SHIFT bits, and saturate them to signed integers of 16 bits."""
    return tl.minimum(tl.maximum(x >> SHIFT, -32768), 32767)


@device_function
def _sample(x):
    """Add 128 to samples, clipped to −128 … 127, so that they become levels of 0 to 255."""
    return (tl.minimum(tl.maximum(x, -128), 127) + 128).to(tl.uint32)


@device_function
def _load_four_at_once(address, known):
    """Load the 64 numbers of a block, each of 16 bits, as 16 words of four numbers each."""
    loaded = ()
    for k in tl.static_range(16):
        loaded = loaded + (tl.load(address + k, known, 0),)  # type: ignore[assignment]  # noqa: RUF005 - Triton unpacks none
    return loaded


@device_function
def _number(loaded, Z: tl.constexpr):
    """Return the number with index ``Z`` in the 16 words of ``_load_four_at_once``, sign-extended to int32."""
    return (loaded[Z // 4] << (48 - 16 * (Z % 4)) >> 48).to(tl.int32)


@device_function
def _product(c, q, Z: tl.constexpr):
    """Return the coefficient at zigzag position ``Z``, dequantized and wrapped to 16 bits."""
    return _wrapped(_number(c, Z) * _number(q, Z))
