"""Stages that make tensors of HostBatches: in the same memory, or on a GPU that decodes and augments ahead.

    source ──→ thread with a CUDA stream of its own ──────────────→ consumer
               drain the stream, decode, augment, record an event   let its own stream wait for the event

The consumer's thread waits for no GPU, nor do kernels of different batches for each other.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from picstore.arrays import I64, Bools
from picstore.errors import Corrupt, Damage
from picstore.train.batch import Batch, image_tensors
from picstore.train.batching.damage import replace_damaged
from picstore.train.batching.host_batch import EncodedBatch, HostBatch
from picstore.train.batching.parameters import TransformParams
from picstore.train.batching.spec import GroupSpec, OutputSpec
from picstore.train.cuda.decode import Decode, decode_all
from picstore.train.pipeline.at_exit import close_at_exit
from picstore.train.pipeline.thread_pool import ThreadPool
from picstore.train.transforms.geometry import Geometry

THREADS = 2  # one decodes while the other prepares; torchvision's decoder has a lock of its own
_AHEAD = 2  # batches that wait for the consumer


class HostSource(Protocol):
    """Batches in CPU memory: a Pipeline, or a ProcessSequence."""

    def receive(self) -> HostBatch | None:
        """The next batch; None at the end, after which there must be no further call."""

    def close(self) -> None:
        """End its threads."""


class DeviceStage(Protocol):
    """Batches on their device, and the records that were replaced in each."""

    def receive(self) -> tuple[Batch, list[Damage]] | None:
        """The next batch; None at the end, after which there must be no further call."""

    def close(self) -> None:
        """End its threads and its source."""


class TensorStage:
    """Makes tensors of decoded batches, in their memory or copied to a device."""

    def __init__(self, source: HostSource, *, output: OutputSpec, device: torch.device) -> None:
        self._source, self._groups, self._device = source, output.groups, device
        self._dtype: torch.dtype = getattr(torch, output.dtype)

    def receive(self) -> tuple[Batch, list[Damage]] | None:
        """The next batch; errors are those of the source."""
        host = self._source.receive()
        if host is None:
            return None
        batch = Batch.from_host(host, image_tensors(host.images, self._dtype), self._groups).to(self._device)
        host.release()
        return batch, host.damage

    def close(self) -> None:
        """End the source."""
        self._source.close()


class DecoderStage:
    """Decodes and augments batches of streams on a device, ahead of the consumer, in order.

    An image that does not decode is replaced, or ends the batches if ``strict`` is set.
    """

    def __init__(
        self, source: HostSource, *, output: OutputSpec, decode: Decode, device: torch.device, strict: bool
    ) -> None:
        self._source = _OrderedSource(source)
        self._decoder = _ThreadDecoder(output, decode, device, strict)
        self._pool = ThreadPool(THREADS, "device")
        self._pending: deque[Future[_DecodedBatch | None]] = deque()
        self._submitted = 0
        close_at_exit(self)

    def receive(self) -> tuple[Batch, list[Damage]] | None:
        """The next batch; Damage where it cannot be replaced or ``strict`` is set."""
        self._submit()
        decoded = self._pending.popleft().result()
        if decoded is None:
            return None
        self._submit()
        return decoded.hand_over()

    def close(self) -> None:
        """End the threads and the source."""
        self._pool.close()
        self._source.close()

    def _submit(self) -> None:
        while len(self._pending) < _AHEAD + THREADS:
            self._pending.append(self._pool.submit(self._decode, self._submitted))
            self._submitted += 1

    def _decode(self, number: int) -> _DecodedBatch | None:
        host = self._source.receive(number)
        return None if host is None else self._decoder.decode_batch(host)


@dataclass(frozen=True, slots=True)
class _DecodedBatch:
    """A batch on its device; ``event`` is what the consumer's stream has to wait for, None on a CPU."""

    batch: Batch
    damage: list[Damage]
    event: torch.cuda.Event | None

    def hand_over(self) -> tuple[Batch, list[Damage]]:
        """Make all that follows on the current stream wait until the batch is made."""
        if self.event is not None:
            stream = torch.cuda.current_stream(self.batch.labels.device)
            stream.wait_event(self.event)
            self.batch.record_stream(stream)  # or its memory might be used again while the consumer's kernels read it
        return self.batch, self.damage


class _OrderedSource:
    """Receives from a source in the order of numbers, from several threads."""

    def __init__(self, source: HostSource) -> None:
        self._source = source
        self._next = 0
        self._ended = False
        self._changed = threading.Condition()

    def receive(self, number: int) -> HostBatch | None:
        """Batch ``number``; None after the end or an error."""
        with self._changed:
            self._changed.wait_for(lambda: self._next == number)
            try:
                if self._ended:
                    return None
                self._ended = True
                batch = self._source.receive()
                self._ended = batch is None
                return batch
            finally:
                self._next += 1
                self._changed.notify_all()

    def close(self) -> None:
        self._source.close()


class _ThreadDecoder(threading.local):
    """Decodes and augments batches; each thread on a CUDA stream of its own."""

    def __init__(self, output: OutputSpec, decode: Decode, device: torch.device, strict: bool) -> None:
        self._output, self._decode, self._device, self._strict = output, decode, device, strict
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def decode_batch(self, host: HostBatch) -> _DecodedBatch:
        if self._stream is None:
            return _DecodedBatch(*self._decode_batch(host), event=None)
        with torch.cuda.stream(self._stream):
            # The hardware engine writes before what is queued on the stream has run: on an H100, 134 of 200 batches
            # were damaged without this (torchvision pull request 9606).
            self._stream.synchronize()
            batch, damage = self._decode_batch(host)
            return _DecodedBatch(batch, damage, self._stream.record_event())

    def _decode_batch(self, host: HostBatch) -> tuple[Batch, list[Damage]]:
        encoded, device = host.encoded, self._device
        if encoded is None:
            raise TypeError("a batch for a decoder on a device has no streams")
        slots = np.unique(encoded.shown)
        data = torch.from_numpy(np.asarray(host.images))
        streams = [data[start:stop] for start, stop in encoded.bounds[slots].tolist()]
        decoded, problems = decode_all(streams, encoded.boxes[slots, 2:], decode=self._decode, device=device)
        image_of = dict(zip(slots.tolist(), decoded, strict=True))
        broken = {int(slots[number]): text for number, text in problems.items()}
        damage = _replace_broken(host, encoded, broken) if broken else []
        if damage and self._strict:
            raise damage[0]
        shown = encoded.shown.tolist()
        origins, images = encoded.boxes[shown, :2], [image_of[slot] for slot in shown]
        groups = [
            augment_views(images, origins, params.select_slots(encoded.shown, count=group.count), self._output, group)
            for params, group in zip(encoded.params, self._output.groups, strict=True)
        ]
        batch = Batch.from_host(host, groups, self._output.groups)
        return batch.to(device, non_blocking=True), [*host.damage, *damage]


def _replace_broken(host: HostBatch, encoded: EncodedBatch, broken: dict[int, str]) -> list[Damage]:
    """Replace images that do not decode, given by the slot of their stream; returns their damage."""
    problems: dict[int, Damage] = {
        slot: Corrupt(f"record {host.ids[slot]} {broken[shown]}", *encoded.files[shown])
        for slot, shown in enumerate(encoded.shown.tolist())
        if shown in broken
    }
    replace_damaged(host, problems)
    return list(problems.values())


def augment_views(
    images: Sequence[torch.Tensor], origins: I64, params: TransformParams, output: OutputSpec, group: GroupSpec
) -> Any:
    """Resample and colour decoded images (3, h, w): a group's views (count, N, 3, H, W), or count lists of N images.

    ``origins``, int64 (n, 2), are left and top of each in its stored image.
    """
    count, n = group.count, len(images)
    made = augment_images(list(images) * count, np.tile(origins, (count, 1)), params, output, group)
    if isinstance(made, list):
        return [made[k : k + n] for k in range(0, len(made), n)]
    return made.view(count, n, *made.shape[1:])


def augment_images(
    images: Sequence[torch.Tensor], origins: I64, params: TransformParams, output: OutputSpec, group: GroupSpec
) -> torch.Tensor | list[torch.Tensor]:
    """Resample and colour decoded images, one for each row of ``params``: (n, 3, H, W), or a list of sizes."""
    from picstore.train.cuda.augment import augment  # with Triton

    made: Any = []
    rest = np.flatnonzero(~_is_unchanged(params, output, group))
    if len(rest):
        chosen = [images[slot] for slot in rest.tolist()]
        if len(rest) < len(images):
            params = params.select_slots(rest, count=1)
        ones = np.ones(len(rest), dtype=np.int64)
        options: dict[str, Any] = {"dtype": output.dtype, "channels_last": output.channels_last}
        made = augment(chosen, origins[rest], ones, params.geometry, params.program, **options)
    if group.stacked:
        return made  # type: ignore[no-any-return]
    by_slot = dict(zip(rest.tolist(), made, strict=True))
    listed = [by_slot.get(slot, image) for slot, image in enumerate(images)]
    firsts = {id(image): slot for slot, image in reversed(list(enumerate(listed)))}
    # The replacement of a damaged image is a copy, as are views that equal the decoded image: writing to one must not
    # change another.
    return [image if firsts[id(image)] == slot else image.clone() for slot, image in enumerate(listed)]


def _is_unchanged(params: TransformParams, output: OutputSpec, group: GroupSpec) -> Bools:
    """bool (n,): which outputs equal the decoded image; none of a batch that is one tensor."""
    geometry = params.geometry
    if group.stacked or output.dtype != "uint8" or output.channels_last or not params.program.empty:
        return np.zeros(len(geometry.size), dtype=np.bool_)
    same = (geometry.frame == Geometry.identity(*geometry.source_size.T).frame).all(axis=(1, 2))
    unchanged: Bools = same & (geometry.size == geometry.source_size).all(axis=1) & ~geometry.shows_edges
    return unchanged
