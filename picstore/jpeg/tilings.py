"""Tilings: sizes and tiles of JPEGs as the columns of an array, and the rows of tiles in a cut."""

from __future__ import annotations

import numpy as np

from picstore.arrays import I64

WIDTH, HEIGHT, MCU_WIDTH, MCU_HEIGHT, INTERVAL, HEADER = range(6)  # columns, see ``cut.TiledJpegs``
CUT_MARGIN = 1  # pixels by which ``cut.py`` widens a box


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
