"""CPU time for an image of ``decoder="picstore"`` on the host: the loader's process, the passing, the training process.

No GPU is needed. Launches of Triton's kernels are replaced by some that return at once, and copies to the device by
none, so that Python, NumPy and torch's allocations remain. The memory of batches counts as page-locked, so no copy to
such memory is made; what is not measured is its registration with CUDA, once for each of a handful of blocks, and the
GPU's own copy. Containers are of 8 MiB, as in a large data set: each costs Python's time, and small data sets have
smaller ones.
"""

from __future__ import annotations

import gc
import math
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain, islice, repeat
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np

import picstore
from benchmarks.dataset import write_dataset
from benchmarks.gpu.device import STANDARD, interpreted
from benchmarks.gpu.expected import QUALITY_90, QUALITY_90_OPTIONS
from benchmarks.harness import MICROSECONDS, Case, Row, Sample, Table, measure
from benchmarks.options import Options
from benchmarks.photographs import find

BATCH, IMAGES = 256, 18_000
# Seconds that an H100 took for quality 90: to read the codes of a batch, or of some at once; for the rest of an image.
READING, LINEAR = 377e-6, 3.8e-6
WHOLE = "quality 90: a loader of one process and a GPU that takes an H100's times, by the wall clock"
_SMALL = 1 << 14  # values; torch's larger zeros are memory of the device, whose kernels make them
_KEPT = 8  # batches that the training process takes in turn


def host(options: Options) -> Table:
    """µs of CPU time for an image by stage, and what 2 cores can do."""
    return Table(**interpreted("benchmarks.gpu.host:measure_host", options))


def measure_host(fields: dict[str, Any]) -> dict[str, Any]:
    """Measure in this process, which interprets Triton's kernels: they may be on the CPU."""
    options = Options.from_json(fields)
    count = len(find(options.photographs, options.images or (64 if options.quick else None)))
    copies = -(-(512 if options.quick else IMAGES) // count)
    sets = [write_dataset(options, "--streams", "1", *more, copies=copies) for more in ((), QUALITY_90_OPTIONS)]
    photographs, quality_90 = sets
    kept = _keep(photographs)
    gc.collect()
    gc.freeze()  # as in the loader's process, which has no torch either
    block, others = kept[0].take_apart()
    sent = ForkingPickler.dumps(("batch", others))
    larger = (2 if options.quick else 4) * BATCH
    cases = [
        Case("loader", lambda _: _read(photographs)),
        Case("passing: pickle what is no array in shared memory", lambda _: _repeat(_pickle, kept)),
        Case("passing: unpickle", lambda _: _repeat(lambda _: _unpickle(sent, block), kept)),
        Case("training: Python", lambda _: _make_batches(kept)),
        Case("training: Python, 4 batches at once", lambda _: _make_batches(kept, together=4)),
        Case(f"loader, {QUALITY_90}", lambda _: _read(quality_90)),
        Case(f"loader, batches of {larger:,}", lambda _: _read(photographs, batch=larger)),
    ]
    results = measure(cases, rounds=options.round_count(5), clock=time.process_time)
    # By the wall clock: what threads and processes wait for is no sum of CPU times.
    results += measure(
        [Case(f"whole, {WHOLE}", lambda _: _run_whole(quality_90, options.quick))],
        rounds=options.round_count(3),
        clock=time.perf_counter,
    )
    rows: list[Row] = []
    for result in results:
        row: Row = {"stage": result.name}
        if result.samples:
            row["µs an image"] = float(np.median([MICROSECONDS.value(sample) for sample in result.samples]))
            row["images/s of a core"] = 1e6 / row["µs an image"]
        rows.append(row | result.figures | ({"problem": result.problem} if result.problem else {}))
    whole = rows.pop()
    rows[1]["bytes an image"] = len(sent) / BATCH
    loader, pickling, unpickling, training, _, other, _ = (row.get("µs an image", 0.0) for row in rows)
    for name, first in (("all", loader), (f"all, {QUALITY_90}", other)):
        total = first + pickling + unpickling + training
        rows.append({"stage": f"{name}, on 2 cores", "µs an image": total, "images/s of a core": 2e6 / total})
    rows.append(whole)
    layout = others.encoded.segments.layout
    tables = layout.uploaded - layout.data
    about = (
        f"batches of {BATCH}, RandomResizedCrop and flip; photographs: {layout.data / BATCH / 1e3:.0f} KB held of "
        f"each, {tables / BATCH / 1e3:.1f} KB of tables; no launches, no GPU: neither its copies nor the page-locking "
        "of the blocks that it copies, once for each"
    )
    return {"about": about, "rows": rows, "samples": {r.name: [s.seconds for s in r.samples] for r in results}}


@contextmanager
def host_batches(path: Path, *, batch: int = BATCH, transform: Any = STANDARD) -> Iterator[Callable[[], Iterator[Any]]]:
    """Epochs of batches in the host's memory, of the pipeline in threads of this process."""
    from picstore.train.batch import Batch
    from picstore.train.pipeline import runner
    from picstore.train.pipeline.device_decoding import MadeBatch

    class Stage:
        """Hands batches over as they come."""

        def __init__(self, source: Any, **_: Any) -> None:
            self.close, self._source = source.close, source

        def receive(self) -> Any:
            batch = self._source.receive()
            if batch is None:
                return None
            # Without a tensor for the weight, 0.5 µs an image: the training process makes it.
            return MadeBatch(Batch(batch, batch.labels, batch.ids, weight=batch.weight), batch.damage)

    with ExitStack() as stack:
        stack.enter_context(patch.object(runner, "choose_decoder", lambda name, _: name))
        stack.enter_context(patch.object(runner, "AheadStage", Stage))
        options: dict[str, Any] = {"batch_size": batch, "transform": transform, "decoder": "picstore", "seed": 1}
        loader = picstore.Loader(path, threads=1, isolate=False, **options)
        try:
            yield lambda: (batch.images for batch in loader)
        finally:
            loader.close()


def _read(path: Path, *, batch: int = BATCH) -> Sample:
    """Take the batches of a second epoch."""
    from picstore.storage.location.local import Folder
    from picstore.train.cpu import fill_for_gpu

    parts = [
        ("of it reading, µs", Folder, "read"),
        ("describing and copying rows, µs", fill_for_gpu, "describe_tiles"),
    ]
    spent = dict.fromkeys((name for name, *_ in parts), 0.0)

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            start = time.thread_time()
            result = function(*arguments, **options)
            spent[name] += time.thread_time() - start
            return result

        return call

    with ExitStack() as stack:
        for name, owner, attribute in parts:
            stack.enter_context(patch.object(owner, attribute, timed(name, getattr(owner, attribute))))
        stack.enter_context(patch.object(fill_for_gpu.SegmentFiller, "_probe"))
        epoch = stack.enter_context(host_batches(path, batch=batch))
        for _ in epoch():
            pass
        start = time.process_time()
        spent.update(dict.fromkeys(spent, 0.0))
        images = sum(len(made.labels) for made in epoch())
        seconds = time.process_time() - start
    figures = {name: value / images * 1e6 for name, value in spent.items()}
    figures["Python and threads, µs"] = seconds / images * 1e6 - sum(figures.values())
    return Sample(images, seconds, figures)


def _keep(path: Path) -> list[Any]:
    """Batches whose memory stays."""
    from picstore.train.cpu import fill_for_gpu

    with patch.object(fill_for_gpu.SegmentFiller, "_probe"), host_batches(path) as epoch:
        return list(islice(epoch(), _KEPT))


def _repeat(work: Any, kept: Sequence[Any]) -> int:
    for batch in kept:
        work(batch)
    return BATCH * len(kept)


def _pickle(batch: Any) -> None:
    ForkingPickler.dumps(("batch", batch.take_apart()[1]))


def _unpickle(sent: Any, block: Any) -> Any:
    return pickle.loads(sent)[1].put_together(block)  # noqa: S301 - its own


class _Launch:
    """Replacement of a kernel of Triton's."""

    def __getitem__(self, grid: Any) -> Any:
        return lambda *_, **__: None


def _torch() -> SimpleNamespace:
    """Make a replacement of a module's ``torch``: memory of the device is not cleared by the CPU."""
    import torch

    def zeros(size: Any, **options: Any) -> torch.Tensor:
        small = size < _SMALL if isinstance(size, int) else math.prod(size) < _SMALL
        return (torch.zeros if small else torch.empty)(size, **options)

    return SimpleNamespace(**{**vars(torch), "zeros": zeros})


def _upload(_: Any, images: Any, __: Any, *, starts: Sequence[int], **___: Any) -> dict[str, Any]:
    """Allocate what batches are copied to, without a copy, which a GPU makes by itself."""
    import torch

    from picstore.train.cuda.decode_tiles import _UPLOADED

    block = torch.empty(starts[-1], dtype=torch.uint8)
    return {name: block.view(dtype) for name, dtype in _UPLOADED.items()} | {"images": images}


@contextmanager
def without_gpu() -> Iterator[None]:
    """Replace launches by some that return at once, and let all memory count as page-locked."""
    from picstore.train.cuda import augment, decode_tiles, page_locked
    from picstore.train.pipeline import device_decoding

    kernels, colors = (
        {name: _Launch() for name, value in vars(module).items() if type(value).__name__ == "InterpretedFunction"}
        for module in (decode_tiles, augment)
    )
    gpu = torch_device("cuda:0")
    locking = patch.object(device_decoding, "lock_pages", lambda block, _: page_locked.lock_pages(block, gpu))
    with ExitStack() as stack:
        stack.enter_context(patch.multiple(decode_tiles, torch=_torch(), _upload=_upload, **kernels))
        stack.enter_context(patch.multiple(augment, torch=_torch(), **colors))
        stack.enter_context(patch.object(page_locked, "_register", lambda *_: ""))
        stack.enter_context(locking)
        yield


def torch_device(name: str) -> Any:
    """A device of torch, which this process imports late."""
    import torch

    return torch.device(name)


def _make_batches(kept: Sequence[Any], *, together: int = 1) -> Sample:
    """Make batches of kept ones as the training process does."""
    from picstore.train.batching.spec import GroupSpec, OutputSpec
    from picstore.train.pipeline import device_decoding

    output = OutputSpec((GroupSpec(stacked=True),), form="segments")
    make = device_decoding.DecodeTiles(output, torch_device("cpu"), strict=False)
    divided = [batch.take_apart() for batch in kept]
    unpickled = [_unpickle(pickle.dumps(("batch", others)), block) for block, others in divided]
    with without_gpu():
        start = time.process_time()
        for first in range(0, len(unpickled), together):
            for finish in make.start(unpickled[first : first + together]):
                made = finish()
                if made.refused or made.damage or made.copied:
                    raise AssertionError(f"images were left to the CPU, or copied: {made.refused[:1]}")
        return Sample(BATCH * len(kept), time.process_time() - start)


class _Clock:
    """The time at which a GPU, to which work is given in order, has done what it was given last."""

    def __init__(self) -> None:
        self._free = 0.0

    def queue(self, seconds: float) -> SimpleNamespace:
        """Give work; returns what ``synchronize`` sleeps for."""
        self._free = done = max(self._free, time.perf_counter()) + seconds
        return SimpleNamespace(synchronize=lambda: time.sleep(max(done - time.perf_counter(), 0)))


def _run_whole(path: Path, quick: bool) -> Sample:
    """Take batches of a loader with a process of its own, whose GPU takes the times that an H100 took."""
    from picstore.train.cuda import decode_tiles
    from picstore.train.pipeline import runner

    clock, queued = _Clock(), decode_tiles.decode_tiles

    def decode_timed(tables: Sequence[Any], **options: Any) -> Any:
        images, status = queued(tables, **options)
        seconds = READING + LINEAR * sum(len(each.count) for each in tables)
        return images, decode_tiles.DecodeStatus(status._status, clock.queue(seconds))  # type: ignore[arg-type]

    with without_gpu(), ExitStack() as stack:
        stack.enter_context(patch.object(decode_tiles, "decode_tiles", decode_timed))
        stack.enter_context(patch.object(runner, "choose_decoder", lambda name, _: name))
        stack.enter_context(patch("picstore.train.pipeline.device_decoding._check_pixels", lambda *_: None))
        loader = picstore.Loader(path, batch_size=BATCH, transform=STANDARD, decoder="picstore", seed=1)
        try:
            batches = chain.from_iterable(repeat(loader))
            for _ in range(8):
                next(batches)
            images, own, start = 0, time.process_time(), time.perf_counter()
            while time.perf_counter() - start < (0.5 if quick else 5):
                images += len(next(batches))
            seconds = time.perf_counter() - start
            return Sample(images, seconds, {"training process, µs": (time.process_time() - own) / images * 1e6})
        finally:
            loader.close()
