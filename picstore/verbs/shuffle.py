"""``picstore.shuffle``: write a shuffled copy of a data set."""

from __future__ import annotations

from collections.abc import Sequence

from picstore.display.progress import ProgressOption, open_display
from picstore.prepare.upkeep import shuffled_copy as upkeep
from picstore.results import ShuffleResult
from picstore.storage.dataset import Dataset
from picstore.storage.location.overlap_check import require_apart
from picstore.storage.location.resolve import Where, locate
from picstore.verbs.common_arguments import open_engine, open_selection


def shuffle(
    source: Where | Dataset | Sequence[Where | Dataset],
    out: Where,
    *,
    method: str = "transpose",
    seed: int = 0,
    where: str | None = None,
    split: float | Sequence[float] | None = None,
    part: int | None = None,
    split_seed: int = 0,
    split_by: str | None = None,
    workers: int | None = None,
    engine: str = "local",
    progress: ProgressOption = False,
) -> ShuffleResult:
    """Write a shuffled copy of a data set, or of some of its images.

    An interrupted shuffle, by KeyboardInterrupt too, leaves no process and no finished data set.

    Args:
        source: a data set, also an open one with a selection or edits that are not saved; or several, which become
            one, with classes joined by name.
        out: path or URL of the copy, which does not exist or is empty.
        method: "transpose" permutes each file and transposes streams × files, in one read and one write; "uniform"
            draws file and place of each image anew, in two.
        seed: random seed.
        where: condition in SQL on the images to take, which needs ``picstore[sql]``.
        split, part: fractions of a random split, such as 0.9 or (0.8, 0.1), and the part of it to take, 1 for the
            first.
        split_seed, split_by: seed of the split, and a column of which each value is split by itself.
        workers: number of processes, each of which holds one file in memory; None for the number of cores.
        engine: "local", or "ray" for the cluster of RAY_ADDRESS.
        progress: as :func:`picstore.convert` has it.

    Raises:
        UsageError: an argument is out of range, or the destination is a data set or in use.
        NotADataset: the source is no data set, or the destination is not empty.
        Unfinished: an unfinished data set is in the destination.
        Damage: a record of the source is damaged.
        MissingDependency: DuckDB or Ray is not installed.
        PicstoreError: the source changed during the shuffle.
    """
    with open_engine(engine, workers) as processes, open_display("shuffle", progress) as display:
        dataset = open_selection(source, where=where, split=split, part=part, split_seed=split_seed, split_by=split_by)
        require_apart(out, dataset.folders)
        manifest = upkeep.shuffle(dataset, out, seed=seed, method=method, workers=processes, progress=display)
    return ShuffleResult(
        dataset=str(locate(out)), uuid=manifest.uuid, images=manifest.images, shuffle=manifest.shuffle[-1]
    )
