"""Layout of the tables that describe tiles of JPEGs to a decoder of segments on a GPU: words of rows of integers."""

from __future__ import annotations

# Words of an image, int64 (IMAGE_WORDS,): size of its tiles together in decoded pixels; sampling factors of the luma;
# components; MCUs of a segment, and segments in a row; of each component the tables for DC and AC, the row of its
# quantization, the first byte of its samples, and the bytes between rows of samples; bytes between rows of pixels; the
# first byte of the stream; segments that are held; numbers of blocks, of entries of lookup tables, and of bytes of
# samples. Then what lies before the image: blocks, entries, bytes of samples, bytes of pixels, and parts of segments;
# and the first word of the parts' rows, less PART_WORDS for each part before. Decoding counts these words, and the
# first bytes of samples, from the first image that is decoded at once with this one. Then samples of a side that a
# block becomes, of luma and of chroma; and samples of luma for one of chroma, across and down. Last, the places of the
# image's Huffman tables in the memory that the tables of all images are copied to: the first byte of their codes, and
# the first int32 of their words. Decoding writes both. In that memory it counts the rows of quantization and the first
# byte of the stream too.
(WIDTH, HEIGHT, ACROSS, DOWN, COMPONENTS, INTERVAL, PER_ROW) = range(7)
DC, AC, QUANTIZATION, PLANE, STRIDE, PITCH, DATA, HELD = 7, 10, 13, 16, 19, 22, 23, 24
BLOCKS, ENTRIES, SAMPLES = range(25, 28)
FIRST_BLOCK, TABLES, FIRST_SAMPLE, PIXELS, FIRST_PART, PART_SHIFT = range(28, 34)
SIDE, WIDER, TALLER = 34, 36, 37
CODES, PLACES = 38, 39
IMAGE_WORDS = 40

# Words of a part of a segment, int32 (PART_WORDS,); a segment without entry points is one part. First byte in the
# stream, and number of bytes, which neighboring parts may share; first block; number of MCUs, and of bits before the
# first MCU in the first byte; bits after the last MCU in the last byte, WHOLE_BYTE for up to 7 of padding.
OFFSET, LENGTH, BLOCK, MCUS, BEFORE, AFTER = range(6)
PART_WORDS, WHOLE_BYTE = 6, 8

# Words of a Huffman table, int32 (4,): first entry, number of entries, windows of LOOKUP_BITS bits, 1 for DC.
FIRST_ENTRY, ENTRY_COUNT, SHORT, IS_DC = range(4)
HUFFMAN_TABLES = 4  # of an image: DC 0, DC 1, AC 0, AC 1
HUFFMAN_BYTES = 16 + 256  # numbers of codes by length, symbols

# A lookup table takes any code in one step. Canonical codes grow with their length, so all codes longer than
# LOOKUP_BITS lie at the end of the code space: each of the first SHORT windows of LOOKUP_BITS bits has an entry, and
# each window of 16 bits of the rest. With a bias of BIAS · SHORT an entry of either kind is the number
# max(next LOOKUP_BITS bits, next 16 bits - bias).
LOOKUP_BITS = 9
BIAS = (1 << (16 - LOOKUP_BITS)) - 1
UNIT = 64  # entries: tables begin at multiples of it; its number << 16 | bias are an image's words for DC and AC

# Fields of an entry, a byte each: bits of code and value, bits of the value, and coefficients from one symbol to the
# next. No code has more bits than a reader's buffer, so that none ever takes an entry of NO_CODE.
SIZE_SHIFT, SKIP_SHIFT, END_OF_BLOCK, NO_CODE = 8, 16, 128, 127
