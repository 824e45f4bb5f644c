"""Loops over a loader on a GPU, each a process that prints a line of JSON: ``python -P loops.py LOOP JSON``.

It imports picstore alone, so that the same file measures any tree that ``PYTHONPATH`` names. JSON has ``path``,
``name``, ``seconds`` and Loader's options; without ``device`` it is "cuda".

    rate           images/s, also of each fifth of the time; CPU time for an image of this process, by thread, and of
                   the loader's; blocks that were page-locked meanwhile
    memory         memory of this process, of the loader's and of the GPU, at equal intervals
    deterministic  batches under torch.use_deterministic_algorithms(True), against the CPU's
    killed         a loader's process is killed under load: the error, and what of memory and processes is left
    samplings      a batch of each JPEG sampling, of ``path``'s photographs, against the CPU's; for compute-sanitizer
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import json
import os
import resource
import signal
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import picstore

_TICK = os.sysconf("SC_CLK_TCK")
_STANDARD: list[Any] = [picstore.RandomResizedCrop(224), picstore.RandomHorizontalFlip()]


def children() -> list[int]:
    """Processes that this one has started."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            if int(entry.read_text().rsplit(")", 1)[1].split()[1]) == os.getpid():
                found.append(int(entry.parent.name))
    return found


def cpu_seconds(process: int) -> float:
    """CPU time of a process, all threads."""
    fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


def resident(process: int) -> int:
    """Bytes of memory of a process, without what it shares."""
    fields = Path(f"/proc/{process}/statm").read_text().split()
    return (int(fields[1]) - int(fields[2])) * resource.getpagesize()


def thread_seconds() -> dict[str, float]:
    """CPU time of this process's threads by name, user and system; "other" have no Python, such as CUDA's."""
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    spent: defaultdict[str, float] = defaultdict(float)
    for entry in Path("/proc/self/task").glob("*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            fields = entry.read_text().rsplit(")", 1)[1].split()
            name = names.get(int(entry.parent.name), "other")
            spent[f"{name}, user"] += int(fields[11]) / _TICK
            spent[f"{name}, system"] += int(fields[12]) / _TICK
    return spent


def page_locked() -> int:
    """Blocks of memory that are page-locked now."""
    module = sys.modules.get("picstore.train.cuda.page_locked")
    return len(getattr(module, "_tried", ()))


def endless(loader: picstore.Loader) -> Iterator[picstore.Batch]:
    """All epochs."""
    return itertools.chain.from_iterable(itertools.repeat(loader))


def synchronize() -> None:
    """Wait for the GPU, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def rate(loader: picstore.Loader, seconds: float) -> dict[str, Any]:
    """Measure images/s after 24 batches."""
    start = time.perf_counter()
    batches = endless(loader)
    next(batches)
    first = time.perf_counter() - start
    for _ in range(24):
        next(batches)
    synchronize()
    before, started, images, own = loader.stats, children(), 0, time.process_time()
    threads, blocks, fifths = thread_seconds(), page_locked(), [0] * 5
    others, start = sum(map(cpu_seconds, started)), time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        fifths[int(5 * elapsed / seconds)] += (count := len(next(batches)))
        images += count
    synchronize()
    took, stats = time.perf_counter() - start, loader.stats - before
    return {
        "images/s": images / took,
        "first batch, s": first,
        "training process, us an image": 1e6 * (time.process_time() - own) / images,
        "by thread, us an image": {
            name: 1e6 * (spent - threads.get(name, 0)) / images for name, spent in thread_seconds().items()
        },
        "images/s by fifth": [5 * count / seconds for count in fifths],
        "blocks page-locked before and after": [blocks, page_locked()],
        "loader's processes, us an image": 1e6 * (sum(map(cpu_seconds, started)) - others) / images,
        "cores": (time.process_time() - own + sum(map(cpu_seconds, started)) - others) / took,
        "waited on decode, %": 100 * stats.waited_on_decode / took,
        "waited on consumer, %": 100 * stats.waited_on_consumer / took,
        "fallbacks": stats.fallbacks,
        "copied": stats.copied,
        "GPU memory, MB": torch.cuda.max_memory_reserved() / 1e6 if torch.cuda.is_available() else 0,
    }


def memory(loader: picstore.Loader, seconds: float) -> dict[str, Any]:
    """Note memory ten times."""
    batches, images, rows, start = endless(loader), 0, [], time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        images += len(next(batches))
        if elapsed >= seconds * len(rows) / 10:
            on_gpu = torch.cuda.is_available()
            rows.append({
                "s": elapsed,
                "images": images,
                "training process, MB": resident(os.getpid()) / 1e6,
                "loader's processes, MB": sum(map(resident, children())) / 1e6,
                "GPU allocated, MB": torch.cuda.memory_allocated() / 1e6 if on_gpu else 0,
                "GPU reserved, MB": torch.cuda.memory_reserved() / 1e6 if on_gpu else 0,
                "open files": sum(1 for _ in Path("/proc/self/fd").iterdir()),
            })  # fmt: skip
    return {"images": images, "samples": rows}


def compare(loader: picstore.Loader, options: dict[str, Any], count: int = 20) -> dict[str, Any]:
    """Count the batches that differ from the CPU's."""
    other = picstore.Loader(**{**options, "device": "cpu"})
    batches = differ = 0
    for one, expected in itertools.islice(zip(loader, other, strict=True), count):
        batches += 1
        differ += not torch.equal(one.images.cpu(), expected.images)
    other.close()
    return {"batches": batches, "differ": differ, "fallbacks": loader.stats.fallbacks}


def killed(loader: picstore.Loader, seconds: float) -> dict[str, Any]:
    """Kill a loader's process after some batches; the next iteration goes on."""
    batches, told = endless(loader), ""
    for _ in range(30):
        next(batches)
    victim, start = children()[0], time.perf_counter()
    os.kill(victim, signal.SIGKILL)
    try:
        while time.perf_counter() - start < seconds:
            next(batches)
    except picstore.PicstoreError as error:
        told = str(error)
    ended = time.perf_counter() - start
    again = sum(len(batch.labels) for batch in itertools.islice(loader, 20))
    return {"error": told, "after, s": ended, "images afterwards": again, "processes": len(children())}


def sampled(photographs: Path, folder: Path) -> Path:
    """A data set of pieces of photographs in all samplings, and grey."""
    from PIL import Image

    path, numbers = folder / "samplings", itertools.count()
    files = sorted(photographs.rglob("*.JPEG")) or sorted(photographs.rglob("*.jp*g"))
    with picstore.Writer(path) as writer:
        for file, sampling in zip(files[:32], itertools.cycle([0, 1, 2, None]), strict=False):
            image = Image.open(file).convert("L" if sampling is None else "RGB")
            piece = folder / f"{next(numbers)}.jpg"
            options = {} if sampling is None else {"subsampling": sampling}
            image.crop((0, 0, 203, 157)).save(piece, quality=90, **options)
            writer.add(piece.read_bytes(), label=0)
    return path


def main() -> None:
    """Run one loop."""
    loop, given = sys.argv[1], json.loads(sys.argv[2])
    name, seconds = given.pop("name", loop), given.pop("seconds", 2.5)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        if loop == "samplings":
            given["path"] = str(sampled(Path(given["path"]), Path(folder)))
            given = {"batch_size": 16, "transform": [picstore.RandomResizedCrop(64)], **given}
        if loop == "deterministic":
            torch.use_deterministic_algorithms(True)
        options: dict[str, Any] = {"batch_size": 256, "transform": _STANDARD, "device": "cuda", "seed": 1, **given}
        loader = picstore.Loader(**options)
        loops: dict[str, Callable[[], dict[str, Any]]] = {
            "rate": lambda: rate(loader, seconds),
            "memory": lambda: memory(loader, seconds),
            "deterministic": lambda: compare(loader, options),
            "killed": lambda: killed(loader, seconds),
            "samplings": lambda: compare(loader, options, 2),
        }
        found = loops[loop]()
        device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
        shown = {key: value for key, value in given.items() if key != "transform"}
        when = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        print(json.dumps({"loop": loop, "name": name, **found, "options": shown, "device": device, "at": when}))
        loader.close()


if __name__ == "__main__":
    main()
