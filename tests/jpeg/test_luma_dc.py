"""DC coefficients of the luma, read without the others: those of the independent reader; damage is refused."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest
from coefficients import FACTORS, least, read
from pictures import saved, smooth

import picstore
from picstore.errors import ImageError
from picstore.jpeg.markers import parse_header
from picstore.jpeg.perceptual_hash import read_luma_dc


def expected(jpeg: bytes) -> np.ndarray:
    """DC of the first component's blocks by their place in the image."""
    header, blocks = parse_header(jpeg), read(jpeg)
    order = np.array(blocks.order)
    (columns, rows), (h, v) = header.mcus, (header.components[0].horizontal, header.components[0].vertical)
    if len(order) == 1:
        h = v = 1
    dc = np.array([block[0] for block in blocks.blocks]).reshape(rows, columns, len(order))[:, :, order == 0]
    grid = dc.reshape(rows, columns, v, h).swapaxes(1, 2).reshape(rows * v, columns * h)
    return grid[: -(-header.height // 8), : -(-header.width // 8)]


@pytest.mark.parametrize("subsampling", ["grey", "4:4:4", "4:2:2", "4:2:0"])
@pytest.mark.parametrize("size", [(64, 48), (131, 77), (3, 5)])
def test_the_values_are_the_dc_coefficients_of_the_blocks_that_hold_pixels(
    subsampling: str, size: tuple[int, int]
) -> None:
    image = smooth(*size)
    grey = subsampling == "grey"
    jpeg = saved(image.convert("L"), "JPEG") if grey else saved(image, "JPEG", subsampling=subsampling)
    for stream in (jpeg, picstore.add_restart_markers(jpeg), picstore.add_restart_markers(jpeg, 1)):
        dc, *shape = read_luma_dc(stream)
        assert tuple(shape) == size
        np.testing.assert_array_equal(dc, expected(stream))


def test_photographs_have_the_coefficients_of_the_independent_reader(photographs: list[Path]) -> None:
    jpeg = picstore.add_restart_markers(photographs[3].read_bytes())
    np.testing.assert_array_equal(read_luma_dc(jpeg)[0], expected(jpeg))


def test_a_damaged_stream_is_an_image_error() -> None:
    jpeg = picstore.add_restart_markers(saved(smooth(131, 77), "JPEG"))
    begin = parse_header(jpeg).length
    for damaged in (
        b"",
        jpeg[:20],
        jpeg[: begin + 10],
        jpeg[:begin] + b"\xfe" * 500,
        jpeg.replace(b"\xff\xd0", b"\0\0"),
    ):
        with pytest.raises(ImageError):
            read_luma_dc(damaged)


def test_a_progressive_jpeg_is_an_image_error() -> None:
    with pytest.raises(ImageError):
        read_luma_dc(saved(smooth(64, 48), "JPEG", progressive=True))


@pytest.mark.parametrize("kind", FACTORS)
def test_two_bits_a_block_are_as_few_as_a_stream_can_have(kind: str) -> None:
    for interval in (0, 1, 3):
        np.testing.assert_array_equal(read_luma_dc(least(kind, 128, 96, interval=interval))[0], np.zeros((12, 16)))
    with pytest.raises(ImageError, match="ends early"):
        read_luma_dc(least(kind, 128, 96)[:-3] + b"\xff\xd9")


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="needs glibc")
def test_no_array_is_read_that_was_freed() -> None:
    jpeg, overwrite = saved(smooth(131, 77), "JPEG"), -6  # M_PERTURB: the byte that freed memory is filled with
    before = read_luma_dc(jpeg)[0]
    ctypes.CDLL(None).mallopt(overwrite, 165)
    try:
        after = read_luma_dc(jpeg)[0]
    finally:
        ctypes.CDLL(None).mallopt(overwrite, 0)
    np.testing.assert_array_equal(after, before)
    np.testing.assert_array_equal(after, expected(jpeg))
