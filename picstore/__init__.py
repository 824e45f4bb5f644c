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
    from picstore.train.geometry import CenterCrop, RandomHorizontalFlip, RandomResizedCrop, Resize
    from picstore.train.loader import Loader
    from picstore.train.mux import DataMux

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
    "CenterCrop": "train.geometry",
    "RandomHorizontalFlip": "train.geometry",
    "RandomResizedCrop": "train.geometry",
    "Resize": "train.geometry",
    "Batch": "train.batch",
    "Loader": "train.loader",
    "DataMux": "train.mux",
}

__all__ = [
    "Batch",
    "CenterCrop",
    "Damage",
    "DataMux",
    "Dataset",
    "ImageError",
    "Loader",
    "MissingDependency",
    "NotADataset",
    "NotTranscodable",
    "PicstoreError",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
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
