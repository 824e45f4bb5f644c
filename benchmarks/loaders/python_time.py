"""Python's time for an image: CPU time of the loader in threads, its kernels replaced by some that return at once.

Python holds the interpreter's lock, so all threads of a loader share it: 15 µs an image are 66,000 images/s on any
number of cores. Images of 16 × 16 pixels take next to no time to read and check. Handing arguments to kernels counts,
as does the work of NumPy and torch. Where py-spy is installed, samples of both stacks tell the interpreter from C code.
The last rows are of loader processes, with small containers, so that an epoch has several spans: CPU time of all
processes together.
"""

from __future__ import annotations

import io
import re
import statistics
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numba
import numpy as np
from PIL import Image

import picstore
from benchmarks.harness import MICROSECONDS, Case, Sample, Table, measure, tabulate
from benchmarks.options import Options
from picstore.kernels.jit import kernel
from picstore.prepare.convert.resumable_job import DatasetShape
from picstore.train.cpu import fused, run_color
from picstore.train.pipeline import loader_process, loader_process_main

SIDE, CROP, BATCH = 16, 224, 128
IMAGES, PROFILED = 12_800, 20  # images of an epoch; seconds
SMALL = 32 << 10  # bytes of a container
STANDARD = [picstore.RandomResizedCrop(CROP), picstore.RandomHorizontalFlip()]
JITTER = [picstore.ColorJitter(0.4, 0.4, 0.4, 0.1), picstore.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
# Ends of a stack: a line of Python, or a function of the interpreter.
_INTERPRETER = re.compile(r"(\.py|<string>):\d+\)$|\((lib)?python[\d.]*(\.so[\d.]*)?\)$")
JOBS = {"RandomResizedCrop, flip": STANDARD, "the same, ColorJitter, Normalize": [*STANDARD, *JITTER]}


def _fuse_nothing(
    slots: Any, marks: Any, _streams: Any, _geometry: Any, _arrays: Any, _targets: Any, _stages: Any
) -> Any:
    marks[1][slots[0] : slots[1]] = True
    return slots[1]


def _color_nothing(*arguments: Any) -> None:
    pass


def remove_kernels() -> None:
    """Replace the kernels that JOBS call in this process: the fused one, and two of color."""
    fused.run_fused = kernel(fused.run_fused.signature)(_fuse_nothing)
    run_color.run_pointwise = run_color.normalize_image = numba.njit(nogil=True)(_color_nothing)


def serve() -> None:
    """Run a loader's process without the kernels."""
    remove_kernels()
    loader_process_main.main()


def python(options: Options) -> Table:
    """µs of CPU time for an image, in one thread that decodes and the consumer's."""
    images = IMAGES // 10 if options.quick else IMAGES
    path = write_tiny(options.work / "tiny", images, DatasetShape())
    small = write_tiny(options.work / "small", 2 * images, DatasetShape(container_size=SMALL))
    remove_kernels()
    cases = [Case(name, read_epoch, lambda name=name: make_loader(str(path), name)) for name in JOBS]
    results = measure(cases, rounds=options.round_count(5), clock=time.process_time)
    for result in results:
        if fraction := interpreted(path, result.name, options):
            typical = statistics.median(map(MICROSECONDS.value, result.samples))
            result.figures["in the interpreter, µs (15 asked)"] = fraction * typical
    loader_process._MAIN = f"{__name__}:serve"
    names = {"RandomResizedCrop, flip, 1 process": 1, "the same, 2 processes": 2}
    several = [
        Case(name, read_timed, lambda count=count: start_loader(str(small), count)) for name, count in names.items()
    ]
    results += measure(several, rounds=options.round_count(5), warmups=3)
    about = f"images of {SIDE} × {SIDE}, crops of {CROP} × {CROP}, batches of {BATCH}, no kernels"
    return tabulate(results, about, unit=MICROSECONDS)


def write_tiny(path: Path, images: int, shape: DatasetShape) -> Path:
    """Write a data set of tiny images."""
    with picstore.Writer(path, classes=["any"], shape=shape) as writer:
        for number in range(images):
            writer.add(noise(number % 64), label=0)
    return path


def noise(number: int) -> bytes:
    out = io.BytesIO()
    pixels = np.random.default_rng(number).integers(0, 256, (SIDE, SIDE, 3), np.uint8)
    Image.fromarray(pixels).save(out, "JPEG")
    return out.getvalue()


def make_loader(path: str, name: str) -> picstore.Loader:
    """Loader of a job, in threads."""
    return picstore.Loader(path, batch_size=BATCH, transform=JOBS[name], threads=1, isolate=False)


def read_epoch(loader: picstore.Loader) -> int:
    """Read an epoch; returns the images."""
    return sum(len(batch) for batch in loader)


def start_loader(path: str, processes: int) -> picstore.Loader:
    """Loader of the first job in processes."""
    return picstore.Loader(path, batch_size=BATCH, transform=STANDARD, threads=2, processes=processes)


def read_timed(loader: picstore.Loader) -> Sample:
    """Read two epochs; a Sample of the CPU time of all processes."""
    before, cpu, start = loader.stats, cpu_of_all(loader), time.perf_counter()
    images = read_epoch(loader) + read_epoch(loader)
    seconds, read = time.perf_counter() - start, (loader.stats - before).bytes
    figures = {"images/s": images / seconds, "bytes an image": read / images}
    return Sample(images, cpu_of_all(loader) - cpu, figures)


def cpu_of_all(loader: picstore.Loader) -> float:
    """CPU time of this process and of a loader's, which Linux numbers as clocks."""
    pids = [each._process.pid for each in loader._runner._processes]
    return time.process_time() + sum(time.clock_gettime((~pid << 3) | 2) for pid in pids)


def read_forever(path: str, name: str) -> None:
    """Read epochs for the profiler."""
    remove_kernels()
    loader = make_loader(path, name)
    while True:
        read_epoch(loader)


def interpreted(path: Path, name: str, options: Options) -> float:
    """Fraction of the time that is the interpreter's, by py-spy's samples; 0 where it is not installed."""
    out = options.work / "stacks"
    program = f"from benchmarks.loaders.python_time import read_forever; read_forever({str(path)!r}, {name!r})"
    command = ["py-spy", "record", "--native", "--format", "raw", "--rate", "200", "--output", str(out)]
    command += ["--duration", "3" if options.quick else str(PROFILED), "--", sys.executable, "-c", program]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError:
        return 0
    counts: Counter[bool] = Counter()
    for line in out.read_text().splitlines():
        stack, _, samples = line.rpartition(" ")
        leaf = stack.rpartition(";")[2]
        if not re.match(r"0x[0-9a-f]+ \(libc", leaf):  # a thread that waits
            counts[bool(_INTERPRETER.search(leaf))] += int(samples)
    return counts[True] / (counts[True] + counts[False])
