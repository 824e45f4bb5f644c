"""picstore with every image encoded again at quality 90: the like of ``ffcv-q90``."""

from __future__ import annotations

from contenders import Job, picstore

PACKAGES = picstore.PACKAGES
NOTE = "as picstore, but converted with --reencode --quality 90 (other bytes, other pixels)"

batches = picstore.batches


def prepare(job: Job) -> None:
    """Encode every image as FFCV's writer does."""
    picstore.convert(job, "--reencode", "--quality", "90")
