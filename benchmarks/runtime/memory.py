"""Memory bounds: peak of a convert worker, a shuffle worker and a loader on ten times the data that each may hold.

Each does a little of the same work first; its memory counts from then on, so imports, kernels and libraries do not.
Sampled every 10 ms; Linux only (/proc).
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.child import Child, process_tree
from benchmarks.command import command_seconds, time_command
from benchmarks.harness import Row, Table
from benchmarks.options import Options

MIB = 1 << 20
SIDE = 512  # pixels; a JPEG of noise of this size has some 200 KB
STREAMS, CONTAINER = 16, 2 * MIB  # of a convert worker
BOUND, FILES = 64 * MIB, 10  # of a file that a shuffle worker writes, and of the loader's budget
ROWS = {
    "convert": (STREAMS * CONTAINER, "a worker: 16 streams × containers of 2 MiB, and an image"),
    "shuffle": (BOUND, "a worker: a file"),
    "loader": (BOUND, "its budget; batches and decoded images are the rest"),
}


def memory(options: Options) -> Table:
    """Peak of each beside its bound."""
    factor = 1 if options.quick else FILES
    rows: list[Row] = []
    jpegs = [_noise(number) for number in range(8)]
    for name, (bound, meaning) in ROWS.items():
        little, whole = options.work / f"{name}-little", options.work / f"{name}-whole"
        _prepare(name, little, jpegs, len(jpegs))
        _prepare(name, whole, jpegs, factor * bound // len(jpegs[0]))
        peak = peak_memory(name, little, whole)
        rows.append({"part": name, "may hold, MiB": bound / MIB, "peak, MiB": peak / MIB, "which is": meaning})
    return Table(f"{factor} times as much data as each may hold", rows)


def _noise(number: int) -> bytes:
    """A JPEG that does not compress."""
    out = io.BytesIO()
    pixels = np.random.default_rng(number).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(out, "JPEG", quality=90)
    return out.getvalue()


def _prepare(name: str, folder: Path, jpegs: list[bytes], count: int) -> None:
    """A folder of images for convert, a list of them that repeats; a data set for the others."""
    folder.mkdir()
    for number, jpeg in enumerate(jpegs):
        (folder / f"{number}.jpg").write_bytes(jpeg)
    listing = folder / "all.txt"
    listing.write_text("".join(f"{number % len(jpegs)}.jpg 0\n" for number in range(count)))
    if name != "convert":
        settings = ("--streams", FILES, "--container-size", "1MiB", "--file-size", BOUND)
        command_seconds(("convert", listing, folder / "set", *settings))


def peak_memory(name: str, little: Path, whole: Path) -> int:
    """Peak bytes of the largest process beyond those before; of convert and shuffle without the one that waits."""
    with Child(f"benchmarks.runtime.memory:{name}", little, whole) as child:
        child.answer()
        first = 0 if name == "loader" else 1

        def largest() -> int:
            return max((_memory_of(pid) for pid in list(process_tree(child.pid))[first:]), default=0)

        before = peak = largest()
        for _ in child.watch(every=0.01):
            peak = max(peak, largest())
        child.answer()
    return peak - before


def _memory_of(pid: int) -> int:
    """Resident bytes that are not mapped files; 0 of a process that has ended."""
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/status").read_text()
        return sum(int(kib) for kib in re.findall(r"Rss(?:Anon|Shmem):\s*(\d+) kB", text)) << 10
    return 0


def convert(*folders: str) -> Iterator[None]:
    """Convert in one worker."""
    settings = ["--streams", str(STREAMS), "--container-size", str(CONTAINER), "--workers", "1"]
    for folder in folders:
        time_command(["convert", f"{folder}/all.txt", f"{folder}/out", *settings], [])
        yield


def shuffle(*folders: str) -> Iterator[None]:
    """Shuffle in one worker."""
    for folder in folders:
        time_command(["shuffle", f"{folder}/set", f"{folder}/out", "--workers", "1"], [])
        yield


def loader(*folders: str) -> Iterator[None]:
    """Read an epoch."""
    import picstore

    options = {"batch_size": 32, "drop_last": False, "lanes": 32, "threads": 2, "budget": BOUND, "isolate": False}
    for folder in folders:
        for _ in picstore.Loader(f"{folder}/set", transform=[picstore.Resize((32, 32))], **options):
            pass
        yield
