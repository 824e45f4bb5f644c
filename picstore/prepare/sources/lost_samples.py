"""Damage in a file of samples: where reading ends, and how many samples after the damage are lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import PurePath
from statistics import median
from typing import Any, TypeVar

from picstore.errors import Damage, PicstoreError
from picstore.prepare.sources.inputs import Input
from picstore.prepare.sources.samples import SourceSample
from picstore.prepare.sources.source_file import file_version, printable
from picstore.storage.location.resolve import Location, Where, locate

# If more samples than this are missing from a file, one failing sample stands for all: listing a million took 20 s.
_MAX_MISSING = 1 << 16
T = TypeVar("T", bound="Input | SourceSample")


def end_at_damage(
    samples: Iterable[T],
    where: Where,
    name: str = "",
    *,
    count: int | None = None,
    first: int = 0,
    may_be_empty: bool = False,
    version: str | None = None,
) -> Iterator[T | SourceSample]:
    """Yield the samples of a file, then failing samples, whose ``problem`` says why, in place of lost ones.

    Each sample states the file's version, because another file may replace it before its images are read.

    Args:
        name: name of the file in the ledger; by default the file's own name.
        count: number of samples that the file or its index states. Each missing sample gives a failing sample, but more
            than ``_MAX_MISSING`` give one in all. If None, one failing sample stands for all, with their estimated
            number in ``lost``.
        first: number in the name of the file's first sample, from which missing samples are numbered.
        may_be_empty: whether a file without samples counts as undamaged.
        version: version of the file, if it was opened before; by default its current version.
    """
    file, found, problem, offset = locate(where), 0, "", 0
    version = file_version(file) if version is None else version
    try:
        for sample in samples:
            found += 1
            yield _of_version(sample, version)
    except Damage as error:
        problem, offset = describe_damage(error), error.offset
    if found == count:
        return
    name = name or printable(file.name)
    if count is not None and found < count:
        problem = problem or f"damaged: {found:,} samples are there, and {count:,} are stated"
        missing = range(found, count if count - found <= _MAX_MISSING else found)
        for number in missing:
            yield SourceSample(f"{name}/{first + number}", str(file), problem=problem)
        if missing:
            return
    if not found and not may_be_empty:
        problem = problem or "damaged: it holds no samples"
    if problem:
        lost = estimate_loss(file, found, offset) if count is None else max(1, count - found)
        yield SourceSample(name, str(file), problem=problem, lost=lost)


def _of_version(sample: T, version: str) -> T:
    attachments = sample.attachments
    if attachments:
        attachments = tuple(
            (name, replace(one, version=version) if one.path == sample.path else one) for name, one in attachments
        )
    if isinstance(sample, Input):
        return replace(sample, attachments=attachments, version=version)
    sample.attachments, sample.version = attachments, version
    return sample


def describe_damage(error: Damage) -> str:
    """Return the ``problem`` of a sample that cannot be read because of ``error``."""
    position = f" at byte {error.offset:,}" if error.offset else ""
    return f"damaged{position}: {error.what}"


def or_damaged(make: Callable[..., SourceSample], name: str, path: str, *arguments: Any) -> SourceSample:
    """Return ``make(*arguments)``; if this raises Damage, return a sample whose ``problem`` is the damage instead."""
    try:
        return make(*arguments)
    except Damage as error:
        return SourceSample(name, path, problem=describe_damage(error))


def estimate_loss(file: Location, found: int, offset: int) -> int:
    """Estimate the number of samples lost to damage at byte ``offset``, before which ``found`` samples were found.

    All samples are assumed to have the same size. If the file ends at ``offset``, the result is ``found``, because half
    of the samples of a file cut off anywhere are lost on average.
    """
    try:
        rest = file.size() - offset
    except PicstoreError:
        rest = 0
    return max(1, found * rest // offset if offset > 0 and rest > 0 else found)


def estimate_by_others(inputs: Sequence[Input]) -> dict[str, int]:
    """Estimate, by path, the number of samples that each damaged file lost.

    Each file is assumed to have had the median number of samples of the intact files with its suffix.
    """
    counts = Counter(one.path for one in inputs)
    damaged = {one.path: one.lost for one in inputs if one.lost}
    estimates: dict[str, int] = {}
    for path, lost in damaged.items():
        suffix = PurePath(path).suffix
        others = [count for other, count in counts.items() if other not in damaged and PurePath(other).suffix == suffix]
        estimates[path] = max(1, int(median(others)) - counts[path]) if others else lost
    return estimates
