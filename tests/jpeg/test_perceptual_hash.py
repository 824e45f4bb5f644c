"""The perceptual hash: pHash of the pixels, whatever the size, quality and subsampling of the JPEG."""

from __future__ import annotations

import io
from pathlib import Path

import imagehash
import numpy as np
import pytest
from grids import examples
from hypothesis import given
from hypothesis import strategies as st
from pictures import saved
from PIL import Image, ImageFilter
from samples import jpeg

import picstore
from picstore.jpeg.perceptual_hash import _cosine_integrals, perceptual_hash


def distance(one: int, other: int) -> int:
    return (one ^ other).bit_count() if hasattr(int, "bit_count") else bin(one ^ other).count("1")


def reference(stream: bytes) -> int:
    return int(str(imagehash.phash(Image.open(io.BytesIO(stream)))), 16)


@pytest.mark.parametrize("size", [(16, 16), (60, 40), (127, 300), (128, 128), (501, 333)])
@pytest.mark.parametrize("number", range(4))
def test_the_bits_match_imagehash_except_for_coefficients_at_the_median(number: int, size: tuple[int, int]) -> None:
    stream = jpeg(number, width=size[0], height=size[1])
    assert distance(perceptual_hash(stream), reference(stream)) <= 6


def test_photographs_have_the_bits_of_imagehash(photographs: list[Path]) -> None:
    for path in photographs[::40]:
        stream = picstore.add_restart_markers(path.read_bytes())
        assert distance(perceptual_hash(stream), reference(stream)) <= 4


def test_the_hash_does_not_depend_on_restart_markers() -> None:
    stream = jpeg(1, width=200, height=150)
    assert perceptual_hash(stream) == perceptual_hash(picstore.add_restart_markers(stream))


def test_copies_are_near_and_other_pictures_are_not() -> None:
    image = Image.open(io.BytesIO(jpeg(2, width=400, height=300)))
    copies = [
        saved(image, "JPEG", quality=30),
        saved(image.resize((200, 150)), "JPEG"),
        saved(image.resize((80, 60)), "JPEG"),
        saved(image.convert("L"), "JPEG"),
        saved(image.filter(ImageFilter.GaussianBlur(2)), "JPEG"),
    ]
    first = perceptual_hash(jpeg(2, width=400, height=300))
    assert [distance(perceptual_hash(copy), first) <= 6 for copy in copies] == [True] * 5
    assert min(distance(perceptual_hash(jpeg(k, width=400, height=300)), first) for k in range(3, 23)) > 10


def test_images_of_one_color_have_one_hash_as_nothing_tells_them_apart() -> None:
    hashes = {
        perceptual_hash(saved(Image.new("RGB", size, color), "JPEG"))
        for size in ((64, 64), (300, 200))
        for color in ("white", (3, 70, 200))
    }
    assert hashes == {1 << 63}


def test_half_of_the_bits_are_set() -> None:
    assert np.mean([bin(perceptual_hash(jpeg(k, width=200, height=150))).count("1") for k in range(8)]) == 32


@examples(40)
@given(length=st.integers(1, 60), block=st.sampled_from((1, 8)))
def test_frequencies_are_the_integrals_of_cosines_over_the_blocks(length: int, block: int) -> None:
    points = 100 * length
    at = (np.arange(points) + 0.5) / points
    blocks = range(0, points, 100 * block)
    expected = [np.add.reduceat(np.cos(np.pi * k * at) / points, blocks) for k in range(8)]
    np.testing.assert_allclose(_cosine_integrals(length, block, len(blocks)), expected, atol=1e-3 / length)
