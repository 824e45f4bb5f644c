"""Python's part of an image: microseconds of one thread by stage, with kernels that return at once.

What Python does holds the interpreter's lock, so all threads of a loader share it: 15 us an image are 66,000 images/s
however many cores there are. Each kernel is replaced by an empty one that takes the same arguments: to hand them over
counts, as do NumPy's and torch's own work. Of several rounds the least. The limit is for what the interpreter itself
does: --profile tells it from C code by samples of both stacks (pip install py-spy).

    scripts/bench_python.py DATASET [--batches N] [--rounds N] [--profile]
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
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
from picstore.jpeg.cut import cut
from picstore.kernels.resample import resample
from picstore.storage.format.container import Container
from picstore.train.batch import Batch
from picstore.train.batching.damage import replace_lost
from picstore.train.batching.gather import gather_records
from picstore.train.batching.parameters import make_params
from picstore.train.batching.spec import HostBatch, OutputSpec
from picstore.train.buffers import Blocks
from picstore.train.cpu import color, decode, fused
from picstore.train.cpu.fill_images import ImageFiller
from picstore.train.order.requests import Source, make_requests
from picstore.train.order.sharding import RankShard, default_lanes
from picstore.train.transforms.compose import Step, plan_transforms

LIMIT = 15  # us
PYTHON = "of it in the interpreter"
PROFILED = 20  # seconds
STAGES = ("requests", "draft", "look", "prepare", "fill", "finish")
BATCH, CHUNK = 128, 16  # images of a batch, and of a task of the pipeline
STANDARD = [picstore.RandomResizedCrop(224), picstore.RandomHorizontalFlip()]
JOBS: dict[str, list[Step]] = {
    "RandomResizedCrop(224), flip": STANDARD,
    "the same, ColorJitter, Normalize": [
        *STANDARD,
        picstore.ColorJitter(0.4, 0.4, 0.4, 0.1),
        picstore.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ],
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
    """Replace what a batch calls by kernels that do nothing."""
    kept = [getattr(module, name) for module, name, _ in KERNELS]
    for module, name, empty in KERNELS:
        setattr(module, name, empty)
    try:
        yield
    finally:
        for (module, name, _), kernel in zip(KERNELS, kept, strict=True):
            setattr(module, name, kernel)


class Watch:
    """Seconds of this thread by stage."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(STAGES, 0.0)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count a block."""
        start = time.thread_time()
        yield
        self.seconds[name] += time.thread_time() - start


def measure(dataset: picstore.Dataset, steps: list[Step], batches: int, loaded: dict[Any, Container]) -> Watch:
    """All stages of some batches, in this thread; ``loaded`` keeps what was read."""
    recipe, _ = plan_transforms(steps)
    sources = (Source(dataset, 0, recipe=recipe),)
    share = RankShard(records=len(dataset), lanes=default_lanes(1), batch_size=BATCH)
    form, blocks, watch = OutputSpec.of([recipe]), Blocks(keep=2), Watch()
    requests = make_requests(sources, share=share, seed=0, epoch=0)
    for _ in range(batches):
        with watch.stage("requests"):
            request = next(requests)
        for number in np.unique(request[0].samples.container).tolist():
            if (0, number) not in loaded:
                loaded[0, number] = dataset.container(number)
        with watch.stage("draft"):
            draft = gather_records(request, loaded, sources=sources)
        with watch.stage("look"):
            look = make_params(draft, request, sources=sources)
        with watch.stage("prepare"):
            pixels = ImageFiller(look, form, blocks)
        with watch.stage("fill"):
            problems = [pixels.fill(draft, range(start, start + CHUNK)) for start in range(0, BATCH, CHUNK)]
        if any(problems):
            raise SystemExit(f"records are damaged; measure another data set: {problems}")
        with watch.stage("finish"):
            draft.forget()
            replace_lost({}, draft.source, draft.labels, draft.ids, pixels.copy)
            Batch.of(HostBatch(pixels.images, draft.labels, draft.ids, pixels.targets, []), torch.uint8)
    return watch


def run_forever(dataset: picstore.Dataset, steps: list[Step]) -> None:
    """What the profiler looks at."""
    loaded: dict[Any, Container] = {}
    with empty_kernels():
        while True:
            measure(dataset, steps, 16, loaded)


def interpreted(dataset: str, job: int) -> tuple[float, float]:
    """Shares of the time that Python's interpreter and C code take, by samples of both stacks; without this script's
    own clock."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["py-spy", "record", "--native", "--format", "raw", "--rate", "200", "--duration", str(PROFILED)]
        program = [sys.executable, __file__, dataset, "--job", str(job)]
        subprocess.run([*command, "--output", f"{folder}/stacks", "--", *program], check=True, capture_output=True)
        counts = Counter[str]()
        for line in Path(folder, "stacks").read_text().splitlines():
            stack, _, samples = line.rpartition(" ")
            leaf = stack.rpartition(";")[2]
            own = "[vdso]" in leaf or "contextlib.py" in leaf or "Watch" in leaf
            python = re.search(r"\.py:\d+\)$|\(python[\d.]*\)$", leaf)
            counts["own" if own else "python" if python else "c"] += int(samples)
    whole = counts["python"] + counts["c"]
    return counts["python"] / whole, counts["c"] / whole


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--batches", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--profile", action="store_true", help="also tell the interpreter's share, which py-spy samples"
    )
    parser.add_argument("--job", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    dataset = picstore.Dataset(options.dataset)
    if options.job is not None:
        run_forever(dataset, list(JOBS.values())[options.job])
    loaded: dict[Any, Container] = {}
    rows: dict[str, dict[str, float]] = {}
    for number, (name, steps) in enumerate(JOBS.items()):
        with empty_kernels():
            rounds = [measure(dataset, steps, options.batches, loaded).seconds for _ in range(options.rounds + 1)][1:]
        full = [sum(measure(dataset, steps, options.batches, loaded).seconds.values()) for _ in range(2)]
        scale = 1e6 / (options.batches * BATCH)
        rows[name] = {stage: min(one[stage] for one in rounds) * scale for stage in rounds[0]}
        rows[name]["in all"] = sum(rows[name].values())
        if options.profile:
            share, rest = interpreted(options.dataset, number)
            rows[name] |= {PYTHON: rows[name]["in all"] * share, "of it in C": rows[name]["in all"] * rest}
        rows[name]["with kernels"] = min(full) * scale
    print("| µs an image | " + " | ".join(rows) + " |\n|---" + "|---" * len(rows) + "|")
    for stage in next(iter(rows.values())):
        print(f"| {stage} | " + " | ".join(f"{row[stage]:.2f}" for row in rows.values()) + " |")
    if options.profile:
        print(
            f"| in the interpreter, against {LIMIT} | "
            + " | ".join(f"{x[PYTHON] / LIMIT:.2f}" for x in rows.values())
            + " |"
        )


if __name__ == "__main__":
    main()
