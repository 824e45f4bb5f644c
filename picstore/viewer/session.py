"""State that the requests of a page share: the dataset, objects that are created once, and recent results."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from picstore.storage.dataset import Dataset
from picstore.viewer.queries import Query
from picstore.viewer.records import Records

if TYPE_CHECKING:
    from picstore.viewer.drawn import Drawn

T = TypeVar("T")

_KEPT = 4  # Number of results that a ``Kept`` keeps; the drawn images of a result take at most 100 MB.


class Kept(Generic[T]):
    """Cache of recent results by request, because the page requests the images of a result one by one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, T] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the result kept under ``key``, or compute it by ``make``; only one thread computes at a time."""
        with self._lock:
            if key not in self._kept:
                self._kept[key] = make()
                while len(self._kept) > _KEPT:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(key)
            return self._kept[key]


@dataclass(frozen=True, slots=True)
class Session:
    """Dataset of a page, with objects that are created when a request first needs them.

    Attributes:
        recipe: value of ``--recipe``; None if it was not given.
        state: state of a training run's Loader; None if it was not given.
        inputs: folder of the converted inputs; None if it was not given.
        other: session of the second dataset; None if there is only one.
        kept: images of the recipes and batches requested last.
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

    def position(self, query: Query) -> int:
        """Return the parameter ``position`` of a request: a record's position in the dataset."""
        return query.integer("position", most=len(self.dataset) - 1)

    def once(self, name: str, make: Callable[[], T]) -> T:
        """Return the object called ``name``, which the first call with this name creates by ``make``."""
        with self._lock:
            if name not in self._made:
                self._made[name] = make()
            made: T = self._made[name]
            return made
