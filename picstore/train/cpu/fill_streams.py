"""The streams of a batch, cut for a decoder on a device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from picstore.arrays import U8
from picstore.errors import Damage, ImageError
from picstore.jpeg.cut import TiledJpegs, cut_batch
from picstore.jpeg.decode_any import check_stream
from picstore.train.batching.gather import BatchRecords
from picstore.train.batching.host_batch import EncodedBatch, GroupTargets, ViewImages
from picstore.train.batching.parameters import TransformParams
from picstore.train.batching.spec import OutputSpec
from picstore.train.batching.views_reach import boxes_to_cut, joint_reach
from picstore.train.buffers import BufferPool
from picstore.train.cpu.targets import add_targets, empty_targets


class StreamFiller:
    """The streams and targets of a batch while they are being cut; a :class:`BatchFiller`.

    The streams lie in one block of memory, each chunk of slots where its whole streams would fit.

    Attributes:
        images: uint8 (m,), the bytes.
        targets: None if none are asked for.
        encoded: bounds, boxes and parameters of the streams.
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
        """Cut some streams; returns by slot why one is not to be decoded."""
        records = self._records
        chosen = [slot for slot in slots if slot not in records.problems and records.sizes[slot, 0]]
        if chosen:
            start, stop = self._starts[[slots.start, slots.stop]].tolist()
            layouts = records.layouts[chosen]
            # The records keep the containers open.
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
        """Check the stream of a slot, as decoders on devices allocate by its headers; returns what is wrong by slot."""
        start, stop = self._encoded.bounds[slot].tolist()
        width, height = self._encoded.boxes[slot, 2:].tolist()
        if self._records.foreign[slot]:
            return {slot: "is no upright JPEG, which decoders of devices do not take: use decoder='cpu'"}
        try:
            check_stream(self._data[start:stop], width=width, height=height)
        except ImageError as error:
            return {slot: str(error)}
        return {}
