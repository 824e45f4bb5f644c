"""Boxes decoded from where their tiles lie: the pixels of the whole image, and nothing read that is not needed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
from coefficients import least
from described import describe
from hypothesis import given
from hypothesis import strategies as st
from samples import picture

import picstore
from picstore.jpeg.cut import TiledJpegs, cut_all
from picstore.jpeg.decoder.box import OUTSIDE, decode_box
from picstore.jpeg.decoder.decode_baseline import decode
from picstore.jpeg.markers import find_restart_segments, parse_header

KINDS = ("grey", "444", "422", "440", "420")


def stored(width: int, height: int, kind: str, interval: int | None, quality: int = 90) -> bytes:
    pixels = picture(width + height, width=width, height=height).astype(int)
    pixels = (pixels + np.random.default_rng(width).integers(-30, 30, pixels.shape)).clip(0, 255).astype(np.uint8)
    if kind == "grey":
        jpeg = simplejpeg.encode_jpeg(np.ascontiguousarray(pixels[:, :, :1]), quality=quality, colorspace="GRAY")
    else:
        jpeg = simplejpeg.encode_jpeg(pixels, quality=quality, colorsubsampling=kind)
    columns = -(-width // parse_header(jpeg).mcu_size[0])
    divisors = [k for k in range(1, columns + 1) if columns % k == 0]
    return picstore.add_restart_markers(jpeg, divisors[(interval or 0) % len(divisors)])


def segment_lengths(jpeg: bytes) -> np.ndarray:
    starts, ends = find_restart_segments(jpeg, parse_header(jpeg))
    return (ends - starts).astype(np.uint16)


def tiled(jpeg: bytes) -> TiledJpegs:
    header = parse_header(jpeg)
    tiling = [header.width, header.height, *header.mcu_size, header.restart_interval, header.length]
    return TiledJpegs.from_streams([jpeg], np.array([tiling]), [segment_lengths(jpeg)])


def inside(pixels: np.ndarray, rect: np.ndarray, box: tuple[int, ...], factor: int = 1) -> np.ndarray:
    """The box's part of what was decoded around it."""
    left, top = rect[:2] // factor
    x0, y0, x1, y1 = box[0] // factor, box[1] // factor, -(-box[2] // factor), -(-box[3] // factor)
    return pixels[y0 - top : y1 - top, x0 - left : x1 - left]


@given(
    st.integers(1, 150), st.integers(1, 90), st.sampled_from(KINDS), st.integers(0, 9), st.sampled_from((1, 2, 4, 8)),
    st.data(),
)  # fmt: skip
def test_a_box_has_the_pixels_of_the_whole_image(
    width: int, height: int, kind: str, interval: int, factor: int, data: st.DataObject
) -> None:
    jpeg = stored(width, height, kind, interval)
    x0, y0 = data.draw(st.integers(0, width - 1)), data.draw(st.integers(0, height - 1))
    x1, y1 = data.draw(st.integers(x0 + 1, width)), data.draw(st.integers(y0 + 1, height))
    box = x0 // factor * factor, y0 // factor * factor, -(-x1 // factor) * factor, -(-y1 // factor) * factor
    box = *box[:2], min(box[2], width), min(box[3], height)
    found = decode_box(tiled(jpeg), np.array(box), factor=factor)
    assert found is not None
    np.testing.assert_array_equal(
        inside(*found, box, factor), inside(decode(jpeg, factor=factor), np.zeros(4, int), box, factor)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_boxes_of_few_pixels_have_those_of_the_whole_image(kind: str) -> None:
    """In rows of at most 2 samples, which a box of a larger image may have, libjpeg does not interpolate chroma."""
    jpeg = stored(69, 9, kind, 0)
    for factor in (1, 2, 4, 8):
        whole = decode(jpeg, factor=factor)
        for left in range(0, 69, factor):
            box = left, 0, min(left + factor, 69), min(factor, 9)
            found = decode_box(tiled(jpeg), np.array(box), factor=factor)
            assert found is not None
            np.testing.assert_array_equal(inside(*found, box, factor), inside(whole, np.zeros(4, int), box, factor))


@pytest.mark.parametrize("kind", KINDS)
def test_boxes_that_begin_or_end_at_any_row_or_column_have_the_pixels_too(kind: str) -> None:
    jpeg = stored(80, 80, kind, 1)
    stream = tiled(jpeg)
    for factor in (1, 2, 4):
        whole = decode(jpeg, factor=factor)
        for first in range(0, 64, factor):
            for box in ((first, 24, first + 8, 32), (24, first, 32, first + 8)):
                found = decode_box(stream, np.array(box), factor=factor)
                assert found is not None
                np.testing.assert_array_equal(inside(*found, box, factor), inside(whole, np.zeros(4, int), box, factor))


def test_boxes_of_photographs_have_the_pixels_of_the_whole_image(photographs: list[Path]) -> None:
    rng = np.random.default_rng(0)
    compared = 0
    for path in photographs[::8]:
        try:
            jpeg = picstore.add_restart_markers(path.read_bytes())
        except picstore.NotTranscodable:
            continue
        whole, stream = decode(jpeg), tiled(jpeg)
        for _ in range(4):
            (x0, x1), (y0, y1) = (np.sort(rng.choice(side + 1, 2, replace=False)) for side in whole.shape[1::-1])
            found = decode_box(stream, np.array([x0, y0, x1, y1]))
            assert found is not None
            np.testing.assert_array_equal(inside(*found, (x0, y0, x1, y1)), whole[y0:y1, x0:x1])
            compared += 1
    assert compared > 100


def harmed(jpeg: bytes, column: int, columns: int) -> bytes:
    """The stream with ones in all tiles of a column, which are no code."""
    starts, ends = find_restart_segments(jpeg, parse_header(jpeg))
    damaged = bytearray(jpeg)
    for start, end in list(zip(starts.tolist(), ends.tolist(), strict=True))[column::columns]:
        damaged[start:end] = b"\xff\x00" * ((end - start) // 2) + b"\x00" * ((end - start) % 2)
    return bytes(damaged)


def test_damage_in_tiles_of_the_box_is_noticed_and_beside_it_none() -> None:
    jpeg = stored(128, 64, "444", 1)  # tiles of two MCUs
    for column in range(8):
        found = decode_box(tiled(harmed(jpeg, column, 8)), np.array([40, 10, 70, 50]))
        assert (found is None) == (2 <= column <= 4)
        if found is not None:
            np.testing.assert_array_equal(inside(*found, (40, 10, 70, 50)), decode(jpeg)[10:50, 40:70])


BOXES_OUTSIDE = [
    (-17, 0, 9, 9),
    (0, -17, 9, 9),
    (0, 0, 129, 9),
    (0, 40, 9, 65),
    (9, 9, 9, 20),
    (0, 70, 9, 90),
    (50, 9, 9, 20),
]


@pytest.mark.parametrize("box", BOXES_OUTSIDE)
def test_a_box_that_the_rows_do_not_hold_is_refused_by_every_kernel(box: tuple[int, int, int, int]) -> None:
    jpeg = stored(128, 64, "420", 1)
    held, boxes = tiled(jpeg), np.array([box])
    assert decode_box(held, boxes[0]) is None
    out, offsets, rects = np.zeros(2 * len(jpeg), np.uint8), np.zeros(2, np.int64), np.zeros((1, 4), np.int64)
    cut_all(held.addresses, held.sizes, held.tilings, boxes, out, offsets, rects)
    assert out[: offsets[1]].tobytes() == jpeg and not out[offsets[1] :].any()
    assert describe([jpeg], [box]).codes.tolist() == [OUTSIDE]


def test_a_tile_is_read_up_to_the_right_edge_of_the_box() -> None:
    jpeg = stored(160, 32, "420", -1)  # a tile a row
    damaged = bytearray(jpeg)
    for end in find_restart_segments(jpeg, parse_header(jpeg))[1].tolist():
        damaged[end - 12 : end] = b"\xff\x00" * 6
    assert decode_box(tiled(bytes(damaged)), np.array([100, 3, 160, 30])) is None
    found = decode_box(tiled(bytes(damaged)), np.array([20, 3, 60, 30]))
    assert found is not None and found[1].tolist() == [16, 0, 45, 31]
    np.testing.assert_array_equal(inside(*found, (20, 3, 60, 30)), decode(jpeg)[3:30, 20:60])


@pytest.mark.parametrize(
    "harm",
    [
        lambda jpeg: jpeg.replace(b"\xff\xdd\x00\x04\x00\x01", b"\xff\xdd\x00\x04\x00\x02"),  # another interval
        lambda jpeg: jpeg.replace(b"\xff\xc0", b"\xff\xc9"),  # arithmetic codes
        lambda jpeg: jpeg.replace(b"\xff\xd0", b"\xff\x01"),  # no restart marker
        lambda jpeg: jpeg[:-2] + b"\x00\x00",
    ],
)
def test_streams_that_are_not_as_their_tiling_says_are_left_to_others(harm: Callable[[bytes], bytes]) -> None:
    jpeg = stored(64, 64, "444", 0)
    sound, other = tiled(jpeg), harm(jpeg)
    changed = TiledJpegs.from_streams([other], sound.tilings, [segment_lengths(jpeg)])
    box = np.array([10, 10, 40, 40])
    whole = decode_box(sound, box)
    found = decode_box(changed, box)
    assert whole is not None and other != jpeg
    if found is not None:  # what was changed is no part of the box's segments
        np.testing.assert_array_equal(inside(*found, tuple(box)), inside(*whole, tuple(box)))


def test_a_shorter_list_of_segments_is_no_grid() -> None:
    jpeg = stored(64, 64, "444", 0)
    sound = tiled(jpeg)
    for lengths in (segment_lengths(jpeg)[:-1], segment_lengths(jpeg) + np.uint16(1)):
        assert decode_box(TiledJpegs.from_streams([jpeg], sound.tilings, [lengths]), np.array([9, 9, 20, 20])) is None


@pytest.mark.parametrize("kind", KINDS)
def test_tiles_of_two_bits_a_block_are_as_small_as_they_can_be(kind: str) -> None:
    columns = parse_header(least(kind, 128, 96)).mcus[0]
    for interval in (columns // 4, columns):
        jpeg = least(kind, 128, 96, interval=interval)
        found = decode_box(tiled(jpeg), np.array([0, 0, 128, 96]))
        assert found is not None and found[1].tolist() == [0, 0, 128, 96]
        np.testing.assert_array_equal(found[0], decode(jpeg))
