"""torchvision's ImageFolder as it comes: Pillow decodes and resizes, torch's DataLoader."""

from __future__ import annotations

from collections.abc import Iterable

from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from contenders import Job
from contenders.decoding import augmentation

PACKAGES = ("torch", "torchvision", "pillow")
NOTE = "the image files; Pillow decodes and resizes in DataLoader workers"


def prepare(job: Job) -> None:
    """Nothing: it reads the image files."""


def batches(job: Job) -> Iterable:
    """A DataLoader whose workers live through all epochs."""
    transform = v2.Compose([augmentation(job.size), v2.PILToTensor()])
    images = ImageFolder(str(job.images), transform=transform)
    return DataLoader(
        images, job.batch, shuffle=True, num_workers=job.workers, persistent_workers=True, prefetch_factor=2
    )
