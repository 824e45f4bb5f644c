"""The way of a batch to the consumer, built by PipelineRunner: in threads, in loader processes or on a cluster.

requests ─→ Pipeline, threads of this process           span ─→ LoaderProcesses, one or several, each with a
            (isolate=False, a DataLoader's worker)              Pipeline for each span of its own (isolate=True)
                    │                                                       │
                    │                    span ─→ RemoteWorkers, Pipelines on a cluster
                    │                            (engine="ray")             │
                    └──────────────────── HostBatch ────────────────────────┘
                                              │
            TensorStage: in the same memory,  │  AheadStage: copy, or decode and
            on the CPU                        │  augment, on CUDA streams, ahead
                    └────────────────────── Batch ──────────────────────────┘
                                              │
                            Delivery: count, log damage ─→ consumer: callables
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from picstore.errors import PicstoreError, UsageError
from picstore.train.batch import Batch
from picstore.train.batching.damage import DamageLog
from picstore.train.batching.spec import PipelineSpec
from picstore.train.buffers import BufferPools
from picstore.train.cuda.nvjpeg import Decode, check_decoder, choose_decoder, load_decoder, with_index
from picstore.train.loader_options import check_main_guard
from picstore.train.order.cursor import Worker
from picstore.train.order.spans import Span
from picstore.train.pipeline.batch_forms import FORMS, form_of_decoder
from picstore.train.pipeline.loader_process import LoaderProcess
from picstore.train.pipeline.own_threads import Closables, close_garbage, wait_for_exit
from picstore.train.pipeline.process_sequence import ProcessSequence
from picstore.train.pipeline.stats import Stats, StatsCounter
from picstore.train.pipeline.to_device import AheadStage, DeviceStage, HostSource, TensorStage
from picstore.train.transforms.batch_random import BatchRandom
from picstore.train.transforms.callables import apply_callable
from picstore.train.transforms.mixup_cutmix import BatchTransform
from picstore.train.transforms.transform_plan import UserTransform

if TYPE_CHECKING:
    from picstore.train.pipeline.remote_workers import RemoteWorkers


@dataclass(frozen=True, slots=True)
class OwnProcesses:
    """Number of processes that a loader starts; within a worker of torch's DataLoader, a loader starts none.

    Attributes:
        count: number of processes; 0 for threads of this process.
        chosen: whether the user chose ``count``; a DataLoader's worker then rejects more than 1.
        whole_budget: whether a DataLoader's worker may use all of the loader's memory budget, not 1 / ``count`` of it.
    """

    count: int
    chosen: bool
    whole_budget: bool


@dataclass(frozen=True, slots=True)
class Remote:
    """Use of a Ray cluster: number of workers (None for as many as its CPUs allow), and number of ranks."""

    workers: int | None
    ranks: int


def refuse_workers() -> NoReturn:
    """Raise UsageError, because a local loader has no remote workers."""
    raise UsageError("workers are set with engine='ray'; give threads= with engine='local'")


class PipelineRunner:
    """Runner of a loader's pipelines, one for each epoch; keeps memory and processes between epochs.

    Args:
        decoder: name of a decoder; UsageError is raised if the device lacks the decoder.
        processes: number of loader processes, among which threads and memory are divided; unused with ``remote``.
        threads: number of decoding threads; None for one per core, divided among the workers of a DataLoader.
        remote: workers on a cluster that make the batches, with ``spec.resources.threads`` threads each.
    """

    def __init__(
        self,
        spec: PipelineSpec,
        *,
        damage_log: DamageLog,
        device: torch.device,
        decoder: str = "auto",
        processes: OwnProcesses,
        threads: int | None = None,
        remote: Remote | None = None,
    ) -> None:
        if decoder == "auto" and any(source.dataset.foreign for source in spec.sources):
            decoder = "cpu"  # Decoders on a GPU take only JPEGs.
        decoder = choose_decoder(decoder, device)
        output = replace(spec.output, form=form_of_decoder(decoder))
        self._form = FORMS[output.form]
        if output.reducing_gap is not None and not self._form.reduces:
            raise UsageError(
                f"decoder={decoder!r} decodes at full size; leave out reducing_gap, or give another decoder"
            )
        self._spec = replace(spec, output=output, strict=damage_log.strict)
        self._damage_log = damage_log
        self._device, self._decoder = device, decoder
        self._decoders: dict[torch.device, Decode] = {}  # Decoders that have decoded a test image.
        can_start = bool(sys.executable) and not hasattr(sys, "frozen")  # A frozen program has no interpreter to start.
        self._count, self._own = processes.count if can_start else 0, processes
        self._threads = threads
        self._counter = StatsCounter()
        self._buffers = self._make_buffers()
        self._pid = os.getpid()
        self._processes: list[LoaderProcess] = []
        self._remote = remote
        self._workers: RemoteWorkers | None = None
        if remote is not None:
            from picstore.train.pipeline.remote_workers import pickle_spec

            pickle_spec(self._spec)  # Raise errors of pickling before anything is started.
        self._open = Closables()  # What ``close`` ends: pipelines, processes, workers, even if an iterator uses them.
        # Batches started for the next iteration: process id, position of the first batch, and iterator over them.
        self._begun: tuple[int, tuple[int, int], Delivery] | None = None

    @property
    def stats(self) -> Stats:
        """Statistics since the loader was made."""
        return self._counter.stats

    def set_budget(self, budget: int) -> None:
        """Set the budget of bytes for containers; the next iteration starts new processes with it."""
        self._spec = replace(self._spec, resources=replace(self._spec.resources, budget=budget))
        self._processes = []
        self._end_workers()

    @property
    def workers(self) -> int | None:
        """Number of remote workers; None for a local loader, or for as many as the cluster has room for."""
        return None if self._remote is None else self._remote.workers

    @workers.setter
    def workers(self, count: int) -> None:
        if self._remote is None:
            refuse_workers()
        self._remote = replace(self._remote, workers=count)
        if self._workers is not None:
            self._workers.count = count

    def batches(self, span: Span) -> Delivery:
        """Return a span's batches before callables are applied: those passed to :meth:`keep`, or else new ones."""
        position = span.epoch, span.first
        begun, self._begun = self._begun, None
        if begun is not None:
            if begun[:2] == (os.getpid(), position):
                return begun[2]
            begun[2].close()
        device = with_index(self._device)
        # Try the decoder first, so that a broken decoder fails before any thread or process is started.
        strict, load = self._damage_log.strict, self._load_decoder
        make = self._form.make_maker(self._spec.output, device, strict=strict, load=load)
        source = self._start_source(span)
        stage: DeviceStage = (
            TensorStage(source, output=self._spec.output, device=device)
            if make is None
            else AheadStage(source, make=make, device=device)
        )
        return Delivery(stage, self._counter, self._damage_log)

    def _start_source(self, span: Span) -> HostSource:
        if self._pid != os.getpid():
            # In a fork, locks copied from the parent may be held forever, and the buffers are the parent's.
            self._buffers, self._counter = self._make_buffers(), StatsCounter(self._counter.stats)
            self._processes, self._workers, self._pid = [], None, os.getpid()
        if self._remote is not None:
            return self._on_cluster(self._remote, span)
        if self._count and not Worker.current().count:
            return self._in_processes(span)
        if self._count > 1 and self._own.chosen:
            text = f"processes is {self._count}, and a DataLoader's workers are processes already"
            raise UsageError(f"{text}; leave it out, or iterate the loader itself")
        return self._in_threads(span)

    def _load_decoder(self, device: torch.device) -> Decode:
        if device not in self._decoders:
            decode = load_decoder(self._decoder, device)
            check_decoder(decode, device)
            self._decoders[device] = decode
        return self._decoders[device]

    def keep(self, position: tuple[int, int], batches: Delivery) -> None:
        """Keep ``batches`` running for the next iteration, in case it begins at ``position``."""
        self.drop_begun()
        self._begun = (os.getpid(), position, batches)

    def apply_callables(self, batch: Batch, callables: Sequence[UserTransform], *, seed: int) -> Batch:
        """Apply callables in order to a batch on its device, with torch's generators seeded by ``seed``.

        Transforms of whole batches, such as ``MixUp``, also get the labels.
        """
        if not callables:
            return batch
        images, labels, random = batch.images, batch.labels, BatchRandom(seed, 0, [0])
        seeded = not all(isinstance(transform, BatchTransform) for transform in callables)
        device = labels.device
        forked = torch.random.fork_rng([device] if device.type == "cuda" else [], enabled=seeded)
        # This process's lock for torch's generators, which callables in several threads share.
        lock = _generator_locks.setdefault(os.getpid(), threading.RLock())
        with lock if seeded else nullcontext(), forked:
            if seeded:
                _seed_generators(seed & ((1 << 63) - 1), device)
            for transform in callables:
                if isinstance(transform, BatchTransform):
                    images, labels = transform(images, labels, random)
                else:
                    images = apply_callable(transform, images)
        return replace(batch, images=images, labels=labels)

    def close(self) -> None:
        """End all threads and processes. Iterators in use raise PicstoreError from then on."""
        self.drop_begun()
        self._processes, self._workers = [], None
        for closable in self._open:
            closable.close()

    def _in_threads(self, span: Span) -> HostSource:
        spec, workers = self._spec, Worker.current().count
        if self._count > 1 and not self._own.whole_budget:  # A DataLoader's worker has one process's share.
            budget = spec.resources.budget // self._count
            spec = replace(spec, resources=replace(spec.resources, budget=budget))
        if self._threads is None and workers:
            spec = replace(spec, resources=replace(spec.resources, threads=max(1, spec.resources.threads // workers)))
        from picstore.train.pipeline.batch_threads import Pipeline  # needed only if this process makes batches

        pipeline = Pipeline(span(spec.sources), spec, buffers=self._buffers, counter=self._counter)
        self._open.add(pipeline)
        return pipeline

    def _make_buffers(self) -> BufferPools:
        return BufferPools.for_batches(mapped=self._form.mapped)

    def _in_processes(self, span: Span) -> HostSource:
        """Return batches made by loader processes, which are kept because starting a process takes half a second."""
        specs = [self._spec_of_process(number) for number in range(self._count)]
        if any(process.running and process.alive for process in self._processes):
            # Another iterator uses the kept processes, so this iterator has processes of its own.
            return ProcessSequence([*map(self._start_process, specs)], span, specs[0], owned=True)
        kept = {number: process for number, process in enumerate(self._processes) if process.alive}
        self._processes = [kept.get(number) or self._start_process(spec) for number, spec in enumerate(specs)]
        return ProcessSequence(self._processes, span, specs[0])

    def _spec_of_process(self, number: int) -> PipelineSpec:
        resources = self._spec.resources
        threads = max(1, (resources.threads + number) // self._count)
        budget = max(1, resources.budget // self._count)
        return replace(self._spec, resources=replace(resources, threads=threads, budget=budget))

    def _start_process(self, spec: PipelineSpec) -> LoaderProcess:
        process = LoaderProcess(spec, self._counter)
        self._open.add(process)
        return process

    def _on_cluster(self, remote: Remote, span: Span) -> HostSource:
        from picstore.train.pipeline.remote_sequence import RemoteSequence

        if Worker.current().count:
            raise UsageError("engine='ray' has workers of its own; iterate the loader itself, not in a DataLoader")
        if self._workers is None or not self._workers.alive:
            self._workers = self._start_workers(remote)
        if not self._workers.in_use:
            return RemoteSequence(self._workers, span)
        # Another iterator uses the kept workers, so this iterator has workers of its own.
        return RemoteSequence(self._start_workers(remote), span, owned=True)

    def _start_workers(self, remote: Remote) -> RemoteWorkers:
        from picstore.train.pipeline.remote_workers import RemoteWorkers

        workers = RemoteWorkers(self._spec, self._counter, count=remote.workers, ranks=remote.ranks)
        self._open.add(workers)
        return workers

    def _end_workers(self) -> None:
        if self._workers is not None:
            self._workers.close()
        self._workers = None

    def drop_begun(self) -> None:
        """Stop making the batches that were started for the next iteration."""
        if self._begun is not None:
            self._begun[2].close()
            self._begun = None

    def __getstate__(self) -> dict[str, Any]:
        check_main_guard()
        fresh: dict[str, Any] = dict.fromkeys(("_buffers", "_workers", "_begun"))
        return {**self.__dict__, **fresh, "_processes": [], "_pid": -1, "_open": Closables(), "_decoders": {}}


# Key: process id, because a fork may inherit a lock that is held forever, and so needs a lock of its own.
_generator_locks: dict[int, threading.RLock] = {}


def _seed_generators(seed: int, device: torch.device) -> None:
    """Seed torch's generators of the CPU and of one device; ``torch.manual_seed`` would seed all GPUs' generators."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)


class Delivery(Iterator[Batch]):
    """Iterator over a stage's batches that counts them, logs damage, and closes the stage once the iterator is garbage.

    A Delivery is not a generator, because a generator cannot be closed while a thread waits in it. It does not refer to
    its runner, because a reference cycle would delay the closing.
    """

    def __init__(self, stage: DeviceStage, counter: StatsCounter, damage_log: DamageLog) -> None:
        self._stage, self._counter, self._damage_log = stage, counter, damage_log
        # A finalizer, because __del__ may be called after the interpreter has emptied modules that closing needs.
        self._finalizer = weakref.finalize(self, close_garbage, stage.close)
        self._finalizer.atexit = False

    def __next__(self) -> Batch:
        try:
            with self._counter.timed("waited_on_decode"):
                received = self._stage.receive()
        except CancelledError as error:
            wait_for_exit()
            raise PicstoreError(
                "the loader was closed, or this process was forked, while the iterator was in use; iterate it again"
            ) from error
        if received is None:
            raise StopIteration
        batch, refused = received.batch, received.refused
        counts = {"batches": 1, "images": len(batch.labels), "damaged": len(received.damage), "fallbacks": len(refused)}
        self._counter.add(**counts, copied=int(received.copied))
        self._damage_log.report(received.damage)
        if refused:
            self._damage_log.report_fallbacks(refused, of=len(batch.labels))
        return batch

    def close(self) -> None:
        """End all stages, now or, during a garbage collection, soon after."""
        self._finalizer()
