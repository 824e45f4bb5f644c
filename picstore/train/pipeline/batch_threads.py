"""The threads that make batches in CPU memory: Pipeline turns requests into HostBatches, in order.

    planner thread            reader threads       decoding threads          consumer
    request ────────────────→ read, check CRC
            records ←──────── containers      ───→ decode, resample a chunk
            batches being filled                          last chunk: replace damage, collate ──→ receive: wait

The planner runs a few batches ahead of the consumer, holds containers within a budget of bytes, and stops if the
consumer is slow. No thread polls: each waits for a batch, for a free slot in the queue or for a container.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, Future, InvalidStateError, wait
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue

import numpy as np

from picstore.arrays import I64
from picstore.errors import Damage
from picstore.train.batching.columns_and_collate import look_up_columns, run_collate
from picstore.train.batching.damage import replace_damaged
from picstore.train.batching.gather import BatchRecords, EpochContainer, ReadContainers, ReadResult, gather_records
from picstore.train.batching.host_batch import BatchFiller, HostBatch
from picstore.train.batching.parameters import make_params
from picstore.train.batching.spec import PipelineSpec
from picstore.train.buffers import BufferPools
from picstore.train.order.epoch_order import SET_ASIDE
from picstore.train.order.requests import BatchRequest
from picstore.train.pipeline.batch_forms import FORMS
from picstore.train.pipeline.own_threads import PREFIX, FillingBatch, ThreadPool, close_at_exit, is_own_thread
from picstore.train.pipeline.prefetch import ContainerKey, ContainerUse, Prefetcher, container_uses, read_containers
from picstore.train.pipeline.stats import StatsCounter

AHEAD = 3  # Maximum number of batches, filled or being filled, that the consumer has not taken.
# Maximum number of batches after the first AHEAD whose containers are read early, if the budget allows it.
MAX_REQUESTS = 32


@dataclass(frozen=True, slots=True)
class _RequestedBatch:
    request: BatchRequest
    uses: dict[ContainerKey, ContainerUse]
    futures: dict[ContainerKey, Future[ReadResult]]


class Pipeline:
    """Threads that make a batch for each request; the first ``receive`` starts them, ``close`` ends them.

    Args:
        requests: requests, drawn at most AHEAD + MAX_REQUESTS + 1 batches ahead of the consumer.
        buffers: memory for batches, shared with earlier epochs' pipelines.

    Attributes:
        drained: whether all of ``requests`` have been drawn.
    """

    def __init__(
        self,
        requests: Iterator[BatchRequest],
        spec: PipelineSpec,
        *,
        buffers: BufferPools | None = None,
        counter: StatsCounter | None = None,
    ) -> None:
        self._requests, self._spec, self._form = requests, spec, FORMS[spec.output.form]
        self._buffers = buffers or BufferPools()
        self._counter = counter or StatsCounter()
        # ``read`` is not a bound method, because the reference cycle would keep an unused pipeline in memory.
        read = partial(read_containers, spec, self._buffers, self._counter)
        readers = max(source.dataset.containers.readers for source in spec.sources)
        self._prefetcher = Prefetcher(read, budget=spec.resources.budget, readers=readers)
        self._aside = SetAside()
        self._decoders = ThreadPool(spec.resources.threads, "work", yields=True)
        self._collating = threading.Lock()  # One thread at a time calls ``collate``: tokenizers are not thread-safe.
        self._filler_class: Future[Callable[..., BatchFiller]] = Future()
        self._queue: SimpleQueue[Future[HostBatch] | BaseException | None] = SimpleQueue()
        self._free_slots = threading.Semaphore(AHEAD)  # Number of batches that the planner may still queue.
        self._stop = self._started = self.drained = False
        self._pid = os.getpid()
        self._planner = threading.Thread(target=self._plan, name=f"{PREFIX}plan", daemon=True)

    def start(self) -> None:
        """Start the threads and load the kernels, unless an earlier call has done so.

        The caller's thread loads the kernels, so that a keyboard interrupt can end a compilation.
        """
        if self._started:
            return
        self._started = True
        close_at_exit(self)
        self._planner.start()
        try:
            loaded = self._form.load_filler(self._spec)
        except BaseException:
            self._filler_class.cancel()  # Wake the planner's thread, which waits for the kernels.
            raise
        with contextlib.suppress(InvalidStateError):  # ``close`` may have cancelled this future.
            self._filler_class.set_result(loaded)

    def receive(self) -> HostBatch | None:
        """Return the next batch, or None at the end; do not call ``receive`` again after the end.

        Raises:
            Damage: a record is damaged and the spec is strict, or all of a source's records in the batch are damaged.
            CancelledError: the pipeline was closed, by another thread for instance, or its process was forked.
        """
        if not self._closed:
            self.start()
            item = self._queue.get()
        if self._closed:
            raise CancelledError
        if item is None:
            return None
        self._free_slots.release()
        if isinstance(item, BaseException):
            try:
                raise item
            finally:
                del item  # Break the reference cycle of error, traceback and frame.
        return item.result()

    def close(self) -> None:
        """End all threads; do nothing in a fork, which has no threads and whose locks may be held forever."""
        if self._pid != os.getpid():
            return
        self._stop = True
        self._filler_class.cancel()
        self._prefetcher.close()
        self._free_slots.release()
        if not is_own_thread():
            with contextlib.suppress(RuntimeError):  # A thread that has not started cannot be joined.
                self._planner.join()
        self._decoders.close()
        with contextlib.suppress(Empty):  # Empty the queue: errors' tracebacks would keep this object alive.
            while True:
                self._queue.get_nowait()
        self._queue.put(None)  # wakes a consumer whose thread waits in ``receive``

    @property
    def _closed(self) -> bool:
        return self._stop or self._pid != os.getpid()

    def _plan(self) -> None:
        """Queue the future of each batch, and at the end None or, after a failure, the error."""
        try:
            for filling in self._start_batches():
                self._queue.put(filling)
            self._queue.put(None)
        except BaseException as error:
            self._queue.put(error)

    def _start_batches(self) -> Iterator[Future[HostBatch]]:
        """Yield the future of each batch when its filling starts; read containers of later batches in advance."""
        ahead: deque[_RequestedBatch] = deque()
        requests = self._draw_requests()
        following, first = next(requests, None), True
        while following is not None or ahead:
            while following is not None and len(ahead) < MAX_REQUESTS:
                futures = self._prefetcher.request(following[1], wait=not ahead)
                if futures is None:
                    break
                ahead.append(_RequestedBatch(*following, futures))
                following = next(requests, None)
                if first and self._all_read(futures):
                    break
                first = False
            with self._counter.timed("waited_on_consumer"):
                self._free_slots.acquire()
            if self._stop:
                return
            filling = self._start_filling(ahead.popleft())
            yield filling
            if first:
                # Wait until the first batch is filled, because reads for later batches would delay the filling.
                wait([filling])
                first = False

    def _draw_requests(self) -> Iterator[tuple[BatchRequest, dict[ContainerKey, ContainerUse]]]:
        for request in self._requests:
            yield request, container_uses(request, self._spec.sources)
        self.drained = True

    def _all_read(self, futures: Mapping[ContainerKey, Future[ReadResult]]) -> bool:
        """Wait until the kernels are loaded; return whether all containers in ``futures`` are read by then.

        Meanwhile no reads for later batches start, because they would delay the loading.
        """
        self._filler_class.result()
        return all(future.done() for future in futures.values())

    def _start_filling(self, requested: _RequestedBatch) -> Future[HostBatch]:
        with self._counter.timed("waited_on_disk"):
            containers = self._collect(requested)
        filler_class = self._filler_class.result()  # Wait for the kernels; ``gather_records`` needs them too.
        sources = self._spec.sources
        limit = self._spec.resources.max_pixels
        records = gather_records(requested.request, containers, sources=sources, max_pixels=limit)
        self._set_aside(requested.request, containers)
        params = make_params(
            requested.request, records.ids, records.image_sizes, sources=sources, extras=records.extras
        )
        filler = filler_class(records, params, self._spec.output, self._buffers.batches)
        chunks = self._form.divide(len(records), self._spec.output, threads=self._spec.resources.threads)
        complete = partial(self._finish, records, filler, requested.uses)
        batch = FillingBatch(len(chunks), partial(self._fill, filler), complete)
        finished = batch.finished
        self._decoders.put(batch.tasks(chunks))
        return finished

    def _collect(self, requested: _RequestedBatch) -> ReadContainers:
        """Wait for a batch's reads; return the containers that were read, each whole or with some of its records."""
        found: dict[EpochContainer, ReadResult] = {}
        for wanted in requested.request:
            if wanted.samples.held is not None:
                waited = Counter(wanted.samples.container[wanted.samples.held == SET_ASIDE].tolist())
                for number, count in waited.items():
                    key = wanted.source, wanted.epoch, number
                    found[key] = self._aside.take(key, count)
        # A container's result may be found up to three times: as records that an earlier batch set aside, as records
        # read alone, and whole. In this order each result has more records than the one before, and replaces it.
        for read in sorted(requested.futures, key=lambda read: not read.records):
            found[read.source, read.epoch, read.number] = requested.futures[read].result()
        return found

    def _set_aside(self, request: BatchRequest, containers: ReadContainers) -> None:
        """Copy records for later batches from containers that lanes (parts of the epoch) leave after this batch."""
        for wanted in request:
            for run in wanted.leaving:
                if len(run.records):
                    key = wanted.source, wanted.epoch, run.container
                    attachments = bool(self._spec.sources[wanted.source].plan.targets)
                    self._aside.keep(key, containers[key], run.records, attachments=attachments)

    def _fill(self, filler: BatchFiller, chunk: range) -> dict[int, Damage]:
        with self._counter.timed("working"):
            return filler.fill(chunk)

    def _finish(
        self,
        records: BatchRecords,
        filler: BatchFiller,
        uses: dict[ContainerKey, ContainerUse],
        problems: dict[int, Damage] | None,
    ) -> HostBatch | None:
        """Complete a batch after releasing its containers; ``problems`` is None if a task failed or was cancelled."""
        records.release()
        self._prefetcher.release(uses)
        if problems is None:
            return None
        problems = {**records.problems, **problems}
        return self._complete(records, filler, dict(sorted(problems.items())))

    def _complete(self, records: BatchRecords, filler: BatchFiller, problems: dict[int, Damage]) -> HostBatch:
        batch = HostBatch(
            images=filler.images,
            labels=records.labels,
            ids=records.ids,
            source=records.source,
            targets=filler.targets,
            damage=[*records.damage, *problems.values()],
            encoded=filler.encoded,
            weight=records.weight,
        )
        if batch.damage and self._spec.strict:
            raise batch.damage[0]
        replace_damaged(batch, problems)
        batch.columns = look_up_columns(self._spec.sources, batch.source, batch.ids)
        if self._spec.collate is not None:
            with self._counter.timed("working"), self._collating:
                batch.columns |= run_collate(self._spec.collate, batch, self._spec.output)
        return batch


@dataclass(frozen=True, slots=True)
class _Waiting:
    records: I64  # records that were set aside, as ascending indices in their container
    samples: int  # Number of samples that later batches take of these records; a record may give several samples.
    held: ReadResult


class SetAside:
    """Records copied from containers that lanes (parts of an epoch) have left, kept until batches have taken them."""

    def __init__(self) -> None:
        self._waiting: dict[EpochContainer, _Waiting] = {}

    def keep(self, key: EpochContainer, container: ReadResult, records: I64, *, attachments: bool) -> None:
        """Copy the records of a container that later batches need, and keep the copies.

        If one of them is damaged, keep the whole container, because another of its records will replace the damaged
        one.

        Args:
            records: index in the container of each sample's record; an index may occur more than once.
        """
        samples, earlier = len(records), self._waiting.get(key)
        if earlier is not None:  # Another lane (part of the epoch) has set records of this container aside.
            records, samples = np.concatenate((earlier.records, records)), samples + earlier.samples
        records = np.unique(records)
        if not isinstance(container, Damage) and container.good[records].all():
            container = container.extract(records, attachments=attachments)
        self._waiting[key] = _Waiting(records, samples, container)

    def take(self, key: EpochContainer, samples: int) -> ReadResult:
        """Return a container's set-aside records for ``samples`` uses in a batch; forget them after their last use."""
        waiting = self._waiting.pop(key)
        if waiting.samples > samples:
            self._waiting[key] = _Waiting(waiting.records, waiting.samples - samples, waiting.held)
        return waiting.held
