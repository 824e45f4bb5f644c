"""The pipelines of the spans that a loader's process makes, one after the other."""

from __future__ import annotations

from collections.abc import Iterator

from picstore.train.batching.host_batch import HostBatch
from picstore.train.batching.spec import PipelineSpec
from picstore.train.buffers import BufferPools
from picstore.train.order.requests import BatchRequest
from picstore.train.order.spans import Span
from picstore.train.pipeline.batch_threads import Pipeline
from picstore.train.pipeline.stats import StatsCounter


class SpanPipelines:
    """Makes the batches of spans, by a pipeline each.

    A pipeline starts once the one before has asked for all of its containers, while that still fills batches: the first
    batch of a span needs a container of each lane. So both hold containers, each within the budget, for a moment.
    """

    def __init__(
        self, spans: Iterator[Span], spec: PipelineSpec, *, buffers: BufferPools, counter: StatsCounter
    ) -> None:
        self._spans, self._spec, self._buffers, self._counter = spans, spec, buffers, counter
        self._current = self._make_next()
        self._next: _SpanPipeline | None = None

    def start(self) -> None:
        """Start the first pipeline."""
        if self._current is not None:
            self._current.pipeline.start()

    def receive(self) -> HostBatch | None:
        """Return the next batch, None at the end; raises as :meth:`Pipeline.receive` does."""
        while self._current is not None:
            if self._next is None and self._current.requests.ended:
                self._next = self._make_next()
                if self._next is not None:
                    self._next.pipeline.start()
            batch = self._current.pipeline.receive()
            if batch is not None:
                return batch
            self._current.pipeline.close()
            self._current, self._next = self._next or self._make_next(), None
        return None

    def close(self) -> None:
        """End all threads."""
        for each in (self._current, self._next):
            if each is not None:
                each.pipeline.close()

    def _make_next(self) -> _SpanPipeline | None:
        span = next(self._spans, None)
        return None if span is None else _SpanPipeline(span, self._spec, self._buffers, self._counter)


class _SpanPipeline:
    """The pipeline of a span, and its requests."""

    def __init__(self, span: Span, spec: PipelineSpec, buffers: BufferPools, counter: StatsCounter) -> None:
        self.requests = _Requests(span(spec.sources))
        self.pipeline = Pipeline(self.requests, spec, buffers=buffers, counter=counter)


class _Requests(Iterator[BatchRequest]):
    """Requests, which note that all of them were drawn."""

    def __init__(self, requests: Iterator[BatchRequest]) -> None:
        self._requests = requests
        self.ended = False

    def __next__(self) -> BatchRequest:
        try:
            return next(self._requests)
        except StopIteration:
            self.ended = True
            raise
