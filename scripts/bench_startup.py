"""What starting costs: the command line, the kernels on a machine's first use and in later processes, the first batch.

    python scripts/bench_startup.py [FOLDER]

The limits: 0.3 s for ``import picstore`` and ``picstore --help``; 10 s to compile all kernels once; 0.3 s to load those
that a process uses, beyond importing numba and torch; 1 s to a loader's first batch. FOLDER holds JPEG files at any
depth, of which a data set is made for that; without it this is left out.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

RUNS = 15
KERNEL_RUNS = 5
LIMIT = 0.3  # seconds
COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "import picstore": [sys.executable, "-c", "import picstore"],
    "picstore --help": [str(Path(sys.executable).parent / "picstore"), "--help"],
    "picstore convert --help": [str(Path(sys.executable).parent / "picstore"), "convert", "--help"],
}
FIRST_BATCH = """
import sys, time, torch
start = time.perf_counter()
import picstore
steps = [picstore.RandomResizedCrop(224), picstore.RandomHorizontalFlip()]
loader = picstore.Loader(sys.argv[1], batch_size=128, transform=steps)
next(iter(loader))
print(time.perf_counter() - start)
"""
STANDARD = ("numba itself", "upright")  # what the standard job needs: RandomResizedCrop and flip


def uses() -> dict[str, Callable[[], object]]:
    """Everything that is compiled, as the package calls it, in an order in which a later one shares earlier parts."""
    import numpy as np
    import torch
    from PIL import Image

    import picstore
    from picstore.jpeg.decoder.decode import decode
    from picstore.kernels.jit import kernel
    from picstore.train.cpu.color import develop
    from picstore.train.cpu.render import render, render_mask
    from picstore.train.transforms.color_program import Program, compose_color
    from picstore.train.transforms.geometry import Draws, Geometry, compose
    from picstore.train.transforms.opcodes import OutputDtype

    side = 64
    pixels = np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG")
    draws, size = Draws(0, 0, np.zeros(1, np.int64)), np.array([[side, side]])

    def geometry(*steps: object) -> Geometry:
        return compose(steps, Geometry.of_images(size[:, 0], size[:, 1]), draws)

    def resample(*steps: object) -> None:
        shape = geometry(*steps).size[0, ::-1].tolist()
        image = np.empty((3, *shape), np.uint8)
        render(pixels, geometry(*steps), 0, origin=(0, 0), factor=1, out=image)

    def mask(dtype: type) -> None:
        image = np.zeros((side, side), dtype)
        render_mask(image, geometry(), 0, out=image.copy())

    def color(*steps: object, dtype: torch.dtype = torch.uint8, channels_last: bool = False) -> None:
        program: Program = compose_color(steps, size, draws)
        image = torch.zeros((1, 3, side, side), dtype=torch.uint8).numpy()[0]
        bits = np.uint16 if dtype.itemsize == 2 else np.float32
        target = np.zeros((side, side, 3), bits).transpose(2, 0, 1) if channels_last else np.zeros_like(image, bits)
        develop(program, 0, image, image if dtype is torch.uint8 else target, OutputDtype.of(dtype))

    def upright() -> None:
        steps = [picstore.RandomResizedCrop(32), picstore.RandomHorizontalFlip()]
        with tempfile.TemporaryDirectory() as folder:
            with picstore.Writer(Path(folder) / "set", classes=["any"]) as writer:
                writer.add(out.getvalue(), label=0)
            next(iter(picstore.Loader(Path(folder) / "set", batch_size=1, transform=steps, isolate=False)))

    normalise = picstore.Normalize((0.5, 0.5, 0.5), (0.2, 0.2, 0.2))
    found: dict[str, Callable[[], object]] = {
        "numba itself": lambda: kernel(_nothing)(),
        "transcode": lambda: picstore.add_restart_markers(out.getvalue()),
        "upright": upright,
        "decode": lambda: decode(out.getvalue()),
        "cut": lambda: picstore.cut(picstore.add_restart_markers(out.getvalue()), (10, 10, 20, 20)),
        "resample": lambda: resample(picstore.Resize(32)),
        "affine": lambda: resample(picstore.RandomRotation((20, 20)), picstore.Resize(32)),
        "pointwise": lambda: color(picstore.ColorJitter(0.4)),
        "blur": lambda: color(picstore.GaussianBlur(5)),
        "noise": lambda: color(picstore.GaussianNoise()),
    }
    for name in ("uint8", "uint16", "int32"):
        found[f"mask {name}"] = lambda name=name: mask(getattr(np, name))
    for name in ("float32", "float16", "bfloat16"):
        dtype = getattr(torch, name)
        found[f"normalise {name}"] = lambda dtype=dtype: color(normalise, dtype=dtype)
        found[f"channels last {name}"] = lambda dtype=dtype: color(normalise, dtype=dtype, channels_last=True)
    found["erase"] = lambda: color(normalise, picstore.RandomErasing(1, value="random"), dtype=torch.float16)
    return found


def _nothing() -> None: ...


def measure() -> None:
    """Print, as JSON, the seconds that each use takes in this new process, beyond importing numba and torch."""
    import numba  # noqa: F401 - what it costs is not counted
    import torch

    torch.set_num_threads(1)
    seconds = {}
    for name, use in uses().items():
        start = time.perf_counter()
        use()
        first, start = time.perf_counter() - start, time.perf_counter()
        use()
        seconds[name] = first - (time.perf_counter() - start)  # without the work
    print(json.dumps(seconds))


def command_times() -> dict[str, list[float]]:
    """Wall seconds of each command, run in turn."""
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(RUNS):
        for name, command in COMMANDS.items():
            start = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            times[name].append(time.perf_counter() - start)
    return times


def output_of(command: list[str], cache: str) -> str:
    """What a new process prints, with numba's cache in a folder."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": cache}
    return subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout


def kernel_seconds(cache: str) -> dict[str, float]:
    seconds: dict[str, float] = json.loads(output_of([sys.executable, __file__, "--measure"], cache))
    return seconds


def first_batches(folder: Path, cache: str) -> list[float]:
    """Seconds to a loader's first batch, in processes that have imported torch; files and cache warm but for one."""
    with tempfile.TemporaryDirectory() as made:
        command = [str(Path(sys.executable).parent / "picstore"), "convert", str(folder), f"{made}/set"]
        subprocess.run(command, check=True, capture_output=True)
        command = [sys.executable, "-c", FIRST_BATCH, f"{made}/set"]
        return [float(output_of(command, cache)) for _ in range(KERNEL_RUNS + 1)][1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path, nargs="?", help="searched for JPEG files")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure()
        return
    print(f"{'':34s}{'median s':>9s}{'of the limit':>14s}")
    for name, measured in command_times().items():
        median = statistics.median(measured)
        print(f"{name:34s}{median:9.3f}{median / LIMIT:14.0%}")
    with tempfile.TemporaryDirectory() as cache:
        compiled = kernel_seconds(cache)
        runs = [kernel_seconds(cache) for _ in range(KERNEL_RUNS)]
        batches = first_batches(options.folder, cache) if options.folder else []
    loaded = {name: statistics.median(run[name] for run in runs) for name in compiled}
    print(f"\n{'kernels of':34s}{'compiled s':>11s}{'loaded s':>10s}")
    for name, seconds in compiled.items():
        print(f"{name:34s}{seconds:11.3f}{loaded[name]:10.4f}")
    for title, names in (("the standard job", STANDARD), ("all", tuple(compiled))):
        first, later = (sum(times[name] for name in names) for times in (compiled, loaded))
        print(f"{title:34s}{first:11.3f}{later:10.4f}   {first / 10:.0%} and {later / LIMIT:.0%} of the limits")
    if batches:
        print(f"{'first batch':34s}{statistics.median(batches):11.3f}")


if __name__ == "__main__":
    main()
