"""Batches in CPU memory: HostBatch, the EncodedBatch of a decoder on a device, and the protocol of their fillers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import accumulate
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np

from picstore.arrays import I64, U8, Array
from picstore.errors import Damage
from picstore.jpeg import gpu_segment_layout as words
from picstore.storage.edits.columns import Values
from picstore.train.batching.parameters import TransformParams

T = TypeVar("T")

Images: TypeAlias = "Array | list[Array]"  # (n, 3, H, W), or n of (3, H, W)
ViewImages: TypeAlias = "Array | list[list[Array]]"  # of a group: (count, n, 3, H, W), or count lists of n (3, H, W)
GroupTargets: TypeAlias = "list[list[dict[str, Any]]]"  # count lists of n

_ALIGNMENT = 128  # bytes of a row of quantization, which kernels count in the memory of several batches


def map_images(function: Callable[[Any], T], images: Any) -> Any:
    """Apply a function to each array of lists of lists; returns such lists of its results."""
    if isinstance(images, list):
        return [map_images(function, image) for image in images]
    return function(images)


@dataclass(frozen=True, slots=True, eq=False)
class RecordFiles:
    """File and offset of each record of a batch, by slot: ``files[slot]``."""

    names: list[str]
    number: I64  # (n,), of a record's file among the names, −1 for none
    offsets: I64  # (n,)

    def __getitem__(self, slot: int) -> tuple[str, int]:
        number = int(self.number[slot])
        return (self.names[number], int(self.offsets[slot])) if number >= 0 else ("", 0)


@dataclass(frozen=True, slots=True)
class SegmentLayout:
    """The arrays of a batch for a GPU's decoder in one block of memory: ``data`` bytes, ``images``, ``parts``."""

    data: int
    images: int
    parts: int

    @lru_cache(maxsize=8)  # noqa: B019 - of a few numbers; a batch is divided and uploaded by the same layout
    def places(self) -> dict[str, tuple[slice, tuple[int, ...], str]]:
        """Bytes, shape and dtype of each array by name, each from a multiple of _ALIGNMENT bytes on."""
        n, tables = self.images, words.HUFFMAN_TABLES * self.images
        shapes: dict[str, tuple[tuple[int, ...], str]] = {
            "data": ((self.data,), "uint8"),
            "segments": ((self.parts, words.PART_WORDS), "int32"),
            "codes": ((tables, words.HUFFMAN_BYTES), "uint8"),
            "places": ((tables, 4), "int32"),
            "quantization": ((tables, 64), "int16"),
            # What follows stays on the host; decoding copies words of images of several batches together.
            "images": ((n, words.IMAGE_WORDS), "int64"),
            "tilings": ((n, 6), "int64"),
            "boxes": ((n, 4), "int64"),
            "lengths": ((self.parts,), "uint16"),
        }
        sizes = [math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in shapes.values()]
        starts = accumulate((-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes), initial=0)
        return {
            name: (slice(start, start + size), shape, dtype)
            for (name, (shape, dtype)), start, size in zip(shapes.items(), starts, sizes, strict=False)
        }

    @property
    def uploaded(self) -> int:
        """Bytes at the block's begin that a GPU reads, a multiple of _ALIGNMENT."""
        uploaded: int = self.places()["images"][0].start
        return uploaded

    @property
    def size(self) -> int:
        """Bytes of the block."""
        size: int = self.places()["lengths"][0].stop
        return size


@dataclass(slots=True, eq=False)
class SegmentTables:
    """Describes a batch's tiles to a GPU's decoder; their rows lie in the batch's bytes. See ``gpu_segment_layout``.

    Images that the GPU does not decode have their pixels here.
    """

    layout: SegmentLayout
    block: U8  # the memory of the arrays
    arrays: dict[str, Array]  # of ``SegmentLayout``, in the block
    first: I64  # (n,), the first of an image's parts of segments
    count: I64  # (n,), of an image's parts of segments; 0 for images that the GPU does not decode
    pixels: dict[int, U8] = field(default_factory=dict)  # (3, h, w), by slot
    refused: dict[int, str] = field(default_factory=dict)  # why a slot's pixels were made on the CPU
    probe: tuple[int, U8, I64] | None = None  # a slot, and the CPU's pixels (3, h, w) of a box in the stored image

    @staticmethod
    def divide(layout: SegmentLayout, block: U8) -> dict[str, Array]:
        """Make the arrays of a layout in a block."""
        return {
            name: np.ndarray(shape, dtype, block.data, part.start)
            for name, (part, shape, dtype) in layout.places().items()
        }


@dataclass(frozen=True, slots=True, eq=False)
class EncodedBatch:
    """The streams of a batch that a device decodes, by slot."""

    bounds: I64  # (n, 2), start and end of each stream in the batch's bytes; 0, 0 for no stream
    boxes: I64  # (n, 4), left, top, width and height of the decoded image, in pixels of the stored one
    params: tuple[TransformParams, ...]  # of each group
    files: RecordFiles
    shown: I64  # (n,), the slot whose stream is decoded: another one's for a damaged record
    factors: I64  # (n,), by which decoding divides the sides
    segments: SegmentTables | None = None  # for picstore's own decoder

    @property
    def shows_all(self) -> bool:
        """Whether each slot shows its own stream."""
        return bool((self.shown == np.arange(len(self.shown))).all())


@dataclass(slots=True, eq=False)
class HostBatch:
    """A finished batch in CPU memory, by slot: the fields of ``Batch`` as arrays, and more."""

    images: list[ViewImages] | U8  # of each group; with ``encoded`` the bytes of all streams, uint8 (m,)
    labels: I64
    ids: I64
    source: I64  # (n,), number of the data set
    targets: list[GroupTargets] | None  # of each group
    damage: list[Damage]  # the records that were replaced
    encoded: EncodedBatch | None = None  # the streams, where a device decodes them
    columns: dict[str, Values] = field(default_factory=dict)
    weight: float = 1.0

    def release(self) -> None:
        """Let go of the images, so that their memory is free as soon as no tensor shares it."""
        self.images = []

    def take_apart(self) -> tuple[Any, HostBatch]:
        """Divide into the arrays that lie in one block of memory, in lists, and the rest, which is pickled."""
        if self.encoded is None or self.encoded.segments is None:
            return self.images, replace(self, images=[])
        tables = self.encoded.segments
        nothing: Any = None
        encoded = replace(self.encoded, segments=replace(tables, block=nothing, arrays={}))
        return tables.block, replace(self, images=[], encoded=encoded)

    def put_together(self, arrays: Any) -> HostBatch:
        """The batch that was taken apart, with its arrays."""
        if self.encoded is None or self.encoded.segments is None:
            return replace(self, images=arrays)
        tables = self.encoded.segments
        tables = replace(tables, block=arrays, arrays=SegmentTables.divide(tables.layout, arrays))
        return replace(self, images=tables.arrays["data"], encoded=replace(self.encoded, segments=tables))


class BatchFiller(Protocol):
    """The images of one batch, or its streams, while they are being made, as in :class:`HostBatch`."""

    images: list[ViewImages] | U8
    targets: list[GroupTargets] | None
    encoded: EncodedBatch | None

    def fill(self, slots: range) -> dict[int, Damage]:
        """Make some slots, in any order and from any thread; returns by slot why one has no image."""
