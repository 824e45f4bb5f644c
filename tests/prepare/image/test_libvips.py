"""Large TIFF and PNG read by libvips: Pillow's way's result, or Pillow's way."""

from __future__ import annotations

import importlib.util
import random
import struct
import zlib

import numpy as np
import pytest
from grids import slow_except
from pictures import require, saved, smooth
from PIL import Image

from picstore.errors import ImageError
from picstore.prepare.image import libvips
from picstore.prepare.image.encode_settings import EncodeSettings, Size
from picstore.prepare.image.training_jpeg import TrainingJpeg, make_training_jpeg

SETTINGS = {"plain": EncodeSettings(), "resize": EncodeSettings(resize=Size.parse("longer:40"))}


@pytest.fixture(autouse=True)
def every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read images of any size by libvips."""
    require(importlib.util.find_spec("pyvips"), "pyvips")
    monkeypatch.setattr(libvips, "MIN_PIXELS", 1)
    monkeypatch.setattr(libvips, "_MIN_BYTES", 1)


def noise(mode: str, width: int = 70, height: int = 90) -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(pixels // 2 + np.asarray(smooth(width, height)) // 2).convert(mode)


def png(image: Image.Image, *chunks: tuple[bytes, bytes], after: bool = False) -> bytes:
    """PNG with further chunks before or after its pixels."""
    made = saved(image, "PNG")
    at = made.index(b"IEND") - 4 if after else made.index(b"IDAT") - 4
    more = b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )
    return made[:at] + more + made[at:]


def convert(data: bytes, settings: EncodeSettings) -> TrainingJpeg | str:
    try:
        return make_training_jpeg(data, settings=settings)
    except ImageError as error:
        return str(error)


def both_ways(data: bytes, settings: EncodeSettings, monkeypatch: pytest.MonkeyPatch) -> tuple[object, object]:
    """Stream, info and reason, or the error, with libvips and without."""
    results = []
    for found in (True, False):
        with monkeypatch.context() as patch:
            if not found:
                patch.setattr(libvips, "find_vips", lambda: None)
            made = convert(data, settings)
        results.append(made if isinstance(made, str) else (made.jpeg, made.reason, made.coordinates, made.status))
    return results[0], results[1]


def is_read_by_vips(data: bytes) -> bool:
    large = libvips.open_large_image(data, settings=EncodeSettings())
    try:
        return large is not None and len(list(large.strips)) > 0
    except libvips.FaultFound:
        return False


READ = {
    "tiff": lambda: saved(noise("RGB"), "TIFF"),
    "grey tiff": lambda: saved(noise("L"), "TIFF"),
    "lzw": lambda: saved(noise("RGB"), "TIFF", compression="tiff_lzw"),
    "deflate": lambda: saved(noise("RGB"), "TIFF", compression="tiff_adobe_deflate"),
    "packbits": lambda: saved(noise("L"), "TIFF", compression="packbits"),
    "strips": lambda: saved(noise("RGB", 700, 900), "TIFF", compression="tiff_lzw", strip_size=4096),
    "predictor": lambda: saved(noise("RGB"), "TIFF", compression="tiff_lzw", tiffinfo={317: 2}),
    "png": lambda: saved(noise("RGB"), "PNG"),
    "grey png": lambda: saved(noise("L"), "PNG"),
    "large png": lambda: saved(noise("RGB", 1300, 1700), "PNG", compress_level=1),
    "png with text": lambda: png(noise("RGB"), (b"tEXt", b"Software\0x"), after=True),
}
LEFT = {
    "alpha": lambda: saved(noise("RGBA"), "TIFF"),
    "palette": lambda: saved(noise("P"), "PNG"),
    "16 bits": lambda: saved(Image.fromarray(np.asarray(noise("L"), np.uint16) * 257), "PNG"),
    "cmyk": lambda: saved(noise("CMYK"), "TIFF"),
    "jpeg in tiff": lambda: saved(noise("RGB"), "TIFF", compression="jpeg"),
    "turned tiff": lambda: saved(noise("RGB"), "TIFF", tiffinfo={274: 6}),
    "turned png": lambda: png(noise("RGB"), (b"eXIf", b"II*\0\x08\0\0\0\1\0\x12\1\3\0\1\0\0\0\6\0\0\0\0\0\0\0")),
    "turned after the pixels": lambda: png(
        noise("RGB"), (b"eXIf", b"II*\0\x08\0\0\0\1\0\x12\1\3\0\1\0\0\0\6\0\0\0\0\0\0\0"), after=True
    ),
    "raw profile": lambda: png(noise("RGB"), (b"tEXt", b"Raw profile type exif\0"), after=True),
    "transparent color": lambda: saved(noise("RGB"), "PNG", transparency=(1, 2, 3)),
    "white is zero": lambda: saved(noise("L"), "TIFF", tiffinfo={262: 0}),
    "webp": lambda: saved(noise("RGB"), "WEBP"),
}


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("kind", [*READ, *LEFT])
def test_libvips_makes_no_difference(kind: str, settings: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = {**READ, **LEFT}[kind]()
    assert is_read_by_vips(data) == (kind in READ)
    one, other = both_ways(data, SETTINGS[settings], monkeypatch)
    assert one == other
    assert not isinstance(one, str)


@pytest.mark.parametrize(
    "kind",
    slow_except(["tiff", "deflate", "png"], ["tiff", "lzw", "deflate", "packbits", "predictor", "png", "grey png"]),
)
def test_damage_makes_no_difference_with_libvips(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data, rng = READ[kind](), random.Random(0)
    for k in range(120):
        damaged = bytearray(data)
        if k % 4 == 0:
            del damaged[rng.randrange(len(data)) :]
        else:
            at = rng.randrange(len(data)) if k % 2 else rng.choice((rng.randrange(200), -1 - rng.randrange(200)))
            damaged[at] ^= 1 << rng.randrange(8)
        one, other = both_ways(bytes(damaged), EncodeSettings(max_pixels=1 << 16), monkeypatch)
        assert one == other, f"case {k}"


def test_images_below_the_size_where_it_pays_are_left_to_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libvips, "MIN_PIXELS", 70 * 90 + 1)
    assert not is_read_by_vips(READ["tiff"]())


def test_an_image_of_too_many_pixels_is_left_to_pillow_which_refuses_it() -> None:
    settings = EncodeSettings(max_pixels=100)
    assert libvips.open_large_image(READ["tiff"](), settings=settings) is None
    with pytest.raises(ImageError, match="more than --max-pixels allows"):
        make_training_jpeg(READ["tiff"](), settings=settings)
