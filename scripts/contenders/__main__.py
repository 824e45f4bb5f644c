"""The process of one contender: ``python -m contenders NAME prepare|run JOB``, started by ``contenders.process``.

It answers on stdout with one JSON object a line: ``{"ready": {distribution: version}}``, then for ``prepare`` one
``{"prepared": seconds}``, and for ``run`` one object for each line read from stdin, which is an order to do one epoch.
``{"missing": reason}`` or ``{"failed": reason}`` comes instead, and is the last. Everything else that is printed
goes to stderr.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import sys
import time
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from contenders import Job


def main(name: str, verb: str, job: Job) -> None:
    """Do one verb of one contender."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # libraries print to stdout, some from C
    try:
        # Helper threads beyond the workers would otherwise use cores that other contenders leave idle.
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: job.workers])
        contender = importlib.import_module(f"contenders.{name.replace('-', '_')}")
        answers.write(json.dumps({"ready": _versions(contender.PACKAGES), "note": contender.NOTE}) + "\n")
        if verb == "prepare":
            start = time.perf_counter()
            contender.prepare(job)
            answers.write(json.dumps({"prepared": time.perf_counter() - start}) + "\n")
            return
        batches = contender.batches(job)
        for number, _ in enumerate(sys.stdin):
            answers.write(json.dumps(_epoch(batches, job, warm_up=number == 0)) + "\n")
    except ImportError as error:
        traceback.print_exc()
        answers.write(json.dumps({"missing": f"{type(error).__name__}: {error}"}) + "\n")
    except Exception as error:  # whatever a peer raises is its result
        traceback.print_exc()
        answers.write(json.dumps({"failed": f"{type(error).__name__}: {error}"}) + "\n")


def _epoch(batches: Iterable[Any], job: Job, *, warm_up: bool) -> dict[str, Any]:
    """Consume one epoch and check it. ``warm_up``: also the mean of each channel, which takes time."""
    import torch

    seen = torch.zeros(len(job.per_class), dtype=torch.int64)
    sums = torch.zeros(3, dtype=torch.float64)
    start = time.perf_counter()
    for images, labels in batches:
        _check_batch(images, labels, job)
        seen += torch.bincount(labels, minlength=len(seen))
        if warm_up:
            sums += images.sum(dim=(0, 2, 3))
    seconds = time.perf_counter() - start
    if tuple(seen.tolist()) != job.per_class:
        raise ValueError(f"an epoch had {int(seen.sum())} images, not every one of {job.count} once")
    answer: dict[str, Any] = {"seconds": seconds, "rate": job.count / seconds}
    if warm_up:
        answer["means"] = (sums / (job.count * job.size**2)).tolist()
    return answer


def _check_batch(images: Any, labels: Any, job: Job) -> None:
    n = len(images)
    if not 1 <= n <= job.batch or tuple(images.shape) != (n, 3, job.size, job.size):
        raise ValueError(f"images of shape {tuple(images.shape)}")
    if tuple(labels.shape) != (n,):
        raise ValueError(f"labels of shape {tuple(labels.shape)} for {n} images")
    if (str(images.dtype), str(labels.dtype)) != ("torch.uint8", "torch.int64"):
        raise TypeError(f"images of {images.dtype} and labels of {labels.dtype}, not uint8 and int64")


def _versions(packages: Iterable[str]) -> dict[str, str]:
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    return found | {package: importlib.metadata.version(package) for package in packages}


def _job(text: str) -> Job:
    fields = json.loads(text)
    paths = {name: Path(fields.pop(name)) for name in ("images", "data")}
    return Job(**paths, per_class=tuple(fields.pop("per_class")), **fields)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], _job(sys.argv[3]))
