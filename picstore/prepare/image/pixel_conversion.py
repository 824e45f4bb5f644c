"""Color conversion of every Pillow mode to "L" or "RGB" (docs/formats.md, "Color")."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageCms

from picstore.arrays import U8
from picstore.errors import ImageError
from picstore.prepare.image.strips import strip_boxes


def to_rgb_or_grey(image: Image.Image, *, background: tuple[int, int, int]) -> Image.Image:
    """Convert an image to 8 bits, without alpha, in grey ("L") or RGB ("RGB").

    Args:
        image: of any mode. It is not changed, and is returned itself if it needs no conversion.
        background: red, green, blue, 0 … 255, under transparent pixels.

    Raises:
        ImageError: the mode is none that Pillow documents.
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


_DEEP_MODES = frozenset({"I", "F", "I;16", "I;16L", "I;16B", "I;16N"})


def _with_alpha(image: Image.Image) -> Image.Image:
    if image.mode in ("LA", "RGBA"):
        return image
    if image.mode == "La":
        return image.convert("LA")
    return image.convert("RGBA")  # P, PA, RGBa, and 1, L, RGB with a transparent color


def _composite(image: Image.Image, background: tuple[int, int, int]) -> Image.Image:
    """Composite an image with transparency over the background, strip by strip: 8 bytes a pixel, at once 13.

    Grey with alpha stays grey if the background is grey or invisible.
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
    """Convert an image of more than 8 bits a sample, which has one channel, to 8 bits.

    It is converted strip by strip: floats take 5 bytes a pixel, at once 32.
    """
    most = _most(image)
    transparent = image.info.get("transparency")
    alpha = isinstance(transparent, int)
    flat = Image.new("LA" if alpha else "L", image.size)
    for box in strip_boxes(image.size):
        values = np.asarray(image.crop(box))
        grey = scale(values, most) if image.mode == "F" or _is_wide(image) else _from_16_bits(values)
        strip = Image.fromarray(grey)
        if alpha:
            strip.putalpha(Image.fromarray(np.where(values == transparent, 0, 255).astype(np.uint8)))
        flat.paste(strip, box)
    return _composite(flat, background) if alpha else flat


def _is_wide(image: Image.Image) -> bool:
    """Test whether integers have 32 bits; Pillow has the 16 bits of some formats in the same mode."""
    return image.mode == "I" and image.format not in ("PNG", "PPM")


def _most(image: Image.Image) -> float:
    """Find the value that becomes white."""
    if image.mode != "F" and not _is_wide(image):
        return 65_535
    strips = (np.asarray(image.crop(box)) for box in strip_boxes(image.size))
    return largest_usual(strips) if image.mode == "F" else integer_top(strips, most=2**31 - 1)


def integer_top(strips: Iterable[npt.NDArray[Any]], *, most: int) -> int:
    """Return the smallest of 255, 65,535 and ``most``, the largest integer of the type, that is not exceeded.

    Depth maps and masks come in 32 bits but seldom use them.
    """
    largest = max(int(values.max(initial=0)) for values in strips)
    return next((top for top in (255, 65_535) if largest <= top < most), most)


def largest_usual(strips: Iterable[npt.NDArray[Any]]) -> float:
    """Return the smallest of 1, 255 and 65,535 that no finite float exceeds, else the largest finite one."""
    most = max(float(np.max(values, initial=0, where=np.isfinite(values))) for values in strips)
    return next((top for top in (1.0, 255.0, 65_535.0) if most <= top), most)


def _from_16_bits(values: npt.NDArray[np.integer]) -> U8:
    table = np.rint(np.arange(65_536) * (255 / 65_535)).astype(np.uint8)
    scaled: U8 = table[np.clip(values, 0, 65_535)]
    return scaled


def scale(values: npt.NDArray[Any], top: float) -> U8:
    """Scale 0 … ``top`` to 0 … 255; NaN and negative values are black, larger ones white."""
    if values.dtype.kind == "f":
        values = np.nan_to_num(values.astype(np.float64), nan=0, posinf=top, neginf=0)
    return np.rint(np.clip(values.astype(np.float64), 0, top) * (255 / top)).astype(np.uint8)


def _from_cmyk(image: Image.Image) -> Image.Image:
    """Convert CMYK by the embedded profile if it is for CMYK, otherwise by the formula (1 − C)(1 − K)."""
    embedded = image.info.get("icc_profile")
    if embedded:
        try:
            profile = ImageCms.ImageCmsProfile(io.BytesIO(embedded))
            if profile.profile.xcolor_space.strip() == "CMYK":
                return _convert_by_profile(image, profile)
        except (ImageCms.PyCMSError, OSError, TypeError, ValueError):
            pass  # a damaged profile counts as none
    return image.convert("RGB")


def _convert_by_profile(image: Image.Image, profile: ImageCms.ImageCmsProfile) -> Image.Image:
    transform = ImageCms.buildTransform(
        profile,
        ImageCms.createProfile("sRGB"),
        image.mode,
        "RGB",
        # Photoshop's defaults: white stays white, and the darkest ink becomes black.
        renderingIntent=ImageCms.Intent.RELATIVE_COLORIMETRIC,
        flags=ImageCms.Flags.BLACKPOINTCOMPENSATION,
    )
    return transform.apply(image)
