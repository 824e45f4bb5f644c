"""Tiles of a JPEG, each coded by one restart segment: choice of their width, and the rows of tiles that a cut needs.

A segment is the part of a scan between two restart markers, which decodes by itself (ITU-T T.81, B.1.1.5 and E.1.4).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from picstore.arrays import I64

# Largest number of pixels in a byte of a JPEG with Huffman codes: a block of 64 pixels takes at least one bit.
MAX_PIXELS_A_BYTE = 8 * 64
# Preferred width of a tile in pixels. docs/archive/measurements.md compares tiles from 1 MCU to a whole row.
TILE_WIDTH = 64

# Columns of a tiling, the row of numbers that describes a JPEG's size and tiles; see ``cut.TiledJpegs``.
WIDTH, HEIGHT, MCU_WIDTH, MCU_HEIGHT, INTERVAL, HEADER = range(6)
CUT_MARGIN = 1  # pixels that ``cut.py`` adds to a box on each side, because chroma is interpolated


def mcu_size(*, components: int, subsampling: str) -> tuple[int, int]:
    """Return width and height of an MCU in pixels; for 1 component, ``subsampling`` has no effect (T.81, A.2)."""
    sizes = {"444": (8, 8), "422": (16, 8), "440": (8, 16), "420": (16, 16)}
    return (8, 8) if components == 1 else sizes[subsampling]


# Cached, because most images of a dataset have one of a few widths, and each call takes 8 µs.
@lru_cache(maxsize=256)
def restart_interval(columns: int, mcu_width: int, *, tile_width: int = TILE_WIDTH) -> int:
    """Choose the number of MCUs between restart markers: a divisor of ``columns`` that makes tiles near ``tile_width``.

    ``columns`` is the number of MCUs in a row of the image; widths are in pixels. MCUs are counted across the ends of
    rows (T.81, B.2.4.4), so only a divisor lets every row begin a segment. Nearness is the ratio of the larger to the
    smaller width; of two equally near divisors the smaller is chosen, because narrower tiles cut closer. No tile is
    narrower than half of ``tile_width``. If ``columns`` is prime, the tile is the whole row, because a marker after
    every MCU would add 10 to 33 % to a photograph.
    """
    wide = (k for k in range(1, columns + 1) if columns % k == 0 and 2 * k * mcu_width >= tile_width)
    return min(wide, key=lambda k: (max(k * mcu_width / tile_width, tile_width / (k * mcu_width)), k), default=columns)


def entry_interval(interval: int, mcu_width: int) -> int:
    """Choose the number of MCUs between entry points of a restart segment; 0 if its tile needs no entry points.

    An entry point is the first bit of an MCU within a segment (docs/format.md, "Entry points"). Only tiles wider than
    twice ``TILE_WIDTH``, which are whole rows of up to 7,000 symbols, need entry points, one every ``TILE_WIDTH``
    pixels.
    """
    return TILE_WIDTH // mcu_width if interval * mcu_width > 2 * TILE_WIDTH else 0


def rows_to_cut(boxes: I64, tilings: I64) -> I64:
    """Return the rows of tiles that a cut of each box copies: int64 (n, 2), the first row and the last + 1.

    ``boxes`` and ``tilings`` are those of :func:`picstore.jpeg.cut.cut_batch`. An MCU height of 0 stands for an unusual
    subsampling, and counts as 1.
    """
    height, mcu_height = tilings[:, HEIGHT], np.maximum(tilings[:, MCU_HEIGHT], 1)
    first = np.maximum(boxes[:, 1] - CUT_MARGIN, 0) // mcu_height
    stop = (np.minimum(boxes[:, 3] + CUT_MARGIN, height) - 1) // mcu_height + 1
    return np.stack([first, stop], axis=1)
