"""Resampling of RandomResizedCrop's boxes, by picstore, torch, Pillow and OpenCV."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import simplejpeg
import torch
from PIL import Image
from torch.nn.functional import interpolate

from benchmarks.harness import MICROSECONDS, Case, Sample, Table, measure, tabulate
from benchmarks.options import Options
from benchmarks.photographs import crop_geometry, find
from picstore.kernels.filters import BICUBIC, BILINEAR
from picstore.kernels.resample import resample as resample_one

SIZE = 224
TOLERANCE = 1.5  # levels of the mean color: filters differ at edges


def photographs(options: Options) -> list[np.ndarray]:
    """Decoded photographs, (h, w, 3)."""
    torch.set_num_threads(1)
    return [simplejpeg.decode_jpeg(path.read_bytes()) for path in find(options.photographs, options.image_count(100))]


def second_run(job: Callable[[int], Any], count: int) -> Sample:
    """Time the second of two runs on each image: a loader has just decoded it, so it is in the cache."""
    total = 0.0
    for number in range(count):
        job(number)
        start = time.perf_counter()
        job(number)
        total += time.perf_counter() - start
    return Sample(count, total)


def resample(options: Options) -> Table:
    """µs to resample the box of an image to planes of 224 × 224, one thread."""
    images = photographs(options)
    sizes = [image.shape[1::-1] for image in images]
    geometry = crop_geometry(sizes, SIZE)
    boxes = [tuple(box) for box in geometry.clip.tolist()]
    batch = np.empty((len(images), 3, SIZE, SIZE), np.uint8)
    planes = torch.from_numpy(batch)
    tensors = [torch.from_numpy(image).permute(2, 0, 1)[None] for image in images]
    pictures = [Image.fromarray(image) for image in images]

    def ours(number: int, antialias: bool, interpolation: int = BILINEAR) -> None:
        box, clip = geometry.box[number], geometry.clip[number]
        resample_one(images[number], box, clip, batch[number], interpolation=interpolation, antialias=antialias)

    def torchs(number: int, antialias: bool, mode: str = "bilinear") -> None:
        left, top, right, bottom = boxes[number]
        box = tensors[number][:, :, top:bottom, left:right]
        planes[number] = interpolate(box, size=(SIZE, SIZE), mode=mode, antialias=antialias)[0]

    def by_pillow(number: int, kind: Image.Resampling = Image.Resampling.BILINEAR) -> None:
        image = pictures[number].resize((SIZE, SIZE), kind, box=boxes[number])
        batch[number] = np.asarray(image).transpose(2, 0, 1)

    def by_opencv(number: int, area: bool) -> None:
        import cv2

        cv2.setNumThreads(1)
        left, top, right, bottom = boxes[number]
        kind = cv2.INTER_AREA if area else cv2.INTER_LINEAR
        image = cv2.resize(images[number][top:bottom, left:right], (SIZE, SIZE), interpolation=kind)
        batch[number] = image.transpose(2, 0, 1)

    jobs: dict[str, Callable[[int], None]] = {
        "picstore, antialiased": lambda number: ours(number, True),
        "picstore, bilinear": lambda number: ours(number, False),
        "picstore, bicubic": lambda number: ours(number, True, BICUBIC),
        "torch, antialiased": lambda number: torchs(number, True),
        "torch, bilinear": lambda number: torchs(number, False),
        "torch, bicubic": lambda number: torchs(number, True, "bicubic"),
        "Pillow, antialiased": by_pillow,
        "Pillow, bicubic": lambda number: by_pillow(number, Image.Resampling.BICUBIC),
        "OpenCV, bilinear": lambda number: by_opencv(number, False),
        "OpenCV, area": lambda number: by_opencv(number, True),
    }

    def mean_color(job: Callable[[int], None]) -> list[float]:
        for number in range(len(images)):
            job(number)
        return batch.mean(axis=(0, 2, 3)).tolist()

    cases = [Case(name, lambda job: second_run(job, len(images)), lambda job=job: job, mean_color)
             for name, job in jobs.items()]  # fmt: skip
    results = measure(cases, rounds=options.round_count(9), warmups=0, tolerance=TOLERANCE)
    pixels = np.mean([image.size / 3 for image in images])
    about = f"{len(images)} photographs of {pixels:,.0f} pixels to 224 × 224; one thread"
    return tabulate(results, about, unit=MICROSECONDS, first="picstore")
