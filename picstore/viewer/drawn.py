"""Images that transforms make, as the page shows them: those of a recipe, and those of a training's batches."""

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
# A training; the first in the list is the evaluation, which draws nothing.
DEFAULT_RECIPE = "torchvision_resnet50_v2"


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """Images as :func:`draw_views` describes them, their pixels, uint8 (height, width, 3) each, and common facts."""

    images: list[dict[str, Any]]
    pixels: list[U8]
    facts: dict[str, Any] = field(default_factory=dict)


def draw_views(
    images: Any, host: HostBatch, params: Sequence[TransformParams], output: OutputSpec, *, slots: Sequence[int]
) -> Drawn:
    """Describe the images of some slots of a batch, by group, view and slot.

    Args:
        images: by group, view and slot: arrays (3, H, W), normalized or not.
        host: the batch.
        slots: slots to describe, with all their views.
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
                        # The name of the group of views, "" for a list of transforms, and the number in the group.
                        "group": group.name,
                        "view": view,
                        "slot": slot,
                        "id": str(int(host.ids[slot].astype(np.uint64))),
                        "label": int(host.labels[slot]),
                        "width": width,
                        "height": height,
                        # Corners of the region that was cut out, in pixels of the record's image.
                        "frame": np.round(geometry.corners(row), 2).tolist(),
                        "parameters": [*geometry.describe(row), *param.program.describe(row)],
                        "source_size": geometry.source_size[row].tolist(),
                    }
                )
    return Drawn(made, pixels)


def to_levels(image: Array, params: TransformParams, row: int) -> U8:
    """Undo the normalization of an image (3, H, W): uint8 levels (H, W, 3)."""
    image = image.transpose(1, 2, 0)
    if image.dtype == np.uint8:
        return np.ascontiguousarray(image)
    mean, deviation = params.program.normalization(row)
    levels = (image.astype(np.float32) * deviation.astype(np.float32) + mean.astype(np.float32)) * 255
    return np.clip(np.rint(levels), 0, 255).astype(np.uint8)


@dataclass(frozen=True)
class Recipe:
    """A named list of transforms, and the options of a loader that its file gives."""

    name: str
    transform: Any
    options: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def find(cls, given: str) -> Recipe:
        """Find the recipe that ``--recipe`` names, or the first list of a file; UsageError for an unknown name."""
        lists, options = recipes.find_recipe(given)
        return cls(given, lists[0], options)

    @cached_property
    def steps(self) -> list[str]:
        """The transforms in words, by group of views."""
        groups = getattr(self.transform, "groups", {"": (1, self.transform)})
        named = []
        for name, (count, transforms) in groups.items():
            head = f"{name} × {count}: " if name else ""
            named.append(head + ", ".join(getattr(each, "name", type(each).__name__) for each in transforms))
        return named


def offered_recipes(given: str | None) -> list[dict[str, str]]:
    """List the recipe that the command was given, and all named recipes: name, and first paragraph of the docstring."""
    first = {} if given is None else {given: "The recipe of --recipe."}
    named = {
        name: " ".join((made.__doc__ or "").partition("\n\n")[0].replace("``", "").split())
        for name, made in recipes.NAMED.items()
    }
    return [{"name": name, "about": named.get(name, about)} for name, about in (first | named).items()]


def draw_epochs(dataset: Dataset, recipe: Recipe, position: int, *, seed: int, epochs: Sequence[int]) -> Drawn:
    """Make the images that a loader with a seed makes from a record in each of some epochs.

    Steps that take whole batches, such as MixUp, are left out. UsageError if a transform refuses the image, Damage if
    the image is damaged.
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
