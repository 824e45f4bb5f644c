"""Large images with rows of tiles, and records of them."""

from __future__ import annotations

import numpy as np
import simplejpeg

from picstore.jpeg.transcode import add_restart_markers
from picstore.prepare.image.training_jpeg import parse_image_info
from picstore.storage.format.record import Record

WIDTH, HEIGHT = 320, 1024


def noise(seed: int, *, width: int = WIDTH, height: int = HEIGHT, sampling: str = "420") -> bytes:
    """A JPEG of noise with restart markers; 300 KB by default."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    if sampling == "grey":
        return add_restart_markers(simplejpeg.encode_jpeg(pixels[:, :, :1].copy(), colorspace="GRAY"))
    return add_restart_markers(simplejpeg.encode_jpeg(pixels, quality=90, colorsubsampling=sampling))


def record(number: int, **fields: object) -> Record:
    data = noise(number)
    return Record(**{"id": number, "label": 0, "jpeg": data, "info": parse_image_info(data), **fields})  # type: ignore[arg-type]
