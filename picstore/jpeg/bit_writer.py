"""Bit writing for kernels: a scan copied in runs of bits, with edited DC codes and new restart markers.

A bit writer's state is three numbers: the accumulator, a 64-bit word whose lowest bits are the latest; the number of
pending bits, which are in the accumulator but not written; and the address of the next byte.
"""

from __future__ import annotations

import numpy as np

from picstore.jpeg.bit_reader import has_byte_ff
from picstore.jpeg.huffman import MAX_CODE_BITS
from picstore.jpeg.restart_edits import BEFORE, BEGIN, BLOCKS, DIFFERENCE, END, PER_BLOCK, STARTS, bit_length
from picstore.kernels.jit import device_function, inlined, kernel, load_u64, store_u8, store_u32, store_u64

_u64, _u8 = np.uint64, np.uint8
_MASK32 = np.uint64(0xFFFFFFFF)


@inlined
def append_bits(accumulator, pending, value, bits, target):
    """Append ``value``, of ``bits`` bits (at most 32), to the accumulator; write 4 bytes once 32 bits are pending.

    Return the accumulator, the number of pending (not yet written) bits, and the address of the next byte to write.
    """
    accumulator = (accumulator << _u64(bits)) | value
    pending += bits
    if pending >= 32:
        pending -= 32
        four = (accumulator >> _u64(pending)) & _MASK32
        # If one of the four bytes may be 0xFF, write the bytes singly.
        if ((four ^ _MASK32) - _u64(0x01010101)) & four & _u64(0x80808080):
            for shift in range(24, -8, -8):
                target = _write_byte((four >> _u64(shift)) & _u64(255), target)
        else:
            store_u32(target, np.uint32(four))
            target += _u64(4)
    return accumulator, pending, target


@inlined
def _write_byte(byte, target):
    """Write a byte, followed by a stuffed zero if the byte is 0xFF (T.81, B.1.1.5); return the next address."""
    store_u8(target, _u8(byte))
    target += _u64(1)
    if byte == _u64(255):
        store_u8(target, _u8(0))
        target += _u64(1)
    return target


@inlined
def _copy_bits(address, first, end, accumulator, pending, target):
    """Append bits ``first`` to ``end - 1`` of the data at ``address``; return what ``append_bits`` returns."""
    while pending >= 8:
        pending -= 8
        target = _write_byte((accumulator >> _u64(pending)) & _u64(255), target)
    # Copy 56 bits at a time: 8 loaded bytes hold at least that many from any bit of the first byte on.
    while end - first >= 56:
        more = load_u64(address + _u64(first >> 3)) << _u64(first & 7) >> _u64(8)
        accumulator = accumulator << _u64(56) | more
        seven = accumulator >> _u64(pending) << _u64(8)
        if has_byte_ff(seven):
            for shift in range(56, 0, -8):
                target = _write_byte((seven >> _u64(shift)) & _u64(255), target)
        else:
            store_u64(target, seven)
            target += _u64(7)
        first += 56
    while first < end:
        bits = min(end - first, 32)
        value = (load_u64(address + _u64(first >> 3)) << _u64(first & 7)) >> _u64(64 - bits)
        accumulator, pending, target = append_bits(accumulator, pending, value, bits, target)
        first += bits
    return accumulator, pending, target


@inlined
def _append_dc(difference, table, codes, lengths, accumulator, pending, target):
    """Append the code and value of a DC difference (T.81, F.1.2.1); return what ``append_bits`` returns."""
    size = bit_length(difference)
    if difference < 0:
        difference += (1 << size) - 1
    value = _u64(codes[table, size]) << _u64(size) | _u64(difference)  # code of at most 16 bits, value of at most 11
    return append_bits(accumulator, pending, value, np.int64(lengths[table, size]) + size, target)


@inlined
def flush_bits(accumulator, pending, target):
    """Write the pending bits, after filling the last byte with ones (T.81, F.1.2.3); return the next address."""
    spare = -pending % 8
    accumulator = (accumulator << _u64(spare)) | _u64((1 << spare) - 1)
    pending += spare
    while pending:
        pending -= 8
        target = _write_byte((accumulator >> _u64(pending)) & _u64(255), target)
    return target


@device_function
def _fill_codes(tables, codes, bits):
    """Write code and number of bits of each DC table's symbols to ``codes`` and ``bits`` (T.81, C.1 and C.2)."""
    for k in range(tables.shape[0]):
        code = index = 0
        for length in range(1, MAX_CODE_BITS + 1):
            for _ in range(tables[k, length - 1]):
                symbol = tables[k, MAX_CODE_BITS + index] & 15
                codes[k, symbol], bits[k, symbol] = code, length
                code += 1
                index += 1
            code <<= 1


@kernel("(uint8[::1], int64[:, ::1], int64[::1], Array(uint8, 2, 'C', readonly=True), uint8[::1], int64[::1])")
def write_scan(flat, edits, columns, tables, out, lengths):
    """Write a scan: bits copied from an old scan, edited DC codes, and new restart markers.

    Args:
        flat: uint8, data of the old scan, as ``bit_reader.unstuff`` fills it.
        edits: rows of edits (new DC differences), as ``restart_edits.find_edits`` fills them.
        columns: int64 (edited blocks of an MCU,), index in ``tables`` of each block's DC table.
        tables: uint8 (DC tables, 272), result of ``huffman.pack_tables``; symbols are at most 15.
        out: uint8, takes the new scan; the caller makes it long enough.
        lengths: int64 (new segments,), takes each segment's length in bytes, without the marker that ends the segment.

    Returns:
        Number of bytes written.
    """
    codes, bits = np.zeros((tables.shape[0], 16), np.uint32), np.zeros((tables.shape[0], 16), np.uint32)
    _fill_codes(tables, codes, bits)
    address = _u64(flat.ctypes.data)
    first_byte = segment = _u64(out.ctypes.data)
    accumulator, pending, target = _u64(0), 0, first_byte
    markers = 0
    position = edits[0, BEFORE]
    last = edits.shape[0] - 1
    for edit in range(last):
        end = edits[edit, BEFORE]
        if edit:
            accumulator, pending, target = _copy_bits(address, position, end, accumulator, pending, target)
            if edits[edit, STARTS]:
                target = flush_bits(accumulator, pending, target)
                lengths[markers] = np.int64(target - segment)
                store_u8(target, _u8(0xFF))
                store_u8(target + _u64(1), _u8(0xD0 + markers % 8))
                accumulator, pending, target = _u64(0), 0, target + _u64(2)
                segment = target
                markers += 1
        position = edits[edit, BLOCKS + BEGIN]
        for k in range(columns.size):
            block = BLOCKS + PER_BLOCK * k
            begin, difference = edits[edit, block + BEGIN], edits[edit, block + DIFFERENCE]
            accumulator, pending, target = _copy_bits(address, position, begin, accumulator, pending, target)
            accumulator, pending, target = _append_dc(difference, columns[k], codes, bits, accumulator, pending, target)
            position = edits[edit, block + END]
    accumulator, pending, target = _copy_bits(address, position, edits[last, BEFORE], accumulator, pending, target)
    target = flush_bits(accumulator, pending, target)
    lengths[markers] = np.int64(target - segment)
    return np.int64(target - first_byte)
