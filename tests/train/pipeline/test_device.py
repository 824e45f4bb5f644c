"""Batches that are made on a device ahead of the consumer, with stand-ins for CUDA's streams, events and memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from picstore.train.batch import Batch
from picstore.train.pipeline.device import _DecodedBatch


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
def test_all_memory_of_a_batch_is_kept_until_the_consumers_stream_has_read_it(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    batch, stream, event, kept = BATCH[name], Stream(), object(), set()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, given: kept.add((tensor.data_ptr(), given)))
    assert _DecodedBatch(batch, [], event).hand_over() == (batch, [])  # type: ignore[arg-type]
    expected: list[torch.Tensor] = []
    batch._map(lambda tensor: expected.append(tensor) or tensor)  # type: ignore[func-returns-value]
    assert stream.waited == [event] and len(expected) >= 4
    assert kept == {(tensor.data_ptr(), stream) for tensor in expected}
