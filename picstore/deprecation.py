"""Deprecation: what is going to leave still works for two minor versions, and says what to write instead.

``docs/compatibility.md`` promises this for the stable public names. ``tests/test_deprecation.py`` fails once a version
is reached in which a deprecated thing should have left.
"""

from __future__ import annotations

import warnings

MINOR_VERSIONS = 2  # that warn


def removal(since: str) -> str:
    """The version without the deprecated thing: ``"0.4"`` for ``"0.2"``."""
    major, minor = since.split(".")
    return f"{major}.{int(minor) + MINOR_VERSIONS}"


def deprecation(what: str, *, since: str, instead: str) -> str:
    """Word a deprecation; verbs print it to stderr for an option.

    Args:
        what: the name as users write it, such as ``Loader(budget=...)``.
        since: the first version that warns, such as ``"0.2"``.
        instead: an imperative, such as ``give memory=``.
    """
    return f"{what} is deprecated since picstore {since} and leaves with {removal(since)}; {instead}"


def warn_deprecated(what: str, *, since: str, instead: str) -> None:
    """Warn the caller of the function that calls this, once a line, as Python does; arguments: see `deprecation`."""
    warnings.warn(deprecation(what, since=since, instead=instead), DeprecationWarning, stacklevel=3)
