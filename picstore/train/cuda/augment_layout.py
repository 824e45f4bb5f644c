"""Layout of a batch's descriptors: the 64-bit words that describe each image to the kernels of augmentation.

All descriptors of a batch reach the GPU in one copy and are one argument of a launch. Words are integers, or the bits
of float64. After a header, each descriptor has fixed words, then variable parts, whose offsets are fixed words.
"""

from __future__ import annotations

from picstore.train.cuda.triton_jit import device_function, tl

# Indices of words of a table's header; the comment after each index says what the word holds.
DESCRIPTOR_WORDS = tl.constexpr(0)  # word: number of words of a descriptor, which describes an image
IMAGES = tl.constexpr(1)  # word: number of images
VALUES = tl.constexpr(2)  # word: number of values (3 · width · height) of all outputs together
# Word: address of int32 (phases, images, 3, 256): number of pixels with each level after a phase; zero before phase 0.
COUNTS = tl.constexpr(3)
TABLES = tl.constexpr(4)  # word: address of uint8 (images, 3, 256): each level's new value by autocontrast or equalize
MIXED = tl.constexpr(5)  # word: address of float32, for each value of the outputs: sum of AugMix's chains so far
ORIGINALS = tl.constexpr(6)  # word: address of uint8, for each value of the outputs: its level before AugMix's chains
WEIGHTS = tl.constexpr(7)  # word: address of int32, the weights of source pixels, see ``gpu_filter_weights.py``
SMOOTHING = tl.constexpr(8)  # word: index in the table at which the blur weights, rows of float32, begin
SMOOTHING_PITCH = tl.constexpr(9)  # word: number of float32 from one row of blur weights to the next
HEADER = tl.constexpr(10)

# Indices of words of an image's descriptor, or of the first of several words that belong together; the comment after
# each index says what the words hold. Coordinates are in pixels; x precedes y.
ADDRESS = tl.constexpr(0)  # word: address of the source image: planes of bytes, red, green and blue or only grey
PLANE = tl.constexpr(1)  # word: number of bytes from a color's plane of the source to the next color's, 0 for grey
SOURCE = tl.constexpr(2)  # two words: width and height of the source
CLIP = tl.constexpr(4)  # four words: left, top, right, bottom of the source pixels that the filter may use
SLANTED = tl.constexpr(8)  # word: 1 if the image is rotated or sheared, 0 if it is upright
FLIP = tl.constexpr(9)  # two words: 1 to mirror along x, and 1 to mirror along y
WINDOW = tl.constexpr(11)  # two words: number of source pixels that one output pixel's filter covers, along x and y
# Six float64. Upright image: left and top of the box to resample; source pixels per output pixel, and half-width of the
# filter in source pixels, each along x and y. Slanted image: matrix (2, 3) from output pixels to source pixels.
MAP = tl.constexpr(13)
FILL = tl.constexpr(19)  # three words: red, green, blue of output pixels outside of the image
OFFSET = tl.constexpr(22)  # word: number of values (3 · width · height) of all outputs before this image's output
SIZE = tl.constexpr(23)  # two words: width and height of the output
TILES = tl.constexpr(25)  # word: number of tiles, TILE_WIDTH × TILE_HEIGHT pixels each, that cover the output
EDGES = tl.constexpr(26)  # two words: index in the descriptor of the first edge (see EDGE), and number of edges
STEPS = tl.constexpr(28)  # two words: index in the descriptor of the first color step, and number of color steps
PHASES = tl.constexpr(30)  # word: index in the descriptor of the list of each phase's first step
FILTER = tl.constexpr(31)  # two words: code of kernels/filters.py, and 1 for antialiasing
PITCH = tl.constexpr(33)  # word: number of bytes from a row of the source to the next
AXES = tl.constexpr(34)  # two words: index, in the memory at ``WEIGHTS``, of the image's first int32 for x, and for y
OUTPUT = tl.constexpr(36)  # word: address of the output
FIXED = tl.constexpr(37)

EDGE = tl.constexpr(3)  # number of words of an edge, the half-plane a·x + b·y + c ≥ 0: float64 a, b, c
STEP = tl.constexpr(14)  # number of words of a color step: opcode, key, twelve float64 operands
KEY = tl.constexpr(1)
OPERANDS = tl.constexpr(2)

# Width and height of a tile, the part of an output that one program computes with 4 warps. Accesses to a row of a tile
# are coalesced, and its rows read mostly the same source rows. 8 rows take 80 registers a thread, so that 6 programs
# run on a multiprocessor of an H200; 16 rows would take 114 registers and allow 4 programs.
TILE_WIDTH = tl.constexpr(32)
TILE_HEIGHT = tl.constexpr(8)


@device_function
def find_descriptor(table):
    """Return the address in ``table`` of the descriptor of this program's image, whose index is tl.program_id(1)."""
    return table + HEADER + tl.program_id(1) * tl.load(table + DESCRIPTOR_WORDS)


@device_function
def load_f64(words, index):
    """Load ``words[index]``, which holds a float64."""
    return tl.load(words + index).to(tl.float64, bitcast=True)


@device_function
def load_f32(words, index):
    """Load ``words[index]``, which holds a float64, and convert it to float32."""
    return tl.load(words + index).to(tl.float64, bitcast=True).to(tl.float32)


@device_function
def load_i32(words, index):
    """Load ``words[index]``, which holds an integer, and convert it to int32."""
    return tl.load(words + index).to(tl.int32)


@device_function
def load_level(words, index):
    """Load ``words[index]``, which holds an integer, and convert it to float32."""
    return tl.load(words + index).to(tl.float32)
