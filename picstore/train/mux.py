"""DataMux: batches mixed from several data sets at exact counts, endlessly, as PicPoc's class of that name."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import IterableDataset

from picstore import rng
from picstore.errors import UsageError
from picstore.storage.cache import DEFAULT_LIMIT
from picstore.storage.dataset import Dataset
from picstore.train.batch import Batch, is_channels_last, name_of
from picstore.train.batching.damage import DamageLog
from picstore.train.batching.spec import OutputSpec, PipelineSpec, Resources
from picstore.train.loader import default_threads, rank_of_process
from picstore.train.mux_config import MuxConfig, MuxOptions, read_config
from picstore.train.order.cursor import EpochCursor, Worker
from picstore.train.order.mixing import MixOrder, locate, make_requests, mux_lanes
from picstore.train.order.requests import Source, default_budget
from picstore.train.pipeline.runner import PipelineRunner
from picstore.train.pipeline.stats import Stats
from picstore.train.transforms.compose import UserTransform, check_targets, plan_transforms

if TYPE_CHECKING:
    from typing_extensions import Unpack

_ENDLESS = 1 << 62  # batches


@dataclass(frozen=True, eq=False)
class Sample:
    """One image of a mux.

    Attributes:
        image: uint8 (3, H, W) unless a transform makes floats.
        id: in its own data set.
        target: see ``Batch.targets``.
        columns: its values of ``Batch.columns``: tensors, or texts, None where there is none.
    """

    image: torch.Tensor
    label: int
    id: int
    target: dict[str, Any] | None = None
    columns: dict[str, Any] = field(default_factory=dict)


class DataMux(IterableDataset[Batch]):
    """Mixes data sets: each batch holds exactly the configured count of each, in a shuffled order, without end.

    Each data set begins a new epoch of its own when it is exhausted. Use it either by batches (iterate; after a
    ``break``, iterating again goes on with the batch that follows) or by samples (``peek`` and ``read``).

    Args:
        config: a file in PicPoc's format or in TOML, see ``picstore/train/mux_config.py``. Options given here have
            precedence over those of a TOML file.
        transform: of the sources that have none of their own. Callables in it take every batch.
        lanes: places that each source is read at; a multiple of the world size, by default such that all sources
            together have about 32.
        rank, world_size: of this process, as of :class:`picstore.Loader`; the counts are those of each rank.
        epoch_batches: end an iteration after so many batches; the next one goes on.
        seed, device, threads, budget, targets, dtype, memory_format, decoder, isolate: as of :class:`picstore.Loader`.
        cache, cache_limit: as of :class:`picstore.Loader`; one folder for all data sets.
        on_damage: as of :class:`picstore.Loader`; a lost record is replaced by one of its own data set.

    Raises:
        UsageError: the configuration or the arguments cannot be right.
        NotADataset, Damage: a data set cannot be opened.
    """

    def __init__(
        self,
        config: str | os.PathLike[str],
        *,
        transform: Sequence[UserTransform] | None = None,
        **options: Unpack[MuxOptions],
    ) -> None:
        mixed = read_config(config)
        chosen: MuxOptions = {**mixed.options, **options}
        rank, world_size = rank_of_process(chosen.get("rank"), chosen.get("world_size"))
        self._mix = MixOrder(
            counts=tuple(entry.count for entry in mixed.entries),
            lanes=mux_lanes(chosen.get("lanes"), sources=len(mixed.entries), world_size=world_size),
            seed=chosen.get("seed", 0),
            rank=rank,
            world_size=world_size,
        )
        self._sources, callables = _open(mixed, transform, chosen)
        threads, budget, length = chosen.get("threads"), chosen.get("budget"), chosen.get("epoch_batches")
        if length is not None and length < 1:
            raise UsageError(f"epoch_batches is {length}; at least 1 is needed")
        if budget is None:
            datasets = [source.dataset for source in self._sources]
            budget = default_budget(datasets, self._mix.lanes * len(datasets) // world_size)
        recipes = [source.recipe for source in self._sources]
        self._outlet = PipelineRunner(
            PipelineSpec(
                sources=self._sources,
                form=OutputSpec.of(
                    recipes,
                    dtype=name_of(chosen.get("dtype")),
                    channels_last=is_channels_last(chosen.get("memory_format", torch.contiguous_format)),
                ),
                limits=Resources(default_threads() if threads is None else threads, budget),
            ),
            losses=DamageLog(chosen.get("on_damage", "skip")),
            device=torch.device(chosen.get("device", "cpu")),
            decoder=chosen.get("decoder", "auto"),
            callables=callables,
            isolate=chosen.get("isolate", True),
            threads=threads,
        )
        self._length = length
        self._position = EpochCursor(length, whole=False)
        self._read = 0  # samples of the batch at the position
        self._samples: Iterator[Sample] | None = None
        self._next: Sample | None = None

    @property
    def batch_size(self) -> int:
        """Records in each batch."""
        return self._mix.batch_size

    @property
    def damaged(self) -> int:
        """Samples replaced because their record was damaged."""
        return self.stats.damaged

    @property
    def stats(self) -> Stats:
        """What was done and waited for since the mux was made."""
        return self._outlet.stats

    def __len__(self) -> int:
        """Batches in an iteration.

        Raises:
            TypeError: there is no end, as ``epoch_batches`` was not given.
        """
        if self._length is None:
            raise TypeError("a DataMux without epoch_batches has no length")
        return self._length

    def __iter__(self) -> Iterator[Batch]:
        self._end_samples()
        worker = Worker.current()
        epoch, first = self._position.begin(worker)
        if self._read:  # a batch of which samples were read is over
            self._read, first = 0, first + worker.step
        yield from self._batches(epoch, first, worker)

    def peek(self) -> Sample:
        """The sample that ``read`` returns next."""
        if self._next is None:
            if self._samples is None:
                self._samples = self._each()
            self._next = next(self._samples)
        return self._next

    def read(self) -> Sample:
        """The next sample; those of an iteration's last batch are followed by those of the next iteration's first."""
        sample = self.peek()
        self._next = None
        self._read += 1
        if self._read == self.batch_size:
            self._read = 0
            epoch, batch = self._position.place
            self._position.advance(epoch, batch + 1, Worker())
        return sample

    def close(self) -> None:
        """End all threads, and the child of ``isolate=True``; reading and iterating can go on."""
        self._end_samples()
        self._outlet.close()

    def state_dict(self) -> dict[str, Any]:
        """Where the mux is, after the last batch or sample that was taken; fit for JSON."""
        epoch, batch = self._position.place
        batches = epoch * (self._length or 0) + batch
        state = {
            "version": 1,
            "datasets": [source.dataset.uuid for source in self._sources],
            "counts": list(self._mix.counts),
            "seed": self._mix.seed,
            "lanes": self._mix.lanes,
            "world_size": self._mix.world_size,
            "samples": batches * self.batch_size + self._read,
        }
        worker = Worker.current()
        return {**state, "worker": [worker.number, worker.count]} if worker.count else state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another mux of the same data sets, seed and lanes was.

        Its counts and world size may have been others if each count times the world size is in the same proportion to
        this mux's, and what it has yielded is a whole number of this mux's batches.

        Raises:
            UsageError: the state is of another mux, or no place of this one's.
        """
        mine = self.state_dict()
        for name in ("version", "datasets", "seed", "lanes"):
            if state.get(name) != mine[name]:
                raise UsageError(f"the state has {name} {state.get(name)!r}, this mux {mine[name]!r}")
        if state.get("worker") != mine.get("worker") and "worker" in state:
            raise UsageError(f"the state is of worker and workers {state['worker']}, this is {mine.get('worker')}")
        batches, read = locate(state, self._mix)
        self._end_samples()
        self._read = read
        self._position.set(*divmod(batches, self._length) if self._length else (0, batches))

    def _batches(self, epoch: int, first: int, worker: Worker) -> Iterator[Batch]:
        """The batches of an iteration from ``first`` on, counted in their epoch."""
        before = epoch * (self._length or 0)
        requests = partial(make_requests, mix=self._mix, batches=range(before + first, _ENDLESS, worker.step))
        feed = self._outlet.feed((0, before + first), requests)
        finished = False
        try:
            for number in range(first, self._length or _ENDLESS, worker.step):
                seed = rng.key(rng.MUX, self._mix.seed, before + number, self._mix.rank)
                batch = self._outlet.finish(next(feed), seed=seed)
                if self._samples is None:
                    self._position.advance(epoch, number + worker.step, worker)
                yield batch
            finished = True
        finally:
            if finished and not worker.count:
                self._outlet.keep((0, before + (self._length or _ENDLESS)), feed)
            else:
                feed.close()

    def _each(self) -> Iterator[Sample]:
        """Samples from the position on, without end."""
        skip = self._read
        while True:
            for batch in self._batches(*self._position.place, Worker()):
                nothing: list[dict[str, Any] | None] = [None] * len(batch)
                targets = batch.targets or nothing
                for k in range(skip, len(batch)):
                    columns = {name: values[k] for name, values in batch.columns.items()}
                    yield Sample(batch.images[k], int(batch.labels[k]), int(batch.ids[k]), targets[k], columns)
                skip = 0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_samples": None, "_next": None}

    def _end_samples(self) -> None:
        self._samples = self._next = None


def _open(
    mixed: MuxConfig, transform: Sequence[UserTransform] | None, options: MuxOptions
) -> tuple[tuple[Source, ...], tuple[UserTransform, ...]]:
    """The sources, and the callables that every batch goes through."""
    common = tuple(mixed.transform if transform is None else transform)
    _, callables = plan_transforms(common)
    cache: dict[str, Any] = {
        "cache": options.get("cache"),
        "cache_limit": options.get("cache_limit", DEFAULT_LIMIT),
    }
    datasets = [Dataset(entry.path, **cache) for entry in mixed.entries]
    columns = {name for dataset in datasets for name in dataset.columns}
    sources = []
    for number, (entry, dataset) in enumerate(zip(mixed.entries, datasets, strict=True)):
        if len(dataset) == 0:
            raise UsageError(f"{entry.path} has no records")
        targets = check_targets(options.get("targets", ()), dataset, columns)
        steps = common if entry.transform is None else entry.transform
        recipe, own = plan_transforms(steps, targets=targets, columns=tuple(columns))
        if entry.transform is not None and own:
            raise UsageError(f"{entry.path}: {own[0]!r} takes whole batches, so it cannot be of one source")
        # A seed of its own for each source: one data set may be listed twice.
        seed = rng.key(rng.MUX, options.get("seed", 0), number)
        sources.append(Source(dataset, seed, entry.base, recipe))
    return tuple(sources), callables
