"""``picstore.info``: contents, origin and shuffling of a dataset."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from picstore.arrays import Table
from picstore.display.histograms import count_labels, summarize_sizes
from picstore.display.progress import Display, ProgressOption, open_display
from picstore.results import InfoResult
from picstore.storage.dataset import Dataset
from picstore.storage.edits.live_records import SelectedRecords
from picstore.storage.format.layout import READ_BY
from picstore.storage.location.resolve import Where
from picstore.storage.record_counts import RecordCounts
from picstore.verbs.common_arguments import open_selection

BINS = 10
_SAMPLED_CONTAINERS = 1000  # takes 1 to 2 s over a network; sampling moves the figures in the third digit


def info(
    dataset: Where | Dataset,
    *,
    where: str | None = None,
    split: float | Sequence[float] | None = None,
    part: int | None = None,
    split_seed: int = 0,
    split_by: str | None = None,
    root: Where | None = None,
    progress: ProgressOption = False,
) -> InfoResult:
    """Tell what a data set holds, how it was made, and how well it is shuffled.

    Counts by class cover all images; other figures 1,000 containers, where there are more.

    Args:
        dataset: path or URL, or an open data set.
        where, split, part, split_seed, split_by: the images to tell about, as :func:`picstore.shuffle` has them.
        root: folder of the images of an index, which you trust; None where the index says it, if you made it.
        progress: as :func:`picstore.convert` has it.

    Raises:
        UsageError: the selection is impossible, or an index from elsewhere needs ``root``.
        NotADataset, Unfinished, UnsupportedVersion, Damage: the data set cannot be read.
    """
    with open_display("info", progress) as display:
        opened = open_selection(
            dataset, where=where, split=split, part=part, split_seed=split_seed, split_by=split_by, root=root
        )
        return _describe(opened, display)


def _describe(dataset: Dataset, display: Display) -> InfoResult:
    manifest = dataset.manifest
    indexes = sample_indexes(dataset)
    order = order_statistics(indexes)
    kept = dataset.kept_counts()
    counts = _count_labels(dataset, indexes, display) if kept is None else kept
    return InfoResult(
        format_version=manifest.format_version,
        read_by=READ_BY[manifest.format_version],
        uuid=manifest.uuid,
        images=len(dataset),
        stored_images=manifest.images,
        deleted=len(dataset.live.deleted),
        **_reading(dataset),
        columns=list(dataset.columns),
        bytes=manifest.bytes,
        streams=manifest.streams,
        files=len(manifest.files),
        containers=manifest.containers,
        container_size=manifest.container_size,
        classes=list(manifest.classes),
        attachments=list(manifest.attachments),
        encode=manifest.encode,
        references=None if manifest.references is None else asdict(manifest.references),
        provenance=manifest.provenance,
        outcome=manifest.provenance.get("outcome"),
        shuffle=manifest.shuffle[-1] if manifest.shuffle else None,
        shuffle_history=list(manifest.shuffle),
        order=None if order is None else asdict(order),
        sampled_containers=len(indexes),
        counts_kept=kept is not None,
        histograms=_histograms(counts, indexes, dataset),
    )


def _histograms(counts: RecordCounts, indexes: Sequence[Table], dataset: Dataset) -> dict[str, Any]:
    """Count all records by class, and index entries by width, height and bytes.

    Each histogram says how many ``records`` it counts, in how many ``containers``.
    """
    columns = {name: np.concatenate([index[name] for index in indexes]) for name in ("width", "height")}
    columns["bytes"] = np.concatenate([index["length"] for index in indexes])
    found = {
        "label": (counts.records, len(dataset.rows), count_labels(counts.labels, counts.counts, dataset.classes)),
        **{
            name: (len(columns[name]), len(indexes), histogram)
            for name, histogram in summarize_sizes(columns, bins=BINS).items()
        },
    }
    return {
        column: {
            "records": records,
            "containers": containers,
            **{name: list(getattr(histogram, name)) for name in ("edges", "values", "names", "counts")},
            "others": histogram.others,
        }
        for column, (records, containers, histogram) in found.items()
    }


def _count_labels(dataset: Dataset, indexes: Sequence[Table], display: Display) -> RecordCounts:
    """Count all records by label: in the index entries if these are of all containers, else in all containers."""
    if len(indexes) == len(dataset.rows):
        return RecordCounts.of(Counter(label for index in indexes for label in index["label"].tolist()))
    why = "for a selection" if isinstance(dataset.live, SelectedRecords) else "here; `picstore repair` keeps them"
    display.remark(f"counting images by class in {len(dataset.rows):,} containers, as no counts are kept {why}")
    return dataset.count_records()


def _reading(dataset: Dataset) -> dict[str, int]:
    """Count the bytes of containers with an image to read, and estimate the bytes of a copy of the images."""
    size, counts = dataset.rows["size"].astype(int), dataset.live.counts
    copied = size * counts / dataset.rows["records"].clip(1)
    return {"read_bytes": int(size[counts > 0].sum()), "copy_bytes": int(copied.sum())}


@dataclass(frozen=True, slots=True)
class OrderStatistics:
    """Figures of the stored order.

    Attributes:
        records: number of records measured: all, or the records of 1,000 evenly spaced containers.
        correlation: of id and stored position by rank (Spearman): 1 in input order, about 0 ± 1/√records when shuffled.
        same_class_neighbours: fraction of neighbors in a container that have the same label.
        expected_same_class_neighbours: that fraction in a uniformly random order.
    """

    records: int
    correlation: float
    same_class_neighbours: float
    expected_same_class_neighbours: float


def sample_indexes(dataset: Dataset) -> list[Table]:
    """Read the index entries of all containers, or of 1,000 evenly spaced ones.

    Raises:
        Damage, NotADataset: one is unreadable.
    """
    count = len(dataset.rows)
    chosen = {k * count // min(count, _SAMPLED_CONTAINERS) for k in range(min(count, _SAMPLED_CONTAINERS))}
    return [dataset.entries(number) for number in sorted(chosen)]


def order_statistics(indexes: Sequence[Table]) -> OrderStatistics | None:
    """Measure the stored order in index entries of containers; None for fewer than two records."""
    if sum(map(len, indexes)) < 2:
        return None
    ids = np.concatenate([index["id"] for index in indexes])
    labels = np.concatenate([index["label"] for index in indexes])
    ranks = np.argsort(np.argsort(ids, kind="stable"), kind="stable")
    correlation = float(np.corrcoef(ranks, np.arange(len(ranks)))[0, 1])
    neighbors = sum(max(0, len(index) - 1) for index in indexes)
    same = sum(int((index["label"][1:] == index["label"][:-1]).sum()) for index in indexes)
    _, per_class = np.unique(labels, return_counts=True)
    n = len(labels)
    expected = float((per_class * (per_class - 1.0)).sum() / (n * (n - 1.0)))
    return OrderStatistics(n, correlation, same / neighbors if neighbors else 0.0, expected)
