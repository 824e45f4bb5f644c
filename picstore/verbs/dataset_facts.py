"""Facts about a dataset for ``picstore.info``: contents, origin, stored order and histograms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from picstore.arrays import Table
from picstore.display.histograms import count_labels, summarize_sizes
from picstore.display.progress import Display
from picstore.errors import counted
from picstore.results import InfoResult
from picstore.storage.dataset import Dataset
from picstore.storage.edits.live_records import SelectedRecords
from picstore.storage.format.layout import READ_BY
from picstore.storage.record_counts import RecordCounts

_BINS = 10
# Largest number of containers whose record tables are read, which takes 1 to 2 s over a network. Statistics of such a
# sample differ from those of all containers in the third digit.
_SAMPLED_CONTAINERS = 1000


def describe(dataset: Dataset, display: Display) -> InfoResult:
    """Return the facts about a dataset; show a remark on the display if counting classes must read all containers."""
    manifest = dataset.manifest
    indexes = _sample_indexes(dataset)
    kept = dataset.kept_counts()
    counts = _count_labels(dataset, indexes, display) if kept is None else kept
    return InfoResult(
        dataset=str(dataset.path),
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
        order=_order_statistics(indexes),
        sampled_containers=len(indexes),
        counts_kept=kept is not None,
        histograms=_histograms(counts, indexes, dataset),
    )


def _histograms(counts: RecordCounts, indexes: Sequence[Table], dataset: Dataset) -> dict[str, Any]:
    """Build histograms: of classes from ``counts`` of all records, of width, height and bytes from ``indexes``."""
    columns = {name: np.concatenate([index[name] for index in indexes]) for name in ("width", "height")}
    columns["bytes"] = np.concatenate([index["length"] for index in indexes])
    found = {
        "label": (counts.records, len(dataset.rows), count_labels(counts.labels, counts.counts, dataset.classes)),
        **{
            name: (len(columns[name]), len(indexes), histogram)
            for name, histogram in summarize_sizes(columns, bins=_BINS).items()
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
    """Count all records by label: from ``indexes``, if they are the tables of all containers, else from the dataset."""
    if len(indexes) == len(dataset.rows):
        return RecordCounts.of(Counter(label for index in indexes for label in index["label"].tolist()))
    why = "for a selection" if isinstance(dataset.live, SelectedRecords) else "here; `picstore repair` keeps them"
    display.remark(
        f"counting images by class in {counted(len(dataset.rows), 'container')}, as no counts are kept {why}"
    )
    return dataset.count_records()


def _reading(dataset: Dataset) -> dict[str, Any]:
    """Return the bytes that an epoch reads: ``read_bytes``, and ``copy_bytes`` as an estimate for a shuffled copy."""
    size, counts = dataset.rows["size"].astype(int), dataset.live.counts
    copied = size * counts / dataset.rows["records"].clip(1)
    return {"read_bytes": int(size[counts > 0].sum()), "copy_bytes": int(copied.sum())}


def _sample_indexes(dataset: Dataset) -> list[Table]:
    """Read the record tables of all, or 1,000 evenly spaced, containers; raise Damage or NotADataset if one fails."""
    count = len(dataset.rows)
    chosen = {k * count // min(count, _SAMPLED_CONTAINERS) for k in range(min(count, _SAMPLED_CONTAINERS))}
    return [dataset.entries(number) for number in sorted(chosen)]


def _order_statistics(indexes: Sequence[Table]) -> dict[str, float] | None:
    """Measure how records are ordered, from the record tables of containers; return None for fewer than two records.

    ``correlation`` is Spearman's rank correlation of id and stored position: 1 in input order, about 0 ± 1/√records in
    a shuffled order. ``same_class_neighbours`` is the fraction of adjacent pairs of records in a container that have
    the same label, which is compared with its expectation in a uniformly random order.
    """
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
    return {
        "records": n,
        "correlation": correlation,
        "same_class_neighbours": same / neighbors if neighbors else 0.0,
        "expected_same_class_neighbours": expected,
    }
