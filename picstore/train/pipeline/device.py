"""From streams to batches on a GPU, ahead of the consumer.

    source ──→ thread with a CUDA stream of its own ──────────────→ consumer
               drain the stream, decode, augment, record an event   let its own stream wait for the event

The consumer's thread waits for no GPU, nor do kernels of different batches for each other.
"""

from __future__ import annotations

import copy
import threading
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from picstore.arrays import I64, Bools
from picstore.errors import Corrupt, Damage
from picstore.train.batch import Batch, make_tensors, tensors_of
from picstore.train.batching.damage import replace_lost
from picstore.train.batching.parameters import TransformParams
from picstore.train.batching.spec import HostBatch, OutputSpec
from picstore.train.cuda.decode import Decode, decode_all
from picstore.train.pipeline.thread_pool import Pool
from picstore.train.transforms.geometry import Geometry

THREADS = 2  # one decodes while the other prepares; torchvision's decoder has a lock of its own
_AHEAD = 2  # batches that wait for the consumer


@dataclass(frozen=True, slots=True)
class Made:
    """A batch on its device; ``event`` is what the consumer's stream has to wait for, None on a CPU."""

    batch: Batch
    lost: list[Damage]
    event: torch.cuda.Event | None

    def hand_over(self) -> tuple[Batch, list[Damage]]:
        """Order all that follows on the current stream behind the making of the batch."""
        if self.event is not None:
            images = self.batch.images
            stream = torch.cuda.current_stream(self.batch.labels.device)
            stream.wait_event(self.event)
            for tensor in (*(images if isinstance(images, list) else [images]), self.batch.labels, self.batch.ids):
                tensor.record_stream(stream)  # or its memory might be used again while the consumer's kernels read it
        return self.batch, self.lost


def make_ahead(
    source: Generator[HostBatch], *, form: OutputSpec, decode: Decode, device: torch.device, strict: bool
) -> Generator[tuple[Batch, list[Damage]]]:
    """Decode and augment what ``source`` yields, in its order; closing the generator ends the threads and the source.

    Raises:
        Damage: a record does not decode and ``strict`` is set, or nothing of a source is left in a batch.
    """
    turns = _Turns(source)
    worker = _Worker(form, decode, device, strict)
    pool = Pool(THREADS, "device")

    def make(number: int) -> Made | None:
        ready = turns.take(number)
        return None if ready is None else worker.make(ready)

    try:
        pending: deque[Future[Made | None]] = deque()
        for number in range(_AHEAD + THREADS):
            pending.append(pool.submit(make, number))
        while (made := pending.popleft().result()) is not None:
            number += 1
            pending.append(pool.submit(make, number))
            yield made.hand_over()
            del made  # its memory may be free before the next is asked for
    finally:
        pool.close()
        source.close()


class _Turns:
    """Takes from an iterator in the order of numbers, from several threads."""

    def __init__(self, source: Iterator[HostBatch]) -> None:
        self._source = source
        self._next = 0
        self._changed = threading.Condition()

    def take(self, number: int) -> HostBatch | None:
        """Item ``number``, None behind the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._next == number)
            try:
                return next(self._source, None)
            finally:
                self._next += 1
                self._changed.notify_all()


class _Worker(threading.local):
    """Makes batches; each thread on a CUDA stream of its own."""

    def __init__(self, form: OutputSpec, decode: Decode, device: torch.device, strict: bool) -> None:
        self._form = form
        self._decode = decode
        self._device = device
        self._strict = strict
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def make(self, ready: HostBatch) -> Made:
        if self._stream is None:
            return Made(*self._make(ready), event=None)
        with torch.cuda.stream(self._stream):
            # The hardware engine writes before what is queued on the stream has run: on an H100, 134 of 200 batches
            # were damaged without this (torchvision pull request 9606).
            self._stream.synchronize()
            batch, lost = self._make(ready)
            return Made(batch, lost, self._stream.record_event())

    def _make(self, ready: HostBatch) -> tuple[Batch, list[Damage]]:
        undecoded, device = ready.streams, self._device
        slots = np.unique(undecoded.shown)
        data = torch.from_numpy(ready.images)
        streams = [data[start:stop] for start, stop in undecoded.bounds[slots].tolist()]
        decoded, problems = decode_all(streams, undecoded.places[slots, 2:], decode=self._decode, device=device)
        by_slot = dict(zip(slots.tolist(), decoded, strict=True))
        wrong = {int(slots[number]): text for number, text in problems.items()}
        lost = _replace(ready, wrong) if wrong else []
        if lost and self._strict:
            raise lost[0]
        shown = undecoded.shown.tolist()
        pictures = [by_slot[slot] for slot in shown]
        origins = undecoded.places[undecoded.shown, :2]
        images = finish(pictures, origins, undecoded.look.of_slots(undecoded.shown), self._form)
        labels, ids = (torch.from_numpy(values).to(device, non_blocking=True) for values in (ready.labels, ready.ids))
        targets = ready.targets
        if targets is not None:
            sizes = [tuple(image.shape[-2:]) for image in images]
            targets = [make_tensors(target, size) for target, size in zip(targets, sizes, strict=True)]
        columns = tensors_of(ready.columns)
        for name, values in columns.items():
            columns[name] = values.to(device, non_blocking=True) if isinstance(values, torch.Tensor) else values
        return Batch(images, labels, ids, targets, columns), [*ready.lost, *lost]


def _replace(ready: HostBatch, wrong: dict[int, str]) -> list[Damage]:
    """Show others in place of images that do not decode; returns what is lost."""
    undecoded = ready.streams
    problems: dict[int, Damage] = {
        slot: Corrupt(f"record {ready.ids[slot]} {wrong[shown]}", *undecoded.files[shown])
        for slot, shown in enumerate(undecoded.shown.tolist())
        if shown in wrong
    }

    def show(other: int, slot: int) -> None:
        undecoded.shown[slot] = undecoded.shown[other]
        if ready.targets is not None:
            ready.targets[slot] = copy.deepcopy(ready.targets[other])
        for values in ready.columns.values():
            values[slot] = values[other]

    replace_lost(problems, undecoded.source, ready.labels, ready.ids, show)
    return list(problems.values())


def finish(pictures: Sequence[torch.Tensor], origins: I64, look: TransformParams, form: OutputSpec) -> Any:
    """Resample and colour decoded images (3, h, w): a batch (N, 3, H, W), or a list where sizes differ."""
    from picstore.train.cuda.augment import augment  # with Triton

    made: Any = []
    rest = np.flatnonzero(~_as_it_is(look, form))
    if len(rest):
        chosen = [pictures[slot] for slot in rest.tolist()]
        if len(rest) < len(pictures):
            look = look.of_slots(rest)
        options: dict[str, Any] = {"dtype": form.dtype, "channels_last": form.channels_last}
        ones = np.ones(len(rest), dtype=np.int64)
        made = augment(chosen, origins[rest], ones, look.geometry, look.program, **options)
    if form.size is not None:
        return made
    by_slot = dict(zip(rest.tolist(), made, strict=True))
    images = [by_slot.get(slot, picture) for slot, picture in enumerate(pictures)]
    firsts = {id(image): slot for slot, image in reversed(list(enumerate(images)))}
    # What replaces a lost one is a copy: who writes to one image must not change another.
    return [image if firsts[id(image)] == slot else image.clone() for slot, image in enumerate(images)]


def _as_it_is(look: TransformParams, form: OutputSpec) -> Bools:
    """bool (n,): which images are what was decoded; none of a batch that is one tensor."""
    geometry = look.geometry
    if form.size is not None or form.dtype != "uint8" or form.channels_last or not look.program.empty:
        return np.zeros(len(geometry.size), dtype=np.bool_)
    same = (geometry.frame == Geometry.identity(*geometry.source_size.T).frame).all(axis=(1, 2))
    plain: Bools = same & (geometry.size == geometry.source_size).all(axis=1) & ~geometry.shows_edges
    return plain
