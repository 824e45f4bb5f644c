"""Programs of a rehearsal, as a user writes them: training, resuming, editing, reading, looking. Each is a process."""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np

import picstore
from benchmarks.child import FailedError

PAGE = 120  # records of a page


def train(path: str, batch: int, steps: int, checkpoint: str, *ways: str) -> float:
    """Take batches of the standard recipe; returns the seconds to the first.

    The loader's state, and the ids since the start, are saved in the middle. ``ways`` are "resume", which goes on with
    a saved state, and "kill", which kills the process at its end, where otherwise all ids are saved.
    """
    start = time.perf_counter()
    loader = _standard_loader(path, batch)
    state, ids, first = Path(checkpoint), [], 0.0
    if "resume" in ways:
        loader.load_state_dict(json.loads(state.read_text()))
    for step, taken in enumerate(itertools.islice(loader, steps), start=1):
        first = first or time.perf_counter() - start
        if len(taken.images) != batch or taken.images.shape[1:] != (3, 224, 224):
            raise FailedError(f"batch {step} has images of {tuple(taken.images.shape)}")
        ids.append(taken.ids.numpy())
        if step == steps // 2:
            state.write_text(json.dumps(loader.state_dict()))
            np.save(state.with_suffix(".npy"), ids)
    if "kill" in ways:
        os.kill(os.getpid(), signal.SIGKILL)
    np.save(state.with_suffix(".npy"), ids)
    loader.close()
    return first


def first_batch(path: str, batch: int) -> float:
    """Seconds from opening the data set to a batch, the import of torch included."""
    start = time.perf_counter()
    loader = _standard_loader(path, batch)
    next(iter(loader))
    seconds = time.perf_counter() - start
    loader.close()
    return seconds


def _standard_loader(path: str, batch: int) -> picstore.Loader:
    transform = [picstore.RandomResizedCrop(224), picstore.RandomHorizontalFlip()]
    return picstore.Loader(path, batch_size=batch, transform=transform)


def edit(path: str, relabeled: list[int]) -> int:
    """Give all records a caption and a score, and some of them label 0; returns the number of records."""
    dataset = picstore.Dataset(path)
    captions = [f"picture {id_}" for id_ in dataset.ids.tolist()]
    dataset = dataset.with_columns({"caption": captions, "score": dataset.ids / 2}).save()
    return len(dataset.with_columns({"label": [0] * len(relabeled)}, ids=relabeled).save())


def table(path: str, file: str) -> dict[str, int]:
    """Write ids, labels, widths and scores of all records; returns the number of records and the sum of their bytes."""
    facts = picstore.Dataset(path).table
    np.savez(file, **{name: np.asarray(facts[name]) for name in ("id", "label", "width", "score")})
    return {"records": len(facts), "bytes": int(facts["bytes"].sum())}


def read(path: str, pool: str, places: list[int]) -> int:
    """Read records here and there; returns how many have not the pixels of their file of the pool."""
    from benchmarks.convert.imagenet_tars import read_pool  # with Pillow and kernels, which other programs do without

    dataset, jpegs = picstore.Dataset(path), read_pool(pool)
    records = [dataset[place] for place in places]
    wanted = [picstore.decode(jpegs[record.id % len(jpegs)]) for record in records]
    return sum(not np.array_equal(record.image, each) for record, each in zip(records, wanted, strict=True))


def view(path: str, label: int) -> dict[str, Any]:
    """Start ``picstore view``, ask for the first page and for a class, and end it by SIGTERM."""
    from benchmarks.runtime.page import serving

    with serving(path) as (ask, _, seconds):
        start = time.perf_counter()
        images = ask("/api/dataset")["images"]
        first = ask("/api/records", count=PAGE)
        paged = time.perf_counter()
        chosen = ask("/api/records", filter=json.dumps({"labels": [label]}), count=PAGE)
        filtered = time.perf_counter()
    return {
        "images": images,
        "page": len(first["items"]),
        "of the class": chosen["total"],
        "seconds": {"address": seconds, "page": paged - start, "filter": filtered - paged},
    }
