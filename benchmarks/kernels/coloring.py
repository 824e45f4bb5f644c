"""Color transforms of 224 × 224 images against torchvision's transforms v2 on uint8 tensors."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import simplejpeg
import torch
from torchvision.transforms.v2 import functional

import picstore
from benchmarks.harness import MICROSECONDS, Case, Table, join, measure, tabulate
from benchmarks.options import Options
from benchmarks.photographs import draws, find
from picstore.train.cpu.run_color import run_color
from picstore.train.transforms.color_program import ColorTransform, compose_color
from picstore.train.transforms.opcodes import OutputDtype

SIZE = 224
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
TOLERANCE = 1.5  # levels of the mean

Transform = Callable[[torch.Tensor], torch.Tensor]


def jitter(image: torch.Tensor) -> torch.Tensor:
    """Brightness, contrast, saturation."""
    image = functional.adjust_contrast(functional.adjust_brightness(image, 1.2), 0.8)
    return functional.adjust_saturation(image, 1.2)


def jitter_and_hue(image: torch.Tensor) -> torch.Tensor:
    """The same, and hue."""
    return functional.adjust_hue(jitter(image), 0.1)


def sharpen(image: torch.Tensor) -> torch.Tensor:
    """Sharpness."""
    return functional.adjust_sharpness(image, 1.9)


def normalize(dtype: torch.dtype) -> Transform:
    """Normalization to a type."""
    return lambda image: functional.normalize(functional.to_dtype(image, torch.float32, scale=True), MEAN, STD).to(
        dtype
    )


def blur(sigma: float) -> Transform:
    """Blur of 23 taps."""
    return lambda image: functional.gaussian_blur(image, [23, 23], [sigma, sigma])


def pairs() -> dict[str, tuple[list[ColorTransform], torch.dtype, Transform]]:
    """By name: our transforms with fixed parameters, the type of the result, and torchvision's function."""
    byte, levels = torch.uint8, ((1.2, 1.2), (0.8, 0.8), (1.2, 1.2))
    norm = picstore.Normalize(MEAN, STD)
    found: dict[str, tuple[list[ColorTransform], torch.dtype, Transform]] = {
        "brightness, contrast, saturation": ([picstore.ColorJitter(*levels)], byte, jitter),
        "the same and hue": ([picstore.ColorJitter(*levels, (0.1, 0.1))], byte, jitter_and_hue),
        "noise": ([picstore.GaussianNoise()], byte, functional.gaussian_noise),
        "equalize": ([picstore.RandomEqualize(1)], byte, functional.equalize),
        "autocontrast": ([picstore.RandomAutocontrast(1)], byte, functional.autocontrast),
        "sharpness": ([picstore.RandomAdjustSharpness(1.9, 1)], byte, sharpen),
    }
    for sigma in (2.0, 9.0):
        found[f"blur, 23 taps, σ {sigma:g}"] = ([picstore.GaussianBlur(23, sigma)], byte, blur(sigma))
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        found[f"normalize to {str(dtype)[6:]}"] = ([norm], dtype, normalize(dtype))
    return found


def color(options: Options) -> Table:
    """µs of a thread for an image, both sides with the same fixed parameters, into a batch whose memory was used."""
    torch.set_num_threads(1)
    images = []
    for path in find(options.photographs, options.image_count(32)):
        image = torch.from_numpy(simplejpeg.decode_jpeg(path.read_bytes())).permute(2, 0, 1)
        images.append(np.ascontiguousarray(functional.resize(image, [SIZE, SIZE], antialias=True).numpy()))
    tables = [_compare(name, images, pair, options) for name, pair in pairs().items()]
    return Table(f"{len(images)} images of 224 × 224; CPU time of one thread", join(tables).rows, join(tables).samples)


def _compare(
    name: str, images: list[np.ndarray], pair: tuple[list[ColorTransform], torch.dtype, Transform], options: Options
) -> Table:
    steps, dtype, function = pair
    count = len(images)
    tensors, scratch = [torch.from_numpy(image) for image in images], np.empty_like(images[0])
    batch = torch.empty((count, 3, SIZE, SIZE), dtype=dtype)
    arrays = list((batch.view(torch.int16) if dtype.itemsize == 2 else batch).numpy())
    program = compose_color(steps, np.tile([SIZE, SIZE], (count, 1)), draws(count))
    output = OutputDtype.from_dtype(dtype)

    def ours(_: None) -> int:
        for number in range(count):
            image = arrays[number] if dtype == torch.uint8 else scratch
            np.copyto(image, images[number])  # ours may overwrite its image
            run_color(program, number, image, arrays[number], output)
        return count

    def theirs(_: None) -> int:
        for number in range(count):
            batch[number].copy_(function(tensors[number]))
        return count

    def mean(run: Callable[[None], int]) -> list[float]:
        run(None)
        return [float(batch.float().mean())]

    cases = [
        Case("picstore", ours, check=lambda _: mean(ours)),
        Case("torchvision", theirs, check=lambda _: mean(theirs)),
    ]
    results = measure(cases, rounds=options.round_count(7), clock=time.thread_time, tolerance=TOLERANCE)
    return tabulate(results, "", unit=MICROSECONDS, first="picstore", names={"transform": name})
