"""The way of a batch to the consumer, which PipelineRunner builds.

requests ─→ Pipeline, threads of this process           requests ─→ LoaderProcess, a Pipeline of its own
            (isolate=False, a DataLoader's worker)                  (isolate=True)
                    └──────────────────── HostBatch ────────────────────────┘
                                              │
            TensorStage: in the same memory,  │  DecoderStage: decode and augment
            or copied to the device           │  on CUDA streams, ahead
                    └────────────────────── Batch ──────────────────────────┘
                                              │
                            deliver: count, log damage ─→ consumer: callables
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from picstore.train.batch import Batch
from picstore.train.batching.damage import DamageLog
from picstore.train.batching.spec import MakeRequests, PipelineSpec
from picstore.train.buffers import BufferPools
from picstore.train.cuda.decode import find_decoder, with_index
from picstore.train.order.cursor import Worker
from picstore.train.pipeline.device import DecoderStage, DeviceStage, HostSource, TensorStage
from picstore.train.pipeline.process import LoaderProcess, ProcessSequence
from picstore.train.pipeline.stats import Stats, StatsCounter


class PipelineRunner:
    """Runs the pipelines of a loader, one an epoch, and keeps memory and process from one to the next.

    Args:
        decoder: a name of ``cuda/decode.py``; UsageError if it is not for the device.
        callables: applied to the images on their device, one after the other.
        isolate: run the pipeline in a process of its own. A DataLoader's worker is one already, and has none.
        threads: None for one a core, shared among the workers of a DataLoader.
    """

    def __init__(
        self,
        spec: PipelineSpec,
        *,
        damage_log: DamageLog,
        device: torch.device,
        decoder: str = "auto",
        callables: Sequence[Callable[[Any], Any]] = (),
        isolate: bool = True,
        threads: int | None = None,
    ) -> None:
        output = replace(spec.output, decoded=find_decoder(decoder, device) is None)
        self._spec = replace(spec, output=output, strict=damage_log.strict)
        self._damage_log = damage_log
        self._device, self._decoder = device, decoder
        self._callables = tuple(callables)
        self._isolate = isolate and bool(sys.executable) and not hasattr(sys, "frozen")  # is there a Python to start?
        self._threads = threads
        self._counter = StatsCounter()
        self._buffers = BufferPools()
        self._pid = os.getpid()
        self._process: LoaderProcess | None = None
        self._begun: tuple[int, tuple[int, int], Generator[Batch]] | None = None  # process, position, batches

    @property
    def stats(self) -> Stats:
        """What was done and waited for."""
        return self._counter.stats

    def batches(self, position: tuple[int, int], requests: MakeRequests) -> Generator[Batch]:
        """Yield batches before the callables; closing the generator ends all stages.

        They begin at an epoch and batch, where ``requests`` do; those kept for this position go on.
        """
        begun, self._begun = self._begun, None
        if begun is not None:
            if begun[:2] == (os.getpid(), position):
                return begun[2]
            begun[2].close()
        isolated = self._isolate and not Worker.current().count
        source: HostSource = self._in_process(requests) if isolated else self._in_threads(requests)
        device = with_index(self._device)
        decode = find_decoder(self._decoder, device)
        output, strict = self._spec.output, self._damage_log.strict
        stage: DeviceStage
        if decode is None:
            stage = TensorStage(source, dtype=getattr(torch, output.dtype), device=device)
        else:
            stage = DecoderStage(source, output=output, decode=decode, device=device, strict=strict)
        return _deliver(stage, self._counter, self._damage_log)

    def keep(self, position: tuple[int, int], batches: Generator[Batch]) -> None:
        """Let a generator of batches go on; the next iteration may begin at ``position``, where it is."""
        self._drop_begun()
        self._begun = (os.getpid(), position, batches)

    def apply_callables(self, batch: Batch, *, seed: int) -> Batch:
        """Apply the callables to a batch on its device, with torch's generators seeded by ``seed``."""
        if not self._callables:
            return batch
        images: Any = batch.images
        with torch.random.fork_rng(devices=[self._device] if self._device.type == "cuda" else []):
            torch.manual_seed(seed & ((1 << 63) - 1))
            for transform in self._callables:
                images = transform(images)
        return replace(batch, images=images)

    def close(self) -> None:
        """End all threads and the process."""
        self._drop_begun()
        if self._process is not None:
            self._process.close()
            self._process = None

    def _in_threads(self, requests: MakeRequests) -> HostSource:
        if self._pid != os.getpid():  # a fork: locks may be held for ever, and they guard the parent's memory
            self._buffers, self._counter = BufferPools(), StatsCounter(self._counter.stats)
            self._pid = os.getpid()
        spec, workers = self._spec, Worker.current().count
        if self._threads is None and workers:
            spec = replace(spec, resources=replace(spec.resources, threads=max(1, spec.resources.threads // workers)))
        # With its kernels, which a process that isolates its pipeline does without.
        from picstore.train.pipeline.pipeline import Pipeline

        return Pipeline(requests(spec.sources), spec, buffers=self._buffers, counter=self._counter)

    def _in_process(self, requests: MakeRequests) -> HostSource:
        """Batches of the process, which is kept from epoch to epoch, since starting it takes half a second."""
        if self._process is None or not self._process.alive:
            self._process = LoaderProcess(self._spec, self._counter)
        if not self._process.running:
            return ProcessSequence(self._process, requests)
        return ProcessSequence(LoaderProcess(self._spec, self._counter), requests, owned=True)  # for a second iterator

    def _drop_begun(self) -> None:
        if self._begun is not None:
            self._begun[2].close()
            self._begun = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_buffers": None, "_pid": -1, "_process": None, "_begun": None}


def _deliver(stage: DeviceStage, counter: StatsCounter, damage_log: DamageLog) -> Generator[Batch]:
    """Yield the batches of a stage, and close it in the end. No method: batches that a runner keeps do not keep it."""
    try:
        yield from iter(partial(_receive, stage, counter, damage_log), None)
    finally:
        stage.close()


def _receive(stage: DeviceStage, counter: StatsCounter, damage_log: DamageLog) -> Batch | None:
    """Take a batch from a stage, count it and log its damage; on return nothing here holds its memory."""
    with counter.timed("waited_on_decode"):
        received = stage.receive()
    if received is None:
        return None
    batch, damage = received
    counter.add(batches=1, images=len(batch), damaged=len(damage))
    damage_log.report(damage)
    return batch
