"""``picstore.dupes``: find near-duplicates."""

from __future__ import annotations

import os
import time
from pathlib import Path

from picstore.display.progress import ProgressOption, open_display
from picstore.prepare.upkeep.near_duplicates import DEFAULT_DISTANCE, find_duplicates, hash_images, save_hashes
from picstore.results import DupesResult, Duplicate, DuplicateGroup
from picstore.storage.dataset import Dataset
from picstore.storage.location.resolve import Where
from picstore.verbs.common_arguments import open_engine


def dupes(
    dataset: Where | Dataset,
    other: Where | Dataset | None = None,
    *,
    distance: int = DEFAULT_DISTANCE,
    ids: str | os.PathLike[str] | None = None,
    save: bool = False,
    root: Where | None = None,
    other_root: Where | None = None,
    workers: int | None = None,
    engine: str = "local",
    progress: ProgressOption = False,
) -> DupesResult:
    """Find groups of near-duplicates in a data set, or its images that another data set has too.

    Images are compared by perceptual hashes (pHash) of their JPEGs, which are read but not decoded. Copies of other
    quality or size, or in grey, are found; mirrored, rotated or strongly cropped ones are not.

    Args:
        dataset, other: paths, URLs or open data sets.
        distance: bits of 64 in which the hashes of near-duplicates may differ, 0 to 11.
        ids: file to write the ids of all duplicates to, which :func:`picstore.delete` takes: all images of a group but
            the first, or all that are in ``other``.
        save: keep the hashes in the data set, as its column "phash", for the next time.
        root, other_root: folders of the images of an index, which you trust.
        workers: number of processes; None for the number of cores.
        engine: "local", or "ray" for the cluster of RAY_ADDRESS.
        progress: as :func:`picstore.convert` has it.

    Raises:
        UsageError: the distance is out of range, or an index from elsewhere needs its root.
        NotADataset, Unfinished, UnsupportedVersion, Damage: a data set cannot be opened.
        Conflict: the data set was changed meanwhile, with ``save``.
        OSError: the file of ids cannot be written.
        MissingDependency, PicstoreError: Ray is not installed, or the cluster cannot be reached.
    """
    started = time.monotonic()
    opened = _open(dataset, root)
    against = None if other is None else _open(other, other_root)
    with open_engine(engine, workers) as processes, open_display("dupes", progress) as display:
        hashed = hash_images(opened, workers=processes, progress=display)
        others = None if against is None else hash_images(against, workers=processes, progress=display)
        display.begin_stage("comparing")
        groups = find_duplicates(hashed, others, distance=distance)
        if save:
            save_hashes(opened, hashed)
    found = sorted(id_ for group in groups for id_, _ in group.duplicates)
    if ids is not None:
        Path(ids).write_text("".join(f"{id_}\n" for id_ in found))
    return DupesResult(
        dataset=str(opened.path),
        other=None if against is None else str(against.path),
        distance=distance,
        images=len(hashed.ids),
        duplicates=len(found),
        unreadable=len(opened) - len(hashed.ids),
        groups=[
            DuplicateGroup(
                id=group.id, duplicates=[Duplicate(id=id_, distance=apart) for id_, apart in group.duplicates]
            )
            for group in groups
        ],
        seconds=round(time.monotonic() - started, 3),
    )


def _open(dataset: Where | Dataset, root: Where | None) -> Dataset:
    return dataset if isinstance(dataset, Dataset) else Dataset(dataset, root=root)
