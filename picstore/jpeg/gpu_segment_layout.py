"""Layout of the integers that describe tiles of JPEGs to the decoder of restart segments on a GPU."""

from __future__ import annotations

# Words that describe an image, int64 (IMAGE_WORDS,): width and height of all tiles in decoded pixels; sampling factors
# of the luma; number of components; number of MCUs in a segment; number of segments in a row of tiles.
(WIDTH, HEIGHT, ACROSS, DOWN, COMPONENTS, INTERVAL, PER_ROW) = range(7)
# First of three adjacent words, one per component: DC table, AC table, row of the quantization table, offset of the
# samples, and bytes between rows of samples. For decoding, the offset counts from the batch's first sample.
DC, AC, QUANTIZATION, PLANE, STRIDE = 7, 10, 13, 16, 19
# Bytes from one row of pixels to the next; offset of the stream's first byte; number of segments in the copied rows of
# tiles.
PITCH, DATA, HELD = 22, 23, 24
# Number of blocks of the image, of its lookup-table entries, and of bytes of its samples.
BLOCKS, ENTRIES, SAMPLES = range(25, 28)
# Sums over previous images of the batch: blocks, lookup-table entries, bytes of samples, bytes of pixels, parts of
# segments. PART_SHIFT: number that, added to PART_WORDS · p, is the index of the first word of part p of the batch, if
# part p belongs to this image.
FIRST_BLOCK, TABLES, FIRST_SAMPLE, PIXELS, FIRST_PART, PART_SHIFT = range(28, 34)
# Samples per side of a decoded luma block, then of a chroma block; luma samples per chroma sample, across and down.
SIDE, WIDER, TALLER = 34, 36, 37
# Offsets of the image's Huffman tables in the memory that holds the tables of all images, set before decoding: of the
# codes in bytes, and of the words in int32. QUANTIZATION and DATA then become offsets in this memory, too.
CODES, PLACES = 38, 39
IMAGE_WORDS = 40

# Words that describe a part of a segment, int32 (PART_WORDS,); a segment without entry points is one part. Offset of
# the first byte in the stream, and number of bytes, which neighboring parts may share; index of the first block; number
# of MCUs; bits before the first MCU in the first byte; bits after the last MCU in the last byte, WHOLE_BYTE for up to 7
# bits of padding.
OFFSET, LENGTH, BLOCK, MCUS, BEFORE, AFTER = range(6)
PART_WORDS, WHOLE_BYTE = 6, 8

# Words that describe a Huffman table, int32 (4,): index of its first entry, number of entries, SHORT (see LOOKUP_BITS),
# and whether it is for DC.
FIRST_ENTRY, ENTRY_COUNT, SHORT, IS_DC = range(4)
HUFFMAN_TABLES = 4  # DC 0, DC 1, AC 0 and AC 1
HUFFMAN_BYTES = 16 + 256  # number of codes of each length, then symbols

# A lookup table resolves any code in one step. Canonical codes increase with their length, so all codes longer than
# LOOKUP_BITS lie at the end of the code space: each of the first SHORT windows of LOOKUP_BITS bits has an entry, and
# each 16-bit window of the remaining code space has one. With a bias of BIAS · SHORT, the index of either kind of entry
# is max(next LOOKUP_BITS bits, next 16 bits - bias).
LOOKUP_BITS = 9
BIAS = (1 << (16 - LOOKUP_BITS)) - 1
# Tables begin at multiples of this number of entries. An image's words DC and AC are first entry / UNIT << 16 | bias.
UNIT = 64

# Fields of an entry, one byte each: number of bits of code and value, number of bits of the value, and coefficients
# from one symbol to the next. A window that no code begins has the entry NO_CODE: more bits than a reader holds, so it
# is never taken.
SIZE_SHIFT, SKIP_SHIFT, END_OF_BLOCK, NO_CODE = 8, 16, 128, 127
