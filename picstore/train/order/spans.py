"""Spans: runs of steps of an order that one worker makes by itself, and the length of spans.

A span begins and ends in the middle of the containers that its lanes read, so that two workers read these containers.
If each lane of a span takes m records from containers of c records, (c - 1) / m of the bytes are read in addition: a
quarter if m is 4 c. All containers end where an epoch ends, so epochs are divided into equal spans.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from picstore.train.order.requests import BatchRequest, Order, TrainingSource

# All spans of a sequence of batches together read at most this many times the bytes that the undivided sequence reads.
MAX_READ = 1.25


@dataclass(frozen=True, slots=True)
class Span:
    """Range of training steps, one batch each, from batch ``first`` of ``epoch`` on; calling it yields batch requests.

    Attributes:
        step: distance between two batches of a DataLoader's worker; 0 in other processes.
        count: number of steps; None if the span has no end.
    """

    order: Order
    epoch: int
    first: int = 0
    step: int = 0
    count: int | None = None

    def __call__(self, sources: Sequence[TrainingSource]) -> Iterator[BatchRequest]:
        requests = self.order.requests(sources, epoch=self.epoch, first=self.first, step=self.step)
        return islice(requests, self.count)

    def after(self, steps: int) -> Span:
        """Return the rest of the span after ``steps`` steps, which must lie in one epoch."""
        left = None if self.count is None else self.count - steps
        return replace(self, first=self.first + steps, count=left)

    def cut(self, steps: int) -> tuple[Span, Span]:
        """Divide a span without end into a span of about ``steps`` steps in one epoch and the rest; return both."""
        length = self.order.length(self.epoch)
        if length is None:
            return replace(self, count=steps), self.after(steps)
        left = length - self.first
        if left <= 0:
            return replace(self, epoch=self.epoch + 1, first=0).cut(steps)
        count = -(-left // max(1, (left + steps // 2) // steps))
        rest = self.after(count) if count < left else replace(self, epoch=self.epoch + 1, first=0)
        return replace(self, count=count), rest


@dataclass(slots=True)
class SpanCutter:
    """Cutter of endless training steps into spans; the first are shorter, so that workers end at different times."""

    rest: Span
    cuts: int = 0

    def cut(self, steps: int, workers: int) -> Span:
        """Cut off and return the next span: about ``steps`` steps, or fewer until each worker has had a span."""
        self.cuts += 1
        span, self.rest = self.rest.cut(max(1, steps * min(self.cuts, workers) // workers))
        return span


@dataclass(frozen=True, slots=True)
class DealtSpans:
    """Endless span of training steps, cut into spans of ``steps`` steps for workers in turn; not cut for one worker."""

    whole: Span
    steps: int
    workers: int

    def __iter__(self) -> Iterator[Span]:
        if self.workers == 1:
            yield self.whole
            return
        cutter = SpanCutter(self.whole)
        while True:
            yield cutter.cut(self.steps, self.workers)

    def of_worker(self, number: int) -> Iterator[Span]:
        return islice(self, number, None, self.workers)


def steps_of_span(span: Span, sources: Sequence[TrainingSource]) -> tuple[int, float]:
    """Return the least length of spans, in steps, that keeps reads within ``MAX_READ``; and a step's stored bytes."""
    request = next(iter(span(sources)))
    lanes = span.order.lanes_read / len(sources)
    opened = taken = 0.0
    for source in {wanted.source for wanted in request}:
        dataset = sources[source].dataset
        size = float((dataset.rows["size"] + dataset.rows["referenced"]).sum())
        samples = sum(len(wanted.samples) for wanted in request if wanted.source == source)
        opened += lanes * size / len(dataset.rows)
        taken += samples * size / len(dataset)
    return max(1, math.ceil(opened / taken / (MAX_READ - 1))), taken
