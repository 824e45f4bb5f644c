"""Quantization tables for a quality on libjpeg's scale, and the estimated quality of a JPEG."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from picstore.arrays import I64
from picstore.errors import ImageError
from picstore.jpeg.decoder.coefficients import ZIGZAG
from picstore.jpeg.headers import read_coding_parameters
from picstore.jpeg.markers import header_from_segments, iterate_marker_segments

# Quantization tables K.1 and K.2 of T.81, row by row.
_LUMA = (
    *(16, 11, 10, 16, 24, 40, 51, 61, 12, 12, 14, 19, 26, 58, 60, 55, 14, 13, 16, 24, 40, 57, 69, 56),
    *(14, 17, 22, 29, 51, 87, 80, 62, 18, 22, 37, 56, 68, 109, 103, 77, 24, 35, 55, 64, 81, 104, 113, 92),
    *(49, 64, 78, 87, 103, 121, 120, 101, 72, 92, 95, 98, 112, 100, 103, 99),
)
_CHROMA = (
    *(17, 18, 24, 47, 99, 99, 99, 99, 18, 21, 26, 66, 99, 99, 99, 99, 24, 26, 56, 99, 99, 99, 99, 99),
    *(47, 66, 99, 99, 99, 99, 99, 99, *(32 * (99,))),
)


def scale_tables(quality: int) -> list[list[int]]:
    """Return the luma and the chroma table of T.81, row by row, scaled to a quality as in libjpeg."""
    percent = 5000 // quality if quality < 50 else 200 - 2 * quality
    return [[min(max((k * percent + 50) // 100, 1), 255) for k in table] for table in (_LUMA, _CHROMA)]


def estimate_quality(jpeg: bytes | memoryview) -> int:
    """Return the quality, 1 to 100, whose luma table in libjpeg is nearest to the JPEG's; exact for JPEGs by libjpeg.

    The nearest table has the smallest mean |log(ratio of steps)|. Raise ImageError if headers or table break T.81.
    """
    segments = list(iterate_marker_segments(jpeg))
    tables = read_coding_parameters(segments).quantization
    body = tables.get(header_from_segments(segments).components[0].quantization)
    if body is None:
        raise ImageError("the luma component has no quantization table")
    steps = np.frombuffer(body, ">u2" if body[0] >> 4 else "u1", 64, offset=1).astype(np.int64)
    apart = np.abs(np.log(_luma_tables() / np.maximum(steps, 1))).mean(axis=1)
    return int(apart.argmin()) + 1


@lru_cache(maxsize=1)
def _luma_tables() -> I64:
    """Return libjpeg's luma tables for the qualities 1 to 100, in zigzag order: int64 (100, 64)."""
    return np.array([scale_tables(quality)[0] for quality in range(1, 101)], np.int64)[:, ZIGZAG]
