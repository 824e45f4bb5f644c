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

        The number in that call stands for the state's epoch, and later numbers are relative to it. The training loop's
        number differs from the loader's if a limit on steps cut an epoch short, because Lightning then counts a new
        epoch, but the loader still makes the rest of the previous epoch.
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
        path: directory or URL of a finished dataset; or an open dataset, which may have a cache, and columns and
            deletions that are not saved in the directory.
        batch_size: number of this rank's images in a batch, or of records with ``Views``. Omit it only if the transform
            has ``tokens``, or with ``global_batch_size``.
        global_batch_size: number of images in the batches of all ranks, instead of ``batch_size``. The ranks' shares
            differ by at most one, so a training keeps its global batches if 8 ranks become 7. Multiply each rank's loss
            by :attr:`picstore.Batch.weight` in this case.
        transform: geometric transforms, then color transforms, each composed into one pass; then ``MixUp``, ``CutMix``
            and any callables, which take the images of the batch on its device, with torch's generators seeded for that
            batch. Or ``Views``, ``Buckets`` of several sizes, ``Sequences`` of several lengths, or ``Progressive``
            lists by epoch.
        aug_repeats: number of images that a batch holds of each of its records, with different random transforms
            ("repeated augmentation", Hoffer et al., CVPR 2020). It divides ``batch_size`` and multiplies an epoch's
            batches.
        shuffle: False keeps the stored order in each lane; the default number of lanes is then that of the ranks, so
            that each rank reads a contiguous range.
        seed: seed of order and transforms.
        drop_last: leave out the samples that do not fill a batch. False yields every record exactly once, and a last
            batch of at least half a global batch.
        device: device of the batches.
        threads: number of decoding threads; by default one for each core, divided among a DataLoader's workers.
        rank, world_size: by default those of ``torch.distributed``, or RANK and WORLD_SIZE of the environment.
        weights: relative frequency of each record: a number for each ``dataset[i]``, or the name of a column of
            :attr:`picstore.Dataset.table`. An epoch has as many samples as without weights. Each record gets its share
            of them, rounded up or down in an epoch but exact over many; its samples have different random transforms.
        balance: instead of weights, the name of a column of integers or strings, such as ``"label"``, whose values come
            equally often.
        repeat: number of samples in an epoch, as a multiple of the number of records; less than 1 for short epochs.
        lanes: number of parts of an epoch that batches mix, at most 65,536. The order depends on this number, but not
            on the world size. Ranks share lanes unless the number is a multiple of the world size; the default is the
            smallest such multiple that is at least 32. ``load_state_dict`` takes over the state's lanes unless they are
            given here.
        on_damage: ``"skip"`` replaces a damaged record by another record of the container or batch, logs it once with
            file and offset, and counts it in ``loader.damaged``; ``"raise"`` stops.
        max_pixels: an image with more pixels counts as damaged, before memory is allocated for it.
        reducing_gap: None to decode at full size and resample once. With a number of at least 1.0 an image is decoded
            at 1/2, 1/4 or 1/8 if that leaves at least this factor to the resampling, as with Pillow's argument of that
            name: faster for crops far larger than their output, but less exact. ``decoder="picstore"`` does so on a GPU
            too; other decoders on GPUs refuse the option.
        budget: bytes of containers to hold in memory, exceeded only if one batch needs more. By default a quarter more
            than the lanes of this rank read at a time: 320 MiB for 32 lanes and containers of 8 MiB.
        targets: annotations of each record to yield in ``batch.targets``: ``"boxes"``, ``"keypoints"``,
            ``"polygons"``, ``"extra"``, and names of attachments that hold masks. Geometric transforms move them with
            the image. Names of columns give their values in ``batch.columns``.
        dtype: dtype of the images: by default uint8, or float32 with ``Normalize``. Floats have the range 0 to 1
            without ``Normalize``, and may be float16, bfloat16 or float32.
        memory_format: memory format of the images, for instance ``torch.channels_last``.
        decoder: on a GPU, ``"auto"`` is ``"picstore"``, whose batches equal the CPU's to the bit; ``"cpu"`` decodes as
            without a GPU; ``"torchcodec"`` and ``"torchvision"`` use nvJPEG, whose pixels differ by some levels.
            Transforms run where the images are.
        isolate: make batches in a separate process and hand them over in shared memory, so that the process's threads
            and the training loop do not wait for each other. False makes batches with threads of this process.
        processes: number of processes that make the batches in turn, because Python's lock limits one process. By
            default one for every four threads, or for every four cores of the rank if these are fewer; at least one and
            at most eight. Processes share ``threads`` and ``budget``, whose default grows with the number of processes,
            and read up to 1.25 times the bytes. The batches are the same.
        engine: ``"local"``; or ``"ray"`` for workers on the Ray cluster that this process is connected to, that
            ``RAY_ADDRESS`` names, or that is started on this machine. The batches are the same.
        workers: with ``engine="ray"``, number of actors of this rank, each of ``threads`` CPUs, 1 by default; if None,
            as many as the cluster has CPUs for. :attr:`workers` can be set at any time.
        collate: function that is called with each new batch, ahead of the training loop, for instance to tokenize. It
            gets the dict of ``Batch.asdict()`` with NumPy arrays, and returns more values of the records by name, as
            arrays (N, …) or lists of N, which become part of ``batch.columns``. One thread at a time calls it. With
            ``isolate`` it must be in a module that the loader's process can import.
        cache, cache_limit: folder in which the containers of a distant dataset are kept once they are read, and the
            folder's maximum size, as for :class:`picstore.Dataset`.

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
        if isinstance(path, Dataset) and cache is not None:
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

        An iterator that is in use continues, and ``position`` follows it.
        """
        self._cursor.set_epoch(epoch)

    @property
    def sampler(self) -> EpochSampler:
        """Object that replaces the DistributedSampler that training scripts expect."""
        return EpochSampler(self, self._order.samples_of_rank)


def _steps_of(group: ViewGroup) -> str:
    names = ", ".join(name_of(each) for each in (*group.geometry, *group.color)) or "none"
    return names if group.count == 1 else f"{names}; {group.count} views"
