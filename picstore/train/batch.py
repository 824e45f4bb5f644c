"""Batch, what a loader yields: the arrays of a HostBatch as tensors, without a copy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from picstore.arrays import Array
from picstore.errors import UsageError
from picstore.storage.edits.columns import Values

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
    def from_host(cls, host: HostBatch, dtype: torch.dtype) -> Batch:
        """Make tensors in the memory of a host batch.

        Args:
            dtype: of the images' bits.
        """
        images: Any = host.images
        tensors: Any = _list_tensors(images, dtype) if isinstance(images, list) else _tensor(images, dtype)
        targets = host.targets
        if targets is not None:
            sizes = [tuple(image.shape[-2:]) for image in images]
            targets = [make_tensors(target, size) for target, size in zip(targets, sizes, strict=True)]
        labels, ids = torch.from_numpy(host.labels), torch.from_numpy(host.ids)
        return cls(tensors, labels, ids, targets, tensors_of(host.columns))

    def __iter__(self) -> Iterator[torch.Tensor | list[torch.Tensor]]:
        return iter((self.images, self.labels))

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: str | torch.device, *, non_blocking: bool = False) -> Batch:
        """The same batch on a device; targets stay on the CPU."""
        images = self.images
        if isinstance(images, list):
            moved: Any = [image.to(device, non_blocking=non_blocking) for image in images]
        else:
            moved = images.to(device, non_blocking=non_blocking)
        labels, ids = (x.to(device, non_blocking=non_blocking) for x in (self.labels, self.ids))
        columns = {name: _moved(values, device, non_blocking) for name, values in self.columns.items()}
        return Batch(moved, labels, ids, self.targets, columns)

    def pin_memory(self) -> Batch:
        """The same batch in page-locked memory; a DataLoader with ``pin_memory=True`` calls it."""
        images = self.images
        pinned: Any = [image.pin_memory() for image in images] if isinstance(images, list) else images.pin_memory()
        columns = {
            name: values.pin_memory() if isinstance(values, torch.Tensor) else values
            for name, values in self.columns.items()
        }
        return Batch(pinned, self.labels.pin_memory(), self.ids.pin_memory(), self.targets, columns)


def tensors_of(columns: dict[str, Values]) -> dict[str, Any]:
    """Columns of numbers as tensors; lists stay."""
    return {
        name: torch.from_numpy(values) if isinstance(values, np.ndarray) else values for name, values in columns.items()
    }


def _moved(values: Any, device: str | torch.device, non_blocking: bool) -> Any:
    return values.to(device, non_blocking=non_blocking) if isinstance(values, torch.Tensor) else values


def make_tensors(target: dict[str, Any], size: tuple[int, int]) -> dict[str, Any]:
    """Make tensors and ``tv_tensors`` of the arrays of :func:`picstore.train.cpu.targets.make_target`.

    Args:
        size: height and width of the image.
    """
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
        else:
            made[name] = tv_tensors.Mask(torch.from_numpy(value))
    return made


def dtype_name(dtype: torch.dtype | None) -> str | None:
    """The name of a dtype without ``torch.``."""
    return None if dtype is None else str(dtype).removeprefix("torch.")


def is_channels_last(memory_format: torch.memory_format) -> bool:
    """Whether a memory format is channels_last.

    Raises:
        UsageError: it is neither that nor contiguous_format.
    """
    if memory_format not in (torch.contiguous_format, torch.channels_last):
        raise UsageError(f"memory_format {memory_format} is neither contiguous_format nor channels_last")
    return memory_format is torch.channels_last


def _list_tensors(images: list[Array], dtype: torch.dtype) -> list[torch.Tensor]:
    """Tensors of images of several sizes; the replacement of a damaged one is copied, so that none share memory."""
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
