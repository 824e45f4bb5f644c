"""Answers to requests about the ledger of a conversion: inputs by status and reason, examples, and failed pictures."""

from __future__ import annotations

import logging
import mimetypes
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from picstore.errors import NotADataset, UsageError
from picstore.prepare.convert.ledger import LedgerLine, Tally, read_lines
from picstore.storage.dataset import Dataset
from picstore.storage.joined_reader import JoinedFolders
from picstore.storage.location.resolve import LEDGER
from picstore.viewer.images import Picture
from picstore.viewer.queries import Query
from picstore.viewer.session import Session

_EXAMPLES = 120  # Largest number of ledger lines to keep as examples for each reason.
_MAX_REASONS = 500
# Maximum number of different reasons; further ones count as one, because each line of a ledger may have a new reason.
_MAX_COUNTED = 10_000
_OTHERS = "other"
_MAX_INPUT = 1 << 28  # Largest size in bytes of an input file that is sent to the browser.

logger = logging.getLogger("picstore")


@dataclass(frozen=True, slots=True)
class Reason:
    """Inputs with equal status and reason: number, bytes of files and of JPEGs, and first ledger lines as examples."""

    status: str
    reason: str
    inputs: int
    source_bytes: int
    bytes: int
    examples: list[LedgerLine]


@dataclass(frozen=True, slots=True)
class LedgerSummary:
    """Summary of a ledger: inputs by status and by reason, the most frequent first; empty if there is no ledger."""

    statuses: dict[str, int]
    reasons: list[Reason]


def summarize_ledger(dataset: Dataset) -> LedgerSummary:
    """Summarize the ledger of a dataset in one pass over its lines; damaged lines are skipped."""
    tally, examples = Tally(), dict[tuple[str, str], list[LedgerLine]]()
    try:
        # A joined dataset gets an empty summary, because the ids of its records differ from those in the ledgers.
        if not isinstance(dataset.path, JoinedFolders) and (path := dataset.path / LEDGER).is_file():
            for line in read_lines(path, skip_damaged=True):
                if (line.status, line.reason) not in tally.reasons and len(tally.reasons) >= _MAX_COUNTED:
                    status = line.status if line.status in tally.status else _OTHERS
                    line = replace(line, status=status, reason=_OTHERS)
                tally.add_line(line)
                kept = examples.setdefault((line.status, line.reason), [])
                if len(kept) < _EXAMPLES and len(examples) <= _MAX_REASONS:
                    kept.append(line)
    except (NotADataset, UsageError) as error:
        logger.info("no ledger: %s", error)
    reasons = [
        Reason(*key, inputs, tally.sources[key], tally.jpegs[key], examples[key])
        for key, inputs in tally.reasons.most_common(_MAX_REASONS)
    ]
    return LedgerSummary(dict(tally.status.most_common()), reasons)


def read_input(folder: Path, name: str) -> Picture:
    """Read the file of an input for a browser, which may show a picture that picstore rejected.

    Raise UsageError if the file is not within ``folder``, because a ledger from elsewhere may name any file.
    """
    media_type, _ = mimetypes.guess_type(name)
    try:
        path = (folder / name).resolve(strict=True)
        inside = path.is_relative_to(folder.resolve()) and path.is_file() and path.stat().st_size <= _MAX_INPUT
    # ``resolve`` fails if the file is missing, links form a loop, or the name contains a zero byte.
    except (OSError, ValueError):
        inside = False
    if not inside or media_type is None or not media_type.startswith("image/"):
        raise UsageError(f"{folder} has no picture {name!r}")
    return Picture(media_type, path.read_bytes())


def _ledger(session: Session) -> LedgerSummary:
    return session.once("ledger", lambda: summarize_ledger(session.dataset))


def answer_ledger(session: Session, _: Query) -> dict[str, Any]:
    """Return the ledger's summary, with the position of each example's record, or -1 if the dataset lacks it."""
    summary = _ledger(session)
    ids = [line.id for reason in summary.reasons for line in reason.examples]
    positions = dict(zip(ids, session.records.positions_of(ids), strict=True))
    told = asdict(summary)
    for reason in told["reasons"]:
        for line in reason["examples"]:
            line["position"] = positions[line["id"]]
    return told


def answer_input(session: Session, query: Query) -> Picture:
    """Return the picture file of an input that is an example in the ledger's summary."""
    name = query.text("name")
    known = any(line.input == name for reason in _ledger(session).reasons for line in reason.examples)
    if session.inputs is None or not known:
        raise UsageError(f"the input {name!r} is not shown: give --inputs DIR, and one of the ledger's examples")
    return read_input(session.inputs, name)


JSON_ANSWERS: Mapping[str, Callable[[Session, Query], Any]] = {"/api/health/ledger": answer_ledger}
PICTURE_ANSWERS: Mapping[str, Callable[[Session, Query], Picture]] = {"/input": answer_input}
