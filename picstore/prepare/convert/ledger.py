"""Ledger, ``ledger.jsonl``: one line for each input of a conversion, with its status and the reason.

While a dataset is being made, each finished row has a ledger fragment in ``unfinished/``, which is written after all
files of the row, and so proves the row complete. In the end the fragments become ``ledger.jsonl``.
"""

from __future__ import annotations

import functools
import json
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from picstore.errors import Corrupt, NotADataset
from picstore.prepare.image.training_jpeg import INDEXED, LOSSLESS, REENCODED
from picstore.results import FormatCount
from picstore.storage.format.checksum import crc32c
from picstore.storage.location.resolve import LEDGER, UNFINISHED, Location, WritableLocation, map_concurrently

logger = logging.getLogger("picstore")

_MAX_FRAGMENT_BYTES = 1 << 32  # largest size in bytes of a ledger fragment to read; ten million inputs take less
# Number of bytes from which a ledger fragment takes longer to transfer than an object store takes to answer a request.
_LARGE_FRAGMENT = 1 << 20

# Start of a ledger line's last JSON member, whose value is the CRC-32C of the line's bytes before this member.
_CRC = b', "crc32c": '

# Statuses of inputs without a record. The module ``training_jpeg`` defines the statuses of inputs with a record.
FAILED, DUPLICATE = "failed", "duplicate"


@dataclass(frozen=True, slots=True)
class LedgerLine:
    """Status of one input. The attributes are the keys of a line's JSON object (docs/cli.md, "picstore convert").

    Attributes:
        reason: why the image was re-encoded, or why the input failed.
        source_bytes, bytes: sizes of the source image and of its JPEG; both 0 for failed inputs and duplicates.
        of: id of the first input with the same bytes, for a duplicate.
        lost: estimated number of samples without ledger lines, for a damaged file that does not state how many it
            holds.
    """

    input: str
    id: int
    status: str
    reason: str = ""
    source_bytes: int = 0
    bytes: int = 0
    of: int | None = None
    lost: int | None = None


_NAMES = ("input", "id", "status", "reason", "source_bytes", "bytes")
_VALUES = attrgetter(*_NAMES)
_TYPES = [str, int, str, str, int, int]


def source_format(status: str, reason: str) -> str:
    """Derive the format of a converted input from its ledger line: ``JPEG``, ``progressive JPEG``, ``PNG``, ….

    ``reason`` begins with the format if the input was re-encoded for its format. With any other reason, such as
    "resize", the input is a JPEG.
    """
    if status == LOSSLESS or reason in ("", "rotated by EXIF", "resize", "--reencode"):
        return "JPEG"
    return reason.partition(":")[0]  # "damaged JPEG" for "damaged JPEG: its end is missing"


def duplicate_line(name: str, id_: int, first: int) -> LedgerLine:
    """Return the ledger line of an input with the same bytes as input ``first``."""
    return LedgerLine(name, id_, DUPLICATE, "equal bytes", of=first)


@dataclass(slots=True)
class Tally:
    """Counts and sums over ledger lines, by status and reason.

    Attributes:
        status, reasons: number of inputs by status, and by (status, reason).
        sources, jpegs: bytes of the source images, and bytes of their JPEGs, by (status, reason).
        lost: estimated number of samples without ledger lines, because their files are damaged.
    """

    status: Counter[str] = field(default_factory=Counter)
    reasons: Counter[tuple[str, str]] = field(default_factory=Counter)
    sources: Counter[tuple[str, str]] = field(default_factory=Counter)
    jpegs: Counter[tuple[str, str]] = field(default_factory=Counter)
    lost: int = 0

    def add_line(self, line: LedgerLine) -> None:
        key = line.status, line.reason
        self.status[line.status] += 1
        self.reasons[key] += 1
        self.sources[key] += line.source_bytes
        self.jpegs[key] += line.bytes
        self.lost += line.lost or 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(*(getattr(self, name) + getattr(other, name) for name in Tally.__slots__))

    @property
    def source_bytes(self) -> int:
        return sum(self.sources.values())

    @property
    def bytes(self) -> int:
        return sum(self.jpegs.values())

    def formats(self) -> list[FormatCount]:
        """Count the converted inputs by the format of their source file, the most frequent format first."""
        totals: dict[str, Counter[str]] = {}
        for key, count in self.reasons.items():
            if key[0] in (LOSSLESS, REENCODED, INDEXED):
                lossless = count if key[0] == LOSSLESS else 0
                added = {"inputs": count, "lossless": lossless}
                added |= {"source_bytes": self.sources[key], "jpeg_bytes": self.jpegs[key]}
                totals.setdefault(source_format(*key), Counter()).update(added)
        ordered = sorted(totals.items(), key=lambda item: (-item[1]["inputs"], item[0]))
        return [FormatCount(format=name, **of) for name, of in ordered]

    @property
    def inputs(self) -> int:
        return sum(self.status.values())

    @property
    def images(self) -> int:
        return self.status[LOSSLESS] + self.status[REENCODED] + self.status[INDEXED]

    @property
    def foreign(self) -> int:
        """Number of images that an index refers to and that are not upright JPEGs; 0 if the dataset is not an index."""
        return sum(count for (status, reason), count in self.reasons.items() if status == INDEXED and reason)

    @property
    def failed(self) -> int:
        return self.status[FAILED]

    def outcome(self) -> dict[str, int]:
        """Return what the manifest's provenance states: number of inputs by status, and bytes of sources and JPEGs."""
        counts = {status: self.status[status] for status in (LOSSLESS, REENCODED, FAILED)}
        counts |= {status: self.status[status] for status in (DUPLICATE, INDEXED) if self.status[status]}
        counts |= {"lost": self.lost} if self.lost else {}
        return {**counts, "source_bytes": self.source_bytes, "jpeg_bytes": self.bytes}


@dataclass(frozen=True, slots=True)
class WrittenFragment:
    """Tally of a ledger fragment's lines, and CRC-32C of its bytes, both from the process that wrote the fragment."""

    tally: Tally
    crc: int


def tally_lines(lines: Iterable[LedgerLine]) -> Tally:
    """Count ledger lines by status and reason, and sum their sizes."""
    tally = Tally()
    for line in lines:
        tally.add_line(line)
    return tally


def tally_fragment(fragment: bytes) -> Tally:
    """Count the lines of a ledger fragment by status and reason; raise Corrupt if a line is damaged."""
    lines = list(map(_parse, fragment.splitlines(keepends=True)))
    if None in lines:
        raise Corrupt("a part of the ledger was damaged meanwhile; run the command again with --resume", UNFINISHED)
    return tally_lines(line for line in lines if line is not None)


def _fragment_name(row: int) -> str:
    return f"row-{row:06d}.jsonl"


def write_fragment(root: WritableLocation, row: int, lines: Sequence[LedgerLine]) -> WrittenFragment:
    """Write the ledger lines of a row of inputs, which declares the row finished; return their counts and checksum."""
    crc = write_lines(root / UNFINISHED / _fragment_name(row), lines)
    return WrittenFragment(tally_lines(lines), crc)


def write_lines(path: WritableLocation, lines: Iterable[LedgerLine]) -> int:
    """Write ledger lines to a file, a ledger or a row's fragment of it; return the CRC-32C of the file's bytes."""
    data = b"".join(map(_encode, lines))
    path.write(data)
    return crc32c(data)


def finished_rows(root: Location, rows: int) -> list[int]:
    """Return the indices, below ``rows``, of rows with an undamaged ledger fragment; all other rows must still run."""
    found = {name for name, _ in (root / UNFINISHED).files()}
    listed = [row for row in range(rows) if _fragment_name(row) in found]

    def is_sound(row: int) -> bool:
        try:
            fragment = _read_fragment(root, row)
        except NotADataset:  # The fragment was removed, but the object store still listed it.
            return False
        return all(_parse(text) for text in fragment.splitlines(keepends=True))

    return [row for row, sound in zip(listed, map_concurrently(is_sound, listed), strict=True) if sound]


def read_lines(path: Location, *, skip_damaged: bool = False) -> Iterator[LedgerLine]:
    """Read the lines of a ledger or of a ledger fragment (the lines of one row).

    A damaged line raises Corrupt; with ``skip_damaged``, for callers that only count, it is skipped with a warning.
    """
    for number, text in enumerate(path.lines(), start=1):
        if (line := _parse(text)) is not None:
            yield line
        elif skip_damaged:
            logger.warning("line %d of %s is damaged and left out", number, path)
        else:
            raise Corrupt(f"line {number} is damaged; restore the file from a backup", str(path))


def read_earlier_lines(path: Location, first_id: int) -> bytes:
    """Return the ledger's bytes before the first valid line with an id from ``first_id`` on; empty without a ledger."""
    texts = list(path.lines()) if path.is_file() else []
    later = (k for k, line in enumerate(map(_parse, texts)) if line is not None and line.id >= first_id)
    return b"".join(texts[: next(later, None)])


def read_fragments(root: Location, rows: Iterable[int]) -> Iterator[bytes]:
    """Yield the ledger fragments (ledger lines, as bytes) of the finished rows ``rows``, in this order.

    Large fragments are read one after the other, because reading 32 fragments of 6 MB concurrently took 300 MiB.
    """
    waiting = iter(rows)
    for row in waiting:
        fragment = _read_fragment(root, row)
        yield fragment
        if len(fragment) < _LARGE_FRAGMENT:
            break
    yield from map_concurrently(functools.partial(_read_fragment, root), waiting)


def _read_fragment(root: Location, row: int) -> bytes:
    return (root / UNFINISHED / _fragment_name(row)).read_all(_MAX_FRAGMENT_BYTES)


def copy_fragment(source: Location, target: WritableLocation, row: int) -> None:
    """Copy a row's ledger fragment to another dataset; copy it last, because the fragment declares the row finished."""
    (target / UNFINISHED / _fragment_name(row)).write(next(read_fragments(source, [row])))


def write_ledger(
    root: WritableLocation, rows: int, written: Mapping[int, WrittenFragment], *, earlier: bytes = b""
) -> list[Tally]:
    """Write ``ledger.jsonl``: the lines ``earlier``, then the fragments of all rows; return the tally of each row.

    ``written`` has, by row, the tally and checksum of each fragment that this run wrote. A fragment with this checksum
    is not parsed, which saves 7 µs per line.
    """
    tallies = []
    out = (root / LEDGER).create()
    try:
        out.write(earlier)
        for row, fragment in enumerate(read_fragments(root, range(rows))):
            out.write(fragment)
            known = written.get(row)
            unchanged = known is not None and known.crc == crc32c(fragment)
            tallies.append(known.tally if known and unchanged else tally_fragment(fragment))
        out.close()
    finally:
        out.abandon()
    return tallies


def _encode(line: LedgerLine) -> bytes:
    values = dict(zip(_NAMES, _VALUES(line), strict=True))
    values |= {name: value for name in ("of", "lost") if (value := getattr(line, name)) is not None}
    text = json.dumps(values).encode()[:-1]
    return text + _CRC + b"%d}\n" % crc32c(text)


def _parse(text: bytes) -> LedgerLine | None:
    """Parse a ledger line; return None if its checksum or JSON is wrong. Old versions' lines may lack the checksum."""
    head, mark, crc = text.rpartition(_CRC)
    if mark and crc != b"%d}\n" % crc32c(head):
        return None
    try:
        line = LedgerLine(**json.loads(head + b"}" if mark else text))
    except (ValueError, TypeError, RecursionError):
        return None
    optional = all(value is None or type(value) is int for value in (line.of, line.lost))
    return line if optional and list(map(type, _VALUES(line))) == _TYPES else None
