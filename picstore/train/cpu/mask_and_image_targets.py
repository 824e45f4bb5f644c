"""Masks, maps and smaller images that are targets: attachments of a record, which get the crop of the record's image.

A mask is a lossless image in grey or with a palette. A JPEG shows the record's image at a smaller scale, for training
super-resolution; its crop is cut out of its bytes too, if it has restart markers.
"""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from picstore.arrays import U8, Array
from picstore.errors import ImageError
from picstore.jpeg.cut import cut
from picstore.jpeg.markers import SOI, parse_header
from picstore.kernels.filters import BILINEAR
from picstore.storage.format.maps import StoredMap, check_form, decode_map, split_target
from picstore.train.batching.views_reach import boxes_to_cut
from picstore.train.cpu.decode_crop import decode_rgb
from picstore.train.cpu.render import render, render_map, render_mask, rows_of_map
from picstore.train.transforms.geometry import Geometry

if TYPE_CHECKING:
    from PIL import Image, ImageFile

_MASK_FORMATS = "PNG", "TIFF", "BMP", "GIF"
_MASK_MODES = ("1", "L", "P", "I;16", "I;16B", "I")  # Pillow's modes; some versions open 16-bit images in mode "I"


def is_jpeg(blob: bytes | memoryview) -> bool:
    """Return whether an attachment is a JPEG. A JPEG is an image and not a mask: masks have lossless formats."""
    return bytes(blob[:2]) == bytes([0xFF, SOI])


def make_image(name: str, blob: bytes | memoryview, geometry: Geometry, slot: int) -> U8:
    """Return the image target of an image: an attached JPEG, cropped and resized as the image is.

    Args:
        blob: a JPEG whose sides are those of the record's image, divided by an integer and rounded up or down.
        geometry, slot: geometry of the batch, and index of the image.

    Returns:
        uint8 (3, h, w): the output's sides divided by the same integer; without color transforms.

    Raises:
        ImageError: the JPEG is damaged or has another size, or the integer does not divide the output's sides.
    """
    header = parse_header(blob)
    scale = _scale(name, (header.width, header.height), geometry.source_size[slot].tolist())
    if (geometry.size[slot] % scale).any():
        width, height = geometry.size[slot].tolist()
        raise ImageError(
            f"{name} is {scale} times smaller, and an output of {width} × {height} is not a multiple of that"
        )
    small = _divided(geometry, slot, scale, (header.width, header.height))
    left, top, right, bottom = boxes_to_cut(small.reach, small.source_size)[0].tolist()
    stream, (dx, dy) = cut(blob, (left, top, right - left, bottom - top))
    shown = parse_header(stream)
    pixels = decode_rgb(stream, width=shown.width, height=shown.height)
    out = np.empty((3, *small.size[0, ::-1].tolist()), np.uint8)
    render(pixels, small, 0, origin=(left - dx, top - dy), factor=1, out=out)
    return out


def _scale(name: str, size: tuple[int, int], source: list[int]) -> int:
    """Return the integer by which an attachment is smaller than its image; raise ImageError if no integer fits."""
    scale = max(1, round(source[0] / size[0]))
    if all(side in (whole // scale, -(-whole // scale)) for side, whole in zip(size, source, strict=True)):
        return scale
    shape, whole_shape = (f"{width} × {height}" for width, height in (size, source))
    raise ImageError(f"{name} has {shape} pixels, which is not a whole fraction of its image's {whole_shape}")


def _divided(geometry: Geometry, slot: int, scale: int, source_size: tuple[int, int]) -> Geometry:
    """Return the geometry of image ``slot`` in pixels of its attachment, which is ``scale`` times smaller.

    Interpolation is at least bilinear, because a whole position in the image may be a fraction in the attachment.
    """
    chosen = Geometry.concatenate([geometry], [slot])
    low, high = chosen.clip[:, :2] // scale, -(-chosen.clip[:, 2:] // scale)
    return replace(
        chosen,
        source_size=np.array([source_size], np.int64),
        frame=chosen.frame / scale,
        clip=np.concatenate([low, high], axis=1),
        size=chosen.size // scale,
        interpolation=np.maximum(chosen.interpolation, BILINEAR),
        edges=chosen.edges * np.array([1.0, 1.0, 1.0 / scale]),
    )


def make_mask(name: str, blob: bytes | memoryview, geometry: Geometry, slot: int) -> Array:
    """Resample an image's mask by nearest-neighbor interpolation to uint8 or int64 (H, W), 0 outside of the image."""
    mask = open_mask(name, blob, *geometry.source_size[slot].tolist())
    width, height = geometry.size[slot].tolist()
    out = np.empty((height, width), dtype=mask.dtype)
    render_mask(mask, geometry, slot, out=out)
    return out if out.dtype == np.uint8 else out.astype(np.int64)


def make_map(name: str, asked: Sequence[str], stored: StoredMap, geometry: Geometry, slot: int) -> dict[str, Array]:
    """Return an image's resampled map in each requested form, by the name of the target.

    Args:
        name: name of the attachment, such as ``map:depth``.
        asked: requested forms: ``name`` for the values in their stored dtype; ``name:scaled`` for values times the
            scale, float32, NaN for pixels without a value; ``name:valid`` for whether each pixel has a value, bool.
        geometry, slot: geometry of the batch, and index of the image.

    Returns:
        Arrays (channels, H, W); bool (1, H, W) for ``name:valid``. Pixels outside of the image have the map's fill.

    Raises:
        ImageError: the map is damaged, or has another form than the dataset states, or another size than its image.
    """
    spec, blob = stored
    width, height = geometry.source_size[slot].tolist()
    rows = rows_of_map(geometry, slot)
    try:
        check_form(blob, spec, width, height)
        source = decode_map(blob, rows=rows)
    except ImageError as error:
        raise ImageError(f"{name} {error}") from error
    linear, invalid = spec.interpolation == "linear", math.nan if spec.invalid is None else spec.invalid
    values, valid = render_map(
        source, geometry, slot, top=max(rows[0], 0), fill=spec.fill, invalid=invalid, linear=linear
    )
    made: dict[str, Array] = {}
    for each in asked:
        form = split_target(each)[1]
        if form == "valid":
            made[each] = valid[None]
        elif form == "scaled":
            made[each] = np.where(valid, values * spec.scale, np.nan).astype(np.float32)
        else:
            made[each] = (np.rint(values) if spec.dtype.startswith("u") else values).astype(spec.dtype)
    return made


def open_mask(name: str, blob: bytes | memoryview, width: int, height: int) -> Array:
    """Decode a mask to uint8, uint16 or int32 (height, width); raise ImageError if it is damaged or of another size."""
    try:
        with _open_image(blob) as image:
            _check_mask(name, image, width, height)
            if image.format == "TIFF":
                _check_tiff(name, bytes(blob))
            values = np.asarray(image)
    except ImageError:
        raise
    except Exception as error:  # Pillow raises errors of many classes.
        raise ImageError(f"{name} is not a mask: a grey or palette image in {', '.join(_MASK_FORMATS)}") from error
    dtype = {"u": np.uint16, "i": np.int32}.get(values.dtype.kind if values.itemsize > 1 else "", np.uint8)
    return np.ascontiguousarray(values, dtype=dtype)


def _open_image(blob: bytes | memoryview) -> ImageFile.ImageFile:
    """Read an image's header; raise SyntaxError if its format is not one of ``_MASK_FORMATS``."""
    # Imported here, because Pillow would delay the first batch by 40 ms, and few datasets have masks.
    from PIL import BmpImagePlugin, GifImagePlugin, PngImagePlugin, TiffImagePlugin

    from picstore.prepare.image.mend_files import leave_out_metadata

    data = leave_out_metadata(bytes(blob)).data
    # Call the classes, because ``Image.open`` refuses images of more than 179 million pixels.
    png, tiff = PngImagePlugin.PngImageFile, TiffImagePlugin.TiffImageFile
    for opened in (png, tiff, BmpImagePlugin.BmpImageFile, GifImagePlugin.GifImageFile):
        with contextlib.suppress(SyntaxError):
            return opened(io.BytesIO(data))
    raise SyntaxError


def _check_mask(name: str, image: Image.Image, width: int, height: int) -> None:
    if image.size != (width, height):
        raise ImageError(f"{name} has {image.width} × {image.height} pixels, its image {width} × {height}")
    if image.mode not in _MASK_MODES:
        raise ImageError(f"{name} is an image of mode {image.mode}; a mask is grey or has a palette")


def _check_tiff(name: str, data: bytes) -> None:
    """Raise ImageError if Pillow would return the values of a TIFF inverted or in the wrong byte order."""
    from picstore.prepare.image.tiff_layout import read_layout, read_tags  # imported here, because few masks are TIFFs

    layout = read_layout(read_tags(data), "<" if data.startswith(b"II") else ">")
    white_is_zero = layout.photometric == 0 and (layout.bits > 8 or layout.planar)
    if white_is_zero or (layout.kind == 2 and layout.order == ">"):
        raise ImageError(f"{name} is a TIFF of a kind whose values are not read exactly ({layout}); write it as PNG")
