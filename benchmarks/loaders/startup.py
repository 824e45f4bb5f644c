"""Startup: the command line, compiling and loading of kernels, a loader's first batch."""

from __future__ import annotations

import subprocess
import sys
import time

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
