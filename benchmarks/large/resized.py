"""RandomResizedCrop(224) of large photographs: exact and with a reducing_gap, against decoders of whole images.

Figures are by CPU time, which other programs of a machine disturb least: all contenders use threads that share no lock
for long, so that images/s are as many times more as there are cores.
"""

from __future__ import annotations

import contextlib
import math
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from PIL import Image
from torchvision.io import ImageReadMode, decode_jpeg, read_file
from torchvision.transforms import RandomResizedCrop
from torchvision.transforms.v2 import functional

import picstore
from benchmarks.child import MissingError, call
from benchmarks.harness import Case, Row, Sample, Table, Unit, join, measure, tabulate
from benchmarks.large.photographs import LargeImages, make_images
from benchmarks.options import Options
from benchmarks.peers import PYTHON

SIZE = 224
BATCH = 32
GAP = 2.0
LEAST, SECONDS = 96, 2  # images and seconds of a round of picstore, at least
DECODED = 8  # images of a round for peers that decode whole images
COMPARED = 96  # images whose pixels are compared
GAPS = (None, 1.0, 2.0, 3.0)
PER_CPU = Unit("images a CPU second", lambda sample: sample.items / sample.seconds)
ABOUT = "composed photographs, quality 90, 4:2:0, in memory"
_SCALE, _RATIO = [0.08, 1.0], [3 / 4, 4 / 3]

Crop: TypeAlias = Callable[[Path], Any]


def by_pillow(path: Path, *, gap: float | None = None) -> Any:
    """Decode with Pillow, whole or at the scale that ``draft`` finds for a gap, and resample the crop."""
    with Image.open(path) as image:
        width, height = image.size
        top, left, h, w = RandomResizedCrop.get_params(image, _SCALE, _RATIO)
        if gap is not None:
            image.draft("RGB", (math.ceil(width * gap * SIZE / w), math.ceil(height * gap * SIZE / h)))
        across, down = image.width / width, image.height / height
        box = left * across, top * down, (left + w) * across, (top + h) * down
        return np.asarray(image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR, box=box))


def by_torchvision(path: Path) -> Any:
    """Decode and resample with torchvision."""
    pixels = decode_jpeg(read_file(str(path)), mode=ImageReadMode.RGB)
    top, left, height, width = RandomResizedCrop.get_params(pixels, _SCALE, _RATIO)
    return functional.resized_crop(pixels, top, left, height, width, [SIZE, SIZE], antialias=True)


def resized(options: Options) -> Table:
    """Images a CPU second: exact ones against exact ones, a gap of 2 against Pillow's ``draft``."""
    torch.set_num_threads(1)  # each of the threads has a core
    tables = []
    for megapixels in (3,) if options.quick else (3, 12, 48):
        images = make_images(options, megapixels)
        exact = [
            _loader("picstore", images, None, options),
            _files("Pillow", by_pillow, images, options),
            _files("torchvision", by_torchvision, images, options),
            Case("DALI", partial(_run_dali, images, options)),
        ]
        reduced = [
            _loader("picstore", images, GAP, options),
            _files("Pillow, draft", partial(by_pillow, gap=GAP), images, options),
        ]
        for gap, cases in ((None, exact), (GAP, reduced)):
            names: Row = {"megapixels": megapixels, "reducing_gap": str(gap)}
            results = measure(cases, rounds=options.round_count(5), seconds=90)
            tables.append(tabulate(results, "", unit=PER_CPU, first="picstore", names=names))
    about = f"RandomResizedCrop({SIZE}) of {ABOUT}; {options.workers} threads each"
    return Table(about, join(tables).rows, join(tables).samples)


def gaps(options: Options) -> Table:
    """Images a CPU second of each gap, and by how much its pixels differ from exact ones, in levels."""
    tables = []
    for megapixels in (1,) if options.quick else (1, 3, 12, 48):
        images = make_images(options, megapixels)
        exact = _pixels(images, None)
        cases = [_loader(str(gap), images, gap, options, _errors(_pixels(images, gap) - exact)) for gap in GAPS]
        results = measure(cases, rounds=options.round_count(5), seconds=60)
        names: Row = {"megapixels": megapixels}
        tables.append(tabulate(results, "", unit=PER_CPU, first="None", names=names))
    about = (
        f"RandomResizedCrop({SIZE}) of {ABOUT}; {options.workers} threads; "
        f"levels between {COMPARED} images and the same crops without a gap"
    )
    return Table(about, join(tables).rows, join(tables).samples)


def _loader(name: str, images: LargeImages, gap: float | None, options: Options, figures: Row | None = None) -> Case:
    """A loader for each round, so that none makes batches ahead while others are timed."""

    def run(_: object) -> Sample:
        loader = _make_loader(images, gap, batch_size=BATCH, threads=options.workers, isolate=False)
        with contextlib.closing(loader):
            batches = chain.from_iterable(repeat(loader))
            done = -len(next(batches).ids)  # batches made ahead meanwhile
            start = time.perf_counter(), time.process_time()
            for batch in batches:
                done += len(batch.ids)
                if done >= LEAST and time.process_time() - start[1] > SECONDS:
                    break
            return _sample(done, *start)

    return Case(name, run, figures=figures or {})


def _sample(items: int, wall: float, cpu: float) -> Sample:
    """Time of all threads since two clocks; images/s as the machine was, beside it."""
    figures: Row = {"images/s": float(items / (time.perf_counter() - wall))}
    return Sample(items, time.process_time() - cpu, figures)


def _make_loader(images: LargeImages, gap: float | None, **options: Any) -> picstore.Loader:
    transform = [picstore.RandomResizedCrop(SIZE)]
    return picstore.Loader(images.dataset, transform=transform, reducing_gap=gap, drop_last=False, **options)


def _files(name: str, crop: Crop, images: LargeImages, options: Options) -> Case:
    """Random crops of the files, each opened, decoded and resampled by a thread."""

    def run(_: object) -> Sample:
        chosen, start = random.Random(0).choices(images.files, k=DECODED), (time.perf_counter(), time.process_time())
        with ThreadPoolExecutor(options.workers) as threads:
            return _sample(len(list(threads.map(crop, chosen))), *start)

    return Case(name, run)


def _run_dali(images: LargeImages, options: Options, _: object) -> Sample:
    if not PYTHON.exists():
        raise MissingError("benchmarks/setup-peers installs it")
    arguments = list(map(str, images.files)), SIZE, DECODED, options.workers
    wall, cpu = call("benchmarks.large.dali_crops:time_crops", *arguments, python=PYTHON)
    return Sample(DECODED, cpu, {"images/s": DECODED / wall})


def _pixels(images: LargeImages, gap: float | None) -> Any:
    """The first images of a training: int64 (COMPARED, 3, SIZE, SIZE)."""
    loader = _make_loader(images, gap, batch_size=COMPARED)
    with contextlib.closing(loader):
        made = chain.from_iterable(batch.images for batch in chain.from_iterable(repeat(loader)))
        return torch.stack(list(islice(made, COMPARED))).long().numpy()


def _errors(difference: Any) -> Row:
    apart = np.abs(difference)
    return {
        "mean error, levels": float(apart.mean()),
        "median of the largest": int(np.median(apart.max(axis=(1, 2, 3)))),
        "values off by more than 2, %": float(100 * (apart > 2).mean()),
    }
