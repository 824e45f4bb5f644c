"""``picstore.repair``: make a damaged dataset readable again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from picstore.display.progress import ProgressOption, open_display
from picstore.results import RepairResult

if TYPE_CHECKING:
    from picstore.storage.location.resolve import Where


def repair(dataset: Where, *, root: Where | None = None, progress: ProgressOption = False) -> RepairResult:
    """Make a damaged dataset readable again.

    All files are read. A damaged or missing manifest is restored from its copy, a damaged index is rebuilt from the
    files, missing or wrong counts of labels are written, and records that cannot be read are deleted as by
    `picstore delete`. No file of images is changed.

    Args:
        dataset: path or URL.
        root: see :func:`picstore.info`.
        progress: see :func:`picstore.convert`.

    Raises:
        NotADataset: there is no dataset; or it is an index, and none of its images is below the root.
        Unfinished: a conversion or shuffle into this location has not ended.
        UnsupportedVersion: a later picstore wrote the dataset.
        UsageError: another process is editing the dataset, or an index from elsewhere needs ``root``.
        Damage: too much is damaged to restore the dataset; the message says what a backup must provide.
    """
    from picstore.prepare.upkeep import repair_dataset

    with open_display("repair", progress) as display:
        return repair_dataset.repair(dataset, root=root, progress=display)
