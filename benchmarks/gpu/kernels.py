"""picstore's kernels for GPUs one by one, on a batch of RandomResizedCrop's boxes, beside what was predicted."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

import picstore
from benchmarks.gpu.device import STANDARD, TINY, Device, datasets, on_device
from benchmarks.gpu.expected import LINK, expected, measured
from benchmarks.gpu.host import host_batches
from benchmarks.harness import Row, Table, say
from benchmarks.options import Options

_AUGMENTATION = "augmentation: "
TINY_CROP = 16  # pixels, where every operation is interpreted
_TOGETHER = 4  # batches that the loader decodes together
_THREADS = 2  # as many as the loader has streams


class Described:
    """A batch in the host's memory, described for picstore's decoder, and what makes it on a device.

    Attributes:
        batch: a HostBatch.
        make: a ``DecodeTiles``.
    """

    def __init__(self, device: Device, path: Path) -> None:
        from picstore.train.batching.spec import GroupSpec, OutputSpec
        from picstore.train.pipeline.device_decoding import DecodeTiles

        transform = STANDARD if device.cuda else [picstore.RandomResizedCrop(TINY_CROP), *STANDARD[1:]]
        with host_batches(path, batch=device.batch if device.cuda else TINY, transform=transform) as epoch:
            self.batch = next(epoch())
        self.batch.encoded.segments.probe = None  # which the first batch of a process has
        self.make = DecodeTiles(OutputSpec((GroupSpec(stacked=True),), form="segments"), device.device, strict=False)

    def run(self, _: int = 0) -> int:
        """Make the batch; returns its images."""
        made = self.make(self.batch)
        if made.refused or made.damage:
            raise AssertionError(f"{len(made.refused)} images were left to the CPU: {made.refused[:1]}")
        return len(made.batch)

    def run_together(self) -> None:
        """Make the batch as several that one set of launches decodes."""
        for finish in self.make.start([self.batch] * _TOGETHER):
            finish()


class _Recorder:
    """A kernel of Triton's that notes its launches, to be launched again."""

    def __init__(self, name: str, kernel: Any, launches: dict[str, Callable[[], Any]]) -> None:
        self._name, self._kernel, self._launches = name, kernel, launches

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        def launch(*arguments: Any, **options: Any) -> Any:
            self._launches[self._name] = partial(self._kernel[grid], *arguments, **options)
            return self._launches[self._name]()

        return launch


class _KeptTorch:
    """Replacement of a module's ``torch`` that keeps new tensors: kernels are given their addresses alone."""

    def __init__(self) -> None:
        self._kept: list[torch.Tensor] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def empty(self, *size: Any, **options: Any) -> torch.Tensor:
        """Make a tensor."""
        self._kept.append(torch.empty(*size, **options))
        return self._kept[-1]

    def zeros(self, *size: Any, **options: Any) -> torch.Tensor:
        """Make a tensor of zeros."""
        self._kept.append(torch.zeros(*size, **options))
        return self._kept[-1]


def kernels(options: Options) -> Table:
    """Images/s of each kernel alone, of the copy to the GPU, and of all, with 2 data sets."""
    return Table(**on_device("benchmarks.gpu.kernels:measure_kernels", options))


def measure_kernels(fields: dict[str, Any]) -> dict[str, Any]:
    """Measure in this process."""
    options = Options.from_json(fields)
    device = Device(options)
    rows: list[Row] = []
    for photographs, path in datasets(device, options).items():
        rows += [{"photographs": photographs, **row} for row in _measure(device, path, photographs)]
    known = "predicted for an H200 and first measured on an H100, see benchmarks/gpu/expected.py"
    about = f"{device.about}; a sample takes {device.least:.0f} s; {known}"
    return asdict(Table(about, rows))


def _measure(device: Device, path: Path, photographs: str) -> list[Row]:
    described, (launches, _kept) = Described(device, path), record(device, path)
    images, rows = len(described.batch.labels), []
    seconds: dict[str, float] = {}

    def add(name: str, took: float, **figures: Any) -> None:
        seconds[name] = took
        row: Row = {"step": name, "ms a batch": took * 1e3, "images/s": images / took}
        known = {"predicted": expected(name, photographs), "first run, H100": measured(name, photographs)}
        rows.append(row | known | figures)
        say(f"{photographs}, {name}: {took * 1e3:.3f} ms")

    data = torch.from_numpy(np.ascontiguousarray(described.batch.images))
    data = data.pin_memory() if device.cuda else data
    target = torch.empty_like(data, device=device.device)
    took = device.time(lambda: target.copy_(data, non_blocking=True))
    add(
        "copy of bytes to the GPU",
        took,
        **{"GB/s": len(data) / took / 1e9, f"of {LINK} GB/s, %": len(data) / took / LINK / 1e7},
    )
    for name, launch in launches.items():
        add(name, device.time(launch))
    add("all of decoding", sum(seconds[name] for name in launches if not name.startswith(_AUGMENTATION)))
    add("decoding and augmentation, one batch at a time", device.time(described.run))
    add(f"decoding and augmentation, {_TOGETHER} batches at once", device.time(described.run_together) / _TOGETHER)
    sample = device.rate(described.run, seconds=device.least, threads=_THREADS)
    add(f"decoding and augmentation, {_THREADS} threads", images * sample.seconds / sample.items)
    return rows


def record(device: Device, path: Path) -> tuple[dict[str, Callable[[], Any]], object]:
    """Launches of all kernels that a batch takes, by name, and what keeps the memory that they work on."""
    from picstore.train.cuda import augment, decode_tiles

    launches: dict[str, Callable[[], Any]] = {}
    described, kept = Described(device, path), _KeptTorch()
    with ExitStack() as stack:
        for module in (decode_tiles, augment):
            stack.enter_context(patch.object(module, "torch", kept))
            for name, kernel in list(vars(module).items()):
                if hasattr(kernel, "__getitem__") and hasattr(kernel, "arg_names"):
                    title = name if module is decode_tiles else f"{_AUGMENTATION}{name}"
                    stack.enter_context(patch.object(module, name, _Recorder(title, kernel, launches)))
        described.run()
    return launches, kept
