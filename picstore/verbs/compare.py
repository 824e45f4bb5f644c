"""``picstore.compare``: compare two datasets by classes, sizes and JPEG qualities, and find images that both have."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from picstore.display.progress import ProgressOption, open_display
from picstore.results import CompareResult
from picstore.verbs.common_arguments import count_workers, open_dataset, require_range

if TYPE_CHECKING:
    from picstore.storage.dataset import Dataset
    from picstore.storage.location.resolve import Where


def compare(
    dataset: Where | Dataset,
    other: Where | Dataset,
    *,
    images: bool = True,
    distance: int = 6,
    root: Where | None = None,
    other_root: Where | None = None,
    workers: int | None = None,
    progress: ProgressOption = False,
) -> CompareResult:
    """Compare two datasets, as the page of ``picstore view DATASET OTHER`` does.

    Args:
        dataset, other: paths, URLs or open datasets.
        images: search for images that both datasets have, which reads every byte of both.
        distance: greatest number of bits, of 64, in which the hashes of near-duplicates differ, 0 to 11.
        root: see :func:`picstore.info`.
        other_root: the same as ``root``, for ``other``.
        workers: number of processes; None for the number of cores.
        progress: see :func:`picstore.convert`.

    Raises:
        UsageError: the distance is out of range, or an index from elsewhere needs its root.
        NotADataset, Unfinished, UnsupportedVersion, Damage: a dataset cannot be opened or counted.
    """
    from picstore.prepare.upkeep import compare_datasets as of
    from picstore.prepare.upkeep.near_duplicates import MAX_DISTANCE, hash_images

    started = time.monotonic()
    require_range("distance", distance, 0, MAX_DISTANCE)
    processes = count_workers(workers)
    with open_display("compare", progress) as display:
        opened = open_dataset(dataset, root), open_dataset(other, other_root)
        display.begin_stage("counting")
        classes, sizes = of.compare_classes(*opened), of.compare_sizes(*opened)
        display.begin_stage("sampling")
        quality = of.compare_qualities(*opened)
        shared = None
        if images:
            hashed = [hash_images(each, workers=processes, progress=display) for each in opened]
            display.begin_stage("comparing")
            shared = of.compare_images(*hashed, distance=distance)
    return CompareResult(
        dataset=str(opened[0].path),
        other=str(opened[1].path),
        images=len(opened[0]),
        other_images=len(opened[1]),
        same_labels=all(each.label == each.other_label for each in classes if each.images and each.other_images),
        classes=classes,
        sizes=sizes,
        quality=quality,
        images_shared=shared,
        seconds=round(time.monotonic() - started, 3),
    )
