"""Image files, torchvision's own JPEG decoder and tensor transforms, torch's DataLoader."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.io import ImageReadMode, decode_jpeg, read_file

from contenders import Job
from contenders.decoding import augmentation

PACKAGES = ("torch", "torchvision")
NOTE = "the image files; torchvision.io.decode_jpeg and transforms.v2 on tensors in DataLoader workers"


def prepare(job: Job) -> None:
    """Nothing: it reads the image files."""


def _decode(path: str) -> torch.Tensor:
    return decode_jpeg(read_file(path), mode=ImageReadMode.RGB)


def batches(job: Job) -> Iterable:
    """A DataLoader whose workers live through all epochs, one torch thread each (its default)."""
    images = ImageFolder(str(job.images), transform=augmentation(job.size), loader=_decode)
    return DataLoader(
        images, job.batch, shuffle=True, num_workers=job.workers, persistent_workers=True, prefetch_factor=2
    )
