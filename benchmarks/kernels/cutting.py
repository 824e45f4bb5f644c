"""Cuts of RandomResizedCrop's boxes by stored segment tables, and what cutting saves in decoding."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import numpy as np
from PIL import Image

from benchmarks.harness import MICROSECONDS, Case, Row, Table, cpu_time, join, measure, tabulate
from benchmarks.kernels.markers import pin
from benchmarks.options import Options
from benchmarks.photographs import crop_geometry, encode, mark, pillow, read_markable, shrink, summary
from picstore.jpeg.cut import TiledJpegs, cut_batch
from picstore.jpeg.markers import find_restart_segments, parse_header
from picstore.train.cpu.decode_crop import decode_rgb

BATCH = 128  # cuts in one call
SIZES = {"in memory": 256 << 20, "in cache": 8 << 20}  # bytes of streams; 8 MiB stay in most last-level caches
QUALITIES = (75, 90, 95)


class StreamBatches:
    """Streams with the fields that a container stores about them, and a box each, cut in batches."""

    def __init__(self, jpegs: Sequence[bytes]) -> None:
        headers = [parse_header(jpeg) for jpeg in jpegs]
        self.headers, self.jpegs = headers, jpegs
        layouts = [[h.width, h.height, *h.mcu_size, h.restart_interval, h.length] for h in headers]
        self._layouts = np.array(layouts, np.int64)
        spans = [find_restart_segments(jpeg, header) for jpeg, header in zip(jpegs, headers, strict=True)]
        self._segments = [(ends - starts).astype(np.uint16) for starts, ends in spans]
        self._boxes = crop_geometry([(h.width, h.height) for h in headers]).reach
        self._batches = [slice(start, start + BATCH) for start in range(0, len(jpegs), BATCH)]
        self._out = np.zeros(max(sum(map(len, jpegs[batch])) for batch in self._batches), np.uint8)
        self._tiled = [self._describe(batch) for batch in self._batches]

    def _describe(self, batch: slice) -> TiledJpegs:
        return TiledJpegs.from_streams(self.jpegs[batch], self._layouts[batch], self._segments[batch])

    def describe(self) -> None:
        """Collect addresses and layouts, without a cut."""
        for batch in self._batches:
            self._describe(batch)

    def cut(self) -> int:
        """Cut all; returns the bytes of the cuts."""
        batches = zip(self._batches, self._tiled, strict=True)
        return sum(int(cut_batch(tiled, self._boxes[b], out=self._out).offsets[-1]) for b, tiled in batches)

    def decode(self) -> int:
        """Cut and decode, as the loader does; returns the images."""
        for batch, tiled in zip(self._batches, self._tiled, strict=True):
            cuts = cut_batch(tiled, self._boxes[batch], out=self._out)
            data, offsets = memoryview(cuts.data), cuts.offsets.tolist()
            for number, (_, _, width, height) in enumerate(cuts.rects.tolist()):
                decode_rgb(data[offsets[number] : offsets[number + 1]], width=width, height=height)
        return len(self.jpegs)

    def decode_whole(self) -> int:
        """Decode all bytes; returns the images."""
        for jpeg, header in zip(self.jpegs, self.headers, strict=True):
            decode_rgb(jpeg, width=header.width, height=header.height)
        return len(self.jpegs)


def cut(options: Options) -> Table:
    """``cut_batch`` over streams in memory and in cache, and collecting their addresses in Python."""
    pin()
    jpegs = read_markable(options.photographs, options.image_count(400))
    small = [encode(shrink(pillow(jpeg), kind=Image.Resampling.BOX)) for jpeg in jpegs]
    tables = []
    for name, streams in (("photographs", jpegs), ("shorter side 256, quality 90", small)):
        marked = mark(streams, "tile")
        for where, size in SIZES.items():
            tables.append(_cut_streams(f"{name}, {where}", _fill(marked, 1 << 20 if options.quick else size), options))
    return join(tables)


def _fill(jpegs: list[bytes], size: int) -> list[bytes]:
    """Choose streams or copies of them in random order, ``size`` bytes together."""
    times = -(-size // sum(map(len, jpegs)))
    chosen, total = [], 0
    for number in np.random.default_rng(0).permutation(len(jpegs) * times).tolist():
        if total >= size:
            break
        jpeg = jpegs[number % len(jpegs)]
        chosen.append(bytes(bytearray(jpeg)))  # a copy at another address
        total += len(jpeg)
    return chosen


def _cut_streams(name: str, streams: list[bytes], options: Options) -> Table:
    batches = StreamBatches(streams)
    count = len(streams)
    repeats = max(1, 1000 // count)  # a run takes milliseconds

    def cut_all(_: None) -> int:
        for _ in range(repeats):
            batches.cut()
        return count * repeats

    def describe_all(_: None) -> int:
        for _ in range(repeats):
            batches.describe()
        return count * repeats

    cut_bytes = batches.cut()
    cases = [Case("cut_batch", cut_all), Case("addresses", describe_all)]
    results = measure(cases, rounds=options.round_count(5), clock=cpu_time)
    each = statistics.median(map(MICROSECONDS.value, results[0].samples))
    results[0].figures |= {"cuts/s": 1e6 / each, "GB/s": cut_bytes / count / each / 1e3}
    kilobytes = f"{sum(map(len, streams)) / count / 1e3:.0f}, {cut_bytes / count / 1e3:.0f}"
    names = {"streams": name, "KB each, KB cut": kilobytes}
    about = f"{options.image_count(400)} photographs, batches of {BATCH}; CPU time of one core"
    return tabulate(results, about, unit=MICROSECONDS, names=names)


def decode_cuts(options: Options) -> Table:
    """Decoding of cuts against whole files without markers, by quality, subsampling and restart interval."""
    pin()
    jpegs = read_markable(options.photographs, options.image_count(100))
    images = [pillow(jpeg) for jpeg in jpegs]
    sources: dict[str, Callable[[], list[bytes]]] = {"as they are": lambda: jpegs}
    for quality in QUALITIES[:1] if options.quick else QUALITIES:
        for subsampling in ("4:4:4", "4:2:0"):
            sources[f"quality {quality}, {subsampling}"] = lambda q=quality, s=subsampling: [
                encode(image, quality=q, subsampling=s) for image in images
            ]
    tables = [_decode_source(name, make(), options) for name, make in sources.items()]
    return Table(f"{summary(jpegs)}; CPU time of one core", join(tables).rows, join(tables).samples)


def _decode_source(name: str, jpegs: list[bytes], options: Options) -> Table:
    bare_bytes = sum(map(len, mark(jpegs, "none")))
    cases = [Case("without markers, whole", StreamBatches.decode_whole, lambda: StreamBatches(jpegs))]
    for markers in ("MCU", "tile", "row"):
        streams = StreamBatches(mark(jpegs, markers))
        size = sum(map(len, streams.jpegs))
        figures: Row = {"bytes added": f"{size / bare_bytes - 1:+.1%}"}
        left = figures | {"bytes left": f"{streams.cut() / size:.0%}"}
        cases.append(Case(f"{markers}, cut", StreamBatches.decode, lambda s=streams: s, figures=left))
        cases.append(Case(f"{markers}, whole", StreamBatches.decode_whole, lambda s=streams: s, figures=figures))
    results = measure(cases, rounds=options.round_count(5), clock=cpu_time)
    for result in results[1:]:
        if result.ratios:
            result.figures["times as fast"] = f"{1 / statistics.median(result.ratios):.2f}"
    return tabulate(results, "", names={"source": name})
