"""Loader: shuffled, augmented batches of one dataset."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy.typing as npt
import torch

from picstore.errors import UsageError, counted
from picstore.storage.cache import DEFAULT_LIMIT
from picstore.storage.dataset import Dataset
from picstore.train.batching.spec import MAX_PIXELS, Collate
from picstore.train.core import BatchLoader
from picstore.train.loader_options import check_arguments, images_given, records_of_batch, refuse_arguments
from picstore.train.order.bucket_order import BucketOrder
from picstore.train.order.bucket_plan import BucketTable
from picstore.train.order.dataset_order import DatasetOrder
from picstore.train.order.global_batches import RankShard
from picstore.train.order.rank_shares import default_lanes, divide_samples, find_rank
from picstore.train.order.requests import TrainingSource
from picstore.train.order.weights import record_shares
from picstore.train.transforms.arguments import name_of
from picstore.train.transforms.buckets import Buckets, Sequences
from picstore.train.transforms.progressive import EpochStages
from picstore.train.transforms.transform_plan import LoaderTransform, check_targets, plan_loader
from picstore.train.transforms.views import ViewGroup


@dataclass(frozen=True)
class EpochSampler:
    """Part of a DistributedSampler that training scripts use: ``loader.sampler.set_epoch(epoch)`` and the length."""

    loader: Loader
    samples: int  # Maximum number of samples of a rank in an epoch.

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration begin an epoch; the first call after ``load_state_dict`` keeps the loaded position.

        The first call's ``epoch`` is the training loop's number for the state's epoch; later calls count from there.
        The loop's number differs from the loader's if a limit on steps ended an epoch early: Lightning then counts a
        new epoch, but the loader first makes the rest of the old one.
        """
        self.loader._cursor.follow_epoch(epoch)

    def __len__(self) -> int:
        return self.samples


class Loader(BatchLoader[DatasetOrder | BucketOrder]):
    """Stream of a dataset in batches; each iteration gives the next epoch.

    Each batch is a :class:`Batch`, which unpacks to ``images, labels``. The order and the random transforms are
    functions of (seed, epoch, dataset): the same for any number of threads, and after any interruption.

    Every iteration is a whole epoch. After an iteration that is broken off, the next epoch follows, because a loop that
    always stops after k batches would otherwise get the same batches forever. ``load_state_dict`` resumes in the middle
    of an epoch, once: ``loader.load_state_dict(loader.state_dict())`` after a ``break`` continues with the next batch.

    A look at one batch does not use up an epoch: ``next(iter(loader))``, right after the loader was made or after
    ``set_epoch`` or ``load_state_dict``, leaves the next iteration where it would have begun. ``position`` then is that
    of the batch after the one taken. A second look, or a look at an epoch's only batch, is an iteration like any other.

    Training scripts written for a DataLoader find ``batch_size``, ``drop_last``, ``num_workers``, which is 0, and
    ``sampler``, which has ``set_epoch``. Other arguments of a DataLoader raise an error that says what to use instead.

    While the last batches of an epoch are taken, the first batches of the next epoch are made, so that no epoch begins
    with a wait. The threads that make them run until the loader is closed or garbage-collected.

    A loader is an iterable dataset too: ``DataLoader(loader, batch_size=None, num_workers=n)`` yields the same batches
    in the same order, epoch after epoch; each worker makes every n-th batch.

    Args:
        path: folder or URL of a dataset; or an open ``Dataset``, whose selection of records, cache and unsaved edits
            then apply.
        batch_size: number of images in a batch of this rank; with ``Views``, number of records. Required, unless
            ``global_batch_size`` is given, or ``tokens`` for ``Buckets`` or ``Sequences``.
        global_batch_size: number of images in the batches of all ranks together, in place of ``batch_size``. The ranks'
            batches may differ by one image, so multiply each rank's loss by :attr:`picstore.Batch.weight`.
        transform: a list of transforms, a ``Compose``, an ``nn.Sequential`` or a single transform; or ``Views``
            (several images of each record), ``Buckets`` (one shape per batch), ``Sequences`` (of patches) or
            ``Progressive`` (a list of transforms for each range of epochs). In a list, geometric transforms come first,
            then color transforms, then ``MixUp``, ``CutMix`` and functions, which are called with the images of the
            batch.
        aug_repeats: number of differently augmented images of each record in a batch. It must divide ``batch_size``,
            and multiplies the number of batches in an epoch.
        shuffle: True yields a new order in each epoch. False yields the records of each lane in the stored order;
            ``lanes`` is then the world size by default, so that each rank reads one contiguous range.
        seed: random seed of the order and of the transforms.
        drop_last: True drops an epoch's last records if they do not fill a global batch. False yields every record
            exactly once if none is damaged; the last two batches may then be smaller, but are never empty.
        device: device of the batches. A GPU also decodes and augments them.
        threads: number of decoding threads; by default one per core, divided among a DataLoader's workers.
        rank, world_size: rank of this process, and number of ranks that share each global batch; by default those of
            ``torch.distributed``, or of the environment variables ``RANK`` and ``WORLD_SIZE``.
        weights: relative frequency of each record: one number per record in the order of ``dataset[i]``, or the name
            of a column. An epoch has as many samples as without weights.
        balance: name of a column of integers or strings, such as ``"label"``, whose values are yielded equally often.
        repeat: number of samples of an epoch divided by the number of records.
        lanes: number of parts of equal length into which an epoch's sequence of records is cut, at most 65,536. Batches
            take one record from each lane in turn, and each lane keeps a container in memory. By default the smallest
            multiple of the world size that is at least 32. If ``lanes`` is not given, ``load_state_dict`` takes over
            the number of lanes in the state.
        on_damage: ``"skip"`` replaces each damaged record by another one, logs it with file and offset, and counts it
            in ``loader.damaged``. ``"raise"`` raises an error at the first damaged record.
        max_pixels: an image with more pixels counts as damaged, and no memory is allocated for it; by default 2²⁸.
        reducing_gap: by default, images are decoded at full size. With a number of at least 1, an image is decoded at
            1/2, 1/4 or 1/8 of its size if the resampling that follows still reduces it by this factor. This is faster
            for crops far larger than their output, but less exact.
        budget: largest number of bytes of containers in memory, exceeded only if one batch needs more. By default
            ``processes`` × 1.25 × the lanes of this rank × the size of the largest container, and at least 64 MiB per
            process.
        targets: names of values to yield with each image in ``batch.targets``: ``"boxes"``, ``"keypoints"``,
            ``"polygons"``, ``"extra"`` (the record's JSON object), and names of attachments (files stored with a
            record, such as masks and depth maps). Geometric transforms move all but ``"extra"`` with the image. Names
            of columns (values stored for each record, such as captions) add their values to ``batch.columns``.
        dtype: type of the images: uint8, float16, bfloat16 or float32; by default uint8, or float32 with ``Normalize``
            or ``ToTensor``. Floats are from 0 to 1 unless normalized.
        memory_format: memory layout of the images: ``torch.contiguous_format`` or ``torch.channels_last``.
        decoder: decoder for a GPU device. ``"auto"`` is ``"picstore"``, whose batches equal the CPU's bit for bit.
            ``"cpu"`` makes the batches on the CPU and copies them to the GPU. ``"torchcodec"`` and ``"torchvision"``
            use nvJPEG, whose pixels differ by some gray levels.
        isolate: True makes the batches in a separate process, so that the loader's threads and the training loop do not
            wait for each other. False makes them in threads of your program.
        processes: number of separate processes that make batches in turn. By default one for every four threads, or for
            every four cores of the rank if these are fewer; at least 1 and at most 8. The processes share ``threads``
            and ``budget``. The batches are the same for any number of processes.
        engine: ``"local"`` makes batches on this machine. ``"ray"`` makes the same batches on the Ray cluster to which
            your program is connected or that ``RAY_ADDRESS`` names, or else on a cluster that is started on this
            machine.
        workers: with ``engine="ray"``, number of remote workers of this rank; each takes ``threads`` CPUs, by default
            1. By default as many workers as the cluster has CPUs for. :attr:`workers` can be set at any time.
        collate: function that adds values, such as tokens, to each batch ahead of the training loop. It gets the dict
            of ``Batch.asdict()`` with NumPy arrays, and returns a dict of arrays (N, …) or lists of N, which become
            part of ``batch.columns``. One thread at a time calls it. With ``isolate`` it must be in a module that the
            loader's process can import.
        cache: local folder that keeps the containers that were read from an object store.
        cache_limit: largest number of bytes in the cache folder, for all datasets together; by default 50 GiB.

    Raises:
        NotADataset, Damage: the dataset cannot be opened.
        PicstoreError: an object store refuses access or cannot be reached, here or while iterating, whatever
            ``on_damage`` is.
        UsageError: the arguments do not fit together.
        Damage: while iterating, a record is damaged and ``on_damage`` is ``"raise"``, or a batch has no sound record.
    """

    batch_sampler = None  # Lightning reads this attribute of any loader with a sampler.

    def __init__(  # noqa: PLR0913 - the contract's names, all but one with a default
        self,
        path: str | os.PathLike[str] | Dataset,
        *,
        batch_size: int | None = None,
        global_batch_size: int | None = None,
        transform: LoaderTransform = (),
        aug_repeats: int = 1,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = True,
        device: str | torch.device = "cpu",
        threads: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        weights: str | npt.ArrayLike | None = None,
        balance: str | None = None,
        repeat: float = 1,
        lanes: int | None = None,
        on_damage: str = "skip",
        max_pixels: int = MAX_PIXELS,
        reducing_gap: float | None = None,
        budget: int | None = None,
        targets: Sequence[str] = (),
        dtype: torch.dtype | None = None,
        memory_format: torch.memory_format = torch.contiguous_format,
        decoder: str = "auto",
        isolate: bool = True,
        processes: int | None = None,
        engine: str = "local",
        workers: int | None = None,
        collate: Collate | None = None,
        cache: str | os.PathLike[str] | None = None,
        cache_limit: int | str = DEFAULT_LIMIT,
        **unknown: NoReturn,
    ) -> None:
        refuse_arguments("Loader", unknown)
        # Call ``locals`` first, while the arguments are the only local variables.
        options = check_arguments(locals())
        if isinstance(path, Dataset) and (cache is not None or cache_limit != DEFAULT_LIMIT):
            raise UsageError("an open dataset has a cache of its own; give it to picstore.Dataset")
        self.dataset = path if isinstance(path, Dataset) else Dataset(path, cache=cache, cache_limit=cache_limit)
        seed, shuffle, aug_repeats = options["seed"], options["shuffle"], options["aug_repeats"]
        rank, world_size = find_rank(options["rank"], options["world_size"])
        images, times = images_given(options["batch_size"], options["global_batch_size"], world_size)
        lanes = options["lanes"]
        if lanes is None:
            lanes = default_lanes(world_size) if shuffle else world_size
        drop_last = options["drop_last"]
        ranks: dict[str, Any] = {"rank": rank, "world_size": world_size, "lanes": lanes, "drop_last": drop_last}
        shares = record_shares(
            self.dataset, weights=weights, balance=options["balance"], repeat=options["repeat"], seed=seed
        )
        plans, callables, choice = plan_loader(
            transform,
            targets=check_targets(options["targets"], self.dataset),
            columns=self.dataset.columns,
            aug_repeats=aug_repeats,
            reducing_gap=options["reducing_gap"],
        )
        copies = 1 if shares is None else shares.copies
        source = TrainingSource(self.dataset, seed, plan=plans[0], others=plans[1:], choice=choice, copies=copies)
        order: DatasetOrder | BucketOrder
        if isinstance(transform, (Buckets, Sequences)):
            if shares is not None:
                name = type(transform).__name__
                raise UsageError(f"{name} do not go together with weights, balance and repeat; leave one out")
            sizes = transform.batch_sizes(images)
            buckets = transform.buckets_of(self.dataset)
            order = BucketOrder(
                table=BucketTable.count(self.dataset.live.counts, buckets, len(sizes)),
                batch_sizes=tuple(
                    tuple(times * records_of_batch(size, aug_repeats) for size in each) for each in sizes
                ),
                seed=seed,
                shuffle=shuffle,
                uuid=self.dataset.identity,
                **ranks,
            )
        else:
            shard = RankShard(
                records=len(self.dataset) if shares is None else shares.samples,
                batch=times * records_of_batch(images, aug_repeats),
                **ranks,
            )
            stages = choice if isinstance(choice, EpochStages) else EpochStages()
            order = DatasetOrder(shard, seed, self.dataset.identity, shares, stages, shuffle)
        super().__init__(order, (source,), options=options, callables=callables, whole_epochs=True)
        self.batch_size, self.drop_last, self._ranks = options["batch_size"], drop_last, ranks
        if images is not None and times == 1:
            share = divide_samples(records_of_batch(images, aug_repeats), rank, world_size)
            self.batch_size = aug_repeats * int(share)

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return self._order.length(self._cursor.position[0])

    def _repr_html_(self) -> str:
        from picstore.display.markup import format_facts

        epoch, batch = self._cursor.position
        facts = {
            "dataset": f"{self.dataset.path}, {counted(len(self.dataset), 'image')}",
            "batches": f"{len(self):,}" + ("" if self.batch_size is None else f" of {self.batch_size}"),
            "images": f"{self.output.dtype}, {self._device}",
            **({} if self.output.reducing_gap is None else {"reducing_gap": self.output.reducing_gap}),
            "order": f"shuffled, seed {self.sources[0].seed}" if self.order.shuffle else "as stored",
            "next": f"epoch {epoch}, batch {batch}",
            "rank": f"{self._ranks['rank']} of {self._ranks['world_size']}",
            **{f"transforms {group.name}".strip(): _steps_of(group) for group in self.sources[0].plan.groups},
        }
        return format_facts("Loader", facts)

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration begin ``epoch``, or continue in its middle if a state of ``epoch`` was just loaded.

        An iterator already in use goes on with its epoch, and ``position`` follows that iterator.
        """
        self._cursor.set_epoch(epoch)

    @property
    def sampler(self) -> EpochSampler:
        """Object that replaces the DistributedSampler that training scripts expect."""
        return EpochSampler(self, self._order.samples_of_rank)


def _steps_of(group: ViewGroup) -> str:
    names = ", ".join(name_of(each) for each in (*group.geometry, *group.color)) or "none"
    return names if group.count == 1 else f"{names}; {group.count} views"
