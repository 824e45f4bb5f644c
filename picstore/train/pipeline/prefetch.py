"""Prefetching of containers within a budget of bytes: each batch's needs, reading, and how long containers are held."""

from __future__ import annotations

import logging
import sys
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import NamedTuple

import numpy as np

from picstore.errors import Damage
from picstore.storage.dataset import Dataset
from picstore.storage.dataset_reader import Readers
from picstore.train.batching.gather import ReadResult
from picstore.train.batching.spec import PipelineSpec
from picstore.train.batching.views_reach import needed_rows, read_alone
from picstore.train.buffers import BufferPools
from picstore.train.order.epoch_order import ALONE, IN_CONTAINER, Samples
from picstore.train.order.rank_shares import MAX_LANES
from picstore.train.order.requests import BatchRequest, SourceRequest, TrainingSource
from picstore.train.pipeline.own_threads import PREFIX, is_own_thread
from picstore.train.pipeline.stats import StatsCounter

logger = logging.getLogger("picstore")

# Whether a reader without work waits instead of ending, because starting a thread takes 60 µs. False in free-threaded
# Python, where objects that a waiting thread made stay in memory: containers then took 1.5 times the budget.
_READERS_WAIT = "t" not in getattr(sys, "abiflags", "")


class ContainerKey(NamedTuple):
    """Key of one read in an epoch of a source (dataset): of a whole container or, if given, of its ``records``."""

    source: int
    epoch: int
    number: int
    records: tuple[int, ...] = ()  # indices in the container, ascending; empty for the whole container


@dataclass(slots=True)
class ContainerUse:
    """A batch's use of a container of ``size`` bytes.

    Attributes:
        done: lanes (parts of an epoch that batches mix) that leave the container after the batch.
        needed: whether the batch takes a record from the container.
    """

    size: int
    lanes: set[int] = field(default_factory=set)  # Lanes that read the container for the batch, and lanes in ``done``.
    done: set[int] = field(default_factory=set)  # Lanes that take no sample from the container after the batch.
    needed: bool = True


@dataclass(slots=True)
class _HeldContainer:
    future: Future[ReadResult]
    size: int  # bytes in storage
    memory: int  # bytes in memory, an estimate until the container is read
    batches: int = 0  # Number of batches that have requested and not released the container.
    lanes: set[int] = field(default_factory=set)  # Lanes (parts of the epoch) that still read from the container.


class Prefetcher:
    """Reader and holder of the containers that lanes are reading or the next batches need, within a budget of bytes.

    Lanes are the parts of an epoch that batches mix. A container is held until all lanes that read it have left it and
    all batches that requested it have released it. Batches request containers in order; any thread may release them in
    any order.

    The memory of an unread container is estimated: its stored size, times the ratio of memory to stored size of the
    source's containers read so far. With the estimate, crops of images of 12 megapixels are made at 2,295 images/s;
    with stored sizes, at 2,146.

    The budget is exceeded only if one batch's containers exceed it or an estimate was too low. If the lanes hold more
    than the budget, containers that no batch needs at the moment are evicted and read again later. The most recently
    used container is evicted first, because the lanes take turns, and its turn comes last.
    """

    def __init__(
        self, read: Callable[[Sequence[ContainerKey]], list[ReadResult]], *, budget: int, readers: Readers
    ) -> None:
        self._read, self._budget, self._readers = read, budget, readers
        self._threads: list[threading.Thread] = []  # all reader threads, including some that have ended
        self._ending: list[threading.Thread] = []  # reader threads that found nothing more to read and are about to end
        # Containers that no reader has begun to read, each with the future of its result.
        self._waiting: deque[tuple[ContainerKey, Future[ReadResult]]] = deque()
        self._reading = 0  # Number of reader threads that read or wait for containers to read.
        self._idle = 0  # Number of reader threads that wait for containers to read.
        self._handing_over = 0  # Number of reader threads that are handing results to futures.
        self._held: dict[ContainerKey, _HeldContainer] = {}  # Held containers, least recently used first.
        self._bytes = 0
        # For each source, bytes of all containers read so far: ``_read_bytes`` in memory, ``_read_sizes`` in storage.
        self._read_bytes: defaultdict[int, int] = defaultdict(lambda: 1)
        self._read_sizes: defaultdict[int, int] = defaultdict(lambda: 1)
        self._earliest: dict[int, int] = {}  # For each source, the earliest epoch that is still read.
        self._unreleased = 0  # Number of batches that have requested and not released containers.
        self._closed = self._warned = self._failed = False
        self._lock = threading.RLock()  # Reentrant: a garbage collection may call ``close`` in a thread that holds it.
        self._changed = threading.Condition(self._lock)
        self._work = threading.Condition(self._lock)  # Readers without work wait for this condition.

    def request(
        self, uses: dict[ContainerKey, ContainerUse], *, wait: bool
    ) -> dict[ContainerKey, Future[ReadResult]] | None:
        """Request the containers of a batch: read containers that are not in memory, and return the futures of all.

        Args:
            uses: the batch's uses, by key; containers that are neither needed nor in memory are removed.
            wait: whether to wait until the budget allows the batch; all earlier batches must then get released.

        Returns:
            The futures, or None if the budget does not allow the batch or the prefetcher is closed.
        """
        self._join_ending()
        with self._changed:
            while self._handing_over and not self._closed:
                self._changed.wait()
            for key in [key for key, use in uses.items() if not use.needed and key not in self._held]:
                del uses[key]
            self._end_epochs(uses)
            missing = sum(self._estimate(key, use) for key, use in uses.items() if key not in self._held)
            while self._bytes + missing > self._budget and not self._closed:
                if not wait:
                    return None
                if not self._unreleased:
                    self._evict(missing, uses)
                    break
                self._changed.wait()
            if self._closed:
                return None
            for key, use in uses.items():
                self._hold(key, use)
            self._start_readers()
            self._unreleased += 1
            return {key: self._held[key].future for key in uses}

    def release(self, uses: dict[ContainerKey, ContainerUse]) -> None:
        """Release the containers that a batch requested, once the batch is finished."""
        with self._changed:
            self._unreleased -= 1
            for key, use in uses.items():
                held = self._held[key]
                held.batches -= 1
                held.lanes -= use.done
                if not held.batches and not held.lanes:
                    self._drop(key)
            self._changed.notify_all()

    def close(self) -> None:
        """Stop reading containers, and wake all threads that wait in this prefetcher."""
        with self._changed:
            self._closed = True
            while self._waiting:
                self._waiting.pop()[1].cancel()
            self._changed.notify_all()
            self._work.notify_all()
        if not is_own_thread():
            for thread in self._threads:
                thread.join()

    def _hold(self, key: ContainerKey, use: ContainerUse) -> None:
        held = self._held.pop(key, None)
        if held is None:
            held = _HeldContainer(Future(), use.size, self._estimate(key, use))
            if self._failed:
                # After a failed read nothing more is read: an earlier batch raises the error, and no batch follows it.
                held.future.cancel()
            else:
                self._waiting.append((key, held.future))
            self._bytes += held.memory
        held.batches += 1
        held.lanes |= use.lanes
        self._held[key] = held

    def _estimate(self, key: ContainerKey, use: ContainerUse) -> int:
        source = key[0]
        return use.size * self._read_bytes[source] // self._read_sizes[source]

    def _join_ending(self) -> None:
        """Wait until ending readers have ended; without this wait, containers in memory took twice the budget.

        The caller must not hold the lock, because a garbage collection in a reader may need it.
        """
        while self._ending:
            self._ending.pop().join()

    def _start_readers(self) -> None:
        self._work.notify(min(len(self._waiting), self._idle))
        for _ in range(min(len(self._waiting) - self._idle, self._readers.threads - self._reading)):
            name = f"{PREFIX}read_{self._reading}"
            thread = threading.Thread(target=self._read_waiting, name=name, daemon=True)
            thread.start()
            self._threads = [*(each for each in self._threads if each.is_alive()), thread]
            self._reading += 1

    def _read_waiting(self) -> None:
        """Read waiting containers until none is left; keep no reference to any, so that each can be freed."""
        handed_over = False
        while calls := self._take_waiting(handed_over):
            handed_over = self._read_some(calls)

    def _take_waiting(self, handed_over: bool) -> list[tuple[ContainerKey, Future[ReadResult]]]:
        """Wait for containers to read; return those that this reader reads next, or none if the reader is to end."""
        with self._lock:
            if handed_over:
                self._handing_over -= 1
                self._changed.notify_all()
            while not self._waiting and _READERS_WAIT and not self._closed:
                self._idle += 1
                self._work.wait()
                self._idle -= 1
            if not self._waiting:
                self._reading -= 1
                self._ending.append(threading.current_thread())
            count = min(-(-len(self._waiting) // self._readers.threads), self._readers.together)
            return [self._waiting.popleft() for _ in range(count)]

    def _read_some(self, calls: list[tuple[ContainerKey, Future[ReadResult]]]) -> bool:
        """Read the containers of ``calls``, hand them to their futures, and empty the list; return False on failure."""
        for _, future in calls:
            future.set_running_or_notify_cancel()
        try:
            results = self._read([key for key, _ in calls])
        except BaseException as error:  # The thread that waits for the futures raises the error.
            self._fail(calls, error)
            return False
        self._count_memory(calls, results)
        # Complete the first call last. The planner waits for the first call, and then finds all other calls complete.
        while calls:
            calls.pop()[1].set_result(results.pop())
        return True

    def _fail(self, calls: list[tuple[ContainerKey, Future[ReadResult]]], error: BaseException) -> None:
        """Hand an error to the futures of ``calls`` and of all containers that wait for a reader.

        The waiting containers are not read, because one read from an unreachable store took 3 minutes to fail.
        """
        with self._lock:
            self._failed = True
            calls += self._waiting
            self._waiting.clear()
        while calls:
            calls.pop()[1].set_exception(error)

    def _count_memory(
        self, calls: Sequence[tuple[ContainerKey, Future[ReadResult]]], results: Sequence[ReadResult]
    ) -> None:
        """Replace estimates of containers' memory by the memory taken; note that this reader will hand over results."""
        with self._changed:
            self._handing_over += 1
            for (key, future), result in zip(calls, results, strict=True):
                held = self._held.get(key)
                if held is not None and held.future is future and not isinstance(result, Damage):
                    self._bytes += result.read_size - held.memory
                    held.memory = result.read_size
                    self._read_bytes[key[0]] += result.read_size
                    self._read_sizes[key[0]] += held.size
            self._changed.notify_all()

    def _end_epochs(self, uses: dict[ContainerKey, ContainerUse]) -> None:
        """Release containers of epochs before those in ``uses``. With ``drop_last``, lanes do not finish some."""
        earliest: dict[int, int] = {}
        for source, epoch, *_ in uses:
            earliest[source] = min(epoch, earliest.get(source, epoch))
        if all(self._earliest.get(source) == epoch for source, epoch in earliest.items()):
            return
        self._earliest.update(earliest)
        for key in [key for key in self._held if key[1] < self._earliest.get(key[0], 0)]:
            self._held[key].lanes.clear()
            if not self._held[key].batches:
                self._drop(key)

    def _evict(self, missing: int, uses: dict[ContainerKey, ContainerUse]) -> None:
        """Drop containers not in ``uses``, last used first (see the class), until ``missing`` more bytes fit."""
        for key in [key for key in reversed(self._held) if key not in uses]:
            if self._bytes + missing <= self._budget:
                break
            if not self._warned:
                self._warned = True
                logger.warning(
                    "a budget of %d bytes is less than the lanes read at a time, so containers are read more than "
                    "once; raise the budget, or use fewer lanes or smaller containers",
                    self._budget,
                )
            self._drop(key)

    def _drop(self, key: ContainerKey) -> None:
        self._bytes -= self._held.pop(key).memory


def container_uses(request: BatchRequest, sources: Sequence[TrainingSource]) -> dict[ContainerKey, ContainerUse]:
    """Return, by key, a batch's uses of containers: of whole ones, and of those from which single records are read."""
    uses: dict[ContainerKey, ContainerUse] = {}
    for wanted in request:
        dataset = sources[wanted.source].dataset
        for number, lane in _container_lanes(wanted.samples):
            key = ContainerKey(wanted.source, wanted.epoch, number)
            use = uses.setdefault(key, ContainerUse(dataset.containers.held_bytes(number)))
            use.lanes.add(lane)
        for run in wanted.leaving:
            key = ContainerKey(wanted.source, wanted.epoch, run.container)
            use = uses.setdefault(key, ContainerUse(dataset.containers.held_bytes(run.container), needed=False))
            use.needed |= len(run.records) > 0
            use.lanes.add(run.lane)
            use.done.add(run.lane)
        uses |= _uses_alone(wanted, dataset, uses)
    return uses


def _container_lanes(samples: Samples) -> list[tuple[int, int]]:
    """Return the distinct pairs (container, lane) of the samples read from whole containers, in their order."""
    inside = slice(None) if samples.held is None else samples.held == IN_CONTAINER
    container, lane = samples.container[inside], samples.lane[inside]
    _, firsts = np.unique(container * MAX_LANES + lane, return_index=True)
    firsts.sort()
    return list(zip(container[firsts].tolist(), lane[firsts].tolist(), strict=True))


def _uses_alone(
    wanted: SourceRequest, dataset: Dataset, uses: Mapping[ContainerKey, ContainerUse]
) -> dict[ContainerKey, ContainerUse]:
    """Return, by key, a batch's uses of containers of which only single records are read.

    If any needed record of a container was not set aside (copied earlier), all its needed records are read.
    """
    samples, alone = wanted.samples, {}
    if samples.held is None:
        return {}
    for number in np.unique(samples.container[samples.held == ALONE]).tolist():
        whole = uses.get(ContainerKey(wanted.source, wanted.epoch, number))
        if whole is None or not whole.needed:
            records = np.unique(samples.record[samples.container == number])
            share = len(records) / int(dataset.rows["records"][number])
            key = ContainerKey(wanted.source, wanted.epoch, number, tuple(records.tolist()))
            alone[key] = ContainerUse(int(dataset.containers.held_bytes(number) * share))
    return alone


def read_containers(
    spec: PipelineSpec, buffers: BufferPools, counter: StatsCounter, keys: Sequence[ContainerKey]
) -> list[ReadResult]:
    """Read each key's whole container, or only its records; of an image, read only the rows that the epoch needs."""
    results: list[ReadResult] = []
    for (source, epoch, alone), group in groupby(keys, key=lambda key: (key.source, key.epoch, bool(key.records))):
        dataset, plan = spec.sources[source].dataset, spec.sources[source].plan
        rows_of = partial(needed_rows, spec.sources[source], epoch, spec.resources.max_pixels)
        with counter.timed("reading"):
            if alone:
                found = [
                    read_alone(dataset, key.number, key.records, rows_of, attachments=bool(plan.targets))
                    for key in group
                ]
            else:
                found = dataset.containers.read_in_part(
                    [key.number for key in group],
                    rows_of,
                    mask=dataset.live.mask,
                    attachments=bool(plan.targets),
                    allocate=buffers.containers.borrow,
                )
        for result in found:
            if isinstance(result, Damage):
                results.append(type(result)(result.what, str(dataset.path / result.file), result.offset))
            else:
                results.append(result)
    counter.add(bytes=sum(result.read_size for result in results if not isinstance(result, Damage)))
    return results
