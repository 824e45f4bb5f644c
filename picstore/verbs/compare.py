"""``picstore.compare``: classes, sizes, qualities and shared images of two data sets."""

from __future__ import annotations

import time

from picstore.display.progress import ProgressOption, open_display
from picstore.prepare.upkeep.compare_datasets import compare_classes, compare_images, compare_qualities, compare_sizes
from picstore.prepare.upkeep.near_duplicates import DEFAULT_DISTANCE, hash_images
from picstore.results import CompareResult
from picstore.storage.dataset import Dataset
from picstore.storage.location.resolve import Where
from picstore.verbs.common_arguments import count_workers


def compare(
    dataset: Where | Dataset,
    other: Where | Dataset,
    *,
    images: bool = True,
    distance: int = DEFAULT_DISTANCE,
    root: Where | None = None,
    other_root: Where | None = None,
    workers: int | None = None,
    progress: ProgressOption = False,
) -> CompareResult:
    """Compare two data sets, as the page of ``picstore view DATASET OTHER`` shows it.

    Args:
        dataset, other: paths, URLs or open data sets.
        images: look for images that both have, which reads every byte of both.
        distance: bits of 64 in which the hashes of near-duplicates may differ, 0 to 11.
        root, other_root: folders of the images of an index, which you trust.
        workers: number of processes; None for the number of cores.
        progress: as :func:`picstore.convert` has it.

    Raises:
        UsageError: the distance is out of range, or an index from elsewhere needs its root.
        NotADataset, Unfinished, UnsupportedVersion, Damage: a data set cannot be opened or counted.
    """
    started = time.monotonic()
    processes = count_workers(workers)
    with open_display("compare", progress) as display:
        opened = (
            dataset if isinstance(dataset, Dataset) else Dataset(dataset, root=root),
            other if isinstance(other, Dataset) else Dataset(other, root=other_root),
        )
        display.begin_stage("counting")
        classes, sizes = compare_classes(*opened), compare_sizes(*opened)
        display.begin_stage("sampling")
        quality = compare_qualities(*opened)
        shared = None
        if images:
            hashed = [hash_images(each, workers=processes, progress=display) for each in opened]
            display.begin_stage("comparing")
            shared = compare_images(*hashed, distance=distance)
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
