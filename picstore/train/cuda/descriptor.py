"""The table by which a batch is described to the kernels: one row of 64-bit words for each image.

All that kernels must know of a batch travels in one copy, and takes one argument of a launch. Words are integers, or
the bits of float64. A table begins with its header; behind the fixed words of a row stand its variable parts, whose
places the row says.
"""

from __future__ import annotations

from picstore.train.cuda.triton_jit import device_function, tl

# Words of the header.
WIDTH_OF_ROW = tl.constexpr(0)
ROWS = tl.constexpr(1)
VALUES = tl.constexpr(2)  # of all outputs together
HEADER = tl.constexpr(3)

# Words of a row. Coordinates are pixels; of pairs, x comes first.
ADDRESS = tl.constexpr(0)  # of the source: planes of bytes, (height, width), without gaps
PLANE = tl.constexpr(1)  # bytes from one plane to the next, 0 for a grey image
SOURCE = tl.constexpr(2)  # width, height
CLIP = tl.constexpr(4)  # left, top, right, bottom
TURNED = tl.constexpr(8)  # 1 for what is not upright
FLIP = tl.constexpr(9)  # two of 0 or 1
TAPS = tl.constexpr(11)  # two: source pixels that the filter of an output pixel covers
MAP = tl.constexpr(13)  # six float64. Upright: start, scale, support, each of x and y. Turned: the matrix
FILL = tl.constexpr(19)  # red, green, blue
TARGET = tl.constexpr(22)  # where the output begins: values of outputs before it
SIZE = tl.constexpr(23)  # width, height of the output
TILES = tl.constexpr(25)  # of the output
EDGES = tl.constexpr(26)  # first word of the edges, and their number
STEPS = tl.constexpr(28)  # first word of the steps, and their number
PHASES = tl.constexpr(30)  # first word of the phases: the step with which each begins
FIXED = tl.constexpr(31)

EDGE = tl.constexpr(3)  # words of an edge: float64 a, b, c
STEP = tl.constexpr(10)  # words of a step: code, key, eight float64
KEY = tl.constexpr(1)
NUMBERS = tl.constexpr(2)

# Pixels of an output that one program makes, by 4 warps. A row of it is read and written side by side, and its rows
# share most of the source rows that they read. 72 registers a thread leave room for 7 programs on a multiprocessor of
# an H200; with 16 rows it would be 114 and 4.
TILE_WIDTH = tl.constexpr(32)
TILE_HEIGHT = tl.constexpr(8)


@device_function
def real(row, word):  # type: ignore[no-untyped-def]
    """A word as float64."""
    return tl.load(row + word).to(tl.float64, bitcast=True)


@device_function
def single(row, word):  # type: ignore[no-untyped-def]
    """A word that is a float64, as float32."""
    return tl.load(row + word).to(tl.float64, bitcast=True).to(tl.float32)


@device_function
def whole(row, word):  # type: ignore[no-untyped-def]
    """A word as int32."""
    return tl.load(row + word).to(tl.int32)


@device_function
def level(row, word):  # type: ignore[no-untyped-def]
    """A word that is an integer, as float32."""
    return tl.load(row + word).to(tl.float32)
