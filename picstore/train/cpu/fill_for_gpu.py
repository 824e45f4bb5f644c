"""Fillers of batches that a GPU decodes: streams cut for nvJPEG, or tiles described for picstore's own decoder.

For picstore's decoder, rows of tiles are copied as they were read; no stream is cut or written. Images of a kind that
the GPU does not decode are decoded here, by the CPU's decoding threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

import numpy as np

from picstore.arrays import I64, U8
from picstore.errors import Damage, ImageError
from picstore.jpeg.cut import TiledJpegs, cut_batch
from picstore.jpeg.decode_any import check_stream
from picstore.jpeg.decoder.box import OUTSIDE
from picstore.jpeg.decoder.decode_baseline import REASONS
from picstore.jpeg.decoder.describe import WRONG_ENTRY_POINTS, describe_tiles, measure_tiles
from picstore.jpeg.tiles import HEIGHT, MCU_HEIGHT
from picstore.train.batching.batch_kernels import choose_boxes
from picstore.train.batching.gather import BatchRecords
from picstore.train.batching.host_batch import EncodedBatch, GroupTargets, SegmentLayout, SegmentTables, ViewImages
from picstore.train.batching.parameters import TransformParams
from picstore.train.batching.spec import OutputSpec
from picstore.train.batching.views_reach import align_reach, box_of_decoded, boxes_to_cut, joint_factors, joint_reach
from picstore.train.buffers import BufferPool, round_coarsely
from picstore.train.cpu.decode_crop import decode_slot
from picstore.train.cpu.targets import add_targets, empty_targets

_NO_TILES = "its segments form no rows of tiles"
_REASONS = {
    **REASONS,
    WRONG_ENTRY_POINTS: "its entry points do not lie within its segments",
    OUTSIDE: "its box does not lie within what was read of it",
}
# Number of first batches of a process in which the CPU also decodes one image, to check the GPU's pixels. More than 1
# batch is checked, because some batches may be dropped.
PROBED = 16
_probed = count()


class StreamFiller:
    """Filler of batches with targets and JPEG streams that are cut to the tiles in the views; see :class:`BatchFiller`.

    The cut streams lie in one block of memory, ``images``, which is as large as all streams before they are cut.
    """

    def __init__(
        self, records: BatchRecords, params: Sequence[TransformParams], output: OutputSpec, blocks: BufferPool
    ) -> None:
        count = len(records)
        self._records, self._params = records, tuple(params)
        self._reach = joint_reach([each.geometry for each in params], count)
        records.check_reach(self._reach)
        self._names = output.targets
        self._starts = np.concatenate([[0], np.cumsum(records.sizes[:, 0])])
        self._data = np.frombuffer(blocks.borrow(max(1, int(self._starts[-1]))), dtype=np.uint8)
        self.images: list[ViewImages] | U8 = self._data
        self._encoded = EncodedBatch(
            bounds=np.zeros((count, 2), dtype=np.int64),
            boxes=np.zeros((count, 4), dtype=np.int64),
            params=self._params,
            files=records.files(),
            shown=np.arange(count),
            factors=np.ones(count, dtype=np.int64),
        )
        self.encoded: EncodedBatch | None = self._encoded
        self.targets: list[GroupTargets] | None = empty_targets(output, count)

    def fill(self, slots: range) -> dict[int, Damage]:
        """Cut the streams of ``slots`` to the parts that views show; return, by slot, damage that prevents decoding."""
        records = self._records
        chosen = [slot for slot in slots if slot not in records.problems and records.sizes[slot, 0]]
        if chosen:
            start, stop = self._starts[[slots.start, slots.stop]].tolist()
            layouts = records.layouts[chosen]
            # Pass no owners of the streams' memory (the last argument), because ``records`` keeps it alive.
            tiled = TiledJpegs(layouts, records.addresses[chosen], records.sizes[chosen], ())
            boxes = boxes_to_cut(records.to_held(self._reach[chosen], chosen), layouts[:, :2])
            cuts = cut_batch(tiled, boxes, out=self._data[start:stop])
            self._encoded.bounds[chosen] = start + np.stack([cuts.offsets[:-1], cuts.offsets[1:]], axis=1)
            self._encoded.boxes[chosen] = cuts.rects
            self._encoded.boxes[chosen, 1] += records.tops[chosen]
        wrong: dict[int, str] = {}
        for slot in chosen:
            wrong |= self._check(slot)
            if self.targets is not None:
                wrong |= add_targets(self.targets, records, slot, names=self._names, params=self._params)
        return records.corrupt(wrong)

    def _check(self, slot: int) -> dict[int, str]:
        """Check a stream's headers, by which GPU decoders allocate memory; return {slot: problem}, or {} if sound."""
        start, stop = self._encoded.bounds[slot].tolist()
        width, height = self._encoded.boxes[slot, 2:].tolist()
        if self._records.foreign[slot]:
            return {slot: "is not an upright JPEG, which decoders of devices do not take: use decoder='cpu'"}
        try:
            check_stream(self._data[start:stop], width=width, height=height)
        except ImageError as error:
            return {slot: str(error)}
        return {}


class SegmentFiller:
    """Filler of batches with JPEG tiles, the tiles' descriptions for the GPU, and targets; see :class:`BatchFiller`.

    A process's first batches also carry one image that the CPU has decoded, to be compared with the GPU's pixels.
    """

    def __init__(
        self, records: BatchRecords, params: Sequence[TransformParams], output: OutputSpec, blocks: BufferPool
    ) -> None:
        n = len(records)
        self._records, self._params, self._names = records, tuple(params), output.targets
        geometries = [each.geometry for each in params]
        self._factors: I64 = np.where(records.foreign, 1, joint_factors(geometries, n, output.reducing_gap))
        self._reach = align_reach(joint_reach(geometries, n), self._factors)
        records.check_reach(self._reach)
        boxes, self._per_row = np.empty((n, 4), np.int64), np.empty(n, np.int64)
        choose_boxes(self._reach, records.tops, records.layouts, records.sizes, boxes, self._per_row)
        self._starts, self._firsts = np.zeros((2, n + 1), np.int64)
        streams = records.addresses, records.sizes, records.layouts
        measure_tiles((*streams, boxes, self._factors, records.points), self._starts, self._firsts)
        layout = SegmentLayout(int(self._starts[-1]), n, int(self._firsts[-1]))
        block = np.frombuffer(blocks.borrow(round_coarsely(layout.size)), dtype=np.uint8)[: layout.size]
        arrays: Any = SegmentTables.divide(layout, block)
        self._data, self._rows, self._segments = arrays["data"], arrays["images"], arrays["segments"]
        self._tables = arrays["codes"], arrays["places"], arrays["quantization"]
        self._rows[:], arrays["places"][:] = 0, 0  # Rows of zeros mark images that the GPU does not decode.
        self.images: list[ViewImages] | U8 = self._data
        self._rects, self._results = (np.zeros((n, 4), np.int64) for _ in range(2))
        self._tilings, self._boxes, self._lengths = arrays["tilings"], arrays["boxes"], arrays["lengths"]
        self._tilings[:], self._boxes[:] = records.layouts, boxes
        self._segment_tables = SegmentTables(layout, block, arrays, self._firsts[:-1], np.zeros(n, np.int64))
        self._encoded = EncodedBatch(
            bounds=np.stack([self._starts[:-1], self._starts[:-1]], axis=1),
            boxes=np.zeros((n, 4), dtype=np.int64),
            params=self._params,
            files=records.files(),
            shown=np.arange(n),
            factors=self._factors,
            segments=self._segment_tables,
        )
        self.encoded: EncodedBatch | None = self._encoded
        self.targets: list[GroupTargets] | None = empty_targets(output, n)

    def fill(self, slots: range) -> dict[int, Damage]:
        """Copy and describe the tiles of images ``slots``; return, by slot, damage of images that cannot be decoded."""
        records = self._records
        self._describe(slice(slots.start, slots.stop))
        wrong: dict[int, str] = {}
        codes = self._results[slots.start : slots.stop, 0]
        # Without targets, only images with an error code of ``describe_tiles`` need work: the GPU does not decode them.
        # Images without a stream have an error code too; the loop skips them.
        chosen = slots if self.targets is not None else (slots.start + np.flatnonzero(codes)).tolist()
        probed = self._choose_probe(codes) if slots.start == 0 else -1
        if probed >= 0:
            chosen = sorted({probed, *chosen})
        for slot in chosen:
            if slot in records.problems or not records.sizes[slot, 0]:
                continue
            code = int(self._results[slot, 0])
            try:
                if code:
                    self._decode(slot, _REASONS.get(code, _NO_TILES))
                elif slot == probed:
                    self._probe(slot)
            except ImageError as error:
                wrong[slot] = str(error)
            if self.targets is not None:
                wrong |= add_targets(self.targets, records, slot, names=self._names, params=self._params)
        return records.corrupt(wrong)

    def _describe(self, part: slice) -> None:
        """Copy and describe the tiles of the images ``part``, a range of slots; store each image's copied rectangle."""
        records = self._records
        streams = records.addresses, records.sizes, records.layouts, self._boxes, self._factors, records.points
        described = self._segments, self._lengths, self._firsts
        images = self._rows, self._rects, self._results
        describe_tiles((part.start, part.stop), streams, (self._data, self._starts), described, images, self._tables)
        results, rects = self._results[part], self._rects[part]
        good = results[:, 0] == 0
        self._segment_tables.count[part] = results[:, 1] * good
        self._encoded.bounds[part, 1] += results[:, 3] * good
        self._encoded.boxes[part] = rects
        self._encoded.boxes[part, 1] += records.tops[part]
        # The GPU takes the copied rows of tiles as the image, so height and box are relative to the first copied row.
        top, height = rects[:, 1], records.layouts[part, HEIGHT]
        rows = results[:, 2] // self._per_row[part]
        self._tilings[part, HEIGHT] = np.minimum(rows * records.layouts[part, MCU_HEIGHT], height - top)
        self._boxes[part, 1::2] -= top[:, None]

    def _decode(self, slot: int, reason: str) -> None:
        """Decode on the CPU an image that the GPU cannot decode for ``reason``; raise ImageError if it is damaged."""
        factor = int(self._factors[slot])
        pixels, (left, top) = decode_slot(self._records, slot, self._reach[slot], factor=factor)
        self._segment_tables.pixels[slot] = np.ascontiguousarray(pixels.transpose(2, 0, 1))
        self._segment_tables.refused[slot] = reason
        self._encoded.boxes[slot] = left, top, factor * pixels.shape[1], factor * pixels.shape[0]

    def _choose_probe(self, codes: I64) -> int:
        """Return the first slot that the GPU decodes, to check its pixels; -1 if none, or after ``PROBED`` batches."""
        described = np.flatnonzero(codes == 0)
        return int(described[0]) if len(described) and next(_probed) < PROBED else -1

    def _probe(self, slot: int) -> None:
        """Decode on the CPU, too, the part of image ``slot`` that views show; keep it to compare it with the GPU's."""
        tops = int(self._records.tops[slot])
        box = boxes_to_cut(self._records.to_held(self._reach[[slot]], [slot]), self._records.layouts[[slot], :2])[0]
        factor = int(self._factors[slot])
        pixels, origin = decode_slot(self._records, slot, self._reach[slot], factor=factor)
        box[1::2] += tops
        left, top, right, bottom = box_of_decoded(box, origin, factor)
        inner = pixels[top:bottom, left:right]
        self._segment_tables.probe = slot, np.ascontiguousarray(inner.transpose(2, 0, 1)), box
