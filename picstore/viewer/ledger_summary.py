"""The ledger of a conversion, summed up by status and reason, with examples of each."""

from __future__ import annotations

import logging
import mimetypes
from dataclasses import dataclass, replace
from pathlib import Path

from picstore.errors import NotADataset, UsageError
from picstore.prepare.convert.ledger import LedgerLine, Tally, read_lines
from picstore.storage.dataset import Dataset
from picstore.storage.joined_reader import JoinedFolders
from picstore.storage.location.resolve import LEDGER
from picstore.viewer.images import Picture

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
