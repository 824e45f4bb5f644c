"""The standard job by picstore's loader and its peers: images/s, memory, bytes stored."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from benchmarks.child import ChildProcess, MemoryUse
from benchmarks.harness import IMAGES_PER_SECOND, Case, Sample, Table, measure, say, tabulate
from benchmarks.options import Options
from benchmarks.peers import PYTHON, REMARK, Job, start
from benchmarks.photographs import copy_images, size_of

OWN = ("picstore", "picstore-q90", "torchvision", "imagefolder")  # need no environment of their own
FORMATS = ("ffcv", "ffcv-q90", "litdata", "dali", "streaming", "webdataset")
PIPELINES = ("spdl", "grain", "grain-pillow", "ray-data", "ray-data-pillow")  # over the image files
NAMES = (*OWN, *FORMATS, *PIPELINES)
EPOCHS = 2  # timed, of each process
TOLERANCE = 4.0  # levels; crops of 4,000 photographs move a mean by 0.3, swapped channels by 10 and more


def peers(options: Options) -> Table:
    """The standard job: each round gives each contender a fresh process, one epoch that warms up and two timed."""
    if not PYTHON.exists():
        say(f"{PYTHON} is missing: benchmarks/setup-peers installs the peers")
    return _compare(NAMES if PYTHON.exists() else OWN, options)


def color(options: Options) -> Table:
    """The standard job with ColorJitter(0.4, 0.4, 0.4, 0.1), Normalize and float16."""
    return _compare(("picstore-color", "torchvision-color"), options)


def index(options: Options) -> Table:
    """The standard job over files as they are: a folder of JPEGs, and tars."""
    return _compare(("picstore-index", "torchvision", "picstore-index-tars", "webdataset"), options)


def _compare(names: Sequence[str], options: Options) -> Table:
    count = options.images or (64 if options.quick else None)
    per_class = copy_images(options.photographs, options.work / "images", options.copies, count)
    job = Job(options.work / "images", options.work, per_class, workers=options.workers)
    contenders = [_Contender(name, job) for name in names]
    cases = [Case(one.name, lambda one: one.run(), lambda one=one: one.prepare()) for one in contenders]
    tolerance = 20.0 if options.quick else TOLERANCE
    results = measure(cases, rounds=options.round_count(3), warmups=0, tolerance=tolerance)
    size = f"{job.count} images, {size_of(job.images) / 2**20:.0f} MiB"
    about = f"{size}; batches of {job.batch}; {job.workers} workers on as many CPUs; {_versions(contenders)}"
    return tabulate(results, about, unit=IMAGES_PER_SECOND, first=names[0])


class _Contender:
    """One contender: its data set in the work folder, and its rounds."""

    def __init__(self, name: str, job: Job) -> None:
        self.name, self.job = name, replace(job, data=job.data / name)
        self._log = job.data / f"{name}.log"
        self.about: dict[str, Any] = {"versions": {}, "note": ""}

    def prepare(self) -> _Contender:
        """Write the data set, unless an earlier run left it."""
        unfinished = self.job.data.with_name(f"{self.name}.part")
        if not self.job.data.exists():
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            with start("prepare", self.name, replace(self.job, data=unfinished), log=self._log) as child:
                self.about = child.answer()
            unfinished.rename(self.job.data)
            say(f"{self.name}: prepared in {self.about['seconds']:.1f} s")
        return self

    def run(self) -> Sample:
        """One process: an epoch to warm up, during which memory is sampled, and the timed ones."""
        with start("epochs", self.name, self.job, 1 + EPOCHS, log=self._log) as child:
            first = child.answer(every=0.1)
            seconds = sum(child.answer()["seconds"] for _ in range(EPOCHS))
            figures = _memory_columns(child)
        if stored := size_of(self.job.data):
            figures["stored, MiB"] = stored / 2**20
        remark = self.job.data / REMARK
        figures["remark"] = remark.read_text() if remark.exists() else ""
        return Sample(EPOCHS * self.job.count, seconds, figures, first["means"])


def _memory_columns(child: ChildProcess) -> dict[str, Any]:
    memory: MemoryUse = child.memory
    return {"resident, MiB": memory.resident, "of it not files": memory.anonymous}


def _versions(contenders: list[_Contender]) -> str:
    found: dict[str, str] = {}
    for one in contenders:
        found |= one.about["versions"]
    return ", ".join(f"{name} {version}" for name, version in found.items())
