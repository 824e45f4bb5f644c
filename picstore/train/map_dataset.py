"""MapDataset: records of a dataset by index, for torch's samplers and DataLoader."""

from __future__ import annotations

import operator
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NoReturn, TypeAlias

import numpy as np
import torch
from torch.utils import data

from picstore import rng
from picstore.arrays import I64
from picstore.errors import UsageError, counted
from picstore.storage.dataset import Dataset
from picstore.train.batch import Batch, image_tensors
from picstore.train.batching.gather import BatchRecords
from picstore.train.batching.parameters import TransformParams, make_params
from picstore.train.batching.spec import MAX_PIXELS, OutputSpec
from picstore.train.buffers import BufferPool
from picstore.train.loader_options import check_arguments, check_main_guard, refuse_arguments
from picstore.train.order.epoch_order import Samples
from picstore.train.order.requests import BatchRequest, SourceRequest, TrainingSource
from picstore.train.order.shared_array import SharedIntegers
from picstore.train.order.state_checks import check_position
from picstore.train.single_batch import make_images, read_records
from picstore.train.transforms.arguments import name_of
from picstore.train.transforms.callables import PerImage
from picstore.train.transforms.mixup_cutmix import BatchTransform
from picstore.train.transforms.transform_plan import Transforms, check_targets, plan_transforms
from picstore.train.transforms.views import Views

Item: TypeAlias = tuple[Any, Any]  # image or dict of views, and label or target

_FREE_BLOCKS = 2
# Number of records whose second visit is noticed; a few suffice, because samplers visit all again in the next epoch.
_WATCHED = 256
_NOT_GIVEN = -1


class MapDataset(data.Dataset[Item]):
    """Dataset by index: ``dataset[i]`` is ``(image, label)`` of the i-th record in stored order.

    A MapDataset works with samplers, ``Subset``, ``random_split`` and a DataLoader's workers, and can be pickled.
    Images equal those of a :class:`Loader` with the same transforms, seed and epoch. Each record is read alone; of a
    large image, only the rows of tiles that the transforms need are read. :class:`Loader` is faster, because it reads
    whole containers.

    Call ``set_epoch`` before each epoch. Without the call, a DataLoader's workers draw new parameters for each batch
    from the seed that torch gives them. Outside of workers the epoch is 0, and the first record that comes again with
    the same parameters causes a warning.

    Args:
        path: directory or URL of a finished dataset; or an open dataset.
        transform: as for :class:`Loader`. Callables take one image (3, H, W), and torch's generators are not seeded.
            With ``Views``, which take no callables and no targets here, each image is a dict of the groups' views,
            (count, 3, H, W) each.
        seed: seed of the transforms.
        targets: as for :class:`Loader`. With targets an item is ``(image, target)``. The target is a dict of the
            ``label``, the ``id``, the targets that move with the image, and the record's values in the columns.
        dtype, max_pixels, reducing_gap: as for :class:`Loader`.

    Attributes:
        dataset: the open dataset.

    Raises:
        NotADataset, Damage: the dataset cannot be opened; ``dataset[i]`` raises Damage for a damaged record.
        UsageError: the arguments do not fit together.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | Dataset,
        *,
        transform: Transforms | Views = (),
        seed: int = 0,
        targets: Sequence[str] = (),
        dtype: torch.dtype | None = None,
        max_pixels: int = MAX_PIXELS,
        reducing_gap: float | None = None,
        **unknown: NoReturn,
    ) -> None:
        refuse_arguments("MapDataset", unknown)
        # Call ``locals`` first, while the arguments are the only local variables.
        given = check_arguments(locals())
        self.dataset = path if isinstance(path, Dataset) else Dataset(path)
        targets = check_targets(given["targets"], self.dataset)
        plan, callables = plan_transforms(
            transform, targets=targets, columns=self.dataset.columns, reducing_gap=given["reducing_gap"]
        )
        if isinstance(transform, Views) and (callables or plan.targets):
            raise UsageError("MapDataset takes Views without callables and without targets; use picstore.Loader")
        if mixing := [name_of(each) for each in callables if isinstance(each, BatchTransform)]:
            raise UsageError(f"{mixing[0]} mixes a batch, and MapDataset gives single images; use picstore.Loader")
        name = None if dtype is None else str(dtype).removeprefix("torch.")
        self._output = OutputSpec.from_plans([plan], dtype=name)
        self._source = TrainingSource(self.dataset, given["seed"], plan=plan)
        self._callables: tuple[Callable[[Any], Any], ...] = tuple(
            each.function if isinstance(each, PerImage) else each for each in callables
        )
        self._max_pixels = given["max_pixels"]
        self._epoch = SharedIntegers((1,))
        self._epoch.values[0] = _NOT_GIVEN
        self._calls = 0  # Number of batches that this worker made while no epoch was set.
        # Records visited outside of workers while no epoch was set, to warn of a second visit; None after the warning.
        self._watched: set[int] | None = set()
        self._blocks = BufferPool(_FREE_BLOCKS)

    def __repr__(self) -> str:
        gap = self._output.reducing_gap
        shown = [str(self.dataset.path), counted(len(self), "image"), self._output.dtype]
        return f"MapDataset({', '.join(shown)}{'' if gap is None else f', reducing_gap={gap}'})"

    def __len__(self) -> int:
        return len(self.dataset)

    @property
    def classes(self) -> list[str]:
        """Names of the classes, in the order of their labels, as in torchvision's ImageFolder."""
        return self.dataset.classes

    @property
    def class_to_idx(self) -> dict[str, int]:
        """Label of each class by name, see :attr:`picstore.Dataset.class_to_idx`."""
        return self.dataset.class_to_idx

    @property
    def targets(self) -> list[int]:
        """Label of each record by index, see :attr:`picstore.Dataset.targets`."""
        return self.dataset.targets

    @property
    def samples(self) -> list[tuple[str | None, int]]:
        """Path and label of each record by index, see :attr:`picstore.Dataset.samples`."""
        return self.dataset.samples

    def set_epoch(self, epoch: int) -> None:
        """Draw the parameters of transforms for ``epoch`` from now on, in a DataLoader's workers too."""
        (self._epoch.values[0],) = check_position(epoch=epoch)

    def __getitem__(self, index: int) -> Item:
        """Read and transform a record; raise IndexError if the index is out of range."""
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Item]:
        """Read and transform several records in one call, which a DataLoader makes for each batch."""
        if not len(indices):
            return []
        batch = self._make_batch(self._checked(indices))
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
        check_main_guard()
        return {name: value for name, value in self.__dict__.items() if name != "_blocks"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _blocks=BufferPool(_FREE_BLOCKS))

    def _checked(self, indices: Sequence[int]) -> I64:
        numbers = np.array([operator.index(index) for index in indices], dtype=np.int64)
        for number in numbers[(numbers < -len(self)) | (numbers >= len(self))].tolist():
            raise IndexError(f"index {number} of a dataset of {counted(len(self), 'record')}")
        return numbers % len(self)

    def _find_epoch(self) -> int:
        """Return the epoch that was set. If none was, return 0 or, in a worker, a new random number for each batch."""
        epoch, worker = int(self._epoch.values[0]), data.get_worker_info()
        if epoch != _NOT_GIVEN or worker is None:
            return max(epoch, 0)
        self._calls += 1
        return rng.key(worker.seed, self._calls) >> 22  # Keep 42 bits, the maximum for an epoch.

    def _watch(self, numbers: I64, request: BatchRequest, records: BatchRecords, params: Any) -> None:
        """Warn once if a record comes again with the same random parameters, because no epoch was set."""
        if self._watched is None or self._epoch.values[0] != _NOT_GIVEN or data.get_worker_info() is not None:
            return
        listed = numbers.tolist()
        repeated = self._watched.intersection(listed)
        self._watched.update(listed[: _WATCHED - len(self._watched)])
        if not repeated:
            return
        later = [replace(each, epoch=each.epoch + 1) for each in request]
        others = make_params(later, records.ids, records.image_sizes, sources=(self._source,), extras=records.extras)
        if not all(map(TransformParams.equals, params, others)):
            self._watched = None
            warnings.warn(
                f"record {min(repeated)} of {self.dataset.path} comes a second time with the random transforms of the "
                "first: call set_epoch(epoch) of the MapDataset before each epoch",
                stacklevel=2,
            )

    def _make_batch(self, numbers: I64) -> Batch:
        containers, within = self.dataset.live.find(numbers)
        # Placeholder for the fields ``lane`` and ``end`` of ``Samples``, which only loaders use.
        unused = np.zeros(len(numbers), dtype=np.int64)
        samples = Samples(containers, within, unused, unused)
        request = [SourceRequest(0, self._find_epoch(), samples, np.arange(len(numbers)))]
        sources = (self._source,)
        records = read_records(request, sources, max_pixels=self._max_pixels)
        for damage in (*records.damage, *records.problems.values()):
            raise damage
        made = make_images(records, request, sources, output=self._output, blocks=self._blocks)
        for damage in made.problems.values():
            raise damage
        self._watch(numbers, request, records, made.params)
        tensors = image_tensors(made.host.images, getattr(torch, self._output.dtype))
        return Batch.from_host(made.host, tensors, self._output.groups)


def _images_of(batch: Batch) -> list[Any]:
    """Return each record's image, or with ``Views`` a dict by group: (count, 3, H, W), or a list if sizes vary."""
    if not isinstance(batch.images, dict):
        return list(batch.images)
    return [
        {
            name: [view[k] for view in each] if isinstance(each, list) else each[:, k]
            for name, each in batch.views.items()
        }
        for k in range(len(batch.labels))
    ]
