"""Peak memory of a convert worker, a shuffle worker and the loader, each on ten times the data that it may hold.

    python scripts/show_memory.py [--folder FOLDER]

Each part runs in a process of its own, which imports all it needs and does a little of the same work before it begins
to count; what it takes from then on is compared with what it may hold. Linux only (/proc). Needs 0.8 GB of disk in
FOLDER, by default the system's temporary folder, and half a minute.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from picstore.prepare.convert import job
from picstore.prepare.convert.row_writer import make_record
from picstore.prepare.convert.rows import RowTask, convert_row
from picstore.prepare.image.settings import EncodeSettings
from picstore.prepare.sources.open import Input
from picstore.prepare.upkeep.shuffle import _file_tasks, write_file
from picstore.storage.dataset import Dataset
from picstore.storage.format.file import FileWriter
from picstore.storage.location.local import Folder
from picstore.storage.location.resolve import UNFINISHED
from picstore.storage.publish import publish_dataset

MIB = 1 << 20
SIDE = 512  # pixels; a JPEG of noise of this size has some 200 KB
PICTURES = 8
STREAMS, CONVERT_CONTAINER = 16, 2 * MIB
FILE, FILES, CONTAINER = 64 * MIB, 10, MIB
BUDGET, LANES = 64 * MIB, 32
BATCH, THREADS = 32, 2


def noise(number: int) -> bytes:
    """A JPEG that does not compress."""
    out = io.BytesIO()
    pixels = np.random.default_rng(number).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(out, "JPEG", quality=90)
    return out.getvalue()


def write_dataset(root: Path, *, files: int, file_size: int) -> Path:
    """A data set of one file a stream, of a few pictures again and again."""
    records = [make_record(noise(number), id=0, label=number) for number in range(PICTURES)]
    summaries, count = [], 0
    for stream in range(files):
        with FileWriter(root, stream=stream, file=0, container_size=CONTAINER) as writer:
            size = 0
            while size < file_size:
                record = replace(records[count % PICTURES], id=count)
                writer.add(record)
                size += len(record.jpeg)
                count += 1
            summaries.append(writer.close())
    publish_dataset(root, summaries, streams=files, container_size=CONTAINER, encode={}, provenance={})
    return root


def status(name: str) -> int:
    """A figure of /proc/self/status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) << 10
    raise LookupError(name)


def peak_of(work: Callable[[], object]) -> int:
    """Bytes of resident memory that a piece of work takes at its peak, beyond what the process had."""
    Path("/proc/self/clear_refs").write_text("5")  # makes the present size the peak so far
    idle = status("VmRSS")
    work()
    return status("VmHWM") - idle


def convert(folder: Path) -> tuple[int, int]:
    """One row of ten times what its containers hold."""
    budget = STREAMS * CONVERT_CONTAINER
    (folder / "input").mkdir()
    for number in range(PICTURES):
        (folder / "input" / f"{number}.jpg").write_bytes(noise(number))
    size = len(noise(0))

    def row(name: str, count: int) -> RowTask:
        (folder / name / UNFINISHED).mkdir(parents=True)
        inputs = [Input(f"{k}", 0, str(folder / "input" / f"{k % PICTURES}.jpg")) for k in range(count)]
        shape = job.DatasetShape(streams=STREAMS, container_size=CONVERT_CONTAINER)
        return RowTask(Folder(folder / name), 0, 0, inputs, EncodeSettings(), shape, folder / name / UNFINISHED)

    convert_row(row("little", PICTURES), lambda _: None)
    whole = row("whole", 10 * budget // size)
    return budget, peak_of(lambda: convert_row(whole, lambda _: None))


def shuffle(folder: Path) -> tuple[int, int]:
    """One of ten files."""
    little = Dataset(write_dataset(folder / "little", files=1, file_size=4 * CONTAINER))
    write_file(
        next(_file_tasks(little, folder / "little-shuffled", job.DatasetShape(container_size=CONTAINER))),
        lambda _: None,
    )
    whole = Dataset(write_dataset(folder / "whole", files=FILES, file_size=FILE))
    task = next(_file_tasks(whole, folder / "whole-shuffled", job.DatasetShape(container_size=CONTAINER)))
    return FILE, peak_of(lambda: write_file(task, lambda _: None))


def load(folder: Path) -> tuple[int, int]:
    """An epoch of ten times the budget."""
    from picstore.train.loader import Loader
    from picstore.train.transforms.crops import Resize

    def epoch(path: Path) -> None:
        for _ in Loader(
            path,
            batch_size=BATCH,
            transform=[Resize((32, 32))],
            lanes=LANES,
            threads=THREADS,
            budget=BUDGET,
            isolate=False,
        ):
            pass

    epoch(write_dataset(folder / "little", files=1, file_size=8 * CONTAINER))
    whole = write_dataset(folder / "whole", files=FILES, file_size=FILE)
    return BUDGET, peak_of(lambda: epoch(whole))


PARTS = {
    "convert": (convert, "a worker: streams × container size, and an image"),
    "shuffle": (shuffle, "a worker: a file"),
    "load": (load, "the loader: its budget"),
}


def main() -> None:
    """Measure all parts, or in a child process one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where to put data sets for a while")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part:
        print(json.dumps(PARTS[arguments.part][0](arguments.folder)))
        return
    print(f"{'part':<10}{'may hold':>10}{'peak above idle':>18}   what it may hold")
    for part, (_, meaning) in PARTS.items():
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            command = [sys.executable, __file__, "--part", part, "--folder", folder]
            result = subprocess.run(command, check=True, stdout=subprocess.PIPE)
        budget, peak = json.loads(result.stdout)
        print(f"{part:<10}{budget / MIB:>6.0f} MiB{peak / MIB:>14.1f} MiB   {meaning}", flush=True)


if __name__ == "__main__":
    main()
