"""Microseconds an image for transforms of colour, against torchvision on uint8 tensors, one thread, in one run.

    python scripts/bench_color.py FOLDER [--images 32] [--size 224] [--rounds 7]

Photographs are resized to size × size before. Both sides get the same steps and parameters, fixed ones. Ours may
overwrite its image, so that it starts from a copy, which counts; both put the result into its place in a batch, whose
memory was used before. A figure is CPU time, the median over the rounds of the mean over the images; the ratio is
torchvision's to ours. At the end, seconds of CPU that compiling the kernels takes at the first use on a machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import simplejpeg
import torch
from torchvision.transforms.v2 import functional

from picstore.kernels.jit import kernel
from picstore.train.cpu.color import develop
from picstore.train.transforms.color import (
    ColorJitter,
    GaussianBlur,
    GaussianNoise,
    Normalize,
    RandomErasing,
    RandomGrayscale,
    RandomSolarize,
)
from picstore.train.transforms.color_program import ColorTransform, compose_color
from picstore.train.transforms.geometry import Draws
from picstore.train.transforms.opcodes import OutputDtype

Job = Callable[[int], object]
Steps = list[ColorTransform]
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
COMPILED: dict[str, Steps] = {
    "pointwise steps": [ColorJitter(0.4)],
    "and normalise": [ColorJitter(0.4), Normalize(MEAN, STD)],
    "and blur": [ColorJitter(0.4), GaussianBlur(5), Normalize(MEAN, STD)],
    "all": [ColorJitter(0.4), GaussianBlur(5), GaussianNoise(), Normalize(MEAN, STD), RandomErasing(1, value="random")],
}


def brightness(image: torch.Tensor) -> torch.Tensor:
    return functional.adjust_brightness(image, 1.2)


def jitter(image: torch.Tensor) -> torch.Tensor:
    return functional.adjust_saturation(functional.adjust_contrast(brightness(image), 0.8), 1.2)


def hue(image: torch.Tensor) -> torch.Tensor:
    return functional.adjust_hue(image, 0.1)


def normalise(image: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return functional.normalize(functional.to_dtype(image, torch.float32, scale=True), MEAN, STD).to(dtype)


def erase(image: torch.Tensor) -> torch.Tensor:
    return functional.erase(image, 50, 60, 100, 100, torch.empty(3, 100, 100).normal_())


def contenders() -> dict[str, tuple[Steps, torch.dtype, Callable[[torch.Tensor], torch.Tensor]]]:
    """Our transforms, the type of the result, and torchvision's functions, by what they do."""
    byte = torch.uint8
    light: Steps = [ColorJitter((1.2, 1.2), (0.8, 0.8), (1.2, 1.2))]
    color: Steps = [ColorJitter((1.2, 1.2), (0.8, 0.8), (1.2, 1.2), (0.1, 0.1))]
    norm = Normalize(MEAN, STD)

    def blurred(taps: int, sigma: float) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda image: functional.gaussian_blur(image, [taps, taps], [sigma, sigma])

    return {
        "brightness": ([ColorJitter((1.2, 1.2))], byte, brightness),
        "brightness, contrast, saturation": (light, byte, jitter),
        "and hue": (color, byte, lambda image: hue(jitter(image))),
        "hue": ([ColorJitter(hue=(0.1, 0.1))], byte, hue),
        "greyscale": ([RandomGrayscale(1)], byte, lambda image: functional.rgb_to_grayscale(image, 3)),
        "solarize": ([RandomSolarize(128, 1)], byte, lambda image: functional.solarize(image, 128)),
        "noise": ([GaussianNoise()], byte, functional.gaussian_noise),
        "blur, 23 taps, sigma 0.5": ([GaussianBlur(23, 0.5)], byte, blurred(23, 0.5)),
        "blur, 23 taps, sigma 2": ([GaussianBlur(23, 2.0)], byte, blurred(23, 2.0)),
        "blur, 23 taps, sigma 9": ([GaussianBlur(23, 9.0)], byte, blurred(23, 9.0)),
        "normalise to float32": ([norm], torch.float32, lambda image: normalise(image, torch.float32)),
        "normalise to bfloat16": ([norm], torch.bfloat16, lambda image: normalise(image, torch.bfloat16)),
        "normalise, erase at random": (
            [norm, RandomErasing(1, (0.2, 0.2), (1, 1), "random")],
            torch.float32,
            lambda image: erase(normalise(image, torch.float32)),
        ),
        "jitter with hue, normalise": (
            [*color, norm],
            torch.float32,
            lambda image: normalise(hue(jitter(image)), torch.float32),
        ),
    }


def jobs(images: list[np.ndarray]) -> dict[str, tuple[Job, Job]]:
    """For each line of the table ours and torchvision's."""
    count, size = len(images), images[0].shape[1]
    sizes = np.tile([size, size], (count, 1))
    scratch = np.empty_like(images[0])
    tensors = [torch.from_numpy(image) for image in images]

    def ours(steps: Steps, dtype: torch.dtype) -> Job:
        program = compose_color(steps, sizes, Draws(0, 0, np.arange(count)))
        batch = torch.empty((count, 3, size, size), dtype=dtype)
        arrays = list((batch.view(torch.int16) if dtype.itemsize == 2 else batch).numpy())
        finish = OutputDtype.of(dtype)

        def job(i: int) -> None:
            image = arrays[i] if dtype == torch.uint8 else scratch
            np.copyto(image, images[i])
            develop(program, i, image, arrays[i], finish)

        return job

    def theirs(function: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype) -> Job:
        batch = torch.empty((count, 3, size, size), dtype=dtype)
        return lambda i: batch[i].copy_(function(tensors[i]))

    return {
        name: (ours(steps, dtype), theirs(function, dtype)) for name, (steps, dtype, function) in contenders().items()
    }


def microseconds(job: Job, count: int) -> float:
    start = time.thread_time()
    for i in range(count):
        job(i)
    return (time.thread_time() - start) / count * 1e6


def compile_seconds(name: str) -> float:
    """CPU seconds of the first use in a process of its own, with an empty cache."""
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, __file__, "--compile", name]
        environment = {**os.environ, "NUMBA_CACHE_DIR": cache}
        return float(subprocess.run(command, env=environment, capture_output=True, check=True, text=True).stdout)


def first_use(name: str) -> float:
    """CPU seconds of compiling what ``COMPILED[name]`` needs, without what any first kernel costs numba."""
    kernel(lambda: 0)()
    steps = COMPILED[name]
    floats = any(step.normalises for step in steps)
    image = np.zeros((3, 8, 8), dtype=np.uint8)
    out = np.zeros((3, 8, 8), dtype=np.float32) if floats else image
    program = compose_color(steps, np.array([[8, 8]]), Draws(0, 0, [0]))
    start = time.process_time()
    develop(program, 0, image, out, OutputDtype.FLOAT32 if floats else OutputDtype.UINT8)
    return time.process_time() - start


def photographs(folder: Path, count: int, size: int) -> list[np.ndarray]:
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    images = []
    for path in paths[:: max(1, len(paths) // count)][:count]:
        image = torch.from_numpy(simplejpeg.decode_jpeg(path.read_bytes())).permute(2, 0, 1)
        images.append(np.ascontiguousarray(functional.resize(image, [size, size], antialias=True).numpy()))
    return images


def table(images: list[np.ndarray], rounds: int) -> Sequence[str]:
    pairs = jobs(images)
    times: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in pairs}
    for turn in range(rounds + 1):  # in turn, so that a disturbance meets all; the first round compiles
        for name, pair in pairs.items():
            for figures, job in zip(times[name], pair, strict=True):
                figure = microseconds(job, len(images))
                figures.extend([figure] if turn else [])
    lines = []
    for name, (ours, theirs) in times.items():
        a, b = statistics.median(ours), statistics.median(theirs)
        lines.append(f"{name:34} {a:9.1f} us   torchvision {b:9.1f} us   {b / a:6.1f}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path, nargs="?", help="searched for .jpg and .jpeg files")
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--compile", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.compile is not None:
        print(first_use(options.compile))
        return
    images = photographs(options.folder, options.images, options.size) if options.folder else []
    if not images:
        parser.error(f"{options.folder}: no .jpg or .jpeg files in it")
    torch.set_num_threads(1)
    print(*table(images, options.rounds), sep="\n")
    for name in COMPILED:
        print(f"compiling {name:24} {compile_seconds(name):9.1f} s")


if __name__ == "__main__":
    main()
