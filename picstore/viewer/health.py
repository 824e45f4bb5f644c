"""Answers to requests about a dataset's health: its files and containers, and its verification in the background."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from picstore.cores import count_cores
from picstore.errors import UsageError
from picstore.prepare.upkeep.verify_dataset import verify
from picstore.results import DamagedPlace
from picstore.storage.dataset import Dataset
from picstore.storage.location.resolve import Location, file_name
from picstore.viewer import background
from picstore.viewer.background import Background
from picstore.viewer.queries import Query
from picstore.viewer.session import Session

_MAX_FILES = 20_000


@dataclass(frozen=True, slots=True)
class Report(background.Report):
    """Progress and result of a verification.

    Attributes:
        decode: whether images are decoded too.
        verified: UUID of the verified version of the dataset; an empty string until the verification has ended.
    """

    decode: bool = False
    findings: list[DamagedPlace] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    verified: str = ""


class Verification(Background[Report]):
    """Verification of a dataset in the background; threads may share this object."""

    def __init__(self, dataset: Dataset) -> None:
        super().__init__("verification", Report())
        self._dataset = dataset

    def start(self, *, decode: bool) -> Report:
        """Begin to verify in a thread; raise UsageError if a verification is running or if datasets are joined."""
        path = self._dataset.path
        if not isinstance(path, Location):
            raise UsageError(f"{path} are several datasets that are read as one; verify each with `picstore verify`")
        return self.begin(Report(decode=decode), lambda: self._verify(path, decode))

    def _verify(self, path: Location, decode: bool) -> dict[str, Any]:
        found = verify(
            path,
            root=self._dataset.references,
            decode=decode,
            workers=count_cores(),
            progress=self,
        )
        total = found.manifest.images
        told = {"findings": found.findings, "remarks": found.remarks, "verified": found.manifest.uuid}
        return {"done": total, "total": total, **told}


def answer_map(session: Session, _: Query) -> dict[str, Any]:
    """Return the dataset's first 20,000 files, the number of further files, and whether ``--inputs`` was given."""
    rows, entries = session.dataset.rows, session.dataset.manifest.files
    keys, counts = np.unique(rows["stream"].astype(np.int64) << 32 | rows["file"], return_counts=True)
    containers = dict(zip(keys.tolist(), counts.tolist(), strict=True))
    shown = sorted(entries, key=lambda entry: (entry.stream, entry.file))[:_MAX_FILES]
    files = [
        {
            "name": file_name(entry.stream, entry.file),
            "stream": entry.stream,
            "file": entry.file,
            "bytes": entry.bytes,
            "records": entry.records,
            "containers": containers.get(entry.stream << 32 | entry.file, 0),
        }
        for entry in shown
    ]
    return {"files": files, "left": len(entries) - len(files), "inputs": session.inputs is not None}


def answer_file(session: Session, query: Query) -> list[dict[str, int]]:
    """Return the containers of the requested file in stored order, each with the position of its first live record."""
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


def _verification(session: Session) -> Verification:
    return session.once("verification", lambda: Verification(session.dataset))


JSON_ANSWERS: Mapping[str, Callable[[Session, Query], Any]] = {
    "/api/health": answer_map,
    "/api/health/file": answer_file,
    "/api/health/verification": lambda session, _: _verification(session).report,
}
POST_ANSWERS: Mapping[str, Callable[[Session, Query], Any]] = {
    "/api/health/verify": lambda session, query: _verification(session).start(decode=query.text("decode") == "true"),
    "/api/health/cancel": lambda session, _: _verification(session).cancel(),
}
