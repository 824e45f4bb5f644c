"""What the peers' writers are given where images are made smaller: as picstore makes them, by Pillow."""

from __future__ import annotations

import io
from pathlib import Path

from PIL import Image

SHORTER = 256  # pixels
QUALITY = 90


def picture(path: Path) -> Image.Image:
    """An image in RGB whose shorter side has at most ``SHORTER`` pixels, by Lanczos' filter."""
    with Image.open(path) as image:
        rgb = image.convert("RGB")
    scale = SHORTER / min(rgb.size)
    if scale >= 1:
        return rgb
    return rgb.resize((round(rgb.width * scale), round(rgb.height * scale)), Image.Resampling.LANCZOS)


def jpeg(path: Path) -> bytes:
    """The same as a JPEG, at picstore's default quality and sampling."""
    out = io.BytesIO()
    picture(path).save(out, "JPEG", quality=QUALITY, subsampling=2)
    return out.getvalue()
