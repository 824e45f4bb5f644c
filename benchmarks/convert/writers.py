"""Conversion of photographs by picstore and the peers' writers, from the files to the finished data set.

Starting Python and importing do not count, starting worker processes does. Files lie in memory where the machine has
/dev/shm: disks differ, and picstore, alone, syncs what it writes.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from benchmarks.command import command_seconds
from benchmarks.harness import Case, Sample, Table, measure, tabulate
from benchmarks.options import Options
from benchmarks.peers import Job, start
from benchmarks.photographs import copy_images, find, size_of


def lossless(options: Options) -> Table:
    """Without loss: from a folder and from tars."""
    job = _job(options, copies=3 * options.copies)
    tars = job.images.with_name("tars")
    with start("prepare", "webdataset", replace(job, data=_new(tars))) as child:
        child.answer()
    cases = {
        "picstore, from a folder": _picstore(job, options),
        "picstore, from WebDataset tars": _picstore(job, options, source=tars),
        "FFCV's DatasetWriter, which encodes again": _peer("ffcv-q90", job),
    }
    return _compare(cases, job, options)


def reencode(options: Options) -> Table:
    """The same pixels encoded again at quality 90."""
    job = _job(options)
    own = _picstore(job, options, "--reencode", "--quality", "90")
    return _compare({"picstore --reencode": own, "FFCV": _peer("ffcv-q90", job)}, job, options)


def shorter(options: Options) -> Table:
    """The shorter side made 256 pixels; the peers' writers are handed what Pillow resizes by the same filter."""
    job = _job(options)
    cases = {
        "picstore --resize shorter:256": _picstore(job, options, "--resize", "shorter:256"),
        "FFCV's DatasetWriter": _peer("ffcv-shorter", job),
        "MosaicML's MDSWriter": _peer("streaming-shorter-one", job),
        "MosaicML's, one in each process, and merge_index": _peer("streaming-shorter", job),
        "LitData's optimize": _peer("litdata-shorter", job),
    }
    return _compare(cases, job, options)


def longer(options: Options) -> Table:
    """The longer side made 341 pixels, which FFCV does itself, by a cheaper filter (area)."""
    job = _job(options)
    own = _picstore(job, options, "--resize", "longer:341")
    return _compare({"picstore --resize longer:341": own, "FFCV": _peer("ffcv-longer", job)}, job, options)


def _job(options: Options, copies: int | None = None) -> Job:
    copies = 1 if options.quick else copies or options.copies
    images = options.work / f"copies-{copies}" / "images"
    images.parent.mkdir(exist_ok=True)
    count = options.images or (16 if options.quick else None)
    per_class = copy_images(options.photographs, images, copies, count)
    return Job(images, images.with_name("data"), per_class, workers=options.workers)


def _new(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _picstore(job: Job, options: Options, *arguments: str, source: Path | None = None) -> Callable[[], Sample]:
    """``picstore convert``, after a conversion of one image that imports everything."""
    one = options.work / "one-image"
    if not one.exists():
        one.mkdir()
        shutil.copy(find(options.photographs, 1)[0], one)

    def run() -> Sample:
        settings = ("--workers", job.workers, *arguments)
        warmup = ("convert", one, _new(job.data) / "warmup", *settings)
        seconds = command_seconds(("convert", source or job.images, job.data / "out", *settings), warmup=warmup)
        shutil.rmtree(job.data / "warmup")
        return Sample(job.count, seconds, _stored(job))

    return run


def _peer(name: str, job: Job) -> Callable[[], Sample]:
    def run() -> Sample:
        log = job.data.with_name(f"{name}.log")
        with start("prepare", name, replace(job, data=_new(job.data)), log=log) as child:
            seconds = child.answer()["seconds"]
        return Sample(job.count, seconds, _stored(job))

    return run


def _stored(job: Job) -> dict[str, float]:
    """Size of the data set, which is removed."""
    size = size_of(job.data)
    shutil.rmtree(job.data)
    return {"stored, MiB": size / 2**20}


def _compare(cases: dict[str, Callable[[], Sample]], job: Job, options: Options) -> Table:
    found = [Case(name, lambda run: run(), lambda run=run: run) for name, run in cases.items()]
    results = measure(found, rounds=options.round_count(3), warmups=0)
    size = f"{job.count} images, {size_of(job.images) / 2**20:.0f} MiB"
    return tabulate(results, f"{size}, in {options.work}; {job.workers} processes", first=next(iter(cases)))
