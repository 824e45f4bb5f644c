"""Compare picstore's convert with its own kernels and with the peers' writers on the same JPEG files, in one run.

    python scripts/bench_convert.py FOLDER [--only lossless,anew,shorter,longer] [--rounds 3] [--copies 10]
                                    [--workers 2] [--work DIR] [--json FILE]

FOLDER has one sub-folder of JPEG files a class, which are copied ten times. In each round each contender of a table
does all copies, with as many processes. A figure is the median over the rounds of images/s, from the place of the
files to the finished data set; starting Python and importing do not count, starting worker processes does.

    lossless    adding restart markers: the kernels alone, on bytes in memory in as many processes at once; picstore
                from the folder and from WebDataset tars of the same files; FFCV, whose writer encodes anew
    anew        the same pixels encoded again at quality 90: picstore --reencode, FFCV
    shorter     the shorter side made 256 pixels: picstore --resize shorter:256, and the writers of FFCV, MosaicML
                Streaming and LitData, which are handed what Pillow resizes by the same filter
    longer      the longer side made 341, which FFCV can do itself, by a cheaper filter

Files lie in memory (/dev/shm) where there is such a place, as disks differ and picstore, alone, syncs what it writes.
``scripts/bench-peers`` installs the peers.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench_loaders import PEERS, copy_images, say
from contenders import Job, samples
from contenders.process import Contender, Failed, Missing
from contenders.table import machine

from picstore import NotTranscodable, add_restart_markers

Convert = Callable[[Job], float]  # writes ``job.data`` and returns seconds
MEMORY = Path("/dev/shm")  # noqa: S108 - the files lie in a folder of their own
IN_A_TAR = 1000  # images
CONVERT = """
import json, sys, time
from picstore.prepare.convert import convert, job
from picstore.prepare.engine import processes
from picstore.prepare.image import settings
from picstore.prepare.sources import open as source
task = json.loads(sys.argv[1])
encode = settings.EncodeSettings.from_json(task["encode"])
processes.start_fork_server(*encode.warmup_modules)
first = source.open_source(task["source"]).inputs[:1]
convert.mean_bytes(first, encode, 1, 0)  # waits until the fork server has imported all
start = time.perf_counter()
listing = source.open_source(task["source"])
convert.convert(listing, task["target"], encode=encode, shape=job.DatasetShape(), workers=task["workers"])
print(time.perf_counter() - start)
"""


def picstore(*, tars: bool = False, **options: object) -> Convert:
    """picstore's convert with these encode settings."""

    def convert(job: Job) -> float:
        source = tars_of(job) if tars else job.images
        task = {"source": str(source), "target": str(job.data / "out"), "workers": job.workers, "encode": options}
        done = subprocess.run([sys.executable, "-c", CONVERT, json.dumps(task)], check=True, stdout=subprocess.PIPE)
        return float(done.stdout)

    return convert


def peer(name: str) -> Convert:
    """The writer of a module of ``contenders``."""

    def convert(job: Job) -> float:
        with Contender(PEERS, name, "prepare", job, log=job.data / "log", limit=900) as process:
            process.answer()
            return float(process.answer()["prepared"])

    return convert


def kernels(job: Job) -> float:
    """Restart markers added to the bytes of all files, which each process has in memory before the clock starts."""
    context = multiprocessing.get_context("spawn")
    ready = context.Barrier(job.workers)
    paths = [path for path, _ in samples(job)]
    seconds = context.SimpleQueue()
    shares = [context.Process(target=_mark, args=(paths[k :: job.workers], ready, seconds)) for k in range(job.workers)]
    for share in shares:
        share.start()
    times = [seconds.get() for _ in shares]
    for share in shares:
        share.join()
    return max(times)


def _mark(paths: list[Path], ready: Any, seconds: Any) -> None:
    jpegs = [path.read_bytes() for path in paths]
    for measured in (False, True):
        ready.wait()
        start = time.perf_counter()
        for jpeg in jpegs if measured else jpegs[:50]:
            with contextlib.suppress(NotTranscodable):  # one of 400 photographs, rotated by EXIF
                add_restart_markers(jpeg)
    seconds.put(time.perf_counter() - start)


def tars_of(job: Job) -> Path:
    """The images in tars as WebDataset has them, made once."""
    folder = job.images.with_name("tars")
    if folder.exists():
        return folder
    folder.mkdir()
    found = samples(job)
    for first in range(0, len(found), IN_A_TAR):
        with tarfile.open(folder / f"images-{first // IN_A_TAR:06d}.tar", "w") as tar:
            for number, (path, label) in enumerate(found[first : first + IN_A_TAR], start=first):
                for extension, content in (("jpg", path.read_bytes()), ("cls", str(label).encode())):
                    member = tarfile.TarInfo(f"{number:08d}.{extension}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
    return folder


TABLES: dict[str, dict[str, Convert]] = {  # of each the first is what others are compared with
    "lossless": {
        "picstore, from a folder": picstore(),
        "picstore, from tars": picstore(tars=True),
        "add_restart_markers alone": kernels,
        "FFCV": peer("ffcv-q90"),
    },
    "anew": {"picstore --reencode": picstore(reencode=True), "FFCV": peer("ffcv-q90")},
    "shorter": {
        "picstore --resize shorter:256": picstore(resize="shorter:256"),
        "FFCV": peer("ffcv-shorter"),
        "MosaicML Streaming, a writer a process": peer("streaming-shorter"),
        "MosaicML Streaming, one writer": peer("streaming-shorter-one"),
        "LitData": peer("litdata-shorter"),
    },
    "longer": {
        "picstore --resize longer:341": picstore(resize="longer:341"),
        "FFCV": peer("ffcv-longer"),
    },
}


@dataclass
class Race:
    """A table's figures: images/s of each round, and bytes that were stored."""

    rates: dict[str, list[float]]
    stored: dict[str, int]

    def lines(self) -> list[str]:
        """As Markdown."""
        medians = {name: statistics.median(found) for name, found in self.rates.items() if found}
        first = next(iter(medians.values()), 0.0)
        lines = [
            "| contender | images/s, median | min to max | picstore is | stored, MiB |",
            "|---|---|---|---|---|",
        ]
        for name, median in medians.items():
            span = f"{min(self.rates[name]):,.0f} to {max(self.rates[name]):,.0f}"
            size = f"{self.stored[name] / 2**20:,.0f}" if self.stored[name] else ""
            lines.append(f"| {name} | {median:,.0f} | {span} | {first / median:.2f}× | {size} |")
        return lines


def measure(convert: Convert, job: Job) -> tuple[float, int]:
    """Images/s, and bytes of the data set, which is removed."""
    job.data.mkdir()
    try:
        rate = job.count / convert(job)
        return rate, sum(path.stat().st_size for path in job.data.rglob("*") if path.is_file())
    finally:
        shutil.rmtree(job.data)


def race(contenders: dict[str, Convert], job: Job, rounds: int) -> Race:
    """Let the contenders take turns."""
    found = Race({name: [] for name in contenders}, dict.fromkeys(contenders, 0))
    for _ in range(rounds):
        for name, convert in contenders.items():
            try:
                rate, found.stored[name] = measure(convert, job)
            except (Missing, Failed) as why:
                say(f"{name}: {why}")
                continue
            found.rates[name].append(rate)
            say(f"{name}: {rate:,.0f} images/s")
    return found


def run(options: argparse.Namespace, work: Path) -> None:
    """Race, and print the tables."""
    about = machine()
    per_class, size = copy_images(options.folder, work / "images", options.copies)
    job = Job(work / "images", work / "data", per_class, workers=options.workers)
    print(
        f"{about['processor']}, {about['cpus']} CPUs, {about['system']}, load {about['load']:.1f} at the start; "
        f"{job.count} images, {size / 2**20:.0f} MiB in {work}, {job.workers} processes, {options.rounds} rounds"
    )
    document = {"machine": about, "job": {"images": job.count, "bytes": size, "workers": job.workers}}
    for name in options.only.split(","):
        found = race(TABLES[name], job, options.rounds)
        print("\n".join(["", f"**{name}**", "", *found.lines()]), flush=True)
        document[name] = {"rates": found.rates, "stored_bytes": found.stored}
    if options.json:
        options.json.write_text(json.dumps(document, indent=2) + "\n")


def main() -> None:
    """Parse the command line and run in a temporary folder."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--only", default=",".join(TABLES), help=f"tables, of {', '.join(TABLES)} (default all)")
    parser.add_argument("--rounds", type=int, default=3, help="conversions of each contender (default 3)")
    parser.add_argument("--copies", type=int, default=10, help="copies of each image (default 10)")
    parser.add_argument("--workers", type=int, default=Job.workers, help="processes of each (default 2)")
    parser.add_argument("--work", type=Path, metavar="DIR", help="where all files lie (default /dev/shm)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure here")
    options = parser.parse_args()
    if unknown := set(options.only.split(",")) - set(TABLES):
        parser.error(f"no table is called {', '.join(sorted(unknown))}")
    place = options.work or (MEMORY if os.access(MEMORY, os.W_OK) else None)
    with tempfile.TemporaryDirectory(prefix="bench-convert-", dir=place) as work:
        run(options, Path(work))


if __name__ == "__main__":
    main()
