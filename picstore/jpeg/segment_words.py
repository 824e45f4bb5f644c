"""Layout of the tables that describe tiles of JPEGs to a decoder of segments on a GPU: words of rows of integers."""

from __future__ import annotations

# Words of an image, int64 (IMAGE_WORDS,): size in pixels of its tiles together; sampling factors of the luma;
# components; MCUs of a segment, and segments in a row; the first block, and their number; of each component the tables
# for DC and AC, the row of its quantization, the first byte of its samples, and the bytes between rows of samples; the
# first byte of the pixels, and the bytes between rows of them; the first entry of the lookup tables; the first byte of
# the stream; bytes of samples; entries of lookup
# tables; segments that are held. Firsts are counted in the batch once it is known.
(WIDTH, HEIGHT, ACROSS, DOWN, COMPONENTS, INTERVAL, PER_ROW, FIRST_BLOCK, BLOCKS) = range(9)
DC, AC, QUANTIZATION, PLANE, STRIDE, PIXELS, PITCH = 9, 12, 15, 18, 21, 24, 25
TABLES, DATA, SAMPLES, ENTRIES, HELD = 26, 27, 28, 29, 30
IMAGE_WORDS = 32

# Words of a part of a segment, int32 (PART_WORDS,); a segment without entry points is one part. First byte in the
# stream, and number of bytes, which neighboring parts may share; first block; image; number of MCUs, and of bits before
# the first MCU in the first byte; bits after the last MCU in the last byte, WHOLE_BYTE for up to 7 of padding; a word
# of no use, as NumPy takes rows of 32 bytes five times as fast as rows of 28.
OFFSET, LENGTH, BLOCK, IMAGE, MCUS, BEFORE, AFTER = range(7)
PART_WORDS, WHOLE_BYTE = 8, 8

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
