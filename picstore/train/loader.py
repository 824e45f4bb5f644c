"""The loader: shuffled, augmented batches of one data set."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from picstore.errors import Damage, UsageError
from picstore.storage.dataset import Dataset
from picstore.train.batch import Batch, Part, Source, replace_lost
from picstore.train.geometry import Transform
from picstore.train.pipeline import Filled, Limits, Pipeline, Request
from picstore.train.plan import Epoch, Share, default_lanes, find_rank

DEFAULT_BUDGET = 512 << 20  # bytes of containers: 32 lanes of 8 MiB, and as much read ahead


class Loader:
    """Streams a data set in batches; iterating it again gives the next epoch.

    Each batch is a :class:`Batch`, which unpacks to ``images, labels``. The order and the random transforms are
    functions of (seed, epoch, data set): the same for any number of threads, and after any interruption.

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
        lanes: places of the data set that batches mix; a multiple of the world size, at least 32 by default.
        on_damage: ``"skip"`` replaces a damaged record by another of its batch, logs it and counts it in
            ``loader.damaged``; ``"raise"`` stops.
        budget: bytes of containers to hold in memory, exceeded only where one batch needs more; 512 MiB by default.

    Raises:
        NotADataset, Damage: the data set cannot be opened.
        UsageError: the arguments do not fit together.
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
        budget: int = DEFAULT_BUDGET,
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
        self._limits = Limits(threads or default_threads(), budget)
        self._raise = check_on_damage(on_damage) == "raise"
        self._epoch = 0
        self._batch = 0  # of the epoch, that the consumer gets next
        self.damaged = 0

    def __len__(self) -> int:
        """Batches in an epoch."""
        return self._share.batches

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration begin epoch ``epoch``."""
        self._epoch, self._batch = epoch, 0

    def __iter__(self) -> Iterator[Batch]:
        pipeline = Pipeline(
            self._requests(self._epoch, self._batch),
            sources=[Source(self.dataset, self._seed)],
            transforms=self._transforms,
            limits=self._limits,
        )
        try:
            for filled in pipeline:
                batch, damaged = finish(filled, device=self._device, stop=self._raise)
                self.damaged += damaged
                self._batch += 1
                yield batch
        finally:
            pipeline.close()
        self._epoch, self._batch = self._epoch + 1, 0

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
        """Where the loader is, after the last batch that was taken: a few integers."""
        return {
            "version": 1,
            "dataset": self.dataset.uuid,
            "seed": self._seed,
            "epoch": self._epoch,
            "samples": self._batch * self._share.batch_size * self._share.world_size,
            "lanes": self._share.lanes,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to where another loader of the same data set, seed and lanes was; in no more time than opening takes.

        Raises:
            UsageError: the state is of another data set, seed or number of lanes, or lies inside a batch of this one.
        """
        mine = self.state_dict()
        for name in ("version", "dataset", "seed", "lanes"):
            if state.get(name) != mine[name]:
                raise UsageError(f"the state has {name} {state.get(name)!r}, this loader {mine[name]!r}")
        step = self._share.batch_size * self._share.world_size
        if state["samples"] % step:
            raise UsageError(
                f"the state is after {state['samples']} samples, no multiple of this loader's global batch of {step}"
            )
        self._epoch, self._batch = int(state["epoch"]), state["samples"] // step


def default_threads() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def check_on_damage(policy: str) -> str:
    """The policy, if it is one."""
    if policy not in ("skip", "raise"):
        raise UsageError(f"on_damage {policy!r} is neither 'skip' nor 'raise'")
    return policy


def finish(filled: Filled, *, device: torch.device, stop: bool) -> tuple[Batch, int]:
    """Wait for a batch, deal with its lost records, and put it on its device; also how many were lost."""
    problems = filled.wait()
    if problems and stop:
        slot = min(problems)
        raise Damage(str(problems[slot]), filled.draft.where[slot] or "a container") from problems[slot]
    replace_lost(filled.draft, filled.pixels, problems)
    images = filled.pixels.images
    if device.type != "cpu":
        images = [image.to(device) for image in images] if isinstance(images, list) else images.to(device)
    labels = torch.from_numpy(filled.draft.labels).to(device)
    return Batch(images, labels, torch.from_numpy(filled.draft.ids).to(device)), len(problems)


def _find_rank(rank: int | None, world_size: int | None) -> tuple[int, int]:
    distributed = torch.distributed
    if rank is None and world_size is None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return find_rank(rank, world_size, (os.environ.get("RANK"), os.environ.get("WORLD_SIZE")))
