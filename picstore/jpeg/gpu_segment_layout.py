"""Layout of the integers that describe tiles of JPEGs to the decoder of restart segments on a GPU."""

from __future__ import annotations

# Indices of the words (integers) that describe an image, int64 (IMAGE_WORDS,). WIDTH, HEIGHT: size of all tiles in
# decoded pixels. ACROSS, DOWN: sampling factors of the luma. COMPONENTS: number of components. INTERVAL: number of MCUs
# in a segment. PER_ROW: number of segments in a row of tiles.
(WIDTH, HEIGHT, ACROSS, DOWN, COMPONENTS, INTERVAL, PER_ROW) = range(7)
# Indices of the first of three adjacent words of an image, one for each component. DC, AC: place of the lookup table
# (see UNIT). QUANTIZATION: row of the quantization table. PLANE: offset of the samples in the image, or during
# decoding, in the batch. STRIDE: bytes from one row of samples to the next.
DC, AC, QUANTIZATION, PLANE, STRIDE = 7, 10, 13, 16, 19
# Further words of an image. PITCH: bytes from one row of pixels to the next. DATA: offset of the stream's first byte.
# HELD: number of segments in the copied rows of tiles.
PITCH, DATA, HELD = 22, 23, 24
# Words with counts. BLOCKS: blocks of the image. ENTRIES: entries of its lookup tables. SAMPLES: bytes of its samples.
BLOCKS, ENTRIES, SAMPLES = range(25, 28)
# Words with sums over previous images of the batch: blocks, lookup-table entries, bytes of samples, bytes of pixels,
# parts of segments. PART_SHIFT: for a part of this image that is number p of the batch, the index of the part's first
# word is PART_WORDS · p + this word.
FIRST_BLOCK, TABLES, FIRST_SAMPLE, PIXELS, FIRST_PART, PART_SHIFT = range(28, 34)
# SIDE: samples per side of a decoded luma block; the next word has the same number for a chroma block. WIDER, TALLER:
# luma samples per chroma sample, across and down.
SIDE, WIDER, TALLER = 34, 36, 37
# Two words, set just before decoding, say where the image's four Huffman tables are in the memory of all batches.
# CODES: offset in bytes of their counts and symbols. PLACES: offset in int32 of their words FIRST_ENTRY to IS_DC. At
# the same time, QUANTIZATION and DATA are changed to count from the beginning of this memory.
CODES, PLACES = 38, 39
IMAGE_WORDS = 40

# Indices of the words that describe a part of a segment, int32 (PART_WORDS,); a segment without entry points is one
# part. OFFSET: offset of the first byte in the stream. LENGTH: number of bytes; neighboring parts may share a byte.
# BLOCK: index of the first block. MCUS: number of MCUs. BEFORE: bits before the first MCU in the first byte. AFTER:
# bits after the last MCU in the last byte, or WHOLE_BYTE for up to 7 bits of padding.
OFFSET, LENGTH, BLOCK, MCUS, BEFORE, AFTER = range(6)
PART_WORDS, WHOLE_BYTE = 6, 8

# Indices of the words that describe a Huffman table, int32 (4,): index of its first entry, number of its entries, SHORT
# (see LOOKUP_BITS), and whether it is for DC.
FIRST_ENTRY, ENTRY_COUNT, SHORT, IS_DC = range(4)
HUFFMAN_TABLES = 4  # number of an image's Huffman tables: DC 0, DC 1, AC 0 and AC 1
HUFFMAN_BYTES = 16 + 256  # bytes of a Huffman table: number of codes of each length, then symbols

# A lookup table resolves any code in one step. Canonical codes increase with their length, so all codes longer than
# LOOKUP_BITS come last. The table has an entry for each of the first SHORT numbers of LOOKUP_BITS bits, which begin
# with shorter codes, then an entry for each 16-bit number beyond them. With a bias of BIAS · SHORT, the index of either
# kind of entry is max(next LOOKUP_BITS bits, next 16 bits - bias).
LOOKUP_BITS = 9
BIAS = (1 << (16 - LOOKUP_BITS)) - 1
# Tables begin at multiples of UNIT entries. An image's words DC and AC are (first entry / UNIT) << 16 | bias.
UNIT = 64

# Fields of a lookup-table entry, one byte each: number of bits of code and value; at SIZE_SHIFT, number of bits of the
# value; at SKIP_SHIFT, number of coefficients up to the next symbol, or END_OF_BLOCK. A window that begins with no code
# has the entry NO_CODE, which states more bits than a reader holds, and so is never taken.
SIZE_SHIFT, SKIP_SHIFT, END_OF_BLOCK, NO_CODE = 8, 16, 128, 127
