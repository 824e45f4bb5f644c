"""picstore: image data sets for training: convert, shuffle, verify, and stream augmented batches.

The public names are loaded on first use, so that ``import picstore`` is instant and needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from picstore.errors import (
        Damage,
        ImageError,
        MissingDependency,
        NotADataset,
        NotTranscodable,
        PicstoreError,
        UsageError,
    )
    from picstore.jpeg.cut import cut
    from picstore.jpeg.transcode import add_restart_markers
    from picstore.prepare.writer import Writer
    from picstore.storage.dataset import Dataset
    from picstore.storage.record import Record
    from picstore.train.batch import Batch
    from picstore.train.crops import (
        CenterCrop,
        Pad,
        RandomCrop,
        RandomHorizontalFlip,
        RandomResizedCrop,
        RandomVerticalFlip,
        Resize,
    )
    from picstore.train.loader import Loader
    from picstore.train.mux import DataMux
    from picstore.train.photometric import (
        ColorJitter,
        GaussianBlur,
        GaussianNoise,
        Normalize,
        RandomErasing,
        RandomGrayscale,
        RandomInvert,
        RandomPosterize,
        RandomSolarize,
    )
    from picstore.train.rotations import RandomAffine, RandomRotation

_HOMES = {
    "Damage": "errors",
    "ImageError": "errors",
    "MissingDependency": "errors",
    "NotADataset": "errors",
    "NotTranscodable": "errors",
    "PicstoreError": "errors",
    "UsageError": "errors",
    "add_restart_markers": "jpeg.transcode",
    "cut": "jpeg.cut",
    "Dataset": "storage.dataset",
    "Record": "storage.record",
    "Writer": "prepare.writer",
    "CenterCrop": "train.crops",
    "Pad": "train.crops",
    "RandomCrop": "train.crops",
    "RandomHorizontalFlip": "train.crops",
    "RandomResizedCrop": "train.crops",
    "RandomVerticalFlip": "train.crops",
    "Resize": "train.crops",
    "ColorJitter": "train.photometric",
    "GaussianBlur": "train.photometric",
    "GaussianNoise": "train.photometric",
    "Normalize": "train.photometric",
    "RandomErasing": "train.photometric",
    "RandomGrayscale": "train.photometric",
    "RandomInvert": "train.photometric",
    "RandomPosterize": "train.photometric",
    "RandomSolarize": "train.photometric",
    "RandomAffine": "train.rotations",
    "RandomRotation": "train.rotations",
    "Batch": "train.batch",
    "Loader": "train.loader",
    "DataMux": "train.mux",
}

__all__ = [
    "Batch",
    "CenterCrop",
    "ColorJitter",
    "Damage",
    "DataMux",
    "Dataset",
    "GaussianBlur",
    "GaussianNoise",
    "ImageError",
    "Loader",
    "MissingDependency",
    "Normalize",
    "NotADataset",
    "NotTranscodable",
    "Pad",
    "PicstoreError",
    "RandomAffine",
    "RandomCrop",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomInvert",
    "RandomPosterize",
    "RandomResizedCrop",
    "RandomRotation",
    "RandomSolarize",
    "RandomVerticalFlip",
    "Record",
    "Resize",
    "UsageError",
    "Writer",
    "__version__",
    "add_restart_markers",
    "cut",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
