"""The end of a conversion: rows that are all finished become a data set; and first, where shards made them, one place.

A shard's rows are those that any run would write, so putting shards together is copying files and ending as ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from picstore.errors import NotADataset, PicstoreError, Unfinished, UsageError
from picstore.prepare.convert import job, ledger
from picstore.storage.format.file import FileSummary, read_summary
from picstore.storage.location.resolve import LEDGER, MANIFEST, Location, Where, file_name, locate, many
from picstore.storage.manifest import Manifest, read_manifest
from picstore.storage.publish import publish_dataset


@dataclass(frozen=True, slots=True)
class Converted:
    """A conversion that has ended.

    Attributes:
        manifest: None where it was one shard of several.
        seconds: that its stages took, those that there were.
    """

    manifest: Manifest | None
    tally: ledger.Tally
    seconds: dict[str, float] = field(default_factory=dict)


def complete(root: Location, outline: dict[str, Any]) -> Converted:
    """Write ledger, index and manifest of a conversion all of whose rows are finished.

    Args:
        outline: the job, with its ``rows``, and ``classes`` and ``attachments`` of its source.

    Raises:
        PicstoreError: the files do not hold what the ledger says.
    """
    provenance = dict(outline)
    rows, classes, attachments = (provenance.pop(name) for name in ("rows", "classes", "attachments"))
    encode, shape = provenance.pop("encode"), provenance["shape"]
    root.sweep()
    tallies = ledger.merge(root, rows)
    total = sum(tallies, ledger.Tally())
    manifest = publish_dataset(
        root,
        collect(root, tallies, shape["streams"], again=f"remove {root} and convert again"),
        streams=shape["streams"],
        container_size=shape["container_size"],
        classes=tuple(classes),
        attachments=tuple(attachments),
        encode=encode,
        provenance={**provenance, "outcome": total.outcome()},
    )
    return Converted(manifest, total)


def already(root: Location, wanted: dict[str, Any]) -> Converted:
    """What to say when the data set that is to be resumed is finished."""
    manifest = read_made(root, wanted)
    tally = ledger.Tally()
    for line in ledger.read_lines(root / LEDGER):
        tally.add(line)
    job.remove_job(root)
    return Converted(manifest, tally)


def read_made(root: Location, wanted: dict[str, Any]) -> Manifest:
    """The manifest of a data set; UsageError unless it was made by this job."""
    manifest = read_manifest(root)
    made = {"encode": manifest.encode, **manifest.provenance}
    made.pop("outcome", None)
    if made != wanted:
        raise UsageError(f"{root} is already a data set, made of other inputs or with other settings")
    return manifest


def tally_of(root: Location, rows: Iterable[int]) -> ledger.Tally:
    """Counts and sums over some finished rows."""
    return sum(map(ledger.tally_of, ledger.read_fragments(root, rows)), ledger.Tally())


def collect(
    root: Location, tallies: Sequence[ledger.Tally], streams: int, *, again: str, first_file: int = 0
) -> list[FileSummary]:
    """Read back the footers of all files of some rows; what they hold must be what the ledger says was written.

    Args:
        tallies: of the rows, in order.
        again: what to do where files are missing.
        first_file: number of the files of the first row.

    Raises:
        PicstoreError: the files of a row do not hold its records.
    """
    there = {name for name, _ in root.files()}
    places = [(stream, first_file + row) for row in range(len(tallies)) for stream in range(streams)]

    def read(place: tuple[int, int]) -> FileSummary:
        return read_summary(root, stream=place[0], file=place[1])

    by_file: dict[int, list[FileSummary]] = {}
    for summary in many(read, (place for place in places if file_name(*place) in there)):
        by_file.setdefault(summary.file, []).append(summary)
    summaries = []
    for file, tally in enumerate(tallies, start=first_file):
        found = by_file.get(file, [])
        if sum(summary.records for summary in found) != tally.images:
            raise PicstoreError(f"files {file:06d} of {root} are missing; {again}")
        summaries.extend(found)
    return summaries


def merge(destination: Where, parts: Sequence[Where] = ()) -> Converted:
    """Make one data set of the shards of a conversion: the bytes that one run would have written.

    Args:
        destination: where it will be; shards may have been converted there.
        parts: places of other shards. Their files are linked, or copied where that cannot be, and stay.

    Raises:
        Unfinished: rows are missing; what was copied stays, so that merging can go on.
        UsageError: the shards are not of one job, or one is still being converted.
        NotADataset: a place holds no shard.
    """
    root = locate(destination)
    places = [locate(part) for part in parts]
    begun = {place: job.read_shards(place) for place in places}
    for place in places:
        if not begun[place]:
            raise NotADataset(f"{place} holds no shard of a conversion; make one with `picstore convert --shard`")
    if (root / MANIFEST).is_file():
        return _merged_before(root, [*begun.values(), job.read_shards(root)])
    for place in places:
        for shard, document in begun[place].items():
            job.save_job(root, job.begin_job(root, document, resume=True, shard=shard), shard)
    shards = job.read_shards(root)
    if not shards:
        raise NotADataset(f"{root} holds no shard of a conversion; make one with `picstore convert --shard`")
    outline = _same(root, shards)
    with job.lock_job(root, *shards):
        ready = set(ledger.finished_rows(root, outline["rows"]))
        for place in places:
            _bring(place, root, sorted(set(ledger.finished_rows(place, outline["rows"])) - ready))
            ready.update(ledger.finished_rows(place, outline["rows"]))
        _require(root, ready, outline["rows"], next(iter(shards)).count)
        done = complete(root, outline)
    job.remove_job(root)
    return done


def _merged_before(root: Location, begun: Iterable[dict[job.Shard, dict[str, Any]]]) -> Converted:
    """What to say when all is merged: the same again, so that a merge may be repeated."""
    documents = [document for shards in begun for document in shards.values()]
    if not documents:
        raise UsageError(f"{root} is already a data set")
    beside = ("rows", "classes", "attachments")
    return already(root, {name: value for name, value in documents[0].items() if name not in beside})


def _same(root: Location, shards: dict[job.Shard, dict[str, Any]]) -> dict[str, Any]:
    """The job of all shards; they began without a look at each other if they began at once."""
    (first, outline), *others = shards.items()
    for shard, document in others:
        if shard.count != first.count:
            raise UsageError(f"{root} holds shards {first} and {shard}; they are not of one conversion")
        for name in outline:
            if document.get(name) != outline[name]:
                raise UsageError(
                    f"{root} holds shards of different conversions: of {first} {name} is {outline[name]!r}, "
                    f"of {shard} {document.get(name)!r}"
                )
    return outline


def _require(root: Location, ready: set[int], rows: int, count: int) -> None:
    """All rows are there; otherwise say whose are not."""
    missing = sorted(set(range(rows)) - ready)
    if missing:
        late = sorted({row % count for row in missing})
        names = ", ".join(f"{index}/{count}" for index in late[:8]) + (", …" if len(late) > 8 else "")
        raise Unfinished(
            f"{root} lacks {len(missing)} of {rows} rows, of the shards {names}; convert these with --resume"
        )


def _bring(source: Location, root: Location, rows: Sequence[int]) -> None:
    """Copy finished rows; each is declared finished when all of its files are there."""
    wanted = {f"{row:06d}.pic": row for row in rows}
    by_row: dict[int, list[str]] = {row: [] for row in rows}
    for name, _ in source.files():
        if (row := wanted.get(name.rpartition("/")[2])) is not None:
            by_row[row].append(name)

    def copy(row: int) -> None:
        for name in by_row[row]:
            (source / name).copy_to(root / name)
        ledger.copy_fragment(source, root, row)

    for _ in many(copy, rows):
        pass
