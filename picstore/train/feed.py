"""A feed: all that it takes to turn requests into batches in CPU memory, in this process or in another.

It can be pickled, and so can what makes its requests: ``isolate`` runs the same feed in a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from picstore.errors import Damage
from picstore.train.batch import Form
from picstore.train.damage import replace_lost
from picstore.train.draft import Source
from picstore.train.memory import Memory
from picstore.train.pipeline import Filled, Limits, Pipeline, Request
from picstore.train.stats import Counters

MakeRequests: TypeAlias = Callable[[Sequence[Source]], Iterator[Request]]


@dataclass(frozen=True, slots=True)
class Feed:
    """What batches are made of and how.

    Attributes:
        sources: the data sets.
        form: of the batches.
        limits: threads and bytes.
        strict: stop at the first damaged record instead of replacing it.
    """

    sources: tuple[Source, ...]
    form: Form
    limits: Limits
    strict: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Ready:
    """A finished batch in CPU memory; the fields are those of ``Batch``, and what was lost and replaced."""

    images: torch.Tensor | list[torch.Tensor]
    labels: torch.Tensor
    ids: torch.Tensor
    targets: list[dict[str, Any]] | None
    lost: list[Damage]


def run(feed: Feed, requests: MakeRequests, *, memory: Memory, counters: Counters) -> Generator[Ready]:
    """Make batches with threads of this process; closing the generator ends them.

    Raises:
        Damage: a record is damaged and the feed is strict, or nothing of a source is left in a batch.
    """
    pipeline = Pipeline(
        requests(feed.sources),
        sources=feed.sources,
        form=feed.form,
        limits=feed.limits,
        memory=memory,
        counters=counters,
    )
    try:
        for filled in pipeline:
            yield _settle(filled, strict=feed.strict)
    finally:
        pipeline.close()


def _settle(filled: Filled, *, strict: bool) -> Ready:
    """Wait for a batch and deal with its lost records."""
    problems = filled.wait()
    draft, pixels = filled.draft, filled.pixels
    lost = [*draft.lost, *problems.values()]
    if lost and strict:
        raise lost[0]
    replace_lost(draft, pixels, problems)
    return Ready(pixels.images, torch.from_numpy(draft.labels), torch.from_numpy(draft.ids), pixels.targets, lost)
