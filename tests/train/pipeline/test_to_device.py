"""Batches that are made on a device ahead of the consumer, with stand-ins for CUDA's streams, events and memory."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import picstore
from picstore.errors import UsageError
from picstore.train.batch import Batch
from picstore.train.batching.host_batch import HostBatch
from picstore.train.batching.spec import OutputSpec
from picstore.train.pipeline import runner
from picstore.train.pipeline import to_device as stages
from picstore.train.pipeline.device_decoding import TOGETHER, CopyPixels, Finish, MadeBatch
from picstore.train.pipeline.own_threads import ThreadPool
from picstore.train.pipeline.to_device import STREAMS, AheadStage, TensorStage


class Stream:
    """The consumer's stream: notes for which events it waits."""

    def __init__(self) -> None:
        self.waited: list[Any] = []

    def wait_event(self, event: Any) -> None:
        self.waited.append(event)


def zeros(*shape: int) -> torch.Tensor:
    return torch.zeros(shape)


BATCH = {
    "plain": Batch(zeros(2, 3, 4, 4), zeros(2), zeros(2)),
    "listed": Batch([zeros(3, 4, 4), zeros(3, 5, 4)], zeros(2), zeros(2)),
    "views": Batch(
        {"large": zeros(2, 2, 3, 4, 4), "whole": [[zeros(3, 4, 4), zeros(3, 5, 4)]]},
        zeros(2),
        zeros(2),
        columns={"vector": zeros(2, 5), "text": ["a", None]},
    ),
}


@pytest.mark.parametrize("name", BATCH)
def test_a_batchs_memory_is_kept_until_the_consumers_stream_has_read_it(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    batch, stream, event, kept = BATCH[name], Stream(), object(), set()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, given: kept.add((tensor.data_ptr(), given)))
    made = MadeBatch(batch, [], event=event)  # type: ignore[arg-type]
    assert made.hand_over() is made
    expected: list[torch.Tensor] = []
    batch._map(lambda tensor: expected.append(tensor) or tensor)  # type: ignore[func-returns-value]
    assert stream.waited == [event] and len(expected) >= 4
    assert kept == {(tensor.data_ptr(), stream) for tensor in expected}


class Source:
    """A source of host batches that notes when their memory is let go."""

    def __init__(self, count: int) -> None:
        self.left = [
            HostBatch(
                images=[np.full((1, 2, 3, 4, 4), number, np.uint8)],
                labels=np.full(2, number),
                ids=np.full(2, number),
                source=np.zeros(2, np.int64),
                targets=None,
                damage=[],
            )
            for number in range(count)
        ]
        self.given: list[HostBatch] = []

    def receive(self) -> HostBatch | None:
        if not self.left:
            return None
        self.given.append(self.left.pop(0))
        return self.given[-1]

    def close(self) -> None:
        pass


def test_decoded_batches_are_copied_ahead_from_page_locked_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, bool]] = []
    to, own = Batch.to, threading.get_ident()

    def pin(batch: Batch) -> Batch:
        calls.append(("pinned", threading.get_ident() == own))
        return batch._map(torch.clone)

    def copy(batch: Batch, device: Any, *, non_blocking: bool = False) -> Batch:
        calls.append(("copied without waiting" if non_blocking else "copied", threading.get_ident() == own))
        return to(batch, device, non_blocking=non_blocking)

    monkeypatch.setattr(Batch, "pin_memory", pin)
    monkeypatch.setattr(Batch, "to", copy)
    source, cpu = Source(9), torch.device("cpu")
    stage = AheadStage(source, make=CopyPixels(OutputSpec(), cpu), device=cpu)
    received = [stage.receive() for _ in range(9)]
    assert stage.receive() is None
    stage.close()
    assert [made and int(made.batch.images[0, 0, 0, 0]) for made in received] == [*range(9)]
    assert set(calls) == {("pinned", False), ("copied without waiting", False)}  # by no thread of the consumer
    assert all(isinstance(host.images, list) and not host.images for host in source.given)


def test_a_loader_for_a_gpu_copies_what_the_cpu_decodes_ahead(
    monkeypatch: pytest.MonkeyPatch, make_dataset: Callable[..., Path]
) -> None:
    made: list[Any] = []

    def note(source: Any, *, make: Any, device: torch.device) -> Any:
        made.append((type(make), device))
        return TensorStage(source, output=make.output, device=torch.device("cpu"))

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(runner, "AheadStage", note)
    options = {"transform": [picstore.Resize((4, 4))], "isolate": False, "decoder": "cpu", "device": "cuda:0"}
    loader = picstore.Loader(make_dataset(4), batch_size=4, **options)
    assert len(next(iter(loader)).labels) == 4
    assert made == [(CopyPixels, torch.device("cuda:0"))]


def test_callables_change_the_generators_of_no_other_gpu(
    monkeypatch: pytest.MonkeyPatch, make_dataset: Callable[..., Path]
) -> None:
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: pytest.fail("seeds all GPUs"))
    noise = picstore.Loader(
        make_dataset(4),
        batch_size=4,
        transform=[picstore.Resize((4, 4)), torch.rand_like],
        dtype=torch.float32,
        isolate=False,
    )
    before = torch.get_rng_state()
    drawn = next(iter(noise)).images
    assert torch.equal(torch.get_rng_state(), before)
    assert len(drawn.unique()) > 100

    seeded: list[tuple[str, int]] = []
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext(seeded.append((str(device), -1))))
    monkeypatch.setattr(torch.cuda, "manual_seed", lambda seed: seeded.append(("", seed)))
    with torch.random.fork_rng([]):
        runner._seed_generators(5, torch.device("cuda:1"))
    assert seeded == [("cuda:1", -1), ("", 5)]


def test_a_gpu_that_is_not_there_is_refused_before_the_data_set_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    for found, device in ((0, "cuda"), (2, "cuda:2")):
        monkeypatch.setattr(torch.cuda, "device_count", lambda found=found: found)
        with pytest.raises(UsageError, match=f"device is '{device}'; torch finds "):
            picstore.Loader("/nowhere", batch_size=1, device=device)


def test_all_stages_of_a_device_have_the_same_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: made.append(device) or len(made))  # type: ignore[func-returns-value]
    device = torch.device("cuda:7")
    used = [[next(streams) for _ in range(3)] for streams in (stages._rotate_streams(device) for _ in range(2))]
    assert used == [[1, 2, 1]] * 2 and made == [device] * STREAMS


MOST_AHEAD = 6


class Together:
    """Makes batches of up to four hosts; notes which, and which were finished, and waits until it may begin or end."""

    together = TOGETHER

    def __init__(self) -> None:
        self.started: list[list[int]] = []
        self.finished: list[int] = []
        self.begin, self.go_on = threading.Event(), threading.Event()
        self.begin.set()
        self.fails: dict[int, BaseException] = {}

    def takes(self, hosts: Any) -> bool:
        return len(hosts) <= 4

    def start(self, hosts: Any) -> list[Finish]:
        numbers = [int(host.labels[0]) for host in hosts]
        self.started.append(numbers)
        assert self.begin.wait(60)
        for number in numbers:
            if number in self.fails:
                raise self.fails[number]
        return [lambda number=number: self._finish(number) for number in numbers]  # type: ignore[misc]

    def _finish(self, number: int) -> MadeBatch:
        assert self.go_on.wait(60)
        self.finished.append(number)
        return MadeBatch(Batch(zeros(2), torch.full((2,), number), zeros(2)), [])


def numbers_of(stage: AheadStage, count: int) -> list[int]:
    return [int(made.batch.labels[0]) for _ in range(count) if (made := stage.receive()) is not None]


def test_batches_that_wait_are_started_together_and_come_in_order() -> None:
    """The first is started alone, at once; and the source is asked for no more batches than may be ahead."""
    source, make = Source(40), Together()
    make.begin.clear()
    stage = AheadStage(source, make=make, device=torch.device("cpu"))
    first = in_thread(numbers_of, stage, 1)
    wait_for(lambda: len(source.given) == MOST_AHEAD and make.started == [[0]])
    make.begin.set()
    wait_for(lambda: make.started == [[0], [1, 2, 3, 4]])
    assert len(source.given) == MOST_AHEAD and not first.done()
    make.go_on.set()
    assert first.result(60) + numbers_of(stage, 40) == [*range(40)] and make.finished == [*range(40)]
    assert max(map(len, make.started)) == TOGETHER
    stage.close()


def test_an_error_of_one_batch_leaves_those_that_were_started_with_it(caplog: pytest.LogCaptureFixture) -> None:
    stages._warn_of_memory.cache_clear()
    source, make = Source(9), Together()
    make.fails = {4: UsageError("of the fifth")}
    make.go_on.set()
    stage = AheadStage(source, make=make, device=torch.device("cpu"))
    with pytest.raises(UsageError, match="of the fifth"):
        numbers_of(stage, 9)
    assert make.finished[:4] == [0, 1, 2, 3] and not caplog.records
    assert numbers_of(stage, 4) == [5, 6, 7, 8] and stage.receive() is None
    stage.close()


def test_memory_that_suffices_for_single_batches_only_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    stages._warn_of_memory.cache_clear()
    make = Together()
    make.begin.clear()

    def start(hosts: Any) -> list[Finish]:
        finishes = Together.start(make, hosts)
        if len(hosts) > 1:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return finishes

    make.start = start  # type: ignore[method-assign]
    source = Source(30)
    stage = AheadStage(source, make=make, device=torch.device("cpu"))
    all_of_them = in_thread(numbers_of, stage, 30)
    wait_for(lambda: len(source.given) == MOST_AHEAD)
    make.begin.set(), make.go_on.set()
    assert all_of_them.result(60) == [*range(30)] and [1, 2, 3, 4] in make.started
    assert [record.getMessage()[:34] for record in caplog.records] == ["the GPU's memory does not suffice "]
    stage.close()


def test_closing_finishes_what_was_started_and_cancels_who_waits() -> None:
    """A GPU may still read the memory of batches that were started."""
    source, make, raised = Source(9), Together(), []
    stage = AheadStage(source, make=make, device=torch.device("cpu"))

    def receive() -> None:
        try:
            stage.receive()
        except BaseException as error:
            raised.append(type(error))

    consumer = threading.Thread(target=receive)
    consumer.start()
    wait_for(lambda: bool(make.started))
    closing = threading.Thread(target=stage.close)
    closing.start()
    consumer.join(60)
    assert raised == [CancelledError] and not make.finished
    make.go_on.set()
    closing.join(60)
    assert make.finished == [number for started in make.started for number in started]
    with pytest.raises(CancelledError):
        stage.receive()


def test_no_batch_is_started_whose_end_a_close_would_cancel() -> None:
    source, make = Source(9), Together()
    stage = AheadStage(source, make=make, device=torch.device("cpu"))
    stage._pool = ThreadPool(2, "device")  # Of the stage's three calls, the last never begins.
    consumer = in_thread(lambda: [0 for _ in range(1) if stage.receive()])
    with pytest.raises(TimeoutError):
        consumer.result(0.2)
    make.go_on.set()
    stage.close()
    assert make.finished == [number for started in make.started for number in started]


def in_thread(function: Callable[..., list[int]], *arguments: Any) -> Future[list[int]]:
    pool = ThreadPoolExecutor(1)
    future = pool.submit(function, *arguments)
    pool.shutdown(wait=False)
    return future


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)
