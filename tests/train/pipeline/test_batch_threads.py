"""The pipeline: batches in order, memory within the budget, and no thread left over."""

from __future__ import annotations

import errno
import gc
import os
import signal
import sys
import sysconfig
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from grids import examples
from hypothesis import given
from hypothesis import strategies as st
from own_threads import our_threads, threads_left

import picstore
from picstore.storage import dataset_reader
from picstore.storage.container_kernel import SoundReader
from picstore.storage.dataset_reader import ContainerReader, Readers
from picstore.storage.format.container import Container
from picstore.storage.location.resolve import read_at
from picstore.train.batching.gather import BatchRecords, gather_records
from picstore.train.batching.host_batch import RecordFiles
from picstore.train.batching.spec import GroupSpec, OutputSpec, PipelineSpec, Resources
from picstore.train.buffers import BufferPool
from picstore.train.cpu import decode_crop, fill_images
from picstore.train.order.dataset_order import DatasetOrder
from picstore.train.order.epoch_order import EpochOrder
from picstore.train.order.global_batches import RankShard
from picstore.train.order.requests import BatchRequest, TrainingSource
from picstore.train.pipeline import batch_threads, prefetch
from picstore.train.pipeline.batch_forms import FORMS, Pixels
from picstore.train.pipeline.batch_threads import AHEAD, MAX_REQUESTS, Pipeline
from picstore.train.pipeline.prefetch import ContainerKey, ContainerUse, Prefetcher, container_uses
from picstore.train.pipeline.stats import StatsCounter
from picstore.train.transforms.geometry import Geometry
from picstore.train.transforms.transform_plan import TransformPlan
from picstore.train.transforms.views import ViewGroup

pytestmark = pytest.mark.usefixtures("no_earlier_threads")
CONTAINER = 16 << 10
READERS = 4
# A reader may still hold what it has just handed over. A free-threaded Python leaves it to a reader that lives to free
# what it made: one that the system does not run holds what it handed over before, too (1.4 containers more, once).
HELD_BY_READERS = READERS * CONTAINER * (2 if sysconfig.get_config_var("Py_GIL_DISABLED") else 1)
ONE = Readers(threads=1, together=16)
TRANSFORM = [picstore.Resize((16, 16))]
Make = Callable[..., Path]


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    yield
    assert threads_left() == []


class ContainerMemory:
    """Counts the bytes of containers that anything refers to, at any time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.peak = self.reads = 0
        self._lock = threading.RLock()  # a free-threaded Python frees anywhere, in _add too
        monkeypatch.setattr(dataset_reader, "read_at", self._read_at)
        read = SoundReader.read

        def read_sound(reader: SoundReader, numbers: Sequence[int], allocate: object) -> list[Container | None]:
            found = read(reader, numbers, self._allocate)
            with self._lock:
                self.reads += sum(container is not None for container in found)
            return found

        monkeypatch.setattr(SoundReader, "read", read_sound)

    def _allocate(self, size: int) -> memoryview:
        data = np.empty(size, np.uint8)
        self._add(size)
        weakref.finalize(data, self._add, -size)
        return data.data

    def _read_at(self, path: Path, offset: int, size: int, **options: object) -> memoryview:
        # A memoryview keeps its array alive, and arrays tell when they are freed.
        data = np.frombuffer(read_at(path, offset, size, file=""), dtype=np.uint8).copy()
        with self._lock:
            self.reads += 1
        self._add(size)
        weakref.finalize(data, self._add, -size)
        return memoryview(data).toreadonly()

    def _add(self, size: int) -> None:
        with self._lock:
            self.now += size
            self.peak = max(self.peak, self.now)


@pytest.fixture
def without_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers are read by ``read_at`` alone."""
    monkeypatch.setattr(ContainerReader, "use_kernel", lambda _: None)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> ContainerMemory:
    return ContainerMemory(monkeypatch)


def requests_of(
    dataset: picstore.Dataset, *, batch_size: int, lanes: int = 4, epoch: int = 0
) -> Iterator[BatchRequest]:
    shard = RankShard(records=len(dataset), lanes=lanes, batch=min(batch_size, len(dataset)), drop_last=False)
    yield from islice(DatasetOrder(shard, seed=0).requests([source_of(dataset)], epoch=epoch), shard.batches)


def source_of(dataset: picstore.Dataset) -> TrainingSource:
    return TrainingSource(dataset, 0, plan=TransformPlan((ViewGroup(tuple(TRANSFORM)),)))


def spec_of(dataset: picstore.Dataset, threads: int, budget: int) -> PipelineSpec:
    source = source_of(dataset)
    return PipelineSpec((source,), OutputSpec.from_plans([source.plan]), Resources(threads, budget))


def pipeline_of(path: Path, *, batch_size: int, budget: int = 1 << 20, threads: int = 2) -> Pipeline:
    dataset = picstore.Dataset(path)
    return Pipeline(requests_of(dataset, batch_size=batch_size), spec_of(dataset, threads, budget))


def loader_of(path: Path, **options: Any) -> picstore.Loader:
    return picstore.Loader(path, **{"batch_size": 8, "transform": TRANSFORM, "threads": 2, "isolate": False, **options})


# The prefetcher alone.


class Loaded:
    """Stands for a container."""

    def __init__(self, size: int) -> None:
        self.read_size = size


class Reader:
    """Loads nothing, and counts what is alive."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes
        self.now = self.reads = 0
        self._lock = threading.RLock()  # as ContainerMemory's

    def __call__(self, keys: Sequence[ContainerKey]) -> list[Loaded]:
        return [self._load(number) for _, _, number in keys]

    def _load(self, number: int) -> Loaded:
        loaded = Loaded(self.sizes[number])
        with self._lock:
            self.reads += 1
        self._add(self.sizes[number])
        weakref.finalize(loaded, self._add, -self.sizes[number])
        return loaded

    def _add(self, size: int) -> None:
        with self._lock:
            self.now += size


def uses_of(sizes: list[int], *, batch_size: int, lanes: int) -> list[dict[ContainerKey, ContainerUse]]:
    """What the batches of an epoch use of containers with 5 records each."""
    order = EpochOrder([5] * len(sizes), seed=0, epoch=0, lanes=lanes)
    wanted = []
    for start in range(0, order.records, batch_size):
        samples = order.locate(np.arange(start, min(start + batch_size, order.records)))
        uses: dict[ContainerKey, ContainerUse] = {}
        columns = (samples.container.tolist(), samples.lane.tolist(), samples.end.tolist())
        for number, lane, end in zip(*columns, strict=True):
            use = uses.setdefault((0, 0, number), ContainerUse(sizes[number]))
            use.lanes.add(lane)
            if end < start + batch_size:
                use.done.add(lane)
        wanted.append(uses)
    return wanted


@given(
    sizes=st.lists(st.integers(1, 20), min_size=1, max_size=25),
    batch_size=st.integers(1, 12),
    lanes=st.integers(1, 12),
    budget=st.integers(1, 120),
)
@examples(60)
def test_the_fetcher_exceeds_its_budget_only_by_what_one_batch_needs(
    sizes: list[int], batch_size: int, lanes: int, budget: int
) -> None:
    reader = Reader(sizes)
    prefetcher = Prefetcher(reader, budget=budget, readers=ONE)  # type: ignore[arg-type]
    for uses in uses_of(sizes, batch_size=batch_size, lanes=lanes):
        futures = prefetcher.request(uses, wait=True)
        assert futures is not None
        assert all(isinstance(future.result(), Loaded) for future in futures.values())
        need = sum(use.size for use in uses.values())
        assert reader.now <= max(budget, need)
        del futures
        prefetcher.release(uses)
    prefetcher.close()  # the reader's thread has let go of its last result
    assert reader.now == 0


@given(batch_size=st.integers(1, 12), lanes=st.integers(1, 12))
@examples(30)
def test_with_room_for_its_lanes_the_fetcher_reads_each_container_once(batch_size: int, lanes: int) -> None:
    reader = Reader([1] * 24)
    prefetcher = Prefetcher(reader, budget=10_000, readers=ONE)  # type: ignore[arg-type]
    for uses in uses_of(reader.sizes, batch_size=batch_size, lanes=lanes):
        futures = prefetcher.request(uses, wait=False)
        assert futures is not None
        wait(futures.values())
        prefetcher.release(uses)
    prefetcher.close()
    # Where one lane ends and the next begins a container is read for both, and never more.
    assert 24 <= reader.reads <= 24 + lanes - 1


def test_lanes_in_the_same_container_share_it() -> None:
    reader = Reader([1])
    prefetcher = Prefetcher(reader, budget=10, readers=ONE)  # type: ignore[arg-type]
    for uses in uses_of(reader.sizes, batch_size=1, lanes=5):
        futures = prefetcher.request(uses, wait=False)
        assert futures is not None
        wait(futures.values())
    prefetcher.close()
    assert reader.reads == 1


def test_without_waiting_the_fetcher_says_that_there_is_no_room() -> None:
    prefetcher = Prefetcher(Reader([6, 6]), budget=10, readers=ONE)  # type: ignore[arg-type]
    first, second = {(0, 0, 0): ContainerUse(6, {0}, {0})}, {(0, 0, 1): ContainerUse(6, {0}, {0})}
    assert prefetcher.request(first, wait=False) is not None
    assert prefetcher.request(second, wait=False) is None
    prefetcher.release(first)
    assert prefetcher.request(second, wait=False) is not None
    prefetcher.close()


def test_closing_the_fetcher_ends_a_wait() -> None:
    prefetcher = Prefetcher(Reader([6, 6]), budget=10, readers=ONE)  # type: ignore[arg-type]
    assert prefetcher.request({(0, 0, 0): ContainerUse(6, {0}, {0})}, wait=True) is not None
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(prefetcher.request, {(0, 0, 1): ContainerUse(6, {0}, {0})}, wait=True)
        prefetcher.close()
        assert waiting.result() is None


def test_a_reader_that_ends_may_close_the_fetcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch, "_READERS_WAIT", False)
    ending = threading.Event()

    class ClosedByReader(Prefetcher):
        def _read_waiting(self) -> None:
            super()._read_waiting()
            ending.set()
            time.sleep(0.05)  # until the next request waits for this thread
            self.close()  # as a garbage collection may, at any place

    prefetcher = ClosedByReader(Reader([6, 6]), budget=100, readers=ONE)  # type: ignore[arg-type]
    assert prefetcher.request({(0, 0, 0): use()}, wait=False) is not None
    assert ending.wait(60)
    assert prefetcher.request({(0, 0, 1): use()}, wait=False) is None


def use(size: int = 6) -> ContainerUse:
    return ContainerUse(size, {0}, {0})


class GatedReader(Reader):
    """Notes what is read at once, and waits in its first call."""

    def __init__(self, sizes: list[int]) -> None:
        super().__init__(sizes)
        self.calls: list[list[int]] = []
        self.begun, self.gate = threading.Event(), threading.Event()

    def __call__(self, keys: Sequence[ContainerKey]) -> list[Loaded]:
        self.calls.append([number for _, _, number in keys])
        self.begun.set()
        assert self.gate.wait(60)
        return super().__call__(keys)


def test_containers_that_wait_for_a_reader_are_read_at_once() -> None:
    reader = GatedReader([6] * 24)
    prefetcher = Prefetcher(reader, budget=1000, readers=ONE)  # type: ignore[arg-type]
    futures = []
    for numbers in (range(1), range(1, 4), range(4, 24)):
        requested = prefetcher.request({(0, 0, number): use() for number in numbers}, wait=False)
        assert requested is not None and reader.begun.wait(60)
        futures.extend(requested.values())
    reader.gate.set()
    assert all(isinstance(future.result(), Loaded) for future in futures)
    prefetcher.close()
    assert reader.calls == [[0], list(range(1, 17)), list(range(17, 24))]


def test_readers_wait_for_more_and_end_with_the_fetcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch, "_READERS_WAIT", True)
    prefetcher = Prefetcher(Reader([6] * 9), budget=100, readers=Readers(threads=2, together=8))  # type: ignore[arg-type]
    seen = set()
    for number in range(9):
        futures = prefetcher.request({(0, 0, number): use()}, wait=False)
        assert futures is not None
        wait(futures.values())
        seen |= {thread.ident for thread in threading.enumerate() if thread.name.startswith("picstore-read")}
    assert 1 <= len(seen) <= 2
    prefetcher.close()
    assert our_threads() == []


def test_readers_end_where_a_free_threaded_python_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It frees what a thread made when that runs again or has ended, and not while it waits."""
    monkeypatch.setattr(prefetch, "_READERS_WAIT", False)
    prefetcher = Prefetcher(Reader([6] * 9), budget=100, readers=Readers(threads=4, together=1))  # type: ignore[arg-type]
    for numbers in (range(8), range(8, 9)):
        futures = prefetcher.request({(0, 0, number): use() for number in numbers}, wait=False)
        assert futures is not None
        wait(futures.values())
        for thread in threading.enumerate():
            if thread.name.startswith("picstore-read"):
                thread.join(60)
        assert our_threads() == []
    prefetcher.close()


def test_closing_the_fetcher_cancels_what_waits_for_a_reader() -> None:
    reader = GatedReader([6] * 3)
    prefetcher = Prefetcher(reader, budget=1000, readers=ONE)  # type: ignore[arg-type]
    first = prefetcher.request({(0, 0, 0): use()}, wait=False)
    assert first is not None and reader.begun.wait(60)
    others = prefetcher.request({(0, 0, 1): use(), (0, 0, 2): use()}, wait=False)
    assert others is not None
    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(prefetcher.close)
        for future in others.values():
            with pytest.raises(CancelledError):
                future.result(timeout=60)
        reader.gate.set()
        closing.result()
    assert reader.calls == [[0]]
    assert all(isinstance(future.result(), Loaded) for future in first.values())


def test_an_error_of_the_reader_is_that_of_all_that_it_read_at_once() -> None:
    def fail(_: Sequence[ContainerKey]) -> list[Any]:
        raise PermissionError

    prefetcher = Prefetcher(fail, budget=1000, readers=ONE)
    futures = prefetcher.request({(0, 0, number): use() for number in range(3)}, wait=False)
    assert futures is not None
    assert [type(future.exception()) for future in futures.values()] == [PermissionError] * 3
    prefetcher.close()


def test_containers_read_in_part_count_by_what_was_read_then_by_its_share() -> None:
    begin = threading.Event()
    load = lambda keys: [Loaded(1) for _ in keys if begin.wait(60)]  # noqa: E731
    prefetcher = Prefetcher(load, budget=12, readers=ONE)  # type: ignore[arg-type]
    futures = prefetcher.request({(0, 0, 0): use(10)}, wait=False)
    assert futures is not None
    assert prefetcher.request({(0, 0, 1): use(10)}, wait=False) is None  # nothing has been read of any
    begin.set()
    for number in range(1, 13):
        wait(futures.values())
        futures = prefetcher.request({(0, 0, number): use(10)}, wait=False)
        assert (futures is None) == (number == 12)
        futures = futures or {}
        assert number < 4 or prefetcher.request({(1, 0, 0): use(10)}, wait=False) is None  # of another source
    prefetcher.close()


def test_a_block_is_taken_again_only_when_no_view_of_it_is_left() -> None:
    blocks = BufferPool(9)
    first = blocks.borrow(100_000)
    first[:] = b"1" * 100_000
    part = np.frombuffer(first[10:20], dtype=np.uint8)
    del first
    second = blocks.borrow(100_000)
    second[:] = b"2" * 100_000
    assert bytes(part) == b"1" * 10
    del part
    third = blocks.borrow(90_000)
    assert bytes(third[:10]) == b"1" * 10  # the first block, used again
    assert bytes(second[:10]) == b"2" * 10
    assert len(third) == 90_000


def test_the_smallest_block_that_fits_is_taken() -> None:
    blocks = BufferPool(9)
    memory = [blocks.borrow(size << 16) for size in (3, 1, 2)]
    for number, view in enumerate(memory):
        view[:1] = bytes([number])
    del memory, view
    assert [bytes(blocks.borrow(size << 16)[:1]) for size in (2, 1, 3)] == [b"\2", b"\1", b"\0"]


@pytest.mark.usefixtures("without_kernel")
@pytest.mark.skipif(sys.platform != "linux", reason="threads have no nice value of their own")
def test_decoding_threads_let_the_reading_one_go_first(make_dataset: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    nice: dict[str, int] = {}

    def nice_of(thread: threading.Thread) -> int:
        return os.getpriority(os.PRIO_PROCESS, thread.native_id or 0)

    def read_noting(*arguments: Any, **options: Any) -> memoryview:
        nice["read"] = nice_of(threading.current_thread())  # which ends when nothing waits for it
        return read_at(*arguments, **options)

    monkeypatch.setattr(dataset_reader, "read_at", read_noting)
    loader = loader_of(make_dataset(100))
    batches = iter(loader)
    next(batches)
    names = "picstore-work_0", "picstore-work_1", "picstore-plan"
    nice |= {thread.name: nice_of(thread) for thread in threading.enumerate() if thread.name in names}
    own = os.getpriority(os.PRIO_PROCESS, os.getpid())
    assert nice["picstore-work_0"] == nice["picstore-work_1"] == min(own + 1, 19)
    assert nice["picstore-plan"] == nice["read"] == own
    loader.close()


@pytest.mark.parametrize(
    ("count", "views", "threads", "sizes"),
    [
        (64, 1, 2, [32, 32]),
        (64, 1, 16, [16] * 4),
        (256, 1, 2, [64] * 4),
        (256, 1, 8, [32] * 8),
        (20, 1, 2, [16, 4]),
        (64, 10, 2, [6] * 10 + [4]),
        (3, 100, 1, [1] * 3),
        (1, 1, 8, [1]),
    ],
)
def test_threads_get_a_batch_in_tasks_of_16_to_64_images(
    count: int, views: int, threads: int, sizes: list[int]
) -> None:
    tasks = FORMS["pixels"].divide(count, OutputSpec((GroupSpec(count=views),)), threads=threads)
    assert [len(task) for task in tasks] == sizes
    assert [slot for task in tasks for slot in task] == list(range(count))


def test_threads_describe_tiles_in_tasks_of_64_to_128_images() -> None:
    output, form = OutputSpec((GroupSpec(count=10),)), FORMS["segments"]
    assert [[len(task) for task in form.divide(256, output, threads=threads)] for threads in (1, 2, 3, 16)] == [
        [128, 128],
        [128, 128],
        [86, 86, 84],
        [64] * 4,
    ]


# Order and memory.


def test_batches_come_in_the_order_of_their_requests(make_dataset: Make) -> None:
    path = make_dataset(150)
    dataset = picstore.Dataset(path)
    expected = []
    for request in requests_of(dataset, batch_size=8):
        samples = request[0].samples
        pairs = zip(samples.container.tolist(), samples.record.tolist(), strict=True)
        expected.append([int(dataset.entries(container)["id"][record]) for container, record in pairs])
    pipeline = pipeline_of(path, batch_size=8, threads=5)
    found = [batch.ids.tolist() for batch in iter(pipeline.receive, None)]
    pipeline.close()
    assert found == expected


@pytest.mark.parametrize("batch_size", [4, 16])
def test_containers_in_memory_stay_within_a_tenth_of_the_data_set(
    make_dataset: Make, memory: ContainerMemory, batch_size: int
) -> None:
    path = make_dataset(600)
    total = int(picstore.Dataset(path).rows["size"].sum())
    budget = total // 10
    assert budget > 4 * CONTAINER  # the four lanes fit
    memory.reads = 0
    loader = loader_of(path, batch_size=batch_size, lanes=4, budget=budget)
    for _ in range(3):
        for _ in loader:
            pass
    loader.close()
    containers = len(picstore.Dataset(path).rows)
    # Each epoch reads each container once; the fourth has begun.
    assert 3 * containers <= memory.reads <= 3 * (containers + 3) + budget // CONTAINER
    assert memory.peak <= budget + HELD_BY_READERS
    assert memory.peak > budget // 2


def test_more_lanes_than_the_budget_holds_stay_within_it_too(
    make_dataset: Make, memory: ContainerMemory, caplog: pytest.LogCaptureFixture
) -> None:
    path = make_dataset(600)
    budget = 8 * CONTAINER
    loader = loader_of(path, batch_size=4, lanes=32, budget=budget)
    ids = [i for batch in loader for i in batch.ids.tolist()]
    assert sorted(ids) == list(range(600))
    assert memory.peak <= budget + HELD_BY_READERS
    assert "containers are read more than once" in caplog.text
    assert len(caplog.records) == 1


def test_a_waiting_batch_keeps_no_container_in_memory(make_dataset: Make, memory: ContainerMemory) -> None:
    pipeline = pipeline_of(make_dataset(20), batch_size=20)
    batches = list(iter(pipeline.receive, None))
    assert len(batches) == 1
    pipeline.close()
    assert memory.reads > 0
    assert memory.now == 0


@pytest.mark.parametrize("budget", [1, CONTAINER + 1])
@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_a_tiny_budget_is_slow_and_yields_the_same(make_dataset: Make, budget: int, batch_size: int) -> None:
    path = make_dataset(100)
    loaders = [loader_of(path, batch_size=batch_size, drop_last=False, budget=b) for b in (1 << 30, budget)]
    rich, poor = ([batch.ids.tolist() for batch in loader] for loader in loaders)
    assert rich == poor


def test_the_planner_is_ahead_of_a_slow_consumer_by_the_documented_batches(make_dataset: Make) -> None:
    dataset = picstore.Dataset(make_dataset(200))
    drawn = taken = 0
    bound = AHEAD + MAX_REQUESTS + 1

    def counted() -> Iterator[BatchRequest]:
        nonlocal drawn
        for request in requests_of(dataset, batch_size=1):
            drawn += 1
            assert drawn <= taken + bound
            yield request

    pipeline = Pipeline(counted(), spec_of(dataset, 2, 1 << 30))
    for _ in range(4):
        taken += 1
        pipeline.receive()
        while drawn < taken + bound:  # it does run ahead so far
            time.sleep(0.001)
        time.sleep(0.02)  # in which a planner that did not stop would go on
        assert drawn == taken + bound
    pipeline.close()


# Files and containers of a batch.


def test_files_of_a_batch_are_those_of_its_records(make_dataset: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    path, seen = make_dataset(60), 0
    finish = batch_threads.make_params

    def compare(*arguments: Any, **options: Any) -> Any:
        nonlocal seen
        (records,) = gathered
        for container in records.containers[:1]:  # as if it lay in another file
            container.origin = lambda offset: ("elsewhere.jpg", offset + 7)
        files = records.files()
        found = [files[slot] for slot in range(len(records))]
        assert found == [records.address(slot) for slot in range(len(records))]
        assert any(name == "elsewhere.jpg" for name, _ in found) and len({name for name, _ in found}) > 1
        seen += 1
        return finish(*arguments, **options)

    gathered: list[BatchRecords] = []
    monkeypatch.setattr(
        batch_threads, "gather_records", lambda *a, **o: gathered.append(gather_records(*a, **o)) or gathered[-1]
    )
    monkeypatch.setattr(batch_threads, "make_params", compare)
    pipeline = pipeline_of(path, batch_size=60)
    assert pipeline.receive() is not None
    pipeline.close()
    assert seen == 1


def test_a_slot_without_a_record_has_no_file() -> None:
    files = RecordFiles(["a"], np.array([-1, 0]), np.array([5, 7]))
    assert [files[0], files[1]] == [("", 0), ("a", 7)]


def test_containers_of_a_batch_come_in_its_order_with_all_lanes(make_dataset: Make) -> None:
    dataset = picstore.Dataset(make_dataset(150))
    for request in requests_of(dataset, batch_size=32, lanes=7):
        samples = request[0].samples
        expected: dict[int, set[int]] = {}
        for number, lane in zip(samples.container.tolist(), samples.lane.tolist(), strict=True):
            expected.setdefault(number, set()).add(lane)
        uses = container_uses(request, [source_of(dataset)])
        found = {key.number: use.lanes for key, use in uses.items() if key.number in expected}
        assert list(found) == list(expected)
        assert all(found[number] >= lanes for number, lanes in expected.items())


# Kernels.


def test_only_the_first_containers_are_read_while_kernels_are_loaded(
    make_dataset: Make, monkeypatch: pytest.MonkeyPatch, memory: ContainerMemory
) -> None:
    path = make_dataset(100)
    first = len({*next(requests_of(picstore.Dataset(path), batch_size=8))[0].samples.container.tolist()})
    load, read = Pixels.load_filler, []

    def slow(form: Pixels, spec: PipelineSpec) -> Any:
        until = time.monotonic() + 60
        while memory.reads < first and time.monotonic() < until:
            time.sleep(0.001)
        time.sleep(0.05)  # in which more would be read
        read.append(memory.reads)
        return load(form, spec)

    monkeypatch.setattr(Pixels, "load_filler", slow)
    pipeline = pipeline_of(path, batch_size=8)
    batches = list(iter(pipeline.receive, None))
    pipeline.close()
    assert read == [first]
    assert sum(len(batch.ids) for batch in batches) == 100


def test_what_ends_the_loading_of_kernels_reaches_the_consumer_and_batches(
    make_dataset: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(form: Pixels, spec: PipelineSpec) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(Pixels, "load_filler", interrupted)
    pipeline = pipeline_of(make_dataset(20), batch_size=8)
    with pytest.raises(KeyboardInterrupt):
        pipeline.receive()
    with pytest.raises(CancelledError):
        pipeline.receive()
    pipeline.close()


def test_closing_does_not_wait_for_kernels_that_another_thread_loads(
    make_dataset: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    load, loading, closed = Pixels.load_filler, threading.Event(), threading.Event()

    def slow(form: Pixels, spec: PipelineSpec) -> Any:
        loading.set()
        assert closed.wait(60)
        return load(form, spec)

    monkeypatch.setattr(Pixels, "load_filler", slow)
    pipeline = pipeline_of(make_dataset(20), batch_size=8)
    with ThreadPoolExecutor(1) as pool:
        batch = pool.submit(pipeline.receive)
        assert loading.wait(60)
        pipeline.close()
        assert our_threads() == []
        closed.set()
        with pytest.raises(CancelledError):
            batch.result()


# Ends.


def test_the_next_epoch_is_begun_until_the_loader_is_closed_or_garbage(make_dataset: Make) -> None:
    loader = loader_of(make_dataset(50))
    assert len(list(loader)) == 6
    assert our_threads() != []
    loader.close()
    assert our_threads() == []
    assert len(list(loader)) == 6
    del loader
    assert our_threads() == []


def test_what_was_begun_is_dropped_where_another_epoch_is_wanted(make_dataset: Make) -> None:
    path = make_dataset(50)
    loader, fresh = loader_of(path), loader_of(path)
    list(loader)
    loader.set_epoch(5)
    fresh.set_epoch(5)
    assert [batch.ids.tolist() for batch in loader] == [batch.ids.tolist() for batch in fresh]


def test_epochs_that_leave_records_out_do_not_keep_their_containers(
    make_dataset: Make, memory: ContainerMemory, caplog: pytest.LogCaptureFixture
) -> None:
    path = make_dataset(610)
    loader = loader_of(path, batch_size=20, lanes=8, budget=20 * CONTAINER)
    for _ in range(4):
        assert len(list(loader)) == 30
    loader.close()
    assert caplog.records == []  # such as that containers are read more than once
    assert memory.peak <= 20 * CONTAINER + HELD_BY_READERS


@pytest.mark.parametrize("budget", [1, 1 << 30])
def test_breaking_off_leaves_no_thread(make_dataset: Make, budget: int) -> None:
    for _ in loader_of(make_dataset(100), batch_size=2, budget=budget):
        assert our_threads() != []
        break
    assert our_threads() == []


def test_an_iterator_that_is_dropped_or_closed_leaves_no_thread(make_dataset: Make) -> None:
    loader = loader_of(make_dataset(100), batch_size=2)
    dropped = iter(loader)
    next(dropped)
    del dropped
    assert our_threads() == []
    closed = iter(loader)
    next(closed)
    closed.close()  # type: ignore[attr-defined]
    assert our_threads() == []


def test_an_error_of_the_consumer_leaves_no_thread(make_dataset: Make) -> None:
    with pytest.raises(ZeroDivisionError):
        for _ in loader_of(make_dataset(100), batch_size=2):
            _ = 1 // 0


def test_an_interrupt_of_the_consumer_leaves_no_thread(make_dataset: Make) -> None:
    with pytest.raises(KeyboardInterrupt):
        for _ in loader_of(make_dataset(100), batch_size=2):
            signal.raise_signal(signal.SIGINT)


@pytest.mark.usefixtures("without_kernel")
def test_an_interrupt_while_waiting_for_a_batch_leaves_no_thread(
    make_dataset: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting, interrupted, lock = threading.Event(), threading.Event(), threading.Lock()
    timed = StatsCounter.timed

    def timed_and_told(counter: StatsCounter, name: str) -> AbstractContextManager[None]:
        if name == "waited_on_decode":
            waiting.set()
        return timed(counter, name)

    def read_late(path: Path, offset: int, size: int, **options: Any) -> memoryview:
        with lock:
            if not interrupted.is_set():
                waiting.wait()
                os.kill(os.getpid(), signal.SIGINT)
                interrupted.wait(timeout=0.5)  # no batch comes until this ends
                interrupted.set()
        return read_at(path, offset, size, **options)

    loader = loader_of(make_dataset(8), batch_size=8)
    monkeypatch.setattr(dataset_reader, "read_at", read_late)
    monkeypatch.setattr(StatsCounter, "timed", timed_and_told)
    with pytest.raises(KeyboardInterrupt):
        list(loader)


def test_closing_twice_or_before_anything_was_taken_is_fine(make_dataset: Make) -> None:
    pipeline = pipeline_of(make_dataset(100), batch_size=2)
    pipeline.close()
    pipeline.close()
    begun = pipeline_of(make_dataset(100, name="other"), batch_size=2)
    begun.receive()
    begun.close()
    begun.close()
    assert our_threads() == []


@pytest.mark.usefixtures("stage_by_stage")
def test_closing_while_the_planner_waits_for_room_in_the_budget_ends_it(
    make_dataset: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoding, go_on = threading.Event(), threading.Event()

    def decode_late(*args: object, **options: object) -> np.ndarray:
        decoding.set()
        go_on.wait()
        return np.zeros((1, 1, 3), dtype=np.uint8)

    monkeypatch.setattr(decode_crop, "decode_rgb", decode_late)
    pipeline = pipeline_of(make_dataset(100), batch_size=2, budget=1)
    pipeline.start()
    decoding.wait()
    closing = threading.Thread(target=pipeline.close)
    closing.start()
    go_on.set()
    closing.join()


# Errors.


@pytest.mark.usefixtures("without_kernel")
def test_an_error_of_the_operating_system_reaches_the_consumer(
    make_dataset: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = loader_of(make_dataset(60), batch_size=1, budget=1, lanes=1)
    batches = iter(loader)
    next(batches)

    def refused(path: Path, *args: object, **options: object) -> memoryview:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(dataset_reader, "read_at", refused)
    with pytest.raises(PermissionError, match="Permission denied"):
        list(batches)
    assert our_threads() == []


class Broken:
    """A transform with a bug."""

    fixes_size = (16, 16)

    def __call__(self, geometry: Geometry, draws: object) -> Geometry:
        raise RuntimeError("a bug in a transform")


def test_an_error_of_a_transform_reaches_the_consumer(make_dataset: Make) -> None:
    with pytest.raises(RuntimeError, match="a bug in a transform"):
        list(loader_of(make_dataset(60), transform=[Broken()]))
    assert our_threads() == []


@pytest.mark.usefixtures("stage_by_stage")
@pytest.mark.parametrize("budget", [1, 1 << 30])
def test_an_unexpected_error_of_a_worker_reaches_the_consumer(
    make_dataset: Make, monkeypatch: pytest.MonkeyPatch, budget: int
) -> None:
    def broken(*args: object, **options: object) -> None:
        raise BufferError("no buffer for an image")

    monkeypatch.setattr(fill_images.FusedKernel, "run", broken)
    with pytest.raises(BufferError, match="no buffer for an image"):
        list(loader_of(make_dataset(60), budget=budget))
    assert our_threads() == []


def test_an_error_in_the_middle_comes_after_the_batches_before_it(make_dataset: Make) -> None:
    dataset = picstore.Dataset(make_dataset(60))

    def requests() -> Iterator[BatchRequest]:
        for number, request in enumerate(requests_of(dataset, batch_size=4)):
            if number == 9:
                raise LookupError("the tenth")
            yield request

    pipeline = Pipeline(requests(), spec_of(dataset, 2, 1 << 20))
    taken = 0
    with pytest.raises(LookupError, match="the tenth"):
        for _ in iter(pipeline.receive, None):
            taken += 1
    pipeline.close()
    assert taken <= 9


# More than one.


def test_loaders_run_side_by_side(make_dataset: Make) -> None:
    path = make_dataset(100)
    one, other = loader_of(path, seed=1), loader_of(path, seed=2)
    alone = [[batch.ids.tolist() for batch in loader_of(path, seed=seed)] for seed in (1, 2)]
    pairs = [(a.ids.tolist(), b.ids.tolist()) for a, b in zip(one, other, strict=True)]
    assert pairs == list(zip(*alone, strict=True))


def test_a_loader_can_be_iterated_in_a_thread(make_dataset: Make) -> None:
    path = make_dataset(100)
    with ThreadPoolExecutor(3) as pool:
        loaders = [loader_of(path, seed=0) for _ in range(3)]
        found = list(pool.map(lambda loader: [batch.ids.tolist() for batch in loader], loaders))
    assert found[0] == found[1] == found[2]


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="counts open files in /proc")
def test_no_file_stays_open(make_dataset: Make) -> None:
    def open_files() -> int:
        gc.collect()  # a loader in a cycle goes late
        return len(list(Path("/proc/self/fd").iterdir()))

    path = make_dataset(100)
    list(loader_of(path))
    before = open_files()
    list(loader_of(path))
    for _ in loader_of(path, batch_size=2):
        break
    assert open_files() <= before  # an earlier test's garbage may have gone meanwhile
