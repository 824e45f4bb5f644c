"""Batches in CPU memory: HostBatch, the EncodedBatch for a decoder on a device, and the protocol of fillers."""

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

Images: TypeAlias = "Array | list[Array]"  # (n, 3, H, W) if the transforms fix the size, else n arrays (3, h, w)
# Images of a group of ``count`` views: an array (count, n, 3, H, W) if the transforms fix the size, else for each view
# a list of n arrays (3, h, w).
ViewImages: TypeAlias = "Array | list[list[Array]]"
GroupTargets: TypeAlias = "list[list[dict[str, Any]]]"  # targets of the n slots, for each view of a group

# Arrays begin at multiples of 128 bytes, the size of a quantization table (64 int16). Where several batches lie in one
# memory, each table thus lies at 128 bytes times an integer, by which kernels address the table.
_ALIGNMENT = 128


def map_images(function: Callable[[Any], T], images: Any) -> Any:
    """Apply a function to each array in nested lists; return the results in equally nested lists."""
    if isinstance(images, list):
        return [map_images(function, image) for image in images]
    return function(images)


@dataclass(frozen=True, slots=True, eq=False)
class RecordFiles:
    """Files and offsets of the n records of a batch; ``files[slot]`` is the pair (file, offset) of a slot."""

    names: list[str]
    number: I64  # (n,), index in ``names`` of each record's file; −1 for an empty slot
    offsets: I64  # (n,), byte offset of each record in its file

    def __getitem__(self, slot: int) -> tuple[str, int]:
        number = int(self.number[slot])
        return (self.names[number], int(self.offsets[slot])) if number >= 0 else ("", 0)


@dataclass(frozen=True, slots=True)
class SegmentLayout:
    """Layout of a batch's arrays in one block of memory for picstore's GPU decoder."""

    data: int  # number of bytes of all rows of tiles
    images: int  # number of images
    parts: int  # number of parts of restart segments; the GPU decodes the parts in parallel

    @lru_cache(maxsize=8)  # noqa: B019 - a layout is a few numbers
    def places(self) -> dict[str, tuple[slice, tuple[int, ...], str]]:
        """Return each array's byte range, shape and dtype by name; arrays begin at multiples of ``_ALIGNMENT``."""
        n, tables = self.images, words.HUFFMAN_TABLES * self.images
        shapes: dict[str, tuple[tuple[int, ...], str]] = {
            "data": ((self.data,), "uint8"),
            "segments": ((self.parts, words.PART_WORDS), "int32"),
            "codes": ((tables, words.HUFFMAN_BYTES), "uint8"),
            "places": ((tables, 4), "int32"),
            "quantization": ((tables, 64), "int16"),
            # The arrays before ``images`` are copied to a GPU as they lie in the block. ``images`` is first joined on
            # the CPU with those of other batches.
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
        """Number of bytes at the block's start that are copied to a GPU, a multiple of ``_ALIGNMENT``."""
        uploaded: int = self.places()["images"][0].start
        return uploaded

    @property
    def size(self) -> int:
        """Number of bytes of the block, in which all arrays lie."""
        size: int = self.places()["lengths"][0].stop
        return size


@dataclass(slots=True, eq=False)
class SegmentTables:
    """Description of a batch's tiles for picstore's GPU decoder; the rows of tiles are in ``arrays["data"]``."""

    layout: SegmentLayout
    block: U8  # memory in which ``arrays`` lie
    arrays: dict[str, Array]  # arrays of the layout, see ``jpeg.gpu_segment_layout``
    first: I64  # (n,), index in ``arrays["segments"]`` of each image's first row; a row describes a part of a segment
    count: I64  # (n,), number of rows in ``arrays["segments"]`` for each image; 0 if the GPU does not decode it
    pixels: dict[int, U8] = field(default_factory=dict)  # pixels (3, h, w) that the CPU decoded, by slot
    refused: dict[int, str] = field(default_factory=dict)  # reason why the GPU does not decode an image, by slot
    # Check of the GPU's decoder in a process's first batches: a slot; a part of the slot's image as pixels (3, h, w)
    # that the CPU decoded; and the box of this part in pixels of the stored image.
    probe: tuple[int, U8, I64] | None = None

    @staticmethod
    def divide(layout: SegmentLayout, block: U8) -> dict[str, Array]:
        """Return the arrays of a layout by name, which share the memory of ``block``."""
        return {
            name: np.ndarray(shape, dtype, block.data, part.start)
            for name, (part, shape, dtype) in layout.places().items()
        }


@dataclass(frozen=True, slots=True, eq=False)
class EncodedBatch:
    """Description, by slot, of a batch's JPEG streams, which a GPU decodes."""

    bounds: I64  # (n, 2), offsets of each slot's stream in ``HostBatch.images``: start, end; equal without a stream
    boxes: I64  # (n, 4), left, top, width and height of each decoded image, in pixels of the stored image
    params: tuple[TransformParams, ...]  # random parameters of the transforms, for each group of views
    files: RecordFiles
    shown: I64  # (n,), for each slot, the slot from whose stream its image comes: itself or its replacement
    factors: I64  # (n,), factor by which decoding divides each image's sides
    segments: SegmentTables | None = None

    @property
    def shows_all(self) -> bool:
        """Whether each slot's image comes from the slot's own stream."""
        return bool((self.shown == np.arange(len(self.shown))).all())


@dataclass(slots=True, eq=False)
class HostBatch:
    """Finished batch in CPU memory: the fields of ``Batch`` as arrays, and data to complete the batch on a device."""

    images: list[ViewImages] | U8  # images by group of views, or the bytes that a GPU decodes
    labels: I64
    ids: I64
    source: I64  # (n,), index of the dataset of each slot
    targets: list[GroupTargets] | None  # targets by group of views; None if the loader yields none
    damage: list[Damage]  # damage of records that were replaced
    encoded: EncodedBatch | None = None
    columns: dict[str, Values] = field(default_factory=dict)
    weight: float = 1.0

    def release(self) -> None:
        """Drop the images, so that their memory is reusable once no tensor shares it."""
        self.images = []

    def take_apart(self) -> tuple[Any, HostBatch]:
        """Return the image data, which lies in one block of memory, and the batch without it, which can be pickled."""
        if self.encoded is None or self.encoded.segments is None:
            return self.images, replace(self, images=[])
        tables = self.encoded.segments
        nothing: Any = None
        encoded = replace(self.encoded, segments=replace(tables, block=nothing, arrays={}))
        return tables.block, replace(self, images=[], encoded=encoded)

    def put_together(self, arrays: Any) -> HostBatch:
        """Return this batch with the image data ``arrays`` that :meth:`take_apart` returned."""
        if self.encoded is None or self.encoded.segments is None:
            return replace(self, images=arrays)
        tables = self.encoded.segments
        tables = replace(tables, block=arrays, arrays=SegmentTables.divide(tables.layout, arrays))
        return replace(self, images=tables.arrays["data"], encoded=replace(self.encoded, segments=tables))


class BatchFiller(Protocol):
    """Object that fills one batch; its attributes become the fields of the ``HostBatch`` with the same names."""

    images: list[ViewImages] | U8
    targets: list[GroupTargets] | None
    encoded: EncodedBatch | None

    def fill(self, slots: range) -> dict[int, Damage]:
        """Fill some slots, in any order and from any thread; return, by slot, the damage of slots without an image."""
