"""Time of picstore.map with a model, beside a bare loop over a loader's batches that keeps the results."""

from __future__ import annotations

import contextlib
import time
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torchvision

import picstore
from benchmarks.dataset import write_dataset
from benchmarks.harness import Case, Sample, Table, Unit, cpu_time, measure, tabulate
from benchmarks.options import Options

BATCH = 64
MILLISECONDS = Unit("ms per image", lambda sample: sample.seconds / sample.items * 1e3)


@cache
def model() -> Any:
    torch.manual_seed(0)
    return torchvision.models.resnet18(weights=None).eval()


def embed(batch: picstore.Batch) -> torch.Tensor:
    return model()(batch.images)


def overhead(options: Options) -> Table:
    """Measure both with resnet18 at 224 pixels on the CPU, by the clock; CPU time is of all processes."""
    root = write_dataset(options, copies=1)
    cases = [Case("bare loop", lambda _: _loop(root)), Case("picstore.map", lambda _: _map(root))]
    results = measure(cases, rounds=options.round_count(5), tolerance=1e-3)
    about = (
        f"photographs; resnet18 with random weights, 1,000 outputs per image, on {torch.get_num_threads()} threads of "
        f"the CPU; Resize(224), CenterCrop(224) and Normalize; batches of {BATCH}"
    )
    return tabulate(results, about, unit=MILLISECONDS, first="the loop")


def _steps() -> list[Any]:
    normalize = picstore.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    return [picstore.Resize(224), picstore.CenterCrop(224), normalize]


def _loop(root: Path) -> Sample:
    """Collect the outputs of the model in a loop, in stored order."""
    found = []
    began = _clock()
    options: dict[str, Any] = {"shuffle": False, "lanes": 1, "drop_last": False, "isolate": False}
    loader = picstore.Loader(root, batch_size=BATCH, transform=_steps(), **options)
    with torch.no_grad(), contextlib.closing(loader):
        for batch in loader:
            found.append(embed(batch))  # noqa: PERF401
    values = torch.cat(found)
    return _sample(began, values)


def _map(root: Path) -> Sample:
    """Make a column of the outputs, with all files that belong to it."""
    began = _clock()
    picstore.map(root, embed, column="embedding", transform=_steps(), batch_size=BATCH)
    return _sample(began, torch.from_numpy(picstore.Dataset(root).table["embedding"].copy()))


def _clock() -> tuple[float, float]:
    return time.perf_counter(), cpu_time()


def _sample(began: tuple[float, float], values: torch.Tensor) -> Sample:
    wall, cpu = (now - then for now, then in zip(_clock(), began, strict=True))
    return Sample(len(values), wall, {"CPU ms per image, last": cpu / len(values) * 1e3}, [float(values.abs().mean())])
