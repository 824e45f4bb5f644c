"""Batches on a device: copied, or decoded by nvJPEG or by picstore's kernels.

A ``BatchMaker`` queues the work for batches on the current stream, and returns a function that finishes each batch. If
picstore's kernels decode, only this function waits for the device: until the kernels have reported the images that they
refuse, which the function then decodes on the CPU.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import torch

from picstore.arrays import I64, U8
from picstore.errors import Corrupt, Damage, ImageError, PicstoreError
from picstore.jpeg.gpu_segment_layout import BLOCKS, HELD
from picstore.train.batch import Batch, image_tensors
from picstore.train.batching.damage import replace_damaged
from picstore.train.batching.host_batch import EncodedBatch, HostBatch, SegmentTables
from picstore.train.batching.spec import OutputSpec
from picstore.train.batching.views_reach import box_of_decoded
from picstore.train.cuda.nvjpeg import Decode, decode_all
from picstore.train.cuda.page_locked import lock_pages
from picstore.train.pipeline.device_augment import augment_batches

if TYPE_CHECKING:
    from picstore.train.cuda.decode_tiles import DecodeStatus
    from picstore.train.cuda.decoded import DecodedImages


@dataclass(frozen=True, slots=True)
class MadeBatch:
    """A batch on its device.

    Attributes:
        damage: damage of the records that were replaced.
        refused: reasons, one for each image that a GPU's decoder left to the CPU.
        copied: whether the batch was copied to page-locked memory, because its own memory could not be page-locked.
        event: event that the consumer's stream has to wait for; None on a CPU.
    """

    batch: Batch
    damage: list[Damage]
    refused: list[str] = field(default_factory=list)
    copied: bool = False
    event: torch.cuda.Event | None = None

    def hand_over(self) -> MadeBatch:
        """Make the current CUDA stream wait until the batch is ready, and return this object."""
        if self.event is not None:
            stream = torch.cuda.current_stream(self.batch.labels.device)
            stream.wait_event(self.event)
            # Without this call, torch might reuse the batch's memory while the consumer's kernels still read it.
            self.batch.record_stream(stream)
        return self


# Function that completes a batch begun by ``BatchMaker.start``; called once, with the batch's stream as current stream.
Finish: TypeAlias = Callable[[], MadeBatch]


class BatchMaker(Protocol):
    """Maker of batches on a device from batches in CPU memory.

    Attributes:
        together: maximum number of batches in a call of ``start``. If it is 1, a call may wait for the device, so two
            threads should make calls: one prepares a batch while the other waits.
    """

    @property
    def together(self) -> int: ...

    def takes(self, hosts: Sequence[HostBatch]) -> bool:
        """Return whether the batches are few and small enough for one call of ``start``."""

    def start(self, hosts: Sequence[HostBatch]) -> list[Finish]:
        """Queue the batches' work on the current stream; return, for each batch, a function to call to finish it."""


class OneByOne(ABC):
    """A ``BatchMaker`` whose ``start`` takes one batch, and leaves nothing to finish."""

    together = 1

    def takes(self, hosts: Sequence[HostBatch]) -> bool:
        return len(hosts) == 1

    def start(self, hosts: Sequence[HostBatch]) -> list[Finish]:
        (host,) = hosts
        made = self(host)
        made = replace(made, event=_record_event(made.batch.labels.device))
        return [lambda: made]

    @abstractmethod
    def __call__(self, host: HostBatch) -> MadeBatch:
        """Queue the work for a batch, and return the batch on its device."""


def _record_event(device: torch.device) -> torch.cuda.Event | None:
    return torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None


TOGETHER = 4  # maximum number of batches in one decoding call
# Maximum number of values in the output images of a decoding call; 4 batches of 256 × 3 × 224 × 224 values fit.
_MOST_VALUES = 160 << 20


@dataclass(frozen=True)
class CopyPixels(OneByOne):
    """Copies decoded batches to a GPU through page-locked memory, so that the CPU does not wait for the copies."""

    output: OutputSpec
    device: torch.device

    def __call__(self, host: HostBatch) -> MadeBatch:
        tensors = image_tensors(host.images, getattr(torch, self.output.dtype))
        pinned = Batch.from_host(host, tensors, self.output.groups).pin_memory()
        host.release()
        return MadeBatch(pinned.to(self.device, non_blocking=True), host.damage)


@dataclass(frozen=True)
class DecodeStreams(OneByOne):
    """Maker of batches by nvJPEG, from JPEG streams cut to the needed tiles (rectangles of the JPEG).

    An image that does not decode is replaced by another, or raises Damage if ``strict`` is set.
    """

    output: OutputSpec
    device: torch.device
    decode: Decode
    strict: bool

    def __call__(self, host: HostBatch) -> MadeBatch:
        """Decode and augment a batch; raise Damage for a broken image if ``strict`` is set or nothing replaces it."""
        encoded = host.encoded
        if encoded is None:
            raise TypeError("a batch for a decoder on a device has no streams")
        slots = np.unique(encoded.shown)
        data = torch.from_numpy(np.asarray(host.images))
        streams = [data[start:stop] for start, stop in encoded.bounds[slots].tolist()]
        decoded = decode_all(streams, encoded.boxes[slots, 2:], decode=self.decode, device=self.device)
        images = dict(zip(slots.tolist(), decoded.images, strict=True))
        broken = {int(slots[number]): text for number, text in decoded.problems.items()}
        damage = _replace_broken(host, encoded, broken, strict=self.strict)
        shown: Any = [images[slot] for slot in encoded.shown.tolist()]
        batch = augment_batches([host], [shown], self.output)[0].to(self.device, non_blocking=True)
        return MadeBatch(batch, [*host.damage, *damage], decoded.refused)


@dataclass(frozen=True)
class DecodeTiles:
    """Maker of batches that decodes tiles (rectangles of JPEGs) by picstore's kernels and augments the images on a GPU.

    The CPU decodes the images that the GPU refuses. An image that neither decodes is replaced by another, or raises
    Damage if ``strict`` is set. Another batch may use a batch's memory once the batch is finished, because the GPU has
    then read it.
    """

    output: OutputSpec
    device: torch.device
    strict: bool

    @property
    def together(self) -> int:
        """Maximum number of batches in a call of ``start``."""
        return TOGETHER

    def takes(self, hosts: Sequence[HostBatch]) -> bool:
        from picstore.train.cuda.decode_tiles import MOST_BLOCKS

        if len(hosts) > TOGETHER:
            return False
        tables = [_segments_of(host)[1] for host in hosts]
        sizes = [params.geometry.size for host in hosts for params in _segments_of(host)[0].params]
        values = sum(3 * int((size[:, 0] * size[:, 1]).sum()) for size in sizes)
        blocks = sum(int(each.arrays["images"][:, BLOCKS].sum()) for each in tables)
        return blocks <= MOST_BLOCKS and values <= _MOST_VALUES

    def start(self, hosts: Sequence[HostBatch]) -> list[Finish]:
        from picstore.train.cuda.decode_tiles import decode_tiles

        begun = [_BegunTiles(self, host) for host in hosts]
        if described := [each for each in begun if each.tables.count.any()]:
            locked = [lock_pages(each.tables.block, self.device) for each in described]
            tables = [each.tables for each in described]
            decoded, status = decode_tiles(tables, device=self.device, locked=locked)
            at = 0
            for each, is_locked in zip(described, locked, strict=True):
                slots = np.arange(at, at := at + len(each.tables.count))
                each.decoded, each.status, each.copied = decoded.select(slots), (status, slots), not is_locked
        try:
            batches = augment_batches(hosts, [each.images() for each in begun], self.output)
            made = [batch.to(self.device, non_blocking=True) for batch in batches]
            event = _record_event(self.device)
        except BaseException:
            for each in begun:
                each.wait()  # Another batch may reuse the memory, so wait until the GPU no longer reads it.
            raise
        return [partial(each.finish, batch, event) for each, batch in zip(begun, made, strict=True)]

    def __call__(self, host: HostBatch) -> MadeBatch:
        """Decode and augment a batch, waiting for the decoder.

        Raises:
            Damage: an image does not decode, and either ``strict`` is set or no image can replace it.
            PicstoreError: the GPU's pixels differ from the CPU's.
        """
        return self.start([host])[0]()


def _segments_of(host: HostBatch) -> tuple[EncodedBatch, SegmentTables]:
    encoded = host.encoded
    if encoded is None or encoded.segments is None:
        raise TypeError("a batch for picstore's decoder has no segments")
    return encoded, encoded.segments


class _BegunTiles:
    """Batch whose images are being decoded; it keeps the batch in CPU memory alive, because the GPU reads that memory.

    A slot is an image's place in the batch. A slot whose image cannot be read shows the image of another slot.

    Attributes:
        tables: descriptions of the JPEGs' restart segments; ``tables.count`` is 0 for an image that no slot shows.
        tensors: images that the CPU has decoded, on the device, by slot.
        decoded: images that the GPU decodes; None before the decoding is queued.
        status: statuses of all images decoded in one call, and the index among them of each slot's image, int64
            (slots,). None if the GPU decodes no image of the batch.
    """

    def __init__(self, make: DecodeTiles, host: HostBatch) -> None:
        encoded, tables = _segments_of(host)
        self._make, self._host, self._encoded = make, host, encoded
        shown = np.ones(len(encoded.shown), np.bool_)
        if not encoded.shows_all:
            shown = np.isin(np.arange(len(shown)), encoded.shown)
            tables = replace(tables, count=np.where(shown, tables.count, 0))
        left = [] if tables.count.all() else np.flatnonzero(shown & (tables.count == 0)).tolist()
        self.tables = tables
        self.tensors = {slot: torch.from_numpy(tables.pixels[slot]).to(make.device) for slot in left}
        self._refused = [tables.refused[slot] for slot in left]
        self.decoded: DecodedImages | None = None
        self.status: tuple[DecodeStatus, I64] | None = None
        self.copied = False

    def images(self) -> DecodedImages:
        """Return the images in the order of slots; a slot whose image is not readable has another slot's image."""
        if self.decoded is not None and not self.tensors and self._encoded.shows_all:
            return self.decoded
        images, number_of = self._by_slot()
        return images.select(number_of[self._encoded.shown])

    def _by_slot(self) -> tuple[DecodedImages, I64]:
        """Return the images that the GPU and the CPU have decoded, and the index of each slot's image among them."""
        from picstore.train.cuda.decoded import DecodedImages  # imported late, because it imports Triton

        number_of, parts = np.arange(len(self._encoded.shown)), [] if self.decoded is None else [self.decoded]
        if self.tensors:
            number_of[list(self.tensors)] = sum(map(len, parts)) + np.arange(len(self.tensors))
            parts.append(DecodedImages.from_tensors(list(self.tensors.values())))
        return DecodedImages.join(parts), number_of

    def wait(self) -> I64:
        """Wait until the GPU has read the batch; return the status of the slots' images, int64 (n,): 0 if sound."""
        if self.status is None:
            return np.zeros(len(self._encoded.shown), np.int64)
        status, slots = self.status
        return status.wait()[slots]

    def finish(self, batch: Batch, event: torch.cuda.Event | None) -> MadeBatch:
        """Wait for the GPU; if it refused images, decode them on the CPU, and augment the batch again with them."""
        from picstore.train.cuda.decode_tiles import explain

        make, host, encoded, tables = self._make, self._host, self._encoded, self.tables
        wrong, broken = self.wait(), {}
        slots = np.flatnonzero(wrong).tolist()
        for slot in slots:
            self._refused.append(explain(int(wrong[slot])))
            try:
                self.tensors[slot] = _decode_on_cpu(encoded, tables, slot).to(make.device)
            except ImageError as error:
                broken[slot] = str(error)
        if tables.probe is not None and tables.count[slot := tables.probe[0]] and slot not in broken:
            images, number_of = self._by_slot()
            _check_pixels(images[int(number_of[slot])], encoded, tables.probe)
        damage = _replace_broken(host, encoded, broken, strict=make.strict)
        if slots:
            batch = augment_batches([host], [self.images()], make.output)[0].to(make.device, non_blocking=True)
            event = _record_event(make.device)
        return MadeBatch(batch, [*host.damage, *damage], self._refused, copied=self.copied, event=event)


def _decode_on_cpu(encoded: EncodedBatch, tables: SegmentTables, slot: int) -> torch.Tensor:
    """Decode a slot's tiles on the CPU, (3, h, w), and set the slot's ``encoded.boxes``. Raise ImageError on damage."""
    from picstore.train.cpu.decode_crop import decode_held

    arrays, first = tables.arrays, int(tables.first[slot])
    start, stop = encoded.bounds[slot].tolist()
    held = arrays["lengths"][first : first + int(arrays["images"][slot, HELD])]
    stream, tiling, box = arrays["data"][start:stop], arrays["tilings"][slot], arrays["boxes"][slot]
    factor = int(encoded.factors[slot])
    pixels, (left, top) = decode_held(stream, tiling, box, held, factor=factor)
    encoded.boxes[slot] = left, encoded.boxes[slot, 1] + top, factor * pixels.shape[1], factor * pixels.shape[0]
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))


def _check_pixels(image: torch.Tensor, encoded: EncodedBatch, probe: tuple[int, U8, I64]) -> None:
    """Raise PicstoreError unless the GPU's pixels in the probe, a box of an image, equal those that the CPU decoded."""
    slot, expected, box = probe
    left, top, right, bottom = box_of_decoded(box, encoded.boxes[slot, :2], int(encoded.factors[slot]))
    if not np.array_equal(image[:, top:bottom, left:right].cpu().numpy(), expected):
        raise PicstoreError(
            "the GPU decodes an image to other pixels than the CPU; give decoder='cpu' or 'torchvision', and report "
            "the GPU, its driver, and the versions of torch and triton"
        )


def _replace_broken(host: HostBatch, encoded: EncodedBatch, broken: dict[int, str], *, strict: bool) -> list[Damage]:
    """Replace images that did not decode, given the reasons by slot; return the damage, or raise it if ``strict``."""
    if not broken:
        return []
    problems: dict[int, Damage] = {
        slot: Corrupt(f"record {host.ids[slot]} {broken[shown]}", *encoded.files[shown])
        for slot, shown in enumerate(encoded.shown.tolist())
        if shown in broken
    }
    damage = list(problems.values())
    if damage and strict:
        raise damage[0]
    replace_damaged(host, problems)
    return damage
