"""``functools.cached_property`` without its lock.

Before Python 3.12 that is one lock for all instances of a class: threads that work on different batches wait for each
other, and a process that is forked while one of them holds it waits for ever. A value may be computed twice here, by
two threads at once, and is the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from functools import cached_property
else:

    class cached_property:  # noqa: N801 - the name of what it replaces
        """A property that is computed once for an instance, which must have a ``__dict__``."""

        def __init__(self, compute):
            self._compute = compute
            self.__doc__ = compute.__doc__

        def __set_name__(self, owner, name):
            self._name = name

        def __get__(self, instance, owner=None):
            if instance is None:
                return self
            value = self._compute(instance)
            instance.__dict__[self._name] = value  # which is found before this descriptor from now on
            return value


__all__ = ["cached_property"]
