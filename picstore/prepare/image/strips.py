"""Pixels of a Pillow image as arrays, strip by strip.

Pillow keeps four bytes a pixel of RGB, and copies all pixels twice when NumPy asks for them: ten bytes in all. With
strips it takes four, and three where the whole array is needed.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from PIL import Image

from picstore.arrays import U8
from picstore.jpeg.encoder.encode_baseline import strip_height


def strip_boxes(size: tuple[int, int]) -> Iterator[tuple[int, int, int, int]]:
    """Yield left, top, right and bottom of the strips of an image of this width and height."""
    width, height = size
    rows = strip_height(width)
    for top in range(0, height, rows):
        yield 0, top, width, min(top + rows, height)


def iterate_strips(image: Image.Image | U8) -> Iterator[U8]:
    """Yield the rows of an image in "L" or "RGB", or of an array, from the top on, as ``encode_strips`` takes them."""
    size = size_of(image)
    for box in strip_boxes(size):
        if isinstance(image, np.ndarray):
            yield image[box[1] : box[3]]
        else:
            yield np.asarray(image if box == (0, 0, *size) else image.crop(box))


def to_array(image: Image.Image | U8) -> U8:
    """Convert an image in "L" or "RGB" to uint8 (height, width) or (height, width, 3)."""
    if isinstance(image, np.ndarray):
        return image
    return join_strips(iterate_strips(image), height=image.height)


def join_strips(strips: Iterator[U8], *, height: int) -> U8:
    """Join the strips of an image, (height, width) or (height, width, 3); a single strip is returned itself."""
    first = next(strips)
    if len(first) == height:
        return first
    pixels: U8 = np.empty((height, *first.shape[1:]), np.uint8)
    bottom = len(first)
    pixels[:bottom] = first
    for strip in strips:
        pixels[bottom : bottom + len(strip)] = strip
        bottom += len(strip)
    return pixels


def size_of(image: Image.Image | U8) -> tuple[int, int]:
    """Return the width and height of an image or array."""
    if isinstance(image, Image.Image):
        return image.size
    height, width = image.shape[:2]
    return width, height
