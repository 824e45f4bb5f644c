"""picstore: image data sets for training: convert, shuffle, verify, and stream augmented batches.

The public names are loaded on first use, so that ``import picstore`` is instant and needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from picstore._version import __version__

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
    from picstore.storage.format.record import Record
    from picstore.train.batch import Batch
    from picstore.train.loader import Loader
    from picstore.train.mux import DataMux
    from picstore.train.transforms.affine import RandomAffine, RandomRotation
    from picstore.train.transforms.color import (
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
    from picstore.train.transforms.crops import (
        CenterCrop,
        Pad,
        RandomCrop,
        RandomHorizontalFlip,
        RandomResizedCrop,
        RandomVerticalFlip,
        Resize,
    )

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
    "Record": "storage.format.record",
    "Writer": "prepare.writer",
    "CenterCrop": "train.transforms.crops",
    "Pad": "train.transforms.crops",
    "RandomCrop": "train.transforms.crops",
    "RandomHorizontalFlip": "train.transforms.crops",
    "RandomResizedCrop": "train.transforms.crops",
    "RandomVerticalFlip": "train.transforms.crops",
    "Resize": "train.transforms.crops",
    "ColorJitter": "train.transforms.color",
    "GaussianBlur": "train.transforms.color",
    "GaussianNoise": "train.transforms.color",
    "Normalize": "train.transforms.color",
    "RandomErasing": "train.transforms.color",
    "RandomGrayscale": "train.transforms.color",
    "RandomInvert": "train.transforms.color",
    "RandomPosterize": "train.transforms.color",
    "RandomSolarize": "train.transforms.color",
    "RandomAffine": "train.transforms.affine",
    "RandomRotation": "train.transforms.affine",
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
