"""End of a conversion: finished rows become a dataset with ledger, index and manifest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from picstore.errors import NotADataset, PicstoreError, TooManyFailures, UsageError, counted
from picstore.prepare.convert import ledger, resumable_job
from picstore.prepare.convert.row_writer import join_row_counts
from picstore.storage.format.container_index import FileSummary, read_summary
from picstore.storage.location.resolve import LEDGER, Location, WritableLocation, map_concurrently
from picstore.storage.manifest import Manifest, References, read_manifest
from picstore.storage.manifest_writer import publish_dataset
from picstore.storage.references import note_index


@dataclass(frozen=True, slots=True)
class ConversionResult:
    """Result of a conversion: the manifest (None for a shard), the counts of inputs by status, and seconds by stage."""

    manifest: Manifest | None
    tally: ledger.Tally
    seconds: dict[str, float] = field(default_factory=dict)


def finish_dataset(
    root: WritableLocation,
    settings: Mapping[str, Any],
    written: Mapping[int, ledger.WrittenFragment],
    *,
    rows: int,
    classes: Sequence[str],
    attachments: Sequence[str],
) -> ConversionResult:
    """Write ledger, index and manifest of a conversion, once all its rows (ranges of inputs) are finished.

    Args:
        written: for each row that this run converted, counts and checksum of its ledger lines.

    Raises:
        TooManyFailures: no input became an image.
        PicstoreError: a row's files hold another number of records than its ledger lines state.
    """
    provenance = dict(settings)
    encode, shape, folder = provenance.pop("encode"), provenance["shape"], provenance.get("references")
    root.sweep()
    tallies = ledger.write_ledger(root, rows, written)
    total = sum(tallies, ledger.Tally())
    if not total.images:
        ((_, reason), count), *_ = total.reasons.most_common(1) or [(("", "no input"), 0)]
        raise TooManyFailures(
            f"none of {counted(total.inputs, 'input')} became an image ({count:,}: {reason}), and no dataset is made; "
            f"see {root / LEDGER}, remove {root} and convert again"
        )
    summaries = read_row_summaries(root, tallies, shape["streams"], remedy=f"remove {root} and convert again")
    manifest = publish_dataset(
        root,
        summaries,
        counts=join_row_counts(root, tallies, summaries, fields=tuple(attachments)),
        streams=shape["streams"],
        container_size=shape["container_size"],
        classes=tuple(classes),
        attachments=tuple(attachments),
        encode=encode,
        provenance={**provenance, "outcome": total.outcome()},
        references=None if folder is None else References(folder, total.foreign),
    )
    note_index(manifest)
    return ConversionResult(manifest, total)


def read_result(root: WritableLocation, settings: dict[str, Any]) -> ConversionResult:
    """Read the result of a conversion that a previous run finished. Errors are those of :func:`read_own_manifest`."""
    lines = ledger.read_lines(root / LEDGER, skip_damaged=True)
    manifest = read_own_manifest(root, settings)
    note_index(manifest)
    result = ConversionResult(manifest, ledger.tally_lines(lines))
    root.sweep()
    resumable_job.remove_finished_job(root, settings, manifest.uuid)
    return result


def read_own_manifest(root: Location, settings: dict[str, Any]) -> Manifest:
    """Read the manifest of a dataset; raise UsageError unless a conversion with these settings made the dataset."""
    manifest = read_manifest(root)
    stored = {"encode": manifest.encode, **manifest.provenance}
    stored.pop("outcome", None)
    if stored != settings:
        raise UsageError(
            f"{root} is already a dataset, made of other inputs or with other settings; choose another destination"
        )
    return manifest


def read_row_summaries(
    root: WritableLocation, tallies: Sequence[ledger.Tally], streams: int, *, remedy: str, first_file: int = 0
) -> list[FileSummary]:
    """Read the summary (size, checksum, number of records, footer) of each file that the job's rows wrote.

    Files are opened by name, because an object store may list new files late. Raise PicstoreError, whose message ends
    in ``remedy``, if a row's files hold another number of records than its ledger lines state.
    """
    files = range(first_file, first_file + len(tallies))

    def read(address: tuple[int, int]) -> FileSummary | None:
        try:
            return read_summary(root, stream=address[0], file=address[1])
        except NotADataset:  # The file is missing: a row with fewer records than streams has none in some streams.
            return None

    addresses = [(stream, file) for file in files for stream in range(streams)]
    summaries = [summary for summary in map_concurrently(read, addresses) if summary is not None]
    records: Counter[int] = Counter()
    for summary in summaries:
        records[summary.file] += summary.records
    for file, tally in zip(files, tallies, strict=True):
        if records[file] != tally.images:
            raise PicstoreError(f"files {file:06d} of {root} are missing; {remedy}")
    return summaries
