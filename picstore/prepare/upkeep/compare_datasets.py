"""Comparison of two datasets: classes, sizes, JPEG qualities, and images that both have."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from picstore.arrays import F64, Array, Table
from picstore.display.histograms import bin_edges
from picstore.errors import Damage, ImageError, NotADataset
from picstore.jpeg.quality_tables import estimate_quality
from picstore.prepare.upkeep.near_duplicates import Hashes, find_duplicates
from picstore.results import ClassCounts, Distribution, SharedImages
from picstore.storage.dataset import Dataset
from picstore.storage.format.layout import SAMPLINGS

# Number of images to sample from each dataset to estimate their JPEG quality.
SAMPLED = 500
_SIZES = ("width", "height", "bytes")


def compare_classes(one: Dataset, other: Dataset) -> list[ClassCounts]:
    """Count the images of each class in two datasets. Classes match by name, or by label if they have no name.

    Classes of ``one`` come first, by label. Errors are those of :meth:`Dataset.record_counts`.
    """
    sides = [_count_classes(dataset) for dataset in (one, other)]
    names = list(dict.fromkeys(name for side in sides for name in side))
    absent: tuple[int | None, int] = (None, 0)
    rows = [(name, *sides[0].get(name, absent), *sides[1].get(name, absent)) for name in names]
    return [
        ClassCounts(name=name, label=label, images=images, other_label=other_label, other_images=other_images)
        for name, label, images, other_label, other_images in rows
    ]


def _count_classes(dataset: Dataset) -> dict[str, tuple[int | None, int]]:
    """Map each class name to its label and number of images; labels with the same name count as the first of them."""
    counts = dataset.record_counts()
    counted = Counter(dict(zip(counts.labels.tolist(), counts.counts.tolist(), strict=True)))
    found: dict[str, tuple[int | None, int]] = {}
    for label in [*range(len(dataset.classes)), *sorted(label for label in counted if label >= len(dataset.classes))]:
        name = dataset.classes[label] if label < len(dataset.classes) else f"label {label}"
        first, images = found.get(name, (label, 0))
        found[name] = first, images + counted[label]
    if counted[-1]:
        found["no label"] = None, counted[-1]
    return found


def compare_sizes(one: Dataset, other: Dataset) -> list[Distribution]:
    """Count the images of both datasets by width, height, bytes, bits per pixel and chroma sampling.

    Images whose index entries are damaged are left out.
    """
    tables = [_known(dataset) for dataset in (one, other)]
    pairs = {name: [table[name] for table in tables] for name in _SIZES}
    pairs["bits per pixel"] = [
        8 * table["bytes"] / np.maximum(1.0, table["width"].astype(float) * table["height"]) for table in tables
    ]
    named = [Counter(SAMPLINGS[code] or "other" for code in table["sampling"].tolist()) for table in tables]
    values = [name for name, _ in sum(named, Counter()).most_common()]
    samplings = Distribution(
        name="chroma sampling",
        edges=[],
        values=values,
        counts=[named[0][value] for value in values],
        other_counts=[named[1][value] for value in values],
        median=None,
        other_median=None,
    )
    return [*(_distribution(name, *pair) for name, pair in pairs.items()), samplings]


def compare_qualities(one: Dataset, other: Dataset, *, sampled: int = SAMPLED) -> Distribution:
    """Count up to ``sampled`` images of each dataset by their estimated JPEG quality."""
    pair = [np.array(list(_qualities(dataset, sampled)), np.int64) for dataset in (one, other)]
    lowest = min((int(each.min()) for each in pair if len(each)), default=100)
    return _distribution("quality", *pair, edges=np.arange(lowest // 2 * 2, 102.0, 2.0))


def compare_images(one: Hashes, other: Hashes, *, distance: int) -> SharedImages:
    """Find images of the first dataset that the other dataset has too, and near-duplicates within each dataset."""
    groups = find_duplicates(one, other, distance=distance)
    return SharedImages(
        distance=distance,
        shared=sum(len(group.duplicates) for group in groups),
        repeated=_repeated(one, distance),
        other_repeated=_repeated(other, distance),
        groups=groups,
    )


def _repeated(hashed: Hashes, distance: int) -> int:
    return sum(len(group.duplicates) for group in find_duplicates(hashed, distance=distance))


def _known(dataset: Dataset) -> dict[str, Array]:
    facts: Table = dataset.facts()
    facts = facts[facts["id"] != -1]
    return {name: facts[name] for name in (*_SIZES, "sampling")}


def _qualities(dataset: Dataset, sampled: int) -> Iterable[int]:
    count = min(len(dataset), sampled)
    for k in range(count):
        with contextlib.suppress(Damage, NotADataset, ImageError):
            record = dataset[k * len(dataset) // count]
            if not record.info.foreign:
                yield estimate_quality(record.jpeg)


def _distribution(name: str, one: Array, other: Array, *, edges: F64 | None = None) -> Distribution:
    """Count both datasets' values, such as widths, in the same bins; return the bins' edges, and counts and medians."""
    edges = bin_edges(np.concatenate([one, other])) if edges is None else edges
    return Distribution(
        name=name,
        edges=edges.tolist(),
        values=[],
        counts=_count(one, edges),
        other_counts=_count(other, edges),
        median=_median(one),
        other_median=_median(other),
    )


def _count(values: Array, edges: F64) -> list[int]:
    """Count values by bin, given the bins' edges; a single edge stands for one bin that holds all values."""
    if len(edges) < 2:
        return [len(values)] if len(edges) else []
    counts: Sequence[int] = np.histogram(values, edges)[0].tolist()
    return list(counts)


def _median(values: Array) -> float | None:
    return float(np.median(values)) if len(values) else None
