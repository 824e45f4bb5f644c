"""FFCV with its own writer: every image decoded and encoded again at its default quality of 90."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from ffcv.fields import RGBImageField
from PIL import Image

from contenders import Job, ffcv

PACKAGES = ffcv.PACKAGES
NOTE = "as ffcv, but written by FFCV's own 'jpg' mode: lossy, encoded again at quality 90 (other bytes, other pixels)"

batches = ffcv.batches


def pixels(path: Path) -> np.ndarray:
    """An image as Pillow decodes it."""
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


def prepare(job: Job) -> None:
    """Encode every image with FFCV's defaults."""
    ffcv.write(job, RGBImageField(write_mode="jpg"), pixels)
