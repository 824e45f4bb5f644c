"""Answers to requests of the page that compare two datasets, and the search for images that both datasets have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from picstore.cores import count_cores
from picstore.errors import UsageError
from picstore.prepare.upkeep.compare_datasets import compare_classes, compare_images, compare_qualities, compare_sizes
from picstore.prepare.upkeep.near_duplicates import DEFAULT_DISTANCE, MAX_DISTANCE, hash_images
from picstore.results import SharedImages
from picstore.storage.dataset import Dataset
from picstore.viewer import background
from picstore.viewer.background import Background
from picstore.viewer.queries import Query
from picstore.viewer.records import Records
from picstore.viewer.session import Session

_MAX_CLASSES = 1000
_MAX_PAIRS = 300


@dataclass(frozen=True, slots=True)
class Pair:
    """Image that both datasets have: its position and class name in each, and the number of hash bits that differ."""

    position: int
    other_position: int
    name: str
    other_name: str
    distance: int


@dataclass(frozen=True, slots=True)
class Report(background.Report):
    """Progress and result of the search for images that both datasets have.

    Attributes:
        shared, repeated, other_repeated: see :class:`picstore.results.SharedImages`.
        differing: number of pairs of images whose class names in the two datasets differ.
        pairs: at most 300 pairs of images, first pairs of differing classes, then the other pairs, each by distance.
    """

    shared: int = 0
    repeated: int = 0
    other_repeated: int = 0
    differing: int = 0
    pairs: tuple[Pair, ...] = ()


class Comparison(Background[Report]):
    """Two datasets to compare, and the search for images that both have; threads may share this object."""

    def __init__(self, one: Records, other: Records) -> None:
        super().__init__("search", Report())
        self._sides = one, other

    @property
    def datasets(self) -> tuple[Dataset, Dataset]:
        """First and second dataset."""
        one, other = self._sides
        return one.dataset, other.dataset

    def classes(self) -> dict[str, Any]:
        """Return up to 1,000 classes whose fractions of images differ most, and counts of classes in both or in one."""
        one, other = self.datasets
        counted = [each for each in compare_classes(one, other) if each.images or each.other_images]

        def apart(images: int, other_images: int) -> float:
            return abs(images / max(1, len(one)) - other_images / max(1, len(other)))

        shown = sorted(counted, key=lambda each: -apart(each.images, each.other_images))[:_MAX_CLASSES]
        both = [each for each in counted if each.images and each.other_images]
        return {
            "rows": [asdict(each) for each in shown],
            "left": len(counted) - len(shown),
            "both": len(both),
            "only": sum(not each.other_images for each in counted),
            "other_only": sum(not each.images for each in counted),
            "renumbered": sum(each.label != each.other_label for each in both),
        }

    def sizes(self) -> list[dict[str, Any]]:
        """Return the distributions of image width, height, bytes and chroma sampling in both datasets."""
        return [asdict(each) for each in compare_sizes(*self.datasets)]

    def quality(self) -> dict[str, Any]:
        """Return the number of images of each JPEG quality, in a sample of each dataset."""
        return asdict(compare_qualities(*self.datasets))

    def start(self, *, distance: int) -> Report:
        """Begin to search in a thread for images that both datasets have; raise UsageError if a search is running."""
        return self.begin(Report(), lambda: self._search(distance))

    def set_total(self, total: int, done: int) -> None:
        """Do nothing: the work would set the number of records of one dataset, but the page shows the sum of both."""

    def _search(self, distance: int) -> dict[str, Any]:
        total = sum(map(len, self.datasets))
        super().set_total(total, 0)
        hashed = [hash_images(each, workers=count_cores(), progress=self) for each in self.datasets]
        found = compare_images(*hashed, distance=distance)
        pairs = self._pairs(found)
        return {
            "total": total,
            "done": total,
            "shared": found.shared,
            "repeated": found.repeated,
            "other_repeated": found.other_repeated,
            "differing": sum(pair.name != pair.other_name for pair in pairs),
            "pairs": tuple(pairs[:_MAX_PAIRS]),
        }

    def _pairs(self, found: SharedImages) -> list[Pair]:
        apart = [(each.id, group.id, each.distance) for group in found.groups for each in group.duplicates]
        if not apart:
            return []
        ids, other_ids, distances = map(list, zip(*apart, strict=True))
        mine, theirs = (
            list(zip(positions := side.positions_of(each), side.class_names(positions), strict=True))
            for side, each in zip(self._sides, (ids, other_ids), strict=True)
        )
        pairs = [
            Pair(position, other_position, name, other_name, distance)
            for (position, name), (other_position, other_name), distance in zip(mine, theirs, distances, strict=True)
        ]
        return sorted(pairs, key=lambda pair: (pair.name == pair.other_name, pair.distance, pair.position))


def _comparison(session: Session) -> Comparison:
    if session.other is None:
        raise UsageError(f"only {session.dataset.path} is shown; write picstore view DATASET OTHER")
    other = session.other.records
    return session.once("comparison", lambda: Comparison(session.records, other))


JSON_ANSWERS: Mapping[str, Callable[[Session, Query], Any]] = {
    "/api/compare/classes": lambda session, _: _comparison(session).classes(),
    "/api/compare/sizes": lambda session, _: _comparison(session).sizes(),
    "/api/compare/quality": lambda session, _: _comparison(session).quality(),
    "/api/compare/search": lambda session, _: _comparison(session).report,
}
POST_ANSWERS: Mapping[str, Callable[[Session, Query], Any]] = {
    "/api/compare/start": lambda session, query: _comparison(session).start(
        distance=query.integer("distance", DEFAULT_DISTANCE, most=MAX_DISTANCE)
    ),
    "/api/compare/cancel": lambda session, _: _comparison(session).cancel(),
}
