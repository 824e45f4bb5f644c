"""Decoding of a JPEG, or of a box of it, to a given size: ``picstore.decode``."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from picstore.arrays import U8
from picstore.errors import ImageError, UsageError
from picstore.jpeg.cut import cut
from picstore.jpeg.decode_any import decode_rgb
from picstore.jpeg.markers import Header, parse_header
from picstore.jpeg.reducing import check_reducing_gap, decode_factors
from picstore.kernels import filters
from picstore.kernels.resample import resample

Box: TypeAlias = tuple[int, int, int, int]  # left, top, width, height

_MAX_SIZE = 1 << 15  # largest side of the result in pixels


def decode(
    jpeg: bytes | memoryview,
    box: Sequence[int] | None = None,
    size: int | Sequence[int] | None = None,
    interpolation: Any = "bilinear",
    *,
    reducing_gap: float | None = None,
) -> U8:
    """Decode a JPEG, or a box of it, to RGB at a given size; the pixels are those of a loader with this box and size.

    If the JPEG has restart markers, as ``convert`` writes them, only the tiles under the box are decoded. An
    orientation in the headers is not applied; images of a dataset need no rotation.

    Args:
        jpeg: bytes of a JPEG of any kind: baseline or progressive, grey, color or CMYK.
        box: left, top, width, height in pixels; the whole image by default.
        size: (height, width), or the shorter side's length, which keeps the aspect ratio; by default the box's size.
        interpolation: ``"nearest"``, ``"box"``, ``"bilinear"``, ``"bicubic"`` or ``"lanczos"``, antialiased, or
            torchvision's or Pillow's member of the same name.
        reducing_gap: None for exact pixels; otherwise a number of at least 1.0. The image is then decoded at 1/2, 1/4
            or 1/8 if the box is then still at least ``reducing_gap`` times the output's size, as in Pillow;
            ``"nearest"`` ignores the argument.

    Returns:
        uint8 (height, width, 3), C-contiguous, in memory of its own; grey images have three equal channels.

    Raises:
        ImageError: the bytes are damaged or not a JPEG.
        UsageError: the box is empty or not within the image, or another argument has an impossible value.
    """
    code = filters.code_of(interpolation)
    if code is None:
        raise UsageError(f"interpolation is {interpolation!r}; possible are {', '.join(filters.NAMES)}")
    gap = None if code == filters.NEAREST else check_reducing_gap(reducing_gap)
    header = parse_header(jpeg)
    left, top, width, height = _checked_box(box, header)
    shape = (height, width) if size is None else _output_shape(size, width, height)
    factor = int(decode_factors(min(width / shape[1], height / shape[0]), gap))
    stream, (x, y) = _cut(jpeg, header, (left, top, width, height), factor)
    shown = parse_header(stream)
    pixels = decode_rgb(stream, width=shown.width, height=shown.height, factor=factor)
    if shape == (height, width):
        return np.array(pixels[y : y + height, x : x + width])
    out = np.empty((*shape, 3), dtype=np.uint8)
    clip = x // factor, y // factor, -(-(x + width) // factor), -(-(y + height) // factor)
    region = np.array((x, y, width, height)) / factor
    resample(pixels, region, clip, out.transpose(2, 0, 1), interpolation=code)
    return out


def _checked_box(box: Sequence[int] | None, header: Header) -> Box:
    if box is None:
        return 0, 0, header.width, header.height
    left, top, width, height = _integers(box, 4, f"box is {box!r}; give left, top, width, height")
    if min(left, top) < 0 or min(width, height) < 1 or left + width > header.width or top + height > header.height:
        raise UsageError(f"box {box!r} is empty or not within the image of {header.width} × {header.height} pixels")
    return left, top, width, height


def _output_shape(size: int | Sequence[int], width: int, height: int) -> tuple[int, int]:
    """Return height and width of :func:`decode`'s result; if ``size`` is the shorter side, round the other down."""
    problem = f"size is {size!r}; give one or two (height, width) integers, 1 to {_MAX_SIZE}"
    if isinstance(size, Sequence):
        rows, columns = _integers(size, 2, problem)
    else:
        (shorter,) = _integers((size,), 1, problem)
        rows, columns = (int(shorter * side / min(width, height)) for side in (height, width))
    if not (0 < rows <= _MAX_SIZE and 0 < columns <= _MAX_SIZE):
        raise UsageError(problem)
    return rows, columns


def _integers(values: Any, count: int, problem: str) -> list[int]:
    try:
        integers = [operator.index(value) for value in values]
    except TypeError as error:
        raise UsageError(problem) from error
    if len(integers) != count:
        raise UsageError(problem)
    return integers


def _cut(jpeg: bytes | memoryview, header: Header, box: Box, factor: int) -> tuple[bytes | memoryview, tuple[int, int]]:
    """Cut a box out of a JPEG if possible; return the cut or the whole JPEG, and the (x, y) of the box in it."""
    if header.restart_interval and box != (0, 0, header.width, header.height):
        left, top, width, height = box
        # Widen the box to whole pixels of the reduced image.
        x, y = left % factor, top % factor
        right = min(-(-(left + width) // factor) * factor, header.width)
        bottom = min(-(-(top + height) // factor) * factor, header.height)
        try:
            stream, (dx, dy) = cut(jpeg, (left - x, top - y, right - left + x, bottom - top + y))
            return stream, (dx + x, dy + y)
        except ImageError:
            # The stream has several scans or is damaged; decode it whole, so that the decoder can name the damage.
            pass
    return jpeg, box[:2]
