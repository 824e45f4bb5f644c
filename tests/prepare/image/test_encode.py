"""Pixels to training JPEGs: sizes, sampling, markers, settings; and images that must be refused."""

from __future__ import annotations

import io
import struct
import warnings
import zlib

import numpy as np
import pytest
from grids import examples
from hypothesis import given
from hypothesis import strategies as st
from pictures import close, corners, header, open_image, quadrants, reencode, require, saved, smooth
from PIL import Image, ImageOps

from picstore.errors import ImageError, UsageError
from picstore.jpeg.tiles import restart_interval
from picstore.prepare.image.encode_settings import EncodeSettings, Size

SAMPLING = {"444": ((1, 1), (1, 1), (1, 1)), "422": ((2, 1), (1, 1), (1, 1)), "420": ((2, 2), (1, 1), (1, 1))}
PLAIN = EncodeSettings()


def opened(jpeg: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(jpeg))
    image.load()
    assert image.format == "JPEG"
    return image


# --- the stream ---------------------------------------------------------------------------------------------------


@examples(150)
@given(
    width=st.integers(1, 70),
    height=st.integers(1, 70),
    subsampling=st.sampled_from(sorted(SAMPLING)),
    mode=st.sampled_from(["L", "RGB", "RGBA", "P", "CMYK", "LA", "1"]),
)
def test_every_size_sampling_and_mode_becomes_a_baseline_jpeg_of_its_size(width, height, subsampling, mode):
    source = smooth(width, height).convert(mode)
    jpeg, reason = reencode(source, settings=EncodeSettings(quality=96, subsampling=subsampling))
    assert reason == "PIL image"
    head = header(jpeg)
    assert (head.sof, head.width, head.height) == (0xC0, width, height)
    assert head.sampling == (((1, 1),) if mode in ("L", "LA", "1") else SAMPLING[subsampling])
    assert head.columns % head.interval == 0
    assert head.interval == restart_interval(head.columns, 8 * head.sampling[0][0])
    image = opened(jpeg)
    assert (image.mode, image.size) == ("L" if len(head.sampling) == 1 else "RGB", (width, height))
    if mode not in ("1", "P"):  # dither has edges that no JPEG keeps
        expected = source.convert(image.mode)
        assert np.abs(np.asarray(image, float) - np.asarray(expected, float)).mean() < 4


def test_a_wide_image_gets_a_restart_interval_of_one_tile():
    jpeg, _ = reencode(smooth(512, 64), settings=PLAIN)
    head = header(jpeg)
    assert (head.columns, head.interval) == (32, 4)
    assert jpeg.count(b"\xff\xd0") > 0


def test_nothing_of_the_source_s_metadata_is_kept():
    exif = Image.Exif()
    exif[0x010E] = "secret description"
    source = saved(quadrants(), "JPEG", exif=exif, comment=b"secret comment", icc_profile=b"secret", xmp=b"secret")
    jpeg, _ = reencode(source, settings=PLAIN)
    assert b"secret" in source
    assert b"secret" not in jpeg
    head = header(jpeg)
    assert head.app0.startswith(b"JFIF\0")
    assert set(head.markers) == {0xE0, 0xDB, 0xC0, 0xC4, 0xDD, 0xDA}


def test_the_comment_of_a_gif_is_not_kept():
    jpeg, reason = reencode(saved(quadrants(), "GIF", comment=b"secret"), settings=PLAIN)
    assert reason == "GIF"
    assert b"secret" not in jpeg


def test_quality_changes_the_size_and_the_same_input_gives_the_same_bytes():
    sizes = [len(reencode(smooth(200, 150), settings=EncodeSettings(quality=q))[0]) for q in (30, 60, 95)]
    assert sizes == sorted(sizes)
    assert reencode(smooth(99, 98), settings=PLAIN) == reencode(smooth(99, 98), settings=PLAIN)


@pytest.mark.parametrize("quality", [50, 90, 94, 95, 100])
def test_noise_of_more_bytes_than_pixels_is_encoded_all_the_same(quality):
    noise = np.random.default_rng(0).integers(0, 2, (256, 300, 3), dtype=np.uint8) * 255
    jpeg, _ = reencode(noise, settings=EncodeSettings(quality=quality, subsampling="444"))
    head = header(jpeg)
    assert (head.sof, head.interval) == (0xC0, restart_interval(38, 8))
    if quality == 100:
        assert close(np.asarray(opened(jpeg)), noise, 6)


# --- sources ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(20, 30), (20, 30, 1), (20, 30, 3), (20, 30, 4)])
def test_arrays_of_one_three_and_four_channels_are_taken(shape):
    array = np.full(shape, 100, dtype=np.uint8)
    jpeg, reason = reencode(array, settings=PLAIN)
    assert reason == "array"
    image = opened(jpeg)
    assert image.size == (30, 20)
    assert image.mode == ("L" if shape[2:] in ((), (1,)) else "RGB")
    # a transparent 100 of 255 on white
    assert close(image.convert("L").getpixel((5, 5)), 194 if shape[2:] == (4,) else 100, 2)


@pytest.mark.parametrize("array", [np.zeros((4, 4), np.float32), np.zeros((4, 4, 2), np.uint8), np.zeros(4, np.uint8),
                                   np.zeros((0, 4, 3), np.uint8), np.zeros((2, 4, 4, 3), np.uint8)])  # fmt: skip
def test_arrays_of_other_types_and_shapes_are_refused(array):
    with pytest.raises(ImageError, match="array of"):
        reencode(array, settings=PLAIN)


def test_an_array_that_is_not_contiguous_is_taken():
    array = np.asarray(quadrants(64, 48))[::-1, ::2]
    image = opened(reencode(array, settings=EncodeSettings(subsampling="444"))[0])
    assert close(corners(image), corners(Image.fromarray(np.ascontiguousarray(array))), 8)


def test_a_pil_image_is_not_changed():
    image = quadrants()
    image.info["comment"] = b"mine"
    before = (image.mode, image.size, image.tobytes(), dict(image.info))
    reencode(image, settings=EncodeSettings(resize=Size.parse("10x10")))
    assert (image.mode, image.size, image.tobytes(), dict(image.info)) == before


def test_the_reason_names_what_had_to_change():
    picture, cmyk, exif = quadrants(), quadrants().convert("CMYK"), Image.Exif()
    exif[0x0112] = 6
    small = EncodeSettings(resize=Size.parse("shorter:16"))
    reasons = {
        "PNG": (saved(picture, "PNG"), PLAIN),
        "WEBP": (saved(picture, "WEBP"), small),
        "JPEG": (saved(picture, "JPEG"), PLAIN),
        "progressive JPEG": (saved(picture, "JPEG", progressive=True), small),
        "CMYK JPEG": (saved(cmyk, "JPEG"), PLAIN),
        "rotated by EXIF": (saved(picture, "JPEG", exif=exif), small),
        "resize": (saved(picture, "JPEG"), small),
    }
    assert {reason: reencode(data, settings=how)[1] for reason, (data, how) in reasons.items()} == {
        reason: reason for reason in reasons
    }


# --- orientation --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
def test_every_exif_orientation_is_applied_once(format, orientation):
    require(format in Image.registered_extensions().values(), f"Pillow's {format}")
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = quadrants(64, 48)
    data = saved(stored, format, exif=exif, **({"quality": 95} if format in ("JPEG", "WEBP", "AVIF") else {}))
    stored.getexif()[0x0112] = orientation
    expected = ImageOps.exif_transpose(stored)
    image = opened(reencode(data, settings=EncodeSettings(subsampling="444"))[0])
    assert image.size == expected.size == ((64, 48) if orientation < 5 else (48, 64))
    assert close(corners(image), corners(expected), 12)


@pytest.mark.parametrize("orientation", [0, 9, 65_535])
def test_an_orientation_that_does_not_exist_changes_nothing(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    assert open_image(saved(quadrants(), "JPEG", exif=exif), settings=PLAIN).size == (64, 48)


def test_a_pil_image_that_carries_an_orientation_is_turned():
    exif = Image.Exif()
    exif[0x0112] = 8
    source = Image.open(io.BytesIO(saved(quadrants(), "JPEG", exif=exif)))
    assert opened(reencode(source, settings=PLAIN)[0]).size == (48, 64)


def test_a_rotated_jpeg_is_resized_by_its_upright_sides():
    exif = Image.Exif()
    exif[0x0112] = 6
    data = saved(smooth(801, 397), "JPEG", exif=exif)
    for text in ("shorter:40", "longer:50", "33x77"):
        size = Size.parse(text)
        assert open_image(data, settings=EncodeSettings(resize=size)).size == size.target(397, 801)


@pytest.mark.parametrize("exif", [b"Exif\0\0", b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0garbage that is long enough",
                                  b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x02\0\0\0\x02xx\0\0\0\0\0\0"])  # fmt: skip
def test_exif_that_cannot_be_parsed_says_nothing_and_warns_of_nothing(exif):
    data = saved(quadrants(), "JPEG", exif=exif)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert open_image(data, settings=PLAIN).size == (64, 48)


# --- size ---------------------------------------------------------------------------------------------------------


@examples(200)
@given(width=st.integers(1, 65_500), height=st.integers(1, 65_500), side=st.integers(1, 65_500))
def test_shorter_and_longer_give_that_side_and_never_enlarge(width, height, side):
    for kind, pick in (("shorter", min), ("longer", max)):
        size = Size.parse(f"{kind}:{side}")
        target = size.target(width, height)
        assert str(size) == f"{kind}:{side}"
        if pick(width, height) <= side:
            assert target == (width, height)
        else:
            assert pick(target) == side
            assert abs(target[0] * height - target[1] * width) <= max(width, height)
    assert Size.parse(f"{width}x{height}").target(side, 1) == (width, height)


@pytest.mark.parametrize("text", ["", "256", "shorter", "shorter:", "shorter:0", "longer:65501", "0x5", "5x0", "5x",
                                  "-1x5", "shorter:1.5", "wider:5", "256x256x3", " 5x5", "٣x٣", "5x5\n"])  # fmt: skip
def test_a_size_that_is_not_understood_is_wrong_usage(text):
    with pytest.raises(UsageError, match="size"):
        Size.parse(text)


@pytest.mark.parametrize(
    "wrong",
    [{"quality": 0}, {"quality": 101}, {"subsampling": "411"}, {"background": (0, 0)}, {"background": (0, 0, 256)},
     {"max_pixels": 0}, {"encoder": "guetzli"}],
)  # fmt: skip
def test_settings_out_of_range_are_wrong_usage(wrong):
    with pytest.raises(UsageError, match=next(iter(wrong))):
        EncodeSettings(**wrong)


def test_settings_survive_json():
    chosen = EncodeSettings(
        resize=Size.parse("longer:9"),
        quality=7,
        subsampling="444",
        background=(1, 2, 3),
        max_pixels=5,
        reencode=True,
        encoder="mozjpeg",
    )
    for each in (PLAIN, chosen):
        assert EncodeSettings.from_json(each.to_json()) == each
    with pytest.raises(UsageError, match="unknown"):
        EncodeSettings.from_json({"sharpness": 3})
    with pytest.raises(UsageError, match="quality is 'ninety'"):
        EncodeSettings.from_json({"quality": "ninety"})


@pytest.mark.parametrize("scale", [1, 2, 4, 8, 20])
def test_decoding_a_jpeg_smaller_gives_the_pixels_of_decoding_it_whole(scale):
    whole = smooth(61 * scale, 47 * scale)
    data = saved(whole, "JPEG", quality=97, subsampling=0)
    image = open_image(data, settings=EncodeSettings(resize=Size.parse("61x47")))
    assert close(image, whole.resize((61, 47), Image.Resampling.LANCZOS), 6)


@given(
    st.integers(1, 90),
    st.integers(1, 90),
    st.sampled_from([0, 1, 2]),
    st.sampled_from([{}, {"restart_marker_blocks": 3}, {"optimize": True}, {"progressive": True}, {"keep_rgb": True}]),
    st.sampled_from([b"", b"after the end"]),
)
def test_a_jpeg_of_any_kind_has_the_pixels_that_pillow_gives(width, height, subsampling, options, behind):
    if "keep_rgb" in options:
        subsampling = 0
    data = saved(smooth(width, height), "JPEG", subsampling=subsampling, quality=80, **options) + behind
    expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    assert np.array_equal(np.asarray(open_image(data, settings=PLAIN)), expected)


def test_photographs_have_the_pixels_that_pillow_gives(photographs):
    for path in photographs[::20]:
        expected = ImageOps.exif_transpose(Image.open(path)).convert("RGB")
        assert np.array_equal(np.asarray(open_image(path.read_bytes(), settings=PLAIN).convert("RGB")), expected)


def test_a_side_beyond_what_jpeg_holds_is_refused_and_a_resize_helps():
    data = saved(Image.new("1", (65_501, 2)), "PNG")
    with pytest.raises(ImageError, match=r"65501 × 2 pixels; a JPEG has 1 to 65,500 a side"):
        reencode(data, settings=PLAIN)
    jpeg, _ = reencode(data, settings=EncodeSettings(resize=Size.parse("longer:65500")))
    assert header(jpeg).width == 65_500


# --- refusals -----------------------------------------------------------------------------------------------------


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png_header(width: int, height: int) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))


def test_too_many_pixels_are_refused_by_the_header_alone():
    bomb = png_header(20_000, 20_000) + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")
    with pytest.raises(ImageError, match=r"20000 × 20000 = 400,000,000 pixels; more than --max-pixels allows"):
        reencode(bomb, settings=PLAIN)
    with pytest.raises(ImageError, match=r"--max-pixels allows \(3,071\)"):
        reencode(saved(quadrants(), "PNG"), settings=EncodeSettings(max_pixels=3_071))
    assert reencode(saved(quadrants(), "PNG"), settings=EncodeSettings(max_pixels=3_072))


def test_too_many_pixels_of_a_format_of_imagemagick_are_refused_too():
    with pytest.raises(ImageError, match=r"--max-pixels|needs ImageMagick"):
        reencode(b"P7\nWIDTH 30000\nHEIGHT 30000\nDEPTH 3\nMAXVAL 255\nTUPLTYPE RGB\nENDHDR\n", settings=PLAIN)


def test_an_image_between_pillows_limit_and_ours_is_read_without_a_warning():
    data = saved(Image.new("1", (12_000, 8_000)), "PNG")  # 96 million pixels; Pillow warns above 89 million
    assert reencode(data, settings=EncodeSettings(resize=Size.parse("longer:64")))[1] == "PNG"


def test_an_empty_file_and_a_file_that_is_no_image_are_named_so():
    with pytest.raises(ImageError, match=r"^empty file$"):
        reencode(b"", settings=PLAIN)
    for data in (b"x", b"hello, world\n" * 50, bytes(4_096), b"%PDF-1.4\n%", b"%!PS-Adobe-3.0 EPSF-3.0\n"):
        with pytest.raises(ImageError, match=r"^not an image that Pillow or ImageMagick reads$"):
            reencode(data, settings=PLAIN)


@pytest.mark.parametrize("format", ["JPEG", "PNG", "BMP", "TIFF", "PPM", "TGA", "GIF"])
def test_a_truncated_file_is_called_truncated(format):
    noise = Image.fromarray(np.random.default_rng(1).integers(0, 256, (90, 80, 3), dtype=np.uint8))
    data = saved(noise.convert("P") if format == "GIF" else noise, format)
    with pytest.raises(ImageError, match=r"^truncated "):
        reencode(data[: len(data) * 3 // 4], settings=PLAIN)


def test_a_jpeg_cut_off_in_its_header_is_called_a_damaged_jpeg():
    with pytest.raises(ImageError, match="damaged or truncated JPEG"):
        reencode(saved(quadrants(), "JPEG")[:30], settings=PLAIN)


def test_photographs_become_smaller_jpegs_close_to_them(photographs):
    how = EncodeSettings(resize=Size.parse("shorter:128"), quality=95, subsampling="444")
    for path in photographs[::40]:
        source = Image.open(path).convert("RGB")
        jpeg, _ = reencode(path.read_bytes(), settings=how)
        image = opened(jpeg).convert("RGB")
        assert min(image.size) == 128
        expected = source.resize(image.size, Image.Resampling.LANCZOS)
        assert np.abs(np.asarray(image, float) - np.asarray(expected, float)).mean() < 4
