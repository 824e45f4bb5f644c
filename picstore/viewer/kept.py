"""Results that several requests share: the images of a batch are asked for one by one."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")

_KEPT = 4  # sets of images, 100 MB each at most


class Kept(Generic[T]):
    """The last results, by what they were asked for; one is made at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, T] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what is kept for a key, or make it."""
        with self._lock:
            if key not in self._kept:
                self._kept[key] = make()
                while len(self._kept) > _KEPT:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(key)
            return self._kept[key]
