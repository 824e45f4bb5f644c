"""Masks decoded from files: lossless images in grey or with a palette."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable

import numpy as np
from PIL import BmpImagePlugin, GifImagePlugin, Image, ImageFile, PngImagePlugin, TiffImagePlugin

from picstore.arrays import Array
from picstore.errors import ImageError

# Lossless formats. Their classes are called directly, as ``Image.open`` has a limit of pixels of its own, 179 million.
_MASK_FORMATS: dict[str, Callable[[io.BytesIO], ImageFile.ImageFile]] = {
    "PNG": PngImagePlugin.PngImageFile,
    "TIFF": TiffImagePlugin.TiffImageFile,
    "BMP": BmpImagePlugin.BmpImageFile,
    "GIF": GifImagePlugin.GifImageFile,
}
_MASK_MODES = ("1", "L", "P", "I;16", "I;16B", "I")  # some versions of Pillow open 16 bits as "I"


def open_mask(name: str, blob: bytes | memoryview, width: int, height: int) -> Array:
    """Decode a mask to uint8, uint16 or int32 (height, width); ImageError if it is none of that size."""
    try:
        with _open_image(blob) as image:
            _check_mask(name, image, width, height)
            if image.format == "TIFF":
                _check_tiff(name, bytes(blob))
            values = np.asarray(image)
    except ImageError:
        raise
    except Exception as error:  # Pillow raises errors of many classes on files that are not images
        raise ImageError(f"{name} is not a mask: a grey or palette image in {', '.join(_MASK_FORMATS)}") from error
    dtype = {"u": np.uint16, "i": np.int32}.get(values.dtype.kind if values.itemsize > 1 else "", np.uint8)
    return np.ascontiguousarray(values, dtype=dtype)


def _open_image(blob: bytes | memoryview) -> ImageFile.ImageFile:
    """Read the header of an image; SyntaxError if it is of none of the formats."""
    from picstore.prepare.image.mend_files import leave_out_metadata  # few data sets have masks

    data = leave_out_metadata(bytes(blob)).data
    for opened in _MASK_FORMATS.values():
        with contextlib.suppress(SyntaxError):
            return opened(io.BytesIO(data))
    raise SyntaxError


def _check_mask(name: str, image: Image.Image, width: int, height: int) -> None:
    if image.size != (width, height):
        raise ImageError(f"{name} has {image.width} × {image.height} pixels, its image {width} × {height}")
    if image.mode not in _MASK_MODES:
        raise ImageError(f"{name} is an image of mode {image.mode}; a mask is grey or has a palette")


def _check_tiff(name: str, data: bytes) -> None:
    """Raise ImageError for a TIFF whose values Pillow gives inverted, or in the wrong byte order."""
    from picstore.prepare.image.tiff import read_layout, read_tags  # few masks are TIFFs

    layout = read_layout(read_tags(data), "<" if data.startswith(b"II") else ">")
    white_is_zero = layout.photometric == 0 and (layout.bits > 8 or layout.planar)
    if white_is_zero or (layout.kind == 2 and layout.order == ">"):
        raise ImageError(f"{name} is a TIFF of a kind whose values are not read exactly ({layout}); write it as PNG")
