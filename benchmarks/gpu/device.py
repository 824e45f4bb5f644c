"""The measured device: decoders, rates of work in threads, busy JPEG engines, data sets for its tables."""

from __future__ import annotations

import contextlib
import ctypes
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torchvision.io import ImageReadMode, decode_jpeg

import picstore
from benchmarks.dataset import write_dataset
from benchmarks.harness import Sample
from benchmarks.options import Options

BATCH, SIZE = 256, 224
STANDARD = [picstore.RandomResizedCrop(SIZE), picstore.RandomHorizontalFlip()]
EVERY = 0.05  # seconds between two samples of the engines

Decode = Callable[["list[torch.Tensor]"], "list[torch.Tensor]"]


class Device:
    """A GPU, or the CPU to try the tables without one."""

    def __init__(self, options: Options) -> None:
        self.cuda = options.device != "cpu"
        self.device = torch.device(options.device)
        if self.cuda:
            self.device = torch.device("cuda", self.device.index or 0)
            torch.cuda.set_device(self.device)
        self.batch = 8 if options.quick else BATCH
        self.seconds = options.seconds

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

    def loader(self, path: Path, **options: Any) -> picstore.Loader:
        """A loader to this device."""
        return picstore.Loader(path, device=self.device, **{"batch_size": self.batch, "transform": STANDARD, **options})

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


def dataset(options: Options) -> Path:
    """Fifty copies of the photographs."""
    return write_dataset(options, copies=2 if options.quick else 50)


def tensors(jpegs: Sequence[bytes]) -> list[torch.Tensor]:
    """Streams as decoders of torch take them."""
    return [torch.frombuffer(bytearray(jpeg), dtype=torch.uint8) for jpeg in jpegs]
