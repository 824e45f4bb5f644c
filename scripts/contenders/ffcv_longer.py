"""FFCV's own writer with its own resizing, which limits the longer side; only writes, for ``bench_convert.py``."""

from __future__ import annotations

from ffcv.fields import RGBImageField

from contenders import Job, ffcv, ffcv_q90
from contenders.resized import QUALITY

PACKAGES = ffcv.PACKAGES
NOTE = "Pillow decodes, FFCV resizes (OpenCV's area filter, cheaper than Lanczos) and encodes with OpenCV"
LONGER = 341  # pixels: of most photographs the shorter side becomes 256


def prepare(job: Job) -> None:
    """Resize and encode every image with FFCV."""
    field = RGBImageField(write_mode="jpg", max_resolution=LONGER, jpeg_quality=QUALITY)
    ffcv.write(job, field, ffcv_q90.pixels)
