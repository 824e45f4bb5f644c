"""Edits that new restart markers need in a scan, and entry points of the new scan (ITU-T T.81, annex F.2).

An edit is a DC code whose difference changes. In the first MCU of each new segment, DC differences no longer refer to
the previous MCU; in that of each old segment, they refer to it again. All bits between edits stay as they are, and
``bit_writer.write_scan`` copies them in runs. Coefficients are never computed.

An entry point is a bit within a restart segment at which an MCU begins, and from which Huffman codes can be read, so
that several readers share a segment. DC differences (F.1.1.5.1) are summed once all parts are read.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from picstore.arrays import I64, U8, U16
from picstore.jpeg.bit_reader import BAD_DC
from picstore.jpeg.block_starts import BITS_SHIFT, DIFFERENCE_BIAS, POSITION_SHIFT
from picstore.jpeg.huffman import HuffmanTable
from picstore.kernels.jit import inlined, kernel

# Columns of the edits (new DC differences of MCUs), int64 (edited MCUs + 1, BLOCKS + PER_BLOCK * edited blocks). There
# is a row for each edited MCU, and one that states only the end of the last MCU. BEFORE: bit at which the previous MCU
# ends. STARTS: whether the MCU begins a new segment. BLOCKS: first column of the edited blocks, PER_BLOCK each.
BEFORE, STARTS, BLOCKS, PER_BLOCK = 0, 1, 2, 3
# Columns of an edited block: bits at which the old DC code begins and the old DC difference ends; new DC difference.
BEGIN, END, DIFFERENCE = 0, 1, 2
DC_SIZES = 12  # number of possible sizes of DC differences: 0 to 11 bits (T.81, table F.1)


@inlined
def bit_length(difference):
    """Return the size of a DC difference, which is the number of bits that code its value (T.81, F.1.2.1)."""
    size = 0
    while abs(difference) >> size:
        size += 1
    return size


@kernel("(int64[::1], int64[:, ::1], Tuple((int64, int64, int64, boolean)), int64[:, ::1], int64[:, ::1])")
def find_edits(starts, blocks, intervals, edits, sizes):
    """Write the edits (new DC differences) that new restart markers need, and count the differences' sizes.

    Args:
        starts: int64, notes of ``block_starts.find_block_starts``: each block's position and DC difference.
        blocks: int64 (blocks of an MCU, 4): component, DC table, AC table, whether the DC is edited.
        intervals: number of MCUs; new and old restart interval (all MCUs if there are no old markers); whether to edit
            all MCUs, not only those at multiples of an interval.
        edits: takes rows of edits; at least as many rows as needed.
        sizes: int64 (DC tables, DC_SIZES), takes the number of edited differences of each size, by table.

    Returns:
        Number of edited MCUs, or a negative code of damage.
    """
    sizes[:] = 0
    mcus, interval, old, every = intervals
    # DC of each component's previous block in the old stream.
    actual = np.zeros(4, np.int64)
    # DC from which a decoder of the new stream predicts each component's next DC: 0 at the beginning of a new segment.
    predictor = np.zeros(4, np.int64)
    edit = start = until_new = until_old = 0
    for mcu in range(mcus):
        edited = every or until_new == 0 or until_old == 0
        if edited:
            edits[edit, BEFORE] = starts[start] >> POSITION_SHIFT
            edits[edit, STARTS] = until_new == 0
        if until_old == 0:
            if mcu:
                start += 1  # A segment of the old stream has ended; skip its last note, which states the end.
            actual[:] = 0
            until_old = old
        if until_new == 0:
            predictor[:] = 0
            until_new = interval
        until_old -= 1
        until_new -= 1
        column = BLOCKS
        for b in range(blocks.shape[0]):
            component, noted = blocks[b, 0], starts[start + b]
            actual[component] += (noted & ((1 << BITS_SHIFT) - 1)) - DIFFERENCE_BIAS
            if edited and blocks[b, 3]:
                difference = actual[component] - predictor[component]
                # A baseline JPEG cannot code a difference outside of this range (table F.1).
                if not -2047 <= difference <= 2047:
                    return BAD_DC
                position = noted >> POSITION_SHIFT
                edits[edit, column + BEGIN] = position
                edits[edit, column + END] = position + (noted >> BITS_SHIFT & 255)
                edits[edit, column + DIFFERENCE] = difference
                sizes[blocks[b, 1], bit_length(difference)] += 1
                column += PER_BLOCK
            predictor[component] = actual[component]
        start += blocks.shape[0]
        edit += edited
    edits[edit, BEFORE] = starts[start] >> POSITION_SHIFT
    return edit


def bits_after_edits(
    starts: I64, edits: I64, columns: I64, tables: Sequence[HuffmanTable], *, mcus: tuple[int, int, int]
) -> I64:
    """Compute the entry points of the scan that ``bit_writer.write_scan`` writes from a scan without restart markers.

    Args:
        starts: int64, notes of ``block_starts.find_block_starts``: each block's position in the old scan.
        edits, columns: arguments of ``write_scan``: new DC differences, and the DC table of each edited block.
        tables: DC tables of the new scan.
        mcus: numbers of MCUs of a new segment, of MCUs from one entry point to the next, and of blocks of an MCU.

    Returns:
        int64 (segments, points), bits from the segment's beginning to each entry point, without stuffing.
    """
    interval, step, per_mcu = mcus
    first = np.arange(len(edits) - 1) * interval
    chosen = first[:, None] + np.arange(step, interval, step)
    lengths = [table.code_lengths() for table in tables]
    of_block = edits[:-1, BLOCKS:].reshape(len(first), -1, PER_BLOCK)
    bits_of_size = np.array([[bits.get(size, 0) + size for size in range(DC_SIZES)] for bits in lengths])
    sizes = np.frexp(of_block[:, :, DIFFERENCE])[1]
    added = bits_of_size[columns, sizes] - (of_block[:, :, END] - of_block[:, :, BEGIN])
    moved = added.sum(axis=1) - (starts[first * per_mcu] >> POSITION_SHIFT)
    bits: I64 = (starts[chosen * per_mcu] >> POSITION_SHIFT) + moved[:, None]
    return bits


def distances_in_stream(stream: U8, begins: I64, bits: I64) -> U16 | None:
    """Compute the distances, which a container stores, between a stream's entry points.

    Args:
        stream: uint8, the JPEG.
        begins: int64 (segments,), the offset of each segment in the stream.
        bits: int64 (segments, points), bits from the segment's beginning to each entry point, without stuffing.

    Returns:
        uint16 (segments, points), bits of the stream from the previous entry point, or the segment's beginning, to each
        entry point. None if a distance does not fit uint16.
    """
    escaped = np.flatnonzero(stream[:-1] == 0xFF)
    escaped = escaped[(stream[escaped + 1] == 0) & (escaped >= begins[0])]
    # For each 0xFF that a stuffed zero follows, the offset that it would have in the stream without stuffed zeros.
    plain = escaped - np.arange(len(escaped))
    offsets = (begins - np.searchsorted(escaped, begins))[:, None] + (bits >> 3)
    offsets += np.searchsorted(plain, offsets) - begins[:, None]
    distances = np.diff(8 * offsets + (bits & 7), axis=1, prepend=0)
    return None if distances.max() > np.iinfo(np.uint16).max else distances.astype(np.uint16)
