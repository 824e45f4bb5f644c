"""``picstore.info``: contents, origin and shuffling of a dataset."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from picstore.display.progress import ProgressOption, open_display
from picstore.results import InfoResult
from picstore.verbs.common_arguments import open_selection

if TYPE_CHECKING:
    from picstore.storage.dataset import Dataset
    from picstore.storage.location.resolve import Where


def info(
    dataset: Where | Dataset,
    *,
    where: str | None = None,
    split: float | Sequence[float] | None = None,
    part: int | None = None,
    split_seed: int = 0,
    split_by: str | None = None,
    root: Where | None = None,
    croissant: str | os.PathLike[str] | None = None,
    progress: ProgressOption = False,
) -> InfoResult:
    """Print what DATASET holds, how it was made, and how well it is shuffled.

    Counts by class cover all images. If there are more than 1,000 containers, other figures cover 1,000 containers.

    Args:
        dataset: path or URL, or an open dataset.
        where, split, part, split_seed, split_by: see :func:`picstore.shuffle`.
        croissant: file to write Croissant 1.1 metadata of the dataset to, such as DATASET/croissant.json; all files are
            read for their SHA-256. If the file exists, fields that picstore does not write, such as license, are kept.
        root: folder or URL of an index's images, which you trust; None for the folder in the index, if you made it.
        progress: see :func:`picstore.convert`.

    Raises:
        UsageError: the selection is impossible, or an index from elsewhere needs ``root``; with ``croissant``, the
            dataset is a selection, or the file exists and is not JSON-LD.
        NotADataset, Unfinished, UnsupportedVersion, Damage: the dataset cannot be read.
    """
    from picstore.verbs.dataset_facts import describe

    with open_display("info", progress) as display:
        opened = open_selection(
            dataset, where=where, split=split, part=part, split_seed=split_seed, split_by=split_by, root=root
        )
        found = describe(opened, display)
        if croissant is None:
            return found
        from picstore.prepare.exports.croissant import write_dataset_croissant

        return replace(found, croissant=write_dataset_croissant(opened, croissant, display))
