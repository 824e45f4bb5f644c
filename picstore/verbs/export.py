"""``picstore.export``: write a data set as folders, WebDataset, MDS or Parquet."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from picstore.display.progress import ProgressOption, open_display
from picstore.prepare.exports import run_export
from picstore.results import ExportResult
from picstore.storage.dataset import Dataset
from picstore.storage.location.overlap_check import require_apart
from picstore.storage.location.resolve import Where
from picstore.storage.sizes import parse_size
from picstore.verbs.common_arguments import open_engine, open_selection


def export(
    dataset: Where | Dataset,
    out: str | os.PathLike[str],
    *,
    format: str,
    shard_size: int | str = "256MiB",
    where: str | None = None,
    split: float | Sequence[float] | None = None,
    part: int | None = None,
    split_seed: int = 0,
    split_by: str | None = None,
    root: Where | None = None,
    workers: int | None = None,
    engine: str = "local",
    progress: ProgressOption = False,
) -> ExportResult:
    """Export the JPEGs of a data set unchanged, with labels, extras and attachments.

    Damaged records are left out; ``records_lost`` of the result counts them. An interrupted export, by
    KeyboardInterrupt too, leaves an empty folder. The files do not depend on ``workers`` and ``engine``.

    Args:
        dataset: path or URL, or an open data set with a selection.
        out: a local folder that does not exist or is empty; all nodes of a cluster must see it.
        format: "folder", "webdataset", "mds" or "parquet".
        shard_size: target size of each tar, shard or Parquet file, in bytes or such as "256MiB".
        where, split, part, split_seed, split_by: the images to take, as :func:`picstore.shuffle` has them.
        root: folder of the images of an index, which you trust; None where the index says it, if you made it.
        workers: number of processes; None for the number of cores.
        engine: "local", or "ray" for the cluster of RAY_ADDRESS.
        progress: as :func:`picstore.convert` has it.

    Raises:
        UsageError: ``out`` holds something, or the format cannot take the data set.
        NotADataset, Unfinished, UnsupportedVersion, Damage: the data set cannot be opened.
        MissingDependency: the format's library or Ray is not installed.
        PicstoreError: the cluster cannot be reached.
        OSError: a file cannot be written.
    """
    started = time.monotonic()
    size = parse_size(shard_size)
    with open_engine(engine, workers) as processes, open_display("export", progress) as display:
        selected = open_selection(
            dataset, where=where, split=split, part=part, split_seed=split_seed, split_by=split_by, root=root
        )
        require_apart(out, selected.folders)
        done = run_export.export(
            selected, Path(out), format=format, shard_size=size, workers=processes, progress=display
        )
    for remark in done.remarks:
        display.remark(remark)
    return ExportResult(
        out=str(Path(out)),
        format=format,
        images=done.images,
        bytes=done.bytes,
        records_lost=done.lost,
        seconds=round(time.monotonic() - started, 3),
        remarks=done.remarks,
    )
