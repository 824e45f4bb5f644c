"""The tiles of a batch, described for picstore's decoder of segments on a GPU.

Rows of tiles are copied as they were read; no stream is cut or written. Images of a kind that the GPU does not decode
are decoded here, in the threads that decode for a CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

import numpy as np

from picstore.arrays import I64, U8
from picstore.errors import Damage, ImageError
from picstore.jpeg import segment_words as words
from picstore.jpeg.decoder.decode import REASONS
from picstore.jpeg.decoder.describe import ROOM, WRONG_ENTRY_POINTS, describe_tiles
from picstore.jpeg.tiles import HEIGHT, INTERVAL, MCU_HEIGHT
from picstore.storage.format.layout import ENTRY_POINTS, SEGMENT
from picstore.storage.format.segment_table import find_entry_points, points_of_segment
from picstore.train.batching.gather import BatchRecords
from picstore.train.batching.host_batch import EncodedBatch, GroupTargets, SegmentTables, ViewImages
from picstore.train.batching.parameters import TransformParams
from picstore.train.batching.spec import OutputSpec
from picstore.train.batching.views_reach import boxes_to_cut, joint_reach
from picstore.train.buffers import BufferPool
from picstore.train.cpu.decode import decode_slot
from picstore.train.cpu.targets import add_targets, empty_targets

_NO_TILES = "its segments form no rows of tiles"
_REASONS = {**REASONS, WRONG_ENTRY_POINTS: "its entry points do not lie within its segments"}
_fillers = count()  # that this process made


class SegmentFiller:
    """The tiles and targets of a batch while they are being described; a :class:`BatchFiller`.

    The first batch of a process brings the CPU's pixels of an image, with which the GPU's are compared.

    Attributes:
        images: uint8 (m,), the bytes.
        targets: None if none are asked for.
        encoded: bounds, boxes, parameters and tables of the streams.
    """

    def __init__(
        self, records: BatchRecords, params: Sequence[TransformParams], output: OutputSpec, blocks: BufferPool
    ) -> None:
        n = len(records)
        self._records, self._params, self._names = records, tuple(params), output.targets
        self._reach = joint_reach([each.geometry for each in params], n)
        room = -(-records.sizes[:, 0] // 8) * 8 + ROOM
        self._starts = np.cumsum(room) - room
        self._points = _find_points(records)
        steps = self._points[:, 1]
        per_segment = 1 + (steps > 0) * ((records.layouts[:, INTERVAL] - 1) // np.maximum(steps, 1))
        parts = records.sizes[:, 1] * per_segment
        self._firsts = np.cumsum(parts) - parts
        self._data = np.frombuffer(blocks.borrow(int(room.sum())), dtype=np.uint8)
        self.images: list[ViewImages] | U8 = self._data
        m, tables = int(parts.sum()), words.HUFFMAN_TABLES * n
        self._segments: Any = np.zeros((m, words.PART_WORDS), np.int32)
        self._lengths: Any = np.zeros(m, np.uint16)
        self._rows: I64 = np.zeros((n, words.IMAGE_WORDS), np.int64)
        self._rects, self._boxes, self._results = (np.zeros((n, 4), np.int64) for _ in range(3))
        self._tables: Any = (
            np.zeros((tables, words.HUFFMAN_BYTES), np.uint8),
            np.zeros((tables, 4), np.int32),
            np.zeros((tables, 64), np.int16),
        )
        self._tilings = records.layouts.copy()
        self._segment_tables = SegmentTables(
            images=self._rows,
            segments=self._segments,
            first=self._firsts,
            count=np.zeros(n, np.int64),
            codes=self._tables[0],
            places=self._tables[1],
            quantization=self._tables[2],
            held=(self._tilings, self._boxes, self._lengths),
        )
        self._encoded = EncodedBatch(
            bounds=np.stack([self._starts, self._starts], axis=1),
            boxes=np.zeros((n, 4), dtype=np.int64),
            params=self._params,
            files=[("", 0)] * n,
            shown=np.arange(n),
            segments=self._segment_tables,
        )
        self.encoded: EncodedBatch | None = self._encoded
        self.targets: list[GroupTargets] | None = empty_targets(output, n)
        self._probes = next(_fillers) == 0

    def fill(self, slots: range) -> dict[int, Damage]:
        """Describe some images; returns by slot why one has no pixels."""
        records = self._records
        chosen = [slot for slot in slots if slot not in records.problems and records.sizes[slot, 0]]
        self._describe(slots)
        wrong: dict[int, str] = {}
        for slot in chosen:
            self._encoded.files[slot] = records.address(slot)
            code = int(self._results[slot, 0])
            try:
                if code:
                    self._decode(slot, _REASONS.get(code, _NO_TILES))
                elif self._probes and slot == slots.start == 0:
                    self._probe(slot)
            except ImageError as error:
                wrong[slot] = str(error)
            if self.targets is not None:
                wrong |= add_targets(self.targets, records, slot, names=self._names, params=self._params)
        return records.corrupt(wrong)

    def _describe(self, slots: range) -> None:
        """Run the kernel, and note what is held of each image."""
        records, part = self._records, slice(slots.start, slots.stop)
        chosen = list(slots)
        held = records.to_held(self._reach[part], chosen)
        self._boxes[part] = boxes_to_cut(held, records.layouts[part, :2])
        streams = records.addresses, records.sizes, records.layouts, self._boxes, self._points
        described = self._segments, self._lengths, self._firsts
        images = self._rows, self._rects, self._results
        # The records keep the containers open.
        describe_tiles((slots.start, slots.stop), streams, (self._data, self._starts), described, images, self._tables)
        good = self._results[part, 0] == 0
        self._segment_tables.count[part] = np.where(good, self._results[part, 1], 0)
        self._encoded.bounds[part, 1] += np.where(good, self._results[part, 3], 0)
        self._encoded.boxes[part] = self._rects[part]
        self._encoded.boxes[part, 1] += records.tops[part]
        # What is held begins at the box's first row of tiles, and is a JPEG of the rows that follow.
        top, height, mcu_height = self._rects[part, 1], records.layouts[part, HEIGHT], records.layouts[part, MCU_HEIGHT]
        per_row = records.sizes[part, 1] // np.maximum(-(-height // np.maximum(mcu_height, 1)), 1)
        rows = self._results[part, 2] // np.maximum(per_row, 1)
        self._tilings[part, HEIGHT] = np.minimum(rows * mcu_height, height - top)
        self._boxes[part, 1::2] -= top[:, None]

    def _decode(self, slot: int, reason: str) -> None:
        """Decode an image on the CPU; ImageError for one that is damaged."""
        pixels, (left, top) = decode_slot(self._records, slot, self._reach[slot], factor=1)
        self._segment_tables.pixels[slot] = np.ascontiguousarray(pixels.transpose(2, 0, 1))
        self._segment_tables.refused[slot] = reason
        self._encoded.boxes[slot] = left, top, pixels.shape[1], pixels.shape[0]

    def _probe(self, slot: int) -> None:
        """Bring the CPU's pixels of a box."""
        tops = int(self._records.tops[slot])
        box = boxes_to_cut(self._records.to_held(self._reach[[slot]], [slot]), self._records.layouts[[slot], :2])[0]
        pixels, (left, top) = decode_slot(self._records, slot, self._reach[slot], factor=1)
        box[1::2] += tops
        inner = pixels[box[1] - top : box[3] - top, box[0] - left : box[2] - left]
        self._segment_tables.probe = slot, np.ascontiguousarray(inner.transpose(2, 0, 1)), box


def _find_points(records: BatchRecords) -> I64:
    """Find the entry points of the held segments: int64 (n, 2), as ``describe_tiles`` takes them."""
    points = np.zeros((len(records), 2), np.int64)
    for slot in np.flatnonzero((records.entries["flags"] & ENTRY_POINTS != 0) & (records.sizes[:, 1] > 0)).tolist():
        entry, container = records.entries[slot], records.containers[records.container[slot]]
        found = find_entry_points(entry, container.segments)
        points[slot, 1] = -1
        if found is not None:
            step = int(container.segments[found.start])
            above = int(records.held["segment_first"][slot]) - int(entry["segment_first"])
            index = found.start + 1 + above * points_of_segment(int(entry["restart_interval"]), step)
            points[slot] = container.addresses()[1] + index * SEGMENT.itemsize, step
    return points
