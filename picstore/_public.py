"""The public names of picstore, said once: by module, in the order of docs/reference/python.md.

``picstore`` and ``picstore.transforms`` load them on first use. ``python scripts/stubs.py`` writes what type checkers
read, ``__init__.pyi`` and ``transforms.pyi``. A module or name that is not listed here is internal.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

# Names of `picstore.transforms`, and of `picstore` too.
TRANSFORMS = {
    "train.transforms.crops": (
        "CenterCrop Pad RandomCrop RandomHorizontalFlip RandomResizedCrop RandomVerticalFlip Resize"
    ),
    "train.transforms.aspect": "ResizeToCover ResizeToSequence",
    "train.transforms.detection": "RandomResize RandomShortestSize RandomSizeCrop RandomZoomOut ScaleJitter",
    "train.transforms.iou_crop": "RandomIoUCrop",
    "train.transforms.buckets": "Buckets",
    "train.transforms.sequences": "Sequences",
    "train.transforms.progressive": "Progressive",
    "train.transforms.affine": "RandomAffine RandomRotation",
    "train.transforms.distort": "ElasticTransform RandomPerspective",
    "train.transforms.color": (
        "ColorJitter GaussianBlur GaussianNoise Normalize RandomErasing RandomGrayscale RandomInvert "
        "RandomPosterize RandomSolarize"
    ),
    "train.transforms.tone": (
        "Grayscale RandomAdjustSharpness RandomAutocontrast RandomChannelPermutation RandomEqualize "
        "RandomPhotometricDistort"
    ),
    "train.transforms.auto_augment": "AugMix AutoAugment RandAugment TrivialAugmentWide",
    "train.transforms.timm_augment": "TimmAutoAugment",
    "train.transforms.containers": "RandomApply RandomChoice RandomOrder",
    "train.transforms.callables": "PerImage",
    "train.transforms.views": "Views",
    "train.transforms.mix": "CutMix MixUp",
}
# Names of `picstore` alone.
NAMES = {
    "_version": "__version__",
    "verbs.append": "append",
    "verbs.compare": "compare",
    "verbs.convert": "convert",
    "verbs.delete": "delete",
    "verbs.dupes": "dupes",
    "verbs.export": "export",
    "verbs.index": "index",
    "verbs.info": "info",
    "verbs.measure_quality": "measure_quality",
    "verbs.merge": "merge",
    "verbs.repair": "repair",
    "verbs.shuffle": "shuffle",
    "verbs.verify": "verify",
    "verbs.view": "view",
    "verbs.warm": "warm",
    "storage.dataset": "Dataset",
    "storage.format.record": "Record",
    "prepare.dataset_writer": "Writer",
    "train.loader": "Loader",
    "train.batch": "Batch patchify",
    "train.mux": "DataMux",
    "train.map_dataset": "MapDataset",
    "jpeg.transcode": "add_restart_markers",
    "jpeg.cut": "cut",
    "jpeg.pixels": "decode",
    "errors": (
        "Conflict Damage ImageError MissingDependency NotADataset NotTranscodable PicstoreError TooManyFailures "
        "Unfinished UsageError"
    ),
}
MODULES = ("recipes", "results", "transforms")
EXTRA_MODULES = ("lightning",)  # which import an extra's library, and are no names for *


def modules_by_name(*tables: dict[str, str]) -> dict[str, str]:
    """Map each name of some tables to its module."""
    return {name: module for table in tables for module, names in table.items() for name in names.split()}


def load_lazily(package: str, namespace: dict[str, Any], modules: dict[str, str]) -> Callable[[str], Any]:
    """Make the ``__getattr__`` of a public module, which loads a name on first use and keeps it in the namespace."""

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = namespace[name] = getattr(importlib.import_module(f"picstore.{modules[name]}"), name)
        return value

    return load
