"""Images as targets: a JPEG attachment, of its record's image at a smaller scale, gets the same crop.

Super-resolution trains on such pairs. The attachment's crop is cut out of its bytes too, where it has restart markers.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from picstore.arrays import U8
from picstore.errors import ImageError
from picstore.jpeg.cut import cut
from picstore.jpeg.markers import SOI, parse_header
from picstore.kernels.filters import BILINEAR
from picstore.train.batching.views_reach import boxes_to_cut
from picstore.train.cpu.decode_crop import decode_rgb
from picstore.train.cpu.render import render
from picstore.train.transforms.geometry import Geometry


def is_jpeg(blob: bytes | memoryview) -> bool:
    """Whether an attachment is an image target; masks are of lossless formats."""
    return bytes(blob[:2]) == bytes([0xFF, SOI])


def make_image(name: str, blob: bytes | memoryview, geometry: Geometry, slot: int) -> U8:
    """Make the image target of one image.

    Args:
        name: of the attachment.
        blob: a JPEG with the sides of the record's image, divided by an integer and rounded up or down.
        geometry, slot: of the batch, and number of the image in it.

    Returns:
        uint8 (3, h, w): what the geometry makes of the attachment, at its scale, without color transforms.

    Raises:
        ImageError: the JPEG is damaged or has no such size, or the integer does not divide the output's sides.
    """
    header = parse_header(blob)
    scale = _scale(name, (header.width, header.height), geometry.source_size[slot].tolist())
    if (geometry.size[slot] % scale).any():
        width, height = geometry.size[slot].tolist()
        raise ImageError(f"{name} is {scale} times smaller, and an output of {width} × {height} is no multiple of that")
    small = _divided(geometry, slot, scale, (header.width, header.height))
    left, top, right, bottom = boxes_to_cut(small.reach, small.source_size)[0].tolist()
    stream, (dx, dy) = cut(blob, (left, top, right - left, bottom - top))
    shown = parse_header(stream)
    pixels = decode_rgb(stream, width=shown.width, height=shown.height)
    out = np.empty((3, *small.size[0, ::-1].tolist()), np.uint8)
    render(pixels, small, 0, origin=(left - dx, top - dy), factor=1, out=out)
    return out


def _scale(name: str, size: tuple[int, int], source: list[int]) -> int:
    """Find by how much an attachment is smaller than its image."""
    scale = max(1, round(source[0] / size[0]))
    if all(side in (whole // scale, -(-whole // scale)) for side, whole in zip(size, source, strict=True)):
        return scale
    shape, whole_shape = (f"{width} × {height}" for width, height in (size, source))
    raise ImageError(f"{name} has {shape} pixels, which is no whole fraction of its image's {whole_shape}")


def _divided(geometry: Geometry, slot: int, scale: int, source_size: tuple[int, int]) -> Geometry:
    """Geometry of one image, in source and output pixels that are ``scale`` times as large.

    It is never of the nearest pixel, as crops that were whole pixels of the larger image may be half ones here.
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
