"""The measured device: decoders, rates of work in threads, busy JPEG engines, data sets for its tables."""

from __future__ import annotations

import contextlib
import ctypes
import os
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torchvision.io import ImageReadMode, decode_jpeg

import picstore
from benchmarks.child import call
from benchmarks.dataset import write_dataset
from benchmarks.gpu.expected import LOSSLESS, QUALITY_90, QUALITY_90_OPTIONS
from benchmarks.harness import Sample
from benchmarks.interpreter import quicken
from benchmarks.options import Options
from picstore.train.pipeline import runner

TINY = 2  # pictures, where Triton's interpreter decodes them
_CALLS = 8
BATCH, SIZE = 256, 224
STANDARD = [picstore.RandomResizedCrop(SIZE), picstore.RandomHorizontalFlip()]
EVERY = 0.05  # seconds between two samples of the engines
LEAST = 5.0  # seconds of a sample: clocks of a GPU follow its load within one or two

Decode = Callable[["list[torch.Tensor]"], "list[torch.Tensor]"]


class Device:
    """A GPU, or the CPU to try the tables without one."""

    def __init__(self, options: Options) -> None:
        quicken()
        self.cuda = options.device != "cpu"
        self.device = torch.device(options.device)
        if self.cuda:
            self.device = torch.device("cuda", self.device.index or 0)
            torch.cuda.set_device(self.device)
        self.batch = 8 if options.quick else BATCH
        self.size = SIZE if self.cuda else 32  # a CPU takes a second for the smallest step of training of 224
        self.standard = [picstore.RandomResizedCrop(self.size), *STANDARD[1:]]
        self.seconds = options.seconds
        self.least = 0.0 if options.quick else LEAST

    @property
    def about(self) -> str:
        """Device and versions."""
        name = torch.cuda.get_device_name(self.device) if self.cuda else "CPU, figures mean nothing"
        return f"{name}; torch {torch.__version__}, CUDA {torch.version.cuda}; batches of {self.batch}"

    def synchronize(self) -> None:
        """Wait for all work of the device."""
        if self.cuda:
            torch.cuda.synchronize(self.device)

    def drain(self) -> None:
        """Wait for the current stream: decoders must not begin before."""
        if self.cuda:
            torch.cuda.current_stream(self.device).synchronize()

    def stream(self) -> AbstractContextManager[Any]:
        """A stream of its own for a block."""
        return torch.cuda.stream(torch.cuda.Stream(self.device)) if self.cuda else contextlib.nullcontext()

    def decoders(self) -> dict[str, Decode]:
        """Decoders of lists that are installed, by name."""
        found: dict[str, Decode] = {
            "torchvision": lambda streams: decode_jpeg(streams, mode=ImageReadMode.RGB, device=self.device)
        }
        with contextlib.suppress(ImportError, RuntimeError, OSError, AttributeError):  # torchcodec may not load
            decode = import_module("torchcodec.decoders").decode_jpeg
            if self.cuda:
                found["torchcodec"] = lambda streams: decode(streams, mode="RGB", device=self.device)
        return found

    @property
    def nvjpeg(self) -> str:
        """The loader's decoder that uses nvJPEG, where there is a GPU."""
        if not self.cuda:
            return "auto"
        return "torchcodec" if "torchcodec" in self.decoders() else "torchvision"

    def loader(self, path: Path, **options: Any) -> picstore.Loader:
        """A loader to this device; picstore's decoder for GPUs takes a CPU too, where its kernels are interpreted."""
        given = {"batch_size": self.batch, "transform": self.standard, **options}
        if self.cuda or options.get("decoder") != "picstore":
            return picstore.Loader(path, device=self.device, **given)
        with patch.object(runner, "choose_decoder", lambda name, _: name):
            return picstore.Loader(path, device=self.device, **given)

    def sample_seconds(self, samples: int) -> float:
        """Seconds of one of so many samples of a table: its share of the time, and enough to count."""
        return max(self.least, self.seconds / samples / 2)

    def time(self, work: Callable[[], Any]) -> float:
        """Seconds of one call, of as many in turn as take long enough to count."""
        work()
        self.synchronize()
        calls, start = 0, time.perf_counter()
        while not calls or time.perf_counter() - start < self.least:
            for _ in range(_CALLS if self.least else 1):  # so that the device has work while the host waits
                work()
                calls += 1
            self.synchronize()
        return (time.perf_counter() - start) / calls

    def rate(self, work: Callable[[int], int], *, seconds: float, threads: int = 1) -> Sample:
        """Images of ``work``, which makes batch k and returns its images, in threads with a stream each."""
        work(0)
        self.synchronize()
        done, failed, start = [0] * threads, [], time.perf_counter()

        def run(thread: int) -> None:
            number = thread
            try:
                with self.stream():
                    while time.perf_counter() - start < seconds or not done[thread]:
                        done[thread] += work(number)
                        number += threads
                    self.drain()
            except Exception as error:  # raised again below
                failed.append(error)

        workers = [threading.Thread(target=run, args=(thread,)) for thread in range(threads)]
        with Engines(self) as engines:
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            if failed:
                raise failed[0]
            self.synchronize()
        return Sample(sum(done), time.perf_counter() - start, engines.figures)


class Engines:
    """Busy JPEG engines and multiprocessors while a block runs, in percent, where NVML tells."""

    def __init__(self, device: Device) -> None:
        self._samples: dict[str, list[float]] = {"JPEG engines, %": [], "GPU, %": []}
        self._device, self._over = device, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Engines:
        if self._device.cuda:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._device.cuda:
            self._thread.join(10)

    @property
    def figures(self) -> dict[str, float]:
        """Means so far."""
        return {name: statistics.mean(seen) for name, seen in self._samples.items() if seen}

    def _watch(self) -> None:
        try:
            nvml = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return
        handle, busy, period = ctypes.c_void_p(), ctypes.c_uint(), ctypes.c_uint()
        rates = (ctypes.c_uint * 2)()
        if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByIndex_v2(self._device.device.index, ctypes.byref(handle)):
            return
        while not self._over.wait(EVERY):
            if nvml.nvmlDeviceGetJpgUtilization(handle, ctypes.byref(busy), ctypes.byref(period)) == 0:
                self._samples["JPEG engines, %"].append(busy.value)
            if nvml.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(rates)) == 0:
                self._samples["GPU, %"].append(rates[0])


def dataset(options: Options, *arguments: str) -> Path:
    """Fifty copies of the photographs; ``arguments`` are convert's."""
    return write_dataset(options, *arguments, copies=2 if options.quick else 50)


def datasets(device: Device, options: Options) -> dict[str, Path]:
    """Data sets by what they hold: photographs as they are and of quality 90; without a GPU a few tiny pictures."""
    if device.cuda:
        return {LOSSLESS: dataset(options), QUALITY_90: dataset(options, *QUALITY_90_OPTIONS)}
    return {LOSSLESS: write_tiny(options, TINY)}


def write_tiny(options: Options, count: int) -> Path:
    """Pictures of 16 × 16 pixels, smooth ones: an interpreter takes seconds for the coefficients of noise."""
    path = options.work / f"tiny-{count}"
    if not path.exists():
        ramp = np.linspace(0, 150, 16)
        with picstore.Writer(path, classes=["any"]) as writer:
            for number in range(count):
                pixels = np.add.outer(ramp, ramp / 2)[..., None] + [number, 2 * number, 0]
                writer.add(pixels.astype(np.uint8), label=0)
    return path


def on_device(target: str, options: Options) -> Any:
    """Call a function, "module:function", with the options; without a GPU where Triton's kernels are interpreted."""
    return interpreted(target, options) if options.device == "cpu" else _call_here(target, options)


def interpreted(target: str, options: Options) -> Any:
    """Call a function, "module:function", with the options, here or in a child that interprets Triton's kernels."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        return _call_here(target, options)
    return call(target, asdict(options), environment={"TRITON_INTERPRET": "1"}, limit=3600)


def _call_here(target: str, options: Options) -> Any:
    module, _, function = target.partition(":")
    return getattr(import_module(module), function)(asdict(options))


def tensors(jpegs: Sequence[bytes]) -> list[torch.Tensor]:
    """Streams as decoders of torch take them."""
    return [torch.frombuffer(bytearray(jpeg), dtype=torch.uint8) for jpeg in jpegs]
