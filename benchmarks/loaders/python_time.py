"""Python's time for an image: CPU time of the loader on images so small that kernels take next to nothing.

Python holds the interpreter's lock, so all threads of a loader share it: 15 µs an image are 66,000 images/s on any
number of cores. Where py-spy is installed, samples of both stacks tell the interpreter from C code.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
from PIL import Image

import picstore
from benchmarks.harness import MICROSECONDS, Case, Sample, Table, measure, tabulate
from benchmarks.options import Options

SIDE, CROP, BATCH = 16, 8, 128
IMAGES, PROFILED = 12_800, 20  # images of an epoch; seconds
STANDARD = [picstore.RandomResizedCrop(CROP), picstore.RandomHorizontalFlip()]
JITTER = [picstore.ColorJitter(0.4, 0.4, 0.4, 0.1), picstore.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
JOBS = {"RandomResizedCrop, flip": STANDARD, "the same, ColorJitter, Normalize": [*STANDARD, *JITTER]}


def python(options: Options) -> Table:
    """µs of CPU time for an image, in one thread that decodes and the consumer's."""
    path = options.work / "tiny"
    with picstore.Writer(path, classes=["any"]) as writer:
        for number in range(IMAGES // 10 if options.quick else IMAGES):
            writer.add(_noise(number % 64), label=0)

    def run(name: str) -> Sample:
        start = time.process_time()
        images = run_epochs(str(path), name, 1)
        return Sample(images, time.process_time() - start)

    cases = [Case(name, run, lambda name=name: name) for name in JOBS]
    results = measure(cases, rounds=options.round_count(5))
    for result in results:
        if fraction := interpreted(path, result.name, options):
            result.figures["in the interpreter, % (of 15 µs asked)"] = 100 * fraction
    return tabulate(
        results, f"images of {SIDE} × {SIDE}, crops of {CROP} × {CROP}, batches of {BATCH}", unit=MICROSECONDS
    )


def _noise(number: int) -> bytes:
    out = io.BytesIO()
    pixels = np.random.default_rng(number).integers(0, 256, (SIDE, SIDE, 3), np.uint8)
    Image.fromarray(pixels).save(out, "JPEG")
    return out.getvalue()


def run_epochs(path: str, name: str, count: int) -> int:
    """Read epochs; returns the images."""
    loader = picstore.Loader(path, batch_size=BATCH, transform=JOBS[name], threads=1, isolate=False)
    images = sum(len(batch) for _ in range(count) for batch in loader)
    loader.close()
    return images


def interpreted(path: Path, name: str, options: Options) -> float:
    """Fraction of the time that is the interpreter's, by py-spy's samples; 0 where it is not installed."""
    out = options.work / "stacks"
    call = f"run_epochs({str(path)!r}, {name!r}, 1 << 20)"
    program = [sys.executable, "-c", f"from benchmarks.loaders.python_time import run_epochs; {call}"]
    command = ["py-spy", "record", "--native", "--format", "raw", "--rate", "200", "--output", str(out)]
    command += ["--duration", "3" if options.quick else str(PROFILED), "--", *program]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError:
        return 0
    counts: Counter[bool] = Counter()
    for line in out.read_text().splitlines():
        stack, _, samples = line.rpartition(" ")
        leaf = stack.rpartition(";")[2]
        counts[bool(re.search(r"\.py:\d+\)$|\(python[\d.]*\)$", leaf))] += int(samples)
    return counts[True] / (counts[True] + counts[False])
