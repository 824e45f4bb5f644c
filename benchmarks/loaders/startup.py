"""Startup: the command line, compiling and loading of kernels, a loader's first batch."""

from __future__ import annotations

import io
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.child import call
from benchmarks.dataset import write_dataset
from benchmarks.harness import SECONDS, Case, Sample, Table, measure, tabulate
from benchmarks.options import Options

COMMANDS = {
    "import picstore": ["-c", "import picstore"],
    "picstore --help": ["-m", "picstore", "--help"],
    "picstore convert --help": ["-m", "picstore", "convert", "--help"],
    "python -c pass": ["-c", "pass"],
}
STANDARD = ("standard job",)


def startup(options: Options) -> Table:
    """Seconds of commands in processes of their own; asked for are 0.3."""

    def run(arguments: list[str]) -> int:
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
        return 1

    cases = [Case(name, run, lambda arguments=arguments: arguments) for name, arguments in COMMANDS.items()]
    return tabulate(measure(cases, rounds=options.round_count(15)), "a process each", unit=SECONDS)


def first_batch(options: Options) -> Table:
    """Seconds to the first batch of 128 in a process that has imported torch, kernels compiled before; asked is 1."""
    dataset = write_dataset(options, copies=1)
    cases = [
        Case(name, lambda isolate: Sample(1, call("benchmarks.loaders.startup:time_first_batch", dataset, isolate)), f)
        for name, f in (("loader process", lambda: True), ("threads", lambda: False))
    ]
    return tabulate(measure(cases, rounds=options.round_count(5)), "one batch of the standard job", unit=SECONDS)


def time_first_batch(dataset: str, isolate: bool) -> float:
    """Seconds to a loader's first batch."""
    import torch  # noqa: F401 - importing it is not counted

    start = time.perf_counter()
    import picstore

    steps = [picstore.RandomResizedCrop(224), picstore.RandomHorizontalFlip()]
    loader = picstore.Loader(dataset, batch_size=128, transform=steps, drop_last=False, isolate=isolate)
    batches = iter(loader)  # held, or its end would count too, which waits for what is being decoded
    next(batches)
    return time.perf_counter() - start


def compile_kernels(options: Options) -> Table:
    """Seconds of kernels' first use: compiled with an empty cache, and loaded from it by later processes.

    The first row is a loader's first batch, of which 8 s are asked for; the others are uses without their work. All are
    to compile in 10 s, and to load in 0.3 s, beyond importing numba and torch.
    """
    target, batch = "benchmarks.loaders.startup:time_uses", "benchmarks.loaders.startup:time_first_batch"
    dataset = write_dataset(options, copies=1)
    first: dict[str, list[float]] = {"compiled, s": [], "loaded, s": []}
    for _ in range(options.round_count(3)):
        with tempfile.TemporaryDirectory() as cache:
            for times in first.values():
                times.append(call(batch, dataset, True, environment={"NUMBA_CACHE_DIR": cache}))
    with tempfile.TemporaryDirectory() as cache:
        environment = {"NUMBA_CACHE_DIR": cache}
        compiled = call(target, options.quick, environment=environment)
        runs = [call(target, options.quick, environment=environment) for _ in range(options.round_count(5))]
    loaded = {name: statistics.median(run[name] for run in runs) for name in compiled}
    groups = {name: (name,) for name in compiled} | {"of the standard job": STANDARD, "all": tuple(compiled)}
    rows: list[dict[str, Any]] = [
        {
            "kernels": "first batch of the standard job",
            **{name: statistics.median(each) for name, each in first.items()},
        }
    ]
    rows += [
        {"kernels": name, **{column: sum(seconds[one] for one in members) for column, seconds in columns.items()}}
        for columns in ({"compiled, s": compiled, "loaded, s": loaded},)
        for name, members in groups.items()
    ]
    return Table(f"one process each, loading the median of {len(runs)}", rows)


def time_uses(quick: bool) -> dict[str, float]:
    """Seconds that each use takes in this new process, without the work itself."""
    import numba  # noqa: F401 - importing it is not counted
    import torch

    torch.set_num_threads(1)
    seconds = {}
    for name, use in list(uses().items())[: 2 if quick else None]:
        start = time.perf_counter()
        use()
        first, start = time.perf_counter() - start, time.perf_counter()
        use()
        seconds[name] = first - (time.perf_counter() - start)
    return seconds


def uses() -> dict[str, Callable[[], object]]:
    """Kernels by what uses them, in an order in which a later use finds an earlier one's kernels."""
    import numpy as np
    import torch
    from PIL import Image

    import picstore

    out = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(out, "JPEG")
    jpeg = out.getvalue()
    crop = [picstore.RandomResizedCrop(32), picstore.RandomHorizontalFlip()]
    normalize = picstore.Normalize((0.5, 0.5, 0.5), (0.2, 0.2, 0.2))

    def load(*steps: Any, **options: Any) -> None:
        with tempfile.TemporaryDirectory() as folder:
            with picstore.Writer(Path(folder) / "set", classes=["any"]) as writer:
                writer.add(jpeg, label=0)
            loader = picstore.Loader(Path(folder) / "set", batch_size=1, transform=[*steps], isolate=False, **options)
            next(iter(loader))
            loader.close()

    found: dict[str, Callable[[], object]] = {
        "restart markers": lambda: picstore.add_restart_markers(jpeg),
        "standard job": lambda: load(*crop),
        "cut": lambda: picstore.cut(picstore.add_restart_markers(jpeg), (10, 10, 20, 20)),
        "resize": lambda: load(picstore.Resize((32, 32))),
        "rotation": lambda: load(picstore.RandomRotation((20, 20)), picstore.Resize((32, 32))),
        "jitter": lambda: load(*crop, picstore.ColorJitter(0.4)),
        "blur": lambda: load(*crop, picstore.GaussianBlur(5)),
        "noise": lambda: load(*crop, picstore.GaussianNoise()),
        "erase": lambda: load(*crop, normalize, picstore.RandomErasing(1, value="random"), dtype=torch.float16),
    }
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        found[f"normalize to {str(dtype)[6:]}"] = lambda dtype=dtype: load(*crop, normalize, dtype=dtype)
    return found
