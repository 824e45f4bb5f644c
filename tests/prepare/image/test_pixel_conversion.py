"""Strips of large images, and the memory that converting them takes."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from picstore.prepare.image.pixel_conversion import iterate_strips, size_of, to_array, to_rgb_or_grey


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


LARGE = (1100, 1000)  # of more than a strip


def ramp(dtype: type, most: float) -> np.ndarray:
    """Grey that grows from the top of an image to its bottom, so that only the last strip has its largest value."""
    return np.linspace(0, most, LARGE[0] * LARGE[1]).reshape(LARGE[::-1]).astype(dtype)


def halves(image: Image.Image) -> np.ndarray:
    """Pixels of two images that are a strip each, joined."""
    width, height = image.size
    parts = [image.crop((0, top, width, top + height // 2)) for top in (0, height // 2)]
    return np.concatenate([np.asarray(to_rgb_or_grey(part, background=(255, 0, 0))) for part in parts])


@pytest.mark.parametrize("mode", ["RGBA", "LA", "La", "RGBa", "PA", "P", "CMYK", "1"])
def test_colors_of_strips_are_those_of_the_image(mode: str) -> None:
    image = noise(*LARGE, "LA" if mode in ("La", "PA") else "RGBA" if mode == "RGBa" else "L" if mode == "P" else mode)
    if "A" in image.getbands():
        image.putalpha(noise(*LARGE, "L"))
    image = image.convert(mode)
    if mode == "P":
        image.info["transparency"] = 7
    made = to_rgb_or_grey(image, background=(255, 0, 0))
    np.testing.assert_array_equal(np.asarray(made), halves(image))


@pytest.mark.parametrize(
    ("dtype", "most", "white"),
    [
        (np.float32, 0.9, 1),
        (np.float32, 200, 255),
        (np.float32, 1e6, 1e6),
        (np.int32, 300, 65_535),
        (np.uint16, 9, 65_535),
    ],
)
def test_the_largest_value_of_all_strips_decides_the_scale_of_deep_grey(dtype, most, white) -> None:
    values = ramp(dtype, most)
    made = np.asarray(to_rgb_or_grey(Image.fromarray(values), background=(255, 255, 255)))
    np.testing.assert_array_equal(made, np.rint(values.astype(np.float64) * (255 / white)).astype(np.uint8))
