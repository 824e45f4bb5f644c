"""Decoded images on a device: addresses for the kernels, in arrays for a batch instead of a tensor for each image."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from picstore.arrays import I64
from picstore.errors import UsageError
from picstore.train.cuda.triton_jit import INTERPRETED

MAX_VALUES = 1 << 31  # limit for the number of values of an image, whose offsets kernels compute in 32 bits


@dataclass(frozen=True, slots=True, eq=False)
class DecodedImages:
    """Decoded images, uint8 (3, h, w) or (1, h, w) for grey, each in one of a few blocks of memory."""

    # (n, 3): an image's address; number of bytes from its red to its green plane, 0 for grey; number from row to row.
    planes: I64
    sizes: I64  # (n, 2), width and height
    memory: tuple[torch.Tensor, ...]  # blocks of memory that hold the images' planes
    block: I64  # (n,), index in ``memory`` of each image's block

    @classmethod
    def from_tensors(cls, images: Sequence[torch.Tensor]) -> DecodedImages:
        """Describe images that are given as tensors, each in a memory block of its own.

        Raises:
            UsageError: kernels do not run on the device, devices differ, or a shape, dtype or stride is wrong.
        """
        device = images[0].device
        if device.type != ("cpu" if INTERPRETED else "cuda"):
            expected = "the CPU, as TRITON_INTERPRET is set" if INTERPRETED else "a GPU"
            raise UsageError(f"images are on {device}; give images on {expected}")
        rows = []
        for image in images:
            planes, height, width = image.shape if image.dim() == 3 else (0, 0, 0)
            known = planes in (1, 3) and image.dtype is torch.uint8 and image.device == device
            plane, pitch, step = image.stride() if known else (0, 0, 0)
            known &= (step == 1 or width == 1) and (pitch >= width or height == 1) and (plane >= 0 or planes == 1)
            if not known or not 0 < height * max(width, pitch) < MAX_VALUES:
                raise UsageError(
                    f"an image is {image.dtype} {tuple(image.shape)} on {image.device}; give uint8 of shape (3, height,"
                    f" width) or (1, height, width), not empty, with contiguous rows, all on {device}"
                )
            rows.append((image.data_ptr(), plane if planes == 3 else 0, pitch, width, height))
        table = np.array(rows, dtype=np.int64)
        return cls(table[:, :3].copy(), table[:, 3:].copy(), tuple(images), np.arange(len(images)))

    @classmethod
    def join(cls, parts: Sequence[DecodedImages]) -> DecodedImages:
        """Return one ``DecodedImages`` with the images of all ``parts`` in order."""
        if len(parts) == 1:
            return parts[0]
        before = np.cumsum([0, *(len(part.memory) for part in parts)])
        return cls(
            np.concatenate([part.planes for part in parts]),
            np.concatenate([part.sizes for part in parts]),
            tuple(block for part in parts for block in part.memory),
            np.concatenate([part.block + first for part, first in zip(parts, before[:-1], strict=True)]),
        )

    @property
    def device(self) -> torch.device:
        """Device of all images."""
        return self.memory[0].device

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, number: int) -> torch.Tensor:
        """Return the tensor of image ``number``, which shares the memory of its block."""
        if not 0 <= number < len(self):
            raise IndexError(number)
        (address, plane, pitch), (width, height) = self.planes[number].tolist(), self.sizes[number].tolist()
        block = self.memory[int(self.block[number])]
        if block.dim() == 3:  # a block from ``from_tensors``, which is the image itself
            return block
        return block.as_strided((3, height, width), (plane, pitch, 1), address - block.data_ptr())

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (self[number] for number in range(len(self)))

    def select(self, numbers: I64) -> DecodedImages:
        """Return the images with the indices ``numbers``, in this order; an index may occur again."""
        return DecodedImages(self.planes[numbers], self.sizes[numbers], self.memory, self.block[numbers])

    def replaced(self, numbers: Sequence[int], images: Sequence[torch.Tensor]) -> DecodedImages:
        """Return a copy in which ``images`` replace the images with the indices ``numbers``."""
        if not numbers:
            return self
        others = DecodedImages.from_tensors(images)
        order = np.arange(len(self))
        order[list(numbers)] = len(self) + np.arange(len(others))
        return DecodedImages.join([self, others]).select(order)
