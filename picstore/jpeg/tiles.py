"""Tile width: the number of MCUs between two restart markers, along which crops are cut."""

from __future__ import annotations

from functools import lru_cache

TILE_WIDTH = 64  # pixels; docs/measurements.md has sizes and speeds of tiles from 1 MCU to one row


def mcu_size(*, components: int, subsampling: str) -> tuple[int, int]:
    """Return width and height of an MCU in pixels (ITU-T T.81, A.2).

    Args:
        components: 1 (grey: an MCU is one 8 × 8 block, A.2.2) or 3.
        subsampling: ``"444"``, ``"422"``, ``"440"`` or ``"420"``; ignored for grey.
    """
    if components == 1:
        return 8, 8
    return {"444": (8, 8), "422": (16, 8), "440": (8, 16), "420": (16, 16)}[subsampling]


@lru_cache(maxsize=256)  # most images of a data set have one of a few widths; 8 us each
def restart_interval(columns: int, mcu_width: int, *, tile_width: int = TILE_WIDTH) -> int:
    """Choose the MCUs between restart markers: the divisor of ``columns`` whose tile is nearest to ``tile_width``.

    The interval is a divisor because it counts on across the ends of rows (T.81, B.2.4.4): only then does every row
    begin a segment, and the tiles form a grid. Nearest is by ratio; of two equally near the smaller is chosen, which
    cuts closer. No tile is narrower than half of ``tile_width``: where the columns are prime the only other divisor is
    1, and a marker after every MCU adds 10 to 33 % to a photograph; the tile is then the whole row.

    Args:
        columns: MCUs in a row of the image.
        mcu_width: pixels.
        tile_width: pixels.
    """
    wide = (k for k in range(1, columns + 1) if columns % k == 0 and 2 * k * mcu_width >= tile_width)
    return min(wide, key=lambda k: (_ratio(k * mcu_width, tile_width), k), default=columns)


def _ratio(a: int, b: int) -> float:
    return max(a / b, b / a)
