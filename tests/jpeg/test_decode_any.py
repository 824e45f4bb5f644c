"""Decoding of any JPEG: one result for baseline and other kinds, at each scale, and refusals of other sizes."""

from __future__ import annotations

import io

import numpy as np
import pytest
from coefficients import as_on_x86_64
from PIL import Image
from samples import picture

from picstore.errors import ImageError
from picstore.jpeg.decode_any import decode_rgb

WIDTH, HEIGHT = 45, 30


def stream(mode: str = "RGB", **options: bool) -> bytes:
    out = io.BytesIO()
    Image.fromarray(picture(3, width=WIDTH, height=HEIGHT)).convert(mode).save(out, "JPEG", quality=95, **options)
    return out.getvalue()


KINDS = {"baseline": stream(), "grey": stream("L"), "progressive": stream(progressive=True), "CMYK": stream("CMYK")}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_decoded_whole_unless_a_factor_is_given(kind: str) -> None:
    pixels = decode_rgb(KINDS[kind], width=WIDTH, height=HEIGHT)
    expected = np.asarray(Image.open(io.BytesIO(KINDS[kind])).convert("RGB"))
    assert pixels.shape == (HEIGHT, WIDTH, 3) and np.array_equal(pixels, expected)


@as_on_x86_64
@pytest.mark.parametrize("factor", [2, 4, 8])
@pytest.mark.parametrize("kind", KINDS)
def test_a_factor_divides_the_sides_and_rounds_up(kind: str, factor: int) -> None:
    pixels = decode_rgb(KINDS[kind], width=WIDTH, height=HEIGHT, factor=factor)
    assert pixels.shape == (-(-HEIGHT // factor), -(-WIDTH // factor), 3)
    whole = decode_rgb(KINDS[kind], width=WIDTH, height=HEIGHT).astype(float)
    means = whole[: HEIGHT // factor * factor, : WIDTH // factor * factor]
    means = means.reshape(HEIGHT // factor, factor, WIDTH // factor, factor, 3).mean(axis=(1, 3))
    assert np.abs(pixels[: len(means), : means.shape[1]] - means).mean() < 6


@pytest.mark.parametrize("kind", KINDS)
def test_another_size_than_the_index_says_and_cut_streams_are_refused(kind: str) -> None:
    for width, height in ((WIDTH + 1, HEIGHT), (WIDTH, HEIGHT - 1), (HEIGHT, WIDTH)):
        with pytest.raises(ImageError):
            decode_rgb(KINDS[kind], width=width, height=height)
    for cut in (0, 2, 100, len(KINDS[kind]) // 2):
        with pytest.raises(ImageError):
            decode_rgb(KINDS[kind][:cut], width=WIDTH, height=HEIGHT)


def test_pixels_lie_in_the_buffer_that_is_given() -> None:
    buffer = np.zeros(3 * WIDTH * HEIGHT + 64, np.uint8)
    pixels = decode_rgb(KINDS["baseline"], width=WIDTH, height=HEIGHT, buffer=buffer)
    assert np.shares_memory(pixels, buffer)
    assert np.array_equal(pixels, decode_rgb(KINDS["baseline"], width=WIDTH, height=HEIGHT))
