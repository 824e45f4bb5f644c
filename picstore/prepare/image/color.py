"""Colour conversion of every Pillow mode to "L" or "RGB" (docs/formats.md, "Colour")."""

from __future__ import annotations

import io

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageCms

from picstore.arrays import F64, U8
from picstore.errors import ImageError


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
        return _composite(_with_alpha(image), background)
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
    return image.convert("RGBA")  # P, PA, RGBa, and 1, L, RGB with a transparent colour


def _composite(image: Image.Image, background: tuple[int, int, int]) -> Image.Image:
    """Composite "LA" or "RGBA" over the background. Grey stays grey if the background is grey or invisible."""
    alpha = image.getchannel("A")
    if image.mode == "RGBA":
        flat = Image.new("RGB", image.size, background)
        flat.paste(image.convert("RGB"), mask=alpha)
        return flat
    grey = image.getchannel("L")
    if len(set(background)) > 1 and alpha.getextrema() != (255, 255):
        return _composite(image.convert("RGBA"), background)
    flat = Image.new("L", image.size, background[0])
    flat.paste(grey, mask=alpha)
    return flat


def _reduce_depth(image: Image.Image, background: tuple[int, int, int]) -> Image.Image:
    """Convert an image of more than 8 bits a sample, which has one channel, to 8 bits."""
    values = np.asarray(image)
    if image.mode == "F":
        grey = _from_float(values)
    elif image.mode == "I" and image.format not in ("PNG", "PPM"):
        # Depth maps and masks come in 32 bits but seldom use them: the range is the smallest usual one that holds all.
        most = int(values.max(initial=0))
        grey = _scale(values.astype(np.float64), next((top for top in (255, 65_535) if most <= top), 2**31 - 1))
    else:
        grey = _from_16_bits(values)
    flat = Image.fromarray(grey)
    transparent = image.info.get("transparency")
    if isinstance(transparent, int):
        flat.putalpha(Image.fromarray(np.where(values == transparent, 0, 255).astype(np.uint8)))
        return _composite(flat, background)
    return flat


def _from_16_bits(values: npt.NDArray[np.integer]) -> U8:
    table = np.rint(np.arange(65_536) * (255 / 65_535)).astype(np.uint8)
    scaled: U8 = table[np.clip(values, 0, 65_535)]
    return scaled


def _from_float(values: npt.NDArray[np.floating]) -> U8:
    """Scale floats: usually in [0, 1], also in 0 … 255 and 0 … 65,535; NaN is black, infinities are clipped."""
    most = float(np.max(values, initial=0, where=np.isfinite(values)))
    top = next((top for top in (1.0, 255.0, 65_535.0) if most <= top), most)
    return _scale(np.nan_to_num(values.astype(np.float64), nan=0, posinf=top, neginf=0), top)


def _scale(values: F64, top: float) -> U8:
    return np.rint(np.clip(values, 0, top) * (255 / top)).astype(np.uint8)


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
