"""Kernels over entropy-coded data: Huffman codes are read, never coefficients (ITU-T T.81, annex F.2).

The data of a scan is first freed of stuffing and markers, so that any bit can be reached by arithmetic. ``scan`` then
reads all codes and notes where bits must change: the DC differences of the first MCU of each new segment, which have no
predecessor there, and of each old one, which get theirs back. Between these places all bits stay as they are, and
``emit`` copies them in runs.

A reader of bits is three numbers: the accumulator, a 64-bit word with the next bits at its head; how many of them are
valid, at least 56 after ``_refill``; and the next byte to read.
"""

from __future__ import annotations

import numpy as np

from picstore.jpeg.huffman_lookup import END, LOOK, PASSED
from picstore.kernels.jit import (
    array_at,
    device_function,
    inlined,
    kernel,
    load_u16,
    load_u64,
    store_u8,
    store_u32,
    store_u64,
)

# What the kernels say of damage, as negative numbers.
BAD_CODE, TOO_SHORT, TOO_MANY_COEFFICIENTS, BAD_DC, BAD_MARKER, TOO_MANY_SEGMENTS = -1, -2, -3, -4, -5, -6

# Zeros behind the data, so that damage is noticed at the next MCU: one has at most 6 blocks of 27 + 63 * 31 bits, 1,487
# bytes, and 8 bytes are read at a time.
PADDING = 2048

_u64, _u8 = np.uint64, np.uint8
_MASK32 = np.uint64(0xFFFFFFFF)
_ONES, _TOPS = np.uint64(0x0101010101010101), np.uint64(0x8080808080808080)
_LOOK_SHIFT = np.uint64(64 - LOOK)


@inlined
def _copy_plain(begin, target, limit):  # type: ignore[no-untyped-def]
    """Copy eight bytes at a time up to a byte 0xFF; how many were copied."""
    count = 0
    while count + 8 <= limit:
        eight = load_u64(begin + _u64(count))
        if (~eight - _ONES) & eight & _TOPS:
            break
        store_u64(target + _u64(count), eight)
        count += 8
    return count


@kernel
def unstuff(address, size, start, flat, segments):  # type: ignore[no-untyped-def]
    """Copy entropy-coded data without its stuffed zeros and restart markers (T.81, B.1.1.5).

    Args:
        address, size: of the JPEG, as numba would compile anew for what cannot be written to.
        start: where the data begins in it.
        flat: uint8, takes the data; at least as long as what is left of the source.
        segments: int64, takes for each segment where it begins in ``flat``, and at last the end.

    Returns:
        (segments found, or negative for damage; bytes in ``flat``).
    """
    source, n = array_at(address, size, np.uint8), size
    at = start
    to = 0
    count = 0
    segments[0] = 0
    begin, target = address, _u64(flat.ctypes.data)
    while at < n:
        plain = _copy_plain(begin + _u64(at), target + _u64(to), n - at)
        at += plain
        to += plain
        if at == n:
            break
        byte = source[at]
        if byte != 0xFF:
            flat[to] = byte
            to += 1
            at += 1
            continue
        following = at + 1
        while following < n and source[following] == 0xFF:
            following += 1  # fill bytes
        if following >= n:
            break
        code = source[following]
        # Fill bytes stand before markers only; libjpeg-turbo decodes some blocks wrongly if they are before a zero.
        if code == 0 and following == at + 1:
            flat[to] = _u8(0xFF)
            to += 1
        elif 0xD0 <= code <= 0xD7:
            if code != 0xD0 + count % 8:
                return BAD_MARKER, to
            count += 1
            if count + 1 >= segments.size:
                return TOO_MANY_SEGMENTS, to
            segments[count] = to
        else:
            break
        at = following + 1
    segments[count + 1] = to
    return count + 1, to


@inlined
def _row(table):  # type: ignore[no-untyped-def]
    """Where the entries of a table begin, in bytes."""
    return _u64(table) << _u64(LOOK + 1)


@device_function
def _find(accumulator, table, rare):  # type: ignore[no-untyped-def]
    """The code at the head of the accumulator, by its length (F.2.2.3): (length, symbol); length 0 if there is none."""
    slow, symbols = array_at(rare[0], 54 * (table + 1), np.uint32), array_at(rare[1], 256 * (table + 1), np.uint32)
    first = 54 * table
    for length in range(1, 17):
        code = np.int64(accumulator >> _u64(64 - length))
        begin = np.int64(slow[first + length])
        if begin <= code < slow[first + 18 + length]:
            return length, np.int64(symbols[256 * table + np.int64(slow[first + 36 + length]) + code - begin])
    return 0, 0


@inlined
def _refill(address, accumulator, valid, byte):  # type: ignore[no-untyped-def]
    """Top the accumulator up to 56 bits or more, without a branch that could be mispredicted."""
    accumulator |= load_u64(address + _u64(byte)) >> _u64(valid)
    byte += (63 - valid) >> 3
    return accumulator, valid | 56, byte


@inlined
def _read_dc(accumulator, table, one, rare):  # type: ignore[no-untyped-def]
    """The DC code at the head of the accumulator: (its bits with the difference's, the difference) or (negative, 0)."""
    entry = np.int64(load_u16(one + _row(table) + (accumulator >> _LOOK_SHIFT << _u64(1))))
    length, size = entry >> 8, entry & 255
    if entry == 0:
        length, size = _find(accumulator, table, rare)
        if length == 0:
            return BAD_CODE, 0
    if size > 11:
        return BAD_DC, 0
    bits = accumulator << _u64(length)
    value = np.int64(bits >> _u64(1) >> _u64(63 - size))
    below = ((1 << size) - 1) & (np.int64(bits >> _u64(63)) - 1)  # without a branch: signs cannot be predicted
    return length + size, value - below


@inlined
def _skip_ac(address, table, addresses, accumulator, valid, byte):  # type: ignore[no-untyped-def]
    """Pass the AC codes of a block: (accumulator, valid, byte, 0 or what is wrong)."""
    one, many, rare = addresses
    one, many = one + _row(table), many + _row(table)
    k = 1
    wrong = 0
    while k < 64:
        window = accumulator >> _LOOK_SHIFT << _u64(1)
        entry = np.int64(load_u16(many + window))
        # While the entry is on its way: at least 25 bits were left, and are enough to look it up.
        accumulator, valid, byte = _refill(address, accumulator, valid, byte)
        passed = (entry >> PASSED) & 255
        if entry and k + passed <= 63:
            accumulator <<= _u64(entry & 63)  # 63, as a shift looks at these bits by itself
            valid -= entry & 63
            k += passed
            if entry & END:
                break
            continue
        # A code longer than LOOK, or the last coefficient: what follows that is the next block's.
        entry = np.int64(load_u16(one + window))
        length, symbol = entry >> 8, entry & 255
        if entry == 0:
            length, symbol = _find(accumulator, table, rare)
        if length == 0:
            wrong = BAD_CODE
            break
        taken = length + (symbol & 15)
        accumulator <<= _u64(taken)
        valid -= taken
        if symbol & 15 == 0 and symbol != 0xF0:
            break
        k += (symbol >> 4) + 1
        if k > 64:
            wrong = TOO_MANY_COEFFICIENTS
    return accumulator, valid, byte, wrong


@kernel
def scan(flat, segments, blocks, tables, plan, edits):  # type: ignore[no-untyped-def]  # noqa: C901 - cut up, 30 % slower
    """Read all codes of a scan and note the edits that new restart markers need.

    An edit is a DC code whose difference changes. Every ``interval``-th MCU and every ``old``-th begins with edits, one
    for each block of the MCU that is flagged; if ``every`` all MCUs do.

    Args:
        flat: uint8, the data, with PADDING zeros behind.
        segments: int64, where each old segment begins in bytes, and the end.
        blocks: int64 (blocks of an MCU, 4): component, DC table, AC table, whether its DC is edited.
        tables: arrays (one, many, slow, symbols) of ``lookups``, over DC and AC tables.
        plan: int64 (4,): MCUs, new interval, old interval (the MCUs for none), whether every MCU is edited.
        edits: arrays to fill: int64 (edited MCUs, edited blocks) twice, the bits at which each edited DC code begins
            and its difference ends; int64 (edited MCUs + 1,), the bit at which the MCU before ended; int32 (edited
            MCUs, edited blocks), the new differences.

    Returns:
        The number of edited MCUs, or negative for damage.
    """
    one, many, slow, symbols = tables
    # By address: numba counts the references to each array that an inlined function names, by locked instructions,
    # which took a third of the time.
    first, rare = _u64(one.ctypes.data), (_u64(slow.ctypes.data), _u64(symbols.ctypes.data))
    addresses = first, _u64(many.ctypes.data), rare
    before = edits[2]
    mcus, interval, old, every = plan
    actual = np.zeros(4, np.int64)  # DC of the last block of each component
    told = np.zeros(4, np.int64)  # what a decoder of the new stream will predict from
    address = _u64(flat.ctypes.data)
    accumulator, valid, byte = _u64(0), 0, 0
    limit = edit = segment = until_new = until_old = 0
    for mcu in range(mcus + 1):
        position = byte * 8 - valid
        if position > limit:
            return TOO_SHORT
        edited = every or until_new == 0 or until_old == 0
        if edited or mcu == mcus:
            before[edit] = position
        if mcu == mcus:
            break
        if until_old == 0:
            byte = segments[segment]
            segment += 1
            limit = segments[segment] * 8
            accumulator, valid = _u64(0), 0
            actual[:] = 0
            until_old = old
        if until_new == 0:
            told[:] = 0
            until_new = interval
        until_old -= 1
        until_new -= 1
        column = 0
        for b in range(blocks.shape[0]):
            component = blocks[b, 0]
            accumulator, valid, byte = _refill(address, accumulator, valid, byte)
            bits, difference = _read_dc(accumulator, blocks[b, 1], first, rare)
            if bits < 0:
                return bits
            actual[component] += difference
            if edited and blocks[b, 3]:
                difference = actual[component] - told[component]
                if not _note(edits, edit, column, byte * 8 - valid, bits, difference):
                    return BAD_DC
                column += 1
            told[component] = actual[component]
            accumulator <<= _u64(bits)
            valid -= bits
            accumulator, valid, byte, wrong = _skip_ac(address, blocks[b, 2], addresses, accumulator, valid, byte)
            if wrong:
                return wrong
        edit += edited
    return edit


@inlined
def _note(edits, edit, column, start, bits, difference):  # type: ignore[no-untyped-def]
    """Write an edit down; whether its difference is one that a baseline JPEG can have (table F.1)."""
    at, end, _, differences = edits
    at[edit, column] = start
    end[edit, column] = start + bits
    differences[edit, column] = difference
    return -2047 <= difference <= 2047


@kernel
def count_sizes(differences, tables, frequencies):  # type: ignore[no-untyped-def]
    """Count how often each table has to code each size of difference (F.1.2.1).

    Args:
        differences: int32 (edited MCUs, edited blocks), within ±2,047.
        tables: int64 (edited blocks,), the DC table of each.
        frequencies: int64 (DC tables, 12), added to.
    """
    for edit in range(differences.shape[0]):
        for k in range(tables.size):
            frequencies[tables[k], _size(np.int64(differences[edit, k]))] += 1


@inlined
def _size(difference):  # type: ignore[no-untyped-def]
    size = 0
    while abs(difference) >> size:
        size += 1
    return size


@inlined
def _put(accumulator, pending, value, bits, to):  # type: ignore[no-untyped-def]
    """Append up to 32 bits, writing whole words with stuffing; (accumulator, pending bits, next address)."""
    accumulator = (accumulator << _u64(bits)) | value
    pending += bits
    if pending >= 32:
        pending -= 32
        four = (accumulator >> _u64(pending)) & _MASK32
        if ((four ^ _MASK32) - _u64(0x01010101)) & four & _u64(0x80808080):  # a byte 0xFF may be among them
            for shift in range(24, -8, -8):
                to = _put_byte((four >> _u64(shift)) & _u64(255), to)
        else:
            store_u32(to, np.uint32(four))
            to += _u64(4)
    return accumulator, pending, to


@inlined
def _put_byte(byte, to):  # type: ignore[no-untyped-def]
    store_u8(to, _u8(byte))
    to += _u64(1)
    if byte == _u64(255):
        store_u8(to, _u8(0))
        to += _u64(1)
    return to


@inlined
def _put_run(address, first, end, accumulator, pending, to):  # type: ignore[no-untyped-def]
    """Copy a run of bits; (accumulator, pending bits, next address)."""
    while pending >= 8:
        pending -= 8
        to = _put_byte((accumulator >> _u64(pending)) & _u64(255), to)
    while end - first >= 56:  # seven bytes, as any 57 bits lie within eight bytes
        more = load_u64(address + _u64(first >> 3)) << _u64(first & 7) >> _u64(8)
        accumulator = accumulator << _u64(56) | more
        seven = accumulator >> _u64(pending) << _u64(8)
        if (~seven - _ONES) & seven & _TOPS:  # a byte 0xFF is among them
            for shift in range(56, 0, -8):
                to = _put_byte((seven >> _u64(shift)) & _u64(255), to)
        else:
            store_u64(to, seven)
            to += _u64(7)
        first += 56
    while first < end:
        bits = min(end - first, 32)
        value = (load_u64(address + _u64(first >> 3)) << _u64(first & 7)) >> _u64(64 - bits)
        accumulator, pending, to = _put(accumulator, pending, value, bits, to)
        first += bits
    return accumulator, pending, to


@inlined
def _put_dc(difference, table, codes, lengths, accumulator, pending, to):  # type: ignore[no-untyped-def]
    """Write a DC difference (F.1.2.1); (accumulator, pending bits, next address)."""
    size = _size(difference)
    if difference < 0:
        difference += (1 << size) - 1
    value = _u64(codes[table, size]) << _u64(size) | _u64(difference)  # 16 + 11 bits at most
    return _put(accumulator, pending, value, np.int64(lengths[table, size]) + size, to)


@inlined
def _flush(accumulator, pending, to):  # type: ignore[no-untyped-def]
    """Write the pending bits, the last byte filled with ones (F.1.2.3); the next address."""
    spare = -pending % 8
    accumulator = (accumulator << _u64(spare)) | _u64((1 << spare) - 1)
    pending += spare
    while pending:
        pending -= 8
        to = _put_byte((accumulator >> _u64(pending)) & _u64(255), to)
    return to


@kernel
def emit(flat, edits, is_start, coding, out, starts):  # type: ignore[no-untyped-def]
    """Write the scan anew: runs of old bits, edited DC codes, and restart markers.

    Args:
        flat, edits: as ``scan`` took and filled them.
        is_start: bool (edited MCUs,), whether a new segment begins there.
        coding: int64 (edited blocks,), the DC table of each; their codes and lengths, uint32 (DC tables, 256).
        out: uint8, long enough.
        starts: int64 (new segments + 1,), takes where in ``out`` each begins, and 2 behind the end, where the next one
            would begin.

    Returns:
        Bytes written.
    """
    at, end, before, differences = edits
    tables, codes, lengths = coding
    address = _u64(flat.ctypes.data)
    beginning = _u64(out.ctypes.data)
    accumulator, pending, to = _u64(0), 0, beginning
    markers = 0
    starts[0] = 0
    position = before[0]
    for edit in range(at.shape[0]):
        if edit:
            accumulator, pending, to = _put_run(address, position, before[edit], accumulator, pending, to)
            if is_start[edit]:
                to = _flush(accumulator, pending, to)
                store_u8(to, _u8(0xFF))
                store_u8(to + _u64(1), _u8(0xD0 + markers % 8))
                accumulator, pending, to = _u64(0), 0, to + _u64(2)
                markers += 1
                starts[markers] = np.int64(to - beginning)
        position = at[edit, 0]
        for k in range(at.shape[1]):
            accumulator, pending, to = _put_run(address, position, at[edit, k], accumulator, pending, to)
            difference = np.int64(differences[edit, k])
            accumulator, pending, to = _put_dc(difference, tables[k], codes, lengths, accumulator, pending, to)
            position = end[edit, k]
    accumulator, pending, to = _put_run(address, position, before[at.shape[0]], accumulator, pending, to)
    length = np.int64(_flush(accumulator, pending, to) - beginning)
    starts[markers + 1] = length + 2
    return length
