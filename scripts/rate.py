"""Images a second of Loader(isolate=False), one epoch whenever a line arrives; ./scripts/platforms --rate runs it.

    python scripts/rate.py DATASET

A line a round: images, seconds, CPU seconds of all threads, and whether the interpreter's lock is on.
"""

from __future__ import annotations

import sys
import time

import picstore


def main() -> None:
    transform = [
        picstore.RandomResizedCrop(224),
        picstore.RandomHorizontalFlip(),
        picstore.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ]
    loader = picstore.Loader(
        sys.argv[1], batch_size=16, transform=transform, seed=1, threads=2, isolate=False, drop_last=False
    )
    for _ in sys.stdin:
        began, cpu = time.perf_counter(), time.process_time()
        images = sum(len(batch.labels) for batch in loader)
        lock = getattr(sys, "_is_gil_enabled", lambda: True)()
        print(images, time.perf_counter() - began, time.process_time() - cpu, lock, flush=True)


if __name__ == "__main__":
    main()
