"""JPEG to augmented crop by torchvision: for the peers that leave decoding to the user."""

from __future__ import annotations

import torch
from torchvision.io import ImageReadMode, decode_jpeg
from torchvision.transforms import v2


def augmentation(size: int) -> v2.Transform:
    """The two transforms of the job, for a tensor or a PIL image."""
    return v2.Compose([v2.RandomResizedCrop(size, antialias=True), v2.RandomHorizontalFlip()])


class JpegCrop:
    """Callable: the bytes of a JPEG → uint8 tensor (3, size, size)."""

    def __init__(self, size: int) -> None:
        self._augment = augmentation(size)

    def __call__(self, jpeg: bytes) -> torch.Tensor:
        data = torch.frombuffer(bytearray(jpeg), dtype=torch.uint8)
        return self._augment(decode_jpeg(data, mode=ImageReadMode.RGB))
