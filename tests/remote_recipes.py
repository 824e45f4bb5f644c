"""Loaders of all kinds on one small data set, for comparing remote workers with local ones."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from collate_functions import describe
from PIL import Image
from samples import picture

import picstore
from picstore.prepare.convert.row_division import DatasetShape

COUNT = 96
CROP = [picstore.RandomResizedCrop(32), picstore.RandomHorizontalFlip()]


def write_pictures(made: Path) -> Path:
    """Write pictures with boxes, masks and captions as a data set, and return its path."""
    shape = DatasetShape(streams=2, container_size=32 << 10, file_size=128 << 10)
    with picstore.Writer(made, classes=["a", "b", "c"], shape=shape, attachments=["mask"]) as writer:
        for number in range(COUNT):
            image = picture(number, width=70 + number % 40, height=100 - number % 50)
            mask = BytesIO()
            Image.fromarray(np.full(image.shape[:2], number % 5, np.uint8)).save(mask, "PNG")
            extra = {"boxes": [[5, 5, 30, 30]], "box_labels": [number]}
            writer.add(image, label=number % 3, extra=extra, attachments={"mask": mask.getvalue()})
    dataset = picstore.Dataset(made)
    dataset.with_columns({"caption": [f"picture {number}" for number in range(COUNT)]}, ids=range(COUNT)).save()
    return made


def flat(value: Any) -> Any:
    """Everything in a batch, as bytes and lists that can be compared."""
    if isinstance(value, torch.Tensor):
        given = value.contiguous().view(torch.uint8) if value.dtype == torch.bfloat16 else value
        return str(value.dtype), tuple(value.shape), given.numpy().tobytes()
    if isinstance(value, dict):
        return {name: flat(each) for name, each in value.items() if name != "process"}  # of ``describe``
    if isinstance(value, (list, tuple)):
        return [flat(each) for each in value]
    return value.tobytes() if isinstance(value, np.ndarray) else value


def contents(loader: Any, epochs: int = 2) -> list[Any]:
    with_columns = [(flat(batch.asdict()), flat(batch.columns)) for _ in range(epochs) for batch in loader]
    loader.close()
    return with_columns


RECIPES: dict[str, dict[str, Any]] = {
    "crops": {"transform": CROP},
    "any size": {"transform": [], "drop_last": False},
    "timm": {"transform": picstore.recipes.timm_default(32, auto_augment="rand-m9-mstd0.5-inc1")},
    "torchvision": {"transform": picstore.recipes.torchvision_resnet50_v2(32), "dtype": torch.bfloat16},
    "simclr": {"transform": picstore.recipes.simclr(32)},
    "dinov2": {"transform": picstore.recipes.dinov2(32, 16, local_views=2)},
    "detr": {"transform": picstore.recipes.detr(sizes=[32, 40], max_size=64), "targets": ["boxes"]},
    "masks": {"transform": CROP, "targets": ["mask"], "memory_format": torch.channels_last},
    "collate": {"transform": CROP, "targets": ["caption"], "collate": describe},
    "buckets": {"transform": picstore.Buckets([(32, 32), (24, 40), (40, 24)], lambda size: [picstore.Resize(size)])},
    "weights": {"transform": CROP, "balance": "label", "aug_repeats": 2},
    "stored order": {"transform": CROP, "shuffle": False, "drop_last": False},
}
