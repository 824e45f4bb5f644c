"""DataMux: batches mixed from several datasets at exact counts, without end, as PicPoc's class of that name."""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch

from picstore.errors import UsageError, counted
from picstore.storage.cache import DEFAULT_LIMIT
from picstore.storage.class_names import JoinedNames
from picstore.storage.dataset import Dataset
from picstore.storage.joined_manifest import RecordShift
from picstore.train.batch import Batch
from picstore.train.batching.spec import check_one_size
from picstore.train.core import BatchLoader
from picstore.train.loader import Loader
from picstore.train.loader_options import LoaderOptions, check_arguments, refuse_arguments
from picstore.train.mux_config import Counts, MuxConfig, MuxEntry, make_schedule, read_config
from picstore.train.order.cursor import Worker
from picstore.train.order.mux_order import MuxOrder, source_seed
from picstore.train.order.rank_shares import default_lanes, find_rank
from picstore.train.order.requests import TrainingSource
from picstore.train.transforms.transform_plan import Transforms, UserTransform, check_targets, plan_transforms
from picstore.train.transforms.views import Views

if TYPE_CHECKING:
    from typing_extensions import Unpack

_DEFAULTS = {each.name: each.default for each in inspect.signature(Loader).parameters.values()}
_DEFAULTS |= {"epoch_batches": None, "global_counts": False, "classes": None}


@dataclass(frozen=True, eq=False)
class Sample:
    """One sample of a mux: fields as in :class:`Batch`, for a single image; a missing string in the columns is None."""

    image: torch.Tensor  # uint8 (3, H, W), or floats if a transform makes them
    label: int
    id: int  # Id in the record's dataset.
    target: dict[str, Any] | None = None
    columns: dict[str, Any] = field(default_factory=dict)


class DataMux(BatchLoader[MuxOrder]):
    """Endless mix of datasets: each batch has exactly the configured number of records of each dataset, shuffled.

    A dataset that is exhausted begins a new epoch of its own. Use a mux either by batches (iterate; an iteration after
    a ``break`` continues with the next batch) or by samples (``peek`` and ``read``).

    Args:
        config: file in PicPoc's format or in TOML, see ``picstore/train/mux_config.py``; options given here have
            precedence over the file's. Or a list of open datasets, such as selections, each with its base label (the
            number added to its labels) and its count of records in a batch.
        transform: transforms of the datasets that have no transforms of their own. Callables get whole batches, with
            images of all datasets.
        schedule: counts that change: ``(step, counts)`` in ascending order of steps, which are indices of batches. From
            the step on, ``counts`` replace the configuration's. They are a list, one for each dataset, or a dict from a
            dataset's name to its count. The name is ``name`` in TOML, or else the path as written. A dataset missing in
            the dict keeps its count.
        global_counts: whether counts are for the batches of all ranks together; the sizes of the ranks' batches then
            differ by at most one. Otherwise counts are for each rank's batch.
        lanes: number of parts of each dataset that batches mix, at most 65,536. By default all datasets together have
            about 32, and no two ranks read the same part. ``load_state_dict`` takes over the state's lanes unless they
            are given here.
        classes: meaning of labels if the datasets have different classes: ``"join"`` gives all classes of one name the
            same label, ``"offset"`` numbers each dataset's classes after those of the previous one, ``"same"`` keeps
            labels as they are. None also keeps labels, with a warning if a label has several names. Labels of boxes do
            not change.
        epoch_batches: number of batches after which an iteration ends; the next iteration continues from there.
        seed, device, threads, budget, targets, dtype: as for :class:`picstore.Loader`.
        memory_format, decoder, isolate, processes, engine, workers, collate: as for :class:`picstore.Loader`.
        rank, world_size: as for :class:`picstore.Loader`.
        cache, cache_limit: as for :class:`picstore.Loader`; one folder for all datasets of a configuration file.
        max_pixels, reducing_gap: as for :class:`picstore.Loader`.
        on_damage: as for :class:`picstore.Loader`; a damaged record is replaced by another record of the dataset.

    Raises:
        UsageError: the configuration cannot be read, or its values and the arguments do not fit together.
        TypeError: an argument is unknown.
        NotADataset, Damage: a dataset cannot be opened.
        PicstoreError: as :class:`picstore.Loader` raises it.
    """

    def __init__(
        self,
        config: str | os.PathLike[str] | Sequence[tuple[Dataset, int, int]],
        *,
        transform: Transforms | Views | None = None,
        schedule: Sequence[tuple[int, Counts]] | None = None,
        **options: Unpack[LoaderOptions],
    ) -> None:
        known = LoaderOptions.__annotations__
        refuse_arguments("DataMux", {name: value for name, value in options.items() if name not in known})
        mixed = read_config(config)
        chosen = check_arguments({**_DEFAULTS, **mixed.options, **options})
        rank, world_size = find_rank(chosen["rank"], chosen["world_size"])
        lanes = chosen["lanes"] or default_lanes(world_size, len(mixed.entries))
        planned = make_schedule(mixed, schedule).times(1 if chosen["global_counts"] else world_size)
        sources, callables = _open_sources(mixed, transform, chosen)
        sources = number_classes(sources, chosen["classes"])
        order = MuxOrder(
            schedule=planned,
            records=tuple(len(source.dataset) for source in sources),
            lanes=lanes,
            seed=chosen["seed"],
            rank=rank,
            world_size=world_size,
            epoch_batches=chosen["epoch_batches"],
            uuids=tuple(source.dataset.identity for source in sources),
        )
        check_one_size([source.plan for source in sources])
        super().__init__(order, sources, options=chosen, callables=[callables], whole_epochs=False)
        self._read = 0  # number of samples that ``read`` has taken from the batch at the position
        self._samples: Iterator[Sample] | None = None
        self._next: Sample | None = None

    @property
    def classes(self) -> list[str]:
        """Name of each label; several names of one label are joined by " / ", and a label without a name has ""."""
        return names_by_label(self.sources)

    @property
    def batch_size(self) -> int:
        """Number of records in this rank's next batch; without a schedule, in every batch."""
        return self.order.batch_size(*self._cursor.position)

    def __len__(self) -> int:
        """Return the number of batches in an iteration; raise TypeError without ``epoch_batches``."""
        if self._order.epoch_batches is None:
            raise TypeError("a DataMux without epoch_batches has no length")
        return self._order.epoch_batches

    def _iterate(self, worker: Worker, position: tuple[int, int] | None) -> Generator[Batch, None, None]:
        self._end_samples()
        epoch, first = position or self._cursor.start_iteration(worker)
        if self._read:  # Skip the rest of a batch that ``read`` has begun.
            self._read, first = 0, first + worker.step
            self._cursor.advance(epoch, first, worker)
        yield from self._batches(epoch, first, worker)

    def peek(self) -> Sample:
        """Return the sample that ``read`` will return next."""
        if self._next is None:
            self._samples = self._samples or self._read_samples()
            self._next = next(self._samples)
        return self._next

    def read(self) -> Sample:
        """Return the next sample; the first sample comes after the last batch that an iteration has yielded."""
        sample = self.peek()
        self._next = None
        self._read += 1
        if self._read == self.batch_size:
            self._read = 0
            epoch, batch = self._cursor.position
            self._cursor.advance(epoch, batch + 1, Worker())
        return sample

    def close(self) -> None:
        """End all threads and child processes; reading or iterating starts new ones."""
        self._end_samples()
        super().close()

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch or sample that was taken, as values that JSON can hold."""
        return {**super().state_dict(), "read": self._read}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume where another mux of the same datasets and seed stopped.

        The other mux may have had other counts, another schedule or another world size, if one of this mux's global
        batches begins after the same number of samples of each dataset as the other mux's complete global batches had.
        A state in the middle of a batch, after ``read``, also needs the same counts and world size.

        Raises:
            UsageError: the state does not fit this mux.
        """
        super().load_state_dict(state)
        self._end_samples()
        _, self._read = self.order.batches_and_rest(state)

    def _advance(self, epoch: int, batch: int, worker: Worker) -> None:
        if self._samples is None:  # While single samples are read, ``read`` moves the position.
            super()._advance(epoch, batch, worker)

    def _read_samples(self) -> Iterator[Sample]:
        skip = self._read
        while True:
            for batch in self._batches(*self._cursor.position, Worker()):
                if isinstance(batch.images, dict) or batch.labels.ndim > 1:
                    raise UsageError(
                        "read() and peek() take single images, without Views, MixUp and CutMix; iterate for batches"
                    )
                nothing: list[dict[str, Any] | None] = [None] * len(batch.labels)
                targets = batch.targets or nothing
                for k in range(skip, len(batch.labels)):
                    columns = {name: values[k] for name, values in batch.columns.items()}
                    yield Sample(batch.images[k], int(batch.labels[k]), int(batch.ids[k]), targets[k], columns)
                skip = 0

    def _end_samples(self) -> None:
        self._samples = self._next = None

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_samples": None, "_next": None}


def _open(entry: MuxEntry, **options: Any) -> Dataset:
    if isinstance(entry.path, Dataset) and (options["cache"] is not None or options["cache_limit"] != DEFAULT_LIMIT):
        raise UsageError(f"{entry.path.path} is open and has a cache of its own; give the cache to picstore.Dataset")
    dataset = entry.path if isinstance(entry.path, Dataset) else Dataset(entry.path, root=entry.root, **options)
    return dataset if entry.where is None else dataset.where(entry.where)


def _open_sources(
    mixed: MuxConfig, transform: Transforms | Views | None, options: LoaderOptions
) -> tuple[tuple[TrainingSource, ...], tuple[UserTransform, ...]]:
    common = mixed.transform if transform is None else transform
    gap = options["reducing_gap"]
    _, callables = plan_transforms(common, targets=tuple(options["targets"]), reducing_gap=gap)
    cache, limit = options["cache"], options["cache_limit"]
    datasets = [_open(entry, cache=cache, cache_limit=limit) for entry in mixed.entries]
    columns = {name for dataset in datasets for name in dataset.columns}
    sources = []
    for number, (entry, dataset) in enumerate(zip(mixed.entries, datasets, strict=True)):
        if len(dataset) == 0:
            condition = f" with {entry.where}" if entry.where else ""
            raise UsageError(f"{entry.path} has no records{condition}; leave it out of the mux")
        targets = check_targets(options["targets"], dataset, columns)
        steps = common if entry.transform is None else entry.transform
        plan, own = plan_transforms(steps, targets=targets, columns=tuple(columns), reducing_gap=gap)
        if entry.transform is not None and own:
            raise UsageError(f"{entry.path}: {own[0]!r} takes whole batches, so it cannot be of one source")
        sources.append(TrainingSource(dataset, source_seed(options["seed"], number), entry.base, plan))
    return tuple(sources), callables


def number_classes(sources: Sequence[TrainingSource], choice: str | None) -> tuple[TrainingSource, ...]:
    """Return the sources with the labels that the mux gives to their classes.

    Args:
        sources: sources with the base labels of the configuration.
        choice: the mux's option ``classes``.

    Raises:
        UsageError: ``choice`` is "join" or "offset", but a dataset has no class names or has a base label.
    """
    if choice in (None, "same"):
        if choice is None:
            _warn_of_several_names(sources)
        return tuple(sources)
    for source in sources:
        if not source.dataset.classes or source.base:
            found = f"the base label {source.base}" if source.base else "no names of classes"
            text = f"classes is {choice!r}, and {source.dataset.path} has {found}"
            raise UsageError(f"{text}; give names and base labels 0, or base labels without classes")
    if choice == "join":
        joined = JoinedNames()
        shifts = [RecordShift(labels=joined.add(each.dataset.classes)) for each in sources]
        return tuple(replace(source, shift=shift) for source, shift in zip(sources, shifts, strict=True))
    # A path counts once, because sources that are parts of one dataset share labels.
    counts = {str(source.dataset.path): len(source.dataset.classes) for source in sources}
    bases = dict(zip(counts, accumulate(counts.values(), initial=0), strict=False))
    return tuple(replace(source, base=bases[str(source.dataset.path)]) for source in sources)


def names_by_label(sources: Sequence[TrainingSource]) -> list[str]:
    """Return the name of each label: several names of one label joined by " / ", or "" for a label without a name."""
    found: dict[int, dict[str, None]] = {}
    for source in sources:
        for label, name in source.class_names.items():
            found.setdefault(label, {})[name] = None
    return [" / ".join(found.get(label, ())) for label in range(max(found, default=-1) + 1)]


def _warn_of_several_names(sources: Sequence[TrainingSource]) -> None:
    shared = [(label, name) for label, name in enumerate(names_by_label(sources)) if " / " in name]
    if shared:
        label, names = shared[0]
        more = f", and {counted(len(shared) - 1, 'more label', 'have')} several names" if len(shared) > 1 else ""
        warnings.warn(
            f"label {label} of the mux is {names}{more}: give classes='join' for one label a name, 'offset' to number "
            "each dataset's classes after the previous one's, or 'same' if they mean the same",
            stacklevel=5,
        )
