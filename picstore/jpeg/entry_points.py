"""Entry points: bits within restart segments at which an MCU begins, so that several readers share a segment.

Huffman codes can be read from any MCU whose first bit is known. DC coefficients are coded as differences (ITU-T T.81,
F.1.1.5.1), which are summed once all parts of a segment are read.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from picstore.arrays import I64, U8, U16
from picstore.jpeg.block_starts import POSITION_SHIFT
from picstore.jpeg.huffman import HuffmanTable
from picstore.jpeg.restart_edits import BEGIN, BLOCKS, DC_SIZES, DIFFERENCE, END, PER_BLOCK


def bits_after_edits(
    starts: I64, edits: I64, columns: I64, tables: Sequence[HuffmanTable], *, mcus: tuple[int, int, int]
) -> I64:
    """Compute where entry points lie in a scan that ``bit_writer.write_scan`` gives its first restart markers.

    Args:
        starts: int64, what ``block_starts.find_block_starts`` noted of the old scan.
        edits, columns: as ``write_scan`` takes them.
        tables: for DC differences.
        mcus: of a new segment, and from one entry point to the next; and blocks of an MCU.

    Returns:
        int64 (segments, points), bits from the segment's beginning, without stuffing.
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
    """Compute what a container stores of entry points.

    Args:
        stream: uint8, the JPEG.
        begins: int64 (segments,), where in it each segment begins.
        bits: int64 (segments, points), from the segment's beginning, without stuffing.

    Returns:
        uint16 (segments, points), the bits of the stream from the segment's beginning or the entry point before. None
        if a number takes more than 16 bits.
    """
    escaped = np.flatnonzero(stream[:-1] == 0xFF)
    escaped = escaped[(stream[escaped + 1] == 0) & (escaped >= begins[0])]
    plain = escaped - np.arange(len(escaped))  # where each FF lies without the zeros before it
    offsets = (begins - np.searchsorted(escaped, begins))[:, None] + (bits >> 3)
    offsets += np.searchsorted(plain, offsets) - begins[:, None]
    distances = np.diff(8 * offsets + (bits & 7), axis=1, prepend=0)
    return None if distances.max() > np.iinfo(np.uint16).max else distances.astype(np.uint16)
