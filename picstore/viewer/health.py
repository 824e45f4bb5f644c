"""Answers about the health of a data set: its files and containers, its verification, its ledger."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from picstore.errors import UsageError
from picstore.storage.dataset import Dataset
from picstore.storage.location.resolve import file_name
from picstore.viewer.images import Picture
from picstore.viewer.ledger_summary import read_input
from picstore.viewer.queries import Query
from picstore.viewer.session import Session

_MAX_FILES = 20_000


@dataclass(frozen=True, slots=True)
class FileOnMap:
    """A file of the data set."""

    name: str
    stream: int
    file: int
    bytes: int
    records: int
    containers: int


def list_files(dataset: Dataset) -> list[FileOnMap]:
    """List the files by stream and number, at most 20,000."""
    rows = dataset.rows
    keys, counts = np.unique(rows["stream"].astype(np.int64) << 32 | rows["file"], return_counts=True)
    containers = dict(zip(keys.tolist(), counts.tolist(), strict=True))
    entries = sorted(dataset.manifest.files, key=lambda entry: (entry.stream, entry.file))
    return [
        FileOnMap(
            file_name(entry.stream, entry.file),
            entry.stream,
            entry.file,
            entry.bytes,
            entry.records,
            containers.get(entry.stream << 32 | entry.file, 0),
        )
        for entry in entries[:_MAX_FILES]
    ]


def answer_map(session: Session, _: Query) -> dict[str, Any]:
    """The files, the number of files left out, and whether inputs can be shown."""
    files = list_files(session.dataset)
    left = len(session.dataset.manifest.files) - len(files)
    return {"files": [asdict(each) for each in files], "left": left, "inputs": session.inputs is not None}


def answer_file(session: Session, query: Query) -> list[dict[str, int]]:
    """The containers of a file in their order: offset, size, records, and the position of the first live one."""
    rows, live = session.dataset.rows, session.dataset.live
    stream, file = query.integer("stream"), query.integer("file")
    mine = np.flatnonzero((rows["stream"] == stream) & (rows["file"] == file))
    firsts = np.concatenate(([0], np.cumsum(live.counts)))
    return [
        {
            "number": number,
            "offset": int(rows["offset"][number]),
            "size": int(rows["size"][number]),
            "records": int(rows["records"][number]),
            "position": int(firsts[number]),
        }
        for number in mine[np.argsort(rows["offset"][mine])].tolist()
    ]


def answer_ledger(session: Session, _: Query) -> dict[str, Any]:
    """The ledger by status and reason, with the positions of the examples that became records."""
    summary = session.ledger()
    ids = [line.id for reason in summary.reasons for line in reason.examples]
    positions = dict(zip(ids, session.records.positions_of(ids), strict=True))
    told = asdict(summary)
    for reason in told["reasons"]:
        for line in reason["examples"]:
            line["position"] = positions[line["id"]]
    return told


def answer_verification(session: Session, _: Query) -> Any:
    """How far the verification is."""
    return session.verification().report


def start_verification(session: Session, query: Query) -> Any:
    """Begin to verify."""
    session.verification().start(decode=query.text("decode") == "true")
    return session.verification().report


def cancel_verification(session: Session, _: Query) -> Any:
    """End the verification."""
    session.verification().cancel()
    return session.verification().report


def answer_input(session: Session, query: Query) -> Picture:
    """An input of the conversion that is in the ledger."""
    name = query.text("name")
    known = any(line.input == name for reason in session.ledger().reasons for line in reason.examples)
    if session.inputs is None or not known:
        raise UsageError(f"the input {name!r} is not shown: give --inputs DIR, and one of the ledger's examples")
    return read_input(session.inputs, name)


JSON_ANSWERS: Mapping[str, Callable[[Session, Query], Any]] = {
    "/api/health": answer_map,
    "/api/health/file": answer_file,
    "/api/health/ledger": answer_ledger,
    "/api/health/verification": answer_verification,
}
POST_ANSWERS: Mapping[str, Callable[[Session, Query], Any]] = {
    "/api/health/verify": start_verification,
    "/api/health/cancel": cancel_verification,
}
PICTURE_ANSWERS: Mapping[str, Callable[[Session, Query], Picture]] = {"/input": answer_input}
