"""Batches as the training loop gets them: the edge where arrays become tensors, without a copy."""

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
    from picstore.train.batching.spec import HostBatch


@dataclass(frozen=True, eq=False)
class Batch:
    """What a loader yields; ``images, labels = batch`` works too.

    Attributes:
        images: uint8 (N, 3, H, W), or floats where ``dtype`` or ``Normalize`` asks for them, or a list of N such
            (3, H, W) when no transform fixes the size; what the callables make of it if there are any.
        labels: int64 (N,).
        ids: int64 (N,), of the records.
        targets: where ``targets`` asks for them, a dict for each image, see docs/training.md.
        columns: the values of columns that ``targets`` names: tensors (N, …), or lists of texts. Where a record has
            none, or its data set, there is None among texts, NaN among floats and −1 among integers.
    """

    images: torch.Tensor | list[torch.Tensor]
    labels: torch.Tensor
    ids: torch.Tensor
    targets: list[dict[str, Any]] | None = None
    columns: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, ready: HostBatch, dtype: torch.dtype) -> Batch:
        """The tensors of a finished batch, in its memory; ``dtype`` says what the bits of the images mean."""
        images: Any = ready.images
        tensors: Any = _each(images, dtype) if isinstance(images, list) else _tensor(images, dtype)
        targets = ready.targets
        if targets is not None:
            sizes = [tuple(image.shape[-2:]) for image in images]
            targets = [make_tensors(target, size) for target, size in zip(targets, sizes, strict=True)]
        labels, ids = torch.from_numpy(ready.labels), torch.from_numpy(ready.ids)
        return cls(tensors, labels, ids, targets, tensors_of(ready.columns))

    def __iter__(self) -> Iterator[torch.Tensor | list[torch.Tensor]]:
        return iter((self.images, self.labels))

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: str | torch.device, *, non_blocking: bool = False) -> Batch:
        """The same batch on a device; targets stay where they are."""
        images = self.images
        if isinstance(images, list):
            moved: Any = [image.to(device, non_blocking=non_blocking) for image in images]
        else:
            moved = images.to(device, non_blocking=non_blocking)
        labels, ids = (x.to(device, non_blocking=non_blocking) for x in (self.labels, self.ids))
        columns = {name: _moved(values, device, non_blocking) for name, values in self.columns.items()}
        return Batch(moved, labels, ids, self.targets, columns)

    def pin_memory(self) -> Batch:
        """The same batch in page-locked memory; a DataLoader with ``pin_memory=True`` asks for it."""
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
    """What :func:`picstore.train.cpu.targets.make_target` found, as tensors and ``tv_tensors``.

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


def name_of(dtype: torch.dtype | None) -> str | None:
    """What torch calls a dtype, without its own name."""
    return None if dtype is None else str(dtype).removeprefix("torch.")


def is_channels_last(memory_format: torch.memory_format) -> bool:
    """Whether images lie as channels_last.

    Raises:
        UsageError: it is neither that nor contiguous_format.
    """
    if memory_format not in (torch.contiguous_format, torch.channels_last):
        raise UsageError(f"memory_format {memory_format} is neither contiguous_format nor channels_last")
    return memory_format is torch.channels_last


def _each(images: list[Array], dtype: torch.dtype) -> list[torch.Tensor]:
    """Images of several sizes, none in the memory of another: what replaces a lost one is copied."""
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
