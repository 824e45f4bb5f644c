"""FFCV's own writer of images that Pillow makes smaller; only writes, for ``bench_convert.py``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from ffcv.fields import RGBImageField

from contenders import Job, ffcv
from contenders.resized import QUALITY, picture

PACKAGES = ffcv.PACKAGES
NOTE = "Pillow decodes and resizes (Lanczos), FFCV's 'jpg' mode encodes with OpenCV"


def _pixels(path: Path) -> np.ndarray:
    return np.asarray(picture(path))


def prepare(job: Job) -> None:
    """Encode every image with FFCV."""
    ffcv.write(job, RGBImageField(write_mode="jpg", jpeg_quality=QUALITY), _pixels)
