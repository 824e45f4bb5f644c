"""Images/s of two trees' loaders by device, number of loader processes and batch size, each in a process of its own.

    python -m benchmarks.gpu.rates PHOTOGRAPHS --before TREE [--minutes 3] [--work DIR] [--device cpu] [--json FILE]

Rows come in the order of their importance, and none begins after the time. Each row is printed as soon as it is known.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SECONDS, WARMUP = 1.5, 12  # of a row; batches before them
# Device, batch size and numbers of processes, None for the default, in the order in which they are measured.
ROWS: list[tuple[str, int, list[int | None]]] = [
    ("cuda", 256, [None, 1, 8, 4]),
    ("cpu", 256, [None, 1, 4]),
    ("cuda", 1024, [None, 1, 8]),
    ("cpu", 256, [2, 8]),
    ("cuda", 256, [2]),
    ("cuda", 1024, [4, 2]),
    ("cpu", 1024, [None, 1, 4, 2, 8]),
]


def run_row(options: dict[str, Any]) -> dict[str, Any]:
    """Measure one loader in this process."""
    import torch

    import picstore

    torch.set_num_threads(1)
    seconds = options.pop("seconds")
    transform = [picstore.RandomResizedCrop(224), picstore.RandomHorizontalFlip()]
    start = time.perf_counter()
    loader = picstore.Loader(options.pop("path"), transform=transform, **options)
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    next(batches)
    first = time.perf_counter() - start
    for _ in range(WARMUP):
        next(batches)
    cuda = options["device"] == "cuda"
    if cuda:
        torch.cuda.synchronize()
    before, cpu, images, start = loader.stats, time.process_time(), 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        images += len(next(batches))
    if cuda:
        torch.cuda.synchronize()
    wall, stats = time.perf_counter() - start, loader.stats - before
    found = {
        "processes": loader._runner._count,
        "images/s": round(images / wall),
        "µs here": round(1e6 * (time.process_time() - cpu) / images, 1),
        "waited on consumer, %": round(100 * stats.waited_on_consumer / wall),
        "waited on decode, %": round(100 * stats.waited_on_decode / wall),
        "first batch, s": round(first, 1),
        "fallbacks": stats.fallbacks,
    }
    loader.close()
    return found


def main() -> None:
    """Measure the rows, and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photographs", type=Path)
    parser.add_argument("--before", type=Path, help="a checkout to compare with")
    parser.add_argument("--minutes", type=float, default=3)
    parser.add_argument("--work", type=Path, help="keep the data set here")
    parser.add_argument("--copies", type=int, default=50)
    parser.add_argument("--device", help="measure this one only")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    end = time.monotonic() + 60 * given.minutes
    trees = {"after": ROOT, **({"before": given.before.resolve()} if given.before else {})}
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as work:  # noqa: S108
        from benchmarks.dataset import write_dataset
        from benchmarks.options import Options
        from picstore.cores import count_cores

        folder = given.work or Path(work)
        folder.mkdir(parents=True, exist_ok=True)
        path = write_dataset(Options(given.photographs.resolve(), folder, workers=count_cores(), copies=given.copies))
        lines = []
        for device, batch, counts in ROWS:
            for count in counts if given.device in (None, device) else ():
                for tree, root in trees.items():
                    if count is None and tree == "before":
                        continue  # its default is 1
                    if time.monotonic() > end:
                        break
                    options = {"path": str(path), "device": device, "batch_size": batch, "seconds": SECONDS}
                    options |= {} if count is None else {"processes": count}
                    named = {"tree": tree, "device": device, "batch": batch, "asked": count or "default"}
                    lines.append(named | _in_process(root, options))
                    sys.stdout.write(" ".join(f"{name} {value}," for name, value in lines[-1].items()) + "\n")
                    sys.stdout.flush()
        if given.json:
            given.json.write_text(json.dumps(lines, indent=1))


def _in_process(root: Path, options: dict[str, Any]) -> dict[str, Any]:
    """Measure a row with a tree's picstore."""
    environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONSAFEPATH": "1"}
    command = [sys.executable, __file__, "--row", json.dumps(options)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tempfile.gettempdir())
    if done.returncode:
        return {"failed": done.stderr.strip().rsplit("\n", 1)[-1][:300]}
    found: dict[str, Any] = json.loads(done.stdout.strip().rsplit("\n", 1)[-1])
    return found


if __name__ == "__main__":
    if sys.argv[1:2] == ["--row"]:
        sys.stdout.write(json.dumps(run_row(json.loads(sys.argv[2]))) + "\n")
    else:
        main()
