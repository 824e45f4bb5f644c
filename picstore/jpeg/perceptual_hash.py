"""Perceptual hash of a JPEG, pHash: signs of its lowest frequencies, from its DC coefficients."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from picstore.arrays import F64
from picstore.jpeg.decoder.decode_baseline import decode
from picstore.jpeg.luma_dc import read_luma_dc

_FREQUENCIES = 8  # in each direction
_MIN_SIDE = 128  # pixels, 16 blocks: with fewer, blocks are too coarse for these frequencies
_LUMA = np.array([0.299, 0.587, 0.114])  # T.871, 7


def perceptual_hash(jpeg: bytes | memoryview) -> int:
    """Hash a training JPEG to 64 bits, of which re-encoded, resized or slightly changed copies share most.

    The hash is pHash's (``imagehash.phash``): a bit for each of the 8 × 8 lowest coefficients of the image's cosine
    transform, row by row, set above their median. The DC coefficients give the means of the image's 8 × 8 blocks, which
    are transformed by integrals, so that size, padding and quantization do not matter. Images smaller than 128 pixels
    are decoded.

    Raises:
        ImageError: the stream is damaged or no training JPEG.
    """
    dc, width, height = read_luma_dc(jpeg)
    blocks: F64 = dc.astype(np.float64)
    scale = 8
    if min(width, height) < _MIN_SIDE:
        blocks, scale = decode(jpeg) @ _LUMA, 1
    blocks = blocks - blocks[0, 0]  # exactly zero for an image of one color, whose bits would be rounding errors
    rows, columns = blocks.shape
    spectrum = _cosine_integrals(height, scale, rows) @ blocks @ _cosine_integrals(width, scale, columns).T
    spectrum[0, 0] = np.inf  # the mean: 1 in pHash of any photograph
    bits = spectrum > np.sort(spectrum, axis=None)[spectrum.size // 2 - 1]
    return int.from_bytes(np.packbits(bits).tobytes(), "big")


@lru_cache(maxsize=1024)  # photographs have few widths and heights; 40 us each
def _cosine_integrals(length: int, block: int, count: int) -> F64:
    """Integrate the lowest cosines over blocks of ``length`` pixels, the last of which may be narrower: (8, count)."""
    edges = np.minimum(np.arange(count + 1) * block, length) / length
    k = np.arange(1, _FREQUENCIES)[:, None]
    waves = np.diff(np.sin(np.pi * k * edges) / (np.pi * k), axis=1)
    return np.vstack([np.diff(edges), waves])
