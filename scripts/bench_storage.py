"""Compare picstore's shuffle with copying the same bytes, and reading containers with reading files, in one run.

    python scripts/bench_storage.py FOLDER [--copies 60] [--rounds 5] [--workers 2] [--work DIR] [--json FILE]

FOLDER has one sub-folder of JPEG files a class; a data set of sixty copies of each is made first. Then take turns,
with as many processes each, from the list of files to all bytes synced:

    shuffle     `picstore shuffle`, which reads and checks every record, permutes, and writes and checksums files
    copy        `cp` of the data set, one a process, and CRC-32C of the source and of the copy by google-crc32c
    copy once   a loop that reads, checksums, writes and checksums again what it wrote while it is in memory: as fast as
                a copy with a checksum on both sides can be
    cp          `cp` alone

and, on one core, from the page cache: containers read and all of their records checked; the same files read.
Starting Python does not count. All lies in memory (/dev/shm) where there is such a place.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import google_crc32c
import numpy as np
from bench_convert import MEMORY
from bench_loaders import copy_images, say
from contenders.table import machine

import picstore
from picstore.train.buffers import Memory

BLOCK = 8 << 20
SHUFFLE = """
import sys, time
from picstore.prepare.engine import processes
from picstore.prepare.upkeep import shuffle
processes.start_fork_server("picstore.prepare.upkeep.shuffle")
from multiprocessing import get_context
ready = get_context("forkserver").Process(target=time.sleep, args=(0,))
ready.start()
ready.join()  # by now it has imported all
start = time.perf_counter()
shuffle.shuffle(sys.argv[1], sys.argv[2], seed=1, method="transpose", workers=int(sys.argv[3]))
print(time.perf_counter() - start)
"""


def shuffle(source: Path, target: Path, workers: int) -> float:
    """Seconds of picstore's shuffle in a process of its own."""
    command = [sys.executable, "-c", SHUFFLE, source, target, str(workers)]
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def files_of(source: Path) -> list[Path]:
    """All files of a data set, below it."""
    return sorted(path.relative_to(source) for path in source.rglob("*") if path.is_file())


def shares_of(source: Path, target: Path, workers: int) -> list[tuple[Path, Path, list[Path]]]:
    """What each process copies; the folders are made."""
    files = files_of(source)
    for folder in {path.parent for path in files}:
        (target / folder).mkdir(parents=True, exist_ok=True)
    return [(source, target, files[k::workers]) for k in range(workers)]


def timed(step: Callable[..., None], shares: list[tuple[Path, Path, list[Path]]]) -> float:
    """Seconds until a step is done with all shares, each in a process that was there before."""
    with ProcessPoolExecutor(len(shares)) as pool:
        list(pool.map(time.sleep, [0.05] * len(shares)))
        start = time.perf_counter()
        list(pool.map(step, *zip(*shares, strict=True)))
        return time.perf_counter() - start


def cp(source: Path, target: Path, files: list[Path]) -> None:
    """Copy files by `cp`, all of a folder at once, and sync them."""
    for folder in sorted({path.parent for path in files}):
        names = [str(source / path) for path in files if path.parent == folder]
        subprocess.run(["cp", *names, str(target / folder)], check=True)
    sync(target, files)


def sync(target: Path, files: list[Path]) -> None:
    for path in files:
        descriptor = os.open(target / path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def checksum(path: Path, buffer: np.ndarray) -> int:
    """CRC-32C of a file."""
    value = 0
    with path.open("rb", buffering=0) as file:
        while size := file.readinto(memoryview(buffer)):
            value = google_crc32c.extend(value, buffer[:size])
    return value


def cp_and_check(source: Path, target: Path, files: list[Path]) -> None:
    """As ``cp``, and compare checksums of both sides."""
    cp(source, target, files)
    buffer = np.empty(BLOCK, np.uint8)
    for path in files:
        if checksum(source / path, buffer) != checksum(target / path, buffer):
            raise ValueError(f"{path} differs")


def copy_once(source: Path, target: Path, files: list[Path]) -> None:
    """Copy block by block, with the checksum of each before and after."""
    buffer = np.empty(BLOCK, np.uint8)
    block = memoryview(buffer)
    for path in files:
        with (source / path).open("rb", buffering=0) as file, (target / path).open("wb", buffering=0) as out:
            while size := file.readinto(block):
                before = google_crc32c.value(buffer[:size])
                out.write(block[:size])
                if google_crc32c.value(buffer[:size]) != before:
                    raise ValueError(f"{path} differs")
            os.fsync(out.fileno())


def read_containers(source: Path) -> float:
    """Seconds to read all containers of a data set as the loader does, every checksum compared, in one thread."""
    dataset, memory = picstore.Dataset(source), Memory()
    start = time.perf_counter()
    for number in range(len(dataset.rows)):
        container = dataset.container(number, allocate=memory.containers.take)
        if not container.good.all():
            raise ValueError(f"container {number} is damaged")
    return time.perf_counter() - start


def read_files(source: Path) -> float:
    """Seconds to read the same files in blocks of the same size."""
    buffer = bytearray(BLOCK)
    start = time.perf_counter()
    for path in files_of(source):
        with (source / path).open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    return time.perf_counter() - start


def lines_of(times: dict[str, list[float]], size: int, first: str) -> list[str]:
    """A Markdown table of GB/s."""
    lines = ["", f"| | GB/s, median | min to max | {first} is |", "|---|---|---|---|"]
    medians = {name: size / statistics.median(found) / 1e9 for name, found in times.items()}
    for name, median in medians.items():
        span = f"{size / max(times[name]) / 1e9:.2f} to {size / min(times[name]) / 1e9:.2f}"
        lines.append(f"| {name} | {median:.2f} | {span} | {medians[first] / median:.2f}× |")
    return lines


def run(options: argparse.Namespace, work: Path) -> None:
    """Make a data set, let all take turns, print both tables."""
    about, source, target = machine(), work / "set", work / "target"
    copy_images(options.folder, work / "images", options.copies)
    # Of one stream, so that files are as large as those of a data set of 16 streams and 16 times the size.
    command = [sys.executable, "-m", "picstore.cli", "convert", work / "images", source, "--streams", "1"]
    subprocess.run(command, check=True, capture_output=True)
    shutil.rmtree(work / "images")
    size = sum((source / path).stat().st_size for path in files_of(source))
    writers: dict[str, Callable[[], float]] = {"shuffle": lambda: shuffle(source, target, options.workers)}
    for name, step in (("copy", cp_and_check), ("copy once", copy_once), ("cp", cp)):
        writers[name] = lambda step=step: timed(step, shares_of(source, target, options.workers))
    readers = {"containers": lambda: read_containers(source), "files": lambda: read_files(source)}
    times: dict[str, list[float]] = {name: [] for name in (*writers, *readers)}
    for _ in range(options.rounds):
        for name, job in {**writers, **readers}.items():
            times[name].append(job())
            shutil.rmtree(target, ignore_errors=True)
            say(f"{name}: {size / times[name][-1] / 1e9:.2f} GB/s")
    print(
        f"{about['processor']}, {about['cpus']} CPUs, {about['system']}, load {about['load']:.1f} at the start; "
        f"{size / 1e9:.2f} GB in {work}, {options.workers} processes, {options.rounds} rounds"
    )
    print("\n".join(lines_of({name: times[name] for name in writers}, size, "shuffle")))
    print("\n".join(lines_of({name: times[name] for name in readers}, size, "containers")))
    if options.json:
        options.json.write_text(json.dumps({"machine": about, "bytes": size, "seconds": times}, indent=2) + "\n")


def main() -> None:
    """Parse the command line and run in a temporary folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--copies", type=int, default=60, help="copies of each image (default 60)")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each (default 5)")
    parser.add_argument("--workers", type=int, default=2, help="processes of each (default 2)")
    parser.add_argument("--work", type=Path, metavar="DIR", help="where all files lie (default /dev/shm)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure here")
    options = parser.parse_args()
    place = options.work or (MEMORY if os.access(MEMORY, os.W_OK) else None)
    with tempfile.TemporaryDirectory(prefix="bench-storage-", dir=place) as work:
        run(options, Path(work))


if __name__ == "__main__":
    main()
