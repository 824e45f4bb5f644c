"""Python's time for an image: µs of one thread by stage, with kernels that return at once.

Python holds the interpreter's lock, so all threads of a loader share it: 15 µs an image are 66,000 images/s on any
number of cores. Each kernel is replaced by an empty one with the same arguments, so that passing them counts, as
do NumPy's and torch's own work. Where py-spy is installed, samples of both stacks tell the interpreter from C code.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch

import picstore
from benchmarks.dataset import write_dataset
from benchmarks.harness import Row, Table
from benchmarks.options import Options
from picstore.jpeg import cut
from picstore.kernels import resample
from picstore.storage.format.container import Container
from picstore.train.batch import Batch
from picstore.train.batching.damage import replace_damaged
from picstore.train.batching.gather import gather_records
from picstore.train.batching.host_batch import HostBatch
from picstore.train.batching.parameters import make_params
from picstore.train.batching.spec import OutputSpec
from picstore.train.buffers import BufferPool
from picstore.train.cpu import color, decode, fused
from picstore.train.cpu.fill_images import ImageFiller
from picstore.train.order.requests import DatasetOrder, TrainingSource
from picstore.train.order.sharding import RankShard, default_lanes
from picstore.train.transforms.compose import UserTransform, plan_transforms

BATCH, CHUNK = 128, 16  # images of a batch, and of a task of the pipeline
PROFILED = 20  # seconds
STANDARD = [picstore.RandomResizedCrop(224), picstore.RandomHorizontalFlip()]
JITTER = picstore.ColorJitter(0.4, 0.4, 0.4, 0.1)
NORMALIZE = picstore.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
JOBS: dict[str, list[UserTransform]] = {
    "RandomResizedCrop(224), flip": STANDARD,
    "the same, ColorJitter, Normalize": [*STANDARD, JITTER, NORMALIZE],
}


@numba.njit(nogil=True)
def _make_nothing(slots, marks, streams, geometry, rooms, out):  # type: ignore[no-untyped-def] # noqa: ARG001
    for i in range(slots[0], slots[1]):
        marks[1][i] = marks[0][i]
    return slots[1]


@numba.njit(nogil=True)
def _do_nothing(*arguments):  # type: ignore[no-untyped-def] # noqa: ARG001
    return True


@numba.njit(nogil=True)
def _cut_nothing(addresses, sizes, layouts, boxes, out, offsets, places):  # type: ignore[no-untyped-def] # noqa: ARG001
    offsets[:] = 0
    places[:, :2] = boxes[:, :2]
    places[:, 2:] = boxes[:, 2:] - boxes[:, :2]


class _NoJpeg:
    """In place of simplejpeg, for images that are decoded smaller."""

    @staticmethod
    def decode_jpeg(jpeg: Any, space: str, *, buffer: Any, min_width: int, min_height: int) -> Any:  # noqa: ARG004
        return buffer[: min_height * min_width * 3].reshape(min_height, min_width, 3)


KERNELS = (
    (fused, "_make", _make_nothing),
    (cut, "_cut_all", _cut_nothing),
    (decode, "simplejpeg", _NoJpeg),
    (resample, "resample_box", _do_nothing),
    (color, "run_pointwise", _do_nothing),
    (color, "convert", _do_nothing),
)


@contextmanager
def empty_kernels() -> Iterator[None]:
    """Replace the kernels of a batch by empty ones."""
    real = [getattr(module, name) for module, name, _ in KERNELS]
    for module, name, empty in KERNELS:
        setattr(module, name, empty)
    try:
        yield
    finally:
        for (module, name, _), kernel in zip(KERNELS, real, strict=True):
            setattr(module, name, kernel)


def run_stages(
    dataset: picstore.Dataset, steps: list[UserTransform], batches: int, loaded: dict[Any, Container]
) -> dict[str, float]:
    """Seconds of this thread by stage, for some batches; ``loaded`` keeps containers that were read."""
    seconds: Counter[str] = Counter()

    @contextmanager
    def stage(name: str) -> Iterator[None]:
        start = time.thread_time()
        yield
        seconds[name] += time.thread_time() - start

    plan, _ = plan_transforms(steps)
    sources = (TrainingSource(dataset, 0, plan=plan),)
    shard = RankShard(records=len(dataset), lanes=default_lanes(1), batch_size=BATCH)
    output, blocks = OutputSpec.from_plans([plan]), BufferPool(2)
    requests = DatasetOrder(shard, seed=0).requests(sources, epoch=0)
    for _ in range(batches):
        with stage("requests"):
            request = next(requests)
        for number in np.unique(request[0].samples.container).tolist():
            if (0, number) not in loaded:
                loaded[0, number] = dataset.container(number)
        with stage("records"):
            records = gather_records(request, loaded, sources=sources)
        with stage("parameters"):
            params = make_params(request, records.ids, records.layouts[:, :2], sources=sources)
        with stage("prepare"):
            filler = ImageFiller(records, params, output, blocks)
        with stage("fill"):
            problems = [filler.fill(range(start, start + CHUNK)) for start in range(0, BATCH, CHUNK)]
        if any(problems):
            raise ValueError(f"records are damaged: {problems}")
        with stage("batch"):
            records.release()
            batch = HostBatch(filler.images, records.labels, records.ids, records.source, filler.targets, [])
            replace_damaged(batch, {})
            Batch.from_host(batch, torch.uint8)
    return dict(seconds)


def run_forever(path: str, job: int) -> None:
    """The loop that the profiler samples."""
    dataset, loaded = picstore.Dataset(path), {}
    with empty_kernels():
        while True:
            run_stages(dataset, list(JOBS.values())[job], 8, loaded)


def python(options: Options) -> Table:
    """µs of one thread for an image, by stage: the least of several rounds."""
    path = write_dataset(options, copies=2 if options.quick else None)
    dataset, loaded = picstore.Dataset(path), {}
    batches, columns = (2 if options.quick else 16), {}
    scale = 1e6 / (batches * BATCH)
    for number, (name, steps) in enumerate(JOBS.items()):
        with empty_kernels():
            rounds = [run_stages(dataset, steps, batches, loaded) for _ in range(1 + options.round_count(5))][1:]
        full = [sum(run_stages(dataset, steps, batches, loaded).values()) for _ in range(2)]
        column = {stage: min(one[stage] for one in rounds) * scale for stage in rounds[0]}
        column["in all"] = sum(column.values())
        if fraction := interpreted(path, number, options):
            column["of it in the interpreter (asked: 15)"] = column["in all"] * fraction
        columns[name] = column | {"with kernels": min(full) * scale}
    stages = dict.fromkeys(stage for column in columns.values() for stage in column)
    rows: list[Row] = [
        {"µs an image": stage, **{name: f"{column.get(stage, 0):.2f}" for name, column in columns.items()}}
        for stage in stages
    ]
    return Table(f"batches of {BATCH}, least of {options.round_count(5)} rounds", rows)


def interpreted(path: Path, job: int, options: Options) -> float:
    """Fraction of the time that is the interpreter's, by py-spy's samples; 0 where it is not installed."""
    out = options.work / "stacks"
    program = f"from benchmarks.loaders.python_time import run_forever; run_forever({str(path)!r}, {job})"
    command = ["py-spy", "record", "--native", "--format", "raw", "--rate", "200", "--output", str(out)]
    command += ["--duration", "3" if options.quick else str(PROFILED), "--", sys.executable, "-c", program]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError:
        return 0
    counts: Counter[str] = Counter()
    for line in out.read_text().splitlines():
        stack, _, samples = line.rpartition(" ")
        leaf = stack.rpartition(";")[2]
        clock = "[vdso]" in leaf or "contextlib.py" in leaf or "stage (" in leaf  # this benchmark's own
        interpreter = re.search(r"\.py:\d+\)$|\(python[\d.]*\)$", leaf)
        counts["clock" if clock else "python" if interpreter else "c"] += int(samples)
    return counts["python"] / (counts["python"] + counts["c"])
