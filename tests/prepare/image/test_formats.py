"""What docs/formats.md promises: each format and each kind of color comes out right, and damage is an ImageError."""

from __future__ import annotations

import struct
import warnings
import zlib

import numpy as np
import pytest
from pictures import CORNERS, by_imagemagick, close, corners, open_image, quadrants, require, saved, smooth
from PIL import Image, ImageCms

from picstore.errors import ImageError
from picstore.prepare.engine.library_errors import foreign_errors
from picstore.prepare.image import imagemagick
from picstore.prepare.image.encode_settings import EncodeSettings
from picstore.prepare.image.pixel_conversion import to_rgb_or_grey

PLAIN = EncodeSettings()
WHITE = (255, 255, 255)

# Formats that Pillow writes and that come back in color, with the largest error of a channel.
PILLOW = {
    "AVIF": 12, "BLP": 40, "BMP": 0, "DDS": 0, "DIB": 0, "GIF": 0, "ICO": 0, "ICNS": 0, "IM": 0, "JPEG": 12,
    "JPEG2000": 0, "MPO": 12, "PCX": 0, "PNG": 0, "PPM": 0, "QOI": 0, "SGI": 0, "TGA": 0, "TIFF": 0, "WEBP": 12,
}  # fmt: skip
GREY_OR_BILEVEL = {"MSP", "SPIDER", "XBM"}

# Formats that ImageMagick writes, by its name and ours for the file's extension, with the largest error of a channel.
MAGICK = {
    "aai": 0, "avif": 12, "avs": 0, "bmp3": 0, "cin": 3, "dds": 12, "dpx": 1, "exr": 2, "heic": 12, "jng": 12, "jp2": 2,
    "miff": 0, "mng": 0, "mtv": 0, "pam": 0, "pcx": 0, "pfm": 0, "pict": 0, "psd": 0, "ras": 0, "sgi": 0,
    "viff": 0, "vips": 0, "xpm": 0, "xwd": 0,
}  # fmt: skip
MAGICK_GREY = {"vicar", "pgx", "palm"}
MAGICK_BILEVEL = {"cals", "jbig", "otb", "rgf", "wbmp"}


# --- Pillow's formats ---------------------------------------------------------------------------------------------


def test_pillow_writes_every_format_of_the_list():
    Image.init()
    assert len(PILLOW) >= 20
    assert (set(PILLOW) | GREY_OR_BILEVEL) - set(Image.SAVE) <= {"AVIF"}  # which Pillow has had since 11.3


@pytest.mark.parametrize("format", sorted(PILLOW))
def test_colors_survive_every_format_of_pillow(format):
    require(format in Image.SAVE, f"Pillow's {format}")
    side = 64  # icons have fixed sizes
    source = quadrants(side, side)
    data = saved(source.quantize(16) if format in ("GIF", "BLP") else source, format)
    image = open_image(data, settings=PLAIN)
    if format != "ICNS":  # is written, and read, at 1,024 pixels too
        assert (image.mode, image.size) == ("RGB", (side, side))
    assert close(corners(image), CORNERS, PILLOW[format])


@pytest.mark.parametrize("format", sorted(GREY_OR_BILEVEL))
def test_brightness_survives_formats_without_color(format):
    source = Image.new("1", (64, 48), 1)
    source.paste(0, (0, 0, 32, 48))
    data = saved(source.convert("F") if format == "SPIDER" else source, format)
    image = open_image(data, settings=PLAIN)
    assert (image.mode, image.size) == ("L", (64, 48))
    assert [image.getpixel((10, 10)), image.getpixel((50, 10))] == [0, 255]


@pytest.mark.parametrize("format", ["EPS", "PDF"])
def test_documents_are_not_images(format):
    with pytest.raises(ImageError, match="not an image that Pillow or ImageMagick reads"):
        open_image(saved(quadrants(), format), settings=PLAIN, name=f"x.{format.lower()}")


@pytest.mark.parametrize("format", ["GIF", "PNG", "WEBP", "TIFF", "MPO", "AVIF"])
def test_of_an_animation_the_first_frame_is_taken(format):
    other = Image.new("RGB", (64, 48), (1, 2, 3))
    data = saved(quadrants(), format, save_all=True, append_images=[other, other])
    assert close(corners(open_image(data, settings=PLAIN)), CORNERS, 14)


# --- ImageMagick's formats ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("coder", sorted(MAGICK))
def test_colors_survive_every_format_of_imagemagick(coder):
    light = {"transform_colorspace": "rgb"} if coder == "exr" else {}
    data = by_imagemagick(quadrants(64, 48), coder, **light)
    image = imagemagick.read_image(data, name=f"x.{coder}", max_pixels=PLAIN.max_pixels)
    assert image.size == (64, 48)
    assert close(corners(image), CORNERS, MAGICK[coder])


@pytest.mark.parametrize("coder", [*sorted(MAGICK), "tiff"])
def test_the_same_files_are_read_without_saying_which_library(coder):
    light = {"transform_colorspace": "rgb"} if coder in ("exr", "hdr") else {}
    image = open_image(by_imagemagick(quadrants(64, 48), coder, **light), settings=PLAIN, name=f"x.{coder}")
    assert image.mode == "RGB"
    assert close(corners(image), CORNERS, max(4, MAGICK.get(coder, 0)))


@pytest.mark.parametrize("coder", sorted(MAGICK_GREY | MAGICK_BILEVEL))
def test_brightness_survives_grey_formats_of_imagemagick(coder):
    source = Image.new("RGB", (64, 48), WHITE)
    source.paste((0, 0, 0), (0, 0, 32, 48))
    image = imagemagick.read_image(by_imagemagick(source, coder), name=f"x.{coder}", max_pixels=1 << 20).convert("L")
    assert image.size == (64, 48)
    assert [image.getpixel((10, 10)), image.getpixel((50, 10))] == [0, 255]


def test_radiance_files_are_linear_light_and_come_out_in_srgb():
    data = by_imagemagick(quadrants(), "hdr", transform_colorspace="rgb")
    assert close(corners(open_image(data, settings=PLAIN)), CORNERS, 4)


def test_a_file_that_only_its_name_tells_is_read_by_its_name():
    data = by_imagemagick(quadrants(), "mtv")
    assert close(corners(open_image(data, settings=PLAIN, name="some/where/PICTURE.MTV")), CORNERS, 0)
    with pytest.raises(ImageError, match="not an image"):
        open_image(data, settings=PLAIN, name="picture")


def test_a_tga_whose_rows_run_upwards_stands_upright():
    data = saved(quadrants(), "TGA", orientation=-1)
    require(by_imagemagick(quadrants(), "miff"), "ImageMagick")
    assert close(corners(imagemagick.read_image(data, name="x.tga", max_pixels=1 << 20)), CORNERS, 0)


def test_transparency_of_an_imagemagick_format_is_laid_on_the_background():
    source = quadrants().convert("RGBA")
    source.paste((0, 0, 0, 0), (0, 0, 32, 24))
    for coder in ("miff", "psd", "exr", "sgi"):
        light = {"transform_colorspace": "rgb"} if coder == "exr" else {}
        image = imagemagick.read_image(by_imagemagick(source, coder, **light), name="", max_pixels=1 << 20)
        assert image.mode == "RGBA"
        flat = to_rgb_or_grey(image, background=(10, 20, 30))
        assert close(corners(flat), [(10, 20, 30), *CORNERS[1:]], 12), coder


def words(*values: int) -> bytes:
    return struct.pack(f">{len(values)}I", *values)


def xcf(*layers: tuple[Image.Image, tuple[int, int]]) -> bytes:
    """A GIMP file, version 0, uncompressed, of RGBA layers of at most 64 × 64 pixels, the topmost first."""
    data = b"gimp xcf file\0" + words(*layers[-1][0].size, 0) + words(17, 1) + b"\0" + words(0, 0)
    start = len(data) + 4 * (len(layers) + 2)
    offsets, bodies = [], b""
    for image, position in layers:
        offsets.append(start + len(bodies))
        properties = words(6, 4, 255, 7, 4, 0, 8, 4, 1, 15, 8, *position, 0, 0)  # opacity, mode, visible, offsets
        layer = words(*image.size, 1, 2) + b"x\0" + properties
        hierarchy = offsets[-1] + len(layer) + 8
        level = hierarchy + 20
        tile = level + 16
        layer += words(hierarchy, 0) + words(*image.size, 4, level, 0) + words(*image.size, tile, 0)
        bodies += layer + image.tobytes()
    # ImageMagick refuses a file that is hardly longer than its pixels.
    return data + words(*offsets, 0, 0) + bodies + bytes(20_000)


def test_layers_of_a_gimp_file_are_flattened():
    require(by_imagemagick(quadrants(), "miff"), "ImageMagick")
    top = Image.new("RGBA", (32, 24), (9, 200, 210, 255))
    data = xcf((top, (32, 24)), (quadrants().convert("RGBA"), (0, 0)))
    assert close(corners(open_image(data, settings=PLAIN)), [*CORNERS[:3], (9, 200, 210)], 1)


def test_of_several_images_in_a_miff_the_first_is_taken():
    data = by_imagemagick(quadrants(), "miff") + by_imagemagick(Image.new("RGB", (9, 9)), "miff")
    assert close(corners(open_image(data, settings=PLAIN)), CORNERS, 0)


def test_the_orientation_of_a_heic_is_applied_by_its_decoder_only():
    exif = Image.Exif()
    exif[0x0112] = 6
    require(by_imagemagick(quadrants(), "miff"), "ImageMagick")
    wand = pytest.importorskip("wand.image")
    with wand.Image(blob=saved(quadrants(), "JPEG", quality=95, exif=exif)) as picture:
        data = picture.make_blob("heic")
    require(data, "HEIC in ImageMagick")
    image = open_image(data, settings=PLAIN)
    # HEIF turns by its own irot box, which this file lacks; its EXIF is to be ignored (ISO/IEC 23008-12, 6.5.10).
    assert image.size == (64, 48)
    assert close(corners(image), CORNERS, 12)


def test_more_pixels_than_allowed_are_refused_by_imagemagick_s_formats():
    for coder in ("exr", "miff", "psd", "heic"):
        with pytest.raises(ImageError, match=r"64 × 48 = 3,072 pixels; more than --max-pixels allows \(3,071\)"):
            imagemagick.read_image(by_imagemagick(quadrants(), coder), name="", max_pixels=3_071)


def test_without_imagemagick_s_library_the_reason_says_what_to_install(monkeypatch):
    for name in ("wand.exceptions", "wand.image"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
    with pytest.raises(ImageError, match="needs ImageMagick's library, which is not installed"):
        open_image(b"id=ImageMagick  version=1.0\n", settings=PLAIN)
    assert open_image(saved(quadrants(), "PNG"), settings=PLAIN).size == (64, 48)


MVG = b"push graphic-context\nviewbox 0 0 64 48\nfill red\nrectangle 0,0 64,48\npop graphic-context\n"


@pytest.mark.parametrize(
    "extension", ["", "mvg", "msl", "txt", "url", "tga", "mtv", "wbmp", "aai", "jbig", "pdf", "eps"]
)
def test_scripts_and_documents_never_run(extension):
    for data in (
        MVG,
        b"<?xml version='1.0'?><image><read filename='/etc/passwd'/></image>",
        b"%!PS\n(x) print\n",
        b"%PDF-1.7\n",
        b"https://example.org/x.png",
        b"# ImageMagick pixel enumeration: 1,1,255,srgb\n0,0: (1,1,1)  #010101\n",
    ):
        with pytest.raises(ImageError, match=r"not an image|damaged|truncated|lacks the part|--max-pixels"):
            open_image(data, settings=PLAIN, name=f"x.{extension}")


def test_content_cannot_change_the_coder_that_was_chosen():
    require(by_imagemagick(quadrants(), "miff"), "ImageMagick")
    for name in ("x.tga", "x.mtv", "x.pcx"):
        assert imagemagick.find_coder(MVG, name=name) == name[2:]
        with pytest.raises(ImageError):
            imagemagick.read_image(MVG, name=name, max_pixels=1 << 20)


def raw_tiff(tag: int) -> bytes:
    entries = {256: 8, 257: 8, 258: 8, 259: 1, 262: 1, 273: 200, 277: 1, 278: 8, 279: 64, tag: 1}
    body = b"".join(struct.pack("<HHII", key, 4, 1, value) for key, value in sorted(entries.items()))
    return (b"II*\0\x08\0\0\0" + struct.pack("<H", len(entries)) + body + bytes(4)).ljust(200, b"\0") + bytes(64)


def test_a_raw_file_of_a_camera_is_not_taken_for_its_thumbnail():
    assert open_image(raw_tiff(300), settings=PLAIN).size == (8, 8)
    with pytest.raises(ImageError, match="DNG"):
        open_image(raw_tiff(50706), settings=PLAIN, name="x.dng")
    with pytest.raises(ImageError, match="camera"):
        open_image(raw_tiff(50706), settings=PLAIN)


# --- color -------------------------------------------------------------------------------------------------------


def reduced(image: Image.Image, background: tuple[int, int, int] = WHITE) -> Image.Image:
    return to_rgb_or_grey(image, background=background)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr",
                                  "HSV", "LAB", "I", "F", "I;16", "I;16L", "I;16B", "I;16N"])  # fmt: skip
def test_every_mode_of_pillow_has_a_rule(mode):
    through = {"La": "LA", "RGBa": "RGBA", "PA": "P"}.get(mode, mode)
    if mode.startswith("I;16"):
        image = Image.new(mode, (8, 8), 40_000)
    elif mode == "LAB":
        image = Image.new("LAB", (8, 8), (255, 128, 128))
    else:
        image = Image.new("RGB", (8, 8), (200, 200, 200)).convert("L" if mode == "I" else "RGB").convert(through)
        image = image.convert(mode) if mode != through else image
    flat = reduced(image)
    grey = mode in ("1", "L", "LA", "La", "I", "F") or mode.startswith("I;16")
    assert (flat.mode, flat.size) == ("L" if grey else "RGB", (8, 8))
    value = {"LAB": 255, "1": None, "P": 204, "PA": 204}.get(mode, 156 if mode.startswith("I;16") else 200)
    if value is not None:
        assert close(flat.getpixel((3, 3)), value, 3)


def test_alpha_is_laid_on_the_background():
    image = Image.new("RGBA", (4, 4), (100, 150, 200, 51))  # 20 %
    assert close(reduced(image, (0, 100, 255)).getpixel((0, 0)), (20, 110, 244), 1)
    grey = Image.new("LA", (4, 4), (100, 51))
    assert reduced(grey, (50, 50, 50)).mode == "L"
    assert close(reduced(grey, (50, 50, 50)).getpixel((0, 0)), 60, 1)
    assert close(reduced(grey, (0, 100, 255)).getpixel((0, 0)), (20, 100, 224), 1)
    assert reduced(Image.new("LA", (4, 4), (100, 255)), (0, 100, 255)).mode == "L"
    assert close(
        reduced(Image.new("RGBA", (4, 4), (100, 150, 200, 51)).convert("RGBa")).getpixel((0, 0)), (224, 234, 244), 3
    )


@pytest.mark.parametrize(("mode", "color"), [("RGB", (1, 2, 3)), ("L", 7), ("1", 0), ("P", 0), ("I;16", 300)])
def test_a_transparent_color_shows_the_background(mode, color):
    image = Image.new(mode, (4, 2), color)
    if mode == "P":
        image.putpalette([9, 9, 9, 200, 200, 200])
    other = {"RGB": (90, 91, 92), "L": 200, "1": 255, "P": 1, "I;16": 51_400}[mode]
    for position in ((2, 0), (3, 0), (2, 1), (3, 1)):
        image.putpixel(position, other)
    data = saved(image, "PNG", transparency=color)
    flat = open_image(data, settings=EncodeSettings(background=(11, 12, 13))).convert("RGB")
    kept = {"RGB": (90, 91, 92), "1": (255,) * 3}.get(mode, (200,) * 3)
    assert [flat.getpixel((0, 0)), flat.getpixel((3, 1))] == [(11, 12, 13), kept]


def png(bits: int, color_type: int, row: bytes, width: int, **chunks: bytes) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, 1, bits, color_type, 0, 0, 0)
    extra = b"".join(chunk(kind.encode(), body) for kind, body in chunks.items())
    body = chunk(b"IHDR", header) + extra + chunk(b"IDAT", zlib.compress(b"\0" + row)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (png(2, 0, b"\x1b", 4), [0, 85, 170, 255]),
        (png(2, 0, b"\x1b", 4, tRNS=b"\0\2"), [0, 85, 99, 255]),
        (png(4, 0, b"\x0f\x70", 3, tRNS=b"\0\7"), [0, 255, 99]),
        (png(1, 0, b"\x40", 2, tRNS=b"\0\1"), [0, 99]),
        (png(1, 0, b"\x40", 2, tRNS=b"\0\0"), [99, 255]),
        (png(8, 0, b"\x07\x08", 2, tRNS=b"\0\7"), [99, 8]),
        (png(16, 0, b"\x01\x2c\x80\x00\xff\xff", 3, tRNS=b"\x01\x2c"), [99, 128, 255]),
        (png(16, 2, b"\xff\xff" * 3 + b"\x10\x00" * 3, 2, tRNS=b"\xff\xff" * 3), [99, 16]),
        (png(16, 2, b"\x00\x80" * 3 + b"\x80\x80" * 3, 2), [0, 128]),
        (png(16, 4, b"\x80\x80\xff\xff" + b"\x80\x80\0\0", 2), [128, 99]),
        (png(16, 6, b"\x80\x80" * 3 + b"\xff\xff" + b"\x80\x80" * 3 + b"\0\0", 2), [128, 99]),
    ],
)
def test_png_of_every_depth_with_and_without_a_transparent_color(data, expected):
    flat = open_image(data, settings=EncodeSettings(background=(99, 99, 99))).convert("L")
    assert list(np.asarray(flat)[0]) == expected


def test_palettes_become_rgb_also_with_alpha_for_every_entry():
    image = quadrants().quantize(4)
    assert close(corners(reduced(image)), CORNERS, 0)
    red = image.getpixel((0, 0))
    alphas = bytes(0 if index == red else 255 for index in range(4))
    flat = open_image(saved(image, "PNG", transparency=alphas), settings=EncodeSettings(background=(5, 6, 7)))
    assert corners(flat) == [(5, 6, 7), *CORNERS[1:]]


def test_16_bits_are_scaled_and_rounded():
    values = np.arange(65_536, dtype=np.uint16).reshape(256, 256)
    expected = np.rint(values / 65_535 * 255).astype(np.uint8)
    for data in (saved(Image.fromarray(values), "PNG"), saved(Image.fromarray(values), "TIFF"),
                 b"P5 256 256 65535\n" + values.astype(">u2").tobytes()):  # fmt: skip
        assert np.array_equal(np.asarray(open_image(data, settings=PLAIN)), expected)
    for mode in ("I;16", "I;16B"):
        image = Image.frombytes(mode, (256, 256), values.astype("<u2" if mode == "I;16" else ">u2").tobytes())
        assert np.array_equal(np.asarray(reduced(image)), expected)


def test_32_bit_integers_have_the_smallest_usual_range_that_holds_them():
    for top in (255, 65_535, 2**31 - 1):
        values = np.array([[-5, 0, top // 2, top]], dtype=np.int32)
        assert list(np.asarray(open_image(saved(Image.fromarray(values), "TIFF"), settings=PLAIN))[0]) in (
            [0, 0, 127, 255],
            [0, 0, 128, 255],
        )


def test_floats_have_the_smallest_usual_range_of_theirs_and_nan_is_black():
    inf, nan = float("inf"), float("nan")
    for top in (1.0, 255.0, 65_535.0, 1e9):
        values = np.array([[0, top * 0.2, top, nan, inf, -inf, -top]], dtype=np.float32)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            image = open_image(saved(Image.fromarray(values), "TIFF"), settings=PLAIN)
        assert list(np.asarray(image)[0]) == [0, 51, 255, 0, 255, 0, 0]
    assert set(np.asarray(reduced(Image.fromarray(np.full((2, 2), nan, np.float32)))).ravel()) == {0}


INKS = ((0, 255, 255, 0), (255, 0, 255, 0), (255, 255, 0, 0), (0, 0, 0, 0))  # red, green, blue, white
FROM_INKS = ((255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255))


def cmyk() -> Image.Image:
    image = Image.new("CMYK", (64, 48))
    for index, ink in enumerate(INKS):
        image.paste(ink, (32 * (index % 2), 24 * (index // 2), 32 * (index % 2) + 32, 24 * (index // 2) + 24))
    return image


@pytest.mark.parametrize(
    "profile", [None, b"not a profile", ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()]
)
@pytest.mark.parametrize("format", ["JPEG", "TIFF"])
def test_cmyk_without_a_usable_profile_is_converted_plainly(format, profile):
    data = saved(cmyk(), format, **({} if profile is None else {"icc_profile": profile}))
    image = open_image(data, settings=PLAIN)
    assert close(corners(image), FROM_INKS, 3 if format == "JPEG" else 0)


def test_ycck_and_cmyk_jpegs_of_imagemagick_have_the_right_polarity():
    image = open_image(by_imagemagick(quadrants(), "jpeg", transform_colorspace="cmyk"), settings=PLAIN)
    assert close(corners(image), CORNERS, 16)


def cmyk_profile() -> bytes:
    """A lut8 profile (ICC.1:2010, 10.10) of a device whose cyan, magenta and yellow all print as black does.

    So any ink at all is grey, and an image that went through it cannot be confused with the plain conversion.
    """
    grid = np.indices((2, 2, 2, 2)).reshape(4, -1).T  # the last ink varies fastest
    lightness = np.where(grid.sum(axis=1) == 0, 255, 100)
    clut = np.stack([lightness, np.full(16, 128), np.full(16, 128)], axis=1).astype(np.uint8).tobytes()
    linear = bytes(range(256))
    matrix = struct.pack(">9i", *(65_536 * each for each in (1, 0, 0, 0, 1, 0, 0, 0, 1)))
    lut = b"mft1" + bytes(4) + bytes([4, 3, 2, 0]) + matrix + linear * 4 + clut + linear * 3
    text = b"text" + bytes(4) + b"test\0"
    white = b"XYZ " + bytes(4) + struct.pack(">3i", 63_190, 65_536, 54_061)
    tags, offset, table, body = [(b"cprt", text), (b"wtpt", white), (b"A2B0", lut), (b"A2B1", lut)], 0, b"", b""
    offset = 128 + 4 + 12 * len(tags)
    for name, data in tags:
        table += name + struct.pack(">II", offset + len(body), len(data))
        body += data.ljust(-(-len(data) // 4) * 4, b"\0")
    size = offset + len(body)
    header = struct.pack(">I4sI4s4s4s", size, bytes(4), 0x02400000, b"prtr", b"CMYK", b"Lab ")
    header += struct.pack(">6H4s", 2020, 1, 1, 0, 0, 0, b"acsp") + bytes(28) + white[8:]
    return header.ljust(128, b"\0") + struct.pack(">I", len(tags)) + table + body


@pytest.mark.parametrize("format", ["JPEG", "TIFF"])
def test_cmyk_goes_through_its_own_profile(format):
    image = open_image(saved(cmyk(), format, icc_profile=cmyk_profile()), settings=PLAIN)
    red, green, blue, white = corners(image)
    assert close(white, WHITE, 3)
    for color in (red, green, blue):
        assert max(color) - min(color) <= 3
        assert max(color) < 120


def test_lab_becomes_srgb():
    srgb, lab = ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB")
    image = ImageCms.profileToProfile(quadrants(), srgb, lab, outputMode="LAB")
    assert close(corners(reduced(image)), CORNERS, 10)  # 8 bits are few for Lab
    assert corners(open_image(saved(image, "TIFF"), settings=PLAIN)) == corners(reduced(image))


def test_the_profile_of_an_rgb_image_is_ignored():
    swapped = ImageCms.createProfile("XYZ")
    data = saved(quadrants(), "PNG", icc_profile=ImageCms.ImageCmsProfile(swapped).tobytes())
    assert corners(open_image(data, settings=PLAIN)) == list(CORNERS)


# --- damage -------------------------------------------------------------------------------------------------------


def attempt(data: bytes, name: str = "") -> bool:
    """Whether it opened; anything but an image or an ImageError, a warning included, fails the test."""
    try:
        image = open_image(data, settings=EncodeSettings(max_pixels=1 << 20), name=name)
    except ImageError as error:
        assert "\n" not in str(error)
        assert len(str(error)) < 300
        return False
    assert image.mode in ("L", "RGB")
    return True


SAMPLES = ("BMP", "DDS", "GIF", "ICO", "JPEG2000", "PCX", "PPM", "QOI", "SGI", "TGA",
           "JPEG", "PNG", "WEBP", "TIFF", "MPO", "CMYK JPEG", "deflated TIFF", "APNG")  # fmt: skip


def sample(kind: str) -> bytes:
    picture = smooth(60, 44)
    exif = Image.Exif()
    exif[0x0112] = 6
    if kind == "CMYK JPEG":
        return saved(picture.convert("CMYK"), "JPEG", icc_profile=cmyk_profile(), progressive=True)
    if kind == "deflated TIFF":
        return saved(picture, "TIFF", compression="tiff_adobe_deflate")
    if kind == "APNG":
        return saved(picture.quantize(9), "PNG", save_all=True, append_images=[picture.quantize(9)])
    if kind in ("JPEG", "PNG", "WEBP", "TIFF", "MPO"):
        return saved(picture, kind, exif=exif, icc_profile=cmyk_profile())
    return saved(picture, kind)


@pytest.mark.parametrize("kind", SAMPLES)
def test_a_truncated_file_is_an_image_or_an_image_error(kind):
    data = sample(kind)
    assert attempt(data)
    points = {*range(0, 64, 3), *(len(data) * step // 24 for step in range(24))}
    opened = [attempt(data[:point]) for point in sorted(points)]
    assert not all(opened)


@pytest.mark.parametrize("kind", SAMPLES)
def test_a_file_with_flipped_bits_is_an_image_or_an_image_error(kind):
    data = sample(kind)
    for damaged in flipped(kind, data, count=24):
        attempt(damaged)


def flipped(seed: str, data: bytes, *, count: int) -> list[bytes]:
    """Copies with 1, 3 or 20 bits turned over, every other one in the first 100 bytes, where headers are."""
    draw = np.random.default_rng(list(seed.encode()))
    copies = []
    for number in range(count):
        damaged = np.frombuffer(data, np.uint8).copy()
        reach = min(len(data), 100) if number % 2 else len(data)
        for position in draw.integers(0, reach, (1, 3, 20)[number % 3]):
            damaged[position] ^= np.uint8(1 << draw.integers(0, 8))
        copies.append(damaged.tobytes())
    return copies


@pytest.mark.parametrize("coder", ["exr", "heic", "miff", "psd", "sgi", "viff", "xwd", "pict", "dpx", "hdr"])
def test_a_damaged_file_of_imagemagick_s_is_an_image_or_an_image_error(coder):
    data = by_imagemagick(smooth(30, 20), coder)
    for damaged in flipped(coder, data, count=8):
        attempt(damaged, name=f"x.{coder}")
    for point in (1, 20, 60, len(data) // 2, len(data) - 1):
        attempt(data[:point], name=f"x.{coder}")


def test_any_exception_of_a_library_becomes_an_image_error():
    for error in (MemoryError(), EOFError("x"), KeyError("k"), ZeroDivisionError(), struct.error("s"), zlib.error("z"),
                  SyntaxError("many\nlines")):  # fmt: skip
        with pytest.raises(ImageError) as caught, foreign_errors("damaged X"):
            raise error
        assert caught.value.__cause__ is error
        assert "\n" not in str(caught.value)


def test_a_large_picture_inside_a_small_icon_is_refused():
    big = saved(Image.new("1", (3_000, 3_000)), "PNG")
    icon = struct.pack("<HHHBBBBHHII", 0, 1, 1, 16, 16, 0, 0, 1, 32, len(big), 22) + big
    with pytest.raises(ImageError, match=r"--max-pixels|limit"):
        open_image(icon, settings=EncodeSettings(max_pixels=1 << 20))


@pytest.mark.parametrize("kind", ["VP8 ", "VP8L", "VP8X"])
def test_a_webp_of_too_many_pixels_is_refused_before_a_canvas_is_made(kind, monkeypatch):
    image = quadrants()
    if kind == "VP8X":
        image.putalpha(128)
    data = saved(image, "WEBP", lossless=kind == "VP8L")
    assert data[12:16] == kind.encode()
    assert open_image(data, settings=EncodeSettings(max_pixels=3_072)).size == (64, 48)
    monkeypatch.setattr(Image, "open", None)
    with pytest.raises(ImageError, match=r"64 × 48 = 3,072 pixels; more than --max-pixels allows \(3,071\)"):
        open_image(data, settings=EncodeSettings(max_pixels=3_071))
