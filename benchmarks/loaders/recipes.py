"""Recipes by picstore's loader, and by the loader that they come from: torchvision's transforms or timm's."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import ImageOps
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.io import ImageReadMode, decode_jpeg, read_file
from torchvision.transforms import v2

import picstore
from benchmarks.child import call
from benchmarks.dataset import write_dataset
from benchmarks.harness import IMAGES_PER_SECOND, Case, Sample, Table, join, measure, tabulate
from benchmarks.options import Options
from benchmarks.photographs import copy_images
from picstore import recipes

MEAN, STD = recipes.IMAGENET_MEAN, recipes.IMAGENET_STD
BICUBIC = v2.InterpolationMode.BICUBIC
NORMALIZE = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
PEERS = ("torchvision", "timm")


@dataclass(frozen=True)
class Recipe:
    """A recipe.

    Attributes:
        batch: records in a batch.
        ours: the loader's ``transform``.
        peer: name of the library of the original.
        theirs: the original, of one image.
        decode: the function that reads an image file for the original; Pillow by default.
        dtype: of picstore's images.
        shuffle: False for an evaluation.
    """

    batch: int
    ours: Callable[[], Any]
    peer: str
    theirs: Callable[[], Callable[[Any], Any]]
    decode: Callable[[str], Any] | None = None
    dtype: torch.dtype = torch.float32
    shuffle: bool = True


def read_tensor(path: str) -> torch.Tensor:
    """Decode with torchvision, which is faster than Pillow."""
    return decode_jpeg(read_file(path), mode=ImageReadMode.RGB)


class SeveralViews:
    """One image as a list of views, one for each transform."""

    def __init__(self, transforms: list[Callable[[Any], Any]]) -> None:
        self._transforms = transforms

    def __call__(self, image: Any) -> list[Any]:
        return [transform(image) for transform in self._transforms]


def _bicubic() -> list[Any]:
    crop = picstore.RandomResizedCrop(224, interpolation="bicubic")
    return [crop, picstore.RandomHorizontalFlip(), picstore.Normalize(MEAN, STD)]


def _torchvision_bicubic() -> Callable[[Any], Any]:
    crop = v2.RandomResizedCrop(224, interpolation=BICUBIC, antialias=True)
    return v2.Compose([crop, v2.RandomHorizontalFlip(), *NORMALIZE, v2.ToDtype(torch.float16)])


def _timm_rand_augment() -> Callable[[Any], Any]:
    from timm.data import create_transform

    # timm may keep no bits, which Pillow refuses from its release 13 on.
    posterize = ImageOps.posterize
    ImageOps.posterize = lambda image, bits: posterize(image, bits) if bits else image.point([0] * 768)
    transform: Callable[[Any], Any] = create_transform(
        224,
        is_training=True,
        auto_augment="rand-m9-mstd0.5-inc1",
        interpolation="random",
        re_prob=0.25,
        re_mode="pixel",
    )
    return transform


def _torchvision_simclr() -> Callable[[Any], Any]:
    jitter = v2.RandomApply([v2.ColorJitter(0.8, 0.8, 0.8, 0.2)], 0.8)
    blur = v2.RandomApply([v2.GaussianBlur(23, (0.1, 2.0))], 0.5)
    steps = [v2.RandomResizedCrop(224), v2.RandomHorizontalFlip(), jitter, v2.RandomGrayscale(0.2), blur, *NORMALIZE]
    return SeveralViews([v2.Compose(steps)] * 2)


def _torchvision_dino() -> Callable[[Any], Any]:
    def view(size: int, scale: tuple[float, float], *extra: Any) -> Callable[[Any], Any]:
        crop = v2.RandomResizedCrop(size, scale, interpolation=BICUBIC, antialias=True)
        color = [v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.2, 0.1)], 0.8), v2.RandomGrayscale(0.2)]
        return v2.Compose([crop, v2.RandomHorizontalFlip(), *color, *extra, *NORMALIZE])

    blur = v2.GaussianBlur(9, (0.1, 2.0))
    first = view(224, (0.32, 1.0), blur)
    second = view(224, (0.32, 1.0), v2.RandomApply([blur], 0.1), v2.RandomSolarize(128, 0.2))
    local = view(96, (0.05, 0.32), v2.RandomApply([blur], 0.5))
    return SeveralViews([first, second, *([local] * 8)])


def _torchvision_evaluation() -> Callable[[Any], Any]:
    return v2.Compose([v2.Resize(256, BICUBIC, antialias=True), v2.CenterCrop(224), *NORMALIZE])


RECIPES = {
    "bicubic, float16": Recipe(128, _bicubic, "torchvision", _torchvision_bicubic, read_tensor, torch.float16),
    "RandAugment, erasing": Recipe(128, recipes.timm_default, "timm", _timm_rand_augment),
    "SimCLR, 2 views": Recipe(64, recipes.simclr, "torchvision", _torchvision_simclr, read_tensor),
    "DINOv2, 2 + 8 views": Recipe(32, recipes.dinov2, "torchvision", _torchvision_dino, read_tensor),
    "evaluation": Recipe(128, recipes.evaluation, "torchvision", _torchvision_evaluation, read_tensor, shuffle=False),
}


def run(options: Options) -> Table:
    """Each recipe by picstore and by its original in a DataLoader, in turn, each in a process of its own."""
    copies = 1
    count = options.images or (16 if options.quick else None)
    per_class = copy_images(options.photographs, options.work / "recipe-images", copies, count)
    dataset = write_dataset(options)
    tables = []
    for name, recipe in RECIPES.items():
        cases = [
            Case(side, lambda _, name=name, side=side: _measure(name, side, dataset, options))
            for side in ("picstore", recipe.peer)
        ]
        results = measure(cases, rounds=options.round_count(3), warmups=0, tolerance=0.15 if not options.quick else 9)
        tables.append(tabulate(results, "", unit=IMAGES_PER_SECOND, first="picstore", names={"recipe": name}))
    joined = join(tables)
    about = (
        f"{sum(per_class)} photographs for the originals, {options.workers} workers of a DataLoader; picstore's set of "
        f"the same photographs, {options.workers} threads; an epoch to warm up, one timed; records/s"
    )
    return Table(about, joined.rows, joined.samples)


def _measure(name: str, side: str, dataset: Path, options: Options) -> Sample:
    images = options.work / "recipe-images"
    found = call("benchmarks.loaders.recipes:time_epoch", name, side, str(dataset), str(images), options.workers)
    return Sample(found["records"], found["seconds"], {}, found["check"])


def time_epoch(name: str, side: str, dataset: str, images: str, workers: int) -> dict[str, Any]:
    """Time an epoch after another; the check is mean and deviation of all values."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:workers])
    recipe = RECIPES[name]
    batches = _our_batches(recipe, dataset, workers) if side == "picstore" else _batches(recipe, images, workers)
    for _ in batches:
        pass
    records, values, sums, squares = 0, 0, 0.0, 0.0
    start = time.perf_counter()
    for views, labels in batches:
        records += len(labels)
        listed = views if isinstance(views, list) else list(views.values()) if isinstance(views, dict) else [views]
        part = listed[-1][..., ::7, ::7].float()
        values, sums, squares = values + part.numel(), sums + float(part.sum()), squares + float((part**2).sum())
    seconds = time.perf_counter() - start
    mean = sums / values
    return {"records": records, "seconds": seconds, "check": [mean, (squares / values - mean**2) ** 0.5]}


def _our_batches(recipe: Recipe, dataset: str, workers: int) -> Iterable[Any]:
    return picstore.Loader(
        dataset,
        batch_size=recipe.batch,
        transform=recipe.ours(),
        dtype=recipe.dtype,
        shuffle=recipe.shuffle,
        drop_last=False,
        threads=workers,
    )


def _batches(recipe: Recipe, images: str, workers: int) -> Iterable[Any]:
    options = {} if recipe.decode is None else {"loader": recipe.decode}
    folder = ImageFolder(images, transform=recipe.theirs(), **options)  # type: ignore[arg-type]
    return DataLoader(folder, recipe.batch, shuffle=recipe.shuffle, num_workers=workers, persistent_workers=True)
