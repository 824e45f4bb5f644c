"""Jobs of the gate for speed: ``python benchmarks/gate_jobs.py JOB …`` prints items, seconds and a check as JSON.

The file imports nothing of this folder, and of picstore only what is public, since the picstore of another commit runs
it. What is compiled, imported and started before the measured part does not count.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

WORKERS = len(os.sched_getaffinity(0))
BATCH = 128
EPOCHS = 2

Measured = tuple[float, float, float]  # items, seconds, and a number that must be equal in both trees


def run_picstore(*arguments: object) -> None:
    """Run a verb in this process, quietly; RuntimeError unless it succeeds."""
    from picstore.cli import main

    sys.argv = ["picstore", *map(str, arguments)]
    try:
        main()
    except SystemExit as done:
        if done.code:
            raise RuntimeError(f"picstore {arguments[0]} ended with {done.code}") from None


def prepare(images: str, data: str) -> Measured:
    """Write the shuffled data set that the other jobs read."""
    with tempfile.TemporaryDirectory(dir=Path(data).parent) as folder:
        run_picstore("convert", images, Path(folder) / "converted", "--json")
        run_picstore("shuffle", Path(folder) / "converted", data, "--json")
    return 1, 1, 0


def convert(images: str, data: str) -> Measured:
    """Images of a lossless conversion, after a small one that starts processes and loads kernels."""
    few = next(path for path in sorted(Path(images).iterdir()) if path.is_dir())
    with tempfile.TemporaryDirectory(dir=Path(data).parent) as folder:
        run_picstore("convert", few, Path(folder) / "few", "--source", "folder", "--json")
        start = time.perf_counter()
        run_picstore("convert", images, Path(folder) / "all", "--json")
        seconds = time.perf_counter() - start
        count = json.loads((Path(folder) / "all" / "picstore.json").read_text())["images"]
    return count, seconds, count


def make_loader(data: str) -> Any:
    """The loader of the standard job."""
    import picstore

    steps = [picstore.RandomResizedCrop(224), picstore.RandomHorizontalFlip()]
    return picstore.Loader(data, batch_size=BATCH, transform=steps, drop_last=False, threads=WORKERS)


def standard(_: str, data: str) -> Measured:
    """Images of the standard job, after an epoch that warms up."""
    loader = make_loader(data)
    levels = sum(float(batch.images[:, :, ::16, ::16].double().mean()) for batch in loader)
    start = time.perf_counter()
    count = sum(len(batch.labels) for _ in range(EPOCHS) for batch in loader)
    seconds = time.perf_counter() - start
    loader.close()
    return count, seconds, levels


def first_batch(_: str, data: str) -> Measured:
    """The first batch of a new process that has imported torch."""
    import torch

    start = time.perf_counter()
    batches = iter(make_loader(data))
    batch = next(batches)
    seconds = time.perf_counter() - start
    return 1, seconds, float(batch.images.to(torch.float64).mean())


def decode(_: str, data: str) -> Measured:
    """Images decoded whole, by one thread."""
    import picstore

    jpegs = [record.jpeg for record in picstore.Dataset(data)][:200]
    mean = float(picstore.decode(jpegs[0]).mean())
    start = time.thread_time()
    for jpeg in jpegs:
        picstore.decode(jpeg)
    return len(jpegs), time.thread_time() - start, mean


JOBS = {"standard job": standard, "lossless convert": convert, "first batch": first_batch, "decode": decode}

if __name__ == "__main__":
    answers = os.dup(1)
    os.dup2(2, 1)  # what verbs print
    measured = (JOBS | {"prepare": prepare})[sys.argv[1]](sys.argv[2], sys.argv[3])
    os.write(answers, json.dumps(measured).encode())
