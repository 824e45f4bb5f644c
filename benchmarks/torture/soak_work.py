"""What runs in a soak: ``python -m benchmarks.torture.soak_work NAME COUNTS ARGUMENTS``, until it is ended."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import picstore

EPOCHS = 200
THREADS = 8  # of a reading process
_PAUSE = 0.25  # seconds of a slow consumer


class Counter:
    """Images taken by this process, in a file for who watches it."""

    def __init__(self, folder: Path) -> None:
        self._file = os.open(folder / str(os.getpid()), os.O_CREAT | os.O_WRONLY)
        self._lock, self._images = threading.Lock(), 0

    def count(self, batches: Any) -> Iterator[Any]:
        """Count the images of batches, or records."""
        for batch in batches:
            with self._lock:
                self._images += len(batch.labels) if hasattr(batch, "labels") else 1
                os.pwrite(self._file, b"%d" % self._images, 0)
            yield batch


def _loader(path: str, **options: Any) -> picstore.Loader:
    steps = [picstore.RandomResizedCrop(64), picstore.RandomHorizontalFlip()]
    given: dict[str, Any] = {"batch_size": 16, "transform": steps, "threads": 1}
    return picstore.Loader(path, **{**given, **options})


def _forever(source: Any) -> Iterator[Any]:
    while True:
        yield from source


def consume(counter: Counter, path: str, *cache: str) -> None:
    """Take batches slowly, epoch after epoch; damaged records are skipped."""
    loader = _loader(path, **({"cache": cache[0], "cache_limit": cache[1]} if cache else {}))
    for _ in counter.count(_forever(loader)):
        time.sleep(_PAUSE)


def epochs(counter: Counter, path: str, seconds: str) -> None:
    """Take EPOCHS epochs of a small data set, each ended in another way, and wait to be ended in a further one."""
    from torch.utils.data import DataLoader

    loaders, start = [_loader(path), _loader(path, isolate=False)], time.monotonic()
    for number in range(EPOCHS):
        source: Any = loaders[number // 4 % 2]
        if number % 25 == 24:
            source = DataLoader(loaders[1], batch_size=None, num_workers=2)
        with contextlib.suppress(ZeroDivisionError):
            _epoch(counter.count(source), number % 4)
        del source
        gc.collect()
        time.sleep(max(0.0, start + float(seconds) * (number + 1) / EPOCHS - time.monotonic()))
    for _ in counter.count(_forever(loaders[0])):
        time.sleep(_PAUSE)


def _epoch(batches: Iterator[Any], end: int) -> None:
    """Take an epoch, to its end, a break, an exception or oblivion in a cycle."""
    cycle: list[Any] = [batches]
    if end == 3:
        cycle.append(cycle)
    for _ in batches:
        if end == 2:
            raise ZeroDivisionError
        if end:
            break


def read(counter: Counter, path: str, cache: str, limit: str, kind: str) -> None:
    """Read with THREADS readers of one cache: loaders, or records in random order."""
    dataset = picstore.Dataset(path, cache=cache, cache_limit=limit)

    def run(number: int) -> None:
        rng = random.Random(number)
        options: dict[str, Any] = {"cache": cache, "cache_limit": limit, "isolate": False, "lanes": 8}
        records = iter(lambda: dataset[rng.randrange(len(dataset))].jpeg, None)
        loader = _loader(path, batch_size=8, seed=number, **options)
        for _ in counter.count(_forever(loader) if kind == "loaders" else records):
            time.sleep(_PAUSE * (THREADS if kind == "loaders" else 1))

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    while all(thread.is_alive() for thread in threads):  # one that dies ends the process
        time.sleep(1)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background makes processes ignore it
    {"consume": consume, "epochs": epochs, "read": read}[sys.argv[1]](Counter(Path(sys.argv[2])), *sys.argv[3:])
