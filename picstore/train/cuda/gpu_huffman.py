"""Decoding of Huffman codes on a GPU, with a lane for each part of a restart segment (ITU-T T.81, F.2), and its tables.

A round refills each lane's 64 bits by up to 4 bytes, without stuffed zeros, and reads some symbols of the lane's block,
one after another. A lane that lacks bits takes an entry that does nothing, and waits for the next round. No lane
branches by itself, so divergence costs only the time that finished lanes wait for the slowest lane. A lookup-table
entry covers any code, so there is no slow path for long codes.

A lane stays within its part's bytes and blocks whatever the bytes hold, and ends after at most one round a bit.

Parts lie between entry points (docs/format.md). A lane flags an error if it does not end at the bit at which the next
part begins. The first part begins with the segment, so all parts begin with an MCU unless an error is flagged.
"""

from __future__ import annotations

from picstore.jpeg import gpu_segment_layout as words
from picstore.train.cuda.triton_jit import device_function, kernel, tl

# Errors in a segment, as bits; an image's status is the bitwise or of the errors of all its segments.
BAD_CODE, TOO_SHORT, SURPLUS, MARKER, WRONG_ENTRY_POINT = 1, 2, 4, 8, 16
_BAD_CODE, _TOO_SHORT = tl.constexpr(BAD_CODE), tl.constexpr(TOO_SHORT)
_SURPLUS, _MARKER = tl.constexpr(SURPLUS), tl.constexpr(MARKER)
_WRONG_ENTRY_POINT = tl.constexpr(WRONG_ENTRY_POINT)

_WORDS, _ACROSS, _DOWN = tl.constexpr(words.IMAGE_WORDS), tl.constexpr(words.ACROSS), tl.constexpr(words.DOWN)
_COMPONENTS, _INTERVAL = tl.constexpr(words.COMPONENTS), tl.constexpr(words.INTERVAL)
_FIRST_BLOCK, _DC, _AC = tl.constexpr(words.FIRST_BLOCK), tl.constexpr(words.DC), tl.constexpr(words.AC)
_TABLES, _DATA = tl.constexpr(words.TABLES), tl.constexpr(words.DATA)
_CODES, _PLACES = tl.constexpr(words.CODES), tl.constexpr(words.PLACES)
_FIRST_PART, _SHIFT = tl.constexpr(words.FIRST_PART), tl.constexpr(words.PART_SHIFT)
_OFFSET, _LENGTH = tl.constexpr(words.OFFSET), tl.constexpr(words.LENGTH)
_BLOCK, _MCUS = tl.constexpr(words.BLOCK), tl.constexpr(words.MCUS)
_BEFORE, _AFTER = tl.constexpr(words.BEFORE), tl.constexpr(words.AFTER)
_PART, _WHOLE = tl.constexpr(words.PART_WORDS), tl.constexpr(words.WHOLE_BYTE)
_BITS, _BIAS, _UNIT = tl.constexpr(words.LOOKUP_BITS), tl.constexpr(words.BIAS), tl.constexpr(words.UNIT)
_SIZE, _SKIP = tl.constexpr(words.SIZE_SHIFT), tl.constexpr(words.SKIP_SHIFT)
_END, _NO_CODE = tl.constexpr(words.END_OF_BLOCK), tl.constexpr(words.NO_CODE)
_CODE_BYTES, _PER_IMAGE = tl.constexpr(words.HUFFMAN_BYTES), tl.constexpr(words.HUFFMAN_TABLES)
# A lane that cannot go on with this number of bits has met an unknown code: code and value have up to 16 + 11 bits.
_ENOUGH = tl.constexpr(27)


@kernel
def make_tables(codes, places, images, tables, LANES: tl.constexpr):
    """Compute the lookup table of each Huffman table; a program computes one table.

    Args:
        codes: uint8, (4, HUFFMAN_BYTES) for each image: counts and symbols of its 4 tables, from the index in the
            image's words on.
        places: int32, (4, 4) for each image: descriptions of its 4 tables, from the index in the image's words on.
        images: int64 (n, IMAGE_WORDS), words of the images, see ``jpeg/gpu_segment_layout.py``.
        tables: int32, receives the entries of the lookup tables.
        LANES: number of entries to compute at once.
    """
    image = images + (tl.program_id(0) // _PER_IMAGE).to(tl.int64) * _WORDS
    table = tl.program_id(0) % _PER_IMAGE
    place = places + tl.load(image + _PLACES) + table * 4
    code = codes + tl.load(image + _CODES) + table * _CODE_BYTES
    entries = tables + tl.load(image + _TABLES) + tl.load(place)
    count, short, of_dc = tl.load(place + 1), tl.load(place + 2), tl.load(place + 3) != 0
    for first in range(0, count, LANES):
        number = first + tl.arange(0, LANES)
        known = number < count
        window = tl.where(number < short, number << (16 - _BITS), number + short * _BIAS)
        length, symbol = number * 0, number * 0
        # ``low`` is the first code of ``bits`` bits, followed by zeros up to 16 bits; ``index`` is its symbol's index.
        low, index = 0, 0
        for bits in tl.static_range(1, 17):
            codes_of = tl.load(code + bits - 1).to(tl.int32)
            high = low + (codes_of << (16 - bits))
            found = (window >= low) & (window < high)
            length = tl.where(found, bits, length)
            symbol = tl.where(found, index + ((window - low) >> (16 - bits)), symbol)
            low, index = high, index + codes_of
        symbol = tl.load(code + 16 + symbol, known & (length > 0), 0).to(tl.int32)
        size = tl.where(of_dc, symbol, symbol & 15)
        skip = tl.where((size == 0) & (symbol != 0xF0), _END, (symbol >> 4) + 1)
        skip = tl.where(of_dc, 1, skip)
        entry = tl.where(length > 0, length + size | size << _SIZE | skip << _SKIP, _NO_CODE)
        tl.store(entries + number, entry, known)


@kernel
def decode_segments(
    data,
    segments,
    images,
    tables,
    coefficients,
    status,
    count,
    image_count,
    LANES: tl.constexpr,
    ROUNDS: tl.constexpr,
    SYMBOLS: tl.constexpr,
):
    """Decode the coefficients of parts of segments, one part in each lane; leave DC coefficients as differences.

    Args:
        data: uint8, the streams, each of which begins at a multiple of 4 bytes.
        segments: int32, a row of PART_WORDS for each part; rows begin at indices that the images' words hold.
        images: int64 (n, IMAGE_WORDS), words of the images, see ``jpeg/gpu_segment_layout.py``.
        tables: int32, results of ``make_tables``.
        coefficients: int16 (blocks, 64), zeros; receives each block's coefficients in zigzag order.
        status: int32 (n,), zeros; receives the errors of each image's segments.
        count: number of the images' parts, whose rows need not be adjacent in ``segments``.
        image_count: n.
        LANES: parts per program.
        ROUNDS: refills between checks for unfinished lanes.
        SYMBOLS: symbols per refill.
    """
    lane = tl.program_id(0) * LANES + tl.arange(0, LANES)
    exists = lane < count
    number = _find_image(images, lane, image_count)
    image = images + number.to(tl.int64) * _WORDS
    segment = segments + (lane * _PART + tl.load(image + _SHIFT))
    position = tl.load(segment + _OFFSET, exists, 0)
    end = position + tl.load(segment + _LENGTH, exists, 0)
    luma, per_mcu = _blocks_of_mcu(image)
    blocks = tl.load(segment + _MCUS, exists, 0) * per_mcu
    stream = data + tl.load(image + _DATA)
    entries = tables + tl.load(image + _TABLES)
    dc0, ac0 = tl.load(image + _DC).to(tl.int32), tl.load(image + _AC).to(tl.int32)
    dc1, ac1 = tl.load(image + _DC + 1).to(tl.int32), tl.load(image + _AC + 1).to(tl.int32)
    dc2, ac2 = tl.load(image + _DC + 2).to(tl.int32), tl.load(image + _AC + 2).to(tl.int32)
    first = tl.load(image + _FIRST_BLOCK) + tl.load(segment + _BLOCK, exists, 0)
    out = coefficients + first * 64
    before = tl.load(segment + _BEFORE, exists, 0)
    shared = before > 0  # The first byte's highest ``before`` bits belong to the previous part of the segment.
    byte = tl.load(stream + position, shared, 0)
    position = tl.where(shared, tl.minimum(position + 1 + (byte == 255).to(tl.int32), end), position)
    buffer = byte.to(tl.uint64) << (56 + before).to(tl.uint64)  # next bits of the stream, the first is the highest bit
    valid = tl.where(shared, 8 - before, 0)  # number of bits in ``buffer``
    at = tl.zeros((LANES,), tl.int32)  # index of the next coefficient in the part
    stop = blocks * 64
    block, furthest, problem = at, at, at  # block's index in its MCU, largest index reached in a block, error bits
    dc, ac = dc0, ac0
    while tl.max(stop - at, 0) > 0:
        for _ in range(ROUNDS):
            buffer, valid, position, good = _refill(stream, buffer, valid, position, end)
            problem |= tl.where(good, 0, _MARKER)
            for _ in tl.static_range(SYMBOLS):
                k = at & 63
                table = tl.where(k == 0, dc, ac)
                near, far = (buffer >> (64 - _BITS)).to(tl.int32), (buffer >> 48).to(tl.int32)
                index = (table >> 16) * _UNIT + tl.maximum(near, far - (table & 0xFFFF))
                entry = tl.load(entries + index, at < stop, _NO_CODE)
                entry = tl.where((entry & 255) <= valid, entry, 0)
                total, size = entry & 255, (entry >> _SIZE) & 255
                skip = entry >> _SKIP
                # Decode the coefficient's value from its ``size`` bits (EXTEND of T.81, F.2.2.1).
                bits = ((buffer << (total - size).to(tl.uint64)) >> 32).to(tl.int32)
                flip = (bits >> 31) ^ -1
                value = (((bits ^ flip).to(tl.uint32) >> 1 >> (31 - size).to(tl.uint32)).to(tl.int32) ^ flip) - flip
                reached = (k + skip) & (_END - 1)
                furthest = tl.maximum(furthest, reached)
                tl.store(out + (at + skip - 1), value.to(tl.int16), (size > 0) & (reached <= 64))
                buffer = buffer << total.to(tl.uint64)
                valid -= total
                ends = k + skip >= 64
                at = tl.where(ends, (at | 63) + 1, at + skip)
                block = tl.where(ends, block + 1, block)
                block = tl.where(block == per_mcu, 0, block)
                dc = tl.where(block < luma, dc0, tl.where(block == luma, dc1, dc2))
                ac = tl.where(block < luma, ac0, tl.where(block == luma, ac1, ac2))
            # ``skip`` is 0 if a lane's last step did nothing, because it lacked bits or met an unknown code.
            still = (at < stop) & (skip == 0)
            short = tl.where(still & (position == end), _TOO_SHORT, 0)
            problem |= tl.where(still & (valid >= _ENOUGH), _BAD_CODE, short)
            stop = tl.where((problem & (_BAD_CODE | _TOO_SHORT)) != 0, 0, stop)
    problem |= tl.where(furthest > 64, _BAD_CODE, 0)
    surplus = (position < end) | (valid >= 8)
    after = tl.load(segment + _AFTER, exists, _WHOLE)
    problem |= tl.where((problem == 0) & (after < _WHOLE) & (surplus | (valid != after)), _WRONG_ENTRY_POINT, 0)
    problem |= tl.where((problem == 0) & surplus, _SURPLUS, 0)
    tl.atomic_or(status + number, problem, exists & (problem != 0))


@kernel
def sum_differences(segments, images, coefficients, count, image_count, SEGMENTS: tl.constexpr, BLOCKS: tl.constexpr):
    """Replace DC differences by DC coefficients: sums of a component's differences up to each block (T.81, F.2.2.1).

    Args:
        segments, images, coefficients, count, image_count: as for ``decode_segments``.
        SEGMENTS: number of rows of ``segments`` (parts of segments) for each program. The row of a segment's first part
            is used to add up all blocks of the segment; other rows are skipped.
        BLOCKS: number of blocks of each segment to add up at once.
    """
    part = tl.program_id(0) * SEGMENTS + tl.arange(0, SEGMENTS)[:, None]
    exists = part < count
    image = images + _find_image(images, part, image_count).to(tl.int64) * _WORDS
    segment = segments + (part * _PART + tl.load(image + _SHIFT))
    luma, per_mcu = _blocks_of_mcu(image)
    blocks = tl.load(image + _INTERVAL).to(tl.int32) * per_mcu
    first = tl.load(segment + _BLOCK, exists, 1)
    begins = first % tl.maximum(blocks, 1) == 0  # ``blocks`` is 0 in an image that the GPU does not decode.
    blocks = tl.where(exists & begins, blocks, 0)
    dc = coefficients + (tl.load(image + _FIRST_BLOCK) + first) * 64
    p0, p1, p2 = blocks * 0, blocks * 0, blocks * 0
    for begin in range(0, tl.max(blocks), BLOCKS):
        number = begin + tl.arange(0, BLOCKS)[None, :]
        here = number < blocks
        difference = tl.load(dc + number * 64, here, 0).to(tl.int32)
        block = number % per_mcu
        d0, d1 = tl.where(block < luma, difference, 0), tl.where(block == luma, difference, 0)
        d2 = difference - d0 - d1
        s0, s1, s2 = p0 + tl.cumsum(d0, 1), p1 + tl.cumsum(d1, 1), p2 + tl.cumsum(d2, 1)
        value = tl.where(block < luma, s0, tl.where(block == luma, s1, s2))
        tl.store(dc + number * 64, value.to(tl.int16), here)
        p0 += tl.sum(d0, 1)[:, None]
        p1 += tl.sum(d1, 1)[:, None]
        p2 += tl.sum(d2, 1)[:, None]


@device_function
def _find_image(images, part, count):
    """Return the index of the image of each part of a segment; ``part`` is its number among the parts of all images."""
    number = part * 0
    step = 1
    while step < count:
        step *= 2
    while step > 0:
        later = number + step
        exists = later < count
        before = tl.load(images + later.to(tl.int64) * _WORDS + _FIRST_PART, exists, 0)
        number = tl.where(exists & (before <= part), later, number)
        step //= 2
    return number


@device_function
def _blocks_of_mcu(image):
    """Return an MCU's number of luma blocks, and its number of all blocks."""
    three = tl.load(image + _COMPONENTS) == 3
    luma = tl.where(three, (tl.load(image + _ACROSS) * tl.load(image + _DOWN)).to(tl.int32), 1)
    return luma, tl.where(three, luma + 2, 1)


@device_function
def _refill(stream, buffer, valid, position, end):
    """Append 4 bytes of the stream to each lane's ``buffer``, or fewer up to an FF; skip the zero stuffed after the FF.

    Return the buffer, its number of valid bits, the position in the stream, and whether no marker was met.
    """
    word_at = stream.to(tl.pointer_type(tl.uint32)) + (position >> 2)
    wanted = (valid <= 32) & (position < end)
    low = tl.load(word_at, wanted, 0).to(tl.uint64)
    high = tl.load(word_at + 1, wanted, 0).to(tl.uint64)
    bytes8 = (high << 32 | low) >> ((position & 3) * 8).to(tl.uint64)  # next 5 to 8 bytes, the first in the lowest bits
    word = bytes8.to(tl.uint32)
    flipped = word ^ 0xFFFFFFFF
    ff = (flipped - 0x01010101) & word & 0x80808080  # The lowest bit set is in the first byte FF of ``word``.
    below = (ff & ((ff ^ 0xFFFFFFFF) + 1)) - 1
    n = 1 + (below > 0x7F).to(tl.int32) + (below > 0x7FFF).to(tl.int32) + (below > 0x7FFFFF).to(tl.int32)
    rest = end - position
    stuffing = wanted & (ff != 0) & (n <= rest)
    following = (bytes8 >> (n * 8).to(tl.uint64)).to(tl.int32) & 255
    good = (stuffing == 0) | ((following == 0) & (n < rest))
    n = tl.where(wanted, tl.minimum(n, rest), 0)
    swapped = (word << 24) | ((word & 0xFF00) << 8) | ((word >> 8) & 0xFF00) | (word >> 24)
    unused = (32 - 8 * n).to(tl.uint64)
    taken = (swapped.to(tl.uint64) >> unused << unused) << 32
    buffer |= taken >> (valid & 63).to(tl.uint64)
    return buffer, valid + 8 * n, tl.minimum(position + n + stuffing.to(tl.int32), end), good
