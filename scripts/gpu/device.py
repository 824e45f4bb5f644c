"""The device that is measured, and its decoders. ``cpu`` stands in for a GPU to try the script itself out."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torchvision.io import ImageReadMode, decode_jpeg

import picstore
from picstore.train.pipeline import device, runner


@dataclass(frozen=True)
class Decoder:
    """A decoder of lists: ``decode(prepare(jpegs))``, images on the device. Drain the current stream before."""

    prepare: Callable[[Sequence[bytes]], list[Any]]
    decode: Callable[[list[Any]], list[Any]]


def has(module: str, name: str) -> bool:
    """Whether a library is installed, loads, and is new enough to have a name."""
    try:
        return hasattr(import_module(module), name)
    except (ImportError, RuntimeError, OSError):  # libraries that do not load raise any of these
        return False


class Device:
    """A GPU, or the CPU in its place."""

    def __init__(self, name: str) -> None:
        self.cuda = name != "cpu"
        self.device = torch.device(name)
        if self.cuda:
            self.device = torch.device("cuda", self.device.index or 0)
            torch.cuda.set_device(self.device)
        else:
            _stand_in()

    def synchronize(self) -> None:
        """Wait for all that the device was given."""
        if self.cuda:
            torch.cuda.synchronize(self.device)

    def drain(self) -> None:
        """Wait for what the current stream was given: decoders must not begin before."""
        if self.cuda:
            torch.cuda.current_stream(self.device).synchronize()

    def stream(self) -> AbstractContextManager[Any]:
        """A stream of its own for a block."""
        return torch.cuda.stream(torch.cuda.Stream(self.device)) if self.cuda else contextlib.nullcontext()

    def tensors(self, jpegs: Sequence[bytes]) -> list[torch.Tensor]:
        """Streams as decoders of torch take them."""
        return [torch.frombuffer(bytearray(jpeg), dtype=torch.uint8) for jpeg in jpegs]

    def decoders(self) -> dict[str, Decoder]:
        """Those that are installed, by name."""
        found = {"torchvision": Decoder(self.tensors, self._by_torchvision)}
        if self.cuda and has("torchcodec.decoders", "decode_jpeg"):
            found["torchcodec"] = self._torchcodec()
        if self.cuda and has("nvidia.nvimgcodec", "Decoder"):
            found["nvimgcodec"] = self._nvimgcodec()
        return found

    def _by_torchvision(self, streams: list[Any]) -> list[Any]:
        return decode_jpeg(streams, mode=ImageReadMode.RGB, device=self.device)

    def _torchcodec(self) -> Decoder:
        def decode(streams: list[Any]) -> list[Any]:
            from torchcodec.decoders import decode_jpeg as decode_list

            return decode_list(streams, mode="RGB", device=self.device)

        return Decoder(self.tensors, decode)

    def _nvimgcodec(self) -> Decoder:
        local = threading.local()

        def decode(streams: list[Any]) -> list[Any]:
            from nvidia import nvimgcodec

            if not hasattr(local, "decoder"):
                local.decoder = nvimgcodec.Decoder(device_id=self.device.index)
            images = local.decoder.decode(streams, cuda_stream=torch.cuda.current_stream(self.device).cuda_stream)
            if any(image is None for image in images):
                raise RuntimeError("nvimgcodec left images out")
            return images

        return Decoder(list, decode)

    def decode(self, decoder: Decoder, streams: list[Any]) -> list[Any]:
        """Decode a list, safely."""
        self.drain()
        return decoder.decode(streams)

    def loader(self, path: Path, **options: Any) -> picstore.Loader:
        """A loader to this device; ``decoder="auto"`` is the first that is installed."""
        if not self.cuda and options.get("decoder", "auto") == "auto":
            options["decoder"] = "torchvision"
        return picstore.Loader(path, device=self.device, **options)

    def rate(self, work: Callable[[int], int], *, seconds: float, threads: int = 1) -> float:
        """Images/s of ``work``, which makes batch k and returns its images, in threads with a stream each."""
        with self.stream():
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
            except Exception as error:  # raised again where it is seen
                failed.append(error)

        workers = [threading.Thread(target=run, args=(thread,)) for thread in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        if failed:
            raise failed[0]
        self.synchronize()
        return sum(done) / (time.perf_counter() - start)

    def ticks(self) -> Callable[[], float]:
        """Begin to count milliseconds of the current stream; what is returned ends it when called, and may wait."""
        if not self.cuda:
            start = time.perf_counter()
            return lambda: (time.perf_counter() - start) * 1000
        begin = torch.cuda.Event(enable_timing=True)
        begin.record()
        return _Ticks(begin)


class _Ticks:
    """Milliseconds between two events."""

    def __init__(self, begin: torch.cuda.Event) -> None:
        self._begin, self._end = begin, torch.cuda.Event(enable_timing=True)

    def __call__(self) -> float:
        self._end.record()
        self._end.synchronize()
        return self._begin.elapsed_time(self._end)


def _stand_in() -> None:
    """Let loaders on the CPU take the way of a GPU: torchvision decodes, Triton's interpreter augments."""
    real, finish, lock = runner.find_decoder, device.augment_images, threading.Lock()

    def decode(streams: list[torch.Tensor]) -> list[torch.Tensor]:
        return decode_jpeg(streams, mode=ImageReadMode.RGB)

    def finish_alone(*arguments: Any) -> Any:
        with lock:  # the interpreter has one state for all threads
            return finish(*arguments)

    runner.find_decoder = lambda name, device: decode if name == "torchvision" else real(name, device)
    device.augment_images = finish_alone
