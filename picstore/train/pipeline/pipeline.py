"""The one owner of threads on the training side: turns requests for batches into batches, in order.

    planner thread          reader threads       worker threads            consumer
    request → ask ────────→ read, check CRC
              draft ←──────                 ───→ decode, resample a chunk
              ready batches ─────────────────────────────────────────→ finish, yield

The planner runs ahead of the consumer by a few batches and holds containers within a budget of bytes; a slow consumer
leaves it no room and so stops it all. Nothing polls: a thread waits for a batch, for room or for a container.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import SimpleQueue

from picstore.errors import Damage, NotADataset
from picstore.train.batching.columns import take_columns
from picstore.train.batching.damage import replace_lost
from picstore.train.batching.gather import BatchRecords, gather_records
from picstore.train.batching.parameters import make_params
from picstore.train.batching.spec import HostBatch, MakeRequests, OutputSpec, PipelineSpec, Resources
from picstore.train.buffers import Memory
from picstore.train.cpu.fill_images import ImageFiller
from picstore.train.cpu.fill_streams import StreamFiller
from picstore.train.order.requests import Request, Source
from picstore.train.pipeline.prefetch import Fetcher, Key, Loaded, Want
from picstore.train.pipeline.stats import Counters
from picstore.train.pipeline.thread_pool import PREFIX, Pool, ours

AHEAD = 3  # batches that are filled or being filled before the consumer takes them
LOOK_AHEAD = 32  # further batches whose containers are read in advance, if the budget allows
_CHUNK = 16  # images a task: some 10 ms of work, so that threads end a batch together
_READERS = 4  # readers keep several requests under way on disks and networks


@dataclass(slots=True)
class Filled:
    """A batch whose slots are being filled; ``wait`` ends when all are."""

    draft: BatchRecords
    pixels: ImageFiller | StreamFiller
    chunks: list[Future[dict[int, Damage]]] = field(default_factory=list)

    def wait(self) -> dict[int, Damage]:
        """Problems by slot, in order."""
        problems = dict(self.draft.problems)
        for chunk in self.chunks:
            problems.update(chunk.result())
        return dict(sorted(problems.items()))


class _Countdown:
    """Calls ``then`` once ``count`` was called ``total`` times, from any threads."""

    def __init__(self, total: int, then: Callable[[], None]) -> None:
        self._left = total
        self._then = then
        self._lock = threading.Lock()

    def count(self) -> None:
        with self._lock:
            self._left -= 1
            if self._left:
                return
        self._then()


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request whose containers are on their way."""

    request: Request
    wants: dict[Key, Want]
    futures: dict[Key, Future[Loaded]]


class Pipeline:
    """Fills the batches of an iterator of requests. Iterate once, which starts the threads, then ``close``.

    Args:
        requests: what each batch holds; drawn in the planner's thread, at most AHEAD + LOOK_AHEAD + 1 before the
            consumer takes their batches.
        sources: the data sets that parts refer to.
        form: of the batches.
        memory: shared with earlier epochs, so that each does not begin with fresh pages.
        counters: told what was done and waited for.
    """

    def __init__(
        self,
        requests: Iterator[Request],
        *,
        sources: Sequence[Source],
        limits: Resources,
        form: OutputSpec | None = None,
        memory: Memory | None = None,
        counters: Counters | None = None,
    ) -> None:
        self._requests = requests
        self._sources = sources
        self._form = form or OutputSpec()
        self._memory = memory or Memory()
        self._counters = counters or Counters()
        self._fetcher = Fetcher(self._load, budget=limits.budget, threads=_READERS)
        self._workers = Pool(limits.threads, "work")
        self._ready: SimpleQueue[Filled | BaseException | None] = SimpleQueue()
        self._room = threading.Semaphore(AHEAD)  # in the ready queue
        self._stop = False
        self._pid = os.getpid()
        self._planner = threading.Thread(target=self._plan, name=f"{PREFIX}plan", daemon=True)

    def __iter__(self) -> Iterator[Filled]:
        _AT_WORK.add(self)
        self._planner.start()
        while (item := self._ready.get()) is not None:
            self._room.release()
            if isinstance(item, BaseException):
                try:
                    raise item
                finally:
                    del item  # the error's traceback holds this frame: without a cycle both are freed at once
            yield item

    def close(self) -> None:
        """End all threads; may be called at any time, twice too. In a fork there are none, and locks may be held."""
        if self._pid != os.getpid():
            return
        self._stop = True
        self._fetcher.close()
        self._room.release()
        if not ours():
            with contextlib.suppress(RuntimeError):  # it was never started, or an interrupt hit the start
                self._planner.join()
        self._workers.close()

    def _load(self, source: int, number: int) -> Loaded:
        """Read a container; what makes it unreadable is returned, without the traceback that would hold its bytes."""
        dataset = self._sources[source].dataset
        ref = dataset.container_ref(number)
        name = str(dataset.path / ref.name)
        try:
            with self._counters.timed("reading"):
                container = dataset.container(number, allocate=self._memory.containers.take)
        except Damage as error:
            return type(error)(error.what, name, error.offset)
        except NotADataset:
            return Damage("the file is missing", name, ref.offset)
        self._counters.add(bytes=container.size)
        return container

    def _plan(self) -> None:
        """The planner's life; whatever it meets goes to the consumer."""
        try:
            for filled in self._fill_all():
                self._ready.put(filled)
            self._ready.put(None)
        except BaseException as error:  # a thread has nobody else to tell
            self._ready.put(error)

    def _fill_all(self) -> Iterator[Filled]:
        """Read ahead as far as the budget allows, and start to fill the batch that is first."""
        ahead: deque[_Asked] = deque()
        wanted = ((request, self._wants(request)) for request in self._requests)
        following = next(wanted, None)
        while following is not None or ahead:
            while following is not None and len(ahead) < LOOK_AHEAD:
                futures = self._fetcher.ask(following[1], wait=not ahead)
                if futures is None:
                    break
                ahead.append(_Asked(*following, futures))
                following = next(wanted, None)
            with self._counters.timed("waited_on_consumer"):
                self._room.acquire()
            if self._stop:
                return
            yield self._start(ahead.popleft())

    def _wants(self, request: Request) -> dict[Key, Want]:
        """The containers of a batch."""
        wants: dict[Key, Want] = {}
        for part in request:
            sizes = self._sources[part.source].dataset.rows["size"]
            samples = part.samples
            columns = (samples.container.tolist(), samples.lane.tolist(), samples.last.tolist())
            for number, lane, last in zip(*columns, strict=True):
                want = wants.setdefault((part.source, part.epoch, number), Want(int(sizes[number])))
                want.lanes.add(lane)
                if last:
                    want.done.add(lane)
        return wants

    def _start(self, asked: _Asked) -> Filled:
        """Wait for a batch's containers, draft it, and hand its chunks to the workers."""
        with self._counters.timed("waited_on_disk"):
            loaded = {(source, number): future.result() for (source, _, number), future in asked.futures.items()}
        draft = gather_records(asked.request, loaded, sources=self._sources)
        look = make_params(draft, asked.request, sources=self._sources)
        blocks = self._memory.batches
        filled = Filled(
            draft,
            ImageFiller(look, self._form, blocks)
            if self._form.decoded
            else StreamFiller(draft, look, self._form, blocks),
        )
        chunks = [range(k, min(k + _CHUNK, len(draft))) for k in range(0, len(draft), _CHUNK)]
        release = _Countdown(len(chunks), lambda: self._release(draft, asked.wants))
        for chunk in chunks:
            filled.chunks.append(self._workers.submit(self._fill, filled, chunk, release))
        return filled

    def _fill(self, filled: Filled, chunk: range, release: _Countdown) -> dict[int, Damage]:
        try:
            with self._counters.timed("working"):
                return filled.pixels.fill(filled.draft, chunk)
        finally:
            release.count()

    def _release(self, draft: BatchRecords, wants: dict[Key, Want]) -> None:
        draft.forget()
        self._fetcher.release(wants)


def make_batches(
    feed: PipelineSpec, requests: MakeRequests, *, memory: Memory, counters: Counters
) -> Generator[HostBatch]:
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
            yield _settle(filled, feed)
    finally:
        pipeline.close()


def _settle(filled: Filled, feed: PipelineSpec) -> HostBatch:
    """Wait for a batch and deal with its lost records."""
    problems = filled.wait()
    draft, pixels = filled.draft, filled.pixels
    lost = [*draft.lost, *problems.values()]
    if lost and feed.strict:
        raise lost[0]
    replace_lost(problems, draft.source, draft.labels, draft.ids, pixels.copy)
    undecoded = pixels.undecoded if isinstance(pixels, StreamFiller) else None
    columns = take_columns(feed.sources, draft.source, draft.ids)
    return HostBatch(pixels.images, draft.labels, draft.ids, pixels.targets, lost, undecoded, columns)


_AT_WORK: weakref.WeakSet[Pipeline] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """End the threads before the interpreter does: one that it ends in the middle of C++ aborts the process."""
    for pipeline in list(_AT_WORK):
        pipeline.close()
