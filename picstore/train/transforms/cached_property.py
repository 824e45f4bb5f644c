"""``functools.cached_property`` without a lock.

Before Python 3.12 the standard class has a lock for all instances: threads on different batches wait for each other,
and a process forked while the lock is held deadlocks. Without a lock, two threads may compute the same value twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from functools import cached_property
else:

    class cached_property:  # noqa: N801 - the standard name
        """Property computed once for each instance, which must have a ``__dict__``."""

        def __init__(self, compute):
            self._compute = compute
            self.__doc__ = compute.__doc__

        def __set_name__(self, owner, name):
            self._name = name

        def __get__(self, instance, owner=None):
            if instance is None:
                return self
            value = self._compute(instance)
            # Python finds this attribute of the instance before the descriptor, so ``__get__`` is not called again.
            instance.__dict__[self._name] = value
            return value


__all__ = ["cached_property"]
