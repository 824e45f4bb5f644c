"""The loader: shuffled, augmented batches of one data set."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from picstore.errors import UsageError
from picstore.storage.dataset import Dataset
from picstore.train.batch import Batch, Part, Source
from picstore.train.damage import Losses, replace_lost
from picstore.train.geometry import Transform
from picstore.train.memory import Memory
from picstore.train.pipeline import Filled, Limits, Pipeline, Request
from picstore.train.plan import Epoch, Share, default_lanes, find_rank

_LEAST_BUDGET = 64 << 20  # bytes


class Loader:
    """Streams a data set in batches; iterating it again gives the next epoch.

    Each batch is a :class:`Batch`, which unpacks to ``images, labels``. The order and the random transforms are
    functions of (seed, epoch, data set): the same for any number of threads, and after any interruption.

    Every iteration is a whole epoch, also after one that was broken off: it then begins the next epoch, since a loop
    that always stops after k batches would otherwise see the same k for ever. What resumes in the middle of an epoch is
    ``load_state_dict``, once: ``loader.load_state_dict(loader.state_dict())`` after a ``break`` goes on where it was.

    Args:
        path: a finished data set.
        batch_size: of this rank.
        transform: geometric transforms, composed into one resampling.
        shuffle: False reads the stored order, each rank a contiguous range.
        seed: of order and transforms.
        drop_last: leave out the samples that fill no batch. False yields every record exactly once.
        device: where batches are put; decoding runs on the CPU.
        threads: that decode; one a core by default.
        rank, world_size: of this process; by default those of ``torch.distributed`` or of the environment's RANK and
            WORLD_SIZE.
        lanes: places of the data set that shuffled batches mix; a multiple of the world size, at least 32 by default.
        on_damage: ``"skip"`` replaces a damaged record by another of its container or batch, logs it once with file
            and offset, and counts it in ``loader.damaged``; ``"raise"`` stops.
        budget: bytes of containers to hold in memory, exceeded only where one batch needs more. By default what the
            lanes of this rank read at a time and half as much again: 384 MiB for 32 lanes and containers of 8 MiB.

    Raises:
        NotADataset, Damage: the data set cannot be opened.
        UsageError: the arguments do not fit together.
        Damage: while iterating, a record is damaged and ``on_damage`` is ``"raise"``, or a batch has no sound record.
    """

    def __init__(  # noqa: PLR0913 - the contract's names, all but three with a default
        self,
        path: str | os.PathLike[str],
        *,
        batch_size: int,
        transform: Sequence[Transform] = (),
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = True,
        device: str | torch.device = "cpu",
        threads: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        lanes: int | None = None,
        on_damage: str = "skip",
        budget: int | None = None,
    ) -> None:
        self.dataset = Dataset(path)
        rank, world_size = _find_rank(rank, world_size)
        if lanes is None:
            lanes = default_lanes(world_size)
        self._share = Share(
            records=len(self.dataset),
            lanes=lanes if shuffle else 1,
            batch_size=batch_size,
            rank=rank,
            world_size=world_size,
            shuffle=shuffle,
            drop_last=drop_last,
        )
        self._transforms = tuple(transform)
        self._seed = seed
        self._device = torch.device(device)
        if budget is None:
            budget = default_budget([self.dataset], self._share.lanes // (world_size if shuffle else 1))
        self._limits = Limits(default_threads() if threads is None else threads, budget)
        self._memory = Memory()
        self._losses = Losses(on_damage)
        self._epoch = 0
        self._batch = 0  # of the epoch, that the consumer gets next
        self._resume = False  # whether the next iteration begins in the middle of an epoch

    @property
    def damaged(self) -> int:
        """Samples replaced because their record was damaged, since the loader was made."""
        return self._losses.count

    def __len__(self) -> int:
        """Batches in an epoch."""
        return self._share.batches

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration begin epoch ``epoch``."""
        self._epoch, self._batch, self._resume = epoch, 0, False

    def __iter__(self) -> Iterator[Batch]:
        if self._batch and not self._resume:
            self._advance(self._epoch, len(self))
        self._resume = False
        epoch, first = self._epoch, self._batch
        pipeline = Pipeline(
            self._requests(epoch, first),
            sources=[Source(self.dataset, self._seed)],
            transforms=self._transforms,
            limits=self._limits,
            memory=self._memory,
        )
        try:
            for number, filled in enumerate(pipeline, first):
                batch = finish(filled, device=self._device, losses=self._losses)
                self._advance(epoch, number + 1)
                yield batch
        finally:
            pipeline.close()

    def _advance(self, epoch: int, batch: int) -> None:
        """Note what comes next; the end of an epoch is the beginning of another."""
        self._epoch, self._batch = (epoch, batch) if batch < len(self) else (epoch + 1, 0)

    def _requests(self, epoch: int, first: int) -> Iterator[Request]:
        share = self._share
        order = Epoch(
            self.dataset.rows["records"], seed=self._seed, epoch=epoch, lanes=share.lanes, shuffle=share.shuffle
        )
        for batch in range(first, share.batches):
            start, stop = share.bounds(batch)
            samples = order.locate(share.samples(start, stop))
            yield [Part(0, epoch, samples, np.arange(stop - start))]

    def state_dict(self) -> dict[str, Any]:
        """Where the loader is, after the last batch that was taken: a few numbers and strings, fit for JSON."""
        return {
            "version": 1,
            "dataset": self.dataset.uuid,
            "seed": self._seed,
            "shuffle": self._share.shuffle,
            "lanes": self._share.lanes,
            "world_size": self._share.world_size,
            "epoch": self._epoch,
            "samples": self._batch * self._global_batch,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next iteration go on where another loader was, in no more time than opening takes.

        It may have had another batch size, and with ``shuffle=True`` another world size, if what it has yielded is a
        whole number of this loader's global batches.

        Raises:
            UsageError: the state is of another data set, seed, order or number of lanes, or no place of this loader's.
        """
        mine = self.state_dict()
        # The stored order is read in a contiguous range a rank, so only the same ranks can go on in the middle of it.
        fixed = () if self._share.shuffle else ("world_size",)
        for name in ("version", "dataset", "seed", "shuffle", "lanes", *fixed):
            if state.get(name) != mine[name]:
                raise UsageError(f"the state has {name} {state.get(name)!r}, this loader {mine[name]!r}")
        epoch, samples = state.get("epoch"), state.get("samples")
        if not isinstance(epoch, int) or not isinstance(samples, int):
            raise UsageError(f"the state has epoch {epoch!r} and samples {samples!r}; both must be integers")
        batch, rest = divmod(samples, self._global_batch)
        if rest or not 0 <= batch <= len(self):
            raise UsageError(
                f"the state is after {samples} samples; this loader has {len(self)} global batches of "
                f"{self._global_batch} an epoch, and goes on after a whole number of them"
            )
        self._advance(epoch, batch)
        self._resume = True

    @property
    def _global_batch(self) -> int:
        return self._share.batch_size * self._share.world_size


def default_budget(datasets: Sequence[Dataset], lanes: int) -> int:
    """Bytes that ``lanes`` read at a time if each is in a container of the largest size, and half as much again."""
    largest = max(int(dataset.rows["size"].max(initial=0)) for dataset in datasets)
    return max(_LEAST_BUDGET, 3 * lanes * largest // 2)


def default_threads() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def finish(filled: Filled, *, device: torch.device, losses: Losses) -> Batch:
    """Wait for a batch, deal with its lost records, and put it on its device."""
    problems = filled.wait()
    losses.report([*filled.draft.lost, *problems.values()])
    replace_lost(filled.draft, filled.pixels, problems)
    images = filled.pixels.images
    images = [image.to(device) for image in images] if isinstance(images, list) else images.to(device)
    labels, ids = torch.from_numpy(filled.draft.labels), torch.from_numpy(filled.draft.ids)
    return Batch(images, labels.to(device), ids.to(device))


def _find_rank(rank: int | None, world_size: int | None) -> tuple[int, int]:
    distributed = torch.distributed
    if rank is None and world_size is None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return find_rank(rank, world_size, (os.environ.get("RANK"), os.environ.get("WORLD_SIZE")))
