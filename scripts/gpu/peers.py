"""Others that make the same batches on the GPU: 224 × 224 crops of the photographs, flipped.

What they do is what one writes, so none of them drains its stream before it decodes.
"""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torchvision.io import ImageReadMode, decode_jpeg, read_file
from torchvision.transforms import v2

from gpu.bench import Bench
from gpu.case import Case, Row
from gpu.device import has
from gpu.standard import job
from picstore.train.pipeline import device

WORKERS = 16
OWN, SEED, BATCHED = "picstore", "one image at a time: read_file, decode_jpeg, v2", "decode_jpeg of a list, v2 by image"
TABLE = "Peers"


def cases(bench: Bench) -> list[Case]:
    """picstore first and last."""
    files = sorted((bench.work / "files").rglob("*.jpg"))
    random.Random(0).shuffle(files)
    own = partial(by_picstore, bench)
    peers: list[tuple[str, Callable[[float], Row]]] = [
        (OWN, own),
        (SEED, partial(rate_of, bench, partial(one_by_one, bench), files)),
        (BATCHED, partial(rate_of, bench, partial(in_batches, bench), files)),
        (f"OpenCV in {WORKERS} threads, copied", partial(by_opencv, bench, files)),
        ("DALI, image_random_crop on the GPU", partial(by_dali, bench, files)),
        (OWN, own),
    ]
    return [Case(TABLE, {"contender": name}, measure, weight=2) for name, measure in peers]


def by_picstore(bench: Bench, seconds: float) -> Row:
    """The loader with its defaults and all threads."""
    names = {"data": "photographs", "decoder": "auto", "threads": WORKERS, "device threads": device.THREADS}
    return {"images/s": job(bench, {**names, "isolate": True}, seconds)["images/s"]}


def rate_of(bench: Bench, make: Callable[[list[Path]], Any], files: list[Path], seconds: float) -> Row:
    """Images/s of a function that makes a batch of files."""
    size = bench.batch

    def work(number: int) -> int:
        start = number * size % max(1, len(files) - size + 1)
        return len(make(files[start : start + size]))

    return {"images/s": bench.device.rate(work, seconds=seconds)}


def augmentation(bench: Bench) -> v2.Transform:
    """torchvision's, of one image."""
    return v2.Compose([v2.RandomResizedCrop(bench.size, antialias=True), v2.RandomHorizontalFlip()])


def one_by_one(bench: Bench, files: list[Path]) -> torch.Tensor:
    """The recipe of the seeds."""
    augment, device = augmentation(bench), bench.device.device

    def one(file: Path) -> torch.Tensor:
        return augment(decode_jpeg(read_file(str(file)), mode=ImageReadMode.RGB, device=device))

    return torch.stack([one(file) for file in files])


def in_batches(bench: Bench, files: list[Path]) -> torch.Tensor:
    """A list in one call, transforms by image."""
    augment = augmentation(bench)
    streams = [read_file(str(file)) for file in files]
    return torch.stack(
        [augment(image) for image in decode_jpeg(streams, mode=ImageReadMode.RGB, device=bench.device.device)]
    )


def by_opencv(bench: Bench, files: list[Path], seconds: float) -> Row:
    """Decode, crop and resize in threads; a batch is copied to the GPU."""
    if not has("cv2", "imdecode"):
        return {"problem": "not installed"}
    import cv2

    cv2.setNumThreads(0)

    def one(file: Path, seed: int) -> np.ndarray:
        image = cv2.imdecode(np.fromfile(file, np.uint8), cv2.IMREAD_COLOR)
        left, top, width, height = crop_of(image.shape[1], image.shape[0])
        crop = cv2.resize(image[top : top + height, left : left + width], (bench.size, bench.size))
        return np.ascontiguousarray(cv2.cvtColor(crop, cv2.COLOR_BGR2RGB)[:, :: 1 - 2 * (seed % 2)].transpose(2, 0, 1))

    with ThreadPoolExecutor(WORKERS) as threads:

        def make(chosen: list[Path]) -> torch.Tensor:
            images = list(threads.map(one, chosen, range(len(chosen))))
            return torch.from_numpy(np.stack(images)).to(bench.device.device)

        return rate_of(bench, make, files, seconds)


def crop_of(width: int, height: int) -> tuple[int, int, int, int]:
    """RandomResizedCrop's box, in three microseconds."""
    area = random.uniform(0.08, 1.0) * width * height
    ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
    wide, high = min(width, round(math.sqrt(area * ratio))), min(height, round(math.sqrt(area / ratio)))
    return random.randint(0, width - wide), random.randint(0, height - high), wide, high


def by_dali(bench: Bench, files: list[Path], seconds: float) -> Row:
    """DALI with its hardware decoder."""
    if not bench.device.cuda or not has("nvidia.dali", "pipeline_def"):
        return {"problem": "not installed"}
    with contextlib.closing(dali_batches(bench, files)) as batches:
        return {"images/s": bench.device.rate(lambda _: next(batches), seconds=seconds)}


def dali_batches(bench: Bench, files: list[Path]) -> Iterator[int]:
    """Sizes of batches, as they are made."""
    from nvidia.dali import fn, pipeline_def

    @pipeline_def
    def pipeline() -> Any:
        data, _ = fn.readers.file(files=[str(file) for file in files], random_shuffle=True, name="files")
        images = fn.decoders.image_random_crop(data, device="mixed", random_area=[0.08, 1.0])
        return fn.flip(fn.resize(images, size=[bench.size] * 2), horizontal=fn.random.coin_flip())

    made = pipeline(batch_size=bench.batch, num_threads=WORKERS, device_id=bench.device.device.index or 0, seed=1)
    made.build()
    while True:
        yield len(made.run()[0])
