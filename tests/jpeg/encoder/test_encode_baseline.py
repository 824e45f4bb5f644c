"""The project's own encoder: libjpeg-turbo's scan with optimized tables, bit by bit."""

from __future__ import annotations

import ctypes
import io
from typing import Any

import numpy as np
import pytest
from grids import examples, slow_except
from hypothesis import given
from hypothesis import strategies as st
from pictures import smooth
from PIL import Image, features

from picstore.errors import UsageError
from picstore.jpeg.encoder.encode_baseline import encode, encode_strips, strip_height
from picstore.jpeg.transcode import add_restart_markers
from picstore.prepare.image.training_jpeg import make_image_info, parse_image_info

KINDS = ("grey", "444", "422", "420")
PILLOW_SUBSAMPLING = {"grey": 0, "444": 0, "422": 1, "420": 2}


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def planar(pixels: np.ndarray) -> np.ndarray:
    """The same array with one channel after the other in memory."""
    return np.ascontiguousarray(pixels.transpose(2, 0, 1)).transpose(1, 2, 0)


def by_libjpeg(pixels: np.ndarray, kind: str, quality: int, interval: int) -> bytes:
    """Pillow's stream, with its headers written by picstore."""
    if not features.check("libjpeg_turbo"):
        pytest.skip("Pillow is built without libjpeg-turbo")
    out = io.BytesIO()
    options = {"subsampling": PILLOW_SUBSAMPLING[kind], "restart_marker_blocks": interval}
    Image.fromarray(pixels).save(out, "JPEG", quality=quality, optimize=True, **options)
    return add_restart_markers(out.getvalue(), interval)


def check(pixels: np.ndarray, kind: str, quality: int, interval: int | None = None) -> None:
    given = np.ascontiguousarray(pixels[..., 0]) if kind == "grey" else pixels
    made = encode(given, quality=quality, subsampling="420" if kind == "grey" else kind, interval=interval)
    expected = by_libjpeg(np.ascontiguousarray(given), kind, quality, made.header.restart_interval)
    if made.jpeg != expected:
        pytest.fail(f"{pixels.shape}, {kind}, quality {quality} differs")
    info, parsed = make_image_info(made.header, made.lengths), parse_image_info(made.jpeg)
    assert (info.width, info.height, info.sampling) == (parsed.width, parsed.height, parsed.sampling)
    assert (info.restart_interval, info.header_length) == (parsed.restart_interval, parsed.header_length)
    np.testing.assert_array_equal(info.segments, parsed.segments)


@pytest.mark.parametrize("kind", slow_except(["420", "grey"], KINDS))
def test_every_size_gives_the_stream_of_libjpeg(kind: str) -> None:
    picture = np.asarray(smooth(70, 70))
    for height in range(1, 36):
        for width in range(1, 36):
            check(picture[:height, :width], kind, (20, 75, 90)[(height + width) % 3])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("quality", [1, 10, 49, 50, 75, 90, 94])
def test_every_quality_gives_the_stream_of_libjpeg(kind: str, quality: int) -> None:
    check(np.asarray(smooth(150, 90)), kind, quality)
    check(noise(90, 150) // 2 + 60, kind, quality)


@pytest.mark.parametrize("kind", KINDS)
def test_wide_images_give_the_stream_of_libjpeg(kind: str) -> None:
    check(np.asarray(smooth(1000, 40)), kind, 75)


def test_colors_are_rounded_as_by_libjpeg_where_it_matters() -> None:
    """The fraction of Y is just at the next number or just before it; that of Cb and Cr can only be just before it."""
    colors = np.random.default_rng(0).integers(0, 256, (1 << 20, 3), np.uint8)
    r, g, b = colors.astype(np.int64).T
    luma = r * 19595 + g * 38470 + b * 7471 + (1 << 15)
    blue = (b << 15) - r * 11059 - g * 21709 + (1 << 15) - 1
    red = (r << 15) - g * 27439 - b * 5329 + (1 << 15) - 1
    edges = (luma, 0), (luma, 0xFFFF), (blue, 0xFFFF), (red, 0xFFFF)
    chosen = [colors[(each & 0xFFFF) == fraction][:16] for each, fraction in edges]
    assert min(map(len, chosen)) >= 4
    for each in chosen:
        blocks = np.repeat(np.repeat(each[None], 8, axis=1), 8, axis=0)  # of one color, which quantization keeps
        check(blocks, "444", 94)


def test_pixels_that_lie_side_by_side_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = noise(40, 50)
    split = planar(whole)
    monkeypatch.setattr(np, "ascontiguousarray", lambda array: pytest.fail(f"copied: strides {array.strides}"))
    for pixels in (whole, whole[::-1], whole[:, 5:30], split, whole[..., 0].copy()):
        encode(pixels, quality=80, subsampling="420")


@examples(50)
@given(
    st.integers(1, 80), st.integers(1, 80), st.sampled_from(KINDS), st.integers(1, 94), st.integers(1, 9), st.booleans()
)
def test_every_interval_and_layout_gives_the_stream_of_libjpeg(
    height: int, width: int, kind: str, quality: int, interval: int, split: bool
) -> None:
    pixels = noise(height, width, seed=height) // 4 + np.asarray(smooth(width, height)) // 2
    check(planar(pixels) if split else pixels, kind, quality, interval)


def test_noise_of_the_highest_quality_is_encoded_nearly_without_loss() -> None:
    pixels = noise(120, 130)
    made = encode(pixels, quality=100, subsampling="444")
    decoded = np.asarray(Image.open(io.BytesIO(made.jpeg)), np.int64)
    assert np.abs(decoded - pixels).max() <= 4


def test_any_memory_layout_gives_the_same_stream() -> None:
    pixels = noise(40, 50)
    expected = encode(pixels, quality=80, subsampling="420").jpeg
    wide = np.repeat(pixels, 2, axis=1)[:, ::2]
    upside_down = np.ascontiguousarray(pixels[::-1])[::-1]
    for same in (planar(pixels), wide, upside_down, np.asfortranarray(pixels)):
        assert encode(same, quality=80, subsampling="420").jpeg == expected


@pytest.mark.parametrize(
    "pixels",
    [
        np.zeros((0, 3, 3), np.uint8),
        np.zeros((4, 4, 4), np.uint8),
        np.zeros((4, 4, 3), np.int16),
        np.zeros(4, np.uint8),
        np.zeros((1, 65_536), np.uint8),
    ],
)
def test_arrays_that_are_no_image_are_refused(pixels: np.ndarray) -> None:
    with pytest.raises(UsageError):
        encode(pixels, quality=80, subsampling="420")


@pytest.mark.parametrize("wrong", [{"quality": 0}, {"quality": 101}, {"subsampling": "440"}, {"interval": 65_536}])
def test_settings_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        encode(noise(8, 8), **{"quality": 80, "subsampling": "420", **wrong})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("height", [1, 16, 31, 32, 33, 100])
def test_strips_give_the_stream_of_the_whole_image(kind: str, height: int) -> None:
    pixels = noise(height, 150) if kind != "grey" else noise(height, 150)[..., 0].copy()
    options: dict[str, Any] = {"quality": 90, "subsampling": "420" if kind == "grey" else kind}
    whole = encode(pixels, **options)
    for rows in (16, 32, 64):
        strips = (pixels[top : top + rows] for top in range(0, height, rows))
        made = encode_strips(strips, size=(150, height), **options)
        assert made.jpeg == whole.jpeg
        assert made.header == whole.header
        np.testing.assert_array_equal(made.lengths, whole.lengths)


def test_a_strip_has_whole_rows_of_mcus_and_about_a_megapixel() -> None:
    for width in (1, 15, 500, 10_000, 65_535):
        height = strip_height(width)
        assert height % 16 == 0
        assert 1 << 19 <= width * height <= 2 << 20


@pytest.mark.parametrize(
    "heights", [[], [16], [16, 20], [15, 17], [16, 16, 16]], ids=["none", "few", "many", "odd", "more"]
)
def test_strips_that_do_not_make_the_image_are_refused(heights: list[int]) -> None:
    strips = (noise(height, 40) for height in heights)
    with pytest.raises(UsageError):
        encode_strips(strips, size=(40, 32), quality=80, subsampling="420")


@pytest.mark.parametrize("shape", [(32, 39, 3), (32, 41, 3), (33, 40, 3), (32, 40, 4), (32, 40, 3, 1), (0, 40, 3)])
def test_strips_of_another_width_or_more_rows_or_channels_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match=r"a strip has|pixels are"):
        encode_strips(iter([np.zeros(shape, np.uint8)]), size=(40, 32), quality=80, subsampling="420")


def test_strips_of_another_kind_or_within_a_segment_are_refused() -> None:
    color, grey = noise(16, 48), noise(16, 48)[..., 0].copy()
    for strips, interval in (((color, grey), None), ((grey, color), None), ((color, color), 2)):
        with pytest.raises(UsageError):
            encode_strips(strips, size=(48, 32), quality=80, subsampling="420", interval=interval)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="needs glibc")
def test_a_running_kernel_has_memory_of_its_own() -> None:
    libc, threshold = ctypes.CDLL(None), -3  # M_MMAP_THRESHOLD: larger arrays are unmapped when they are freed
    pixels = noise(9, 2000)
    expected = encode(pixels, quality=90, subsampling="420").jpeg
    libc.mallopt(threshold, 4096)
    try:
        assert encode(pixels, quality=90, subsampling="420").jpeg == expected  # otherwise a segmentation fault
    finally:
        libc.mallopt(threshold, 32 << 20)  # the greatest that glibc comes to by itself
