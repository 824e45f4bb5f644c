"""Perceptual hash (pHash) of a JPEG, computed from the DC coefficients of the luma.

The DC coefficients are the image at 1/8 of its size, and are read without decoding the image (ITU-T T.81, F.2).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from picstore.arrays import F64, U8, Array
from picstore.errors import ImageError
from picstore.jpeg.bit_reader import BAD_CODE, PADDING, TOO_SHORT, refill, unstuff
from picstore.jpeg.decoder import parse
from picstore.jpeg.decoder.coefficients import (
    BY_LENGTH,
    BY_LENGTHS,
    LOOKUP_BITS,
    PAIRS,
    SINGLES,
    TABLES,
    read_dc,
    skip_ac,
)
from picstore.jpeg.decoder.decode_baseline import REASONS, decode
from picstore.kernels.jit import device_function, kernel

_FREQUENCIES = 8  # number of lowest frequencies of the cosine transform, across and down, that are hashed
# Smallest side in pixels (16 blocks) of images to hash by DC coefficients, which are too coarse for smaller images.
_MIN_SIDE = 128
_u64 = np.uint64
_LUMA = np.array([0.299, 0.587, 0.114])  # weights of red, green and blue (T.871, 7)


def perceptual_hash(jpeg: bytes | memoryview) -> int:
    """Hash a training JPEG to 64 bits; re-encoded, resized or slightly changed copies share most of the bits.

    The hash is pHash's (``imagehash.phash``). It has a bit for each of the 8 × 8 lowest coefficients of the image's
    cosine transform, row by row; the bit is set if the coefficient is above the median. The transform is computed from
    the DC coefficients, the means of blocks, except that images with a side of less than 128 pixels are decoded.

    Raises:
        ImageError: the bytes are damaged or not a training JPEG.
    """
    dc, width, height = read_luma_dc(jpeg)
    if min(width, height) < _MIN_SIDE:
        return hash_pixels(decode(jpeg))
    return _hash_blocks(dc.astype(np.float64), 8, width, height)


def hash_pixels(pixels: U8) -> int:
    """Hash pixels, uint8 (H, W, 3), to 64 bits, as :func:`perceptual_hash` hashes a JPEG of them."""
    return _hash_blocks(pixels @ _LUMA, 1, pixels.shape[1], pixels.shape[0])


def _hash_blocks(blocks: F64, scale: int, width: int, height: int) -> int:
    """Hash the luma's means over blocks of ``scale`` × ``scale`` pixels, on any linear scale."""
    # Make an image of one color exactly zero, so that its hash does not depend on rounding errors.
    blocks = blocks - blocks[0, 0]
    rows, columns = blocks.shape
    spectrum = _cosine_integrals(height, scale, rows) @ blocks @ _cosine_integrals(width, scale, columns).T
    # Always set the bit of the mean, as pHash does for nearly any photograph, because the subtraction changed the mean.
    spectrum[0, 0] = np.inf
    bits = spectrum > np.sort(spectrum, axis=None)[spectrum.size // 2 - 1]
    return int.from_bytes(np.packbits(bits).tobytes(), "big")


# Cached, because photographs have few different sides, and each call takes 40 µs.
@lru_cache(maxsize=1024)
def _cosine_integrals(length: int, block: int, count: int) -> F64:
    """Return the integrals of a side's 8 lowest cosines over its ``count`` blocks of ``block`` pixels: (8, count)."""
    edges = np.minimum(np.arange(count + 1) * block, length) / length
    k = np.arange(1, _FREQUENCIES)[:, None]
    waves = np.diff(np.sin(np.pi * k * edges) / (np.pi * k), axis=1)
    return np.vstack([np.diff(edges), waves])


def read_luma_dc(jpeg: bytes | memoryview) -> tuple[Array, int, int]:
    """Read the luma's DC coefficients from a training JPEG, for all blocks that contain pixels.

    For a photograph of 107 KB, reading takes 0.43 ms, because AC coefficients are skipped; decoding takes 0.79 ms.

    Returns:
        int32 (rows, columns), for each block 8 * (mean - 128) in quantization steps; width and height in pixels.

    Raises:
        ImageError: the bytes are damaged or not a training JPEG.
    """
    source = np.frombuffer(jpeg, np.uint8)
    frame = np.empty(parse.FRAME, np.int64)
    code, dc = read_scan(_u64(source.ctypes.data), source.size, frame)
    if code:
        raise ImageError(f"does not decode: {REASONS[code]}")
    width, height = frame[[parse.WIDTH, parse.HEIGHT]].tolist()
    return dc[: -(-height // 8), : -(-width // 8)], width, height


@kernel("(uint64, int64, int64[::1])")
def read_scan(address, size, frame):
    """Read the luma's DC coefficients from a JPEG; write the headers' values to ``frame`` (see ``parse.parse_frame``).

    Return 0 or a negative code of damage; and the coefficients of all blocks of all MCUs, int32 (rows, columns).
    """
    tables, nothing = np.empty(TABLES, np.uint8), np.empty((0, 0), np.int32)
    code = parse.parse_frame(_u64(address), size, frame, _u64(tables.ctypes.data))
    if code:
        return code, nothing
    left = size - frame[parse.START]
    expected = parse.count_segments(frame, left)
    if expected < 0:
        return expected, nothing
    flat, segments = np.empty(left + PADDING, np.uint8), np.empty(expected + 1, np.int64)
    count, length, _ = unstuff(_u64(address), size, frame[parse.START], flat, segments)
    if count != expected:
        return count if count < 0 else TOO_SHORT, nothing
    flat[length : length + PADDING] = 0
    columns, rows = parse.count_mcus(frame)
    dc = np.empty((rows * frame[parse.VERTICAL], columns * frame[parse.HORIZONTAL]), np.int32)
    return _read_segments(flat, segments, frame, tables, dc), dc


@device_function
def _make_plan(frame, tables):
    """Return for each block of an MCU the addresses of its lookup tables, uint64 (blocks, 4).

    The four tables are ``single`` and ``by_length`` for DC, ``pairs`` and ``by_length`` for AC (see
    ``coefficients.py``).
    """
    plan, base = np.empty((parse.blocks_of_mcu(frame), 4), np.uint64), _u64(tables.ctypes.data)
    for b in range(plan.shape[0]):
        c = max(b - frame[parse.HORIZONTAL] * frame[parse.VERTICAL] + 1, 0)
        dc, ac = frame[parse.DC + c], frame[parse.AC + c]
        plan[b, 0] = base + _u64(SINGLES + (2 << LOOKUP_BITS) * dc)
        plan[b, 1] = base + _u64(BY_LENGTHS + 4 * BY_LENGTH * dc)
        plan[b, 2] = base + _u64(PAIRS + (8 << LOOKUP_BITS) * ac)
        plan[b, 3] = base + _u64(BY_LENGTHS + 4 * BY_LENGTH * (2 + ac))
    return plan


@device_function
def _read_segments(flat, segments, frame, tables, dc):
    """Read the luma's DC coefficients of all segments into ``dc``; return 0 or a negative code of damage.

    ``tables`` is an argument, because numba would otherwise free the array while its addresses are in use.
    """
    h, v, interval = frame[parse.HORIZONTAL], frame[parse.VERTICAL], frame[parse.INTERVAL]
    plan, address = _make_plan(frame, tables), _u64(flat.ctypes.data)
    columns, mcus = dc.shape[1] // h, dc.size // (h * v)
    for segment in range(segments.size - 1):
        accumulator, valid, byte = refill(address, _u64(0), 0, segments[segment])
        previous = 0
        for mcu in range(segment * interval, min((segment + 1) * interval, mcus)):
            row, column = mcu // columns * v, mcu % columns * h
            for b in range(plan.shape[0]):
                codes = plan[b, 0], plan[b, 1]
                accumulator, valid, byte, difference, good = read_dc(address, codes, accumulator, valid, byte)
                if b < h * v:
                    previous += difference
                    dc[row + b // h, column + b % h] = previous
                accumulator, valid, byte, sound = skip_ac(address, (plan[b, 2], plan[b, 3]), accumulator, valid, byte)
                if not (good and sound):
                    return BAD_CODE
            if byte * 8 - valid > 8 * segments[segment + 1]:
                return TOO_SHORT
    return 0
