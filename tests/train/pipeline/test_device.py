"""Batches that are made on a device ahead of the consumer, with stand-ins for CUDA's streams, events and memory."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from itertools import count
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
from picstore.train.pipeline.device import THREADS, AheadStage, TensorStage, _QueuedBatch, _ThreadMaker
from picstore.train.pipeline.device_batch import CopyPixels, MadeBatch


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
    made = MadeBatch(batch, [])
    assert _QueuedBatch(made, event).hand_over() is made  # type: ignore[arg-type]
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
    assert len(next(iter(loader))) == 4
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


def test_threads_of_all_stages_of_a_device_have_the_same_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: made.append(device) or len(made))  # type: ignore[func-returns-value]
    device = torch.device("cuda:7")
    used = [_ThreadMaker(lambda host: MadeBatch(host, []), device, numbers)._stream for numbers in (count(), count())]
    assert used == [1, 1] and made == [device] * THREADS
