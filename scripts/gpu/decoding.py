"""Decoders by themselves: what markers, sizes, threads and batches do to their speed, and what cutting gains."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any

from gpu.bench import Bench
from gpu.case import Case, Row
from gpu.machine import Engines, Nvjpeg
from gpu.pictures import MARKERS, crop_boxes, cut_all

BATCHES = (64, 256, 1024)
THREADS = (1, 2, 4, 8)


def cases(bench: Bench) -> list[Case]:
    """Decoders: whether the hardware takes the streams, markers, sizes, threads, batches, other decoders."""
    streams = StreamFiller(bench)
    others = [name for name in bench.device.decoders() if name != "torchvision"]
    found = []
    for subsampling in ("4:2:0", "4:4:4"):
        for markers in MARKERS:
            names = {"subsampling": subsampling, "markers": markers}
            takes = partial(hardware_takes, streams, names)
            found.append(Case("Does nvJPEG's hardware backend take the streams", names, takes, weight=0.2))
            found.append(Case("Markers", names, partial(decode_rate, streams, names)))
    for equal in (True, False):
        names = {"sizes": "all 512 × 384" if equal else "as they are"}
        found.append(Case("Sizes", names, partial(decode_rate, streams, {"equal": equal})))
    for name in ("torchvision", *others):
        for threads in THREADS:
            for cut in (False, True):
                names = {"decoder": name, "threads": threads, "streams": "cuts" if cut else "whole"}
                options = {"decoder": name, "threads": threads, "cut": cut}
                found.append(Case("Decoders and threads", names, partial(decode_rate, streams, options)))
    for name in ("torchvision", *others):
        for batch in BATCHES:
            names = {"decoder": name, "batch": batch}
            found.append(Case("Batches", names, partial(decode_rate, streams, names)))
    return found


def cut_cases(bench: Bench) -> list[Case]:
    """Whole images against cuts: all bytes decoded, or those of RandomResizedCrop's boxes."""
    streams = StreamFiller(bench)
    decoder = "torchcodec" if "torchcodec" in streams.decoders else "torchvision"  # as the loader chooses
    found = []
    for subsampling in ("4:2:0", "4:4:4"):
        for cut in (False, True, False, True):
            names = {"subsampling": subsampling, "streams": "cuts" if cut else "whole"}
            options = {"subsampling": subsampling, "cut": cut, "decoder": decoder}
            found.append(Case("Whole against cut", names, partial(decode_rate, streams, options)))
    return found


class StreamFiller:
    """Encoded photographs, made when they are asked for and kept."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.decoders = bench.device.decoders()
        self._made: dict[tuple[Any, ...], list[bytes]] = {}

    @cached_property
    def nvjpeg(self) -> Nvjpeg:
        """nvJPEG itself."""
        return Nvjpeg()

    def get(
        self, *, subsampling: str = "4:2:0", markers: str = "tile", equal: bool = False, cut: bool = False
    ) -> list[bytes]:
        """Streams of one kind."""
        key = (subsampling, markers, equal, cut)
        if key not in self._made:
            made = self.bench.photographs.encoded(subsampling=subsampling, markers=markers, equal=equal)
            if cut:
                made, _ = cut_all(made, crop_boxes([image.size for image in self.bench.photographs.pixels]))
            self._made[key] = made
        return self._made[key]

    def pixels(self, *, equal: bool = False) -> float:
        """Megapixels of a whole image, on average."""
        sizes = [image.size for image in self.bench.photographs.pixels]
        return 512 * 384e-6 if equal else sum(width * height for width, height in sizes) / len(sizes) / 1e6


def hardware_takes(streams: StreamFiller, names: Row, _: float) -> Row:
    """What nvJPEG itself says."""
    if not streams.bench.device.cuda:
        return {"taken": "n/a"}
    jpegs = streams.get(**names)[:32]
    return {"taken": sum(map(streams.nvjpeg.takes, jpegs)), "of": len(jpegs)}


def decode_rate(streams: StreamFiller, options: Row, seconds: float) -> Row:
    """Images/s and megapixels/s of a decoder, each batch in one call."""
    options = dict(options)
    decoder = streams.decoders[options.pop("decoder", "torchvision")]
    threads, size = options.pop("threads", 1), options.pop("batch", 256)
    jpegs = streams.get(**options)
    if streams.bench.tiny:
        size = min(size, 4)
    # Long enough for a whole batch, and begun anew at another image each time.
    repeated = (jpegs * -(-2 * size // len(jpegs)))[: max(2 * size, len(jpegs))]
    batches = [decoder.prepare(chunk) for chunk in chunks(repeated, size)]

    def work(number: int) -> int:
        batch = batches[number % len(batches)]
        streams.bench.device.decode(decoder, batch)
        return len(batch)

    with Engines(streams.bench.device.device) as engines:
        rate = streams.bench.device.rate(work, seconds=seconds, threads=threads)
    row: Row = {"images/s": rate}
    if not options.get("cut"):
        row["Mpix/s"] = rate * streams.pixels(equal=options.get("equal", False))
    return {**row, "KB": sum(map(len, jpegs)) / len(jpegs) / 1000, **engines.row}


def chunks(items: Sequence[Any], size: int) -> list[Sequence[Any]]:
    """Whole batches."""
    return [items[start : start + size] for start in range(0, len(items) - size + 1, size)]
