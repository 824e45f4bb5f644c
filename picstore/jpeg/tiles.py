"""Tiles: how many MCUs stand between two restart markers, so that a crop can be cut along them."""

from __future__ import annotations

from functools import lru_cache

TILE_WIDTH = 64  # pixels; docs/design.md has the sizes and speeds of 1 MCU to one row behind this figure


def mcu_size(*, components: int, subsampling: str) -> tuple[int, int]:
    """Width and height of an MCU in pixels (ITU-T T.81, A.2).

    Args:
        components: 1 (grey: an MCU is one 8 × 8 block, A.2.2) or 3.
        subsampling: ``"444"``, ``"422"``, ``"440"`` or ``"420"``; ignored for grey.
    """
    if components == 1:
        return 8, 8
    return {"444": (8, 8), "422": (16, 8), "440": (8, 16), "420": (16, 16)}[subsampling]


@lru_cache(maxsize=256)  # of a data set's images most have one of a few widths; 8 us each
def restart_interval(columns: int, mcu_width: int, *, tile_width: int = TILE_WIDTH) -> int:
    """MCUs between restart markers: the divisor of ``columns`` whose tile is nearest to ``tile_width``, at least half.

    A divisor, because the interval counts on across the ends of rows (T.81, B.2.4.4): only then does every row begin
    a segment and do the tiles form a grid. Nearest by ratio; of two equally near the smaller, which cuts closer. Not
    below half, because where the columns are prime the only other divisor is 1, and a marker behind every MCU adds 10
    to 33 % to a photograph; then the tile is the row.

    Args:
        columns: MCUs in a row of the image.
        mcu_width: pixels.
        tile_width: pixels wished for.
    """
    wide = (k for k in range(1, columns + 1) if columns % k == 0 and 2 * k * mcu_width >= tile_width)
    return min(wide, key=lambda k: (_ratio(k * mcu_width, tile_width), k), default=columns)


def _ratio(a: int, b: int) -> float:
    return max(a / b, b / a)
