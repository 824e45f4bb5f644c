"""Callables in a list of transforms: PerImage for functions of one image, and a check of results of callables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from picstore.errors import UsageError, counted
from picstore.train.transforms.arguments import name_of
from picstore.train.transforms.choices import Choice
from picstore.train.transforms.color_program import ColorTransform
from picstore.train.transforms.constructed import Value
from picstore.train.transforms.mixup_cutmix import BatchTransform


class PerImage(Value):
    """Apply a function to each image of a batch, for transforms of other libraries that draw once per call.

    A PerImage stands after the transforms of geometry and color, and runs in the training loop's thread. torch's
    generators are seeded for each batch, so resumed training gets the same images.

    Args:
        function: takes an image, a tensor (3, H, W) of the batch's dtype and device, and returns a tensor. Tensors of
            one shape are stacked, others become a list. Transforms of picstore are rejected, because they draw for each
            image anyway.

    Raises:
        UsageError: a call of ``function`` does not return a tensor.
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        ours = isinstance(function, (ColorTransform, BatchTransform, Choice, PerImage))
        if ours or hasattr(function, "fixes_size"):
            raise UsageError(f"PerImage: {name_of(function)} is picstore's; put it into the list of transforms itself")
        if not callable(function):
            raise UsageError(f"PerImage: function is {function!r}; give a function of one image")
        self.function = function

    @property
    def name(self) -> str:
        """Name of the transform in messages."""
        return f"PerImage({name_of(self.function)})"

    def __call__(self, images: Any) -> Any:
        """Apply the function to images (N, 3, H, W), or to a list of (3, H, W)."""
        import torch

        made = [self.function(image) for image in images]
        for each in made:
            if not isinstance(each, torch.Tensor):
                raise UsageError(f"{self.name} returned {_described(each)}; return a tensor (3, H, W)")
        return torch.stack(made) if len({each.shape for each in made}) == 1 else made


@dataclass(frozen=True, slots=True)
class SameForAll:
    """Wrapper of a torchvision transform that draws no random numbers: one call can take all images of one size."""

    function: Callable[[Any], Any]

    @property
    def name(self) -> str:
        """Name of the function in messages."""
        return name_of(self.function)

    def __call__(self, images: Any) -> Any:
        """Apply the function to images (N, 3, H, W) at once, or to each of a list of (3, H, W)."""
        return [self.function(image) for image in images] if isinstance(images, list) else self.function(images)


def apply_callable(function: Callable[[Any], Any], images: Any) -> Any:
    """Apply a callable to the images of a batch, to views by name, or to the dict that another callable returned.

    Unless ``images`` is a dict, raise UsageError if the result is not a tensor with as many images as ``images``, or a
    dict of such tensors. If ``images`` is a list or ``function`` is a PerImage, lists of images are accepted too.
    """
    result = function(images)
    if isinstance(images, Mapping):
        return result
    several = isinstance(images, list) or isinstance(function, PerImage)
    for each in result.values() if isinstance(result, Mapping) else [result]:
        listed = isinstance(each, list)
        shape: Any = getattr(each, "shape", ())
        if (listed and not several) or (len(each) if listed else shape[0] if len(shape) else None) != len(images):
            given = f"a list of {len(images)}" if isinstance(images, list) else f"a tensor {tuple(images.shape)}"
            raise UsageError(
                f"{name_of(function)} returned {_described(each)} for the images of a batch, {given}; return a tensor "
                f"of {counted(len(images), 'image')}, or write picstore.PerImage({name_of(function)}) if it takes one "
                "image"
            )
    return result


def _described(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__} of {len(value)}"
    shape = getattr(value, "shape", None)
    return f"a {type(value).__name__}" + ("" if shape is None else f" of shape {tuple(shape)}")
