"""Description of tiles of JPEGs for a decoder of segments on a GPU: the tiles' bytes, and tables of numbers.

For each image, the headers and the rows of tiles that a box touches are copied unchanged. The copy is a JPEG of these
rows, except for the height in the headers (``box.py`` can decode the copy too). Rows of ``gpu_segment_layout.py`` say
where the box's segments, or the parts between entry points, lie in the copy, and which blocks they hold. Huffman codes
stay as in the headers; the GPU builds lookup tables from them.
"""

from __future__ import annotations

import numpy as np

from picstore.jpeg import gpu_segment_layout as words
from picstore.jpeg.bit_reader import BAD_MARKER, TOO_SHORT
from picstore.jpeg.cut import holds_box, is_grid
from picstore.jpeg.decoder import parse
from picstore.jpeg.decoder.box import NO_GRID, OUTSIDE, has_tiling, least_width
from picstore.jpeg.decoder.scan import block_sides
from picstore.jpeg.tiles import CUT_MARGIN, HEADER, HEIGHT, INTERVAL, MCU_HEIGHT, MCU_WIDTH, WIDTH
from picstore.kernels.jit import array_at, copy_bytes, device_function, inlined, kernel
from picstore.kernels.simd import load_byte

# Spare bytes for a stream: up to 7 to begin it at a multiple of 8, and 8 that the GPU reads beyond the stream's end.
_ROOM = 16
# Error code for entry points that do not lie within their segments.
WRONG_ENTRY_POINTS = -31
_u64 = np.uint64


_STREAMS = "Tuple((uint64[:, ::1], int64[:, ::1], int64[:, ::1], int64[:, ::1], int64[::1], int64[:, ::1]))"


@kernel(f"void({_STREAMS}, int64[::1], int64[::1])")
def measure_tiles(streams, starts, firsts):
    """Compute where ``describe_tiles`` is to write each image: the offset of its bytes, and its first row.

    Args:
        streams: argument of ``describe_tiles``.
        starts: int64 (images + 1,), takes the offset of each image, a multiple of 8; last, the number of bytes.
        firsts: int64 (images + 1,), takes the index of each image's first row; last, the number of rows. There is a row
            for each part of a segment.
    """
    addresses, sizes, tilings, boxes, factors, points = streams
    rect, tiles = np.empty(4, np.int64), np.empty(4, np.int64)
    starts[0] = firsts[0] = 0
    for i in range(sizes.shape[0]):
        lengths, tiling = array_at(addresses[i, 1], sizes[i, 1], np.uint16), tilings[i]
        starts[i + 1], firsts[i + 1] = starts[i], firsts[i]
        if is_grid(sizes[i, 0], tiling, lengths) and holds_box(tiling, boxes[i]):
            _choose_tiles(tiling, boxes[i], factors[i], rect, tiles)
            held, per_row = tiling[HEADER], _tiles_of_row(tiling, lengths)
            for k in range(tiles[1] * per_row, tiles[3] * per_row):
                held += np.int64(lengths[k]) + 2
            starts[i + 1] += (held + 7) // 8 * 8 + _ROOM
            firsts[i + 1] += _parts_of_rows(tiling, lengths, tiles, points[i])


@kernel(
    f"void(UniTuple(int64, 2), {_STREAMS}, "
    "Tuple((uint8[::1], int64[::1])), Tuple((int32[:, ::1], uint16[::1], int64[::1])), "
    "Tuple((int64[:, ::1], int64[:, ::1], int64[:, ::1])), Tuple((uint8[:, ::1], int32[:, ::1], int16[:, ::1])))"
)
def describe_tiles(slots, streams, data, segments, images, tables):
    """Copy the tiles under the boxes of some images, and describe the images, their segments and tables.

    Descriptions consist of words, the integers that ``gpu_segment_layout.py`` names. Entry points divide a segment into
    parts.

    Args:
        slots: index of the first image to copy and describe, and of the last such image + 1.
        streams: six arrays: addresses, sizes and tilings of ``jpeg.cut.TiledJpegs`` of n images; boxes (n, 4): left,
            top, right and bottom in pixels, not empty, within the image; factors (n,): 1, 2, 4 or 8, by which decoding
            divides the sides; entry points (n, 2): their address, and the number of MCUs from one entry point to the
            next, less than the restart interval; this number is 0 if there are no entry points, −1 if they are
            impossible.
        data: two arrays: uint8, takes the copied bytes; and ``starts`` of ``measure_tiles``.
        segments: three arrays: int32 (parts, PART_WORDS), takes the words of each part; uint16, takes the lengths of
            all copied segments; and ``firsts`` of ``measure_tiles``.
        images: three arrays, int64: (n, IMAGE_WORDS), takes the words of each image; (n, 4), takes left, top, width and
            height of its tiles; (n, 4), takes a code, negative if the GPU cannot decode the image, and the numbers of
            parts, lengths and bytes.
        tables: three arrays, four rows per image: uint8 (4 n, HUFFMAN_BYTES) and int32 (4 n, 4), take Huffman tables;
            int16 (4 n, 64), takes quantization tables, in zigzag order.
    """
    addresses, sizes, tilings, boxes, factors, points = streams
    rows, rects, results = images
    frame, tiles = np.empty(parse.FRAME, np.int64), np.empty(4, np.int64)
    for i in range(slots[0], slots[1]):
        source = array_at(addresses[i, 0], sizes[i, 0], np.uint8)
        lengths = array_at(addresses[i, 1], sizes[i, 1], np.uint16)
        results[i, 0] = _check(source, lengths, tilings[i], boxes[i], frame)
        if results[i, 0] == 0:
            _choose_tiles(tilings[i], boxes[i], factors[i], rects[i], tiles)
            if _parts_of_rows(tilings[i], lengths, tiles, points[i]) > segments[2][i + 1] - segments[2][i]:
                results[i, 0] = NO_GRID
        if results[i, 0] == 0:
            target = data[0], data[1][i], data[1][i + 1]
            stream = source, lengths, tilings[i], points[i]
            _copy_rows(stream, tiles, target, segments, i, parse.blocks_of_mcu(frame), rows[i], results[i])
        if results[i, 0] == 0:
            _describe_planes(frame, tilings[i], rects[i], tiles, factors[i], rows[i])
            rows[i, words.DATA] = data[1][i]
            _copy_tables(frame, i, rows[i], tables)


@device_function
def _check(source, lengths, tiling, box, frame):
    """Parse the headers, and check the restart markers if no tile will be left out; return 0 or a negative code."""
    if not is_grid(source.size, tiling, lengths):
        return NO_GRID
    if not holds_box(tiling, box):
        return OUTSIDE
    code = parse.parse_frame(_u64(source.ctypes.data), source.size, frame, _u64(0))
    if code:
        return code
    if not has_tiling(frame, tiling):
        return NO_GRID
    if box[0] > 0 or box[1] > 0 or box[2] < tiling[WIDTH] or box[3] < tiling[HEIGHT]:
        # Only some tiles are decoded. ``box.py``, which decodes them on the CPU, does not check restart markers either.
        return 0
    if frame[parse.HEIGHT] != tiling[HEIGHT]:
        return NO_GRID
    end = tiling[HEADER]
    for k in range(lengths.size):
        end += np.int64(lengths[k]) + 2
        marker = 0xD9 if k == lengths.size - 1 else 0xD0 + k % 8
        if source[end - 2] != 0xFF or source[end - 1] != marker:
            return BAD_MARKER
    return 0


@device_function
def _choose_tiles(tiling, box, factor, rect, tiles):
    """Write to ``tiles`` which tiles a box needs, and to ``rect`` left, top, width and height of the tiles' pixels.

    ``tiles`` takes first column, first row, last column + 1, last row + 1. Because chroma is interpolated, the box is
    first widened by CUT_MARGIN on each side, and to at least ``least_width``.
    """
    width, height = tiling[WIDTH], tiling[HEIGHT]
    tile_width, tile_height = tiling[INTERVAL] * tiling[MCU_WIDTH], tiling[MCU_HEIGHT]
    least = min(least_width(factor), width)
    tiles[0] = min(max(box[0] - CUT_MARGIN, 0), width - least) // tile_width
    tiles[1] = max(box[1] - CUT_MARGIN, 0) // tile_height
    rect[0], rect[1] = tiles[0] * tile_width, tiles[1] * tile_height
    tiles[2] = (min(max(box[2] + CUT_MARGIN, rect[0] + least), width) - 1) // tile_width + 1
    tiles[3] = (min(box[3] + CUT_MARGIN, height) - 1) // tile_height + 1
    rect[2] = min(tiles[2] * tile_width, width) - rect[0]
    rect[3] = min(tiles[3] * tile_height, height) - rect[1]


@inlined
def _tiles_of_row(tiling, lengths):
    return lengths.size // ((tiling[HEIGHT] + tiling[MCU_HEIGHT] - 1) // tiling[MCU_HEIGHT])


@inlined
def _points_of_segment(tiling, points):
    return (tiling[INTERVAL] - 1) // points[1] if points[1] > 0 else 0


@inlined
def _parts_of_rows(tiling, lengths, tiles, points):
    return (tiles[3] - tiles[1]) * _tiles_of_row(tiling, lengths) * (1 + _points_of_segment(tiling, points))


@device_function
def _copy_rows(stream, tiles, target, segments, i, per_mcu, row, result):
    """Copy an image's headers and rows of tiles, and describe the segments that belong to the box."""
    left, top, right, bottom = tiles
    source, lengths, tiling, points = stream
    header, interval, step = tiling[HEADER], tiling[INTERVAL], points[1]
    if step < 0:
        result[0] = WRONG_ENTRY_POINTS
        return
    per_segment = _points_of_segment(tiling, points)
    distances = array_at(_u64(points[0]), lengths.size * per_segment, np.uint16)
    per_row = _tiles_of_row(tiling, lengths)
    begin = header
    for k in range(top * per_row):
        begin += np.int64(lengths[k]) + 2
    described, kept, firsts = segments
    at, size, count, first = header, 0, 0, firsts[i]
    mcus, sound, part = (interval, step, per_mcu), True, first
    for y in range(top, bottom):
        for x in range(per_row):
            length = np.int64(lengths[y * per_row + x])
            kept[first + (y - top) * per_row + x] = np.uint16(length)
            if left <= x < right:
                block = count * interval * per_mcu
                if per_segment:
                    segment = begin + at - header, at, length, block
                    known = distances, (y * per_row + x) * per_segment, per_segment
                    sound &= _describe_parts(source, segment, mcus, known, (described, part))
                else:
                    # A function would take twice the time, because numba counts references to arrays that are passed.
                    described[part, words.OFFSET], described[part, words.LENGTH] = np.int32(at), np.int32(length)
                    described[part, words.BLOCK], described[part, words.MCUS] = np.int32(block), np.int32(interval)
                    described[part, words.BEFORE] = 0
                    described[part, words.AFTER] = words.WHOLE_BYTE
                part += 1 + per_segment
                count += 1
                size += length
            at += length + 2
    result[1], result[2], result[3] = part - first, (bottom - top) * per_row, at
    row[words.BLOCKS] = count * interval * per_mcu
    row[words.PER_ROW], row[words.HELD] = right - left, result[2]
    # A block takes at least two bits, for a DC and an AC code, so this test limits allocations by the size of the data.
    if 8 * size < 2 * row[words.BLOCKS]:
        result[0] = TOO_SHORT
        return
    if not sound:
        result[0] = WRONG_ENTRY_POINTS
        return
    out, offset, end = target
    if offset + at + _ROOM > end:
        result[0] = NO_GRID
        return
    copy_bytes(out, offset, source, 0, header)
    copy_bytes(out, offset + header, source, begin, at - header)


@inlined
def _describe_parts(source, segment, mcus, distances, described):
    """Describe the parts into which entry points divide a segment; return whether all points lie in the segment."""
    offset, at, length, block = segment
    interval, step, per_mcu = mcus
    points, known, count = distances
    parts, row = described
    begin = 0
    for k in range(count + 1):
        last = k == count
        stop, after = length, words.WHOLE_BYTE
        end = 8 * length
        if not last:
            end = begin + np.int64(points[known + k])
            stop, after = end >> 3, -end & 7
            if end == begin or stop >= length or (stop and source[offset + stop - 1] == 0xFF):
                return False
            if after:
                stop = min(stop + 1 + (source[offset + stop] == 0xFF), length)
        first = begin >> 3
        parts[row + k, words.OFFSET], parts[row + k, words.LENGTH] = np.int32(at + first), np.int32(stop - first)
        parts[row + k, words.BLOCK] = np.int32(block + k * step * per_mcu)
        parts[row + k, words.MCUS] = np.int32(interval - k * step if last else step)
        parts[row + k, words.BEFORE], parts[row + k, words.AFTER] = np.int32(begin & 7), np.int32(after)
        begin = end
    return True


@device_function
def _describe_planes(frame, tiling, rect, tiles, factor, row):
    """Write the layout of an image's samples and pixels to ``row``, the words that describe the image."""
    h, v, count = frame[parse.HORIZONTAL], frame[parse.VERTICAL], frame[parse.COMPONENTS]
    luma, chroma = block_sides(h, v, factor)
    row[words.WIDTH], row[words.HEIGHT] = (rect[2] + factor - 1) // factor, (rect[3] + factor - 1) // factor
    row[words.SIDE], row[words.SIDE + 1] = luma, chroma
    row[words.WIDER], row[words.TALLER] = h * luma // chroma, v * luma // chroma
    row[words.ACROSS], row[words.DOWN], row[words.COMPONENTS] = h, v, count
    row[words.INTERVAL] = tiling[INTERVAL]
    samples = 0
    for c in range(count):
        across, down = (h * luma, v * luma) if c == 0 else (chroma, chroma)
        stride = (row[words.PER_ROW] * tiling[INTERVAL] * across + 7) // 8 * 8
        row[words.PLANE + c], row[words.STRIDE + c] = samples, stride
        samples += stride * (tiles[3] - tiles[1]) * down
    row[words.SAMPLES] = samples
    row[words.PITCH] = (row[words.WIDTH] + 3) // 4 * 4


@device_function
def _copy_codes(address, codes):
    """Copy a Huffman table's counts and symbols to ``codes``; return SHORT (entries for LOOKUP_BITS bits)."""
    total = short = longer = 0
    for k in range(16):
        here = load_byte(address + _u64(k))
        codes[k] = np.uint8(here)
        total += here
        if k < words.LOOKUP_BITS:
            short += here << (words.LOOKUP_BITS - 1 - k)
        else:
            longer += here
    for k in range(16, 16 + 256):
        codes[k] = np.uint8(load_byte(address + _u64(k)) if k < 16 + total else 0)
    # If no code has more than LOOKUP_BITS bits, every window of LOOKUP_BITS bits has an entry, even one without a code.
    return short if longer else 1 << words.LOOKUP_BITS


@device_function
def _copy_tables(frame, i, row, tables):
    """Copy the Huffman and quantization tables that an image's components use; write the place of each lookup table."""
    codes, places, quantization = tables
    entries = 0
    for k in range(words.HUFFMAN_TABLES):
        number, is_dc = words.HUFFMAN_TABLES * i + k, k < 2
        places[number, words.ENTRY_COUNT] = 0
        chosen, word_of = (parse.DC, words.DC) if is_dc else (parse.AC, words.AC)
        used = frame[chosen : chosen + frame[parse.COMPONENTS]] == k % 2
        if not used.any():
            continue
        short = _copy_codes(_u64(frame[parse.HUFFMAN_AT + k]), codes[number])
        size = short + (1 << 16) - (short << (16 - words.LOOKUP_BITS))
        places[number, words.FIRST_ENTRY], places[number, words.ENTRY_COUNT] = np.int32(entries), np.int32(size)
        places[number, words.SHORT], places[number, words.IS_DC] = np.int32(short), np.int32(is_dc)
        word = entries // words.UNIT << 16 | words.BIAS * short
        for c in range(used.size):
            if used[c]:
                row[word_of + c] = word
        entries += (size + words.UNIT - 1) // words.UNIT * words.UNIT
    row[words.ENTRIES] = entries
    for c in range(frame[parse.COMPONENTS]):
        table = frame[parse.QUANTIZATION + c]
        row[words.QUANTIZATION + c] = words.HUFFMAN_TABLES * i + table
        for k in range(64):
            factor = load_byte(_u64(frame[parse.QUANTIZATION_AT + table]) + _u64(k))
            quantization[words.HUFFMAN_TABLES * i + table, k] = np.int16(factor)
