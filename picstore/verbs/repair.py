"""``picstore.repair``: make a damaged data set readable again."""

from __future__ import annotations

from picstore.display.progress import ProgressOption, open_display
from picstore.prepare.upkeep import repair_dataset as upkeep
from picstore.results import Loss, RepairResult
from picstore.storage.location.resolve import Where, locate


def repair(dataset: Where, *, root: Where | None = None, progress: ProgressOption = False) -> RepairResult:
    """Restore damaged manifest, copy, index and counts, and delete the records that cannot be read.

    Reads everything, and writes no file of images.

    Args:
        dataset: path or URL.
        root: folder of the images of an index, which you trust; None where the index says it, if you made it.
        progress: as :func:`picstore.convert` has it.

    Raises:
        NotADataset: there is no data set; or it is an index, and none of its images is below the root.
        Unfinished: a conversion or shuffle has not ended here.
        UnsupportedVersion: a later picstore wrote the data set.
        UsageError: another process is editing the data set, or an index from elsewhere needs ``root``.
        Damage: too much is damaged to restore the data set; the message says what a backup must give.
    """
    with open_display("repair", progress) as display:
        done = upkeep.repair(dataset, root=root, progress=display)
    return RepairResult(
        dataset=str(locate(dataset)),
        uuid=done.dataset.uuid,
        images=len(done.dataset),
        manifest=done.manifest,
        copy=done.copy,
        index=done.index,
        counts=done.counts,
        records_lost=done.lost,
        losses=[
            Loss(file=each.file, offset=each.offset, problem=each.problem, records=each.records) for each in done.losses
        ],
    )
