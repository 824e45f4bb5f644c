"""``picstore.shuffle``: write a shuffled copy of a dataset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from picstore.display.progress import ProgressOption, open_display
from picstore.results import ShuffleResult
from picstore.verbs.common_arguments import EngineName, open_engine, open_selection

if TYPE_CHECKING:
    from picstore.storage.dataset import Dataset
    from picstore.storage.location.resolve import Where


def shuffle(
    source: Where | Dataset | Sequence[Where | Dataset],
    out: Where,
    *,
    method: Literal["transpose", "uniform"] = "transpose",
    seed: int = 0,
    where: str | None = None,
    split: float | Sequence[float] | None = None,
    part: int | None = None,
    split_seed: int = 0,
    split_by: str | None = None,
    workers: int | None = None,
    engine: EngineName = "local",
    progress: ProgressOption = False,
) -> ShuffleResult:
    """Write a shuffled copy of the dataset SRC, or of some of its images, to DST.

    Several datasets become one, with classes joined by name. Each worker holds one file in memory. An interrupted
    shuffle leaves no process and no finished dataset.

    Args:
        source: a dataset, or several; an open dataset may have a selection, and edits that are not saved.
        out: path or URL of the copy, which must not exist or must be empty.
        method: shuffling method. transpose: permute each file and transpose streams × files; one read, one write.
            uniform: draw for each image a new file and a position in the file; two reads, two writes.
        seed: random seed.
        where: take the images for which a condition holds, such as 'label = 3 AND width > 512' (needs
            picstore[sql]).
        split: fractions of a random split, such as 0.9 or 0.8,0.1.
        part: the part of ``split`` to take; 1 is the first.
        split_seed: random seed of ``split``.
        split_by: split the records of each value of a column, such as label, separately.
        workers, engine, progress: see :func:`picstore.convert`.

    Raises:
        UsageError: an argument is out of range, or the destination is a dataset or in use.
        NotADataset: the source is not a dataset, or the destination is not empty.
        Unfinished: an unfinished dataset is in the destination.
        Damage: a record of the source is damaged.
        MissingDependency: DuckDB or Ray is not installed.
        PicstoreError: the source changed during the shuffle.
    """
    from picstore.prepare.upkeep import shuffled_copy
    from picstore.storage.location.overlap_check import require_apart
    from picstore.storage.location.resolve import locate

    with open_engine(engine, workers) as processes, open_display("shuffle", progress) as display:
        dataset = open_selection(source, where=where, split=split, part=part, split_seed=split_seed, split_by=split_by)
        require_apart(out, dataset.folders)
        manifest = shuffled_copy.shuffle(dataset, out, seed=seed, method=method, workers=processes, progress=display)
    return ShuffleResult(
        dataset=str(locate(out)), uuid=manifest.uuid, images=manifest.images, shuffle=manifest.shuffle[-1]
    )
