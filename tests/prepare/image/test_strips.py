"""Strips of large images, and the memory that converting them takes."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from picstore.prepare.image.strips import iterate_strips, size_of, to_array


def noise(width: int, height: int, mode: str = "RGB") -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(pixels).convert(mode)


@pytest.mark.parametrize("mode", ["L", "RGB"])
@pytest.mark.parametrize("size", [(5, 3), (1200, 1000), (3, 400_000)])
def test_strips_are_the_pixels_of_the_image(mode: str, size: tuple[int, int]) -> None:
    image = noise(*size, mode)
    pixels = np.asarray(image)
    for each in (image, pixels):
        assert size_of(each) == size
        np.testing.assert_array_equal(np.concatenate(list(iterate_strips(each))), pixels)
        np.testing.assert_array_equal(to_array(each), pixels)
