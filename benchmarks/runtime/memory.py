"""Memory bounds: peak of a convert worker, a shuffle worker and a loader on ten times the data that each may hold.

Each does its work in a process of its own, which does a little of the same work first. From then on the peak of its
resident memory counts, above what it held, so imports, kernels and libraries do not. Linux only (/proc).
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

import picstore
from benchmarks.child import call
from benchmarks.harness import Row, Table
from benchmarks.options import Options
from picstore.prepare.convert.row_division import DatasetShape
from picstore.prepare.convert.rows import RowTask, convert_row
from picstore.prepare.image.encode_settings import EncodeSettings
from picstore.prepare.sources.inputs import Input
from picstore.prepare.upkeep.shuffled_copy import _file_tasks, write_file
from picstore.storage.location.resolve import UNFINISHED, locate

MIB = 1 << 20
SIDE, DIFFERENT = 512, 8  # pixels of an image, a JPEG of noise of some 200 KB; images, which repeat
STREAMS, CONTAINER = 16, 2 * MIB  # of a convert worker
BOUND, FACTOR = 64 * MIB, 10  # bytes of a file that a shuffle worker writes, and of the loader's budget
ROWS = {
    "convert": (STREAMS * CONTAINER, "a worker: 16 streams × containers of 2 MiB, and an image"),
    "shuffle": (BOUND, "a worker: a file"),
    "loader": (BOUND, "its budget; batches and decoded images are the rest"),
}


def memory(options: Options) -> Table:
    """Peak of each beside its bound."""
    factor = 1 if options.quick else FACTOR
    jpegs = [_noise(number) for number in range(DIFFERENT)]
    for number, jpeg in enumerate(jpegs):
        (options.work / f"{number}.jpg").write_bytes(jpeg)
    _write_dataset(options.work / "little", jpegs, 8 * MIB)
    _write_dataset(options.work / "whole", jpegs, factor * BOUND)
    rows: list[Row] = []
    for name, (bound, meaning) in ROWS.items():
        peak = call(f"benchmarks.runtime.memory:{name}", options.work, factor * bound // len(jpegs[0]))
        figures = {"may hold, MiB": bound / MIB, "peak, MiB": peak / MIB, "of the bound": f"{peak / bound:.2f}×"}
        rows.append({"part": name, **figures, "which is": meaning})
    return Table(f"{factor} times as much data as each may hold", rows)


def convert(work: str, images: int) -> int:
    """Convert a row in this process; returns the bytes at its peak."""

    def convert_row_of(count: int) -> None:
        root = Path(work) / f"converted-{count}"
        (root / UNFINISHED).mkdir(parents=True)
        inputs = [Input(str(number), 0, f"{work}/{number % DIFFERENT}.jpg") for number in range(count)]
        shape = DatasetShape(streams=STREAMS, container_size=CONTAINER)
        convert_row(RowTask(locate(root), 0, 0, inputs, EncodeSettings(), shape, root / UNFINISHED), lambda _: None)

    convert_row_of(DIFFERENT)
    return peak_memory(lambda: convert_row_of(images))


def shuffle(work: str, _: int) -> int:
    """Write one of the files of a shuffle in this process; returns the bytes at its peak."""

    def write(dataset: picstore.Dataset) -> None:
        target = locate(f"{dataset.path}-shuffled")
        write_file(next(_file_tasks(dataset, target, DatasetShape(container_size=MIB))), lambda _: None)

    write(picstore.Dataset(f"{work}/little"))
    whole = picstore.Dataset(f"{work}/whole")
    return peak_memory(lambda: write(whole))


def loader(work: str, _: int) -> int:
    """Read an epoch in this process; returns the bytes at its peak."""

    def read(path: str) -> None:
        options = {"batch_size": 32, "lanes": 32, "threads": 2, "budget": BOUND, "isolate": False}
        for _ in picstore.Loader(path, transform=[picstore.Resize((32, 32))], **options):
            pass

    read(f"{work}/little")
    return peak_memory(lambda: read(f"{work}/whole"))


def peak_memory(work: Callable[[], object]) -> int:
    """Bytes of resident memory that a piece of work takes at its peak, above what this process held."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins again at the present size
    before = _status("VmRSS")
    work()
    return _status("VmHWM") - before


def _status(name: str) -> int:
    """Bytes by a field of /proc/self/status."""
    return int(re.findall(rf"{name}:\s*(\d+) kB", Path("/proc/self/status").read_text())[0]) << 10


def _noise(number: int) -> bytes:
    """A JPEG that does not compress."""
    out = io.BytesIO()
    pixels = np.random.default_rng(number).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(out, "JPEG", quality=90)
    return out.getvalue()


def _write_dataset(root: Path, jpegs: list[bytes], size: int) -> None:
    """Write a data set of that many bytes, in files of BOUND bytes at most and containers of 1 MiB."""
    shape = DatasetShape(streams=-(-size // BOUND), file_size=BOUND, container_size=MIB)
    with picstore.Writer(root, shape=shape) as writer:
        for number in range(size // len(jpegs[0])):
            writer.add(jpegs[number % DIFFERENT])
