"""Insertion of restart markers against jpegtran, and bytes that it adds."""

from __future__ import annotations

import os
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from benchmarks.child import MissingError
from benchmarks.harness import MEGABYTES_PER_SECOND, Case, Table, cpu_time, measure, tabulate
from benchmarks.options import Options
from benchmarks.photographs import read_markable, summary, tile
from picstore import add_restart_markers
from picstore.jpeg.markers import parse_header


def pin() -> None:
    """Run this process and its children on one CPU, the last."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def insertion(options: Options) -> Table:
    """``add_restart_markers``, bytes to bytes and file to file, against ``jpegtran -restart`` run file by file."""
    pin()
    jpegs = read_markable(options.photographs, options.image_count(400))
    size = sum(map(len, jpegs))
    files = [options.work / f"{number}.jpg" for number in range(len(jpegs))]
    for file, jpeg in zip(files, jpegs, strict=True):
        file.write_bytes(jpeg)
    small, out = options.work / "small.jpg", options.work / "out.jpg"
    Image.new("RGB", (16, 16)).save(small)
    intervals = [tile(parse_header(jpeg)) for jpeg in jpegs]

    def in_memory(_: None) -> int:
        return sum(len(jpeg) for jpeg in jpegs if add_restart_markers(jpeg))

    def in_files(_: None) -> int:
        return sum(out.write_bytes(add_restart_markers(file.read_bytes())) and file.stat().st_size for file in files)

    def jpegtran(inputs: Sequence[Path]) -> int:
        for file, interval in zip(inputs, intervals, strict=True):
            _run_jpegtran("-restart", f"{interval}B", "-outfile", str(out), str(file))
        return size

    cases = [
        Case("add_restart_markers, file to file", in_files),
        Case("add_restart_markers, bytes to bytes", in_memory),
        Case("jpegtran -restart, file by file", jpegtran, lambda: files),
        Case("jpegtran of a 16 × 16 image, as often: its start", jpegtran, lambda: [small] * len(files)),
    ]
    results = measure(cases, rounds=options.round_count(5), clock=cpu_time)
    for result in results:
        if result.samples:
            result.figures["images/s"] = len(jpegs) / statistics.median(sample.seconds for sample in result.samples)
    return tabulate(results, f"{summary(jpegs)}; CPU time of one core", unit=MEGABYTES_PER_SECOND, first="picstore")


def _run_jpegtran(*arguments: str) -> None:
    try:
        subprocess.run(["jpegtran", *arguments], check=True)
    except FileNotFoundError as error:
        raise MissingError("Debian: libjpeg-turbo-progs") from error
