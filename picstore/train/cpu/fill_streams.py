"""The streams of a batch, cut for a decoder on a device, while they are being cut. Stands in for ``ImageFiller``."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from picstore.arrays import I64
from picstore.errors import Corrupt, Damage
from picstore.jpeg.cut import TiledJpegs, cut_batch
from picstore.train.batching.gather import BatchRecords
from picstore.train.batching.parameters import TransformParams
from picstore.train.batching.spec import EncodedBatch, OutputSpec
from picstore.train.buffers import Blocks
from picstore.train.cpu.cut import boxes_to_cut
from picstore.train.cpu.targets import add_target


class StreamFiller:
    """The streams of a batch in one block of memory, each chunk of slots where its whole streams would fit.

    Attributes:
        images: uint8 (m,), the bytes.
        undecoded: where each stream lies, and what becomes of it.
        targets: None where none are asked for.
    """

    def __init__(self, draft: BatchRecords, look: TransformParams, form: OutputSpec, blocks: Blocks) -> None:
        count = len(draft)
        self._names = form.targets
        self._starts = np.concatenate([[0], np.cumsum(draft.sizes[:, 0])])
        self.images = np.frombuffer(blocks.take(max(1, int(self._starts[-1]))), dtype=np.uint8)
        self.undecoded = EncodedBatch(
            bounds=np.zeros((count, 2), dtype=np.int64),
            places=np.zeros((count, 4), dtype=np.int64),
            look=look,
            source=draft.source,
            files=[("", 0)] * count,
            shown=np.arange(count),
        )
        self.targets: list[dict[str, Any]] | None = [{} for _ in range(count)] if form.targets else None

    def fill(self, draft: BatchRecords, slots: range) -> dict[int, Damage]:
        """Cut some streams; returns by slot what went wrong."""
        there = [slot for slot in slots if slot not in draft.problems and draft.sizes[slot, 0]]
        chosen = np.array(there, dtype=np.int64)
        if len(chosen):
            self._cut(draft, chosen, *self._starts[[slots.start, slots.stop]].tolist())
        for slot in there:
            self.undecoded.files[slot] = draft.place(slot)
        wrong: dict[int, str] = {}
        if self.targets is not None:
            for slot in there:
                wrong |= add_target(self.targets, draft, slot, names=self._names, look=self.undecoded.look)
        return {slot: Corrupt(f"record {draft.ids[slot]} {text}", *draft.place(slot)) for slot, text in wrong.items()}

    def _cut(self, draft: BatchRecords, chosen: I64, start: int, stop: int) -> None:
        layouts = draft.layouts[chosen]
        tiled = TiledJpegs(layouts, draft.addresses[chosen], draft.sizes[chosen], ())  # the draft keeps the containers
        boxes = boxes_to_cut(self.undecoded.look.geometry.reach[chosen], layouts[:, :2])
        cuts = cut_batch(tiled, boxes, out=self.images[start:stop])
        self.undecoded.bounds[chosen, 0] = start + cuts.offsets[:-1]
        self.undecoded.bounds[chosen, 1] = start + cuts.offsets[1:]
        self.undecoded.places[chosen] = cuts.rects

    def copy(self, source: int, target: int) -> None:
        """Show the image of slot ``source`` in slot ``target`` too."""
        self.undecoded.shown[target] = self.undecoded.shown[source]
        if self.targets is not None:
            self.targets[target] = copy.deepcopy(self.targets[source])
