"""RandomApply, RandomChoice and RandomOrder: choices among transforms of one kind, drawn for each image.

A choice becomes one transform, its ``step``, of the same kind as the transforms inside. Each transform inside draws
from a child generator, so the random numbers of an image do not depend on the transforms of other images.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from picstore.arrays import I64
from picstore.errors import UsageError
from picstore.train.transforms import opcodes
from picstore.train.transforms.arguments import checked_numbers, checked_probability
from picstore.train.transforms.batch_random import BatchRandom
from picstore.train.transforms.color_program import ColorProgram, ColorTransform
from picstore.train.transforms.constructed import Value
from picstore.train.transforms.geometry import Geometry
from picstore.train.transforms.mixup_cutmix import BatchTransform
from picstore.train.transforms.padding_and_edges import CONSTANT
from picstore.train.transforms.transform_lists import Transform, common_fill

_NONE = -1
_TRIAL_SIZES = [(97, 61), (53, 89)]  # sizes on which ``_keeps_sizes`` tests whether a transform changes sizes


class Choice(Value, ABC):
    """Base of RandomApply, RandomChoice and RandomOrder, whose transforms are of one kind: geometry, color or batch.

    Attributes:
        transforms: the transforms to choose from, in the order given.
        step: transform of that kind, which draws which of ``transforms`` to apply and applies them.
    """

    def __init__(self, transforms: Sequence[Any]) -> None:
        name = type(self).__name__
        if not isinstance(transforms, (tuple, list)) or not transforms:
            raise UsageError(f"{name}: transforms is {transforms!r}; give a list of at least one transform")
        self.transforms = tuple(transforms)
        self.step = self._make_step([unfolded(each) for each in transforms])

    @abstractmethod
    def order(self, random: BatchRandom) -> I64:
        """Draw up to k transforms for each of n images; return their indices in order, int64 (n, k), −1 for none."""

    def _make_step(self, steps: list[Any]) -> Any:
        if all(isinstance(step, ColorTransform) for step in steps):
            return _ColorStep(self, steps)
        if all(isinstance(step, BatchTransform) for step in steps):
            return _BatchStep(self, steps)
        if all(hasattr(step, "fixes_size") for step in steps):
            return _GeometricStep(self, steps)
        names = ", ".join(type(each).__name__ for each in self.transforms)
        raise UsageError(
            f"{type(self).__name__} holds {names}; give transforms of one kind, all of geometry or all of color. For "
            "callables of your own write picstore.PerImage(choice), with torchvision's class for the choice"
        )


class RandomApply(Choice):
    """Apply all transforms of a list, or none. Uses 1 random number.

    With ``p=1``, a RandomApply is a group of transforms, among which a RandomChoice can choose.

    Args:
        transforms: transforms, all geometric or all of color.
        p: probability of applying the list.
    """

    def __init__(self, transforms: Sequence[Any], p: float = 0.5) -> None:
        self._p = checked_probability(p, "RandomApply")
        super().__init__(transforms)
        if isinstance(self.step, _BatchStep):
            raise UsageError("RandomApply: transforms of the batch have a probability of their own; write MixUp(p=0.5)")

    def order(self, random: BatchRandom) -> I64:
        return np.where(random.uniform(1) < self._p, np.arange(len(self.transforms)), _NONE)


class RandomChoice(Choice):
    """Apply one transform of a list. Uses 1 random number.

    Args:
        transforms: transforms, all geometric, all of color, or all of whole batches.
        p: weights of the transforms, at least 0, of any sum; None for equal weights.
    """

    def __init__(self, transforms: Sequence[Any], p: Sequence[float] | None = None) -> None:
        super().__init__(transforms)
        count = len(self.transforms)
        weights = (1.0,) * count if p is None else checked_numbers(p, "RandomChoice: p", (count,))
        if min(weights) < 0 or sum(weights) <= 0:
            raise UsageError(f"RandomChoice: p is {p}; give weights of at least 0, not all 0")
        self._ends = np.cumsum(weights) / sum(weights)

    def order(self, random: BatchRandom) -> I64:
        chosen: I64 = (random.uniform(1) >= self._ends[:-1]).sum(axis=1, keepdims=True)
        return chosen


class RandomOrder(Choice):
    """Apply all transforms of a list in random order. Uses a random number for each transform.

    Args:
        transforms: transforms, all geometric, all of color, or all of whole batches.
    """

    def order(self, random: BatchRandom) -> I64:
        return np.argsort(random.uniform(len(self.transforms)), axis=1, kind="stable")


def unfolded(transform: Any) -> Any:
    """Return the ``step`` of a :class:`Choice`, which applies its transforms; return any other transform unchanged."""
    return transform.step if isinstance(transform, Choice) else transform


def _draw(choice: Choice, random: BatchRandom, count: int) -> tuple[I64, list[BatchRandom]]:
    order = choice.order(random)
    return order, [random.child(number) for number in range(count)]


class _GeometricStep:
    """Geometric transform that applies, to each image, those geometric transforms that a :class:`Choice` draws."""

    def __init__(self, choice: Choice, steps: Sequence[Transform]) -> None:
        self.name = type(choice).__name__
        if any(getattr(step, "border", CONSTANT) != CONSTANT for step in steps):
            raise UsageError(f"{self.name} holds a transform with a padding_mode; only 'constant' is possible there")
        self._choice, self._steps = choice, steps
        self.needs_boxes = any(getattr(step, "needs_boxes", False) for step in steps)
        sizes = {step.fixes_size for step in steps}
        one = isinstance(choice, RandomChoice) and len(sizes) == 1 and not any(map(_varies, steps))
        self.fixes_size = sizes.pop() if one else None
        self.varies_size = self.fixes_size is None and not all(map(_keeps_sizes, steps))
        fill = common_fill(steps)
        if any(hasattr(step, "fill") for step in steps):
            self.fill = fill

    def __call__(self, geometry: Geometry, random: BatchRandom) -> Geometry:
        order, generators = _draw(self._choice, random, len(self._steps))
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
    def __init__(self, choice: Choice, steps: Sequence[ColorTransform]) -> None:
        if any(step.normalizes for step in steps):
            raise UsageError(f"{type(choice).__name__} holds Normalize; put it after {type(choice).__name__}")
        self._choice, self._steps, self.name = choice, steps, type(choice).__name__
        self.erases = all(step.erases for step in steps)
        self.moves_pixels = any(step.moves_pixels for step in steps)

    def __call__(self, sizes: I64, random: BatchRandom) -> ColorProgram:
        order, generators = _draw(self._choice, random, len(self._steps))
        n = len(sizes)
        programs = [step(sizes, generator) for step, generator in zip(self._steps, generators, strict=True)]
        # The last program does nothing, because the index −1, which stands for no transform, selects the last.
        programs.append(ColorProgram.from_step(opcodes.NOTHING, [], count=n))
        rows = order % len(programs) * n + np.arange(n)[:, None]
        return ColorProgram.chain([ColorProgram.concatenate(programs, column) for column in rows.T])

    def check(self, *, normalized: bool) -> None:
        for step in self._steps:
            step.check(normalized=normalized)


class _BatchStep(BatchTransform):
    def __init__(self, choice: Choice, steps: Sequence[BatchTransform]) -> None:
        self._choice, self._steps, self.name = choice, steps, type(choice).__name__
        self.needs_floats = any(step.needs_floats for step in steps)

    def for_classes(self, count: int) -> BatchTransform:
        return _BatchStep(self._choice, [step.for_classes(count) for step in self._steps])

    def __call__(self, images: Any, labels: Any, random: BatchRandom) -> tuple[Any, Any]:
        order, generators = _draw(self._choice, random, len(self._steps))
        for number in order[0].tolist():
            images, labels = self._steps[number](images, labels, generators[number])
        return images, labels


def _varies(transform: Transform) -> bool:
    return bool(getattr(transform, "varies_size", False))


def _keeps_sizes(transform: Transform) -> bool:
    canvases = Geometry.identity(*np.transpose(_TRIAL_SIZES))
    try:
        size = transform(canvases, BatchRandom(0, 0, np.arange(len(_TRIAL_SIZES)))).size
    except UsageError:  # The transform is a crop for which the trial images are too small.
        return False
    return not _varies(transform) and np.array_equal(size, canvases.size)
