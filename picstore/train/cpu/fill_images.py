"""The images of a batch, made on CPU cores: by the fused kernel, and stage by stage where it does not apply."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from picstore.arrays import I64
from picstore.errors import Damage, ImageError
from picstore.jpeg.rgb import SCALES
from picstore.kernels.strided import strided_images
from picstore.train.batching.gather import BatchRecords
from picstore.train.batching.host_batch import EncodedBatch, Images
from picstore.train.batching.parameters import TransformParams
from picstore.train.batching.spec import OutputSpec
from picstore.train.buffers import PLAIN, BufferPool
from picstore.train.cpu.color import run_color
from picstore.train.cpu.cut import cut_streams
from picstore.train.cpu.decode import decode_rgb
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
    """The images and targets of a batch while they are being made; a :class:`BatchFiller`.

    Slots are filled in any order by any thread: each depends on nothing but its record and its parameters.

    Attributes:
        images: one array (N, 3, H, W), or a list of (3, H, W) for images of several sizes, in one block of memory.
        targets: None if none are asked for.
        encoded: None.
    """

    def __init__(self, records: BatchRecords, params: TransformParams, output: OutputSpec, blocks: BufferPool) -> None:
        self._records = records
        self._params = params
        self._geometry, self._program = params.geometry, params.program
        self._factors = decode_factors(params.geometry)
        self._fused = FusedKernel(params.geometry, self._factors)
        self._output = output
        self._dtype = OutputDtype.from_dtype(output.dtype)
        self._in_place = output.dtype == "uint8" and (params.program.empty or not output.channels_last)
        self.images = _allocate(params.geometry.size, output, blocks)
        self._strided = strided_images(self.images) if self._in_place else np.empty((0, 7), dtype=np.int64)
        self.targets: list[dict[str, Any]] | None = [{} for _ in self.images] if output.targets else None
        self.encoded: EncodedBatch | None = None

    def fill(self, slots: range) -> dict[int, Damage]:
        """Decode, resample and colour some slots; returns by slot why one has no image."""
        records = self._records
        plain = self._plain(slots)
        strided = self._strided[slots.start : slots.stop] if self._in_place else strided_images(plain)
        self._fused.run(records, slots, strided)
        wrong = self._fill_others(slots, plain)
        if self.targets is not None or not (self._in_place and self._program.empty):
            for slot, image in zip(slots, plain, strict=True):
                if slot not in wrong and slot not in records.problems:
                    out = image if self._in_place else self.images[slot]
                    run_color(self._program, slot, image, out, self._dtype)
                    if self.targets is not None:
                        wrong |= add_target(
                            self.targets, records, slot, names=self._output.targets, params=self._params
                        )
        return records.corrupt(wrong)

    def _plain(self, slots: range) -> Images:
        """Memory for resampled images before their colour, uint8; that of the outputs if possible."""
        arrays = self.images[slots.start : slots.stop]
        if self._in_place:
            return arrays
        if isinstance(arrays, list):
            return [np.empty(array.shape, dtype=np.uint8) for array in arrays]
        return PLAIN.at_least(arrays.size)[: arrays.size].reshape(arrays.shape)

    def _fill_others(self, slots: range, plain: Images) -> dict[int, str]:
        """Fill the slots that the fused kernel left, stage by stage; returns by slot what is wrong with a stream."""
        records = self._records
        missing = np.flatnonzero(~self._fused.done[slots.start : slots.stop]) + slots.start
        chosen = [slot for slot in missing.tolist() if slot not in records.problems]
        if not chosen:
            return {}
        jpegs, segments = map(records.jpeg, chosen), map(records.lengths, chosen)
        streams = cut_streams(list(jpegs), records.layouts[chosen], list(segments), self._geometry.reach[chosen])
        wrong = {}
        for slot, stream in zip(chosen, streams, strict=True):
            factor = int(self._factors[slot])
            try:
                pixels = decode_rgb(stream.jpeg, width=stream.width, height=stream.height, factor=factor)
                origin = stream.left, stream.top
                render(pixels, self._geometry, slot, origin=origin, factor=factor, out=plain[slot - slots.start])
            except ImageError as error:
                wrong[slot] = str(error)  # the error itself would keep the container in memory by its traceback
            except MemoryError:
                wrong[slot] = "takes more memory than there is"
        return wrong


def _allocate(sizes: I64, output: OutputSpec, blocks: BufferPool) -> Images:
    """Arrays (N, 3, H, W) or (3, H, W) in one block of memory.

    Fresh pages for every batch would cost a tenth of the time that it takes to fill.
    """
    dtype = output.numpy_dtype
    flat = np.frombuffer(blocks.borrow(max(1, 3 * int(sizes.prod(axis=1).sum())) * dtype.itemsize), dtype=dtype)
    if output.size is not None:
        height, width = output.size
        shape = (len(sizes), height, width, 3) if output.channels_last else (len(sizes), 3, height, width)
        images = flat[: math.prod(shape)].reshape(shape)
        return images.transpose(0, 3, 1, 2) if output.channels_last else images
    listed = []
    end = 0
    for width, height in sizes.tolist():
        start, end = end, end + 3 * width * height
        image = flat[start:end].reshape((height, width, 3) if output.channels_last else (3, height, width))
        listed.append(image.transpose(2, 0, 1) if output.channels_last else image)
    return listed
