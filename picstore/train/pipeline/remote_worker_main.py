"""A remote worker, the worker's side of ``remote_sequence.py``, which makes the batches of spans, one for each call.

This module knows nothing of Ray and does not import torch.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np

from picstore._version import __version__
from picstore.arrays import U8, Array
from picstore.errors import PicstoreError, UsageError
from picstore.train.batching.host_batch import HostBatch, map_images
from picstore.train.batching.spec import PipelineSpec
from picstore.train.buffers import BufferPools, share_array
from picstore.train.buffers import Mapping as MappedMemory
from picstore.train.order.requests import Order
from picstore.train.order.spans import Span
from picstore.train.pipeline.batch_threads import Pipeline
from picstore.train.pipeline.stats import Stats, StatsCounter


@dataclass(frozen=True, slots=True)
class RemoteMessage:
    """Message from a Ray worker about a batch whose arrays lie in Ray's memory; compare ``loader_process.Message``.

    Attributes:
        arrays: result of ``HostBatch.take_apart``, with a ``SharedArray`` in place of each array.
        size: bytes of the block that holds the arrays.
    """

    arrays: Any
    size: int
    batch: HostBatch
    stats: Stats


def versions() -> dict[str, str]:
    """Return the version of each package that affects the values of batches."""
    return {"picstore": __version__, **{name: version(name) for name in ("numpy", "numba")}}


class RemoteWorker:
    """Maker of a specification's batches; another worker that gets the same calls makes the same batches."""

    def __init__(self) -> None:
        self._counter = StatsCounter()
        self._buffers = BufferPools()
        self._pipelines: dict[int, Pipeline | Exception] = {}  # pipeline or error of each span of batches, by key
        self._sending: HostBatch | None = None  # The latest batch, kept alive because Ray is copying its memory.

    def open(self, wanted: Mapping[str, str], pickled: bytes) -> Exception | None:
        """Open the datasets of a pickled PipelineSpec; return the error that keeps this worker from making batches.

        Args:
            wanted: version of each package on the trainer's machine.
        """
        mine = versions()
        differing = [
            f"{name} {mine[name]} where the trainer has {wanted[name]}" for name in wanted if mine[name] != wanted[name]
        ]
        if differing:
            return PicstoreError(f"{', '.join(differing)}; install the same versions on all nodes")
        try:
            self._spec: PipelineSpec = pickle.loads(pickled)  # noqa: S301 - of the driver, as all that Ray brings
        except (PicstoreError, OSError) as error:
            return PicstoreError(f"{error}; all nodes must see the datasets under the same names")
        except (ImportError, AttributeError) as error:
            text = f"it cannot import collate or a transform: {error}"
            return UsageError(f"{text}; give functions of the main program, or of modules that all nodes have")
        return None

    def begin(self, key: int, kept: list[int], order: Order, epoch: int, first: int, count: int) -> None:
        """Begin a span of batches under ``key``, and end all other spans except those whose keys are in ``kept``."""
        self._end({*kept})
        requests = Span(order, epoch, first, count=count)(self._spec.sources)
        pipeline = Pipeline(requests, self._spec, buffers=self._buffers, counter=self._counter)
        self._pipelines[key] = pipeline
        try:
            pipeline.start()
        except Exception as error:  # ``make`` returns the error in place of the span's first batch.
            self._pipelines[key] = error
            pipeline.close()

    def make(self, key: int) -> tuple[bytes, U8 | None]:
        """Make the next batch of the range of batches that was begun under ``key``.

        Returns:
            A pickled RemoteMessage and the bytes of its images, uint8; or a pickled error and None.
        """
        pipeline = self._pipelines[key]
        try:
            if isinstance(pipeline, Exception):
                raise pipeline
            batch = pipeline.receive()
        except (PicstoreError, OSError) as error:
            # Later calls return the error too, because a pipeline that has failed makes no further batch.
            self._pipelines[key] = error
            if isinstance(pipeline, Pipeline):
                pipeline.close()
            return pickle.dumps(error), None
        if batch is None:
            raise IndexError(f"span {key} has no further batch")
        taken, others = batch.take_apart()
        start, memory = _memory_of(taken)
        arrays = map_images(partial(share_array, start), taken)
        message = RemoteMessage(arrays, len(memory), others, self._counter.stats)
        self._sending = batch
        return pickle.dumps(message), memory

    def end(self) -> None:
        self._end(set())

    def _end(self, kept: set[int]) -> None:
        for key in self._pipelines.keys() - kept:
            pipeline = self._pipelines.pop(key, None)  # None if another thread has ended it.
            if isinstance(pipeline, Pipeline):
                pipeline.close()


def _memory_of(images: Any) -> tuple[int, U8]:
    """Return the address of the block that holds all arrays of a batch, and the block as uint8 (n,)."""
    bounds: list[tuple[int, int]] = []

    def note(array: Array) -> None:
        last = sum((length - 1) * stride for length, stride in zip(array.shape, array.strides, strict=True))
        bounds.append(
            (array.ctypes.data, array.ctypes.data + last + array.itemsize if array.size else array.ctypes.data)
        )

    map_images(note, images)
    start, stop = min(start for start, _ in bounds), max(stop for _, stop in bounds)
    return start, np.asarray(MappedMemory(start, stop - start))
