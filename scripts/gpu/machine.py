"""What the machine is, and how busy the GPU's JPEG engines are."""

from __future__ import annotations

import ctypes
import os
import platform
import statistics
import subprocess
import threading
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import describe as host

PACKAGES = ("picstore", "torch", "torchvision", "torchcodec", "triton", "numpy", "numba", "pillow", "opencv-python")
PACKAGES += ("opencv-python-headless", "nvidia-dali-cuda120", "nvidia-dali-cuda130", "nvidia-nvimgcodec-cu12")
EVERY = 0.05  # seconds between two looks at the engines


def describe(device: torch.device) -> dict[str, Any]:
    """GPU, driver, CUDA, versions, processor."""
    found = {**host(), "python": platform.python_version(), "versions": _versions()}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found |= {"gpu": properties.name, "gpu_memory_gib": round(properties.total_memory / 2**30, 1)}
        found |= {"multiprocessors": properties.multi_processor_count, "cuda": torch.version.cuda}
        found |= {"driver": _query("driver_version"), "capabilities": os.environ.get("NVIDIA_DRIVER_CAPABILITIES", "")}
    return found


def _versions() -> dict[str, str]:
    return {name: found for name in PACKAGES if (found := _version(name))}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _query(name: str) -> str:
    """One property of the first GPU, "" where nvidia-smi does not say."""
    command = ["nvidia-smi", f"--query-gpu={name}", "--format=csv,noheader,nounits", "--id=0"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


class Engines:
    """Looks at how busy JPEG engines and multiprocessors are while a block runs.

    Attributes:
        row: ``jpeg engines %`` and ``GPU %`` on average, where the driver says it.
    """

    def __init__(self, device: torch.device) -> None:
        self._jpeg: list[float] = []
        self._kernels: list[float] = []
        self._index = device.index or 0
        self._on = device.type == "cuda"
        self._over = threading.Event()

    def __enter__(self) -> Engines:
        self._thread = threading.Thread(target=self._watch, daemon=True)
        if self._on:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._on:
            self._thread.join(10)

    @property
    def row(self) -> dict[str, Any]:
        columns = {"jpeg engines %": self._jpeg, "GPU %": self._kernels}
        return {name: statistics.mean(seen) if seen else "n/a" for name, seen in columns.items()} if self._on else {}

    def _watch(self) -> None:
        try:
            self._by_library()
        except (OSError, AttributeError):
            self._by_command()

    def _by_library(self) -> None:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        handle, busy, period = ctypes.c_void_p(), ctypes.c_uint(), ctypes.c_uint()
        rates = (ctypes.c_uint * 2)()
        if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByIndex_v2(self._index, ctypes.byref(handle)):
            raise OSError("NVML does not start")
        while not self._over.wait(EVERY):
            if nvml.nvmlDeviceGetJpgUtilization(handle, ctypes.byref(busy), ctypes.byref(period)) == 0:
                self._jpeg.append(busy.value)
            if nvml.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(rates)) == 0:
                self._kernels.append(rates[0])

    def _by_command(self) -> None:
        while not self._over.wait(EVERY):
            jpeg, _, kernels = _query("utilization.jpeg,utilization.gpu").partition(", ")
            for text, seen in ((jpeg, self._jpeg), (kernels, self._kernels)):
                if text.isdigit():
                    seen.append(float(text))


class Nvjpeg:
    """Asks nvJPEG's hardware backend by itself whether it takes streams, which no library of Python tells."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(str(_nvjpeg_path()))
        self._handle, self._stream = ctypes.c_void_p(), ctypes.c_void_p()
        status = self._library.nvjpegCreateEx(3, None, None, 0, ctypes.byref(self._handle))  # NVJPEG_BACKEND_HARDWARE
        if status:
            raise RuntimeError(f"nvjpegCreateEx for the hardware backend returns {status}")
        self._library.nvjpegJpegStreamCreate(self._handle, ctypes.byref(self._stream))

    def takes(self, jpeg: bytes) -> bool:
        """Whether the hardware decodes a stream in a batch."""
        answer = ctypes.c_int(-1)
        length = ctypes.c_size_t(len(jpeg))
        status = self._library.nvjpegJpegStreamParseHeader(self._handle, jpeg, length, self._stream)
        if status:
            raise RuntimeError(f"nvjpegJpegStreamParseHeader returns {status}")
        status = self._library.nvjpegDecodeBatchedSupported(self._handle, self._stream, ctypes.byref(answer))
        if status:
            raise RuntimeError(f"nvjpegDecodeBatchedSupported returns {status}")
        return answer.value == 0


def _nvjpeg_path() -> Path | str:
    """The library that torchvision brings or finds."""
    import torchvision

    site = Path(torchvision.__file__).parents[1]
    patterns = ("torchvision.libs/libnvjpeg*", "torchvision/libnvjpeg*", "nvidia/*/lib/libnvjpeg.so*")
    found = [path for pattern in patterns for path in sorted(site.glob(pattern))]
    found += sorted(Path("/usr/local/cuda/lib64").glob("libnvjpeg.so*"))
    return found[0] if found else "libnvjpeg.so"
