"""MapDataset: a data set by index, for torch's samplers and DataLoader."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.utils import data

from picstore.arrays import I64
from picstore.errors import UsageError
from picstore.storage.dataset import Dataset
from picstore.storage.format.container import Container
from picstore.storage.location.resolve import map_concurrently
from picstore.train.batch import Batch, image_tensors
from picstore.train.batching.columns import look_up_columns
from picstore.train.batching.gather import BatchRecords, gather_records
from picstore.train.batching.host_batch import HostBatch
from picstore.train.batching.parameters import make_params
from picstore.train.batching.spec import MAX_PIXELS, OutputSpec
from picstore.train.buffers import BufferPool
from picstore.train.cpu.fill_images import ImageFiller
from picstore.train.cpu.needed_rows import needed_rows
from picstore.train.order.epoch import Samples
from picstore.train.order.requests import SourceRequest, TrainingSource
from picstore.train.order.shared_array import SharedIntegers
from picstore.train.transforms.compose import UserTransform, check_targets, plan_transforms
from picstore.train.transforms.mix import BatchTransform
from picstore.train.transforms.views import Views

Item: TypeAlias = tuple[Any, Any]  # the image, or its views; and its label or target

_FREE_BLOCKS = 2  # of memory for images, kept for the next batch


class MapDataset(data.Dataset[Item]):
    """A data set by index: ``dataset[i]`` is ``(image, label)`` of the i-th record in stored order.

    It works with samplers, ``Subset``, ``random_split`` and a DataLoader's workers, forked or spawned, and can be
    pickled. The image of a record equals that of a :class:`Loader` with the same transforms, seed and epoch. Each
    record is read alone, of large images the rows of tiles that the transforms need; :class:`Loader` reads containers
    one after the other, which is faster.

    Args:
        path: a finished data set, its directory or URL; or an open one.
        transform: as of :class:`Loader`; callables take a single image (3, H, W), and torch's generators as they are.
            With ``Views``, which take no callables and no targets here, the image of an item is a dict of the groups'
            views, (count, 3, H, W) each.
        seed: of the transforms.
        targets: as of :class:`Loader`. With targets an item is ``(image, target)``: a dict with the ``label``, the
            ``id``, the targets that move with the image, and the record's values in the columns.
        dtype: as of :class:`Loader`.
        max_pixels: as of :class:`Loader`.

    Attributes:
        dataset: the open data set.

    Raises:
        NotADataset, Damage: the data set cannot be opened; ``dataset[i]`` raises Damage for a damaged record.
        UsageError: the arguments do not fit together.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | Dataset,
        *,
        transform: Sequence[UserTransform] | Views = (),
        seed: int = 0,
        targets: Sequence[str] = (),
        dtype: torch.dtype | None = None,
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        self.dataset = path if isinstance(path, Dataset) else Dataset(path)
        targets = check_targets(targets, self.dataset)
        plan, callables = plan_transforms(transform, targets=targets, columns=self.dataset.columns)
        if isinstance(transform, Views) and (callables or plan.targets):
            raise UsageError("MapDataset takes Views without callables and without targets; use picstore.Loader")
        if mixing := [each.name for each in callables if isinstance(each, BatchTransform)]:
            raise UsageError(f"{mixing[0]} mixes a batch, and MapDataset gives single images; use picstore.Loader")
        name = None if dtype is None else str(dtype).removeprefix("torch.")
        self._output = OutputSpec.from_plans([plan], dtype=name)
        self._source = TrainingSource(self.dataset, seed, plan=plan)
        self._callables: tuple[Callable[[Any], Any], ...] = tuple(callables)
        self._max_pixels = max_pixels
        self._epoch = SharedIntegers((1,))
        self._blocks = BufferPool(_FREE_BLOCKS)

    def __len__(self) -> int:
        """Records."""
        return len(self.dataset)

    def set_epoch(self, epoch: int) -> None:
        """Draw the parameters of transforms for this epoch from now on, in the workers of a DataLoader too."""
        self._epoch.values[0] = epoch

    def __getitem__(self, index: int) -> Item:
        """Read and transform a record; IndexError if there is none at this index."""
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Item]:
        """Read and transform several records at once, as a DataLoader asks for those of a batch."""
        if not len(indices):
            return []
        batch = self._make_batch(*self._read_records(self._checked(indices)))
        images = _images_of(batch)
        for transform in self._callables:
            images = [transform(image) for image in images]
        labels = batch.labels.tolist()
        if not self._source.plan.targets and not batch.columns:
            return list(zip(images, labels, strict=True))
        targets: list[dict[str, Any]] = []
        for k, (label, number) in enumerate(zip(labels, batch.ids.tolist(), strict=True)):
            values = {name: column[k] for name, column in batch.columns.items()}
            targets.append({"label": label, "id": number, **(batch.targets[k] if batch.targets else {}), **values})
        return list(zip(images, targets, strict=True))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_blocks"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _blocks=BufferPool(_FREE_BLOCKS))

    def _checked(self, indices: Sequence[int]) -> I64:
        numbers = np.array([operator.index(index) for index in indices], dtype=np.int64)
        for number in numbers[(numbers < -len(self)) | (numbers >= len(self))].tolist():
            raise IndexError(f"index {number} of a data set of {len(self)} records")
        return numbers % len(self)

    def _read_records(self, numbers: I64) -> tuple[SourceRequest, BatchRecords]:
        """Read records by number; Damage if one is damaged."""
        containers, within = self.dataset.live.find(numbers)
        epoch = int(self._epoch.values[0])
        rows_of = partial(needed_rows, self._source, epoch, self._max_pixels)

        def read(number: int) -> Container:
            wanted = np.zeros(int(self.dataset.rows["records"][number]), dtype=np.bool_)
            wanted[within[containers == number]] = True
            attachments = bool(self._source.plan.targets)
            return self.dataset.container_records(number, rows_of, wanted=wanted, attachments=attachments)

        found = np.unique(containers).tolist()
        held = {(0, number): each for number, each in zip(found, map_concurrently(read, found), strict=True)}
        unused = np.zeros(len(numbers), dtype=np.int64)  # lanes
        request = SourceRequest(0, epoch, Samples(containers, within, unused, unused > 0), np.arange(len(numbers)))
        records = gather_records([request], held, sources=(self._source,), max_pixels=self._max_pixels)
        for damage in (*records.damage, *records.problems.values()):
            raise damage
        return request, records

    def _make_batch(self, request: SourceRequest, records: BatchRecords) -> Batch:
        """Make images and targets of records; Damage if one does not decode."""
        params = make_params(
            [request], records.ids, records.image_sizes, sources=(self._source,), extras=records.extras
        )
        filler = ImageFiller(records, params, self._output, self._blocks)
        for damage in filler.fill(range(len(records))).values():
            raise damage
        columns = look_up_columns((self._source,), records.source, records.ids)
        host = HostBatch(filler.images, records.labels, records.ids, records.source, filler.targets, [], None, columns)
        tensors = image_tensors(host.images, getattr(torch, self._output.dtype))
        return Batch.from_host(host, tensors, self._output.groups)


def _images_of(batch: Batch) -> list[Any]:
    """The image of each record; of views a dict by group of tensors (views, 3, H, W), or of lists."""
    if not isinstance(batch.images, dict):
        return list(batch.images)
    return [
        {
            name: [view[k] for view in each] if isinstance(each, list) else each[:, k]
            for name, each in batch.views.items()
        }
        for k in range(len(batch))
    ]
