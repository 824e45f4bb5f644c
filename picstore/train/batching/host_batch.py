"""Batches in CPU memory: HostBatch, the EncodedBatch of a decoder on a device, and the protocol of their fillers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias, TypeVar

from picstore.arrays import I64, U8, Array
from picstore.errors import Damage
from picstore.storage.edits.columns import Values
from picstore.train.batching.parameters import TransformParams

T = TypeVar("T")

Images: TypeAlias = "Array | list[Array]"  # (n, 3, H, W), or n of (3, H, W)
ViewImages: TypeAlias = "Array | list[list[Array]]"  # of a group: (count, n, 3, H, W), or count lists of n (3, H, W)
GroupTargets: TypeAlias = "list[list[dict[str, Any]]]"  # count lists of n

_IN_BLOCK = ("images", "segments", "codes", "places", "quantization")  # tables of ``SegmentTables``


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


@dataclass(slots=True, eq=False)
class SegmentTables:
    """Describes a batch's tiles to a GPU's decoder; their rows lie in the batch's bytes. See ``jpeg.segment_words``.

    Images that the GPU does not decode have their pixels here. The large tables are in the memory of the batch's bytes.
    """

    images: I64  # (n, IMAGE_WORDS)
    segments: Array  # int32 (m, PART_WORDS)
    first: I64  # (n,), the first of an image's parts of segments
    count: I64  # (n,), of an image's parts of segments; 0 for images that the GPU does not decode
    codes: U8  # (4 n, HUFFMAN_BYTES)
    places: Array  # int32 (4 n, 4)
    quantization: Array  # int16 (4 n, 64)
    held: tuple[I64, I64, Array]  # tilings (n, 6), boxes (n, 4) and segments' lengths, uint16 (m,), of what is held
    pixels: dict[int, U8] = field(default_factory=dict)  # (3, h, w), by slot
    refused: dict[int, str] = field(default_factory=dict)  # why a slot's pixels were made on the CPU
    probe: tuple[int, U8, I64] | None = None  # a slot, and the CPU's pixels (3, h, w) of a box in the stored image


@dataclass(frozen=True, slots=True, eq=False)
class EncodedBatch:
    """The streams of a batch that a device decodes, by slot."""

    bounds: I64  # (n, 2), start and end of each stream in the batch's bytes; 0, 0 for no stream
    boxes: I64  # (n, 4), left, top, width and height of the decoded image, in pixels of the stored one
    params: tuple[TransformParams, ...]  # of each group
    files: RecordFiles
    shown: I64  # (n,), the slot whose stream is decoded: another one's for a damaged record
    segments: SegmentTables | None = None  # for picstore's own decoder


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
        arrays = [getattr(tables, name) for name in _IN_BLOCK]
        nothing: dict[str, Any] = dict.fromkeys(_IN_BLOCK)
        encoded = replace(self.encoded, segments=replace(tables, **nothing))
        return [self.images, arrays], replace(self, images=[], encoded=encoded)

    def put_together(self, arrays: Any) -> HostBatch:
        """The batch that was taken apart, with its arrays."""
        if self.encoded is None or self.encoded.segments is None:
            return replace(self, images=arrays)
        images, large = arrays
        tables = replace(self.encoded.segments, **dict(zip(_IN_BLOCK, large, strict=True)))
        return replace(self, images=images, encoded=replace(self.encoded, segments=tables))


class BatchFiller(Protocol):
    """The images of one batch, or its streams, while they are being made, as in :class:`HostBatch`."""

    images: list[ViewImages] | U8
    targets: list[GroupTargets] | None
    encoded: EncodedBatch | None

    def fill(self, slots: range) -> dict[int, Damage]:
        """Make some slots, in any order and from any thread; returns by slot why one has no image."""
