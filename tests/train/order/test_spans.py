"""Spans: they are the steps of an order, each once, and long enough that containers are read little more than once."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import picstore
from picstore.train.order.requests import BatchRequest
from picstore.train.order.spans import MAX_READ, Span, steps_of_span
from picstore.train.pipeline.prefetch import container_uses

Make = Callable[..., Path]
OPTIONS: dict[str, Any] = {"batch_size": 8, "transform": [picstore.RandomResizedCrop(32)], "isolate": False}


def spans_of_epochs(span: Span, steps: int, epochs: int) -> Iterator[Span]:
    """Divide the steps of some epochs."""
    while span.epoch < epochs:
        part, span = span.cut(steps)
        yield part


def samples(request: BatchRequest) -> list[Any]:
    return [(wanted.epoch, wanted.samples.container.tolist(), wanted.samples.record.tolist()) for wanted in request]


@pytest.mark.parametrize("steps", [1, 3, 7, 12, 1000])
def test_spans_are_the_steps_of_all_epochs_each_once(make_dataset: Make, steps: int) -> None:
    loader = picstore.Loader(make_dataset(100), **OPTIONS)
    whole = Span(loader.order, 0, 5)
    parts = [pickle.loads(pickle.dumps(part)) for part in spans_of_epochs(whole, steps, 3)]  # noqa: S301
    found = [samples(request) for part in parts for request in part(loader.sources)]
    count = 3 * len(loader) - 5
    assert found == [samples(request) for request in itertools.islice(whole(loader.sources), count)]
    assert len(found) == sum(part.count or 0 for part in parts) == count
    assert max(part.count or 0 for part in parts) <= max(1, 1.5 * steps)
    begun = parts[0].after(1)
    assert [samples(request) for request in begun(loader.sources)] == found[1 : parts[0].count]


def test_spans_of_an_order_without_epochs_have_the_steps_asked_for(make_dataset: Make) -> None:
    mux = picstore.DataMux([(picstore.Dataset(make_dataset(40)), 0, 8)], transform=OPTIONS["transform"])
    first, rest = Span(mux.order, 0, 9).cut(7)
    assert (first.first, first.count, rest.first, rest.count) == (9, 7, 16, None)


def test_a_position_after_an_epoch_begins_with_the_next(make_dataset: Make) -> None:
    loader = picstore.Loader(make_dataset(40), **OPTIONS)
    first, _ = Span(loader.order, 0, len(loader)).cut(2)
    assert (first.epoch, first.first) == (1, 0)


@pytest.mark.parametrize("lanes", [2, 4, 8])
def test_spans_read_at_most_a_quarter_more_than_the_epoch(make_dataset: Make, lanes: int) -> None:
    loader = picstore.Loader(make_dataset(1200, container_size=8 << 10, file_size=128 << 10), lanes=lanes, **OPTIONS)
    dataset, span = loader.dataset, Span(loader.order, 0)
    steps, stored = steps_of_span(span, loader.sources)
    size = float(dataset.rows["size"].sum())
    assert stored == pytest.approx(size * 8 / 1200)
    assert 1 < steps < len(loader) / 2, "several spans are needed to show anything"
    read = []
    for part in spans_of_epochs(span, steps, 4):
        uses: set[Any] = set()
        for request in part(loader.sources):
            uses |= {key for key, use in container_uses(request, loader.sources).items() if use.needed}
        read.append(sum(dataset.containers.held_bytes(key.number) for key in uses))
    assert 1 < np.sum(read) / 4 / size <= MAX_READ


def test_a_batch_that_takes_all_that_its_lanes_open_is_a_span_by_itself(make_dataset: Make) -> None:
    loader = picstore.Loader(make_dataset(64), **{**OPTIONS, "batch_size": 64}, lanes=1)
    assert steps_of_span(Span(loader.order, 0), loader.sources)[0] == 1
