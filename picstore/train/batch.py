"""The Batch that a loader yields, with the arrays of a HostBatch as tensors without a copy; and patches of images."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch
from torch.utils._pytree import register_dataclass, register_pytree_node
from torch.utils.data._utils.collate import default_collate_fn_map

from picstore.arrays import Array
from picstore.errors import UsageError, missing_extra
from picstore.storage.format.maps import PREFIX as MAP_PREFIX
from picstore.storage.format.record import Record
from picstore.train.batching.host_batch import map_images
from picstore.train.transforms.arguments import checked_integer

if TYPE_CHECKING:
    from picstore.display.figures import Figure
    from picstore.train.batching.host_batch import HostBatch
    from picstore.train.batching.spec import GroupSpec


_THUMBNAILS = 8


class ViewImages(dict[str, Any]):
    """A batch's images by the names of the groups of ``Views``; any other key raises a KeyError with these names."""

    def __missing__(self, key: object) -> NoReturn:
        name = next(iter(self), "views")
        raise KeyError(
            f"{key!r} is not a group of these views, which are {', '.join(self)}; the first images of a group are "
            f"images[{name!r}][:, :2], of shape (count, N, 3, H, W)"
        )

    def __getitem__(self, key: Any) -> Any:
        # Check for slices here, because before Python 3.12 they are not hashable.
        return self.__missing__(key) if isinstance(key, slice) else super().__getitem__(key)


@dataclass(frozen=True, eq=False)
class Batch:
    """Batch of a loader. Unpacking, ``len`` and integer indices treat a batch as the tuple ``(images, labels)``.

    The class is not a tuple, because a DataLoader converts a tuple to a list, which loses ids, targets and columns.
    ``tuple(batch)`` is the pair, for libraries that need a tuple, and ``batch["ids"]`` is a field by name.

    Attributes:
        images: uint8 (N, 3, H, W), or floats with the option ``dtype`` or the transform ``Normalize``. A list of N
            tensors (3, H, W) if no transform fixes the size. With ``Views``, a dict by name of the group of views, see
            ``views``. If the loader's ``transform`` has callables, the result of the last callable.
        labels: int64 (N,); after ``MixUp`` or ``CutMix`` float32 (N, classes).
        ids: int64 (N,), ids of the records.
        targets: a list of N dicts, one for each image, see docs/targets.md; None without the loader's option
            ``targets``. With ``Views``, a dict by name of the group, with such a list for each view of the group.
        columns: values by name of the columns that the option ``targets`` names: a tensor (N, …), or a list of N
            strings. A missing value is None among strings, NaN among floats and −1 among integers.
        weight: float32 (), factor for the loss: samples in this batch times the world size, divided by the samples in
            the global batch; 1 if ranks have equal shares. DDP averages the ranks' gradients. With ``(loss *
            batch.weight).backward()`` of a mean loss, the average is the gradient of the global batch's mean loss.
    """

    images: Any
    labels: torch.Tensor
    ids: torch.Tensor
    targets: Any = None
    columns: dict[str, Any] = field(default_factory=dict)
    weight: torch.Tensor = field(default_factory=lambda: torch.ones(()))

    @classmethod
    def from_host(cls, host: HostBatch, images: list[Any], groups: Sequence[GroupSpec]) -> Batch:
        """Build a batch from image tensors by group of views, and from the other arrays of ``host``, without a copy."""
        targets: list[Any] | None = None
        if host.targets is not None:
            targets = [
                [
                    [make_tensors(target, image.shape[-2:]) for target, image in zip(*view, strict=True)]
                    for view in views
                ]
                for views in (zip(*group, strict=True) for group in zip(host.targets, images, strict=True))
            ]
        columns = {
            name: torch.from_numpy(values) if isinstance(values, np.ndarray) else values
            for name, values in host.columns.items()
        }
        labels, ids, weight = torch.from_numpy(host.labels), torch.from_numpy(host.ids), torch.tensor(host.weight)
        if groups[0].name:
            names = [group.name for group in groups]
            moved = None if targets is None else dict(zip(names, targets, strict=True))
            return cls(ViewImages(zip(names, images, strict=True)), labels, ids, moved, columns, weight)
        flat = _join_views(images[0])
        batch = cls(flat, labels, ids, None if targets is None else _join_views(targets[0]), columns, weight)
        return batch if groups[0].count == 1 else batch._repeat_labels(groups[0].count)

    @property
    def views(self) -> dict[str, Any]:
        """Images by name of the group: tensor (count, N, 3, H, W) or, if sizes vary, a list of N images for each view.

        Raise UsageError if the loader has no ``Views``.
        """
        if not isinstance(self.images, dict):
            raise UsageError("the batch has no views; give the loader transform=picstore.Views(...)")
        return self.images

    def __iter__(self) -> Iterator[Any]:
        return iter((self.images, self.labels))

    def __len__(self) -> int:
        """Return 2, the length of the pair of images and labels; the number of images is ``len(batch.labels)``."""
        return 2

    def __getitem__(self, key: Any) -> Any:
        """Return an item or a slice of the pair (images, labels), or the field of :meth:`asdict` called ``key``."""
        if isinstance(key, slice):
            return (self.images, self.labels)[key]
        if isinstance(key, str):
            fields = self.asdict()
            if key in fields:
                return fields[key]
        elif (number := operator.index(key)) in (0, 1, -1, -2):
            return self.labels if number in (1, -1) else self.images
        text = f"a Batch has no {key!r}: batch[0] is its images, batch[1] its labels, batch.images[k] one image"
        raise (KeyError if isinstance(key, str) else IndexError)(text)

    def asdict(self) -> dict[str, Any]:
        """Return the fields by name, for loops that take dicts; targets and columns only if there are any."""
        named = {"images": self.images, "labels": self.labels, "ids": self.ids}
        optional = {"targets": self.targets, "columns": self.columns}
        return named | {name: value for name, value in optional.items() if value}

    @staticmethod
    def as_inputs(items: Sequence[Batch | tuple[torch.Tensor, int]]) -> dict[str, Any]:
        """Return the inputs of a Hugging Face transformers model; serves as the ``data_collator`` of a Trainer.

        If the Trainer's datasets are loaders, which yield whole batches, the Trainer's batch size must be 1. If they
        are :class:`MapDataset` without targets, the batch size may be any.

        Returns:
            ``pixel_values`` and ``labels`` of the only batch, or of the pairs of image and label.

        Raises:
            UsageError: there are several batches, because the Trainer's batch size is not 1.
        """
        batch = items[0]
        if not isinstance(batch, Batch):
            images, labels = zip(*items, strict=True)
            return {"pixel_values": torch.stack(images), "labels": torch.tensor(labels)}
        if len(items) != 1:
            raise UsageError(
                f"a loader yields whole batches, and the Trainer asks for {len(items)} at a time; give its "
                "TrainingArguments per_device_train_batch_size=1, and the loader the batch_size"
            )
        return {"pixel_values": batch.images, "labels": batch.labels}

    def to(self, device: str | torch.device, *, non_blocking: bool = False) -> Batch:
        """Return the batch on a device, except its targets, which stay on the CPU."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def record_stream(self, stream: torch.cuda.Stream) -> None:
        """Keep this batch's GPU memory from being reused before the work queued on ``stream`` is done."""

        def record(tensor: torch.Tensor) -> torch.Tensor:
            tensor.record_stream(stream)
            return tensor

        self._map(record)

    def pin_memory(self) -> Batch:
        """Return the batch in page-locked memory, as a DataLoader with ``pin_memory=True`` asks for."""
        return self._map(lambda tensor: tensor.pin_memory())

    def show(
        self,
        count: int = 16,
        *,
        classes: Sequence[str] = (),
        columns: int = 4,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> Figure:
        """Draw the first images with label, id and targets. With ``Views``, each row shows one view of the records.

        Args:
            count: number of images; with ``Views``, each row has ``columns`` images instead.
            classes: names of labels, such as ``dataset.classes``.
            columns: number of images side by side.
            mean, std: arguments of ``Normalize``, to undo it. Without them, floats outside of 0 … 1 are stretched.

        Returns:
            A figure of matplotlib, which a notebook shows and ``savefig`` writes to a file.

        Raises:
            MissingDependency: matplotlib is not installed.
            UsageError: callables have returned something other than images, or only one of ``mean`` and ``std`` is
                given.
        """
        from picstore.display.figures import draw_tiles
        from picstore.train.batch_pictures import are_images, make_tiles

        make = partial(make_tiles, labels=self.labels, ids=self.ids, classes=classes, mean=mean, std=std)
        if isinstance(self.images, dict) and all(are_images(views[0]) for views in self.images.values()):
            tiles, rows = [], []
            for name, views in self.images.items():
                for k, images in enumerate(views):
                    targets = None if self.targets is None else self.targets[name][k]
                    tiles += make(images[:columns], targets)
                    rows.append(f"{name} {k}")
            return draw_tiles(tiles, columns=columns, rows=rows)
        images = self.images if isinstance(self.images, dict) else self.images[:count]
        if not are_images(images):
            raise UsageError(f"there are no images to show: callables made {_describe(self.images)}")
        return draw_tiles(make(images, self.targets), columns=columns) if len(images) else draw_tiles([])

    def _repr_html_(self) -> str:
        from picstore.display.markup import format_facts
        from picstore.train.batch_pictures import are_images, levels_of, make_captions

        first = next(iter(self.images.values()))[0] if isinstance(self.images, dict) else self.images
        facts = {"images": _describe(self.images), "labels": _describe(self.labels), "columns": ", ".join(self.columns)}
        thumbnails = []
        if len(self.labels) and are_images(first):
            shown, captions = first[:_THUMBNAILS], make_captions(self.labels, self.ids, (), count=_THUMBNAILS)
            thumbnails = list(zip(map(levels_of(shown), shown), captions, strict=False))
        return format_facts("Batch", {name: text for name, text in facts.items() if text}, thumbnails)

    def _repeat_labels(self, count: int) -> Batch:
        columns = {
            name: torch.cat([values] * count) if isinstance(values, torch.Tensor) else values * count
            for name, values in self.columns.items()
        }
        return replace(self, labels=self.labels.repeat(count), ids=self.ids.repeat(count), columns=columns)

    def _map(self, function: Callable[[torch.Tensor], torch.Tensor]) -> Batch:
        """Return a copy of the batch with a function applied to each tensor, except to the targets' tensors."""
        values = (self.images, self.labels, self.ids, self.columns, self.weight)
        images, labels, ids, columns, weight = (_map_tensors(function, value) for value in values)
        return Batch(images, labels, ids, self.targets, columns, weight)


# Register the classes with torch's pytree, whose functions can then map over the tensors of batches and of views.
register_dataclass(Batch, serialized_type_name="picstore.Batch")
register_pytree_node(
    ViewImages,
    lambda views: (list(views.values()), list(views)),
    lambda values, names: ViewImages(zip(names, values, strict=True)),
    serialized_type_name="picstore.ViewImages",
)


def _refuse_to_collate(*_: Any, **__: Any) -> Any:
    raise UsageError("a loader yields whole batches; write DataLoader(loader, batch_size=None)")


def _refuse_records(*_: Any, **__: Any) -> Any:
    raise UsageError(
        "a picstore.Dataset gives records, which no DataLoader collates; write picstore.Loader(dataset, batch_size=...)"
        " in place of the DataLoader, or give it picstore.MapDataset(dataset)"
    )


default_collate_fn_map[Batch] = _refuse_to_collate
default_collate_fn_map[Record] = _refuse_records


def _map_tensors(function: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    if isinstance(value, dict):
        mapped = {name: _map_tensors(function, each) for name, each in value.items()}
        return ViewImages(mapped) if isinstance(value, ViewImages) else mapped
    if isinstance(value, list):
        return [_map_tensors(function, each) for each in value]
    return function(value) if isinstance(value, torch.Tensor) else value


def _describe(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{name}: {_describe(each)}" for name, each in value.items())
    if isinstance(value, list):
        return f"list of {len(value)}" + (f": {_describe(value[0])}, …" if value else "")
    return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)} on {value.device}"


def _join_views(views: Any) -> Any:
    """Join the views of a group: a tensor (count, N, …) to (count · N, …), or lists of N images to one list."""
    return list(chain.from_iterable(views)) if isinstance(views, list) else views.flatten(0, 1)


def make_tensors(target: dict[str, Any], size: tuple[int, int]) -> dict[str, Any]:
    """Convert the arrays of an image's target to tensors and ``tv_tensors``; ``size`` is (height, width)."""
    try:
        from torchvision import tv_tensors  # The import takes half a second.
    except ImportError as error:
        raise missing_extra("targets as tensors need torchvision", "torch") from error

    made: dict[str, Any] = {}
    for name, value in target.items():
        if name == "boxes":
            made[name] = tv_tensors.BoundingBoxes(torch.from_numpy(value), format="XYXY", canvas_size=size)
        elif name == "keypoints":
            made[name] = tv_tensors.KeyPoints(torch.from_numpy(value), canvas_size=size)
        elif name in ("labels", "visibility", "index"):
            made[name] = torch.from_numpy(value)
        elif name == "polygons":
            made[name] = [[torch.from_numpy(outline) for outline in outlines] for outlines in value]
        elif name == "extra" or value is None:
            made[name] = value
        elif value.ndim == 3 and not name.startswith(MAP_PREFIX):
            made[name] = tv_tensors.Image(torch.from_numpy(value))
        else:
            made[name] = tv_tensors.Mask(torch.from_numpy(value))
    return made


def image_tensors(images: Any, dtype: torch.dtype) -> Any:
    """Convert arrays in nested lists to tensors that share their memory; copy an array that occurs again."""
    tensors: dict[int, torch.Tensor] = {}

    def make(array: Array) -> torch.Tensor:
        tensor = _tensor(array, dtype)
        known = tensors.setdefault(tensor.data_ptr(), tensor)
        return tensor if known is tensor else tensor.clone()

    return map_images(make, images)


def _tensor(array: Array, dtype: torch.dtype) -> torch.Tensor:
    if array.dtype == np.uint16:  # The array holds bits of float16 or bfloat16 values.
        return torch.from_numpy(array.view(np.int16)).view(dtype)
    return torch.from_numpy(array)


def patchify(
    images: Sequence[torch.Tensor], patch_size: int = 16, *, lengths: Sequence[int] | None = None
) -> dict[str, torch.Tensor]:
    """Cut images into square patches, row by row from the top left, as timm's NaFlexVit needs.

    Args:
        images: N images (3, H, W) whose sides are multiples of ``patch_size``, such as ``ResizeToSequence`` makes.
        patch_size: side of a patch in pixels.
        lengths: possible numbers of patches per image, such as those of ``Sequences`` for compiled models; the shortest
            that suffices for all images is chosen. By default, the number is that of the longest image.

    Returns:
        ``patches``, (N, length, patch_size² · 3) of the images' dtype, padded with zeros, with the three values of a
        pixel side by side; ``patch_coord``, int64 (N, length, 2), the row and column of each patch; and
        ``patch_valid``, bool (N, length), False for padding.

    Raises:
        UsageError: there are no images, a side is not a multiple of the patch, or no length is long enough.
    """
    patch_size = checked_integer(patch_size, "patch_size", 1)
    given = images if isinstance(images, Iterable) else [images]
    if not all(isinstance(each, torch.Tensor) and each.ndim == 3 for each in given):
        raise UsageError("patchify: the images are not tensors (3, H, W); give batch.images, or a list of such tensors")
    if not len(images) or any(side % patch_size for image in images for side in image.shape[1:]):
        shapes = [tuple(each.shape) for each in images]
        raise UsageError(f"patchify: images have shapes {shapes}; their sides must be multiples of {patch_size}")
    grids = [(image.shape[1] // patch_size, image.shape[2] // patch_size) for image in images]
    longest = max(rows * columns for rows, columns in grids)
    length = min((each for each in lengths or [longest] if each >= longest), default=0)
    if not length:
        raise UsageError(f"patchify: an image has {longest} patches, more than lengths {lengths}; give a larger one")
    first, count = images[0], len(images)
    patches = first.new_zeros((count, length, patch_size * patch_size * first.shape[0]))
    coordinates = torch.zeros((count, length, 2), dtype=torch.int64, device=first.device)
    valid = torch.zeros((count, length), dtype=torch.bool, device=first.device)
    for k, (image, (rows, columns)) in enumerate(zip(images, grids, strict=True)):
        cut = image.reshape(-1, rows, patch_size, columns, patch_size)
        n = rows * columns
        patches[k, :n] = cut.permute(1, 3, 2, 4, 0).reshape(n, -1)
        index = torch.arange(n, device=first.device)
        coordinates[k, :n] = torch.stack([index // columns, index % columns], dim=1)
        valid[k, :n] = True
    return {"patches": patches, "patch_coord": coordinates, "patch_valid": valid}
