"""Pictures for tests, an independent reader of JPEG headers, and the rule to skip or to fail."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import io
import os
import re
import struct
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import pytest
from PIL import Image

from picstore.prepare.image import imagemagick

if TYPE_CHECKING:
    from picstore.prepare.image.encode_settings import EncodeSettings

CORNERS = ((220, 30, 30), (30, 200, 30), (30, 30, 220), (240, 240, 240))


def require(present: object, what: str) -> None:
    """Skip the test if something is not installed; on CI fail, as nothing may be skipped there."""
    if not present:
        missing(what)


def missing(what: str) -> NoReturn:
    if os.environ.get("CI") == "true":
        pytest.fail(f"{what} is missing, and CI must not skip")
    pytest.skip(f"{what} is missing", allow_module_level=True)


def missing_packages(extra: str) -> list[str]:
    """Return the packages of an extra that are not installed."""
    names = [
        re.split(r"[^\w-]", requirement)[0]
        for requirement in importlib.metadata.requires("picstore") or ()
        if re.search(rf"extra == ['\"]{extra}['\"]", requirement)
    ]
    return [name for name in names if not any(importlib.metadata.distributions(name=name))]


def quadrants(width: int = 64, height: int = 48) -> Image.Image:
    """Red, green, blue and near-white quarters, in mode RGB."""
    image = Image.new("RGB", (width, height), CORNERS[3])
    half = (width // 2, height // 2)
    image.paste(CORNERS[0], (0, 0, *half))
    image.paste(CORNERS[1], (half[0], 0, width, half[1]))
    image.paste(CORNERS[2], (0, half[1], half[0], height))
    return image


def corners(image: Image.Image) -> list[tuple[int, ...]]:
    """The colors in the middle of the four quarters."""
    rgb = np.asarray(image.convert("RGB"))
    width, height = image.size
    return [tuple(rgb[height * y // 4, width * x // 4].tolist()) for y in (1, 3) for x in (1, 3)]


def close(one: object, other: object, tolerance: float) -> bool:
    difference = np.abs(np.asarray(one, dtype=float) - np.asarray(other, dtype=float))
    return bool(difference.max() <= tolerance)


def smooth(width: int, height: int, mode: str = "RGB") -> Image.Image:
    """Gradients that survive a JPEG of quality 95 almost unchanged."""
    x, y = np.meshgrid(*(np.linspace(20, min(235, 20 + 3 * side), side) for side in (width, height)))
    rgb = np.stack([x, y, 255 - (x + y) / 2], axis=-1).astype(np.uint8)
    return Image.fromarray(rgb).convert(mode)


def saved(image: Image.Image, format: str, **options: object) -> bytes:
    out = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # writing IM is deprecated from Pillow 13 on
        image.save(out, format, **options)
    return out.getvalue()


def open_image(data: bytes, *, settings: EncodeSettings, name: str = "") -> Image.Image:
    """Pixels of an image file as picstore decodes it."""
    from picstore.prepare.image.decoder_process import decode_file  # not at once: conftest imports this module

    image = decode_file(data, settings=settings, name=name).image
    return image if isinstance(image, Image.Image) else Image.fromarray(image)


def reencode(
    source: bytes | Image.Image | np.ndarray, *, settings: EncodeSettings, name: str = ""
) -> tuple[bytes, str]:
    """Training JPEG of any source, always encoded, and the kind of the source."""
    from picstore.prepare.image.decoder_process import decode_any
    from picstore.prepare.image.training_jpeg import encode

    decoded = decode_any(source, settings=settings, name=name)
    return encode(decoded.image, settings=settings, origin=decoded.origin).jpeg, decoded.origin


def by_imagemagick(image: Image.Image, coder: str, **attributes: object) -> bytes:
    """File of any format that ImageMagick writes; skips the test if its library or the coder is missing."""
    try:
        imagemagick.start_library()
        from wand.exceptions import WandException
        from wand.image import Image as WandImage
    except ImportError:
        missing("ImageMagick's library")
    try:
        with WandImage(blob=saved(image, "PNG"), format="png") as picture:
            for name, value in attributes.items():
                if name == "transform_colorspace":
                    picture.transform_colorspace(value)
                else:
                    setattr(picture, name, value)
            blob = picture.make_blob(coder)
    except (WandException, ValueError):
        missing(f"ImageMagick's coder {coder}")
    require(blob, f"ImageMagick's coder {coder}")
    return bytes(blob)


@dataclass(frozen=True)
class Header:
    """Contents of a JPEG's marker segments."""

    markers: tuple[int, ...]
    sof: int
    width: int
    height: int
    sampling: tuple[tuple[int, int], ...]
    interval: int
    app0: bytes

    @property
    def columns(self) -> int:
        """MCUs in a row."""
        widest = 1 if len(self.sampling) == 1 else max(h for h, _ in self.sampling)
        return -(-self.width // (8 * widest))


def header(jpeg: bytes) -> Header:
    """Read the marker segments up to SOS by ITU-T T.81, annex B, without picstore."""
    assert jpeg[:2] == b"\xff\xd8"
    markers, found, interval, app0, position = [], None, 0, b"", 2
    while True:
        assert jpeg[position] == 0xFF
        marker, length = struct.unpack_from(">BH", jpeg, position + 1)
        body = jpeg[position + 4 : position + 2 + length]
        markers.append(marker)
        position += 2 + length
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            precision, height, width, components = struct.unpack_from(">BHHB", body)
            assert precision == 8
            sampling = tuple((body[7 + 3 * i] >> 4, body[7 + 3 * i] & 15) for i in range(components))
            found = (marker, width, height, sampling)
        elif marker == 0xDD:
            (interval,) = struct.unpack(">H", body)
        elif marker == 0xE0:
            app0 = body
        elif marker == 0xDA:
            break
    assert found is not None
    return Header(tuple(markers), *found, interval, app0)


def dng(image: Image.Image) -> bytes:
    """A raw file of the sensor's 16-bit samples, a red, two green and a blue one in each square of four."""
    require(importlib.util.find_spec("rawpy"), "rawpy")
    tifffile = pytest.importorskip("tifffile")
    linear = (np.asarray(image).astype(float) / 255) ** 2.2 * 60_000
    mosaic = linear[:, :, 1].astype(np.uint16)
    mosaic[::2, ::2], mosaic[1::2, 1::2] = linear[::2, ::2, 0], linear[1::2, 1::2, 2]
    # Camera's colors as those of sRGB: the matrix from XYZ, in ten-thousandths.
    matrix = (32_405, -15_371, -4_985, -9_693, 18_760, 416, 556, -2_040, 10_572)
    tags = [
        (33421, "H", 2, (2, 2), True),  # CFARepeatPatternDim
        (33422, "B", 4, (0, 1, 1, 2), True),  # CFAPattern
        (50706, "B", 4, (1, 4, 0, 0), True),  # DNGVersion
        (50708, "s", 0, "Camera", True),  # UniqueCameraModel
        (50717, "I", 1, 60_000, True),  # WhiteLevel
        (50721, "2i", 9, tuple(part for value in matrix for part in (value, 10_000)), True),  # ColorMatrix1
        (50728, "2I", 3, (1, 1) * 3, True),  # AsShotNeutral
        (50778, "H", 1, 21, True),  # CalibrationIlluminant1: D65
    ]
    out = io.BytesIO()
    tifffile.imwrite(out, mosaic, photometric="CFA", metadata=None, extratags=tags)
    return out.getvalue()


def exr(values: np.ndarray, names: str | tuple[str, ...] = "Y", *, parts: int = 1, **attributes: object) -> bytes:
    """An OpenEXR file that OpenImageIO writes: values (h, w, channels) and the channels' names, in any order."""
    require(importlib.util.find_spec("OpenImageIO"), "OpenImageIO")
    import OpenImageIO

    kind = {"f2": "half", "f4": "float", "u4": "uint"}[values.dtype.str[1:]]
    spec = OpenImageIO.ImageSpec(values.shape[1], values.shape[0], values.shape[2], kind)
    spec.channelnames = tuple(names)
    for name, value in attributes.items():
        if name in type(spec).__dict__:
            setattr(spec, name, value)
        else:
            spec.attribute(name, value)
    with tempfile.NamedTemporaryFile(suffix=".exr") as file:
        writer: Any = OpenImageIO.ImageOutput.create(file.name)
        assert writer.open(file.name, (spec,) * parts), writer.geterror()
        for part in range(parts):
            assert part == 0 or writer.open(file.name, spec, "AppendSubimage"), writer.geterror()
            if spec.deep:
                samples = OpenImageIO.DeepData()
                samples.init(values[:, :, 0].size, spec.nchannels, (spec.format,) * spec.nchannels, spec.channelnames)
                assert writer.write_deep_image(samples), writer.geterror()
            else:
                assert writer.write_image(np.ascontiguousarray(values)), writer.geterror()
        assert writer.close()
        return Path(file.name).read_bytes()


def depth_and_masks() -> tuple[np.ndarray, np.ndarray]:
    """uint16 of a tilted plane with noise, and of the numbers of 30 instances."""
    random, (rows, columns) = np.random.default_rng(0), np.mgrid[:120, :160]
    depth = 2000 + 5 * rows + 7 * columns + random.normal(0, 3, (120, 160))
    distances = [np.hypot(rows - y, columns - x) for y, x in random.uniform(0, 160, (30, 2))]
    return depth.astype(np.uint16), (np.argmin(distances, axis=0) * 997).astype(np.uint16)
