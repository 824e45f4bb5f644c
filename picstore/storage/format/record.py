"""Record: one training JPEG with its id, label, extra and attachments."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from picstore.arrays import U8, U16
from picstore.errors import Corrupt, ImageError, UsageError
from picstore.storage.format.layout import SAMPLINGS, SEGMENT

MAX_EXTRA = 1 << 24  # largest number of bytes of a record's extra as JSON
# The encoder is kept, because each call of ``json.dumps`` with these options would build a new encoder.
_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
NO_SEGMENTS: U16 = np.empty(0, dtype=SEGMENT)


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """Facts about an image, which the index stores so that readers need not parse the JPEG.

    Attributes:
        width, height: size in pixels, 1 … 65,535 each.
        sampling: chroma subsampling: ``"grey"``, ``"444"``, ``"422"``, ``"440"``, ``"420"`` or ``""`` (other).
        restart_interval: number of MCUs between restart markers; 0 if there are none.
        header_length: number of bytes before the entropy-coded data.
        segments: uint16, length in bytes of each restart segment without its marker; empty if the image has no restart
            markers or a segment is longer than 65,535 bytes.
        foreign: whether the image is not an upright JPEG but a file of any format, of ``width`` × ``height`` pixels.
        entry_points: uint16, result of ``segment_table.entry_points``, empty if there are none; None if unknown.
        encode_path: how the conversion made the JPEG: ``"lossless"``, ``"reencoded"`` or ``""`` (unknown).
    """

    width: int
    height: int
    sampling: str = ""
    restart_interval: int = 0
    header_length: int = 0
    segments: U16 = field(default_factory=lambda: NO_SEGMENTS, compare=False)
    foreign: bool = False
    entry_points: U16 | None = field(default=None, compare=False)
    encode_path: str = field(default="", compare=False)  # Not compared: an ImageInfo parsed from a JPEG lacks it.

    def __post_init__(self) -> None:
        if not (0 < self.width < 1 << 16 and 0 < self.height < 1 << 16):
            raise UsageError(f"an image has {self.width} × {self.height} pixels; a side must have 1 to 65,535")
        if self.sampling not in SAMPLINGS:
            raise UsageError(f"sampling {self.sampling!r} is not one of {', '.join(filter(None, SAMPLINGS))}")


@dataclass(frozen=True, slots=True)
class Record:
    """Stored image with its label and metadata.

    Attributes:
        id: position of the image among the inputs of the conversion; unique in a dataset, and kept by shuffle.
        label: class number, −1 for unknown.
        jpeg: bytes of the JPEG.
        info: size, sampling and restart segments of ``jpeg``.
        extra_json: further metadata of the record, as UTF-8 JSON; empty if there are none.
        attachments: further binary data, by names that the manifest lists; empty data are not stored.
        columns: values of the record in the dataset's columns, by column name; see ``Dataset.with_columns``.
        crc: CRC-32C of ``jpeg``, None if unknown.
    """

    id: int
    label: int
    jpeg: bytes | memoryview
    info: ImageInfo
    extra_json: bytes = b""
    attachments: dict[str, bytes | memoryview] = field(default_factory=dict)
    columns: dict[str, Any] = field(default_factory=dict)
    crc: int | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not (0 <= self.id < 1 << 64 and -1 << 63 <= self.label < 1 << 63):
            raise UsageError(f"id is {self.id} and label {self.label}; give 64 bits each, the label's with a sign")

    @property
    def width(self) -> int:
        """Width of the image in pixels."""
        return self.info.width

    @property
    def height(self) -> int:
        """Height of the image in pixels."""
        return self.info.height

    @property
    def image(self) -> U8:
        """Image as RGB pixels, uint8 (height, width, 3), decoded at each access; raises ImageError if that fails."""
        if self.info.foreign:
            raise ImageError("it is not an upright JPEG but a file as it lies in its source: decode it by Pillow")
        # Imported here, because the import loads kernels, which reading and writing records does not need.
        from picstore.jpeg.pixels import decode

        return decode(self.jpeg)

    @property
    def extra(self) -> Any:
        """Extra as Python values, None if there is none; raises Corrupt if the extra is not JSON."""
        try:
            return json.loads(self.extra_json) if self.extra_json else None
        except (ValueError, RecursionError) as error:
            raise Corrupt(f"its extra is not JSON: {error}", f"record {self.id}") from error


def copy_record(record: Record) -> Record:
    """Copy a record's bytes out of its container, so that the record does not keep the container in memory."""
    attachments: dict[str, bytes | memoryview] = {name: bytes(blob) for name, blob in record.attachments.items()}
    points = record.info.entry_points
    info = replace(
        record.info, segments=record.info.segments.copy(), entry_points=None if points is None else points.copy()
    )
    return replace(record, jpeg=bytes(record.jpeg), info=info, attachments=attachments)


def extra_to_json(extra: Any) -> bytes:
    """Serialize an extra as compact JSON, None as ``b""``; raise UsageError if it is not JSON or too long."""
    if extra is None:
        return b""
    try:
        text = _JSON.encode(extra).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"extra is not JSON: {error}") from error
    if len(text) > MAX_EXTRA:
        raise UsageError(f"extra takes {len(text)} bytes as JSON; at most {MAX_EXTRA} can be stored")
    return text
