"""picstore's decoder against libjpeg-turbo (simplejpeg), on photographs whole and cut."""

from __future__ import annotations

import math
import time

import numpy as np
import simplejpeg

from benchmarks.harness import MICROSECONDS, Case, Table, join, measure, tabulate
from benchmarks.kernels.markers import pin
from benchmarks.options import Options
from benchmarks.photographs import cut_all, encode, mark, pillow, read_markable, summary
from picstore.jpeg.decoder.decode_baseline import decode as decode_one

TOLERANCE = 0.5  # levels of the mean: chroma of 4:2:0 is interpolated alike


def decode(options: Options) -> Table:
    """µs of a core for an image: as they are and at quality 90, whole and cut for RandomResizedCrop."""
    pin()
    jpegs = read_markable(options.photographs, options.image_count(100))
    tables = []
    for name, sources in (("as they are", jpegs), ("quality 90", [encode(pillow(jpeg)) for jpeg in jpegs])):
        marked = mark(sources, "tile")
        for kind, streams in (("cuts", cut_all(marked)[0]), ("whole", marked)):
            tables.append(_compare(f"{name}, {kind}", streams, options))
    return Table(f"{summary(jpegs)}; CPU time of one thread", join(tables).rows, join(tables).samples)


def _compare(name: str, jpegs: list[bytes], options: Options) -> Table:
    pixels = [math.prod(simplejpeg.decode_jpeg_header(jpeg)[:2]) for jpeg in jpegs]
    buffer = np.empty(3 * max(pixels), np.uint8)

    def ours(_: None) -> int:
        for jpeg in jpegs:
            decode_one(jpeg, buffer)
        return len(jpegs)

    def theirs(_: None) -> int:
        for jpeg in jpegs:
            simplejpeg.decode_jpeg(jpeg, buffer=buffer)
        return len(jpegs)

    cases = [
        Case("picstore", ours, check=lambda _: [float(decode_one(jpeg).mean()) for jpeg in jpegs[:8]]),
        Case(
            "libjpeg-turbo", theirs, check=lambda _: [float(simplejpeg.decode_jpeg(jpeg).mean()) for jpeg in jpegs[:8]]
        ),
    ]
    results = measure(cases, rounds=options.round_count(9), clock=time.thread_time, tolerance=TOLERANCE)
    size = f"{np.mean([len(jpeg) for jpeg in jpegs]) / 1e3:.0f}, {np.mean(pixels):,.0f}"
    return tabulate(results, "", unit=MICROSECONDS, first="picstore", names={"streams": name, "KB, pixels": size})
