"""Memory bounds: peak of a convert worker, a shuffle worker and a loader on ten times the data that each may hold.

The peak is that of the process on the whole data less that on a little of it: imports, kernels and libraries do not
count. Linux only (/proc).
"""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.child import Child, process_tree
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
        peak = max(0.0, peak_memory(name, whole) - peak_memory(name, little))
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
    from benchmarks.command import command_seconds

    folder.mkdir()
    for number, jpeg in enumerate(jpegs):
        (folder / f"{number}.jpg").write_bytes(jpeg)
    listing = folder / "all.txt"
    listing.write_text("".join(f"{number % len(jpegs)}.jpg 0\n" for number in range(count)))
    if name != "convert":
        settings = ("--streams", FILES, "--container-size", "1MiB", "--file-size", BOUND)
        command_seconds(("convert", listing, folder / "set", *settings))


def peak_memory(name: str, folder: Path) -> int:
    """Peak resident bytes of the largest process, without the one that only waits for workers."""
    peak = 0
    with Child(f"benchmarks.runtime.memory:{name}", folder) as child:
        for _ in child.watch(every=0.02):
            pids = list(process_tree(child.pid))
            for pid in pids[1:] if name != "loader" else pids[:1]:
                peak = max(peak, _high_water(pid))
        child.answer()
    return peak


def _high_water(pid: int) -> int:
    with contextlib.suppress(OSError):
        if found := re.search(r"VmHWM:\s*(\d+) kB", Path(f"/proc/{pid}/status").read_text()):
            return int(found[1]) << 10
    return 0


def convert(folder: str) -> str:
    """Convert in one worker."""
    from benchmarks.command import time_command

    settings = ["--streams", str(STREAMS), "--container-size", str(CONTAINER), "--workers", "1"]
    time_command(["convert", f"{folder}/all.txt", f"{folder}/out", *settings], [])
    return "done"


def shuffle(folder: str) -> str:
    """Shuffle in one worker."""
    from benchmarks.command import time_command

    time_command(["shuffle", f"{folder}/set", f"{folder}/out", "--workers", "1"], [])
    return "done"


def loader(folder: str) -> str:
    """Read an epoch."""
    import picstore

    resize = [picstore.Resize((32, 32))]
    options = {"batch_size": 32, "drop_last": False, "lanes": 32, "threads": 2, "budget": BOUND, "isolate": False}
    for _ in picstore.Loader(f"{folder}/set", transform=resize, **options):
        pass
    return "done"
