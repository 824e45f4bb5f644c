"""Core of Loader and DataMux: batches of an order, made ahead of the training loop, from a position to resume at."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

import torch
from torch.utils.data import IterableDataset

from picstore.cores import count_cores
from picstore.errors import UsageError, counted
from picstore.train.batch import Batch, image_tensors
from picstore.train.batching.columns_and_collate import check_collate, run_collate
from picstore.train.batching.damage import DamageLog, replace_damaged
from picstore.train.batching.spec import OutputSpec, PipelineSpec, Resources, default_budget
from picstore.train.buffers import BufferPool
from picstore.train.loader_options import LoaderOptions, count_processes
from picstore.train.order.cursor import EpochCursor, Worker
from picstore.train.order.rank_shares import find_rank
from picstore.train.order.requests import Order, TrainingSource
from picstore.train.order.shared_array import SharedIntegers
from picstore.train.order.spans import Span
from picstore.train.order.state_checks import Position, check_position, read_lanes
from picstore.train.pipeline.own_threads import end_at_exit
from picstore.train.pipeline.runner import OwnProcesses, PipelineRunner, Remote, refuse_workers
from picstore.train.pipeline.stats import Stats
from picstore.train.transforms.arguments import checked_integer
from picstore.train.transforms.buckets import Buckets, Sequences
from picstore.train.transforms.constructed import Constructed
from picstore.train.transforms.from_torchvision import Steps
from picstore.train.transforms.mixup_cutmix import bind_batch_transforms
from picstore.train.transforms.progressive import Progressive
from picstore.train.transforms.transform_plan import TransformPlan, UserTransform
from picstore.train.transforms.views import Views

if TYPE_CHECKING:
    from picstore.train.single_batch import SingleBatch

_GAP = "reducing_gap"  # Field of a loader's state, present if the option is set.

OrderT = TypeVar("OrderT", bound=Order)


def make_output(
    plans: Sequence[TransformPlan],
    dtype: torch.dtype | None = None,
    memory_format: torch.memory_format | str | None = None,
) -> OutputSpec:
    """Return the groups of views, dtype, layout and targets of batches that ``plans`` make.

    Raises:
        UsageError: ``plans`` cannot give ``dtype`` or ``memory_format``, or their views differ, or only some plans fix
            the image size.
    """
    if isinstance(memory_format, str):
        memory_format = getattr(torch, memory_format, memory_format)
    if memory_format not in (None, torch.contiguous_format, torch.channels_last):
        raise UsageError(f"memory_format is {memory_format!r}; give torch.contiguous_format or torch.channels_last")
    name = None if dtype is None else str(dtype).removeprefix("torch.")
    return OutputSpec.from_plans(plans, dtype=name, channels_last=memory_format is torch.channels_last)


class BatchLoader(Constructed, IterableDataset[Batch], Generic[OrderT]):
    """Base of loaders, which iterate over the batches of an order. UsageError is raised if options do not fit together.

    Args:
        options: options of a Loader; those that only the order uses may be missing.
        callables: for each stage of the training, callables that are applied to every batch on its device.
        whole_epochs: whether iterating again after a break begins the next epoch, rather than the next batch.

    Attributes:
        num_workers: 0, as in a DataLoader without worker processes; choose ``threads`` instead.
        sources: datasets and plans from which batches are made.
        output: groups of views, dtype and layout of the images.
    """

    num_workers = 0

    def __init__(
        self,
        order: OrderT,
        sources: tuple[TrainingSource, ...],
        *,
        options: LoaderOptions,
        callables: Sequence[Sequence[UserTransform]],
        whole_epochs: bool,
    ) -> None:
        self._order = order
        self._lanes = SharedIntegers((1,))  # number of lanes (parts of an epoch), shared with DataLoader workers
        self._lanes.values[0] = order.lanes
        self._own_lanes, self._own_budget = options["lanes"] is not None, options["budget"] is not None
        processes = count_processes(options)
        self._processes = max(1, processes)
        self.sources = sources
        threads, budget = options["threads"], options["budget"]
        output = make_output(
            [plan for source in sources for plan in source.plans], options["dtype"], options["memory_format"]
        )
        if budget is None:
            budget = self._default_budget()
        remote = _remote_of(options)
        check_collate(options["collate"], isolate=options["isolate"] and remote is None)
        if threads is None:
            threads = None if remote is None else 1
        self.output, self._collate, self._max_pixels = output, options["collate"], options["max_pixels"]
        self._callables = [
            tuple(
                bind_batch_transforms(
                    each,
                    classes=_count_classes(sources),
                    one_size=all(group.stacked for group in output.groups),
                    floats=output.dtype != "uint8",
                    targets=output.targets,
                )
            )
            for each in callables
        ]
        self._device = torch.device(options["device"])
        self._runner = PipelineRunner(
            PipelineSpec(
                sources=sources,
                output=output,
                resources=Resources(count_cores() if threads is None else threads, budget, options["max_pixels"]),
                collate=options["collate"],
            ),
            damage_log=DamageLog(strict=options["on_damage"] == "raise"),
            device=self._device,
            decoder=options["decoder"],
            processes=OwnProcesses(processes, options["processes"] is not None, self._own_budget),
            threads=threads,
            remote=remote,
        )
        self._cursor = EpochCursor(order.length, whole=whole_epochs)

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes to pickle, except the constructor's arguments, which need not be picklable."""
        return {**self.__dict__, "_given": ((), {}), "_shown": repr(self)}

    def __str__(self) -> str:
        sets = [source.dataset for source in self.sources]
        named = str(sets[0].path) if len(sets) == 1 else f"{len(sets)} datasets"
        gap = self.output.reducing_gap
        shown = [named, counted(sum(map(len, sets)), "image"), self.output.dtype, str(self._device)]
        size, length = getattr(self, "batch_size", None), self._order.length(self._cursor.position[0])
        shown += [] if length is None else [counted(length, "batch") + ("" if size is None else f" of {size}")]
        return f"{type(self).__name__}({', '.join(shown)}{'' if gap is None else f', {_GAP}={gap}'})"

    def _arguments(self) -> dict[str, Any]:
        """Return the constructor's arguments for the repr; other libraries' transforms are translated to picstore's."""
        given = super()._arguments()
        transform, options = given["transform"], given.get("options", given)
        if transform and not isinstance(transform, (Views, Buckets, Sequences, Progressive)):
            steps = Steps()
            steps.read(transform)
            given["transform"] = steps.steps
            if steps.dtype is not None and options.get("dtype") is None:
                options["dtype"] = steps.dtype
        return given

    @property
    def order(self) -> OrderT:
        """Order of all batches, given by seed, epoch, datasets and number of lanes; iterating does not change it."""
        lanes = int(self._lanes.values[0])
        if lanes != self._order.lanes:
            self._order = self._order.with_lanes(lanes)
            self._runner.drop_begun()  # The next epoch's batches were begun with the previous number of lanes.
            if not self._own_budget:
                self._runner.set_budget(self._default_budget())
        return self._order

    @property
    def prefetch_factor(self) -> NoReturn:
        """Raise UsageError: a resuming Trainer reads this to rebuild the loader as a DataLoader, which would fail."""
        raise UsageError(
            "a loader cannot be made again as a DataLoader that skips batches; if a Trainer resumes, give it the "
            "loader as train_dataset with data_collator=picstore.Batch.as_inputs and per_device_train_batch_size=1, or "
            "return DataLoader(loader, batch_size=None) from get_train_dataloader"
        )

    @property
    def workers(self) -> int | None:
        """Number of this rank's remote workers with ``engine="ray"``; may be set while batches are made.

        With ``"ray"``, None means as many workers as the cluster has CPUs for. With ``engine="local"``, always None.

        Raises:
            UsageError: the number is set with ``engine="local"``, or is not an integer above 0.
        """
        return self._runner.workers

    @workers.setter
    def workers(self, count: int) -> None:
        self._runner.workers = checked_integer(count, "workers", 1)

    @property
    def damaged(self) -> int:
        """Number of samples replaced since the loader was made, because their records were damaged."""
        return self.stats.damaged

    @property
    def stats(self) -> Stats:
        """Counts and times of work and waits since the loader was made; in a DataLoader's worker, only its own."""
        return self._runner.stats

    def __iter__(self) -> Iterator[Batch]:
        worker = Worker.current()
        # A DataLoader's worker begins its epoch here, not at the first request for a batch, because a worker that ends
        # before such a request would be an epoch behind the other workers in the next iteration.
        return end_at_exit(self._iterate(worker, self._cursor.start_iteration(worker) if worker.count else None))

    def __getitem__(self, index: Any) -> NoReturn:
        """Raise UsageError, because a loader has no items; the message names alternatives."""
        raise UsageError(
            f"a {type(self).__name__} has no item {index!r}; iterate it, take make_batch(epoch, step) for one batch, "
            "picstore.MapDataset for single images, or picstore.Dataset for records"
        )

    def make_batch(self, epoch: int, batch: int) -> tuple[Batch, SingleBatch]:
        """Make a single batch of this rank, on the CPU and in this thread, equal to the batch that training gets.

        The loader's position does not change. Damaged records are replaced as usual.

        Returns:
            The batch, and a description of how its images were made.

        Raises:
            UsageError: the epoch has no such batch.
            Damage: the batch has no sound record.
        """
        # Import late, because numba takes 0.15 s, and a loader with processes does not need it here.
        from picstore.train.single_batch import make_images, read_records

        epoch, batch = check_position(epoch=epoch, batch=batch)
        length = self.order.length(epoch)
        if length is not None and batch >= length:
            raise UsageError(f"there is no batch {batch}; give 0 to {length - 1}")
        request = next(self.order.requests(self.sources, epoch=epoch, first=batch))
        records = read_records(request, self.sources, max_pixels=self._max_pixels, replace=True)
        made = make_images(records, request, self.sources, output=self.output, blocks=BufferPool(0))
        replace_damaged(made.host, made.problems)
        if self._collate is not None:
            made.host.columns |= run_collate(self._collate, made.host, self.output)
        tensors = image_tensors(made.host.images, getattr(torch, self.output.dtype))
        whole = Batch.from_host(made.host, tensors, self.output.groups)
        return self._apply_callables(whole, epoch, batch), made

    @property
    def position(self) -> Position:
        """Epoch and index of the batch that follows the last batch taken.

        Raise UsageError while a DataLoader's workers make the batches, because the number of batches taken is unknown.
        """
        if self._cursor.in_workers:
            raise UsageError(
                "position and state_dict() are not known while a DataLoader's workers make the batches; "
                "use torchdata's StatefulDataLoader, or iterate the loader itself"
            )
        return Position(*self._cursor.position)

    @property
    def remaining(self) -> int:
        """Number of batches from the position to the end of the epoch; ``len`` is the number in a whole epoch.

        An iteration after ``load_state_dict`` has this many batches. Raise TypeError if epochs have no end.
        """
        epoch, batch = self.position
        length = self.order.length(epoch)
        if length is None:
            raise TypeError(f"a {type(self).__name__} without epoch_batches has no end")
        return length - batch

    def close(self) -> None:
        """End threads and child processes now, not when the loader is garbage-collected; iterating starts new ones."""
        self._runner.close()

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch taken, as numbers and strings that JSON can hold.

        Raises:
            UsageError: a DataLoader's workers make the batches, so the position is unknown here.
        """
        return {**self.state_at(*self.position), **_worker_state()}

    def state_at(self, epoch: int, batch: int) -> dict[str, Any]:
        """Return the state that a loader has before it yields batch ``batch`` of ``epoch``."""
        gap = self.output.reducing_gap
        return {**self.order.state(epoch, batch), **({} if gap is None else {_GAP: gap})}

    def position_of(self, state: Mapping[str, Any]) -> tuple[int, int]:
        """Return the epoch and batch that follow a state; raise UsageError if the state does not fit this loader."""
        return self._order_of(state).position(state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next iteration resume at the position of a state, without reading earlier samples.

        The loader takes the number of lanes (places in the epoch's order) from the state unless the option ``lanes``
        was given. An iterator in use raises UsageError at its next batch, because that batch would change the position
        again.

        Raises:
            UsageError: the state does not fit this loader.
        """
        order = self._order_of(state)
        position = order.position(state)
        mine = _worker_state().get("worker")
        if state.get("worker") not in (None, mine):
            raise UsageError(
                f"the state is of worker and workers {state['worker']}, this is {mine}; resume with as many workers, "
                "or save the state of a loader that is iterated without a DataLoader"
            )
        self._lanes.values[0] = order.lanes
        self._cursor.load(*position)

    def _iterate(self, worker: Worker, position: tuple[int, int] | None) -> Generator[Batch, None, None]:
        """Yield batches from ``position`` on or, if it is None, from the position at the time of the first request."""
        yield from self._batches(*(position or self._cursor.start_iteration(worker)), worker)

    def _batches(self, epoch: int, first: int, worker: Worker) -> Iterator[Batch]:
        """Yield an epoch's batches from ``first`` on; keep the next epoch's batches, begun meanwhile, for later."""
        batches = self._runner.batches(Span(self.order, epoch, first, worker.count))
        finished, loads = False, self._cursor.loads
        try:
            for number in range(first, self._order.length(epoch) or sys.maxsize, worker.step):
                if loads != self._cursor.loads:
                    raise UsageError(
                        "load_state_dict() was called while this iterator was in use; iterate the loader again, which "
                        "goes on at the state"
                    )
                yield self._take_batch(batches, epoch, number, worker)
            finished = True
        finally:
            if finished and not worker.count:
                self._runner.keep((epoch + 1, 0), batches)
            else:
                batches.close()
                if not worker.count:
                    self._cursor.end_early(epoch, first)

    def _take_batch(self, batches: Iterator[Batch], epoch: int, number: int, worker: Worker) -> Batch:
        batch = self._apply_callables(next(batches), epoch, number)
        self._advance(epoch, number + worker.step, worker)
        return batch

    def _apply_callables(self, batch: Batch, epoch: int, number: int) -> Batch:
        callables, seed = self._callables[self._order.stage(epoch)], self._order.batch_seed(epoch, number)
        return self._runner.apply_callables(batch, callables, seed=seed)

    def _order_of(self, state: Mapping[str, Any]) -> OrderT:
        """Return the order with this loader's option ``lanes``, or else with the number of lanes in ``state``.

        Raise UsageError if ``state`` is not of a loader, or has another ``reducing_gap``, because pixels would differ.
        """
        if not isinstance(state, Mapping) or "version" not in state or "lanes" not in state:
            raise UsageError("this is not a state of a loader; give what state_dict() of a loader returned")
        if state.get(_GAP) != self.output.reducing_gap:
            raise UsageError(
                f"the state has {_GAP} {state.get(_GAP)!r}, this loader {self.output.reducing_gap!r}: other pixels; "
                f"give {_GAP}={state.get(_GAP)!r}"
            )
        return self.order if self._own_lanes else self.order.with_lanes(read_lanes(state))

    def _default_budget(self) -> int:
        """Return the default ``budget``: enough bytes for the containers that all processes read at a time."""
        return self._processes * default_budget([source.dataset for source in self.sources], self._order.lanes_read)

    def _advance(self, epoch: int, batch: int, worker: Worker) -> None:
        """Move the position to a batch, because the batch before it is about to be yielded."""
        self._cursor.advance(epoch, batch, worker)


def _count_classes(sources: Sequence[TrainingSource]) -> int:
    """Return the number of classes: the largest label that has a name, plus 1; 0 if a source has no class names."""
    names = [source.class_names for source in sources]
    return 1 + max(map(max, names)) if all(names) else 0


def _remote_of(options: LoaderOptions) -> Remote | None:
    if options["engine"] == "local":
        if options["workers"] is not None:
            refuse_workers()
        return None
    if not options["isolate"]:
        raise UsageError("isolate=False makes batches in this process, engine='ray' on other machines; leave one out")
    return Remote(options["workers"], find_rank(options["rank"], options["world_size"])[1])


def _worker_state() -> dict[str, list[int]]:
    """Return a dict with the field that a DataLoader's worker adds to a state; in any other process, an empty dict."""
    worker = Worker.current()
    return {"worker": [worker.number, worker.count]} if worker.count else {}
