"""Answers about two data sets beside each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from picstore.errors import UsageError
from picstore.prepare.upkeep.hamming import MAX_DISTANCE
from picstore.prepare.upkeep.near_duplicates import DEFAULT_DISTANCE
from picstore.viewer.comparison import Comparison
from picstore.viewer.queries import Query
from picstore.viewer.session import Session


def _comparison(session: Session) -> Comparison:
    if session.other is None:
        raise UsageError(f"{session.dataset.path} alone is shown; write picstore view DATASET OTHER")
    return session.comparison(session.other)


def start_search(session: Session, query: Query) -> Any:
    """Begin to look for images that both have."""
    search = _comparison(session)
    search.start(distance=query.integer("distance", DEFAULT_DISTANCE, most=MAX_DISTANCE))
    return search.report


def cancel_search(session: Session, _: Query) -> Any:
    """End the search."""
    search = _comparison(session)
    search.cancel()
    return search.report


JSON_ANSWERS: Mapping[str, Callable[[Session, Query], Any]] = {
    "/api/compare/classes": lambda session, _: _comparison(session).classes(),
    "/api/compare/sizes": lambda session, _: _comparison(session).sizes(),
    "/api/compare/quality": lambda session, _: _comparison(session).quality(),
    "/api/compare/search": lambda session, _: _comparison(session).report,
}
POST_ANSWERS: Mapping[str, Callable[[Session, Query], Any]] = {
    "/api/compare/start": start_search,
    "/api/compare/cancel": cancel_search,
}
