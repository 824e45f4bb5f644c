"""Tiles: how wide they are, which rows of them a cut takes, and the restart segments that code them.

A segment is the part of a scan between two restart markers, which decodes by itself (ITU-T T.81, B.1.1.5 and E.1.4).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from picstore.arrays import I64
from picstore.errors import ImageError
from picstore.jpeg.markers import EOI, RST0, RST7, Header

# A block of 64 pixels takes a bit or more for its DC coefficient in any Huffman-coded JPEG, and baseline ones take two.
MAX_PIXELS_A_BYTE = 8 * 64
TILE_WIDTH = 64  # pixels; docs/measurements.md has sizes and speeds of tiles from 1 MCU to one row

# Columns of a tiling, the size and tiles of a JPEG as a row of an array, see ``cut.TiledJpegs``.
WIDTH, HEIGHT, MCU_WIDTH, MCU_HEIGHT, INTERVAL, HEADER = range(6)
CUT_MARGIN = 1  # pixels by which ``cut.py`` widens a box


def mcu_size(*, components: int, subsampling: str) -> tuple[int, int]:
    """Return width and height of an MCU in pixels, for 1 component, whatever the subsampling, or 3 (T.81, A.2)."""
    sizes = {"444": (8, 8), "422": (16, 8), "440": (8, 16), "420": (16, 16)}
    return (8, 8) if components == 1 else sizes[subsampling]


@lru_cache(maxsize=256)  # most images of a dataset have one of a few widths; 8 us each
def restart_interval(columns: int, mcu_width: int, *, tile_width: int = TILE_WIDTH) -> int:
    """Choose the MCUs between restart markers: the divisor of ``columns`` whose tile is nearest to ``tile_width``.

    Widths are in pixels, ``columns`` is the number of MCUs in a row of the image.

    The interval is a divisor because it counts on across the ends of rows (T.81, B.2.4.4): only then does every row
    begin a segment, and the tiles form a grid. Nearest is by ratio; of two equally near the smaller is chosen, which
    cuts closer. No tile is narrower than half of ``tile_width``: where the columns are prime the only other divisor is
    1, and a marker after every MCU adds 10 to 33 % to a photograph; the tile is then the whole row.
    """
    wide = (k for k in range(1, columns + 1) if columns % k == 0 and 2 * k * mcu_width >= tile_width)
    return min(wide, key=lambda k: (max(k * mcu_width / tile_width, tile_width / (k * mcu_width)), k), default=columns)


def entry_interval(interval: int, mcu_width: int) -> int:
    """Choose the MCUs between the entry points of a restart segment; 0 for a tile that needs none.

    An entry point is the first bit of an MCU within a segment (docs/format.md, "Entry points"). Tiles wider than twice
    ``TILE_WIDTH`` are whole rows, of up to 7,000 symbols, where the columns are prime. They get an entry point every
    ``TILE_WIDTH`` pixels, so that a part takes as long to read as another image's tile.
    """
    return TILE_WIDTH // mcu_width if interval * mcu_width > 2 * TILE_WIDTH else 0


def rows_to_cut(boxes: I64, tilings: I64) -> I64:
    """Compute the rows of tiles that cutting boxes copies: int64 (n, 2), the first and the last + 1.

    ``boxes`` and ``tilings`` are as in :func:`picstore.jpeg.cut.cut_batch`. A tiling without MCUs gives all rows, since
    its tiles are unknown.
    """
    height, mcu_height = tilings[:, HEIGHT], np.maximum(tilings[:, MCU_HEIGHT], 1)
    first = np.maximum(boxes[:, 1] - CUT_MARGIN, 0) // mcu_height
    stop = (np.minimum(boxes[:, 3] + CUT_MARGIN, height) - 1) // mcu_height + 1
    rows: I64 = np.stack([first, stop], axis=1)
    return rows


def find_restart_segments(jpeg: bytes | memoryview, header: Header) -> tuple[I64, I64]:
    """Find where every restart segment of the first scan begins and ends, markers not included.

    The stream, of which ``header`` is the header, has one interleaved scan. The results are int64 (segments,), byte
    offsets in the stream; without restart markers there is one segment.

    Raises:
        ImageError: the restart markers contradict the headers, or EOI is missing.
    """
    data = np.frombuffer(jpeg, dtype=np.uint8)[header.length :]
    # In entropy-coded data a 0xFF byte is followed by 0x00 (stuffing), by 0xFF (fill) or by a marker (B.1.1.5).
    offsets = np.flatnonzero(data[:-1] == 0xFF)
    codes = data[offsets + 1]
    is_marker = (codes != 0x00) & (codes != 0xFF)
    offsets, codes = offsets[is_marker], codes[is_marker]
    is_end = np.flatnonzero((codes < RST0) | (codes > RST7))
    if len(is_end) == 0 or codes[is_end[0]] != EOI:
        raise ImageError("the scan does not end in EOI: truncated, or it has more than one scan")
    restarts = is_end[0]
    columns, rows = header.mcus
    interval = header.restart_interval or columns * rows
    expected = -(-columns * rows // interval) - 1
    if restarts != expected:
        raise ImageError(f"{restarts} restart markers where the headers announce {expected}")
    if (codes[:restarts] != RST0 + np.arange(restarts) % 8).any():
        raise ImageError("restart markers are out of order")
    ends = offsets[: restarts + 1] + header.length
    starts = np.concatenate(([header.length], ends[:-1] + 2))
    return starts.astype(np.int64), ends.astype(np.int64)
