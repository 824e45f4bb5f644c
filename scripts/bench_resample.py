"""Microseconds an image: RandomResizedCrop boxes of photographs to 224 × 224, one thread, several libraries in turn.

Below them rotations by up to 30 degrees: of the crops, already resized, by picstore and torchvision; and crop, resize
and rotation together, which is one rendering here and two steps there.

    python scripts/bench_resample.py FOLDER [--images 100] [--size 224] [--rounds 9]

The images are decoded before; each is resampled twice and the second run counts, because in a loader an image comes
from the decoder's cache. The output is planar (3, H, W), as a batch needs it; where a library gives another layout,
the conversion counts. A figure is the median over the rounds of the mean over the images; ratios are to the first line.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import simplejpeg
import torch
from PIL import Image
from torch.nn.functional import interpolate
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional

from picstore.kernels.resample import resample
from picstore.train.cpu.render import render
from picstore.train.transforms.affine import RandomRotation
from picstore.train.transforms.crops import RandomResizedCrop
from picstore.train.transforms.geometry import Draws, Geometry, compose

Job = Callable[[int], object]


def jobs(images: list[np.ndarray], size: int) -> dict[str, Job]:
    """One function a library: resample the box of image i."""
    heights, widths = zip(*(image.shape[:2] for image in images), strict=True)
    draws = Draws(0, 0, np.arange(len(images)))
    geometry = RandomResizedCrop(size)(Geometry.of_images(widths, heights), draws)
    boxes = [tuple(box) for box in geometry.clip.tolist()]
    batch = np.empty((len(images), 3, size, size), dtype=np.uint8)
    planes = torch.from_numpy(batch)
    tensors = [torch.from_numpy(image).permute(2, 0, 1)[None] for image in images]
    pictures = [Image.fromarray(image) for image in images]

    def ours(i: int, antialias: bool) -> None:
        resample(images[i], geometry.box[i], geometry.clip[i], False, antialias, batch[i])

    def torchs(i: int, antialias: bool) -> None:
        left, top, right, bottom = boxes[i]
        part = tensors[i][:, :, top:bottom, left:right]
        planes[i] = interpolate(part, size=(size, size), mode="bilinear", antialias=antialias)[0]

    def pillow(i: int) -> None:
        image = pictures[i].resize((size, size), Image.Resampling.BILINEAR, box=boxes[i])
        batch[i] = np.asarray(image).transpose(2, 0, 1)

    table: dict[str, Job] = {
        "picstore, antialiased": lambda i: ours(i, True),
        "picstore, plain bilinear": lambda i: ours(i, False),
        "torch, antialiased": lambda i: torchs(i, True),
        "torch, plain bilinear": lambda i: torchs(i, False),
        "Pillow, antialiased": pillow,
    }
    if importlib.util.find_spec("cv2"):
        import cv2

        cv2.setNumThreads(1)

        def opencv(i: int, how: int) -> None:
            left, top, right, bottom = boxes[i]
            batch[i] = cv2.resize(images[i][top:bottom, left:right], (size, size), interpolation=how).transpose(2, 0, 1)

        table["OpenCV, plain bilinear"] = lambda i: opencv(i, cv2.INTER_LINEAR)
        table["OpenCV, area"] = lambda i: opencv(i, cv2.INTER_AREA)
    return table


def rotations(images: list[np.ndarray], size: int) -> dict[str, Job]:
    """One function a library: rotate crop i; crop, resize and rotate image i."""
    n = len(images)
    heights, widths = zip(*(image.shape[:2] for image in images), strict=True)
    sources = Geometry.of_images(widths, heights)
    both = compose([RandomResizedCrop(size), RandomRotation(30)], sources, Draws(0, 0, np.arange(n)))
    draws = Draws(0, 0, np.arange(n))
    boxes = RandomResizedCrop(size)(sources, draws).clip.tolist()
    alone = RandomRotation(30)(Geometry.of_images([size] * n, [size] * n), draws)
    angles = np.degrees(np.arctan2(-alone.matrix[:, 0, 1], alone.matrix[:, 0, 0])).tolist()
    tensors = [torch.from_numpy(image).permute(2, 0, 1) for image in images]
    crops = [
        functional.resized_crop(tensor, top, left, bottom - top, right - left, [size, size])
        for tensor, (left, top, right, bottom) in zip(tensors, boxes, strict=True)
    ]
    arrays = [np.ascontiguousarray(crop.permute(1, 2, 0).numpy()) for crop in crops]
    out = np.empty((3, size, size), dtype=np.uint8)

    def resized_crop(i: int) -> torch.Tensor:
        left, top, right, bottom = boxes[i]
        return functional.resized_crop(tensors[i], top, left, bottom - top, right - left, [size, size])

    def turned(crop: torch.Tensor, i: int) -> torch.Tensor:
        return functional.rotate(crop, angles[i], InterpolationMode.BILINEAR, fill=[0.0])

    return {
        "picstore, rotation": lambda i: render(arrays[i], alone, i, origin=(0, 0), factor=1, out=out),
        "torchvision, rotation": lambda i: turned(crops[i], i),
        "picstore, crop and rotation": lambda i: render(images[i], both, i, origin=(0, 0), factor=1, out=out),
        "torchvision, crop and rotation": lambda i: turned(resized_crop(i), i),
    }


def microseconds(job: Job, count: int) -> float:
    """Mean time of the second of two runs on each image."""
    total = 0.0
    for i in range(count):
        job(i)
        start = time.perf_counter()
        job(i)
        total += time.perf_counter() - start
    return total / count * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path, help="searched for .jpg and .jpeg files")
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    paths = sorted(path for path in options.folder.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    if not paths:
        parser.error(f"{options.folder}: no .jpg or .jpeg files in it")
    paths = paths[:: max(1, len(paths) // options.images)][: options.images]
    images = [simplejpeg.decode_jpeg(path.read_bytes()) for path in paths]
    torch.set_num_threads(1)
    table = jobs(images, options.size) | rotations(images, options.size)
    times: dict[str, list[float]] = {name: [] for name in table}
    for _ in range(options.rounds):  # in turn, so that a disturbance meets all
        for name, job in table.items():
            times[name].append(microseconds(job, len(images)))
    first = statistics.median(next(iter(times.values())))
    print(f"{len(images)} images, mean {np.mean([i.size / 3 for i in images]):,.0f} pixels, to {options.size}")
    for name, figures in times.items():
        median = statistics.median(figures)
        print(f"{name:30} {median:7.1f} us   {median / first:5.2f}   (least {min(figures):.1f})")


if __name__ == "__main__":
    main()
