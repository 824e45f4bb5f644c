"""Python's lock in the loader's process: CPU time with it for an image, by kind of thread, and how often it is taken.

All threads of a process share the lock, so its time for an image bounds the process on any number of cores: 20 µs are
50,000 images/s. CPU time does not depend on what else a machine does, but for its caches, so two busy cores tell what
sixteen idle ones would. The process is the loader's own, with its sockets and shared memory; batches for a GPU are made
as one gets them, and dropped. A library of C is preloaded that notes each time the lock is given back or taken.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import picstore
from benchmarks.child import FailedError, MissingError, call
from benchmarks.harness import Row, Table, say
from benchmarks.options import Options
from picstore.prepare.convert.row_division import DatasetShape
from picstore.train.order.spans import Span
from picstore.train.pipeline import batch_threads, loader_process, loader_process_main
from picstore.train.pipeline.process_sequence import ProcessSequence
from picstore.train.pipeline.stats import StatsCounter

# Sizes of containers, of 18 and 75 photographs of 110 KB each, and the µs an image asked for in batches of 256.
SIZES, IMAGES = {2 << 20: 20, 8 << 20: 15}, 2400
FORMS = {"GPU": "segments", "CPU": "pixels"}
BATCHES = {"segments": 64, "pixels": 24}  # of 256 images; fewer of more
KINDS = {"read": "readers", "plan": "planner", "work": "decoding threads", "main": "sending"}
_FIELDS = ("lock_held", "lock_released", "lock_taken")
_FILE = "PICSTORE_LOCK_TIMES"  # variable: the file to which a process adds a line a sequence


def lock(options: Options) -> Table:
    """µs of CPU time with Python's lock for an image, by kind of thread, in the round that has the least in all."""
    environment = {"LD_PRELOAD": str(build_clock(options.work)), _FILE: str(options.work / "lock-times")}
    rows: list[Row] = []
    samples: dict[str, list[float]] = {}
    for size, asked in SIZES.items():
        path = write_containers(options, size)
        for device, form in FORMS.items():
            for batch in (256,) if options.quick else (256, 1024):
                count = 3 if options.quick else BATCHES[form] * 256 // batch
                rounds = options.round_count(5)
                arguments = str(path), form, 32 if options.quick else batch, count, rounds
                found = call("benchmarks.runtime.lock:measure", *arguments, environment=environment)
                row = {"records a container": found["records"], "for": device, "batches of": batch}
                rows.append(row | found["row"] | ({"asked": asked} if batch == 256 else {}))
                samples[" ".join(map(str, row.values()))] = found["samples"]
                say(" ".join(f"{name} {value}" for name, value in rows[-1].items()))
    about = "µs of CPU time with Python's lock for an image, in one loader process; RandomResizedCrop(224) and a flip"
    return Table(f"{about}; of {options.round_count(5)} rounds the one with least", rows, samples)


def write_containers(options: Options, size: int) -> Path:
    """Write a data set of containers of one size; ``picstore convert`` would divide so few images among more files."""
    path = options.work / f"containers-{size >> 20}"
    files = sorted(path for path in options.photographs.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    photographs = files[: options.image_count(400)]
    if not path.exists():
        with picstore.Writer(path, classes=["any"], shape=DatasetShape(streams=1, container_size=size)) as writer:
            for number in range(64 if options.quick else IMAGES):
                writer.add(photographs[number % len(photographs)].read_bytes(), label=0)
    return path


def build_clock(folder: Path) -> Path:
    """Compile the clock; MissingError where it cannot work."""
    if sys.platform != "linux":
        raise MissingError("LD_PRELOAD, which only Linux has")
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise MissingError("a C compiler (cc or gcc)")
    library = folder / "lock_clock.so"
    source = Path(__file__).with_suffix(".c").with_name("lock_clock.c")
    command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise FailedError(f"{compiler} cannot compile {source.name}: {done.stderr.strip()[:200]}")
    return library


class LockClock:
    """The preloaded clock; MissingError where it is not loaded, or does not see what this interpreter does."""

    def __init__(self) -> None:
        library = ctypes.PyDLL(None)  # which keeps the lock during a call
        try:
            self._functions = [getattr(library, name) for name in _FIELDS]
        except AttributeError as error:
            raise MissingError("the preloaded clock, benchmarks/runtime/lock_clock.c") from error
        for function in self._functions:
            function.restype, function.argtypes = ctypes.c_longlong, ()
        before = self.read()[2]
        time.sleep(0.001)
        if self.read()[2] == before:
            text = "a Python whose calls of PyEval_SaveThread the dynamic linker resolves (a shared libpython, such as"
            raise MissingError(f"{text} pyenv's with --enable-shared; a static one calls it directly)")

    def read(self) -> list[int]:
        """Return nanoseconds with the lock and without it, and how often the calling thread took it."""
        return [function() for function in self._functions]


def measure(path: str, form: str, batch: int, count: int, rounds: int) -> dict[str, Any]:
    """Have a loader process make ``count`` batches a round; the best round's row, and all rounds' sums."""
    LockClock()
    loader_process._MAIN = f"{__name__}:serve"
    file = Path(os.environ[_FILE])
    file.unlink(missing_ok=True)
    transform = [picstore.RandomResizedCrop(224), picstore.RandomHorizontalFlip()]
    loader = picstore.Loader(path, batch_size=batch, transform=transform, threads=2, seed=1, isolate=False)
    spec = loader._runner._spec
    spec = replace(spec, output=replace(spec.output, form=form))
    child = loader_process.LoaderProcess(spec, StatsCounter())
    speeds = []
    with contextlib.closing(child):
        for _ in range(rounds + 1):  # the first compiles and imports
            sequence = ProcessSequence([child], Span(loader.order, 0, 0, 0), spec)
            sequence.receive()
            start = time.perf_counter()
            for _ in range(count):
                sequence.receive()
            speeds.append(count * batch / (time.perf_counter() - start))
            sequence.close()
    found = [json.loads(line) for line in file.read_text().splitlines()][1:]
    rows = [_row(each["images"], each["threads"], batch) for each in found]
    best = min(rows, key=lambda row: row["all"])
    table = picstore.Dataset(path).rows
    return {
        "records": round(table["records"].sum() / len(table)),
        "row": best | {"images/s": max(speeds[1:])},
        "samples": [row["all"] for row in rows],
    }


def _row(images: int, threads: dict[str, list[int]], batch: int) -> Row:
    row: Row = {name: round(threads[kind][0] / images / 1e3, 2) for kind, name in KINDS.items()}
    taken = {kind: threads[kind][2] / images * batch for kind in KINDS}
    return {
        **row,
        "all": round(sum(row.values()), 1),
        "lock taken a batch": round(sum(taken.values())),
        "of it by the planner": round(taken["plan"]),
    }


def serve() -> None:
    """Run a loader's process that adds what its threads held to a file, at the end of each sequence."""
    clock = LockClock()
    totals: defaultdict[str, list[int]] = defaultdict(lambda: [0] * len(_FIELDS))
    adding, run = threading.Lock(), threading.Thread.run
    images = 0

    def add(kind: str, before: list[int]) -> None:
        spent = [now - then for now, then in zip(clock.read(), before, strict=True)]
        with adding:
            totals[kind] = [total + each for total, each in zip(totals[kind], spent, strict=True)]

    def run_counted(thread: threading.Thread) -> None:
        before = clock.read()
        try:
            run(thread)
        finally:
            add(thread.name.removeprefix("picstore-").partition("_")[0], before)

    complete = batch_threads.Pipeline._complete

    def complete_counted(pipeline: Any, records: Any, *rest: Any) -> Any:
        nonlocal images
        with adding:
            images += len(records)
        return complete(pipeline, records, *rest)

    make_batches = loader_process_main.ProcessServer._make_batches

    def make_counted(server: Any, *arguments: Any) -> Any:
        nonlocal images
        totals.clear()
        images, before = 0, clock.read()
        ended = make_batches(server, *arguments)
        add("main", before)
        with Path(os.environ[_FILE]).open("a") as file:
            file.write(json.dumps({"images": images, "threads": totals}) + "\n")
        return ended

    threading.Thread.run = run_counted  # type: ignore[assignment,method-assign]
    batch_threads.Pipeline._complete = complete_counted  # type: ignore[assignment,method-assign]
    loader_process_main.ProcessServer._make_batches = make_counted  # type: ignore[assignment,method-assign]
    loader_process_main.main()
