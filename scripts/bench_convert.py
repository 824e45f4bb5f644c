"""Compare picstore's convert with FFCV's DatasetWriter on the same JPEG files, in one run on one machine.

    python scripts/bench_convert.py FOLDER [--rounds 3] [--copies 10] [--workers 2] [--json FILE]

FOLDER has one sub-folder of JPEG files a class. They are copied ten times, and in each round each contender converts
the copies, with the same number of processes. A figure is the median over the rounds of images/s, from the list of
files to the finished data set; starting Python does not count, starting worker processes does, and of picstore also
importing, as its workers start meanwhile. picstore syncs what it writes to the disk, FFCV does not.
``scripts/bench-peers`` installs FFCV.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench_loaders import PEERS, copy_images, say
from contenders import Job
from contenders.process import Contender, Missing
from contenders.table import machine

Convert = Callable[[Job], float]  # writes ``job.data`` and returns seconds


def picstore(*options: str) -> Convert:
    """``picstore convert`` with these options."""

    def convert(job: Job) -> float:
        command = [sys.executable, "-m", "picstore.cli", "convert", job.images, job.data / "out", "--json"]
        command += ["--workers", str(job.workers), *options]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
        return float(json.loads(done.stdout)["seconds"])

    return convert


def ffcv(job: Job) -> float:
    """FFCV's own writer: every image decoded and encoded again, at its default quality of 90."""
    with Contender(PEERS, "ffcv-q90", "prepare", job, log=job.data / "log", limit=900) as process:
        process.answer()
        return float(process.answer()["prepared"])


CONTENDERS: dict[str, Convert] = {
    "picstore": picstore(),
    "picstore --reencode": picstore("--reencode"),
    "FFCV": ffcv,
}


def measure(convert: Convert, job: Job) -> tuple[float, int]:
    """Images/s, and bytes of the data set, which is removed."""
    job.data.mkdir()
    try:
        rate = job.count / convert(job)
        return rate, sum(path.stat().st_size for path in job.data.rglob("*") if path.is_file())
    finally:
        shutil.rmtree(job.data)


def run(options: argparse.Namespace, work: Path) -> None:
    """Race, and print a table."""
    about = machine()
    per_class, size = copy_images(options.folder, work / "images", options.copies)
    job = Job(work / "images", work / "data", per_class, workers=options.workers)
    rates: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    stored = dict.fromkeys(CONTENDERS, 0)
    for _ in range(options.rounds):
        for name, convert in CONTENDERS.items():
            try:
                rate, stored[name] = measure(convert, job)
            except Missing as why:
                say(f"{name}: not installed ({why})")
                continue
            rates[name].append(rate)
            say(f"{name}: {rate:,.0f} images/s")
    medians = {name: statistics.median(found) for name, found in rates.items() if found}
    lines = [
        f"{about['processor']}, {about['cpus']} CPUs, {about['system']}, load {about['load']:.1f} at the start; "
        f"{job.count} images, {size / 2**20:.0f} MiB, {job.workers} processes, {options.rounds} rounds",
        "",
        "| contender | images/s, median | min to max | picstore is | stored, MiB |",
        "|---|---|---|---|---|",
    ]
    for name, median in medians.items():
        ratio, span = medians["picstore"] / median, f"{min(rates[name]):,.0f} to {max(rates[name]):,.0f}"
        lines.append(f"| {name} | {median:,.0f} | {span} | {ratio:.2f}× | {stored[name] / 2**20:,.0f} |")
    sys.stdout.write("\n".join(lines) + "\n")
    if options.json:
        job_values = {"images": job.count, "bytes": size, "workers": job.workers}
        document = {"machine": about, "job": job_values, "rates": rates, "stored_bytes": stored}
        options.json.write_text(json.dumps(document, indent=2) + "\n")


def main() -> None:
    """Parse the command line and run in a temporary folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--rounds", type=int, default=3, help="conversions of each contender (default 3)")
    parser.add_argument("--copies", type=int, default=10, help="copies of each image (default 10)")
    parser.add_argument("--workers", type=int, default=Job.workers, help="processes of each (default 2)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-convert-") as work:
        run(options, Path(work))


if __name__ == "__main__":
    main()
