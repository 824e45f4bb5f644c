"""Memory bounds: peak of a convert worker, a shuffle worker and a loader on ten times the data that each may hold.

Each does its work in a process of its own, which does a little of the same work first. From then on the peak of its
resident memory counts, above what it held, so imports, kernels and libraries do not. Linux only (/proc).
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

import picstore
from benchmarks.child import call
from benchmarks.harness import Row, Table
from benchmarks.options import Options
from picstore.prepare.convert.job import DatasetShape
from picstore.prepare.convert.row_writer import make_record
from picstore.prepare.convert.rows import RowTask, convert_row
from picstore.prepare.image.settings import EncodeSettings
from picstore.prepare.sources.inputs import Input
from picstore.prepare.upkeep.shuffle import _file_tasks, write_file
from picstore.storage.format.file import FileWriter
from picstore.storage.location.resolve import UNFINISHED, locate
from picstore.storage.publish import publish_dataset

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
    rows: list[Row] = []
    for name, (bound, meaning) in ROWS.items():
        folder = options.work / f"memory-{name}"
        folder.mkdir()
        peak = call(f"benchmarks.runtime.memory:{name}", folder, factor)
        figures = {"may hold, MiB": bound / MIB, "peak, MiB": peak / MIB, "of the bound": f"{peak / bound:.2f}×"}
        rows.append({"part": name, **figures, "which is": meaning})
    return Table(f"{factor} times as much data as each may hold", rows)


def convert(folder: str, factor: int) -> int:
    """Convert a row in this process; returns the bytes at its peak."""
    images = [Path(folder) / f"{number}.jpg" for number in range(DIFFERENT)]
    for number, image in enumerate(images):
        image.write_bytes(_noise(number))

    def convert_images(name: str, count: int) -> None:
        root = Path(folder) / name
        (root / UNFINISHED).mkdir(parents=True)
        inputs = [Input(str(number), 0, str(images[number % DIFFERENT])) for number in range(count)]
        shape = DatasetShape(streams=STREAMS, container_size=CONTAINER)
        convert_row(RowTask(locate(root), 0, 0, inputs, EncodeSettings(), shape, root / UNFINISHED), lambda _: None)

    convert_images("little", DIFFERENT)
    count = factor * STREAMS * CONTAINER // images[0].stat().st_size
    return peak_memory(lambda: convert_images("whole", count))


def shuffle(folder: str, factor: int) -> int:
    """Write one of the files of a shuffle in this process; returns the bytes at its peak."""

    def write(dataset: picstore.Dataset) -> None:
        target = locate(f"{dataset.path}-shuffled")
        write_file(next(_file_tasks(dataset, target, DatasetShape(container_size=MIB))), lambda _: None)

    write(picstore.Dataset(_write_dataset(Path(folder) / "little", files=1, file_size=4 * MIB)))
    whole = picstore.Dataset(_write_dataset(Path(folder) / "whole", files=factor, file_size=BOUND))
    return peak_memory(lambda: write(whole))


def loader(folder: str, factor: int) -> int:
    """Read an epoch in this process; returns the bytes at its peak."""

    def read(path: Path) -> None:
        options = {"batch_size": 32, "lanes": 32, "threads": 2, "budget": BOUND, "isolate": False}
        for _ in picstore.Loader(path, transform=[picstore.Resize((32, 32))], **options):
            pass

    read(_write_dataset(Path(folder) / "little", files=1, file_size=8 * MIB))
    whole = _write_dataset(Path(folder) / "whole", files=factor, file_size=BOUND)
    return peak_memory(lambda: read(whole))


def peak_memory(work: Callable[[], object]) -> int:
    """Bytes of resident memory that a piece of work takes at its peak, above those that this process held."""
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


def _write_dataset(root: Path, *, files: int, file_size: int) -> Path:
    """Write a data set of one file a stream, in containers of 1 MiB."""
    records = [make_record(_noise(number), id=0, label=number) for number in range(DIFFERENT)]
    summaries, count = [], 0
    for stream in range(files):
        with FileWriter(locate(root), stream=stream, file=0, container_size=MIB) as writer:
            size = 0
            while size < file_size:
                record = replace(records[count % DIFFERENT], id=count)
                writer.add(record)
                size += len(record.jpeg)
                count += 1
            summaries.append(writer.close())
    publish_dataset(root, summaries, streams=files, container_size=MIB, encode={}, provenance={})
    return root
