"""RandomApply, RandomChoice and RandomOrder: transforms of one kind, of which each image gets some.

A container becomes one transform of its content's kind, its ``step``. Its own random numbers choose; each transform
inside draws from a child generator, so an image's numbers do not depend on what others get.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from picstore.arrays import I64
from picstore.errors import UsageError
from picstore.train.transforms import opcodes
from picstore.train.transforms.arguments import checked_numbers, checked_probability
from picstore.train.transforms.batch_random import BatchRandom
from picstore.train.transforms.borders import CONSTANT
from picstore.train.transforms.color_program import ColorProgram, ColorTransform
from picstore.train.transforms.geometry import Geometry, Transform, common_fill
from picstore.train.transforms.mix import BatchTransform

_NONE = -1
_TRIAL_SIZES = [(97, 61), (53, 89)]  # of canvases that show whether a transform keeps sizes


class Container(ABC):
    """Transforms of one kind: all of geometry, all of color, or all of the batch.

    Attributes:
        transforms: in the order given.
        step: these as one transform of their kind.
    """

    def __init__(self, transforms: Sequence[Any]) -> None:
        name = type(self).__name__
        if not isinstance(transforms, (tuple, list)) or not transforms:
            raise UsageError(f"{name}: transforms is {transforms!r}; give a list of at least one transform")
        self.transforms = tuple(transforms)
        self.step = self._make_step([unfolded(each) for each in transforms])

    @abstractmethod
    def order(self, random: BatchRandom) -> I64:
        """Numbers of the transforms that each image gets, in turn: int64 (n, k), −1 for none."""

    def _make_step(self, steps: list[Any]) -> Any:
        if all(isinstance(step, ColorTransform) for step in steps):
            return _ColorStep(self, steps)
        if all(isinstance(step, BatchTransform) for step in steps):
            return _BatchStep(self, steps)
        if all(hasattr(step, "fixes_size") for step in steps):
            return _GeometricStep(self, steps)
        names = ", ".join(type(each).__name__ for each in self.transforms)
        raise UsageError(
            f"{type(self).__name__} holds {names}; give each container transforms of one kind, all of geometry or "
            "all of color. For callables of your own write picstore.PerImage(container), with torchvision's container"
        )


class RandomApply(Container):
    """Apply all of a list of transforms, or none. Uses 1 random number, and its children's.

    With a probability of 1, the list counts as one transform in another container.

    Args:
        transforms: all of geometry or all of color.
        p: probability.

    Raises:
        UsageError: the transforms are of several kinds, the list is empty, or ``p`` is not in 0 … 1.
    """

    def __init__(self, transforms: Sequence[Any], p: float = 0.5) -> None:
        self._p = checked_probability(p, "RandomApply")
        super().__init__(transforms)
        if isinstance(self.step, _BatchStep):
            raise UsageError("RandomApply: transforms of the batch have a probability of their own; write MixUp(p=0.5)")

    def order(self, random: BatchRandom) -> I64:
        """Numbers of the transforms that each image gets, in turn: int64 (n, k), −1 for none."""
        order: I64 = np.where(random.uniform(1) < self._p, np.arange(len(self.transforms)), _NONE)
        return order


class RandomChoice(Container):
    """Apply one transform of a list. Uses 1 random number, and its children's.

    Args:
        transforms: all of geometry, all of color, or all of the batch.
        p: their probabilities, which need not add up to 1; None for equal ones.

    Raises:
        UsageError: the transforms are of several kinds, the list is empty, or ``p`` is not one weight for each.
    """

    def __init__(self, transforms: Sequence[Any], p: Sequence[float] | None = None) -> None:
        super().__init__(transforms)
        count = len(self.transforms)
        weights = (1.0,) * count if p is None else checked_numbers(p, "RandomChoice: p", (count,))
        if min(weights) < 0 or sum(weights) <= 0:
            raise UsageError(f"RandomChoice: p is {p}; give weights of at least 0, not all 0")
        self._ends = np.cumsum(weights) / sum(weights)

    def order(self, random: BatchRandom) -> I64:
        """Numbers of the transforms that each image gets, in turn: int64 (n, k), −1 for none."""
        chosen: I64 = (random.uniform(1) >= self._ends[:-1]).sum(axis=1, keepdims=True)
        return chosen


class RandomOrder(Container):
    """Apply all transforms of a list in random order. Uses a random number for each, and its children's.

    Args:
        transforms: all of geometry, all of color, or all of the batch.

    Raises:
        UsageError: the transforms are of several kinds, or the list is empty.
    """

    def order(self, random: BatchRandom) -> I64:
        """Numbers of the transforms that each image gets, in turn: int64 (n, k), −1 for none."""
        return np.argsort(random.uniform(len(self.transforms)), axis=1, kind="stable")


def unfolded(transform: Any) -> Any:
    """A container as one transform of its content's kind; another transform as it is."""
    return transform.step if isinstance(transform, Container) else transform


class _HasOrder(Protocol):
    def order(self, random: BatchRandom) -> I64: ...


def _draw(container: _HasOrder, random: BatchRandom, count: int) -> tuple[I64, list[BatchRandom]]:
    """The container's order, and a generator for each of ``count`` transforms."""
    order = container.order(random)
    return order, [random.child(number) for number in range(count)]


class _GeometricStep:
    """A container of geometric transforms as one of them."""

    def __init__(self, container: Container, steps: Sequence[Transform]) -> None:
        self.name = type(container).__name__
        if any(getattr(step, "border", CONSTANT) != CONSTANT for step in steps):
            raise UsageError(f"{self.name} holds a transform with a padding_mode; only 'constant' is possible there")
        self._container, self._steps = container, steps
        self.needs_boxes = any(getattr(step, "needs_boxes", False) for step in steps)
        sizes = {step.fixes_size for step in steps}
        one = isinstance(container, RandomChoice) and len(sizes) == 1 and not any(map(_varies, steps))
        self.fixes_size = sizes.pop() if one else None
        self.varies_size = self.fixes_size is None and not all(map(_keeps_sizes, steps))
        fill = common_fill(steps)
        if any(hasattr(step, "fill") for step in steps):
            self.fill = fill

    def __call__(self, geometry: Geometry, random: BatchRandom) -> Geometry:
        order, generators = _draw(self._container, random, len(self._steps))
        if hasattr(self, "fill"):
            geometry = geometry.with_fill(self.fill)
        for column in order.T:
            parts, rows = [], []
            for number in np.unique(column):
                slots = np.flatnonzero(column == number)
                part = Geometry.concatenate([geometry], slots)
                if number != _NONE:
                    part = self._steps[number](part, generators[number].rows(slots))
                parts.append(part)
                rows.append(slots)
            geometry = Geometry.concatenate(parts, np.argsort(np.concatenate(rows)))
        return geometry


class _ColorStep(ColorTransform):
    """A container of color transforms as one of them."""

    def __init__(self, container: Container, steps: Sequence[ColorTransform]) -> None:
        if any(step.normalizes for step in steps):
            raise UsageError(f"{type(container).__name__} holds Normalize; put it after {type(container).__name__}")
        self._container, self._steps = container, steps
        self.erases = all(step.erases for step in steps)
        self.moves_pixels = any(step.moves_pixels for step in steps)

    @property
    def name(self) -> str:
        """The container's, for messages."""
        return type(self._container).__name__

    def __call__(self, sizes: I64, random: BatchRandom) -> ColorProgram:
        order, generators = _draw(self._container, random, len(self._steps))
        n = len(sizes)
        programs = [step(sizes, generator) for step, generator in zip(self._steps, generators, strict=True)]
        programs.append(ColorProgram.from_step(opcodes.NOTHING, [], count=n))  # what −1 takes
        rows = order % len(programs) * n + np.arange(n)[:, None]
        return ColorProgram.chain([ColorProgram.concatenate(programs, column) for column in rows.T])

    def check(self, *, normalized: bool) -> None:
        for step in self._steps:
            step.check(normalized=normalized)


class _BatchStep(BatchTransform):
    """A container of transforms of the batch as one of them."""

    def __init__(self, container: Container, steps: Sequence[BatchTransform]) -> None:
        self._container, self._steps = container, steps
        self.needs_floats = any(step.needs_floats for step in steps)

    @property
    def name(self) -> str:
        """The container's, for messages."""
        return type(self._container).__name__

    def for_classes(self, count: int) -> BatchTransform:
        return _BatchStep(self._container, [step.for_classes(count) for step in self._steps])

    def __call__(self, images: Any, labels: Any, random: BatchRandom) -> tuple[Any, Any]:
        order, generators = _draw(self._container, random, len(self._steps))
        for number in order[0].tolist():
            images, labels = self._steps[number](images, labels, generators[number])
        return images, labels


def _varies(transform: Transform) -> bool:
    return bool(getattr(transform, "varies_size", False))


def _keeps_sizes(transform: Transform) -> bool:
    """Whether a transform leaves canvases of any size at their size."""
    canvases = Geometry.identity(*np.transpose(_TRIAL_SIZES))
    try:
        size = transform(canvases, BatchRandom(0, 0, np.arange(len(_TRIAL_SIZES)))).size
    except UsageError:  # a crop that does not fit
        return False
    return not _varies(transform) and np.array_equal(size, canvases.size)
