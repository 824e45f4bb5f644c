"""Answers about the ledger of a conversion: inputs by status and reason, with examples, and the failed pictures."""

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

_EXAMPLES = 120  # lines that are kept of each reason
_MAX_REASONS = 500  # that are shown
_MAX_COUNTED = 10_000  # reasons that are told apart: in a stranger's ledger each may be another
_OTHERS = "other"
_MAX_INPUT = 1 << 28  # bytes of a picture that failed

logger = logging.getLogger("picstore")


@dataclass(frozen=True, slots=True)
class Reason:
    """Inputs of one status and reason: their number and bytes, and the first ones as they are in the ledger."""

    status: str
    reason: str
    inputs: int
    source_bytes: int
    bytes: int
    examples: list[LedgerLine]


@dataclass(frozen=True, slots=True)
class LedgerSummary:
    """A ledger: inputs by status, and by reason, the most frequent first. Without a ledger all are empty."""

    statuses: dict[str, int]
    reasons: list[Reason]


def summarize_ledger(dataset: Dataset) -> LedgerSummary:
    """Read the ledger beside a data set, once through; damaged lines are left out."""
    tally, examples = Tally(), dict[tuple[str, str], list[LedgerLine]]()
    try:
        # Several data sets have a ledger each, whose ids differ from the joined one's.
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
    """Read an input of a conversion for the browser, which may show a part of it though picstore cannot.

    The ledger may come from a stranger: nothing outside of the folder is read. UsageError if there is no such picture.
    """
    media_type, _ = mimetypes.guess_type(name)
    try:
        path = (folder / name).resolve(strict=True)
        inside = path.is_relative_to(folder.resolve()) and path.is_file() and path.stat().st_size <= _MAX_INPUT
    except (OSError, ValueError):  # a loop of links, a zero byte
        inside = False
    if not inside or media_type is None or not media_type.startswith("image/"):
        raise UsageError(f"{folder} has no picture {name!r}")
    return Picture(media_type, path.read_bytes())


def _ledger(session: Session) -> LedgerSummary:
    return session.once("ledger", lambda: summarize_ledger(session.dataset))


def answer_ledger(session: Session, _: Query) -> dict[str, Any]:
    """The ledger by status and reason, with the positions of the examples that became records."""
    summary = _ledger(session)
    ids = [line.id for reason in summary.reasons for line in reason.examples]
    positions = dict(zip(ids, session.records.positions_of(ids), strict=True))
    told = asdict(summary)
    for reason in told["reasons"]:
        for line in reason["examples"]:
            line["position"] = positions[line["id"]]
    return told


def answer_input(session: Session, query: Query) -> Picture:
    """An input of the conversion that is in the ledger."""
    name = query.text("name")
    known = any(line.input == name for reason in _ledger(session).reasons for line in reason.examples)
    if session.inputs is None or not known:
        raise UsageError(f"the input {name!r} is not shown: give --inputs DIR, and one of the ledger's examples")
    return read_input(session.inputs, name)


JSON_ANSWERS: Mapping[str, Callable[[Session, Query], Any]] = {"/api/health/ledger": answer_ledger}
PICTURE_ANSWERS: Mapping[str, Callable[[Session, Query], Picture]] = {"/input": answer_input}
