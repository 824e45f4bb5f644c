"""The ledger: one line an input, so that nothing is lost in silence.

While a data set is being made, each finished row has a fragment in ``unfinished/``, written after all of the row's
files and so the proof that the row is whole. At the end the fragments become ``ledger.jsonl``.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from picstore.prepare.image.training_jpeg import LOSSLESS, REENCODED
from picstore.storage.location.resolve import LEDGER, UNFINISHED, Location, many

_MAX_FRAGMENT = 1 << 32  # bytes, a row of ten million inputs

_REASONS_OF_JPEGS = ("rotated by EXIF", "resize", "--reencode")

FAILED, DUPLICATE = "failed", "duplicate"  # the other statuses are those of a training JPEG


@dataclass(frozen=True, slots=True)
class Line:
    """What became of one input.

    Attributes:
        reason: why it was re-encoded or why it failed.
        source_bytes, bytes: of the source image and of its JPEG; both 0 where it failed or is a duplicate.
        of: of a duplicate, the id of the first input with the same bytes.
    """

    input: str
    id: int
    status: str
    reason: str = ""
    source_bytes: int = 0
    bytes: int = 0
    of: int | None = None


def format_of(status: str, reason: str) -> str:
    """The format of the source of an image that did not fail, by its line: ``JPEG``, ``progressive JPEG``, ``PNG``, ….

    What is encoded anew because of its format has that as its reason; all other reasons are of JPEGs.
    """
    if status == LOSSLESS or reason in _REASONS_OF_JPEGS:
        return "JPEG"
    return reason.partition(":")[0]  # "damaged JPEG: its end is missing"


def duplicate(name: str, id_: int, of: int) -> Line:
    """The line of an input that repeats another."""
    return Line(name, id_, DUPLICATE, "equal bytes", of=of)


@dataclass(slots=True)
class Share:
    """Sums over the inputs of one format that did not fail; bytes of the sources and of their JPEGs."""

    inputs: int = 0
    lossless: int = 0
    source_bytes: int = 0
    bytes: int = 0

    def __add__(self, other: Share) -> Share:
        return Share(
            self.inputs + other.inputs,
            self.lossless + other.lossless,
            self.source_bytes + other.source_bytes,
            self.bytes + other.bytes,
        )


@dataclass(slots=True)
class Tally:
    """Counts and sums over ledger lines; those of ``reasons``, ``sources`` and ``jpegs`` by status and reason.

    Attributes:
        sources, jpegs: bytes of the source images and of their JPEGs.
    """

    status: Counter[str] = field(default_factory=Counter)
    reasons: Counter[tuple[str, str]] = field(default_factory=Counter)
    sources: Counter[tuple[str, str]] = field(default_factory=Counter)
    jpegs: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, line: Line) -> None:
        why = line.status, line.reason
        self.status[line.status] += 1
        self.reasons[why] += 1
        self.sources[why] += line.source_bytes
        self.jpegs[why] += line.bytes

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.status + other.status,
            self.reasons + other.reasons,
            self.sources + other.sources,
            self.jpegs + other.jpegs,
        )

    @property
    def source_bytes(self) -> int:
        return sum(self.sources.values())

    @property
    def bytes(self) -> int:
        return sum(self.jpegs.values())

    def formats(self) -> dict[str, Share]:
        """The inputs that did not fail by the format of the source, the most frequent first."""
        shares: dict[str, Share] = {}
        for (status, reason), count in self.reasons.items():
            if status in (LOSSLESS, REENCODED):
                name, why = format_of(status, reason), (status, reason)
                share = Share(count, count if status == LOSSLESS else 0, self.sources[why], self.jpegs[why])
                shares[name] = shares.get(name, Share()) + share
        return dict(sorted(shares.items(), key=lambda item: (-item[1].inputs, item[0])))

    @property
    def inputs(self) -> int:
        return sum(self.status.values())

    @property
    def images(self) -> int:
        return self.status[LOSSLESS] + self.status[REENCODED]

    @property
    def failed(self) -> int:
        return self.status[FAILED]

    def outcome(self) -> dict[str, int]:
        """The counts and sums as the manifest's provenance keeps them."""
        counts = {status: self.status[status] for status in (LOSSLESS, REENCODED, FAILED)}
        if self.status[DUPLICATE]:
            counts[DUPLICATE] = self.status[DUPLICATE]
        return {**counts, "source_bytes": self.source_bytes, "jpeg_bytes": self.bytes}


def _fragment_name(row: int) -> str:
    return f"row-{row:06d}.jsonl"


def write_fragment(root: Location, row: int, lines: Sequence[Line]) -> None:
    """Declare a row finished."""
    write_lines(root / UNFINISHED / _fragment_name(row), lines)


def write_lines(path: Location, lines: Iterable[Line]) -> None:
    """Write a ledger or a part of one."""
    path.write(b"".join(map(_encode, lines)))


def finished_rows(root: Location, rows: int) -> list[int]:
    """Those of ``rows`` that have a fragment; one listing, however many there are."""
    found = {name for name, _ in (root / UNFINISHED).files()}
    return [row for row in range(rows) if _fragment_name(row) in found]


def read_lines(path: Location) -> Iterator[Line]:
    """The lines of a ledger or of a fragment."""
    return map(_decode, path.lines())


def read_fragments(root: Location, rows: Iterable[int]) -> Iterator[bytes]:
    """The fragments of finished rows as they stand."""

    def read(row: int) -> bytes:
        return (root / UNFINISHED / _fragment_name(row)).read_all(_MAX_FRAGMENT)

    return many(read, rows)


def copy_fragment(source: Location, target: Location, row: int) -> None:
    """Declare a row finished whose files were copied from one unfinished data set to another."""
    (target / UNFINISHED / _fragment_name(row)).write(next(read_fragments(source, [row])))


def tally_of(fragment: bytes) -> Tally:
    """The counts and sums of a fragment's lines."""
    tally = Tally()
    for text in fragment.splitlines():
        tally.add(_decode(text))
    return tally


def merge(root: Location, rows: int, *, kept: bytes = b"") -> list[Tally]:
    """Write ``ledger.jsonl`` out of the fragments, behind the lines of ``kept``; returns a tally a row."""
    tallies = []
    out = (root / LEDGER).create()
    try:
        out.write(kept)
        for fragment in read_fragments(root, range(rows)):
            out.write(fragment)
            tallies.append(tally_of(fragment))
        out.close()
    finally:
        out.abandon()
    return tallies


def _encode(line: Line) -> bytes:
    values = {name: getattr(line, name) for name in Line.__slots__}
    if line.of is None:
        del values["of"]
    return (json.dumps(values) + "\n").encode()


def _decode(text: bytes) -> Line:
    return Line(**json.loads(text))
