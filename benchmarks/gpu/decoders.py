"""Decoders by themselves: what nvJPEG's hardware takes, and the effect of markers, threads, batches and cuts."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path

import torch
import torchvision

from benchmarks.gpu.device import Device, tensors
from benchmarks.harness import Case, Row, Sample, Table, measure, tabulate
from benchmarks.options import Options
from benchmarks.photographs import MARKERS, cut_all, encode, find, mark, pillow


class StreamSets:
    """Photographs at quality 90, by subsampling and markers, whole or cut."""

    def __init__(self, options: Options) -> None:
        paths = find(options.photographs, options.image_count(400))
        images = [pillow(path.read_bytes()) for path in paths]
        self._images = images
        self._encoded = cache(lambda sampling: [encode(image, subsampling=sampling) for image in images])

    def get(self, subsampling: str, markers: str, cut: bool = False) -> list[bytes]:
        """Streams of one kind, "4:4:0" and "grey" too."""
        jpegs = self._encoded(subsampling)
        jpegs = jpegs if markers == "none" else mark(jpegs, markers)
        return cut_all(jpegs)[0] if cut else jpegs

    def small(self, subsampling: str, width: int, height: int) -> list[bytes]:
        """Corners of a few photographs, with a marker a tile."""
        corners = [image.crop((0, 0, width, height)) for image in self._images[:4]]
        return mark([encode(corner, subsampling=subsampling) for corner in corners], "tile")


def decoders(options: Options) -> Table:
    """Images/s of each decoder by markers, subsampling, threads and batch, each batch decoded in one call."""
    device, streams = Device(options), StreamSets(options)
    plan = [(s, m, False, 1, 256) for s in ("4:2:0", "4:4:4") for m in MARKERS]
    plan += [(s, "tile", True, 1, 256) for s in ("4:2:0", "4:4:4")]  # cuts of RandomResizedCrop's boxes
    plan += [("4:2:0", "tile", cut, threads, 256) for threads in (2, 4, 8) for cut in (False, True)]
    plan += [("4:2:0", "tile", False, 1, batch) for batch in (64, 1024)]
    return _race(device, streams, plan[:2] if options.quick else plan, options)


def _race(
    device: Device, streams: StreamSets, plan: Sequence[tuple[str, str, bool, int, int]], options: Options
) -> Table:
    found, rounds = device.decoders(), options.round_count(3)
    seconds = device.sample_seconds(rounds * len(plan) * len(found))
    cases = []
    for subsampling, markers, cuts, threads, batch in plan:
        for name in found:
            jpegs = streams.get(subsampling, markers, cuts)
            size = min(batch, device.batch) if options.quick else batch
            repeated = tensors((jpegs * -(-2 * size // len(jpegs)))[: max(2 * size, len(jpegs))])
            batches = [repeated[first : first + size] for first in range(0, len(repeated) - size + 1, size)]
            title = f"{name}, {subsampling}, markers: {markers}, {'cuts' if cuts else 'whole'}"
            run = partial(_decode, device, name, batches, threads, seconds)
            figures: Row = {"KB": sum(map(len, jpegs)) / len(jpegs) / 1e3}
            cases.append(Case(f"{title}, {threads} threads, batches of {size}", run, figures=figures))
    return tabulate(measure(cases, rounds=rounds, warmups=0, seconds=device.seconds), device.about, first="the first")


def _decode(
    device: Device, name: str, batches: list[list[torch.Tensor]], threads: int, seconds: float, _: None
) -> Sample:
    decode = device.decoders()[name]

    def work(number: int) -> int:
        batch = batches[number % len(batches)]
        device.drain()
        return len(decode(list(batch)))

    return device.rate(work, seconds=seconds, threads=threads)


def probe(options: Options) -> Table:
    """Streams that nvJPEG's hardware backend says it takes, by sampling, markers and size; and its engines."""
    device, streams, rows = Device(options), StreamSets(options), []
    nvjpeg = Nvjpeg() if device.cuda else None
    for sampling in ("4:2:0", "4:4:4", "4:2:2", "4:4:0", "grey"):
        kinds = {f"markers: {markers}": streams.get(sampling, markers) for markers in MARKERS}
        kinds["cuts, markers: tile"] = streams.get(sampling, "tile", cut=True)
        for title, (width, height) in {"one MCU high": (256, 8), "small": (9, 7)}.items():
            kinds[f"{title}, markers: tile"] = streams.small(sampling, width, height)
        for kind, jpegs in kinds.items():
            chosen = jpegs[:32]
            taken = sum(map(nvjpeg.takes, chosen)) if nvjpeg else "no GPU"
            rows.append({"sampling": sampling, "streams": kind, "taken": taken, "of": len(chosen)})
    engines = nvjpeg.engines() if nvjpeg else "no GPU"
    return Table(f"{device.about}; nvjpegGetHardwareDecoderInfo: {engines}", rows)


class Nvjpeg:
    """nvJPEG's hardware backend by itself: no library of Python tells whether it takes a stream."""

    def __init__(self) -> None:
        site = Path(torchvision.__file__).parents[1]
        patterns = ("torchvision.libs/libnvjpeg*", "torchvision/libnvjpeg*", "nvidia/*/lib/libnvjpeg.so*")
        found = [path for pattern in patterns for path in sorted(site.glob(pattern))]
        found += sorted(Path("/usr/local/cuda/lib64").glob("libnvjpeg.so*"))
        self._library = ctypes.CDLL(str(found[0] if found else "libnvjpeg.so"))
        self._handle, self._stream = ctypes.c_void_p(), ctypes.c_void_p()
        status = self._library.nvjpegCreateEx(3, None, None, 0, ctypes.byref(self._handle))  # NVJPEG_BACKEND_HARDWARE
        if status:
            raise RuntimeError(f"nvjpegCreateEx for the hardware backend returns {status}")
        self._library.nvjpegJpegStreamCreate(self._handle, ctypes.byref(self._stream))

    def engines(self) -> str:
        """Number of JPEG engines, and cores of each."""
        engines, cores = ctypes.c_uint(), ctypes.c_uint()
        status = self._library.nvjpegGetHardwareDecoderInfo(self._handle, ctypes.byref(engines), ctypes.byref(cores))
        return f"status {status}" if status else f"{engines.value} engines of {cores.value} cores"

    def takes(self, jpeg: bytes) -> bool:
        """Whether the hardware decodes a stream in a batch."""
        answer, length = ctypes.c_int(-1), ctypes.c_size_t(len(jpeg))
        self._library.nvjpegJpegStreamParseHeader(self._handle, jpeg, length, self._stream)
        self._library.nvjpegDecodeBatchedSupported(self._handle, self._stream, ctypes.byref(answer))
        return answer.value == 0
