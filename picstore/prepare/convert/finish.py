"""End of a conversion: finished rows become a data set with ledger, index and manifest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from picstore.errors import PicstoreError, UsageError
from picstore.prepare.convert import job, ledger
from picstore.storage.format.file import FileSummary, read_summary
from picstore.storage.location.resolve import LEDGER, Location, file_name, map_concurrently
from picstore.storage.manifest import Manifest, read_manifest
from picstore.storage.publish import publish_dataset


@dataclass(frozen=True, slots=True)
class ConversionResult:
    """Result of a conversion.

    Attributes:
        manifest: None for one shard of several.
        seconds: duration of each stage.
    """

    manifest: Manifest | None
    tally: ledger.Tally
    seconds: dict[str, float] = field(default_factory=dict)


def finish_dataset(root: Location, outline: dict[str, Any]) -> ConversionResult:
    """Write ledger, index and manifest of a conversion whose rows are all finished.

    Args:
        outline: the settings of the job with ``rows``, and with ``classes`` and ``attachments`` of its source.

    Raises:
        PicstoreError: the files do not hold the records of the ledger.
    """
    provenance = dict(outline)
    rows, classes, attachments = (provenance.pop(name) for name in ("rows", "classes", "attachments"))
    encode, shape = provenance.pop("encode"), provenance["shape"]
    root.sweep()
    tallies = ledger.write_ledger(root, rows)
    total = sum(tallies, ledger.Tally())
    manifest = publish_dataset(
        root,
        read_row_summaries(root, tallies, shape["streams"], remedy=f"remove {root} and convert again"),
        streams=shape["streams"],
        container_size=shape["container_size"],
        classes=tuple(classes),
        attachments=tuple(attachments),
        encode=encode,
        provenance={**provenance, "outcome": total.outcome()},
    )
    return ConversionResult(manifest, total)


def read_result(root: Location, settings: dict[str, Any]) -> ConversionResult:
    """Read the result of a conversion that is already finished.

    Raises:
        UsageError: the data set was made with other settings.
        NotADataset, Damage: the manifest cannot be read.
    """
    result = ConversionResult(read_own_manifest(root, settings), ledger.tally_lines(ledger.read_lines(root / LEDGER)))
    job.remove_job(root)
    return result


def read_own_manifest(root: Location, settings: dict[str, Any]) -> Manifest:
    """Read the manifest of a data set that a conversion with these settings made.

    Raises:
        UsageError: the data set was made with other settings.
        NotADataset, Damage: the manifest cannot be read.
    """
    manifest = read_manifest(root)
    stored = {"encode": manifest.encode, **manifest.provenance}
    stored.pop("outcome", None)
    if stored != settings:
        raise UsageError(f"{root} is already a data set, made of other inputs or with other settings")
    return manifest


def tally_rows(root: Location, rows: Iterable[int]) -> ledger.Tally:
    """Count and sum the ledger lines of finished rows."""
    return sum(map(ledger.tally_fragment, ledger.read_fragments(root, rows)), ledger.Tally())


def read_row_summaries(
    root: Location, tallies: Sequence[ledger.Tally], streams: int, *, remedy: str, first_file: int = 0
) -> list[FileSummary]:
    """Read the footers of all files of finished rows, and check their records against the ledger.

    Args:
        tallies: of the rows, in order.
        remedy: end of the message about missing files.
        first_file: number of the files of row 0.

    Raises:
        PicstoreError: the files of a row do not hold its records.
    """
    names = {name for name, _ in root.files()}
    addresses = [(stream, first_file + row) for row in range(len(tallies)) for stream in range(streams)]

    def read(address: tuple[int, int]) -> FileSummary:
        return read_summary(root, stream=address[0], file=address[1])

    by_file: dict[int, list[FileSummary]] = {}
    for summary in map_concurrently(read, (address for address in addresses if file_name(*address) in names)):
        by_file.setdefault(summary.file, []).append(summary)
    summaries = []
    for file, tally in enumerate(tallies, start=first_file):
        found = by_file.get(file, [])
        if sum(summary.records for summary in found) != tally.images:
            raise PicstoreError(f"files {file:06d} of {root} are missing; {remedy}")
        summaries.extend(found)
    return summaries
