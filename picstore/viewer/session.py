"""What a server holds: the data set, and what its pages share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from picstore.storage.dataset import Dataset
from picstore.viewer.kept import Kept
from picstore.viewer.records import Records

if TYPE_CHECKING:
    from picstore.viewer.comparison import Comparison
    from picstore.viewer.drawn import Drawn
    from picstore.viewer.ledger_summary import LedgerSummary
    from picstore.viewer.replay import Replay
    from picstore.viewer.verification import Verification

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Session:
    """A data set, its records by filter, and what is made when a page first asks for it.

    Attributes:
        recipe: as the command was given it, None for none.
        state: of a training's loader, None for none.
        inputs: folder of the inputs of the conversion, None where it was not given.
        other: the data set beside it, None for none.
    """

    records: Records
    recipe: str | None = None
    state: Mapping[str, Any] | None = None
    inputs: Path | None = None
    other: Session | None = None
    kept: Kept[Drawn] = field(default_factory=Kept)
    _made: dict[str, Any] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def dataset(self) -> Dataset:
        return self.records.dataset

    def replay(self) -> Replay:
        """Trainings on the data set, which need torch."""
        from picstore.viewer.replay import Replay

        return self._once("replay", lambda: Replay(self.dataset))

    def verification(self) -> Verification:
        """The verification of the data set."""
        from picstore.viewer.verification import Verification

        return self._once("verification", lambda: Verification(self.dataset))

    def ledger(self) -> LedgerSummary:
        """The ledger, read once."""
        from picstore.viewer.ledger_summary import summarize_ledger

        return self._once("ledger", lambda: summarize_ledger(self.dataset))

    def comparison(self, other: Session) -> Comparison:
        """Both data sets beside each other."""
        from picstore.viewer.comparison import Comparison

        return self._once("comparison", lambda: Comparison(self.records, other.records))

    def _once(self, name: str, make: Callable[[], T]) -> T:
        with self._lock:
            if name not in self._made:
                self._made[name] = make()
            made: T = self._made[name]
            return made
