"""The loader: shuffled, augmented batches of one data set."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils.data import IterableDataset

from picstore import rng
from picstore.errors import UsageError
from picstore.storage.cache import DEFAULT_LIMIT
from picstore.storage.dataset import Dataset
from picstore.train.batch import Batch, is_channels_last, name_of
from picstore.train.batching.damage import DamageLog
from picstore.train.batching.spec import OutputSpec, PipelineSpec, Resources
from picstore.train.order.cursor import EpochCursor, Worker
from picstore.train.order.requests import Source, default_budget, make_requests
from picstore.train.order.sharding import RankShard, default_lanes, find_rank
from picstore.train.pipeline.runner import PipelineRunner
from picstore.train.pipeline.stats import Stats
from picstore.train.transforms.compose import UserTransform, check_targets, plan_transforms


class Loader(IterableDataset[Batch]):
    """Streams a data set in batches; iterating it again gives the next epoch.

    Each batch is a :class:`Batch`, which unpacks to ``images, labels``. The order and the random transforms are
    functions of (seed, epoch, data set): the same for any number of threads, and after any interruption.

    Every iteration is a whole epoch, also after one that was broken off: it then begins the next epoch, since a loop
    that always stops after k batches would otherwise see the same k for ever. What resumes in the middle of an epoch is
    ``load_state_dict``, once: ``loader.load_state_dict(loader.state_dict())`` after a ``break`` goes on where it was.

    While the last batches of an epoch are taken, the first of the next are made, so that it begins without waiting; the
    threads that do this stay until the loader is closed or garbage.

    It is an iterable data set too: ``DataLoader(loader, batch_size=None, num_workers=n)`` yields the same batches in
    the same order, each worker making every n-th, and one epoch after the other.

    Args:
        path: a finished data set, its directory or URL; or an open one, which may have columns and deletions that are
            not saved, and its cache.
        batch_size: of this rank.
        transform: geometric transforms, then those of colour, each composed into one pass; then any callables, which
            take the images of the batch on its device, with torch's generators seeded for that batch.
        shuffle: False reads the stored order, each rank a contiguous range.
        seed: of order and transforms.
        drop_last: leave out the samples that fill no batch. False yields every record exactly once.
        device: where batches are put.
        threads: that decode; one a core by default, or a share of them in a DataLoader's worker.
        rank, world_size: of this process; by default those of ``torch.distributed`` or of the environment's RANK and
            WORLD_SIZE.
        lanes: places of the data set that shuffled batches mix; a multiple of the world size, at least 32 by default.
        on_damage: ``"skip"`` replaces a damaged record by another of its container or batch, logs it once with file
            and offset, and counts it in ``loader.damaged``; ``"raise"`` stops.
        budget: bytes of containers to hold in memory, exceeded only where one batch needs more. By default what the
            lanes of this rank read at a time and a quarter more: 320 MiB for 32 lanes and containers of 8 MiB.
        targets: what else to yield of each record, in ``batch.targets``: ``"boxes"``, ``"keypoints"``, ``"polygons"``,
            ``"extra"``, and names of attachments that hold masks. Geometric transforms move them with the image. Names
            of columns give their values in ``batch.columns``.
        dtype: of the images: uint8 by default, float32 with ``Normalize``; float16, bfloat16 and float32 have the
            range 0 to 1 without it.
        memory_format: of the images, ``torch.channels_last`` for instance.
        decoder: on a GPU, what makes images of the streams that were cut for their crops: ``"torchcodec"``,
            ``"torchvision"``, ``"cpu"`` as without a GPU, or ``"auto"``, the first of these that is there. Transforms
            follow where the images are. Decoders differ by some levels; train and evaluate with the same one.
        isolate: make batches in a process of its own, which hands them over in shared memory, so that its threads and
            the training loop do not wait for each other. False makes them with threads of this process.
        cache, cache_limit: a folder that keeps the containers that were read, for a data set far away, and what it may
            hold, as of :class:`picstore.Dataset`.

    Raises:
        NotADataset, Damage: the data set cannot be opened.
        PicstoreError: an object store refuses access or cannot be reached, here or while iterating; ``on_damage`` is
            not about that.
        UsageError: the arguments do not fit together.
        Damage: while iterating, a record is damaged and ``on_damage`` is ``"raise"``, or a batch has no sound record.
    """

    def __init__(  # noqa: PLR0913 - the contract's names, all but seven with a default
        self,
        path: str | os.PathLike[str] | Dataset,
        *,
        batch_size: int,
        transform: Sequence[UserTransform] = (),
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
        targets: Sequence[str] = (),
        dtype: torch.dtype | None = None,
        memory_format: torch.memory_format = torch.contiguous_format,
        decoder: str = "auto",
        isolate: bool = True,
        cache: str | os.PathLike[str] | None = None,
        cache_limit: int | str = DEFAULT_LIMIT,
    ) -> None:
        if not isinstance(path, Dataset):
            path = Dataset(path, cache=cache, cache_limit=cache_limit)
        elif cache is not None:
            raise UsageError("an open data set has a cache of its own; give it to picstore.Dataset")
        self.dataset = path
        rank, world_size = rank_of_process(rank, world_size)
        if lanes is None:
            lanes = default_lanes(world_size)
        self._share = RankShard(
            records=len(self.dataset),
            lanes=lanes if shuffle else 1,
            batch_size=batch_size,
            rank=rank,
            world_size=world_size,
            shuffle=shuffle,
            drop_last=drop_last,
        )
        wanted = check_targets(targets, self.dataset)
        recipe, callables = plan_transforms(transform, targets=wanted, columns=self.dataset.columns)
        self._seed = seed
        if budget is None:
            budget = default_budget([self.dataset], self._share.lanes // (world_size if shuffle else 1))
        self._outlet = PipelineRunner(
            PipelineSpec(
                sources=(Source(self.dataset, seed, recipe=recipe),),
                form=OutputSpec.of([recipe], dtype=name_of(dtype), channels_last=is_channels_last(memory_format)),
                limits=Resources(default_threads() if threads is None else threads, budget),
            ),
            losses=DamageLog(on_damage),
            device=torch.device(device),
            decoder=decoder,
            callables=callables,
            isolate=isolate,
            threads=threads,
        )
        self._position = EpochCursor(self._share.batches, whole=True)

    @property
    def damaged(self) -> int:
        """Samples replaced because their record was damaged, since the loader was made."""
        return self.stats.damaged

    @property
    def stats(self) -> Stats:
        """What was done and waited for since the loader was made; in a DataLoader's worker, by that worker."""
        return self._outlet.stats

    def __len__(self) -> int:
        """Batches in an epoch."""
        return self._share.batches

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration begin epoch ``epoch``."""
        self._position.set(epoch, 0)

    def close(self) -> None:
        """End threads and child process now, not when the loader is garbage; iterating again starts others."""
        self._outlet.close()

    def __iter__(self) -> Iterator[Batch]:
        worker = Worker.current()
        epoch, first = self._position.begin(worker)
        requests = partial(
            make_requests, share=self._share, seed=self._seed, epoch=epoch, first=first, step=worker.count
        )
        feed = self._outlet.feed((epoch, first), requests)
        finished = False
        try:
            for number in range(first, len(self), worker.step):
                seed = rng.key(rng.AUGMENT, self._seed, epoch, number, self._share.rank)
                batch = self._outlet.finish(next(feed), seed=seed)
                self._position.advance(epoch, number + worker.step, worker)
                yield batch
            finished = True
        finally:
            if finished and not worker.count:
                self._outlet.keep((epoch + 1, 0), feed)
            else:
                feed.close()

    def state_dict(self) -> dict[str, Any]:
        """Where the loader is, after the last batch that was taken: a few numbers and strings, fit for JSON."""
        epoch, batch = self._position.place
        state = {
            "version": 1,
            "dataset": self.dataset.uuid,
            "seed": self._seed,
            "shuffle": self._share.shuffle,
            "lanes": self._share.lanes,
            "world_size": self._share.world_size,
            "epoch": epoch,
            "samples": batch * self._global_batch,
        }
        worker = Worker.current()
        return {**state, "worker": [worker.number, worker.count]} if worker.count else state

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
        if state.get("worker") not in (None, mine.get("worker")):
            raise UsageError(
                f"the state is of worker and workers {state['worker']}, this is {mine.get('worker')}; a DataLoader's "
                "state goes on with as many workers, the state of a loader that is iterated by itself with any number"
            )
        epoch, samples = state.get("epoch"), state.get("samples")
        if not isinstance(epoch, int) or not isinstance(samples, int):
            raise UsageError(f"the state has epoch {epoch!r} and samples {samples!r}; both must be integers")
        batch, rest = divmod(samples, self._global_batch)
        if rest or batch < 0 or (batch > len(self) and "worker" not in state):
            raise UsageError(
                f"the state is after {samples} samples; this loader has {len(self)} global batches of "
                f"{self._global_batch} an epoch, and goes on after a whole number of them"
            )
        self._position.set(epoch, batch)

    @property
    def _global_batch(self) -> int:
        return self._share.batch_size * self._share.world_size


def default_threads() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def rank_of_process(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Rank and world size: the arguments, those of torch.distributed, of the environment, or 0 and 1."""
    distributed = torch.distributed
    if rank is None and world_size is None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return find_rank(rank, world_size, (os.environ.get("RANK"), os.environ.get("WORLD_SIZE")))
