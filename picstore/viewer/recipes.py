"""Recipes that the page shows: what their transforms draw for an image, epoch by epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from picstore import recipes
from picstore.storage.dataset import Dataset
from picstore.train.batching.spec import OutputSpec
from picstore.train.buffers import BufferPool
from picstore.train.order.epoch import Samples
from picstore.train.order.requests import SourceRequest, TrainingSource
from picstore.train.single_batch import make_images, read_records
from picstore.train.transforms.compose import plan_transforms
from picstore.viewer.drawn import Drawn, draw_views

MAX_DRAWS = 64
DEFAULT_RECIPE = "torchvision_resnet50_v2"  # a training; the first in the list is the evaluation, which draws nothing


@dataclass(frozen=True)
class Recipe:
    """Transforms by name, and the options of a loader that a file gives with them."""

    name: str
    transform: Any
    options: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def find(cls, given: str) -> Recipe:
        """Find a recipe as ``--recipe`` names it; of a file, its first list. UsageError for an unknown one."""
        lists, options = recipes.find_recipe(given)
        return cls(given, lists[0], options)

    @cached_property
    def steps(self) -> list[str]:
        """Its transforms in words, by group of views."""
        groups = getattr(self.transform, "groups", {"": (1, self.transform)})
        named = []
        for name, (count, transforms) in groups.items():
            head = f"{name} × {count}: " if name else ""
            named.append(head + ", ".join(getattr(each, "name", type(each).__name__) for each in transforms))
        return named


@dataclass(frozen=True, slots=True)
class Offered:
    """A recipe in the page's list, with the first paragraph of what its function says of it."""

    name: str
    about: str


def offered_recipes(given: str | None) -> list[Offered]:
    """The recipe that the command was given, and all named recipes."""
    first = {} if given is None else {given: "The recipe of --recipe."}
    named = {
        name: " ".join((made.__doc__ or "").partition("\n\n")[0].replace("``", "").split())
        for name, made in recipes.NAMED.items()
    }
    return [Offered(name, named.get(name, about)) for name, about in (first | named).items()]


def draw_epochs(dataset: Dataset, recipe: Recipe, position: int, *, seed: int, epochs: Sequence[int]) -> Drawn:
    """Make what a recipe draws for a record in each of some epochs: the images of a loader with this seed.

    Steps that take whole batches, such as MixUp, are left out. UsageError if a transform refuses the image, Damage if
    it is damaged.
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
        drawn.images.extend(replace(each, slot=number, position=position) for each in one.images)
        drawn.pixels.extend(one.pixels)
    return drawn
