"""Layout of descriptors: the 64-bit words that describe each image of a batch to the kernels.

All descriptors of a batch reach the GPU in one copy and are one argument of a launch. Words are integers, or the bits
of float64. The table begins with a header. After the fixed words of a descriptor come its variable parts, whose offsets
are among the fixed words.
"""

from __future__ import annotations

from picstore.train.cuda.triton_jit import device_function, tl

# Words of the header.
DESCRIPTOR_WORDS = tl.constexpr(0)
IMAGES = tl.constexpr(1)
VALUES = tl.constexpr(2)  # of all outputs
COUNTS = tl.constexpr(3)  # address of int32 (phases, images, 3, 256): pixels of each level, zero before phase 0
TABLES = tl.constexpr(4)  # address of uint8 (images, 3, 256): the level that each level becomes
MIXED = tl.constexpr(5)  # address of float32, one for each value of the outputs: sums of chains
ORIGINALS = tl.constexpr(6)  # address of uint8, one for each value: the images that chains begin with
WEIGHTS = tl.constexpr(7)  # address of int32: weights of source pixels, see ``filter_weights.py``
SMOOTHING = tl.constexpr(8)  # word offset of the weights of blurs: float32, rows of one size
SMOOTHING_PITCH = tl.constexpr(9)  # float32 from one row to the next
HEADER = tl.constexpr(10)

# Words of a descriptor. Coordinates are in pixels; x precedes y.
ADDRESS = tl.constexpr(0)  # of the source: planes of bytes, (height, width)
PLANE = tl.constexpr(1)  # bytes from one plane to the next, 0 for a grey image
SOURCE = tl.constexpr(2)  # width, height
CLIP = tl.constexpr(4)  # left, top, right, bottom
SLANTED = tl.constexpr(8)  # 1 if the image is not upright
FLIP = tl.constexpr(9)  # 0 or 1 for x, y
WINDOW = tl.constexpr(11)  # source pixels that the filter of an output pixel may reach, along x, y
MAP = tl.constexpr(13)  # six float64. Upright: start, scale, support, each of x and y. Slanted: the matrix
FILL = tl.constexpr(19)  # red, green, blue
OFFSET = tl.constexpr(22)  # of the output in working memory: values of the outputs before it
SIZE = tl.constexpr(23)  # width, height of the output
TILES = tl.constexpr(25)  # of the output
EDGES = tl.constexpr(26)  # word offset of the edges, and their number
STEPS = tl.constexpr(28)  # word offset of the steps, and their number
PHASES = tl.constexpr(30)  # word offset of the phases: the first step of each
FILTER = tl.constexpr(31)  # interpolation, as in kernels/filters.py, and 1 if it is antialiased
PITCH = tl.constexpr(33)  # bytes from one row of the source to the next
AXES = tl.constexpr(34)  # of the weights, along x, y: int32 before them
OUTPUT = tl.constexpr(36)  # address of the output: batches of one table have memory of their own
FIXED = tl.constexpr(37)

EDGE = tl.constexpr(3)  # words of an edge: float64 a, b, c
STEP = tl.constexpr(14)  # words of a step: opcode, key, twelve float64
KEY = tl.constexpr(1)
OPERANDS = tl.constexpr(2)

# Pixels of a tile, which one program makes by 4 warps. Accesses to a row of it are coalesced, and its rows share most
# of the source rows that they read. 80 registers a thread allow 6 programs on a multiprocessor of an H200; with 16 rows
# it would be 114 registers and 4 programs.
TILE_WIDTH = tl.constexpr(32)
TILE_HEIGHT = tl.constexpr(8)


@device_function
def find_descriptor(table):
    """Find the descriptor of this program's image, the second index of a grid."""
    return table + HEADER + tl.program_id(1) * tl.load(table + DESCRIPTOR_WORDS)


@device_function
def load_f64(words, index):
    """Load a float64 word."""
    return tl.load(words + index).to(tl.float64, bitcast=True)


@device_function
def load_f32(words, index):
    """Load a float64 word as float32."""
    return tl.load(words + index).to(tl.float64, bitcast=True).to(tl.float32)


@device_function
def load_i32(words, index):
    """Load an integer word as int32."""
    return tl.load(words + index).to(tl.int32)


@device_function
def load_level(words, index):
    """Load an integer word as float32."""
    return tl.load(words + index).to(tl.float32)
