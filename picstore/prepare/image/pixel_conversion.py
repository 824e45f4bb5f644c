"""Conversion of decoded pixels to grey or RGB of 8 bits, and to arrays and other sizes (docs/formats.md, "Color").

Images are converted strip by strip if that saves memory: Pillow keeps four bytes per pixel of RGB, and copies all
pixels twice for NumPy, which makes ten bytes. Strip by strip, a PIL image takes four bytes per pixel, and an array
three.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageCms

from picstore.arrays import U8
from picstore.errors import ImageError
from picstore.jpeg.encoder.encode_baseline import strip_height
from picstore.kernels.filters import LANCZOS
from picstore.kernels.resample import resample

# Pillow's modes with more than 8 bits per sample; each has one channel.
_DEEP_MODES = frozenset({"I", "F", "I;16", "I;16L", "I;16B", "I;16N"})


def to_rgb_or_grey(image: Image.Image, *, background: tuple[int, int, int]) -> Image.Image:
    """Convert an image to 8 bits, without alpha, in grey ("L") or RGB ("RGB").

    Args:
        image: an image of any mode; it is not changed, and is returned itself if it needs no conversion.
        background: red, green and blue, 0 … 255, under transparent pixels.

    Raises:
        ImageError: Pillow does not document the mode.
    """
    if image.mode in _DEEP_MODES:
        return _reduce_depth(image, background)
    if image.has_transparency_data:
        return _composite(image, background)
    if image.mode in ("L", "RGB"):
        return image
    if image.mode == "1":
        return image.convert("L")
    if image.mode == "CMYK":
        return _from_cmyk(image)
    if image.mode == "LAB":
        return _convert_by_profile(image, ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")))
    if image.mode in ("P", "YCbCr", "HSV", "RGBX"):
        return image.convert("RGB")
    raise ImageError(f"pixels of Pillow's mode {image.mode!r} have no rule")


def _with_alpha(image: Image.Image) -> Image.Image:
    if image.mode in ("LA", "RGBA"):
        return image
    if image.mode == "La":
        return image.convert("LA")
    # Convert the other modes to RGBA: P, PA and RGBa; also 1, L and RGB if they have a transparent color.
    return image.convert("RGBA")


def _composite(image: Image.Image, background: tuple[int, int, int]) -> Image.Image:
    """Composite an image with transparency over the background color.

    A grey image stays grey if the background is grey or nowhere visible; otherwise the result is RGB. Strips take 8
    bytes of memory per pixel instead of 13.
    """
    grey = image.mode in ("LA", "La")
    if grey and len(set(background)) > 1:
        grey = _with_alpha(image).getchannel("A").getextrema() == (255, 255)
    flat = Image.new("L", image.size, background[0]) if grey else Image.new("RGB", image.size, background)
    for box in strip_boxes(image.size):
        strip = _with_alpha(image.crop(box))
        flat.paste(strip.convert(flat.mode), box, mask=strip.getchannel("A"))
    return flat


def _reduce_depth(image: Image.Image, background: tuple[int, int, int]) -> Image.Image:
    """Convert an image in one of ``_DEEP_MODES`` to 8 bits.

    The image is converted strip by strip: floats take 5 bytes of memory per pixel, instead of 32 in one piece.
    """
    white = _white(image)
    transparent = image.info.get("transparency")
    alpha = isinstance(transparent, int)
    flat = Image.new("LA" if alpha else "L", image.size)
    has_16_bits = image.mode != "F" and not _is_wide(image)
    table = np.rint(np.arange(65_536 if has_16_bits else 0) * (255 / 65_535)).astype(np.uint8)
    for box in strip_boxes(image.size):
        values = np.asarray(image.crop(box))
        grey = table[np.clip(values, 0, 65_535)] if has_16_bits else scale(values, white)
        strip = Image.fromarray(grey)
        if alpha:
            strip.putalpha(Image.fromarray(np.where(values == transparent, 0, 255).astype(np.uint8)))
        flat.paste(strip, box)
    return _composite(flat, background) if alpha else flat


def _is_wide(image: Image.Image) -> bool:
    """Return whether an image's samples use 32 bits: mode "I", except in a PNG or PPM, whose samples have 16 bits."""
    return image.mode == "I" and image.format not in ("PNG", "PPM")


def _white(image: Image.Image) -> float:
    """Return the sample value that becomes white, 255, when an image of ``_DEEP_MODES`` is reduced to 8 bits."""
    if image.mode != "F" and not _is_wide(image):
        return 65_535
    strips = (np.asarray(image.crop(box)) for box in strip_boxes(image.size))
    return largest_usual(strips) if image.mode == "F" else integer_top(strips, most=2**31 - 1)


def integer_top(strips: Iterable[npt.NDArray[Any]], *, most: int) -> int:
    """Return the integer to scale to white: the smallest of 255, 65,535 and ``most`` that no sample exceeds.

    ``most`` is the largest integer of the samples' type; few 32-bit depth maps and masks come near it.
    """
    largest = max(int(values.max(initial=0)) for values in strips)
    return next((top for top in (255, 65_535) if largest <= top < most), most)


def largest_usual(strips: Iterable[npt.NDArray[Any]]) -> float:
    """Return the value for white: the first of 1, 255, 65,535 that no sample exceeds, or else the largest sample."""
    most = max(float(np.max(values, initial=0, where=np.isfinite(values))) for values in strips)
    return next((top for top in (1.0, 255.0, 65_535.0) if most <= top), most)


def scale(values: npt.NDArray[Any], top: float) -> U8:
    """Scale samples from 0 … ``top`` to 0 … 255; NaN and negative samples become black, larger samples white."""
    if values.dtype.kind == "f":
        values = np.nan_to_num(values.astype(np.float64), nan=0, posinf=top, neginf=0)
    return np.rint(np.clip(values.astype(np.float64), 0, top) * (255 / top)).astype(np.uint8)


def _from_cmyk(image: Image.Image) -> Image.Image:
    """Convert CMYK to RGB by the embedded CMYK profile, or by the formula (1 − C)(1 − K) if there is none."""
    embedded = image.info.get("icc_profile")
    if embedded:
        try:
            profile = ImageCms.ImageCmsProfile(io.BytesIO(embedded))
            if profile.profile.xcolor_space.strip() == "CMYK":
                return _convert_by_profile(image, profile)
        except (ImageCms.PyCMSError, OSError, TypeError, ValueError):
            pass  # The profile is damaged, so convert by the formula below.
    return image.convert("RGB")


def _convert_by_profile(image: Image.Image, profile: ImageCms.ImageCmsProfile) -> Image.Image:
    transform = ImageCms.buildTransform(
        profile,
        ImageCms.createProfile("sRGB"),
        image.mode,
        "RGB",
        # Settings of Photoshop: white stays white, and the darkest ink becomes black.
        renderingIntent=ImageCms.Intent.RELATIVE_COLORIMETRIC,
        flags=ImageCms.Flags.BLACKPOINTCOMPENSATION,
    )
    return transform.apply(image)


def strip_boxes(size: tuple[int, int]) -> Iterator[tuple[int, int, int, int]]:
    """Yield (left, top, right, bottom) of the strips that cover an image of ``size`` (width, height)."""
    width, height = size
    rows = strip_height(width)
    for top in range(0, height, rows):
        yield 0, top, width, min(top + rows, height)


def iterate_strips(image: Image.Image | U8) -> Iterator[U8]:
    """Yield for ``encode_strips`` the strips of an array, or of an image in "L" or "RGB", from the top."""
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
    """Join strips, given from the top, to uint8 (height, width) or (height, width, 3); a single strip is not copied."""
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
    """Return the width and height of a PIL image, or of an array (height, width) or (height, width, 3)."""
    if isinstance(image, Image.Image):
        return image.size
    height, width = image.shape[:2]
    return width, height


def resize(image: Image.Image | U8, size: tuple[int, int]) -> Image.Image | U8:
    """Resize an image to ``size``, (width, height) in pixels, by the Lanczos filter.

    The image is in mode "L" or "RGB", or RGB as uint8 (height, width, 3). The result is an image, or RGB as uint8
    (height, width, 3) in which each channel is contiguous.
    """
    if isinstance(image, Image.Image):
        if image.size == size:
            return image
        if image.mode == "L":  # Resize by Pillow, because picstore's kernel takes only images of three channels.
            return image.resize(size, Image.Resampling.LANCZOS)
    pixels = to_array(image)
    height, width = pixels.shape[:2]
    if (width, height) == size:
        return pixels
    planes: U8 = np.empty((3, size[1], size[0]), np.uint8)
    whole = 0, 0, width, height
    resample(pixels, whole, whole, planes, interpolation=LANCZOS)
    # The kernel has written three planes, which is faster than writing interleaved channels; return them as a view.
    resized: U8 = planes.transpose(1, 2, 0)
    return resized
