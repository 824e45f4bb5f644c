"""``picstore info``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from picstore.cli import options
from picstore.cli.bars import BINS, histogram_lines, sample_note
from picstore.cli.outcome import format_outcome
from picstore.cli.terminal import echo, echo_json
from picstore.storage.location.resolve import Location, locate

if TYPE_CHECKING:
    from picstore.arrays import Table
    from picstore.storage.dataset import Dataset
    from picstore.storage.record_counts import RecordCounts

_WORTH_COPYING = 0.8  # of the bytes that are read


@click.command("info")
@click.argument("dataset", metavar="DATASET", type=locate)
@options.selection
@options.root
@options.as_json
def command(dataset: Location, selection: options.Selection, root: Location | None, as_json: bool) -> None:
    """Print what DATASET holds, how it was made, and how well it is shuffled.

    Counts by class are those of all images. Other figures are those of 1,000 containers where there are more, and say
    so.
    """
    facts = _facts(selection.open(dataset, root=root))
    if as_json:
        echo_json(facts)
    else:
        echo(*_lines(dataset, facts))
        echo(*histogram_lines(facts["histograms"], containers=facts["containers"]))


def _facts(dataset: Dataset) -> dict[str, Any]:
    from picstore.storage.format.layout import READ_BY
    from picstore.storage.order_statistics import order_statistics, sample_indexes

    manifest = dataset.manifest
    indexes = sample_indexes(dataset)
    order = order_statistics(indexes)
    kept = dataset.kept_counts()
    counts = _count_labels(dataset, indexes) if kept is None else kept
    return {
        "format_version": manifest.format_version,
        "read_by": READ_BY[manifest.format_version],
        "uuid": manifest.uuid,
        "images": len(dataset),
        "stored_images": manifest.images,
        "deleted": len(dataset.live.deleted),
        **_reading(dataset),
        "columns": list(dataset.columns),
        "bytes": manifest.bytes,
        "streams": manifest.streams,
        "files": len(manifest.files),
        "containers": manifest.containers,
        "container_size": manifest.container_size,
        "classes": list(manifest.classes),
        "attachments": list(manifest.attachments),
        "encode": manifest.encode,
        "references": None if manifest.references is None else asdict(manifest.references),
        "provenance": manifest.provenance,
        "outcome": manifest.provenance.get("outcome"),
        "shuffle": manifest.shuffle[-1] if manifest.shuffle else None,
        "shuffle_history": list(manifest.shuffle),
        "order": None if order is None else asdict(order),
        "sampled_containers": len(indexes),
        "counts_kept": kept is not None,
        "histograms": _histograms(counts, indexes, dataset),
    }


def _histograms(counts: RecordCounts, indexes: Sequence[Table], dataset: Dataset) -> dict[str, Any]:
    """Count all records by class, and those of index entries by width, height and bytes.

    Each histogram says how many ``records`` it counts, in how many ``containers``.
    """
    import numpy as np

    from picstore.display.histograms import count_labels, summarize_sizes

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
        name: {
            "records": records,
            "containers": containers,
            **{key: value for key, value in asdict(histogram).items() if key not in ("name", "totals")},
        }
        for name, (records, containers, histogram) in found.items()
    }


def _count_labels(dataset: Dataset, indexes: Sequence[Table]) -> RecordCounts:
    """Count all records by label: in the index entries if these are of all containers, else in all containers."""
    from collections import Counter

    from picstore.storage.edits.selection import SelectedRecords
    from picstore.storage.record_counts import RecordCounts

    if len(indexes) == len(dataset.rows):
        return RecordCounts.of(Counter(label for index in indexes for label in index["label"].tolist()))
    why = "for a selection" if isinstance(dataset.live, SelectedRecords) else "here; `picstore repair` keeps them"
    echo(f"counting images by class in {len(dataset.rows):,} containers, as no counts are kept {why}", err=True)
    return dataset.count_records()


def _reading(dataset: Dataset) -> dict[str, int]:
    """Count the bytes of containers with an image to read, and those that a copy of the images would have, about."""
    size, counts = dataset.rows["size"].astype(int), dataset.live.counts
    copied = size * counts / dataset.rows["records"].clip(1)
    return {"read_bytes": int(size[counts > 0].sum()), "copy_bytes": int(copied.sum())}


def _lines(dataset: Location, facts: dict[str, Any]) -> list[str]:
    lines = [
        f"{dataset}: picstore data set, uuid {facts['uuid']}",
        f"  format      {facts['format_version']}, which picstore {facts['read_by']} and later read",
        f"  images      {facts['images']:,}, {facts['bytes'] / 1e6:,.1f} MB",
        f"  classes     {len(facts['classes']):,}" + _few(facts["classes"]),
        f"  layout      {facts['streams']} streams, {facts['files']:,} files, {facts['containers']:,} containers",
    ]
    if facts["deleted"]:
        lines.append(f"  deleted     {facts['deleted']:,} more images; shuffle leaves them out for good")
    if (left := facts["stored_images"] - facts["deleted"]) > facts["images"]:
        lines.append(f"  selection   {facts['images']:,} of {left:,} images")
    if facts["copy_bytes"] < _WORTH_COPYING * facts["read_bytes"]:
        read, copied = (facts[name] / 1e6 for name in ("read_bytes", "copy_bytes"))
        lines.append(
            f"  reading     an epoch reads {read:,.1f} MB; of a copy by picstore shuffle about {copied:,.1f} MB"
        )
    if facts["columns"]:
        lines.append("  columns     " + ", ".join(facts["columns"]))
    if encode := facts["encode"]:
        size = encode["resize"] or "as the source"
        lines.append(f"  encoding    quality {encode['quality']}, {encode['subsampling']}, size {size}")
    if references := facts["references"]:
        lines.append(f"  images in   {references['root']}, {references['foreign']:,} of them no upright JPEGs")
    source = facts["provenance"]
    lines.append(f"  made        by picstore {source.get('picstore')} from {source.get('source')}")
    if outcome := facts["outcome"]:
        lines.append(f"  converted   {format_outcome(outcome)}")
    event = facts["shuffle"]
    lines.append("  shuffled    " + (f"{event['method']}, seed {event['seed']}" if event else "no"))
    if order := facts["order"]:
        lines.append(
            f"  order       correlation with the input {order['correlation']:+.3f}; neighbours of one class "
            f"{order['same_class_neighbours']:.1%}, {order['expected_same_class_neighbours']:.1%} in a random order"
            f"{sample_note(facts['sampled_containers'], facts['containers'])}"
        )
    return lines


def _few(names: list[str], count: int = 4) -> str:
    if not names:
        return ""
    return ": " + ", ".join(names[:count]) + (", …" if len(names) > count else "")
