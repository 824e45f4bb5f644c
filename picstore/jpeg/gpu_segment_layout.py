"""Layout of the rows of integers that describe tiles of JPEGs to a decoder of segments on a GPU."""

from __future__ import annotations

# Words of an image, int64 (IMAGE_WORDS,).
# Size of all tiles in decoded pixels; sampling factors of luma; components; MCUs of a segment, and segments of a row.
(WIDTH, HEIGHT, ACROSS, DOWN, COMPONENTS, INTERVAL, PER_ROW) = range(7)
# For each of three components: tables for DC and AC, row of the quantization table, first byte of samples, and bytes
# between rows of samples. Decoding counts the first bytes from the first image that is decoded at once with this one.
DC, AC, QUANTIZATION, PLANE, STRIDE = 7, 10, 13, 16, 19
# Bytes between rows of pixels; first byte of the stream; number of segments that are held.
PITCH, DATA, HELD = 22, 23, 24
# Numbers of blocks, of entries of lookup tables, and of bytes of samples.
BLOCKS, ENTRIES, SAMPLES = range(25, 28)
# Numbers of blocks, entries, bytes of samples, bytes of pixels and parts of segments before the image; and the first
# word of the parts' rows, less PART_WORDS for each part before. Decoding counts these from the same first image.
FIRST_BLOCK, TABLES, FIRST_SAMPLE, PIXELS, FIRST_PART, PART_SHIFT = range(28, 34)
# Samples of a side that a block of luma becomes, and of chroma; samples of luma for one of chroma, across and down.
SIDE, WIDER, TALLER = 34, 36, 37
# Places of the Huffman tables in the memory that holds the tables of all images, written by decoding: the first byte of
# the codes, and the first int32 of the words. Decoding counts QUANTIZATION and DATA in this memory, too.
CODES, PLACES = 38, 39
IMAGE_WORDS = 40

# Words of a part of a segment, int32 (PART_WORDS,); a segment without entry points is one part. First byte in the
# stream, and number of bytes, which neighboring parts may share; first block; number of MCUs; bits before the first MCU
# in the first byte; bits after the last MCU in the last byte, WHOLE_BYTE for up to 7 bits of padding.
OFFSET, LENGTH, BLOCK, MCUS, BEFORE, AFTER = range(6)
PART_WORDS, WHOLE_BYTE = 6, 8

# Words of a Huffman table, int32 (4,): first entry, number of entries, windows of LOOKUP_BITS bits, 1 for DC.
FIRST_ENTRY, ENTRY_COUNT, SHORT, IS_DC = range(4)
HUFFMAN_TABLES = 4  # DC 0, DC 1, AC 0, AC 1
HUFFMAN_BYTES = 16 + 256  # numbers of codes by length, symbols

# A lookup table takes any code in one step. Canonical codes grow with their length, so all codes longer than
# LOOKUP_BITS lie at the end of the code space: each of the first SHORT windows of LOOKUP_BITS bits has an entry, and
# each window of 16 bits of the rest. With a bias of BIAS · SHORT an entry of either kind is the number
# max(next LOOKUP_BITS bits, next 16 bits - bias).
LOOKUP_BITS = 9
BIAS = (1 << (16 - LOOKUP_BITS)) - 1
# Tables begin at multiples of this number of entries. The words DC and AC of an image are first entry / UNIT << 16 |
# bias.
UNIT = 64

# Fields of an entry, a byte each: bits of code and value, bits of the value, and coefficients from one symbol to the
# next. An entry of NO_CODE is never taken, because it has more bits than a reader's buffer.
SIZE_SHIFT, SKIP_SHIFT, END_OF_BLOCK, NO_CODE = 8, 16, 128, 127
