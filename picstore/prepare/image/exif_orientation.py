"""EXIF orientation of an image: reading it, and applying it to pixels and coordinates (EXIF 2.32, 4.6.4.A)."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import numpy as np
from PIL import Image

from picstore.arrays import F64
from picstore.jpeg.headers import find_orientation

# By EXIF orientation, the argument for Pillow's ``Image.transpose`` that makes the image upright.
TO_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
# For each EXIF orientation that swaps width and height: whether x and y are mirrored after the swap. With these
# orientations, the raw and the upright image differ in size, so the size in an annotation tells to which of them its
# coordinates refer. With orientations 2 to 4, coordinates are taken to refer to the upright image.
_MIRRORED = {5: (False, False), 6: (True, False), 7: (True, True), 8: (False, True)}
# Decimal places to which coordinates in pixels are rounded after they were mapped to the stored image.
DECIMALS = 3

_ORIENTATION = 0x0112


@dataclass(frozen=True, slots=True)
class CoordinateMap:
    """Map from pixels of an image file to pixels of its training JPEG, which is rotated upright and then resized.

    Attributes:
        orientation: EXIF orientation of the file; 1 is upright.
        upright_size: width and height of the upright image, before resizing.
        stored_size: width and height of the training JPEG.
    """

    orientation: int
    upright_size: tuple[int, int]
    stored_size: tuple[int, int]

    @property
    def raw_size(self) -> tuple[int, int]:
        """Width and height of the image in the file, before it is rotated."""
        return self.upright_size[::-1] if self.orientation in _MIRRORED else self.upright_size

    def map_points(self, points: F64, *, rotate: bool) -> F64:
        """Map points (k, 2) from pixels of the upright image, or of the raw image if ``rotate``, to stored pixels."""
        if rotate:
            swapped = points[:, ::-1]
            points = np.where(_MIRRORED[self.orientation], np.array(self.upright_size) - swapped, swapped)
        scale = np.array(self.stored_size) / np.array(self.upright_size)
        mapped: F64 = np.round(points * scale, DECIMALS)
        return mapped


def read_orientation(image: Image.Image) -> int:
    """Read the EXIF orientation of an image, 1 … 8; return 1 if the orientation is missing or unreadable.

    For a JPEG, call :func:`settle_orientation` first. An orientation in XMP is ignored, as by most decoders, so a JPEG
    looks the same whether it is kept without loss or re-encoded.
    """
    info = dict(image.info)
    for key in ("xmp", "XML:com.adobe.xmp"):
        image.info.pop(key, None)
    try:
        value = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # An unreadable EXIF block may raise any type of error.
        return 1
    finally:
        image.info = info
    # Pillow returns the value of a tag of type BYTE as bytes instead of an integer.
    if isinstance(value, bytes) and len(value) == 1:
        value = value[0]
    return value if isinstance(value, int) and value in TO_UPRIGHT else 1


def settle_orientation(image: Image.Image, orientation: int | None) -> None:
    """Set the EXIF orientation of an opened JPEG to ``orientation``, or if None, to the one in its APP1 segments."""
    if orientation is None:
        orientation = find_orientation(body for marker, body in getattr(image, "applist", ()) if marker == "APP1")
    # Pillow marks the EXIF block as loaded before it parses it. So if the block is unreadable, only the first call of
    # getexif() raises an error, which may be of any type.
    with contextlib.suppress(Exception):
        image.getexif()
    image.getexif()[_ORIENTATION] = orientation


def upright_size(image: Image.Image) -> tuple[int, int]:
    """Return the width and height of an image after its rotation to upright."""
    width, height = image.size
    return (height, width) if read_orientation(image) in _MIRRORED else (width, height)
