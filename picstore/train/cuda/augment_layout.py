"""Layout of a batch's descriptors: the 64-bit words that describe each image to the kernels of augmentation.

All descriptors of a batch reach the GPU in one copy and are one argument of a launch. Words are integers, or the bits
of float64. After a header, each descriptor has fixed words, then variable parts, whose offsets are fixed words.
"""

from __future__ import annotations

from picstore.train.cuda.triton_jit import device_function, tl

# Words of the header.
DESCRIPTOR_WORDS = tl.constexpr(0)
IMAGES = tl.constexpr(1)
VALUES = tl.constexpr(2)  # number of values of all outputs
# Address of int32 (phases, images, 3, 256): numbers of pixels of each level, zero before phase 0.
COUNTS = tl.constexpr(3)
TABLES = tl.constexpr(4)  # address of uint8 (images, 3, 256): new levels
# Addresses of a float32, and of a uint8, for each value of the outputs: sums of AugMix's chains, and original images.
MIXED = tl.constexpr(5)
ORIGINALS = tl.constexpr(6)
WEIGHTS = tl.constexpr(7)  # address of int32, see ``gpu_filter_weights.py``
SMOOTHING = tl.constexpr(8)  # word offset of rows of blur weights, float32
SMOOTHING_PITCH = tl.constexpr(9)  # number of float32 from row to row
HEADER = tl.constexpr(10)

# Words of a descriptor. Coordinates are in pixels; x precedes y.
ADDRESS = tl.constexpr(0)  # address of the source: planes of bytes
PLANE = tl.constexpr(1)  # bytes from plane to plane, 0 for grey
SOURCE = tl.constexpr(2)  # width, height
CLIP = tl.constexpr(4)  # left, top, right, bottom
SLANTED = tl.constexpr(8)  # 1 if the image is not upright
FLIP = tl.constexpr(9)  # 1 to mirror along x, y
WINDOW = tl.constexpr(11)  # number of source pixels that a filter reaches, along x, y
# Six float64: start, scale and support of x and y for an upright image, the matrix for a slanted image.
MAP = tl.constexpr(13)
FILL = tl.constexpr(19)  # red, green, blue
OFFSET = tl.constexpr(22)  # number of values of all previous outputs
SIZE = tl.constexpr(23)  # width, height of the output
TILES = tl.constexpr(25)  # number of tiles of the output
EDGES = tl.constexpr(26)  # word offset of the edges, and their number
STEPS = tl.constexpr(28)  # word offset of the steps, and their number
PHASES = tl.constexpr(30)  # word offset of the phases' first steps
FILTER = tl.constexpr(31)  # code of kernels/filters.py, and 1 for antialiasing
PITCH = tl.constexpr(33)  # bytes from row to row of the source
AXES = tl.constexpr(34)  # number of int32 in ``WEIGHTS`` before the weights along x, y
OUTPUT = tl.constexpr(36)  # address of the output
FIXED = tl.constexpr(37)

EDGE = tl.constexpr(3)  # words of an edge: float64 a, b, c
STEP = tl.constexpr(14)  # words of a step: opcode, key, twelve float64
KEY = tl.constexpr(1)
OPERANDS = tl.constexpr(2)

# Pixels of a tile, which one program makes with 4 warps. Accesses to a row of a tile are coalesced, and rows share most
# of the source rows that they read. 80 registers a thread allow 6 programs on a multiprocessor of an H200; 16 rows
# would take 114 registers and allow 4 programs.
TILE_WIDTH = tl.constexpr(32)
TILE_HEIGHT = tl.constexpr(8)


@device_function
def find_descriptor(table):
    """Return the address of the descriptor of the program's image, whose index is ``tl.program_id(1)``."""
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
