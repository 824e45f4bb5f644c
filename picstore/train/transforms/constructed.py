"""Objects whose repr is the call that made them, and which are equal if they were made by equal calls."""

from __future__ import annotations

import functools
import inspect
import math
import os
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from picstore.errors import UsageError

_LONG = 1000  # largest number of values of an array that a repr shows; of larger arrays, it shows dtype and shape
_SHOWN = 300  # number of characters after which an error message cuts off the repr of the transform


class Constructed:
    """Base of transforms and loaders, whose repr is the call that made them: ``eval(repr(x))`` makes an equal object.

    The repr shows arrays and tensors as lists, enumerations as values, and functions by name.
    """

    _given: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
    _shown = ""  # the repr if this is a pickled copy, which lacks the constructor's arguments; else ""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__init__" in cls.__dict__:
            cls.__init__ = _noting(cls.__init__)  # type: ignore[method-assign]

    def __repr__(self) -> str:
        if self._shown:
            return self._shown
        cls = type(self)
        shown = []
        for name, value in self._arguments().items():
            parameter = inspect.signature(cls).parameters[name]
            if parameter.kind is parameter.VAR_KEYWORD:
                names = all(key.isidentifier() for key in value)
                shown += [f"{key}={show(each)}" for key, each in value.items()] if names else [f"**{show(value)}"]
            elif parameter.default is parameter.empty and parameter.kind is not parameter.KEYWORD_ONLY:
                shown.append(show(value))
            elif parameter.default is parameter.empty or show(value) != show(parameter.default):
                shown.append(f"{name}={show(value)}")
        return f"{cls.__name__}({', '.join(shown)})"

    def _arguments(self) -> dict[str, Any]:
        args, options = self._given
        bound = inspect.signature(type(self)).bind(*args, **options)
        bound.apply_defaults()
        return bound.arguments


class Value(Constructed):
    """Base of transforms: two of the same class are equal if their constructors got equal arguments."""

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self is other or self._arguments() == other._arguments()

    def __hash__(self) -> int:
        return hash(repr(self))


def _noting(init: Callable[..., None]) -> Callable[..., None]:
    """Wrap an ``__init__`` so that the object keeps the user's arguments, not those passed on to a base's ``__init__``.

    A :class:`Value` whose constructor fails because of an argument's value or type raises UsageError.
    """
    signature = inspect.signature(init)

    @functools.wraps(init)
    def construct(self: Constructed, *args: Any, **options: Any) -> None:
        if "_given" in self.__dict__:
            init(self, *args, **options)
            return
        self._given = tuple(map(_plain, args)), {name: _plain(value) for name, value in options.items()}
        try:
            init(self, *args, **options)
        except (TypeError, ValueError, RuntimeError) as error:  # torch's functions raise RuntimeError.
            if not isinstance(self, Value):
                raise
            # Raise the TypeError itself if the arguments do not fit the signature, as for any Python function.
            try:
                signature.bind(self, *args, **options)
            except TypeError:
                raise error from None
            call = repr(self)
            shown = call if len(call) <= _SHOWN else f"{call[:_SHOWN]}…"
            raise UsageError(f"{shown} is not possible: {error}") from error

    return construct


class _Summary(str):
    """Description of a large array, shown in a repr in place of the array, without quotes."""

    def __repr__(self) -> str:
        return str(self)


def _plain(value: Any) -> Any:
    """Convert an argument to numbers, strings, lists and tuples of Python if possible; copy lists and dicts."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return type(value)(map(_plain, value))
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if callable(getattr(value, "tolist", None)) and hasattr(value, "shape"):  # an array or a tensor
        if math.prod(value.shape) > _LONG:
            return _Summary(f"<{value.dtype} {tuple(value.shape)}>")
        return value.tolist()
    return value


def show(value: Any) -> str:
    """Format an argument of a constructor as Python code, for a repr."""
    if type(value) in (list, tuple):
        inner = ", ".join(map(show, value)) + "," * (len(value) == 1 and type(value) is tuple)
        return f"[{inner}]" if type(value) is list else f"({inner})"
    if type(value) is dict:
        return "{" + ", ".join(f"{show(key)}: {show(each)}" for key, each in value.items()) + "}"
    if inspect.isroutine(value) or inspect.isclass(value):
        recipe = "recipes." if value.__module__ == "picstore.recipes" else ""
        return f"{recipe}{value.__qualname__}"
    if isinstance(value, float) and not math.isfinite(value):
        return f"float({str(value)!r})"
    if isinstance(value, os.PathLike):
        return repr(os.fspath(value))
    if type(value).__module__ == "torch" and type(value).__name__ in ("dtype", "memory_format", "device"):
        return repr(str(value).removeprefix("torch."))
    described = getattr(value, "describe_opening", None)  # method of a Dataset that returns the call that opens it
    return described() if callable(described) else repr(value)
