"""Estimating a JPEG's quality from its quantization table."""

from __future__ import annotations

import io

import pytest
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile

from picstore.errors import ImageError
from picstore.jpeg.quality_tables import estimate_quality


def encoded(quality: int, **options: object) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (16, 16), (90, 20, 200)).save(out, "JPEG", quality=quality, **options)
    return out.getvalue()


def test_a_file_of_libjpeg_has_the_quality_that_it_was_given() -> None:
    for quality in range(1, 101):
        assert estimate_quality(encoded(quality)) == quality
    assert estimate_quality(encoded(60, progressive=True)) == 60


def test_a_table_of_another_encoder_has_the_nearest_quality() -> None:
    image = Image.open(io.BytesIO(encoded(70)))
    assert isinstance(image, JpegImageFile)
    table = [round(1.02 * k) for k in image.quantization[0]]
    out = io.BytesIO()
    Image.new("L", (16, 16)).save(out, "JPEG", qtables=[table])
    assert 68 <= estimate_quality(out.getvalue()) <= 71


def test_headers_without_a_table_or_cut_off_are_an_error() -> None:
    jpeg = encoded(50)
    with pytest.raises(ImageError):
        estimate_quality(jpeg[:100])
    start = jpeg.index(b"\xff\xdb")
    length = int.from_bytes(jpeg[start + 2 : start + 4], "big")
    with pytest.raises(ImageError, match="quantization table"):
        estimate_quality(jpeg[:start] + jpeg[start + 2 + length :])
