"""The project's own decoder: libjpeg-turbo's pixels, bit by bit, or a refusal."""

from __future__ import annotations

import contextlib
import io
import random
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
from coefficients import DC_TABLE, FACTORS, Coefficients, as_on_x86_64, write
from grids import slow_except
from pictures import header, require, saved, smooth
from PIL import Image

import picstore
from picstore.errors import ImageError, UsageError
from picstore.jpeg.decoder import decode_baseline as decoding
from picstore.jpeg.decoder import scan
from picstore.jpeg.decoder.decode_baseline import decode

AC_TABLE = bytes([0] * 7 + [162] + [0] * 8), bytes([0, 0xF0, *(r << 4 | s for r in range(16) for s in range(1, 11))])
SAMPLINGS = ("444", "422", "440", "420")
KINDS = ("grey", *SAMPLINGS)


def encode(pixels: np.ndarray, kind: str, **options: object) -> bytes:
    if kind == "grey":
        return simplejpeg.encode_jpeg(np.ascontiguousarray(pixels[:, :, :1]), colorspace="GRAY", **options)
    return simplejpeg.encode_jpeg(np.ascontiguousarray(pixels), colorsubsampling=kind, **options)


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def expected(jpeg: bytes) -> np.ndarray:
    return simplejpeg.decode_jpeg(jpeg, "RGB", fastdct=False, fastupsample=False)


def assert_equal(jpeg: bytes) -> None:
    np.testing.assert_array_equal(decode(jpeg), expected(jpeg))


def with_body(jpeg: bytes, marker: int, change: Callable[[bytearray], bytes | bytearray]) -> bytes:
    """The stream with the body of the first segment of a marker changed by a function."""
    at = jpeg.index(bytes([0xFF, marker]))
    (length,) = struct.unpack_from(">H", jpeg, at + 2)
    body = change(bytearray(jpeg[at + 4 : at + 2 + length]))
    return jpeg[: at + 2] + struct.pack(">H", len(body) + 2) + bytes(body) + jpeg[at + 2 + length :]


def replaced(at: int, value: int) -> Callable[[bytearray], bytearray]:
    def change(body: bytearray) -> bytearray:
        body[at] = value
        return body

    return change


@pytest.mark.parametrize("kind", slow_except(["420", "grey"], KINDS))
def test_every_size_gives_the_pixels_of_libjpeg(kind: str) -> None:
    pixels = noise(70, 70)
    for height in range(1, 71):
        for width in range(1, 71):
            jpeg = encode(pixels[:height, :width], kind, quality=(20, 75, 95)[(height + width) % 3])
            if not np.array_equal(decode(jpeg), expected(jpeg)):
                pytest.fail(f"{width} × {height} differs")


@pytest.mark.parametrize("kind", KINDS)
def test_narrow_images_of_few_bytes_have_the_pixels_of_libjpeg(kind: str) -> None:
    for width in (1, 2, 7, 8, 9, 15, 16, 17, 31, 33):  # fewer pixels than are converted at a time, and more
        picture = np.asarray(smooth(width, 100))
        for quality in (3, 60):
            assert_equal(encode(picture, kind, quality=quality))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("quality", [1, 10, 50, 90, 98, 100])
def test_every_quality_gives_the_pixels_of_libjpeg(kind: str, quality: int) -> None:
    for picture in (np.asarray(smooth(150, 90)), noise(90, 150), 255 * (noise(90, 150) > 127).astype(np.uint8)):
        assert_equal(encode(picture, kind, quality=quality))


@pytest.mark.parametrize("kind", KINDS)
def test_restart_markers_change_nothing(kind: str) -> None:
    jpeg = encode(noise(75, 123), kind, quality=80)
    for interval in (1, 2, 3, 7, 1000):
        marked = picstore.add_restart_markers(jpeg, interval)
        np.testing.assert_array_equal(decode(marked), expected(jpeg))


def test_tables_of_the_image_itself_are_read() -> None:
    for quality in (30, 75, 95, 100):
        picture = Image.fromarray(noise(40, 60)).resize((200, 150), Image.Resampling.BICUBIC)
        assert_equal(saved(picture, "JPEG", quality=quality, optimize=True))


def test_photographs_and_their_cuts_have_the_pixels_of_libjpeg(photographs: list[Path]) -> None:
    rng = random.Random(0)
    compared = 0
    for path in photographs[::4]:
        try:
            jpeg = picstore.add_restart_markers(path.read_bytes())
        except picstore.NotTranscodable:
            continue
        assert_equal(jpeg)
        whole = header(jpeg)
        left, top = rng.randrange(whole.width), rng.randrange(whole.height)
        box = left, top, rng.randint(1, whole.width - left), rng.randint(1, whole.height - top)
        assert_equal(picstore.cut(jpeg, box)[0])
        compared += 1
    assert compared > 50


def test_a_buffer_is_written_to_and_nothing_behind_the_pixels() -> None:
    jpeg = encode(noise(33, 21), "420")
    buffer = np.full(3 * 33 * 21 + 100, 7, np.uint8)
    pixels = decode(jpeg, buffer)
    assert np.shares_memory(pixels, buffer)
    np.testing.assert_array_equal(pixels, expected(jpeg))
    assert (buffer[3 * 33 * 21 :] == 7).all()


@pytest.mark.parametrize("form", [bytes, bytearray, memoryview, lambda jpeg: np.frombuffer(jpeg, np.uint8)])
def test_any_buffer_of_bytes_is_decoded(form: Callable[[bytes], Any]) -> None:
    jpeg = encode(noise(20, 30), "422")
    np.testing.assert_array_equal(decode(form(jpeg)), expected(jpeg))


def test_a_workspace_grows_for_wide_images_and_for_many_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = encode(np.asarray(smooth(3000, 16)), "420")
    many = picstore.add_restart_markers(encode(np.asarray(smooth(8 * 1100, 8)), "grey"), 1)
    for jpeg in (wide, many):
        monkeypatch.setattr(decoding, "WORKSPACE", decoding._Workspace())
        assert_equal(jpeg)


def test_a_buffer_that_is_too_short_is_refused() -> None:
    with pytest.raises(ImageError, match="take 1200 bytes"):
        decode(encode(noise(20, 20), "420"), np.empty(1199, np.uint8))


@pytest.mark.parametrize(
    "buffer", [np.empty(9999, np.int8), np.empty((99, 99), np.uint8), np.empty(9999, np.uint8)[::2]]
)
def test_what_is_no_buffer_is_wrong_usage(buffer: np.ndarray) -> None:
    with pytest.raises(UsageError, match="contiguous uint8"):
        decode(encode(noise(20, 20), "420"), buffer)


def test_the_result_belongs_to_the_caller() -> None:
    one, other = (encode(noise(40, 40, seed), "420") for seed in (1, 2))
    first = decode(one)
    decode(other)
    np.testing.assert_array_equal(first, expected(one))


def pillow(mode: str = "RGB", **options: object) -> bytes:
    return saved(smooth(60, 40, mode), "JPEG", quality=90, **options)


ADOBE_RGB = b"\xff\xee\x00\x0eAdobe\x00\x64\0\0\0\0\0"


@pytest.mark.parametrize(
    "jpeg",
    [
        pytest.param(pillow(progressive=True), id="progressive"),
        pytest.param(pillow("CMYK"), id="CMYK"),
        pytest.param(pillow(keep_rgb=True), id="RGB"),
        pytest.param(with_body(pillow(subsampling=0), 0xC0, replaced(7, 0x41)), id="4:1:1"),
        pytest.param(with_body(pillow(), 0xC0, replaced(0, 12)), id="12 bits"),
        pytest.param(with_body(pillow(), 0xC0, replaced(13, 0x21)), id="chroma sampled twice"),
        pytest.param(with_body(pillow(), 0xDA, replaced(7, 1)), id="a scan of some coefficients"),
        pytest.param(with_body(pillow(), 0xDB, replaced(0, 0x10)), id="quantization of 16 bits"),
        pytest.param(with_body(pillow(), 0xC0, replaced(2, 0)), id="height by DNL"),
    ],
)
def test_what_is_no_training_jpeg_is_refused(jpeg: bytes) -> None:
    with pytest.raises(ImageError, match=r"not a baseline JPEG|headers are damaged"):
        decode(jpeg)


def test_colors_are_as_jfif_and_adobe_say() -> None:
    jfif = pillow()
    length = 4 + struct.unpack_from(">H", jfif, 4)[0]
    bare = jfif[:2] + jfif[length:]
    assert_equal(bare)
    with pytest.raises(ImageError, match="not a baseline"):
        decode(bare[:2] + ADOBE_RGB + bare[2:])
    assert_equal(bare[:2] + ADOBE_RGB[:-1] + b"\1" + bare[2:])
    assert_equal(jfif[:length] + ADOBE_RGB + jfif[length:])  # JFIF comes first, so it decides


def test_comments_other_segments_and_fill_bytes_are_passed() -> None:
    jpeg = pillow(comment=b"a comment", exif=b"Exif\0\0" + bytes(50))
    assert_equal(jpeg)
    assert_equal(jpeg[:2] + b"\xff\xff" + jpeg[2:])


def test_a_segment_that_ends_early_or_late_is_refused() -> None:
    jpeg = picstore.add_restart_markers(encode(noise(48, 64), "420"), 2)
    at = jpeg.index(b"\xff\xd1")
    for damaged in (jpeg[: at - 3] + jpeg[at:], jpeg[:at] + bytes(3) + jpeg[at:]):
        with pytest.raises(ImageError, match="does not decode"):
            decode(damaged)


def test_missing_and_misnumbered_markers_are_refused() -> None:
    jpeg = picstore.add_restart_markers(encode(noise(48, 64), "420"), 2)
    at = jpeg.index(b"\xff\xd1")
    for damaged in (jpeg[:at] + jpeg[at + 2 :], jpeg[:at] + b"\xff\xd3" + jpeg[at + 2 :], jpeg[:at] + b"\xff\xd9"):
        with pytest.raises(ImageError, match="does not decode"):
            decode(damaged)


def test_a_stream_cut_off_anywhere_is_refused() -> None:
    jpeg = picstore.add_restart_markers(encode(noise(24, 40), "420"))
    for length in range(len(jpeg)):
        with pytest.raises(ImageError, match="does not decode"):
            decode(jpeg[:length])


def test_a_huge_size_in_the_header_takes_no_memory() -> None:
    size = struct.pack(">HH", 65535, 65535)

    def change(body: bytearray) -> bytearray:
        body[1:5] = size
        return body

    with pytest.raises(ImageError, match="ends early"):
        decode(with_body(pillow(), 0xC0, change))


def test_damage_is_refused_or_decodes_to_an_image_of_the_announced_size() -> None:
    rng = random.Random(0)
    jpegs = [picstore.add_restart_markers(encode(noise(40, 56), kind, quality=70)) for kind in KINDS]
    buffer = np.empty(1 << 20, np.uint8)
    outcomes = set()
    for number in range(4000):
        damaged = bytearray(jpegs[number % len(jpegs)])
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(len(damaged) if rng.random() < 0.5 else 650)] = rng.randrange(256)
        try:
            shape = decode(bytes(damaged), buffer).shape
        except ImageError as error:
            outcomes.add(str(error))
        else:
            assert shape == (header(bytes(damaged)).height, header(bytes(damaged)).width, 3)
            outcomes.add("decoded")
    assert len(outcomes) > 4


@as_on_x86_64
@pytest.mark.parametrize("kind", KINDS)
def test_extreme_coefficients_have_the_pixels_of_libjpeg_or_go_to_it(kind: str) -> None:
    random_ = random.Random(kind)
    for steps in (59, 255):
        for others in (0, 3):
            empty = Coefficients(
                40, 24, FACTORS[kind], [], quantization=bytes([steps] * 64), tables=[DC_TABLE, AC_TABLE] * 2
            )
            blocks = [[random_.randrange(-1000, 1000)] + [0] * 63 for _ in range(empty.mcus * len(empty.order))]
            for block in blocks:
                for k in random_.sample(range(1, 64), others):
                    block[k] = random_.randrange(-1000, 1000)
            with contextlib.suppress(ImageError):
                assert_equal(write(replace(empty, blocks=blocks)))


def test_a_huffman_code_of_all_ones_is_refused_as_libjpeg_refuses_it() -> None:
    full = bytes([0, 0, 0, 16] + 12 * [0]), bytes([*range(12), 0, 0, 0, 0])
    block = [[3] + [0] * 63]
    jpeg = write(Coefficients(8, 8, [(1, 1)], block, tables=[full, AC_TABLE] * 2))
    with pytest.raises(ImageError):
        decode(jpeg)
    require("stand_ins" not in simplejpeg.__file__, "simplejpeg, which says what libjpeg says,")
    with pytest.raises(ValueError, match="Huffman"):
        simplejpeg.decode_jpeg(jpeg)


@pytest.mark.parametrize(
    "after", [b"\xff\xda\0\x08\1\1\0\0\x3f\0\0", b"\xff\x80", b"\xff\xc8\0\2", b"\xff\xff\xfe\0\2"]
)
def test_a_marker_other_than_eoi_after_the_scan_is_left_to_libjpeg(after: bytes) -> None:
    jpeg = encode(noise(16, 16), "444")
    with pytest.raises(ImageError, match="marker"):
        decode(jpeg[:-2] + after + b"\xff\xd9")
    np.testing.assert_array_equal(decode(jpeg[:-2] + b"\xff\xff\xff\xd9"), expected(jpeg))


@pytest.mark.parametrize("factors", [0x00, 0x01, 0x10, 0x15, 0x51, 0xFF])
def test_sampling_factors_that_libjpeg_refuses_are_refused_for_grey_too(factors: int) -> None:
    jpeg = with_body(encode(noise(8, 8), "grey"), 0xC0, replaced(7, factors))
    with pytest.raises(ImageError):
        decode(jpeg)


def test_grey_stays_grey_whatever_its_sampling_factors() -> None:
    jpeg = encode(noise(20, 30), "grey")
    assert_equal(with_body(jpeg, 0xC0, replaced(7, 0x11)))
    pixels = decode(jpeg)
    assert (pixels == pixels[:, :, :1]).all()
    assert Image.open(io.BytesIO(jpeg)).mode == "L"


def scaled(jpeg: bytes, width: int, height: int, factor: int) -> np.ndarray:
    """Pixels of libjpeg-turbo at 1 / factor; sides are at least the factor, which its choice of a scale takes."""
    least = {"min_width": -(-width // factor), "min_height": -(-height // factor)} if factor > 1 else {}
    return simplejpeg.decode_jpeg(jpeg, "RGB", fastdct=False, fastupsample=False, **least)


@pytest.mark.parametrize("factor", [2, 4, 8])
@pytest.mark.parametrize("kind", slow_except(["420", "grey"], KINDS))
def test_every_size_at_a_reduced_scale_gives_the_pixels_of_libjpeg(kind: str, factor: int) -> None:
    pixels, compared = noise(70, 70), 0
    for height in range(factor, 71, 1 if factor == 2 else 3):
        for width in range(factor + height % 3, 71, 3):
            jpeg = encode(pixels[:height, :width], kind, quality=(20, 75, 95)[(height + width) % 3])
            expected_ = scaled(jpeg, width, height, factor)
            if expected_.shape != (-(-height // factor), -(-width // factor), 3):  # libjpeg has scales of 3/8 too
                continue
            if not np.array_equal(decode(jpeg, factor=factor), expected_):
                pytest.fail(f"{width} × {height} differs")
            compared += 1
    assert compared > 300


@pytest.mark.parametrize("factor", [2, 4, 8])
@pytest.mark.parametrize("kind", KINDS)
def test_restart_markers_change_nothing_at_a_reduced_scale(kind: str, factor: int) -> None:
    jpeg = encode(np.asarray(smooth(184, 123)), kind, quality=80)
    for interval in (1, 3, 1000):
        marked = picstore.add_restart_markers(jpeg, interval)
        np.testing.assert_array_equal(decode(marked, factor=factor), scaled(jpeg, 184, 123, factor))


@pytest.mark.parametrize("factor", [2, 4, 8])
@pytest.mark.parametrize("kind", KINDS)
def test_extreme_coefficients_at_a_reduced_scale_are_decoded_as_by_libjpeg(kind: str, factor: int) -> None:
    random_, compared = random.Random(f"{kind}{factor}"), 0
    for steps, others in ((59, 0), (59, 3), (255, 0), (255, 3), (255, 20)):
        empty = Coefficients(
            40, 24, FACTORS[kind], [], quantization=bytes([steps] * 64), tables=[DC_TABLE, AC_TABLE] * 2
        )
        blocks = [[random_.randrange(-1000, 1000)] + [0] * 63 for _ in range(empty.mcus * len(empty.order))]
        for block in blocks:
            for k in random_.sample(range(1, 64), others):
                block[k] = random_.randrange(-1000, 1000)
        jpeg = write(replace(empty, blocks=blocks))
        with contextlib.suppress(ImageError):
            np.testing.assert_array_equal(decode(jpeg, factor=factor), scaled(jpeg, 40, 24, factor))
            compared += 1
    assert compared


def test_rows_decode_as_they_are_asked_for_into_a_few_rows_of_memory() -> None:
    for kind in KINDS:
        jpeg = encode(noise(103, 77), kind)
        for factor in (1, 2, 4, 8):
            whole = decode(jpeg, factor=factor)
            height = len(whole)
            source, code = decoding._open(jpeg, factor)
            assert code == 0 and len(source) == len(jpeg)
            ring = np.zeros((scan.MOST_SURPLUS_ROWS + 5, *whole.shape[1:]), np.uint8)
            state = decoding.WORKSPACE.frame
            state[scan.OUT], state[scan.RING] = ring.ctypes.data, len(ring)
            for rows in range(1, height + 1):
                assert decoding.decode_rows(state.ctypes.data, rows) == 0
                assert rows <= state[scan.WRITTEN] <= min(height, rows - 1 + scan.MOST_SURPLUS_ROWS)
                for row in range(max(rows - 5, 0), rows):
                    np.testing.assert_array_equal(ring[row % len(ring)], whole[row])


@pytest.mark.parametrize("factor", [0, 3, 16, -2])
def test_other_factors_are_wrong_usage(factor: int) -> None:
    with pytest.raises(UsageError, match="1, 2, 4 and 8"):
        decode(encode(noise(20, 20), "420"), factor=factor)
