"""picstore: image data sets for training: convert, shuffle, verify, and stream augmented batches.

The public names are loaded on first use, so that ``import picstore`` is instant and needs no torch.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if sys.platform == "win32":
    raise ImportError("picstore runs on Linux and macOS; on Windows, install it in WSL 2 (wsl --install), a Linux")

if TYPE_CHECKING:  # type checkers take a name imported as itself for a public one
    from picstore import lightning as lightning
    from picstore import recipes as recipes
    from picstore._version import __version__ as __version__
    from picstore.errors import Damage as Damage
    from picstore.errors import ImageError as ImageError
    from picstore.errors import MissingDependency as MissingDependency
    from picstore.errors import NotADataset as NotADataset
    from picstore.errors import NotTranscodable as NotTranscodable
    from picstore.errors import PicstoreError as PicstoreError
    from picstore.errors import UsageError as UsageError
    from picstore.jpeg.cut import cut as cut
    from picstore.jpeg.pixels import decode as decode
    from picstore.jpeg.transcode import add_restart_markers as add_restart_markers
    from picstore.prepare.writer import Writer as Writer
    from picstore.storage.dataset import Dataset as Dataset
    from picstore.storage.format.record import Record as Record
    from picstore.train.batch import Batch as Batch
    from picstore.train.loader import Loader as Loader
    from picstore.train.map_dataset import MapDataset as MapDataset
    from picstore.train.mux import DataMux as DataMux
    from picstore.train.patches import patchify as patchify
    from picstore.train.transforms.affine import RandomAffine as RandomAffine
    from picstore.train.transforms.affine import RandomRotation as RandomRotation
    from picstore.train.transforms.aspect import ResizeToCover as ResizeToCover
    from picstore.train.transforms.aspect import ResizeToSequence as ResizeToSequence
    from picstore.train.transforms.auto_augment import AugMix as AugMix
    from picstore.train.transforms.auto_augment import AutoAugment as AutoAugment
    from picstore.train.transforms.auto_augment import RandAugment as RandAugment
    from picstore.train.transforms.auto_augment import TrivialAugmentWide as TrivialAugmentWide
    from picstore.train.transforms.buckets import Buckets as Buckets
    from picstore.train.transforms.callables import PerImage as PerImage
    from picstore.train.transforms.color import ColorJitter as ColorJitter
    from picstore.train.transforms.color import GaussianBlur as GaussianBlur
    from picstore.train.transforms.color import GaussianNoise as GaussianNoise
    from picstore.train.transforms.color import Normalize as Normalize
    from picstore.train.transforms.color import RandomErasing as RandomErasing
    from picstore.train.transforms.color import RandomGrayscale as RandomGrayscale
    from picstore.train.transforms.color import RandomInvert as RandomInvert
    from picstore.train.transforms.color import RandomPosterize as RandomPosterize
    from picstore.train.transforms.color import RandomSolarize as RandomSolarize
    from picstore.train.transforms.containers import RandomApply as RandomApply
    from picstore.train.transforms.containers import RandomChoice as RandomChoice
    from picstore.train.transforms.containers import RandomOrder as RandomOrder
    from picstore.train.transforms.crops import CenterCrop as CenterCrop
    from picstore.train.transforms.crops import Pad as Pad
    from picstore.train.transforms.crops import RandomCrop as RandomCrop
    from picstore.train.transforms.crops import RandomHorizontalFlip as RandomHorizontalFlip
    from picstore.train.transforms.crops import RandomResizedCrop as RandomResizedCrop
    from picstore.train.transforms.crops import RandomVerticalFlip as RandomVerticalFlip
    from picstore.train.transforms.crops import Resize as Resize
    from picstore.train.transforms.detection import RandomResize as RandomResize
    from picstore.train.transforms.detection import RandomShortestSize as RandomShortestSize
    from picstore.train.transforms.detection import RandomSizeCrop as RandomSizeCrop
    from picstore.train.transforms.detection import RandomZoomOut as RandomZoomOut
    from picstore.train.transforms.detection import ScaleJitter as ScaleJitter
    from picstore.train.transforms.distort import ElasticTransform as ElasticTransform
    from picstore.train.transforms.distort import RandomPerspective as RandomPerspective
    from picstore.train.transforms.iou_crop import RandomIoUCrop as RandomIoUCrop
    from picstore.train.transforms.mix import CutMix as CutMix
    from picstore.train.transforms.mix import MixUp as MixUp
    from picstore.train.transforms.progressive import Progressive as Progressive
    from picstore.train.transforms.sequences import Sequences as Sequences
    from picstore.train.transforms.timm_augment import TimmAutoAugment as TimmAutoAugment
    from picstore.train.transforms.tone import Grayscale as Grayscale
    from picstore.train.transforms.tone import RandomAdjustSharpness as RandomAdjustSharpness
    from picstore.train.transforms.tone import RandomAutocontrast as RandomAutocontrast
    from picstore.train.transforms.tone import RandomChannelPermutation as RandomChannelPermutation
    from picstore.train.transforms.tone import RandomEqualize as RandomEqualize
    from picstore.train.transforms.tone import RandomPhotometricDistort as RandomPhotometricDistort
    from picstore.train.transforms.views import Views as Views

_NAMES = {  # by module
    "_version": "__version__",
    "errors": "Damage ImageError MissingDependency NotADataset NotTranscodable PicstoreError UsageError",
    "jpeg.cut": "cut",
    "jpeg.pixels": "decode",
    "jpeg.transcode": "add_restart_markers",
    "prepare.writer": "Writer",
    "storage.dataset": "Dataset",
    "storage.format.record": "Record",
    "train.batch": "Batch",
    "train.loader": "Loader",
    "train.map_dataset": "MapDataset",
    "train.mux": "DataMux",
    "train.transforms.affine": "RandomAffine RandomRotation",
    "train.transforms.auto_augment": "AugMix AutoAugment RandAugment TrivialAugmentWide",
    "train.transforms.callables": "PerImage",
    "train.transforms.color": (
        "ColorJitter GaussianBlur GaussianNoise Normalize RandomErasing RandomGrayscale RandomInvert "
        "RandomPosterize RandomSolarize"
    ),
    "train.transforms.containers": "RandomApply RandomChoice RandomOrder",
    "train.transforms.crops": (
        "CenterCrop Pad RandomCrop RandomHorizontalFlip RandomResizedCrop RandomVerticalFlip Resize"
    ),
    "train.transforms.detection": "RandomResize RandomShortestSize RandomSizeCrop RandomZoomOut ScaleJitter",
    "train.transforms.distort": "ElasticTransform RandomPerspective",
    "train.transforms.timm_augment": "TimmAutoAugment",
    "train.transforms.tone": (
        "Grayscale RandomAdjustSharpness RandomAutocontrast RandomChannelPermutation RandomEqualize "
        "RandomPhotometricDistort"
    ),
    "train.transforms.iou_crop": "RandomIoUCrop",
    "train.transforms.mix": "CutMix MixUp",
    "train.transforms.aspect": "ResizeToCover ResizeToSequence",
    "train.transforms.buckets": "Buckets",
    "train.transforms.progressive": "Progressive",
    "train.transforms.sequences": "Sequences",
    "train.transforms.views": "Views",
    "train.patches": "patchify",
}
_MODULE_NAMES = ("recipes",)  # public as modules
_EXTRA_MODULES = ("lightning",)  # which import an extra's library, and are no names for *
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}
_PUBLIC = [*_MODULES, *_MODULE_NAMES]
if not TYPE_CHECKING:  # a list that type checkers cannot evaluate
    __all__ = list(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name in _MODULE_NAMES + _EXTRA_MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted(_PUBLIC)
