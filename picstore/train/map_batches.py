"""Calls of a user's function with batches of a dataset, made as a loader makes them, and checks of what it returns.

The work is divided into parts, each of consecutive containers. No batch goes beyond its part, so the batches, and the
values, depend neither on the engine and its workers, nor on where an interrupted run goes on.
"""

from __future__ import annotations

import contextlib
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch

from picstore.arrays import I64, Array
from picstore.cores import count_cores
from picstore.display.progress import ProgressCallback
from picstore.errors import Damage, UsageError, counted
from picstore.storage.dataset import Dataset
from picstore.storage.edits.columns import Values
from picstore.storage.format.container import Container
from picstore.storage.record_table import path_of
from picstore.train.batch import Batch, image_tensors
from picstore.train.batching.damage import NO_REPLACEMENT
from picstore.train.batching.gather import describe_damage, gather_records, has_sound_entry
from picstore.train.batching.spec import OutputSpec
from picstore.train.buffers import KEPT_BATCHES, BufferPool
from picstore.train.loader_options import check_arguments
from picstore.train.order.epoch_order import Samples
from picstore.train.order.requests import SourceRequest, TrainingSource
from picstore.train.single_batch import make_images
from picstore.train.transforms.arguments import checked_integer, name_of
from picstore.train.transforms.callables import apply_callable
from picstore.train.transforms.mixup_cutmix import BatchTransform
from picstore.train.transforms.transform_plan import Transforms, UserTransform, check_targets, plan_transforms
from picstore.train.transforms.views import Views

T = TypeVar("T")
R = TypeVar("R")

TEXT = "text"
_MAX_REASON = 200  # maximum number of characters of a failure's reason
_READ_AHEAD = 2  # number of containers to read in advance


@dataclass(frozen=True, slots=True)
class MapJob:
    """Function to call with a dataset's batches, and how to make the batches; ``key`` identifies the job."""

    source: TrainingSource
    output: OutputSpec
    callables: tuple[UserTransform, ...]
    function: Callable[[Batch], Any]
    batch_size: int
    key: str


@dataclass(frozen=True, slots=True)
class MapTask:
    """Containers for one process to map; ``sharing`` is the number of processes on its machine, 0 if unknown."""

    job: MapJob
    part: int
    containers: tuple[int, ...]
    sharing: int


@dataclass(frozen=True, slots=True)
class Form:
    """Type of a column's values: the name of NumPy's dtype, or ``"text"``, and the shape of one value."""

    dtype: str
    shape: tuple[int, ...] = ()

    def __str__(self) -> str:
        return self.dtype if not self.shape else f"{self.dtype} of shape {self.shape}"


@dataclass(frozen=True, slots=True)
class Failure:
    """Record without a value: id, None if it is unknown; path in the source, "" if unknown; and the reason."""

    id: int | None
    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class PartValues:
    """Ids and values of records, the values' ``Form`` (None if no record has a value), and records that failed."""

    ids: I64
    values: Values
    form: Form | None
    failures: tuple[Failure, ...]


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Container and index of each record of a batch; ``last`` marks the last batch of a task, which may be empty."""

    held: dict[int, Container]
    containers: I64
    records: I64
    failures: tuple[Failure, ...] = ()  # damaged records of the containers read since the previous batch
    last: bool = False

    def only(self, slots: slice, **fields: Any) -> _Chunk:
        containers = self.containers[slots]
        held = {number: self.held[number] for number in np.unique(containers).tolist()}
        return replace(self, held=held, containers=containers, records=self.records[slots], **fields)


def make_map_job(
    dataset: Dataset,
    function: Callable[[Batch], Any],
    *,
    transform: Transforms,
    targets: Sequence[str],
    dtype: torch.dtype | None,
    reducing_gap: float | None,
    batch_size: int,
) -> MapJob:
    """Return the job of calling ``function`` with a dataset's batches; raise UsageError if an argument is wrong."""
    if isinstance(transform, Views):
        raise UsageError("map takes a list of transforms, not Views; make the views of an image in the function")
    size = checked_integer(batch_size, "batch_size", 1)
    given = check_arguments({"targets": targets, "reducing_gap": reducing_gap})
    names = check_targets(given["targets"], dataset)
    plan, callables = plan_transforms(
        transform, targets=names, columns=dataset.columns, reducing_gap=given["reducing_gap"]
    )
    if mixing := [name_of(each) for each in callables if isinstance(each, BatchTransform)]:
        raise UsageError(f"{mixing[0]} mixes the images of a batch, which belong to records; leave it out")
    output = OutputSpec.from_plans([plan], dtype=None if dtype is None else str(dtype).removeprefix("torch."))
    source = TrainingSource(dataset, 0, plan=plan)
    return MapJob(source, output, callables, function, size, secrets.token_hex(8))


def map_parts(
    job: MapJob, parts: Sequence[tuple[int, ...]], *, threads: int, on_progress: ProgressCallback
) -> Iterator[PartValues]:
    """Yield the values of each part in turn; other threads make batches in advance, this thread calls the function.

    Args:
        parts: for each part, the indices of its containers (blocks of records).

    Raises:
        UsageError: the function returned values that no column can hold, or values of different types or shapes.
        PicstoreError: an object store cannot be reached.
    """
    blocks = BufferPool(KEPT_BATCHES)
    make = partial(_make_batch, job, blocks)
    executor = ThreadPoolExecutor(threads)
    try:
        containers = job.source.dataset.containers
        places = [(number, number == part[-1]) for part in parts for number in part]
        read = _ahead(executor, lambda place: (*place, containers.read_whole(place[0])), places, _READ_AHEAD)
        found: list[tuple[I64, Values, Form]] = []
        failures: list[Failure] = []
        for chunk, made in _ahead(executor, lambda each: (each, make(each)), _divide(job, read), threads + 1):
            failures += chunk.failures
            found += _call(job, chunk, made, make, failures)
            on_progress(len(chunk.records) + len(chunk.failures))
            if chunk.last:
                yield join_values(found, failures)
                found, failures = [], []
    finally:
        executor.shutdown(cancel_futures=True)


_kept: dict[str, MapJob] = {}


def run_map_task(task: MapTask, on_progress: ProgressCallback) -> PartValues:
    """Compute a task's values in an engine's process, which keeps the function, and so its model, for later tasks."""
    if task.job.key not in _kept:
        _kept.clear()
        if task.sharing:
            torch.set_num_threads(max(1, count_cores() // task.sharing))
    job = _kept.setdefault(task.job.key, task.job)
    return next(map_parts(job, [task.containers], threads=1, on_progress=on_progress))


def join_values(parts: Iterable[tuple[I64, Values, Form]], failures: Iterable[Failure]) -> PartValues:
    """Join values of several batches; raise UsageError, which names a record, if their dtypes or shapes differ."""
    found = list(parts)
    if not found:
        return PartValues(np.zeros(0, np.int64), np.zeros(0), None, tuple(failures))
    first, form = int(found[0][0][0]), found[0][2]
    for ids, _, other in found:
        require_form(other, form, int(ids[0]), f"record {first} has")
    pieces: list[Any] = [values for _, values, _ in found]
    values: Values = [text for piece in pieces for text in piece] if form.dtype == TEXT else np.concatenate(pieces)
    return PartValues(np.concatenate([ids for ids, _, _ in found]), values, form, tuple(failures))


def require_form(form: Form, expected: Form, record: int, who: str) -> None:
    """Raise UsageError if a record's value does not have the type and shape in ``expected``.

    ``who`` begins the error's message, for example "record 4 has".
    """
    if form != expected:
        raise UsageError(
            f"the function's value of record {record} is {form}, and {who} {expected}; return one type and shape for "
            "all images, and raise an exception for an image without a value"
        )


def _ahead(executor: ThreadPoolExecutor, function: Callable[[T], R], items: Iterable[T], ahead: int) -> Iterator[R]:
    """Yield the function's result for each item, in order; threads compute up to ``ahead`` results in advance."""
    pending: deque[Future[R]] = deque()
    for item in items:
        pending.append(executor.submit(function, item))
        if len(pending) > ahead:
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()


def _divide(job: MapJob, read: Iterable[tuple[int, bool, Container | Damage]]) -> Iterator[_Chunk]:
    """Divide the undamaged records of containers into batches; a task's last batch may be smaller, even empty.

    Args:
        read: for each container its index, whether it is the last of its task, and its contents or its damage.
    """
    dataset, none = job.source.dataset, np.zeros(0, np.int64)
    chunk = empty = _Chunk({}, none, none)
    for number, last, container in read:
        mask = dataset.live.mask(number)
        if isinstance(container, Damage):
            lost = (Failure(None, "", str(container)),) * int(mask.sum())
            chunk = replace(chunk, failures=chunk.failures + lost)
        else:
            file, sound = str(dataset.path / container.ref.name), np.flatnonzero(mask & container.good)
            damaged = np.flatnonzero(mask & ~container.good).tolist()
            lost = tuple(_failure(container, k, str(describe_damage(container, k, file))) for k in damaged)
            chunk = _Chunk(
                {**chunk.held, number: container},
                np.append(chunk.containers, np.full(len(sound), number)),
                np.append(chunk.records, sound),
                chunk.failures + lost,
            )
        while len(chunk.records) >= job.batch_size + last:
            yield chunk.only(slice(job.batch_size))
            chunk = chunk.only(slice(job.batch_size, None), failures=())
        if last:
            yield replace(chunk, last=True)
            chunk = empty


def _make_batch(job: MapJob, blocks: BufferPool, chunk: _Chunk) -> Batch | Exception:
    """Return the batch, or the error of a record that cannot be decoded."""
    count = len(chunk.records)
    if not count:
        return Damage("no record", "")
    # Placeholder for the fields ``lane`` and ``end`` of ``Samples``, which only loaders use.
    unused = np.zeros(count, np.int64)
    request = [SourceRequest(0, 0, Samples(chunk.containers, chunk.records, unused, unused), np.arange(count))]
    held = {(0, 0, number): container for number, container in chunk.held.items()}
    try:
        records = gather_records(request, held, sources=(job.source,))
    except Damage as error:
        return type(error)(error.what.removesuffix(NO_REPLACEMENT), error.file, error.offset)
    for problem in records.problems.values():
        return problem
    made = make_images(records, request, (job.source,), output=job.output, blocks=blocks)
    for problem in made.problems.values():
        return problem
    images = image_tensors(made.host.images, getattr(torch, job.output.dtype))
    batch = Batch.from_host(made.host, images, job.output.groups)
    for transform in job.callables:
        batch = replace(batch, images=apply_callable(transform, batch.images))
    return batch


def _call(
    job: MapJob,
    chunk: _Chunk,
    made: Batch | Exception,
    make: Callable[[_Chunk], Batch | Exception],
    failures: list[Failure],
) -> list[tuple[I64, Values, Form]]:
    """Call the function with a batch or, if that fails, with each image alone; add those that fail to ``failures``."""
    count = len(chunk.records)
    if isinstance(made, Batch):
        ids = made.ids.numpy().copy()  # a copy, because the function may write to the batch
        try:
            with torch.no_grad():
                returned = job.function(made)
        except Exception as error:  # A user's function may raise any error.
            made = error
        else:
            return [(ids, *check_values(returned, ids))]
    if count == 1:
        container = chunk.held[int(chunk.containers[0])]
        failures.append(_failure(container, int(chunk.records[0]), _reason(made)))
        return []
    alone = (chunk.only(slice(slot, slot + 1)) for slot in range(count))
    return [each for one in alone for each in _call(job, one, make(one), make, failures)]


def _reason(error: Exception) -> str:
    text = (str(error).strip().splitlines() or [""])[0][:_MAX_REASON]
    return text if isinstance(error, Damage) else f"{type(error).__name__}: {text}"


def _failure(container: Container, k: int, reason: str) -> Failure:
    if not has_sound_entry(container, k):
        return Failure(None, "", reason)
    path = None
    with contextlib.suppress(Damage):  # The extras, which hold the path, may be damaged too.
        path = path_of(container, k)
    return Failure(int(container.index["id"][k].astype(np.int64)), path or "", reason)


def check_values(returned: Any, ids: I64) -> tuple[Values, Form]:
    """Return the values that a function returned for records ``ids``, an array (n, …) or n strings, and their form.

    Raises:
        UsageError: the function did not return a tensor, array or list with one value for each record; or a value is
            None, has a type that no column has, or differs in type or shape from the first.
    """
    if isinstance(returned, torch.Tensor):
        returned = _array(returned)
    if isinstance(returned, np.ndarray) and returned.dtype.kind in "OU":
        returned = returned.tolist()
    batch = f"the batch of records {ids[0]} to {ids[-1]}" if len(ids) > 1 else f"record {ids[0]}"
    if not isinstance(returned, (list, tuple)) and not getattr(returned, "shape", ()):
        name = "None" if returned is None else f"a {type(returned).__name__}"
        text = "return a tensor, an array or a list with one value for each image"
        raise UsageError(f"the function returned {name} for {batch}; {text}")
    if len(returned) != len(ids):
        raise UsageError(
            f"the function returned {len(returned):,} values for the {counted(len(ids), 'image')} of {batch}; return "
            "one value for each image, in the order of batch.ids"
        )
    if isinstance(returned, np.ndarray):
        array = _as_stored(returned, int(ids[0]))
        return array, Form(str(array.dtype), array.shape[1:])
    values = [
        each if isinstance(each, str) else _as_stored(_array(each), number)
        for each, number in zip(returned, ids.tolist(), strict=True)
    ]
    forms = [Form(TEXT) if isinstance(each, str) else Form(str(each.dtype), each.shape) for each in values]
    for form, number in zip(forms, ids.tolist(), strict=True):
        require_form(form, forms[0], number, f"record {ids[0]} has")
    return (list(map(str, values)) if forms[0].dtype == TEXT else np.stack(values)), forms[0]


def _array(value: Any) -> Any:
    """Convert a tensor on any device, a number or nested lists of numbers to an array; bfloat16 becomes float32."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        return (value.float() if value.dtype == torch.bfloat16 else value).numpy()
    try:
        return np.asarray(value)
    except (ValueError, TypeError):  # raised for lists of different lengths
        return np.asarray(None)


def _as_stored(array: Array, record: int) -> Array:
    """Convert integers and booleans to int64; raise UsageError, which names the record, for what fits no column."""
    kind = array.dtype.kind
    if kind in "ib" or (kind == "u" and (not array.size or int(array.max()) < 1 << 63)):
        return array.astype(np.int64)
    if kind == "f" and array.dtype.itemsize <= 8:
        return array
    held = repr(array.item()) if not array.ndim else f"an array of {array.dtype}"
    raise UsageError(
        f"the function's value of record {record} is {held}; return a number, a text, a boolean, or an array of "
        "numbers of one shape for all images, and raise an exception for an image without a value"
    )
