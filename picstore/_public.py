"""Table of the public names of picstore by defining module, in the order of docs/reference/python.md.

``picstore`` and ``picstore.transforms`` import a name when it is first used. For type checkers, ``python
scripts/stubs.py`` writes the names to ``__init__.pyi`` and ``transforms.pyi``. All other names are internal.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

# Names that both `picstore.transforms` and `picstore` export, by the module that defines them.
TRANSFORMS = {
    "train.transforms.crops": "CenterCrop Pad RandomCrop RandomHorizontalFlip RandomResizedCrop RandomVerticalFlip",
    "train.transforms.resizing": "RandomResize RandomShortestSize Resize ResizeToCover ResizeToSequence ScaleJitter",
    "train.transforms.detection": "RandomIoUCrop RandomSizeCrop RandomZoomOut",
    "train.transforms.buckets": "Buckets Sequences",
    "train.transforms.progressive": "Progressive",
    "train.transforms.affine": "RandomAffine RandomRotation",
    "train.transforms.distort": "ElasticTransform RandomPerspective",
    "train.transforms.color": (
        "ColorJitter Grayscale Normalize RandomAdjustSharpness RandomAutocontrast RandomChannelPermutation "
        "RandomEqualize RandomGrayscale RandomInvert RandomPhotometricDistort RandomPosterize RandomSolarize"
    ),
    "train.transforms.blur_noise_erasing": "GaussianBlur GaussianNoise RandomErasing",
    "train.transforms.auto_augment": "AugMix AutoAugment RandAugment TrivialAugmentWide",
    "train.transforms.timm_augment": "TimmAutoAugment",
    "train.transforms.choices": "RandomApply RandomChoice RandomOrder",
    "train.transforms.callables": "PerImage",
    "train.transforms.views": "Views",
    "train.transforms.mixup_cutmix": "CutMix MixUp",
}
# Names that `picstore` exports and `picstore.transforms` does not, by the module that defines them.
NAMES = {
    "_version": "__version__",
    "verbs.audit": "audit",
    "verbs.compare": "compare",
    "verbs.convert": "append convert",
    "verbs.delete": "delete",
    "verbs.dupes": "dupes",
    "verbs.export": "export",
    "verbs.index": "index",
    "verbs.info": "info",
    "verbs.map": "map",
    "verbs.measure_quality": "measure_quality",
    "verbs.merge": "merge",
    "verbs.repair": "repair",
    "verbs.shuffle": "shuffle",
    "verbs.verify": "verify",
    "verbs.view": "view",
    "verbs.warm": "warm",
    "storage.dataset": "Dataset",
    "storage.format.maps": "decode_map",
    "storage.format.record": "Record",
    "prepare.dataset_writer": "Writer",
    "train.audited": "Audit",
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
# Modules that need an optional dependency (a pip extra), and so are left out of ``from picstore import *``.
EXTRA_MODULES = ("lightning",)


def modules_by_name(*tables: dict[str, str]) -> dict[str, str]:
    """Map each public name to its module; ``tables`` map a module to a string of its names, separated by spaces."""
    return {name: module for table in tables for module, names in table.items() for name in names.split()}


def load_lazily(package: str, namespace: dict[str, Any], modules: dict[str, str]) -> Callable[[str], Any]:
    """Return a module's ``__getattr__``, which imports a public name on first use and adds it to ``namespace``."""

    def load(name: str) -> Any:
        if name not in modules:
            # With ``name`` and ``obj``, Python's message suggests a similar name of the module.
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}", name=name, obj=sys.modules.get(package)
            )
        value = namespace[name] = getattr(importlib.import_module(f"picstore.{modules[name]}"), name)
        return value

    return load
