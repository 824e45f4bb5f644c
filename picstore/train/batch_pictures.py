"""Pictures of batches, for figures and notebooks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from picstore.arrays import U8
from picstore.display.figures import Tile
from picstore.errors import UsageError
from picstore.storage.record_pictures import class_name

_STRETCHED = (1, 99)  # Percentiles of a channel's float values that :func:`levels_of` maps to black and to white.
_TOP = 2  # Number of classes that a caption names if a label mixes classes, as after ``MixUp``.


def make_tiles(
    images: Any,
    targets: Any,
    *,
    labels: torch.Tensor,
    ids: torch.Tensor,
    classes: Sequence[str],
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
) -> list[Tile]:
    """Return a ``Tile`` for each image, with label, id and target; for ``mean`` and ``std`` see :func:`levels_of`."""
    to_levels, captions = levels_of(images, mean, std), make_captions(labels, ids, classes, count=len(images))
    return [
        Tile(to_levels(image), caption, **({} if targets is None else _marks_of(targets[k], classes)))
        for k, (image, caption) in enumerate(zip(images, captions, strict=False))
    ]


def make_captions(labels: torch.Tensor, ids: torch.Tensor, classes: Sequence[str], *, count: int) -> list[str]:
    """Return a caption with label and id for each of the first ``count`` records."""
    pairs = zip(labels[:count].cpu(), ids[:count].tolist(), strict=True)
    return [f"{_shown_label(label, classes)} · {id_}" for label, id_ in pairs]


def are_images(images: Any) -> bool:
    """Return whether the result of a loader's callables still consists of images with three channels."""
    return isinstance(images, (torch.Tensor, list)) and (not len(images) or images[0].ndim == 3 == len(images[0]))


def levels_of(
    images: Any, mean: Sequence[float] | None = None, std: Sequence[float] | None = None
) -> Callable[[Any], U8]:
    """Return a function that converts one of ``images`` to uint8 (H, W, 3).

    The function multiplies floats by ``std`` and adds ``mean``. Without ``mean`` and ``std``, floats that exceed 0 … 1
    are stretched: one percent of each channel's values become black, and one percent white.
    """
    if (mean is None) != (std is None):
        raise UsageError("give both mean and std, as given to Normalize, or none")
    first = images[0]
    if first.dtype == torch.uint8:
        return lambda image: _interleaved(image.cpu().numpy())
    scale, offset = torch.ones(3), torch.zeros(3)
    if mean is not None and std is not None:
        scale, offset = torch.tensor(std), torch.tensor(mean)
    else:
        flat = torch.cat([image.detach()[:, ::4, ::4].float().cpu().flatten(1) for image in images], dim=1)
        low, high = (torch.from_numpy(np.percentile(flat.numpy(), at, axis=1)).float() for at in _STRETCHED)
        if float(low.min()) < -1e-3 or float(high.max()) > 1 + 1e-3:
            scale = 1 / (high - low).clamp(min=1e-6)
            offset = -low * scale

    def to_levels(image: torch.Tensor) -> U8:
        values = image.detach().float().cpu() * scale[:, None, None] + offset[:, None, None]
        return _interleaved((values.clamp(0, 1) * 255).round().to(torch.uint8).numpy())

    return to_levels


def _interleaved(planes: U8) -> U8:
    return np.ascontiguousarray(planes.transpose(1, 2, 0))


def _shown_label(label: torch.Tensor, classes: Sequence[str]) -> str:
    if label.ndim == 0:
        return class_name(classes, int(label))
    weights, labels = label.float().topk(min(_TOP, len(label)))
    pairs = zip(labels.tolist(), weights.tolist(), strict=True)
    return ", ".join(f"{class_name(classes, k)} {weight:.2f}" for k, weight in pairs if weight > 0)


def _marks_of(target: Any, classes: Sequence[str]) -> dict[str, Any]:
    marks: dict[str, Any] = {}
    if target.get("boxes") is not None:
        marks["boxes"] = np.asarray(target["boxes"], np.float64)
        if target.get("labels") is not None:
            marks["names"] = [class_name(classes, label) for label in target["labels"].tolist()]
    if target.get("keypoints") is not None:
        points, seen = np.asarray(target["keypoints"], np.float64), target.get("visibility")
        shown = np.ones(points.shape[:-1], np.bool_) if seen is None else np.asarray(seen) > 0
        marks["points"] = points[shown] + 0.5
    if target.get("polygons") is not None:
        marks["outlines"] = [outline.numpy() for outlines in target["polygons"] for outline in outlines]
    tensors = [each for name, each in target.items() if name not in marks and isinstance(each, torch.Tensor)]
    masks = [each for each in tensors if type(each).__name__ == "Mask" and each.ndim == 2]
    if masks:
        marks["mask"] = masks[0].numpy()
    return marks
