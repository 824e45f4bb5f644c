"""Images that random transforms draw, for a recipe or for a batch of a training run, as the page shows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from picstore import recipes
from picstore.arrays import U8, Array
from picstore.storage.dataset import Dataset
from picstore.train.batching.host_batch import HostBatch
from picstore.train.batching.parameters import TransformParams
from picstore.train.batching.spec import OutputSpec
from picstore.train.buffers import BufferPool
from picstore.train.order.epoch_order import Samples
from picstore.train.order.requests import SourceRequest, TrainingSource
from picstore.train.single_batch import make_images, read_records
from picstore.train.transforms.transform_plan import plan_transforms

MAX_DRAWS = 64
# Recipe that the page shows first, because the first recipe in the list is for evaluation and has no random transforms.
DEFAULT_RECIPE = "torchvision_resnet50_v2"


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """Images that transforms made: a description of each, its pixels as uint8 (h, w, 3), and facts about all images."""

    images: list[dict[str, Any]]
    pixels: list[U8]
    facts: dict[str, Any] = field(default_factory=dict)


def draw_views(
    images: Any, host: HostBatch, params: Sequence[TransformParams], output: OutputSpec, *, slots: Sequence[int]
) -> Drawn:
    """Describe the augmented images of some records of a batch.

    A slot is a record's index in the batch; a group has one or more views (images) of each record. The result is sorted
    by slot, group and view.

    Args:
        images: arrays (3, H, W), normalized or not, for each group, view and slot.
        host: the batch, with the records' ids and labels.
        params: parameters that the transforms drew for each group.
        output: names of the groups.
        slots: slots whose images to describe.
    """
    made, pixels = [], []
    for slot in slots:
        for group, views, param in zip(output.groups, images, params, strict=True):
            for view, of_slots in enumerate(views):
                row = view * len(host.ids) + slot
                geometry = param.geometry
                pixels.append(to_levels(np.asarray(of_slots[slot]), param, row))
                width, height = geometry.size[row].tolist()
                made.append(
                    {
                        # Name of the group of ``Views``, "" for a plain list of transforms; index of the view in it.
                        "group": group.name,
                        "view": view,
                        "slot": slot,
                        "id": str(int(host.ids[slot].astype(np.uint64))),
                        "label": int(host.labels[slot]),
                        "width": width,
                        "height": height,
                        # Corners of the cropped region, in pixels of the record's stored image.
                        "frame": np.round(geometry.corners(row), 2).tolist(),
                        "parameters": [*geometry.describe(row), *param.program.describe(row)],
                        "source_size": geometry.source_size[row].tolist(),
                    }
                )
    return Drawn(made, pixels)


def to_levels(image: Array, params: TransformParams, row: int) -> U8:
    """Convert image ``row`` of a batch, (3, H, W), to RGB levels, uint8 (H, W, 3), undoing any normalization."""
    image = image.transpose(1, 2, 0)
    if image.dtype == np.uint8:
        return np.ascontiguousarray(image)
    mean, deviation = params.program.normalization(row)
    levels = (image.astype(np.float32) * deviation.astype(np.float32) + mean.astype(np.float32)) * 255
    return np.clip(np.rint(levels), 0, 255).astype(np.uint8)


@dataclass(frozen=True)
class Recipe:
    """Named list of transforms, with the loader options that the recipe's file holds."""

    name: str
    transform: Any
    options: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def find(cls, given: str) -> Recipe:
        """Return the recipe with the name ``given``, or the first list of a TOML file at the path ``given``."""
        lists, options = recipes.find_recipe(given)
        return cls(given, lists[0], options)

    @cached_property
    def steps(self) -> list[str]:
        """Names of the transforms: one string for each group of views, or one string for a plain list."""
        groups = getattr(self.transform, "groups", {"": (1, self.transform)})
        named = []
        for name, (count, transforms) in groups.items():
            head = f"{name} × {count}: " if name else ""
            named.append(head + ", ".join(getattr(each, "name", type(each).__name__) for each in transforms))
        return named


def offered_recipes(given: str | None) -> list[dict[str, str]]:
    """Return name and description of the recipe given by ``--recipe``, if any, and of picstore's recipes."""
    first = {} if given is None else {given: "The recipe of --recipe."}
    named = {
        name: " ".join((made.__doc__ or "").partition("\n\n")[0].replace("``", "").split())
        for name, made in recipes.NAMED.items()
    }
    return [{"name": name, "about": named.get(name, about)} for name, about in (first | named).items()]


def draw_epochs(dataset: Dataset, recipe: Recipe, position: int, *, seed: int, epochs: Sequence[int]) -> Drawn:
    """Draw the images that a loader with ``seed`` makes from one record in several epochs.

    Transforms of whole batches, such as MixUp, are left out. Raise UsageError if a transform rejects the image, and
    Damage if the image is damaged.
    """
    targets = tuple(recipe.options.get("targets", ()))
    plan, callables = plan_transforms(
        recipe.transform,
        targets=targets,
        columns=dataset.columns,
        reducing_gap=recipe.options.get("reducing_gap"),
    )
    source = TrainingSource(dataset, seed, plan=plan)
    output = OutputSpec.from_plans([plan])
    containers, within = dataset.live.find(np.array([position]))
    unused = np.zeros(1, dtype=np.int64)
    drawn = Drawn([], [], {"steps": recipe.steps, "left_out": [type(each).__name__ for each in callables]})
    for number, epoch in enumerate(epochs):
        request = [SourceRequest(0, epoch, Samples(containers, within, unused, unused), np.arange(1))]
        records = read_records(request, (source,))
        made = make_images(records, request, (source,), output=output, blocks=BufferPool(0))
        for damage in (*made.host.damage, *made.problems.values()):
            raise damage
        one = draw_views(made.host.images, made.host, made.params, output, slots=range(1))
        drawn.images.extend(each | {"slot": number, "position": position} for each in one.images)
        drawn.pixels.extend(one.pixels)
    return drawn
