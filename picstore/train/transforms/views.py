"""Views: several images made of each record, in groups, each with its own list of transforms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from picstore.errors import UsageError, counted
from picstore.train.transforms.arguments import name_of
from picstore.train.transforms.callables import apply_callable
from picstore.train.transforms.color_program import ColorTransform, normalizes
from picstore.train.transforms.constructed import Value
from picstore.train.transforms.transform_lists import Transform, output_size

_MAX_VIEWS = 256


class Views(Value):
    """Loader ``transform`` that makes several views of each image, for self-supervised and teacher-student training.

    ``Views(global_=(2, [...]), local=(8, [...]))`` makes two views by the first list and eight by the second. Each view
    draws its own parameters. A record is read and decoded once, in the box of pixels that its views need. Batches have
    a tensor for each group: ``batch.views["global"]`` has the shape (2, N, 3, H, W). An underscore at the end of a name
    is dropped.

    Args:
        groups: by name of a group, its number of views and its list of transforms, see :class:`picstore.Loader`; 1 to
            256 views in all. Callables get all views of a group as one batch of count · N images.
    """

    def __init__(self, **groups: tuple[int, Any]) -> None:
        self.groups: dict[str, tuple[int, Any]] = {}
        for given, group in groups.items():
            name = given.removesuffix("_")
            if not isinstance(group, (tuple, list)) or len(group) != 2:
                raise UsageError(f"Views: {given} is {group!r}; give the number of views and a list of transforms")
            count, transforms = group
            if not isinstance(count, int) or isinstance(count, bool) or count < 1:
                raise UsageError(f"Views: {given} has {count!r} views; give a number of at least 1")
            if isinstance(transforms, (str, Mapping)):
                raise UsageError(f"Views: {given} has the transforms {transforms!r}; give a list")
            if name in self.groups:
                raise UsageError(f"Views: the name {name!r} is given twice; give each once")
            self.groups[name] = count, tuple(transforms) if isinstance(transforms, list) else transforms
        total = sum(count for count, _ in self.groups.values())
        if not 0 < total <= _MAX_VIEWS:
            raise UsageError(f"Views: there are {counted(total, 'view')}; give 1 to {_MAX_VIEWS}")


@dataclass(frozen=True, slots=True)
class ViewGroup:
    """Group of views of an image with the same transforms; without Views, one nameless group of one view.

    Attributes:
        geometry: transforms that become one resampling.
        color: transforms that become one color program.
        count: number of views of each image.
        first: index of the group's first view among all views; a view's random numbers depend on its index.
    """

    geometry: tuple[Transform, ...] = ()
    color: tuple[ColorTransform, ...] = ()
    name: str = ""
    count: int = 1
    first: int = 0

    @property
    def size(self) -> tuple[int, int] | None:
        """(height, width) of all outputs, or None if the size differs between images."""
        return output_size(self.geometry)

    @property
    def normalizes(self) -> bool:
        """Whether the color transforms normalize images, which makes the images floats."""
        return normalizes(self.color)

    @property
    def needs_boxes(self) -> bool:
        """Whether any geometric transform depends on the boxes of an image's objects."""
        return any(getattr(transform, "needs_boxes", False) for transform in self.geometry)


@dataclass(frozen=True, slots=True)
class ViewCallables:
    """Callable that takes a dict of views by group name, and applies each group's callables to the group's views."""

    by_name: Mapping[str, tuple[Callable[[Any], Any], ...]]

    def __call__(self, views: Mapping[str, Any]) -> dict[str, Any]:
        """Apply each group's callables to all views of the group at once or, if views are lists, to one at a time."""
        return {name: self._apply(self.by_name.get(name, ()), images) for name, images in views.items()}

    def _apply(self, callables: Sequence[Callable[[Any], Any]], images: Any) -> Any:
        if isinstance(images, list):
            for function in callables:
                images = [apply_callable(function, view) for view in images]
            return images
        count = len(images)
        for function in callables:
            made = apply_callable(function, images.flatten(0, 1))
            if isinstance(made, (list, Mapping)):
                raise UsageError(f"{name_of(function)} returned no tensor; views need images of one shape")
            images = made.unflatten(0, (count, -1))
        return images
