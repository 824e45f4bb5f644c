"""Pictures of records for figures and notebooks."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import (
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    ImageFile,
    ImageOps,
    JpegImagePlugin,
    PngImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)

from picstore.arrays import U8
from picstore.display.figures import Tile, draw_histograms
from picstore.display.histograms import SUMMARIZED, summarize
from picstore.errors import Damage, ImageError, counted
from picstore.jpeg.decode_any import decode_rgb
from picstore.jpeg.reducing import decode_factors
from picstore.storage.annotations import Objects, read_objects
from picstore.storage.format.record import Record
from picstore.storage.manifest import Manifest
from picstore.storage.record_table import RecordTable

if TYPE_CHECKING:
    from picstore.display.figures import Figure

_SIDE = 240  # Size in pixels; an image's longer side is not reduced below it when the image is decoded.
_MAX_PIXELS = 1 << 28
_NAMED = 8  # Number of classes to list in a notebook's facts about a dataset.
# Formats of an index's images that are drawn, and Pillow's class that opens each. Images of other formats are not
# drawn, because some take long to decode, and EPS would start Ghostscript.
_FORMATS: dict[str, Callable[[io.BytesIO, str], ImageFile.ImageFile]] = {
    "JPEG": JpegImagePlugin.JpegImageFile,
    "PNG": PngImagePlugin.PngImageFile,
    "WebP": WebPImagePlugin.WebPImageFile,
    "GIF": GifImagePlugin.GifImageFile,
    "BMP": BmpImagePlugin.BmpImageFile,
    "TIFF": TiffImagePlugin.TiffImageFile,
}


def make_tile(record: Record, classes: Sequence[str]) -> Tile:
    """Return a tile with a record's image at a reduced scale, class, id and objects; grey if decoding fails."""
    caption = f"{class_name(classes, record.label)} · {record.id}"
    try:
        pixels = _decode(record)
    except ImageError as error:
        return blank_tile(f"{record.id}: {error}")
    objects = _objects_of(record.extra)
    labels = [] if objects.labels is None else objects.labels.tolist()
    points = [each[each[:, 2] > 0, :2] + 0.5 for each in objects.keypoints or ()]
    return Tile(
        pixels,
        caption,
        size=(record.width, record.height),
        boxes=objects.boxes,
        names=[class_name(classes, label) for label in labels],
        outlines=[outline for outlines in objects.polygons or () for outline in outlines],
        points=np.concatenate(points) if points else None,
    )


def blank_tile(title: str) -> Tile:
    """Return a grey tile with a title, for a record whose image cannot be shown."""
    return Tile(np.full((60, 80, 3), 210, np.uint8), title)


def read_tile(read: Any, position: int, classes: Sequence[str]) -> Tile:
    """Return the tile of the record ``read(position)``; a grey tile if the record is damaged."""
    try:
        return make_tile(read(position), classes)
    except Damage as error:
        return blank_tile(f"{position}: {error}")


def class_name(classes: Sequence[str], label: int) -> str:
    """Return the class name of a label, or the label as a string if it has no name."""
    return classes[label] if 0 <= label < len(classes) else str(label)


def _decode(record: Record) -> U8:
    width, height = record.width, record.height
    if record.info.foreign:
        return _decode_foreign(bytes(record.jpeg))
    factor = int(decode_factors(min(max(width, height) / _SIDE, width, height), 1.0))
    return decode_rgb(record.jpeg, width=width, height=height, factor=factor)


def _decode_foreign(data: bytes) -> U8:
    """Decode a file of an index whose image is not an upright JPEG; reduce its sides to at most 2 · ``_SIDE``."""
    try:
        with _open_image(data) as opened:
            if opened.width * opened.height > _MAX_PIXELS:
                raise ImageError(f"has {opened.width} × {opened.height} pixels")
            opened.draft("RGB", (_SIDE, _SIDE))
            upright = ImageOps.exif_transpose(opened)
            upright.thumbnail((2 * _SIDE, 2 * _SIDE))
            return np.asarray(upright.convert("RGB"))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ImageError(f"does not decode: {error}") from error


def _open_image(data: bytes) -> ImageFile.ImageFile:
    """Open an image of a format in _FORMATS, without ``Image.open``, whose pixel limit is a setting of the process."""
    for opened in _FORMATS.values():
        with contextlib.suppress(SyntaxError):
            return opened(io.BytesIO(data), "")
    raise ImageError(f"is not one of {', '.join(_FORMATS)}, which alone are shown")


def _objects_of(extra: Any) -> Objects:
    with contextlib.suppress(ImageError):  # Draw no objects if target fields are malformed; a loader reports that.
        return read_objects(extra)
    return Objects()


def draw_summary(table: RecordTable, classes: Sequence[str], name: str) -> Figure:
    """Draw the number of records by class, width, height and bytes, without damaged index entries."""
    known = np.asarray(table["id"]) != -1
    histograms = summarize({column: np.asarray(table[column])[known] for column in SUMMARIZED}, classes)
    damaged = f", {(~known).sum():,} of them damaged" if not known.all() else ""
    return draw_histograms(histograms, title=f"{counted(len(table), 'image')}{damaged}: {name}")


def describe_manifest(manifest: Manifest, images: int) -> dict[str, object]:
    """Return the facts, by name, that a notebook shows about a dataset or selection; ``images`` is its length."""
    facts: dict[str, object] = {"images": f"{images:,}", "bytes": f"{manifest.bytes / 1e6:,.1f} MB"}
    if images != manifest.images:
        facts["images"] = f"{images:,} of {manifest.images:,} stored"
    if manifest.classes:
        more = f", … {len(manifest.classes):,} in all" if len(manifest.classes) > _NAMED else ""
        facts["classes"] = ", ".join(manifest.classes[:_NAMED]) + more
    if manifest.attachments:
        facts["attachments"] = ", ".join(manifest.attachments)
    if manifest.edits is not None and manifest.edits.columns:
        facts["columns"] = ", ".join(entry.name for entry in manifest.edits.columns)
    if manifest.encode is not None:
        size = manifest.encode["resize"] or "as the source"
        facts["encoding"] = f"quality {manifest.encode['quality']}, {manifest.encode['subsampling']}, size {size}"
    facts["shuffled"] = manifest.shuffle[-1]["method"] if manifest.shuffle else "no"
    return facts | {"uuid": manifest.uuid}
