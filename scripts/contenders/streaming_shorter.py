"""MosaicML's MDSWriter, one a process, of images that Pillow makes smaller; only writes, for ``bench_convert.py``."""

from __future__ import annotations

from multiprocessing import get_context
from pathlib import Path

from streaming import MDSWriter
from streaming.base.util import merge_index

from contenders import Job, samples
from contenders.resized import jpeg

PACKAGES = ("mosaicml-streaming", "pillow")
NOTE = "Pillow decodes, resizes (Lanczos) and encodes; a writer in each process, and merge_index"


def _write(folder: Path, share: list[tuple[Path, int]]) -> None:
    with MDSWriter(out=str(folder), columns={"image": "bytes", "label": "int"}) as shards:
        for path, label in share:
            shards.write({"image": jpeg(path), "label": label})


def prepare(job: Job) -> None:
    """Write a part in each process, as its documentation says, and one index of all."""
    found = samples(job)
    context = get_context("fork")
    parts = [job.data / f"{k}" for k in range(job.workers)]
    writers = [context.Process(target=_write, args=(part, found[k :: job.workers])) for k, part in enumerate(parts)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        if writer.exitcode:
            raise RuntimeError(f"a writer ended with {writer.exitcode}")
    merge_index([str(part / "index.json") for part in parts], str(job.data))
