"""Filler of batches of images on CPU cores, by the fused kernel or, if that leaves an image out, stage by stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from picstore.arrays import I64, U8, Array
from picstore.errors import Damage, ImageError
from picstore.kernels.strided import StridedImage, strided_images
from picstore.train.batching.gather import BatchRecords
from picstore.train.batching.host_batch import EncodedBatch, Images, ViewImages
from picstore.train.batching.parameters import TransformParams
from picstore.train.batching.spec import OutputSpec
from picstore.train.batching.views_reach import align_reach, joint_factors, joint_reach
from picstore.train.buffers import PLAIN, BufferPool
from picstore.train.cpu.decode_crop import decode_slot
from picstore.train.cpu.fused import FusedKernel
from picstore.train.cpu.render import render
from picstore.train.cpu.run_color import run_color
from picstore.train.cpu.targets import add_targets, empty_targets
from picstore.train.transforms.geometry import Geometry
from picstore.train.transforms.opcodes import OutputDtype


@dataclass(frozen=True, slots=True)
class _View:
    """One view of all images of a batch: each image has an output in each view."""

    params: TransformParams  # random parameters of all views that share this view's transforms, a row for each image
    first: int  # row in ``params`` of the batch's first image in this view; the rows of the other images follow
    images: Images


class ImageFiller:
    """Filler of batches with images and targets; see :class:`BatchFiller`. All images lie in one block of memory.

    Threads may fill slots (images) in any order. A record is decoded once, within the box that its views together
    reach.
    """

    def __init__(
        self, records: BatchRecords, params: Sequence[TransformParams], output: OutputSpec, blocks: BufferPool
    ) -> None:
        n, geometries = len(records), [each.geometry for each in params]
        self._records, self._params, self._output = records, params, output
        self._factors: I64 = np.where(records.foreign, 1, joint_factors(geometries, n, output.reducing_gap))
        self._reach = align_reach(joint_reach(geometries, n), self._factors)
        records.check_reach(self._reach)
        self._fused = FusedKernel(geometries, self._reach, self._factors, records.foreign)
        self._dtype = OutputDtype.from_dtype(output.dtype)
        self._uncolored = all(each.program.empty for each in params)
        self._in_place = output.dtype == "uint8" and (self._uncolored or not output.channels_last)
        groups = _allocate(geometries, output, n, blocks)
        self.images: list[ViewImages] | U8 = groups
        self._views = [
            _View(each, number * n, images)
            for each, group in zip(params, groups, strict=True)
            for number, images in enumerate(group)
        ]
        self._strided = self._describe([view.images for view in self._views]) if self._in_place else None
        self.targets = empty_targets(output, n)
        self.encoded: EncodedBatch | None = None

    def fill(self, slots: range) -> dict[int, Damage]:
        """Make the images of ``slots``; return, by slot, the damage of records that give no image."""
        records, plain = self._records, self._plain(slots)
        described = self._describe(plain) if self._strided is None else self._strided[:, slots.start : slots.stop]
        made = self._fused.run(records, slots, np.ascontiguousarray(described).reshape(-1, described.shape[2]))
        wrong = {} if made else self._fill_others(slots, plain)
        finished = self._uncolored and self._in_place and self.targets is None
        for slot in () if finished else slots:
            if slot not in wrong and slot not in records.problems:
                self._color(slot, slot - slots.start, plain)
                if self.targets is not None:
                    names = self._output.targets
                    wrong |= add_targets(self.targets, records, slot, names=names, params=self._params)
        return records.corrupt(wrong) if wrong else {}

    @staticmethod
    def _describe(views: Sequence[Images]) -> StridedImage:
        """Return ``strided_image`` (address, strides, shape) of each image of each view: int64 (views, n, 7)."""
        return np.stack([strided_images(images) for images in views])

    def _plain(self, slots: range) -> list[Images]:
        """Return, for each view, uint8 memory for the resampled images of ``slots`` before their colors are changed.

        If the batch's images are planes of bytes, this is the batch's memory, because colors can be changed in place.
        """
        outputs = [view.images[slots.start : slots.stop] for view in self._views]
        if self._in_place:
            return outputs
        arrays = [images for images in outputs if not isinstance(images, list)]
        buffer, end = PLAIN.at_least(sum(images.size for images in arrays)), 0
        plain: list[Images] = []
        for images in outputs:
            if isinstance(images, list):
                plain.append([np.empty(image.shape, dtype=np.uint8) for image in images])
            else:
                start, end = end, end + images.size
                plain.append(buffer[start:end].reshape(images.shape))
        return plain

    def _color(self, slot: int, index: int, plain: Sequence[Images]) -> None:
        """Run the color steps of each view of image ``slot``; its resampled pixels are plain[view][index]."""
        if self._in_place and self._uncolored:
            return
        for view, resampled in zip(self._views, plain, strict=True):
            image = resampled[index]
            out = image if self._in_place else view.images[slot]
            run_color(view.params.program, view.first + slot, image, out, self._dtype)

    def _fill_others(self, slots: range, plain: Sequence[Images]) -> dict[int, str]:
        """Make images of ``slots`` that the fused kernel has left out; return {slot: reason} for undecodable ones."""
        records = self._records
        missing = np.flatnonzero(~self._fused.done[slots.start : slots.stop]) + slots.start
        chosen = [slot for slot in missing.tolist() if slot not in records.problems]
        wrong = {}
        for slot in chosen:
            factor = int(self._factors[slot])
            try:
                pixels, origin = decode_slot(records, slot, self._reach[slot], factor=factor)
                for view, images in zip(self._views, plain, strict=True):
                    row, out = view.first + slot, images[slot - slots.start]
                    render(pixels, view.params.geometry, row, origin=origin, factor=factor, out=out)
            except ImageError as error:
                wrong[slot] = str(error)  # not the error itself, whose traceback would keep the container in memory
            except MemoryError:
                wrong[slot] = "takes more memory than there is"
        return wrong


def _allocate(geometries: Sequence[Geometry], output: OutputSpec, n: int, blocks: BufferPool) -> list[ViewImages]:
    """Allocate one block of memory for n images in each view of all groups of views.

    The block comes from a pool, because fresh pages would take a tenth of the time in which a batch is filled.

    Returns:
        The memory for each group: an array (views, n, 3, H, W) if the group has a fixed image size; otherwise a list of
        n arrays (3, h, w) for each view.
    """
    dtype = output.numpy_dtype
    values = [3 * int(geometry.size.prod(axis=1).sum()) for geometry in geometries]
    flat = np.frombuffer(blocks.borrow(max(1, sum(values)) * dtype.itemsize), dtype=dtype)
    groups: list[ViewImages] = []
    for group, geometry, memory in zip(
        output.groups, geometries, np.split(flat[: sum(values)], np.cumsum(values)[:-1]), strict=True
    ):
        if group.stacked:
            width, height = geometry.size[0].tolist()
            shape = (height, width, 3) if output.channels_last else (3, height, width)
            images = memory.reshape(group.count, n, *shape)
            groups.append(images.transpose(0, 1, 4, 2, 3) if output.channels_last else images)
        else:
            listed = _split_images(memory, geometry.size, output.channels_last)
            groups.append([listed[k : k + n] for k in range(0, len(listed), n)])
    return groups


def _split_images(memory: Array, sizes: I64, channels_last: bool) -> list[Array]:
    listed = []
    end = 0
    for width, height in sizes.tolist():
        start, end = end, end + 3 * width * height
        image = memory[start:end].reshape((height, width, 3) if channels_last else (3, height, width))
        listed.append(image.transpose(2, 0, 1) if channels_last else image)
    return listed
