"""Verification from the page."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from picstore.cores import count_cores
from picstore.errors import UsageError
from picstore.prepare.upkeep.verify_dataset import Finding, verify
from picstore.storage.dataset import Dataset
from picstore.storage.location.resolve import Location
from picstore.viewer import background
from picstore.viewer.background import Background


@dataclass(frozen=True, slots=True)
class Report(background.Report):
    """How far a verification is, and what it found.

    Attributes:
        verified: uuid of the version that was read.
    """

    decode: bool = False
    findings: list[Finding] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    verified: str = ""


class Verification(Background[Report]):
    """The verification of a data set; threads may share it."""

    def __init__(self, dataset: Dataset) -> None:
        super().__init__("verification", Report())
        self._dataset = dataset

    def start(self, *, decode: bool) -> None:
        """Begin in the background; UsageError while one runs, or if several data sets are shown as one."""
        path = self._dataset.path
        if not isinstance(path, Location):
            raise UsageError(f"{path} are several data sets that are read as one; verify each by `picstore verify`")
        self.begin(Report(decode=decode), lambda: self._verify(path, decode))

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
