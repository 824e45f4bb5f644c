"""Decoding of formats by libraries that come as wheels (the extra ``formats``): HEIC, JPEG XL and cameras' raw files.

They read what the machine's ImageMagick reads or lacks, without a system package. Each is imported for the first file
of its format: importing all of them takes 0.3 s.
"""

from __future__ import annotations

import io

from PIL import Image

from picstore.prepare.image.size_limits import check_jpeg_xl, check_size


def read_image(data: bytes, *, coder: str, max_pixels: int) -> Image.Image | None:
    """Read an image of ImageMagick's coder "heic", "jxl" or "dng"; None for others, or where no library is installed.

    Raises ImageError for too many pixels, before they are decoded, and any error of the library for damage.
    """
    reader = {"heic": _read_heic, "jxl": _read_jpeg_xl, "dng": _read_raw}.get(coder)
    if reader is None:
        return None
    try:
        image = reader(data, max_pixels)
    except ImportError:
        return None
    image.format = coder.upper()
    return image


def _read_heic(data: bytes, max_pixels: int) -> Image.Image:
    import pillow_heif

    pillow_heif.options.DECODE_THREADS = 1  # the workers are processes
    image: Image.Image = pillow_heif.HeifImageFile(io.BytesIO(data))  # type: ignore[no-untyped-call]
    check_size(*image.size, max_pixels=max_pixels)
    return _without_exif(image)


def _read_jpeg_xl(data: bytes, max_pixels: int) -> Image.Image:
    from pillow_jxl import JpegXLImagePlugin

    JpegXLImagePlugin.DECODE_THREADS = 0
    check_jpeg_xl(data, max_pixels=max_pixels)  # opening decodes
    image: Image.Image = JpegXLImagePlugin.JXLImageFile(io.BytesIO(data))
    return _without_exif(image)


def _read_raw(data: bytes, max_pixels: int) -> Image.Image:
    import rawpy

    with rawpy.imread(io.BytesIO(data)) as raw:
        check_size(raw.sizes.raw_width, raw.sizes.raw_height, max_pixels=max_pixels)
        return Image.fromarray(raw.postprocess(use_camera_wb=True))


def _without_exif(image: Image.Image) -> Image.Image:
    """Drop the EXIF: the decoder has applied the file's own orientation, which overrides the EXIF's."""
    image.info.pop("exif", None)
    return image
