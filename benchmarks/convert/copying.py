"""``picstore shuffle`` against copies of the same bytes, and containers read against files read."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import google_crc32c
import numpy as np

from benchmarks.command import command_seconds
from benchmarks.dataset import write_dataset
from benchmarks.harness import GIGABYTES_PER_SECOND, Case, Sample, Table, measure, tabulate
from benchmarks.options import Options
from benchmarks.photographs import size_of

BLOCK = 8 << 20

Copy = Callable[[Path, Path, "list[Path]"], None]


def shuffle(options: Options) -> Table:
    """``picstore shuffle`` against ``cp``, with and without checksums.

    All begin with the list of files and end when every byte is synced, with as many processes each.
    """
    source, target = _source(options), options.work / "target"
    small = write_dataset(options, copies=1)

    def run_shuffle(_: None) -> Sample:
        workers = ("--workers", options.workers)
        warmup = ("shuffle", small, options.work / "warmup", *workers)
        seconds = command_seconds(("shuffle", source, target, "--seed", 1, *workers), warmup=warmup)
        shutil.rmtree(options.work / "warmup")
        return _done(source, target, seconds)

    def run_copy(copy: Copy) -> Sample:
        return _done(source, target, _copy_seconds(copy, source, target, options.workers))

    copies: dict[str, Copy] = {
        "cp, and CRC-32C of source and copy": cp_and_check,
        "cp alone": cp,
    }
    cases = [Case("picstore shuffle", run_shuffle)]
    cases += [Case(name, run_copy, partial(lambda copy: copy, copy)) for name, copy in copies.items()]
    results = measure(cases, rounds=options.round_count(5), warmups=0)
    about = f"{size_of(source) / 1e9:.2f} GB, in {options.work}; {options.workers} processes"
    return tabulate(results, about, unit=GIGABYTES_PER_SECOND, first="picstore")


def _source(options: Options) -> Path:
    # Of one stream, so that files are as large as in a data set of 16 streams and 16 times the size.
    return write_dataset(options, "--streams", "1", copies=6 * options.copies)


def _done(source: Path, target: Path, seconds: float) -> Sample:
    shutil.rmtree(target)
    return Sample(size_of(source), seconds)


def files_of(source: Path) -> list[Path]:
    """Files of a data set, relative to it."""
    return sorted(path.relative_to(source) for path in source.rglob("*") if path.is_file())


def _copy_seconds(copy: Copy, source: Path, target: Path, workers: int) -> float:
    """Seconds until all files are copied, in processes that were started before."""
    files = files_of(source)
    for folder in {path.parent for path in files}:
        (target / folder).mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(workers) as pool:
        list(pool.map(time.sleep, [0.05] * workers))
        start = time.perf_counter()
        tasks = [pool.submit(copy, source, target, files[number::workers]) for number in range(workers)]
        for task in tasks:
            task.result()
        return time.perf_counter() - start


def cp(source: Path, target: Path, files: list[Path]) -> None:
    """Copy files by ``cp``, all of a folder at once, and sync them."""
    for folder in sorted({path.parent for path in files}):
        names = [str(source / path) for path in files if path.parent == folder]
        subprocess.run(["cp", *names, str(target / folder)], check=True)
    for path in files:
        with (target / path).open("rb") as file:
            os.fsync(file.fileno())


def checksum(path: Path, buffer: np.ndarray) -> int:
    """CRC-32C of a file."""
    value = 0
    with path.open("rb", buffering=0) as file:
        while size := file.readinto(memoryview(buffer)):
            value = google_crc32c.extend(value, buffer[:size])
    return value


def cp_and_check(source: Path, target: Path, files: list[Path]) -> None:
    """Copy by ``cp``, and compare the checksums of both sides."""
    cp(source, target, files)
    buffer = np.empty(BLOCK, np.uint8)
    for path in files:
        if checksum(source / path, buffer) != checksum(target / path, buffer):
            raise ValueError(f"{path} differs")
