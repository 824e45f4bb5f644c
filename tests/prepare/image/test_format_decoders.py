"""HEIC, JPEG XL and cameras' raw files, read by the wheels of the extra ``formats``; files by their own encoders."""

from __future__ import annotations

import importlib.util
import io
import sys

import numpy as np
import pytest
from pictures import CORNERS, close, corners, dng, open_image, quadrants, require, saved, smooth
from PIL import Image

from picstore.errors import ImageError
from picstore.prepare.image import format_decoders, imagemagick
from picstore.prepare.image.encode_settings import EncodeSettings
from picstore.prepare.image.size_limits import check_jpeg_xl

PLAIN = EncodeSettings()
PLUGINS = {"heic": "pillow_heif", "jxl": "pillow_jxl", "dng": "rawpy"}


def heic(image: Image.Image, **options: object) -> bytes:
    require(importlib.util.find_spec("pillow_heif"), "pillow-heif")
    import pillow_heif

    out = io.BytesIO()
    pillow_heif.from_pillow(image).save(out, quality=95, **options)
    return out.getvalue()


def jxl(image: Image.Image, **options: object) -> bytes:
    require(importlib.util.find_spec("pillow_jxl"), "pillow-jxl-plugin")
    import pillow_jxl  # noqa: F401 - registers itself with Pillow

    return saved(image, "JXL", quality=95, **options)


MAKERS = {"heic": heic, "jxl": jxl, "dng": dng}


@pytest.mark.parametrize("coder", MAKERS)
def test_colors_survive(coder: str) -> None:
    image = format_decoders.read_by_wheel(MAKERS[coder](quadrants(256, 192)), coder=coder, max_pixels=1 << 20)
    assert image is not None and (image.mode, image.size, image.format) == ("RGB", (256, 192), coder.upper())
    assert close(corners(image), CORNERS, 40 if coder == "dng" else 12)  # LibRaw brightens


@pytest.mark.parametrize("coder", MAKERS)
def test_a_file_of_the_format_is_decoded_from_its_content(coder: str) -> None:
    data = MAKERS[coder](quadrants(256, 192))
    assert open_image(data, settings=PLAIN, name="x.dng" if coder == "dng" else "").size == (256, 192)


@pytest.mark.parametrize("make", [heic, jxl])
def test_grey_and_alpha_are_decoded(make: object) -> None:
    clear = quadrants().convert("RGBA")
    clear.paste((0, 0, 0, 0), (0, 0, 32, 24))
    image = open_image(make(clear), settings=EncodeSettings(background=(10, 20, 30)))
    assert close(corners(image), [(10, 20, 30), *CORNERS[1:]], 14)
    assert open_image(make(smooth(40, 30, "L")), settings=PLAIN).size == (40, 30)


@pytest.mark.parametrize("make", [heic, jxl])
def test_an_image_is_turned_by_its_own_orientation_and_not_by_exif_again(make: object) -> None:
    """The encoder of HEIC turns an EXIF orientation into the file's own; that of JPEG XL writes none."""
    exif = Image.Exif()
    exif[0x0112] = 6
    image = open_image(make(quadrants(), exif=exif.tobytes()), settings=PLAIN)
    expected = quadrants() if make is jxl else quadrants().transpose(Image.Transpose.ROTATE_270)
    assert image.size == expected.size and close(corners(image), corners(expected), 12)


@pytest.mark.parametrize("coder", MAKERS)
def test_more_pixels_than_allowed_are_refused(coder: str) -> None:
    data = MAKERS[coder](quadrants(256, 192))
    with pytest.raises(ImageError, match=r"256 × 192 = 49,152 pixels; more than --max-pixels allows"):
        format_decoders.read_by_wheel(data, coder=coder, max_pixels=49_151)


@pytest.mark.parametrize("container", [False, True])
@pytest.mark.parametrize("size", [(8, 8), (64, 48), (256, 256), (257, 3), (640, 360), (3, 5000), (36, 30), (301, 200)])
def test_the_size_of_a_jpeg_xl_is_read_from_its_header(size: tuple[int, int], container: bool) -> None:
    data = jxl(Image.new("L", size), use_container=container)
    check_jpeg_xl(data, max_pixels=size[0] * size[1])
    with pytest.raises(ImageError, match=f"{size[0]} × {size[1]} "):
        check_jpeg_xl(data, max_pixels=size[0] * size[1] - 1)


def test_a_jpeg_xl_of_huge_size_is_refused_before_it_is_decoded() -> None:
    require(importlib.util.find_spec("pillow_jxl"), "pillow-jxl-plugin")
    sides = 0 | 3 << 1 | ((1 << 30) - 1) << 3  # not small, then 30 bits of height, and the ratio 1:1
    start = b"\xff\x0a" + (sides | 1 << 33).to_bytes(9, "little")
    parts = [(len(part) + 12).to_bytes(4, "big") + b"jxlp" + bytes(4) + part for part in (start[:4], start[4:])]
    for data in (start, b"\0\0\0\x0cJXL \r\n\x87\n" + b"".join(parts)):
        with pytest.raises(ImageError, match="1073741824 × 1073741824"):
            open_image(data + bytes(100), settings=PLAIN)


def test_a_jpeg_xl_that_hides_its_header_is_refused() -> None:
    boxes = b"\0\0\0\x0cJXL \r\n\x87\n"
    short = (14).to_bytes(4, "big") + b"jxlp" + bytes(4) + b"\xff\x0a"  # two bytes, and no other part
    for data in (b"\xff\x0a", boxes, boxes + short + bytes(40), boxes + bytes(4) + b"jxlc" + bytes(40)):
        with pytest.raises(ImageError, match="header cannot be read"):
            check_jpeg_xl(data, max_pixels=1 << 20)


@pytest.mark.parametrize("coder", MAKERS)
def test_without_the_wheel_imagemagick_is_asked(coder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data, asked = MAKERS[coder](quadrants(64, 48)), []
    monkeypatch.setitem(sys.modules, PLUGINS[coder], None)
    monkeypatch.setattr(imagemagick, "read_image", lambda data, **options: asked.append(options) or quadrants())
    open_image(data, settings=PLAIN, name=f"x.{coder}")
    assert asked == [{"name": f"x.{coder}", "max_pixels": PLAIN.max_pixels}]


@pytest.mark.parametrize("coder", MAKERS)
def test_a_damaged_file_is_an_image_or_an_image_error(coder: str) -> None:
    data, draw = MAKERS[coder](smooth(64, 48)), np.random.default_rng(7)
    copies = [data[: len(data) * k // 8] for k in range(1, 8)]
    for number in range(24):
        damaged = np.frombuffer(data, np.uint8).copy()
        damaged[draw.integers(0, len(data), 1 + number)] ^= np.uint8(1 << number % 8)
        copies.append(damaged.tobytes())
    assert sum(refuses(damaged, f"x.{coder}") for damaged in copies) > 0


def refuses(data: bytes, name: str) -> bool:
    try:
        open_image(data, settings=EncodeSettings(max_pixels=1 << 16), name=name)
    except ImageError as error:
        assert "\n" not in str(error)
        return True
    return False
