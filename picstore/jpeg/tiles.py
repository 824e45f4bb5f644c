"""Tile width: the number of MCUs between two restart markers, along which crops are cut."""

from __future__ import annotations

from functools import lru_cache

# A block of 64 pixels takes a bit or more for its DC coefficient in any Huffman-coded JPEG, and baseline ones take two.
MAX_PIXELS_A_BYTE = 8 * 64
TILE_WIDTH = 64  # pixels; docs/measurements.md has sizes and speeds of tiles from 1 MCU to one row


def mcu_size(*, components: int, subsampling: str) -> tuple[int, int]:
    """Return width and height of an MCU in pixels, for 1 component, whatever the subsampling, or 3 (T.81, A.2)."""
    sizes = {"444": (8, 8), "422": (16, 8), "440": (8, 16), "420": (16, 16)}
    return (8, 8) if components == 1 else sizes[subsampling]


@lru_cache(maxsize=256)  # most images of a data set have one of a few widths; 8 us each
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
