"""Verification from the page: one at a time, in the background, with its progress; it can be cancelled."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from typing import Any

from picstore.cores import count_cores
from picstore.errors import PicstoreError, UsageError
from picstore.prepare.upkeep.verify import Finding, verify
from picstore.storage.dataset import Dataset

IDLE, RUNNING, DONE, CANCELLED, FAILED = "idle", "running", "done", "cancelled", "failed"


@dataclass(frozen=True, slots=True)
class Report:
    """How far a verification is, and what it found.

    Attributes:
        total, done: records.
        problem: why it failed.
        verified: uuid of the version that was read.
    """

    state: str = IDLE
    decode: bool = False
    total: int = 0
    done: int = 0
    findings: list[Finding] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    problem: str = ""
    verified: str = ""


class _Cancelled(PicstoreError):
    """Ends the processes of a verification."""


class Verification:
    """The verification of a data set; threads may share it."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._lock = threading.Lock()
        self._report = Report()
        self._cancel = threading.Event()

    @property
    def report(self) -> Report:
        """Its state now."""
        with self._lock:
            return self._report

    def start(self, *, decode: bool) -> None:
        """Begin in the background; UsageError while one runs."""
        with self._lock:
            if self._report.state == RUNNING:
                raise UsageError("a verification runs already; cancel it before another one")
            self._report = Report(RUNNING, decode)
            self._cancel.clear()
        threading.Thread(target=self._run, args=(decode,), daemon=True).start()

    def cancel(self) -> None:
        """Make it end within a moment; nothing happens where none runs."""
        self._cancel.set()

    def begin_stage(self, stage: str) -> None:
        """Do nothing; called by :func:`verify`."""

    def set_total(self, total: int, done: int) -> None:
        """Note the number of records; called by :func:`verify`."""
        self._set(total=total, done=done)

    def advance(self, count: int) -> None:
        """Count records; called by :func:`verify`."""
        if self._cancel.is_set():
            raise _Cancelled("cancelled")
        self._set(done=self.report.done + count)

    def _run(self, decode: bool) -> None:
        try:
            found = verify(
                self._dataset.path,
                root=self._dataset.references,
                decode=decode,
                workers=count_cores(),
                progress=self,
            )
        except _Cancelled:
            self._set(state=CANCELLED)
        except (PicstoreError, OSError) as error:
            self._set(state=FAILED, problem=str(error))
        else:
            total = found.manifest.images
            self._set(
                state=DONE,
                done=total,
                total=total,
                findings=found.findings,
                remarks=found.remarks,
                verified=found.manifest.uuid,
            )

    def _set(self, **changes: Any) -> None:
        with self._lock:
            self._report = replace(self._report, **changes)
