"""Quality of a JPEG on libjpeg's scale, estimated from its quantization table."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from picstore.arrays import I64
from picstore.errors import ImageError
from picstore.jpeg.decoder.coefficients import ZIGZAG
from picstore.jpeg.encoder.encode_baseline import scale_tables
from picstore.jpeg.headers import read_coding_parameters
from picstore.jpeg.markers import header_from_segments, iterate_marker_segments


def estimate_quality(jpeg: bytes | memoryview) -> int:
    """Find the quality, 1 to 100, whose table in libjpeg is nearest to the luma table: equal for libjpeg's files.

    Nearest is the least mean ratio of steps. ImageError where the headers break T.81 or name no table.
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
    """Luma tables of the qualities 1 to 100, in zigzag order: int64 (100, 64)."""
    return np.array([scale_tables(quality)[0] for quality in range(1, 101)], np.int64)[:, ZIGZAG]
