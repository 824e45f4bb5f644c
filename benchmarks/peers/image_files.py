"""Image files: torchvision's decoder or Pillow, and torch's DataLoader; torchvision's crop for other peers."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.io import ImageReadMode, decode_jpeg, read_file
from torchvision.transforms import v2

from benchmarks.peers import JITTER, MEAN, STD, Contender, Job, nothing

PACKAGES = ("torch", "torchvision", "pillow")
SHORTER, QUALITY = 256, 90  # of the images that writers are given where they are made smaller


def augmentation(size: int) -> v2.Transform:
    """The two transforms of the job, for a tensor or a PIL image."""
    return v2.Compose([v2.RandomResizedCrop(size, antialias=True), v2.RandomHorizontalFlip()])


class JpegCrop:
    """Decode and augment with torchvision: the bytes of a JPEG → uint8 tensor (3, size, size)."""

    def __init__(self, size: int) -> None:
        self._augment = augmentation(size)

    def __call__(self, jpeg: bytes) -> torch.Tensor:
        data = torch.frombuffer(bytearray(jpeg), dtype=torch.uint8)
        return self._augment(decode_jpeg(data, mode=ImageReadMode.RGB))


def read_rgb(path: Path) -> Image.Image:
    """An image as Pillow decodes it."""
    with Image.open(path) as image:
        return image.convert("RGB")


def shrink(path: Path) -> Image.Image:
    """An image whose shorter side has at most ``SHORTER`` pixels, by Lanczos' filter as picstore makes it."""
    image = read_rgb(path)
    scale = SHORTER / min(image.size)
    size = round(image.width * scale), round(image.height * scale)
    return image if scale >= 1 else image.resize(size, Image.Resampling.LANCZOS)


def shrink_jpeg(path: Path) -> bytes:
    """The same as a JPEG, at picstore's default quality and subsampling."""
    out = io.BytesIO()
    shrink(path).save(out, "JPEG", quality=QUALITY, subsampling=2)
    return out.getvalue()


def _decode(path: str) -> torch.Tensor:
    return decode_jpeg(read_file(path), mode=ImageReadMode.RGB)


def _batches(job: Job, transform: v2.Transform, **options: Callable[[str], Any]) -> Iterable[Any]:
    images = ImageFolder(str(job.images), transform=transform, **options)
    return DataLoader(
        images, job.batch, shuffle=True, num_workers=job.workers, persistent_workers=True, prefetch_factor=2
    )


def color_augmentation(size: int) -> v2.Transform:
    """The transforms of the job with colors, for a tensor."""
    color = [v2.ColorJitter(*JITTER), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    return v2.Compose([*augmentation(size).transforms, *color, v2.ToDtype(torch.float16)])


CONTENDERS = {
    "torchvision-color": Contender(
        "as torchvision, with color jitter, normalized, float16",
        nothing,
        lambda job: _batches(job, color_augmentation(job.size), loader=_decode),
    ),
    "torchvision": Contender(
        "the image files; torchvision.io.decode_jpeg and transforms.v2 on tensors in DataLoader workers",
        nothing,
        lambda job: _batches(job, augmentation(job.size), loader=_decode),
    ),
    "imagefolder": Contender(
        "the image files; Pillow decodes and resizes in DataLoader workers",
        nothing,
        lambda job: _batches(job, v2.Compose([augmentation(job.size), v2.PILToTensor()])),
    ),
}
