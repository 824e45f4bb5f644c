"""MixUp and CutMix: transforms of the images and labels of a whole batch, on the device of the batch."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from picstore.errors import UsageError, counted
from picstore.train.transforms.arguments import checked_integer, checked_probability, is_number, name_of
from picstore.train.transforms.batch_random import BatchRandom
from picstore.train.transforms.constructed import Value

# Imported only for type annotations, because loader processes import this module without torch.
if TYPE_CHECKING:
    from torch import Tensor


class BatchTransform(Value, ABC):
    """Step on the images (N, 3, H, W) and labels of a batch; the base of :class:`MixUp` and :class:`CutMix`.

    Attributes:
        needs_floats: whether the images must be floats, because the step averages them and would round bytes.
    """

    needs_floats = False

    @abstractmethod
    def for_classes(self, count: int) -> BatchTransform:
        """Return a copy for the labels of a dataset with ``count`` class names, 0 for none.

        Raise UsageError if the transform needs class names, or was made for fewer classes.
        """

    @abstractmethod
    def __call__(self, images: Any, labels: Tensor, random: BatchRandom) -> tuple[Any, Tensor]:
        """Return a batch's images and labels, transformed; ``random`` has one generator for the whole batch."""


class _Mix(BatchTransform):
    """Base of MixUp and CutMix, which mix each image and label with the previous image and label of the batch."""

    def __init__(
        self, alpha: float = 1.0, num_classes: int | None = None, *, p: float = 1.0, label_smoothing: float = 0.0
    ) -> None:
        name = type(self).__name__
        if not is_number(alpha) or alpha <= 0:
            raise UsageError(f"{name}: alpha is {alpha}; give a number above 0")
        if num_classes is not None:
            num_classes = checked_integer(num_classes, f"{name}: num_classes", 1)
        if not is_number(label_smoothing) or not 0 <= label_smoothing < 1:
            raise UsageError(f"{name}: label_smoothing is {label_smoothing}; give a number from 0 to below 1")
        self._alpha, self._classes = float(alpha), num_classes
        self._p, self._smoothing = checked_probability(p, name), float(label_smoothing)

    def for_classes(self, count: int) -> BatchTransform:
        name = type(self).__name__
        if not (self._classes or count):
            raise UsageError(f"{name}: the dataset has no class names; give num_classes")
        if self._classes is not None and self._classes < count:
            raise UsageError(
                f"{name}: num_classes is {self._classes}, and the dataset has {counted(count, 'class')}; give more"
            )
        bound = copy.copy(self)
        bound._classes = self._classes or count
        return bound

    def __call__(self, images: Any, labels: Tensor, random: BatchRandom) -> tuple[Any, Tensor]:
        """Mix a batch with probability ``p``; labels become float32 (N, classes) whether it is mixed or not."""
        if isinstance(images, list) or (self.needs_floats and not images.is_floating_point()):
            found = "images of several sizes" if isinstance(images, list) else f"images of {images.dtype}"
            raise UsageError(f"{type(self).__name__} takes a batch of floats of one size, not {found}")
        chance, *numbers = random.uniform(5)[0].tolist()
        labels = self._soft_labels(labels)
        if chance >= self._p:
            return images, labels
        images, weight = self._mix(images, symmetric_beta(self._alpha, *numbers[:2]), *numbers[2:])
        return images, _average(labels, weight)

    @abstractmethod
    def _mix(self, images: Tensor, weight: float, x: float, y: float) -> tuple[Tensor, float]:
        """Mix each image with the previous image of the batch; return the mixes, and an image's weight in its mix.

        The weight is ``weight``, or greater if CutMix clips its box. ``x`` and ``y`` are uniform in [0, 1).
        """

    def _soft_labels(self, labels: Tensor) -> Tensor:
        """Return labels as smoothed probabilities of classes; for an unknown label, −1, all are 0 before smoothing."""
        import torch

        if labels.ndim == 2:
            return labels
        classes = self._classes or 0
        # Do not check labels on a GPU, because reading their maximum would wait for all work queued on the GPU.
        if labels.device.type == "cpu" and int(labels.max()) >= classes:
            text = f"{type(self).__name__}: num_classes is {classes}, and a label is {int(labels.max())}"
            raise UsageError(f"{text}; give num_classes above all labels")
        soft = (labels[:, None] == torch.arange(classes, device=labels.device)).float()
        return soft.mul_(1 - self._smoothing).add_(self._smoothing / classes) if self._smoothing else soft


class MixUp(_Mix):
    """Average each image with another image ("mixup", Zhang et al., ICLR 2018). Uses 5 random numbers for each batch.

    The other image is the previous one of the batch, as in torchvision. All images of a batch have the same weight,
    drawn from a symmetric beta distribution. The images must be floats of one size: end the list's color transforms
    with ``Normalize``, or give the loader a ``dtype``. Labels become float32 (N, classes), in unmixed batches too.

    Args:
        alpha: parameter of the beta distribution, above 0.
        num_classes: length of a label; by default the dataset's number of classes.
        p: probability of mixing a batch.
        label_smoothing: part of each label that is spread evenly over the classes before mixing, 0 to below 1.
    """

    needs_floats = True

    def _mix(self, images: Tensor, weight: float, x: float, y: float) -> tuple[Tensor, float]:
        return _average(images, weight), weight


class CutMix(_Mix):
    """Paste a box of another image into each image ("CutMix", Yun et al., ICCV 2019). Uses 5 numbers for each batch.

    Arguments, labels and the other image: see :class:`MixUp`; images may be uint8. The box has the same place in all
    images of a batch; its center is uniform in the image. Before the box is clipped to the image, its area is 1 − w of
    the image's, where w is drawn as MixUp's weight.
    """

    def _mix(self, images: Tensor, weight: float, x: float, y: float) -> tuple[Tensor, float]:
        height, width = images.shape[-2:]
        left, right = _span(int(x * width), width, weight)
        top, bottom = _span(int(y * height), height, weight)
        mixed = images.clone()
        mixed[..., top:bottom, left:right] = images.roll(1, 0)[..., top:bottom, left:right]
        return mixed, 1 - (right - left) * (bottom - top) / (width * height)


def _average(values: Tensor, weight: float) -> Tensor:
    """Return weight × row + (1 − weight) × previous row, for each image or label (row); round each product and the sum.

    ``add_(alpha=...)`` would fuse product and sum on some devices only, so batches would differ between devices.
    """
    return values.mul(weight).add_(values.roll(1, 0).mul_(1 - weight))


def _span(center: int, extent: int, weight: float) -> tuple[int, int]:
    """Return start and end of CutMix's box along an axis of ``extent`` pixels, rounded as in torchvision."""
    half = int(0.5 * math.sqrt(1 - weight) * extent)
    return max(center - half, 0), min(center + half, extent)


def symmetric_beta(alpha: float, u: float, v: float) -> float:
    """Draw a number from the distribution Beta(alpha, alpha), given two uniform numbers in [0, 1).

    If T has Student's distribution of 2 α degrees of freedom, and X has Beta(α, α), then T / sqrt(2 α + T²) has the
    distribution of 2 X − 1. T is drawn by the formula of Bailey, "Polar generation of random variates with the
    t-distribution", 1994, which never rejects numbers.
    """
    power, cosine = (1 - u) ** (1 / alpha), math.cos(2 * math.pi * v)
    spread = (1 - power) * cosine**2
    return 0.5 + 0.5 * math.copysign(math.sqrt(spread / (power + spread)), cosine)


def bind_batch_transforms(
    callables: Sequence[Any], *, classes: int, one_size: bool, floats: bool, targets: Sequence[str]
) -> tuple[Any, ...]:
    """Return a loader's callables, with the batch transforms among them bound to the number of classes.

    Args:
        classes: number of class names, 0 for none.
        one_size: whether the images that the first callable gets have one size.
        floats: whether these images are floats.
        targets: names of the targets that move with the images.

    Raises:
        UsageError: a transform does not fit the classes, images or targets.
    """
    mixing = [each for each in callables if isinstance(each, BatchTransform)]
    if mixing and targets:
        raise UsageError(
            f"{name_of(mixing[0])} mixes images and labels, but not {', '.join(targets)}; leave out one or the other"
        )
    first = callables[0] if callables else None
    if isinstance(first, BatchTransform) and not one_size:
        raise UsageError(f"{name_of(first)} mixes images of one size; add a crop, or Resize((height, width))")
    if isinstance(first, BatchTransform) and first.needs_floats and not floats:
        raise UsageError(f"{name_of(first)} mixes floats; add Normalize, or give the loader dtype=torch.float16")
    return tuple(each.for_classes(classes) if isinstance(each, BatchTransform) else each for each in callables)
