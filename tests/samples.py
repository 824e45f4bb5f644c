"""Small pictures, a different one for each number."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image


def picture(number: int, *, width: int = 60, height: int = 40) -> np.ndarray:
    """Smooth color picture, uint8 (height, width, 3), a different one for each number."""
    rng = np.random.default_rng(number)
    small = rng.integers(0, 256, (4, 5, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC))


def jpeg(number: int, **size: int) -> bytes:
    """``picture`` as a JPEG without restart markers."""
    out = io.BytesIO()
    Image.fromarray(picture(number, **size)).save(out, "JPEG", quality=90)
    return out.getvalue()
