"""``picstore.dupes``: find near-duplicates within a dataset, or images that two datasets share."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from picstore.display.progress import ProgressOption, open_display
from picstore.results import DupesResult
from picstore.verbs.common_arguments import EngineName, open_dataset, open_engine, open_other, require_range

if TYPE_CHECKING:
    from picstore.storage.dataset import Dataset
    from picstore.storage.location.resolve import Where


def dupes(
    dataset: Where | Dataset,
    other: Where | Dataset | None = None,
    *,
    distance: int = 6,
    ids: str | os.PathLike[str] | None = None,
    save: bool = False,
    root: Where | None = None,
    other_root: Where | None = None,
    workers: int | None = None,
    engine: EngineName = "local",
    progress: ProgressOption = False,
) -> DupesResult:
    """List groups of near-duplicates in DATASET, or the images of DATASET that are in OTHER too.

    Images are compared by perceptual hashes (pHash) of their JPEGs, which are read but not decoded. Copies of other
    quality or size, or in grey, are found; mirrored, rotated or strongly cropped copies are not.

    Args:
        dataset, other: paths, URLs or open datasets.
        distance: greatest number of bits, of 64, in which the hashes of near-duplicates differ, 0 to 11.
        ids: file to write the ids of all duplicates to: all images of a group except the first, or all images that are
            in ``other`` too. `picstore delete DATASET --ids FILE` deletes these images.
        save: keep the hashes in the dataset for later runs, as the column 'phash'.
        root: see :func:`picstore.info`.
        other_root: the same as ``root``, for ``other``.
        workers, engine, progress: see :func:`picstore.convert`.

    Raises:
        UsageError: the distance is out of range, or an index from elsewhere needs its root.
        NotADataset, Unfinished, UnsupportedVersion, Damage: a dataset cannot be opened.
        Conflict: ``save`` is true, and another process changed the dataset during the search.
        OSError: the file of ids cannot be written.
        MissingDependency, PicstoreError: Ray is not installed, or the cluster cannot be reached.
    """
    from picstore.prepare.upkeep.near_duplicates import MAX_DISTANCE, find_duplicates, hash_images, save_hashes
    from picstore.storage.location.resolve import locate_output

    started = time.monotonic()
    require_range("distance", distance, 0, MAX_DISTANCE)
    listed = None if ids is None else locate_output(ids)
    opened = open_dataset(dataset, root)
    against = open_other(other, other_root)
    with open_engine(engine, workers) as processes, open_display("dupes", progress) as display:
        hashed = hash_images(opened, workers=processes, progress=display)
        others = None if against is None else hash_images(against, workers=processes, progress=display)
        display.begin_stage("comparing")
        groups = find_duplicates(hashed, others, distance=distance)
        if save:
            save_hashes(opened, hashed)
    found = sorted(each.id for group in groups for each in group.duplicates)
    if listed is not None:
        listed.write("".join(f"{id_}\n" for id_ in found).encode())
    return DupesResult(
        dataset=str(opened.path),
        other=None if against is None else str(against.path),
        distance=distance,
        images=len(hashed.ids),
        duplicates=len(found),
        unreadable=len(opened) - len(hashed.ids),
        groups=groups,
        ids=None if ids is None else str(ids),
        seconds=round(time.monotonic() - started, 3),
    )
