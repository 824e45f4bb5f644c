"""Batch, what a loader yields: the arrays of a HostBatch as tensors, without a copy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from picstore.arrays import Array

if TYPE_CHECKING:
    from picstore.train.batching.host_batch import HostBatch


@dataclass(frozen=True, eq=False)
class Batch:
    """What a loader yields; ``images, labels = batch`` works too.

    Attributes:
        images: uint8 (N, 3, H, W), or floats with ``dtype`` or ``Normalize``; a list of N of (3, H, W) when no
            transform fixes the size; or the result of the callables.
        labels: int64 (N,).
        ids: int64 (N,), of the records.
        targets: with the loader's ``targets``, a dict an image, see docs/training.md, "Targets".
        columns: values of the columns that ``targets`` names: tensors (N, …), or lists of texts. A missing value is
            None among texts, NaN among floats and −1 among integers.
    """

    images: torch.Tensor | list[torch.Tensor]
    labels: torch.Tensor
    ids: torch.Tensor
    targets: list[dict[str, Any]] | None = None
    columns: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_host(cls, host: HostBatch, images: torch.Tensor | list[torch.Tensor]) -> Batch:
        """Put images together with the rest of a host batch, of which tensors are made in its memory."""
        targets = host.targets
        if targets is not None:
            sizes = [tuple(image.shape[-2:]) for image in images]
            targets = [make_tensors(target, size) for target, size in zip(targets, sizes, strict=True)]
        columns = {
            name: torch.from_numpy(values) if isinstance(values, np.ndarray) else values
            for name, values in host.columns.items()
        }
        return cls(images, torch.from_numpy(host.labels), torch.from_numpy(host.ids), targets, columns)

    def __iter__(self) -> Iterator[torch.Tensor | list[torch.Tensor]]:
        return iter((self.images, self.labels))

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: str | torch.device, *, non_blocking: bool = False) -> Batch:
        """The same batch on a device; targets stay on the CPU."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Batch:
        """The same batch in page-locked memory; a DataLoader with ``pin_memory=True`` calls it."""
        return self._map(lambda tensor: tensor.pin_memory())

    def _map(self, function: Callable[[torch.Tensor], torch.Tensor]) -> Batch:
        """The batch with a function applied to all tensors but those of the targets."""
        images = self.images
        columns = {
            name: function(values) if isinstance(values, torch.Tensor) else values
            for name, values in self.columns.items()
        }
        return Batch(
            [function(image) for image in images] if isinstance(images, list) else function(images),
            function(self.labels),
            function(self.ids),
            self.targets,
            columns,
        )


def make_tensors(target: dict[str, Any], size: tuple[int, int]) -> dict[str, Any]:
    """Make tensors and ``tv_tensors`` of a target's arrays, given height and width of its image."""
    from torchvision import tv_tensors  # half a second that a loader without targets does not spend

    made: dict[str, Any] = {}
    for name, value in target.items():
        if name == "boxes":
            made[name] = tv_tensors.BoundingBoxes(torch.from_numpy(value), format="XYXY", canvas_size=size)
        elif name == "keypoints":
            made[name] = tv_tensors.KeyPoints(torch.from_numpy(value), canvas_size=size)
        elif name in ("labels", "visibility", "index"):
            made[name] = torch.from_numpy(value)
        elif name == "polygons":
            made[name] = [[torch.from_numpy(outline) for outline in outlines] for outlines in value]
        elif name == "extra" or value is None:
            made[name] = value
        elif value.ndim == 3:
            made[name] = tv_tensors.Image(torch.from_numpy(value))
        else:
            made[name] = tv_tensors.Mask(torch.from_numpy(value))
    return made


def image_tensors(images: Array | list[Array], dtype: torch.dtype) -> torch.Tensor | list[torch.Tensor]:
    """Tensors in the memory of images; in a list, the replacement of a damaged one is copied, so that none share it."""
    if not isinstance(images, list):
        return _tensor(images, dtype)
    tensors: dict[int, torch.Tensor] = {}
    listed = []
    for image in images:
        tensor = _tensor(image, dtype)
        known = tensors.setdefault(tensor.data_ptr(), tensor)
        listed.append(tensor if known is tensor else tensor.clone())
    return listed


def _tensor(array: Array, dtype: torch.dtype) -> torch.Tensor:
    if array.dtype == np.uint16:  # 16 bits that numpy has no name for
        return torch.from_numpy(array.view(np.int16)).view(dtype)
    return torch.from_numpy(array)
