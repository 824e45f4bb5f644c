"""``picstore convert --resume`` where nearly everything is done, for a source of 100,000 inputs."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.child import FailedError
from benchmarks.command import command_seconds
from benchmarks.harness import SECONDS, Case, Sample, Table, measure, tabulate
from benchmarks.options import Options

FILES = 100  # small images, which the list names again and again: decoding and encoding is not what is measured
FILE_SIZE = ("--file-size", "32KiB")


def resume(options: Options) -> Table:
    """Seconds of a conversion whose last rows are missing, of one that is finished, and of ``--retry-failed``."""
    inputs = options.images or (2_000 if options.quick else 100_000)
    source, out, small = _write_source(options.work, inputs), options.work / "out", _write_source(options.work, 10)
    stop_before_the_end(source, out)
    rows = json.loads((out / "unfinished" / "job.json").read_text())["rows"]

    def run(*arguments: str) -> Callable[[None], Sample]:
        def seconds(_: None) -> Sample:
            warmup = ("convert", small, options.work / f"warmup-{time.monotonic_ns()}", *FILE_SIZE)
            return Sample(inputs, command_seconds(("convert", source, out, *FILE_SIZE, *arguments), warmup=warmup))

        return seconds

    names = {"the last rows missing": "--resume", "finished": "--resume", "nothing failed": "--retry-failed"}
    cases = [Case(f"{name}, {argument}", run(argument)) for name, argument in names.items()]
    results = measure(cases, rounds=1, warmups=0)
    return tabulate(results, f"{inputs:,} inputs in {rows} rows", unit=SECONDS)


def _write_source(folder: Path, inputs: int) -> Path:
    """Write a list of inputs and the images that it names."""
    rng = np.random.default_rng(0)
    for number in range(FILES):
        out = io.BytesIO()
        Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(out, "JPEG")
        (folder / f"{number}.jpg").write_bytes(out.getvalue())
    listing = folder / f"inputs-{inputs}.txt"
    listing.write_text("".join(f"{number % FILES}.jpg {number % 10}\n" for number in range(inputs)))
    return listing


def stop_before_the_end(source: Path, out: Path) -> None:
    """Convert, and interrupt the command when all but two rows are finished."""
    command = [sys.executable, "-m", "picstore", "convert", source, out, *FILE_SIZE]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    job = out / "unfinished" / "job.json"
    while process.poll() is None:
        time.sleep(0.005)
        if job.exists() and (text := job.read_text()):
            finished = sum(1 for _ in job.parent.glob("row-*.jsonl"))
            if finished >= json.loads(text).get("rows", 1 << 60) - 2:
                break
    process.terminate()
    process.wait()
    if not job.exists():
        raise FailedError("the conversion ended before it could be interrupted; take more --images")
