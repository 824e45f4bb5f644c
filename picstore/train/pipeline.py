"""The one owner of threads on the training side: turns requests for batches into batches, in order.

    planner thread          reader threads       worker threads            consumer
    request → ask ────────→ read, check CRC
              draft ←──────                 ───→ decode, resample a chunk
              ordered queue ───────────────────────────────────────────→ finish, yield

The planner runs ahead of the consumer by a few batches and holds containers within a budget of bytes; a slow consumer
fills the queue and so stops it all.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from picstore.errors import Damage
from picstore.storage.container import Container
from picstore.train.batch import Draft, Part, Pixels, Source, make_draft, make_geometry
from picstore.train.fetch import Fetcher, Key
from picstore.train.geometry import Transform

_AHEAD = 3  # batches that are finished or being filled before the consumer asks for them
_LOOK_AHEAD = 8  # batches whose containers may be read in advance
_CHUNK = 16  # images a task: some 10 ms of work, so that threads end a batch together
_READERS = 4  # readers keep several requests under way on disks and networks

Request = Sequence[Part]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a pipeline may use: worker threads and bytes of containers."""

    threads: int
    budget: int


@dataclass(slots=True)
class Filled:
    """A batch whose slots are being filled; ``wait`` ends when all are."""

    draft: Draft
    pixels: Pixels
    chunks: list[Future[dict[int, Exception]]] = field(default_factory=list)

    def wait(self) -> dict[int, Exception]:
        """Problems by slot."""
        problems = dict(self.draft.problems)
        for chunk in self.chunks:
            problems.update(chunk.result())
        return problems


def _result(future: Future[Container]) -> Container | Damage:
    """A container, or why it cannot be read at all; what is no damage is raised."""
    try:
        return future.result()
    except Damage as error:
        return error


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


class Pipeline:
    """Fills the batches of an iterator of requests. Iterate once, then ``close``.

    Args:
        requests: what each batch holds; drawn from the planner's thread, a few batches ahead.
        sources: the data sets that parts refer to.
        transforms: applied to every image.
    """

    def __init__(
        self,
        requests: Iterator[Request],
        *,
        sources: Sequence[Source],
        transforms: Sequence[Transform],
        limits: Limits,
    ) -> None:
        self._requests = requests
        self._sources = sources
        self._transforms = transforms
        self._fetcher = Fetcher(self._load, budget=limits.budget, threads=_READERS)
        self._workers = ThreadPoolExecutor(limits.threads, thread_name_prefix="picstore-work")
        self._queue: queue.Queue[Filled | BaseException | None] = queue.Queue(maxsize=_AHEAD)
        self._stop = threading.Event()
        self._busy = 0  # batches that hold containers, between draft and last chunk
        self._busy_lock = threading.Lock()
        self._planner = threading.Thread(target=self._plan, name="picstore-plan", daemon=True)
        self._planner.start()

    def __iter__(self) -> Iterator[Filled]:
        while True:
            item = self._queue.get()
            if item is None:
                return
            if isinstance(item, BaseException):
                raise item
            yield item

    def close(self) -> None:
        """Stop all threads and forget what they hold; may be called at any time, twice too."""
        self._stop.set()
        while self._planner.is_alive():
            with contextlib.suppress(queue.Empty):
                self._queue.get(timeout=0.01)
        self._planner.join()
        self._workers.shutdown(wait=True, cancel_futures=True)
        self._fetcher.close()

    def _load(self, source: int, number: int) -> Container:
        return self._sources[source].dataset.container(number)

    def _plan(self) -> None:
        """The planner's life; whatever it meets goes to the consumer."""
        try:
            for filled in self._fill_all():
                if not self._put(filled):
                    return
            self._put(None)
        except BaseException as error:  # a thread has nobody else to tell
            self._put(error)

    def _put(self, item: Filled | BaseException | None) -> bool:
        while not self._stop.is_set():
            with contextlib.suppress(queue.Full):
                self._queue.put(item, timeout=0.1)
                return True
        return False

    def _fill_all(self) -> Iterator[Filled]:
        """Read ahead as far as the budget allows, and start to fill the batch that is first."""
        ahead: deque[tuple[Request, dict[Key, Future[Container]]]] = deque()
        request = next(self._requests, None)
        while request is not None or ahead:
            while request is not None and len(ahead) < _LOOK_AHEAD and not self._stop.is_set():
                keys = self._keys(request)
                size = self._fetcher.missing(keys)
                if not self._fetcher.has_room(size):
                    if ahead:
                        break
                    # The batch that is next must be read: wait for earlier ones to free what they hold, and when
                    # none is left that could, read on beyond the budget.
                    self._fetcher.wait_for_room(size, self._is_idle)
                ahead.append((request, self._fetcher.ask(keys)))
                request = next(self._requests, None)
            if self._stop.is_set():
                return
            if ahead:
                yield self._start(*ahead.popleft())

    def _is_idle(self) -> bool:
        with self._busy_lock:
            return self._busy == 0 or self._stop.is_set()

    def _keys(self, request: Request) -> dict[Key, int]:
        """The containers of a batch, each with its bytes."""
        keys: dict[Key, int] = {}
        for part in request:
            sizes = self._sources[part.source].dataset.rows["size"]
            pairs = set(zip(part.samples.lane.tolist(), part.samples.container.tolist(), strict=True))
            keys.update(((part.source, lane, number), int(sizes[number])) for lane, number in pairs)
        return keys

    def _start(self, request: Request, futures: dict[Key, Future[Container]]) -> Filled:
        """Wait for a batch's containers, draft it, and hand its chunks to the workers."""
        loaded = {(source, number): _result(future) for (source, _, number), future in futures.items()}
        draft = make_draft(request, loaded, sources=self._sources)
        geometry = make_geometry(draft, request, sources=self._sources, transforms=self._transforms)
        filled = Filled(draft, Pixels(geometry, self._transforms))
        done = {
            (part.source, lane, number)
            for part in request
            for lane, number in zip(
                part.samples.lane[part.samples.last].tolist(),
                part.samples.container[part.samples.last].tolist(),
                strict=True,
            )
        }
        chunks = [range(k, min(k + _CHUNK, len(draft.jpegs))) for k in range(0, len(draft.jpegs), _CHUNK)]
        release = _Countdown(len(chunks), lambda: self._release(done))
        with self._busy_lock:
            self._busy += 1
        for chunk in chunks:
            filled.chunks.append(self._workers.submit(self._fill, filled, chunk, release))
        return filled

    def _fill(self, filled: Filled, chunk: range, release: _Countdown) -> dict[int, Exception]:
        try:
            return filled.pixels.fill(filled.draft, chunk)
        finally:
            release.count()

    def _release(self, keys: set[Key]) -> None:
        with self._busy_lock:
            self._busy -= 1
        self._fetcher.free(keys)
