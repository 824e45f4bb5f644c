"""``picstore.export``: write the images of a dataset as folders, WebDataset, MDS or Parquet."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from picstore.display.progress import ProgressOption, open_display
from picstore.results import ExportResult
from picstore.verbs.common_arguments import EngineName, open_engine, open_selection

if TYPE_CHECKING:
    from picstore.storage.dataset import Dataset
    from picstore.storage.location.resolve import Where


def export(
    dataset: Where | Dataset,
    out: str | os.PathLike[str],
    *,
    format: Literal["folder", "webdataset", "mds", "parquet"],
    shard_size: int | str = "256MiB",
    where: str | None = None,
    split: float | Sequence[float] | None = None,
    part: int | None = None,
    split_seed: int = 0,
    split_by: str | None = None,
    root: Where | None = None,
    workers: int | None = None,
    engine: EngineName = "local",
    progress: ProgressOption = False,
) -> ExportResult:
    """Export the JPEGs of a dataset unchanged, with labels, extras and attachments, to a new folder OUT.

    Damaged records are left out; the exit code is then 3. An interrupted export leaves an empty folder. The files do
    not depend on ``workers`` and ``engine``.

    Args:
        dataset: path or URL, or an open dataset with a selection.
        out: local folder that does not exist or is empty; all nodes of a cluster must see it.
        format: format of OUT: folder (a sub-folder per class, records.jsonl), webdataset (tars), mds (MosaicML shards)
            or parquet (Hugging Face).
        shard_size: target size of each tar, shard or Parquet file, such as 256MiB.
        where, split, part, split_seed, split_by: see :func:`picstore.shuffle`.
        root: see :func:`picstore.info`.
        workers, engine, progress: see :func:`picstore.convert`.

    Returns:
        ``records_lost`` is the number of damaged records that were left out.

    Raises:
        UsageError: ``out`` is not empty, or the format cannot hold the dataset.
        NotADataset, Unfinished, UnsupportedVersion, Damage: the dataset cannot be opened.
        MissingDependency: the library of the format, or Ray, is not installed.
        PicstoreError: the cluster cannot be reached.
        OSError: a file cannot be written.
    """
    from picstore.prepare.exports import run_export
    from picstore.storage.location.overlap_check import require_apart
    from picstore.storage.location.resolve import checked_path
    from picstore.storage.sizes import parse_size

    started = time.monotonic()
    folder = checked_path(out)
    size = parse_size(shard_size)
    with open_engine(engine, workers) as processes, open_display("export", progress) as display:
        selected = open_selection(
            dataset, where=where, split=split, part=part, split_seed=split_seed, split_by=split_by, root=root
        )
        require_apart(out, selected.folders)
        done = run_export.export(selected, folder, format=format, shard_size=size, workers=processes, progress=display)
    for remark in done.remarks:
        display.remark(remark)
    return ExportResult(
        out=str(folder),
        format=format,
        images=done.images,
        bytes=done.bytes,
        records_lost=done.lost,
        seconds=round(time.monotonic() - started, 3),
        remarks=done.remarks,
    )
