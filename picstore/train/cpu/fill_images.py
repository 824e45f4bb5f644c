"""One batch, stage by stage and without threads: draw what happens to its images, fill slots with pixels.

Slots are filled in any order by any thread; each depends on nothing but its draft and its look.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np

from picstore.arrays import I64
from picstore.errors import Corrupt, Damage, ImageError
from picstore.kernels.strided import StridedImage, strided_image, strided_images
from picstore.train.batching.gather import BatchRecords
from picstore.train.batching.parameters import TransformParams
from picstore.train.batching.spec import Images, OutputSpec
from picstore.train.buffers import PLAIN, Blocks
from picstore.train.cpu.color import run_color
from picstore.train.cpu.cut import cut_streams
from picstore.train.cpu.decode import SCALES, decode_rgb
from picstore.train.cpu.fused import FusedKernel
from picstore.train.cpu.render import render
from picstore.train.cpu.targets import add_target
from picstore.train.transforms.geometry import Geometry
from picstore.train.transforms.opcodes import OutputDtype


def decode_factors(geometry: Geometry) -> I64:
    """By how much each image may be decoded smaller, 1, 2, 4 or 8: as long as its part stays at least as large as its
    output. Without antialiasing always 1: a smaller decode averages, which plain bilinear does not.
    """
    shrink = np.where(geometry.antialias & SCALES, geometry.shrink, 1.0)
    factors: I64 = np.left_shift(1, np.clip(np.log2(np.maximum(shrink, 1)), 0, 3).astype(np.int64))
    return factors


class ImageFiller:
    """The images of a batch, and their targets, while they are being filled.

    Attributes:
        images: one array (N, 3, H, W) of the form's item where it has a size, a list of (3, H, W) otherwise; all of
            it lies in one block of memory.
        targets: None where none are asked for.
    """

    def __init__(self, look: TransformParams, form: OutputSpec, blocks: Blocks) -> None:
        self._look = look
        self._geometry, self._program = look.geometry, look.program
        self._factors = decode_factors(look.geometry)
        self._fused = FusedKernel(look.geometry, self._factors)
        self._form = form
        self._finish = OutputDtype.from_dtype(form.dtype)
        self._in_place = form.dtype == "uint8" and (look.program.empty or not form.channels_last)
        self.images = _allocate(look.geometry.size, form, blocks)
        self._places = _places_of(self.images) if self._in_place else np.empty((0, 7), dtype=np.int64)
        self.targets: list[dict[str, Any]] | None = [{} for _ in self.images] if form.targets else None

    def fill(self, draft: BatchRecords, slots: range) -> dict[int, Damage]:
        """Decode, resample and colour some slots; returns by slot what went wrong."""
        plain = self._plain(slots)
        places = self._places[slots.start : slots.stop] if self._in_place else _places_of(plain)
        self._fused.run(draft, slots, places)
        wrong = self._make_others(draft, slots, plain)
        if self.targets is not None or not (self._in_place and self._program.empty):
            for slot, image in zip(slots, plain, strict=True):
                if slot not in wrong and slot not in draft.problems:
                    out = image if self._in_place else self.images[slot]
                    run_color(self._program, slot, image, out, self._finish)
                    if self.targets is not None:
                        wrong |= add_target(self.targets, draft, slot, names=self._form.targets, look=self._look)
        return {slot: Corrupt(f"record {draft.ids[slot]} {text}", *draft.place(slot)) for slot, text in wrong.items()}

    def _plain(self, slots: range) -> Images:
        """Where images of bytes are made, before their colour; in their place if possible."""
        arrays = self.images[slots.start : slots.stop]
        if self._in_place:
            return arrays
        if isinstance(arrays, list):
            return [np.empty(array.shape, dtype=np.uint8) for array in arrays]
        return PLAIN.take(arrays.size)[: arrays.size].reshape(arrays.shape)

    def _make_others(self, draft: BatchRecords, slots: range, plain: Images) -> dict[int, str]:
        """Make what is still missing, stage by stage; returns by slot what is wrong with a stream."""
        missing = np.flatnonzero(~self._fused.done[slots.start : slots.stop]) + slots.start
        chosen = [slot for slot in missing.tolist() if slot not in draft.problems]
        if not chosen:
            return {}
        jpegs, segments = map(draft.jpeg, chosen), map(draft.lengths, chosen)
        streams = cut_streams(list(jpegs), draft.layouts[chosen], list(segments), self._geometry.reach[chosen])
        wrong = {}
        for slot, stream in zip(chosen, streams, strict=True):
            factor = int(self._factors[slot])
            try:
                pixels = decode_rgb(stream.jpeg, width=stream.width, height=stream.height, factor=factor)
            except ImageError as error:
                wrong[slot] = str(error)  # the error itself would keep the container in memory by its traceback
                continue
            origin = stream.left, stream.top
            render(pixels, self._geometry, slot, origin=origin, factor=factor, out=plain[slot - slots.start])
        return wrong

    def copy(self, source: int, target: int) -> None:
        """Show the image of slot ``source`` in slot ``target`` too."""
        self.images[target] = self.images[source]
        if self.targets is not None:
            self.targets[target] = copy.deepcopy(self.targets[source])


def _places_of(images: Images) -> StridedImage:
    """int64 (n, 7): where each image lies."""
    if isinstance(images, list):
        return np.stack([strided_image(image) for image in images])
    return strided_images(images)


def _allocate(sizes: I64, form: OutputSpec, blocks: Blocks) -> Images:
    """Arrays (N, 3, H, W) or (3, H, W) in one block of memory.

    Fresh pages for every batch would cost a tenth of the time that it takes to fill.
    """
    item = form.item
    flat = np.frombuffer(blocks.take(max(1, 3 * int(sizes.prod(axis=1).sum())) * item.itemsize), dtype=item)
    if form.size is not None:
        height, width = form.size
        shape = (len(sizes), height, width, 3) if form.channels_last else (len(sizes), 3, height, width)
        images = flat[: math.prod(shape)].reshape(shape)
        return images.transpose(0, 3, 1, 2) if form.channels_last else images
    listed = []
    end = 0
    for width, height in sizes.tolist():
        start, end = end, end + 3 * width * height
        image = flat[start:end].reshape((height, width, 3) if form.channels_last else (3, height, width))
        listed.append(image.transpose(2, 0, 1) if form.channels_last else image)
    return listed
