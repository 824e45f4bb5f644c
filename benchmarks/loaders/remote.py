"""Remote workers: the standard job by a local loader, by workers on a Ray cluster of this machine, and by Ray Data."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import picstore
from benchmarks.child import call, process_tree
from benchmarks.clusters import simulated_cluster
from benchmarks.dataset import write_dataset
from benchmarks.harness import Case, Sample, Table, Unit, measure, tabulate
from benchmarks.options import Options
from benchmarks.peers import PYTHON
from benchmarks.photographs import copy_images

BATCH, SIZE = 128, 224
CPU = Unit("images a second of CPU", lambda sample: sample.items / sample.seconds)
_TICKS = os.sysconf("SC_CLK_TCK")


def remote(options: Options) -> Table:
    """Images per second of CPU time of all processes, Ray's too: other work on the machine moves it least."""
    dataset = write_dataset(options)
    images = options.work / "remote-images"
    copy_images(options.photographs, images, 1, options.images or (64 if options.quick else None))
    batches = 4 if options.quick else 60
    threads = options.workers
    given: dict[str, tuple[str, dict[str, Any]]] = {
        "local": ("picstore_batches", {"threads": threads}),
        f"{threads} workers of 1 CPU": ("picstore_batches", {"engine": "ray", "workers": threads}),
        f"1 worker of {threads} CPUs": ("picstore_batches", {"engine": "ray", "workers": 1, "threads": threads}),
        "Ray Data, read_images": ("ray_data_batches", {"workers": threads}),
    }

    def run(name: str) -> Sample:
        source, arguments = given[name]
        path, python = (images, PYTHON) if source == "ray_data_batches" else (dataset, None)
        chosen = {} if python is None else {"python": python}
        found = call("benchmarks.loaders.remote:run", source, str(path), arguments, batches, **chosen)
        return Sample(found["images"], found["cpu"], found["figures"])

    cases = [Case(name, run, lambda name=name: name) for name in given]
    results = measure(cases, rounds=options.round_count(3), warmups=0)
    about = f"batches of {BATCH}, {threads} CPUs, {batches} batches after {batches // 4} that warm up"
    return tabulate(results, about, unit=CPU, first="local")


def run(source: str, path: str, arguments: dict[str, Any], count: int) -> dict[str, Any]:
    """Take batches in a process of its own."""
    with contextlib.ExitStack() as stack:
        if arguments.get("engine") == "ray" or source == "ray_data_batches":
            cpus = arguments.get("threads", 1) * arguments["workers"]
            stack.enter_context(simulated_cluster(nodes=0, cpus=0, head_cpus=cpus, store=2 << 30))
        return _measure(*globals()[source](Path(path), **arguments), count)


def _measure(batches: Iterator[Any], stats: Callable[[], float], count: int) -> dict[str, Any]:
    start = time.perf_counter()
    next(batches)
    first = time.perf_counter() - start
    list(islice(batches, count // 4))
    before, start, stored = _cpu_time(), time.perf_counter(), stats()
    images = sum(len(batch) for batch in islice(batches, count))
    seconds = time.perf_counter() - start
    figures = {
        "images/s": images / seconds,
        "first batch, s": first,
        "bytes read, MiB": (stats() - stored) / 2**20,
        "load": os.getloadavg()[0],
    }
    return {"images": images, "cpu": _cpu_time() - before, "figures": figures}


def picstore_batches(path: Path, **options: Any) -> tuple[Iterator[Any], Callable[[], float]]:
    """Labels of batches without end, and the bytes that were read."""
    steps = [picstore.RandomResizedCrop(SIZE), picstore.RandomHorizontalFlip()]
    loader = picstore.Loader(path, batch_size=BATCH, transform=steps, **options)

    def batches() -> Iterator[Any]:
        while True:
            for batch in loader:
                yield batch.labels

    return batches(), lambda: loader.stats.bytes


def ray_data_batches(path: Path, **_: Any) -> tuple[Iterator[Any], Callable[[], float]]:
    """The files by Ray Data's ``read_images`` and torchvision's transforms in ``map_batches``, in no random order."""
    import numpy as np
    import ray.data
    import torch
    from torchvision.transforms import v2

    crop = v2.Compose([v2.RandomResizedCrop(SIZE, antialias=True), v2.RandomHorizontalFlip()])

    def transform(batch: dict[str, Any]) -> dict[str, Any]:
        torch.set_num_threads(1)
        images = [crop(torch.from_numpy(np.array(image)).permute(2, 0, 1)).numpy() for image in batch["image"]]
        return {"image": np.stack(images)}

    ray.init(log_to_driver=False, logging_level="error")
    ray.data.DataContext.get_current().enable_progress_bars = False
    images = ray.data.read_images(str(path), mode="RGB").map_batches(transform, batch_size=BATCH // 2)

    def batches() -> Iterator[Any]:
        while True:
            for batch in images.iter_torch_batches(batch_size=BATCH, prefetch_batches=2):
                yield batch["image"][:, 0, 0, 0]

    return batches(), lambda: 0.0


def _cpu_time() -> float:
    """Seconds of CPU of this process and its running descendants."""
    total = 0
    for pid in process_tree(os.getpid()):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        total += int(fields[11]) + int(fields[12])
    return total / _TICKS
