"""Transforms by name: the classes, and transforms of configuration files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from picstore.errors import UsageError
from picstore.train.transforms import (
    affine,
    aspect,
    auto_augment,
    color,
    containers,
    crops,
    detection,
    distort,
    iou_crop,
    mix,
    timm_augment,
    tone,
)

TRANSFORMS: Mapping[str, Any] = {
    transform.__name__: transform
    for transform in (
        crops.CenterCrop,
        crops.Pad,
        crops.RandomCrop,
        crops.RandomHorizontalFlip,
        crops.RandomResizedCrop,
        crops.RandomVerticalFlip,
        crops.Resize,
        color.ColorJitter,
        color.GaussianBlur,
        color.GaussianNoise,
        color.Normalize,
        color.RandomErasing,
        color.RandomGrayscale,
        color.RandomInvert,
        color.RandomPosterize,
        color.RandomSolarize,
        auto_augment.AugMix,
        auto_augment.AutoAugment,
        auto_augment.RandAugment,
        auto_augment.TrivialAugmentWide,
        timm_augment.TimmAutoAugment,
        aspect.ResizeToCover,
        aspect.ResizeToSequence,
        detection.RandomResize,
        detection.RandomShortestSize,
        detection.RandomSizeCrop,
        detection.RandomZoomOut,
        detection.ScaleJitter,
        iou_crop.RandomIoUCrop,
        distort.ElasticTransform,
        distort.RandomPerspective,
        tone.Grayscale,
        tone.RandomAdjustSharpness,
        tone.RandomAutocontrast,
        tone.RandomChannelPermutation,
        tone.RandomEqualize,
        tone.RandomPhotometricDistort,
        containers.RandomApply,
        containers.RandomChoice,
        containers.RandomOrder,
        affine.RandomAffine,
        affine.RandomRotation,
        mix.CutMix,
        mix.MixUp,
    )
}


def transform_from_config(table: Mapping[str, Any]) -> Any:
    """Make a transform from a configuration: a table of its ``name`` and arguments, ``transforms`` being such tables.

    Raises:
        UsageError: there is no such transform, or it does not take these arguments.
    """
    arguments = dict(table)
    name = arguments.pop("name", None)
    if isinstance(arguments.get("transforms"), list):  # of a container
        arguments["transforms"] = [transform_from_config(each) for each in arguments["transforms"]]
    if not isinstance(name, str) or name not in TRANSFORMS:
        raise UsageError(f"unknown transform {name!r}; possible are {', '.join(TRANSFORMS)}")
    try:
        return TRANSFORMS[name](**arguments)
    except TypeError as error:
        raise UsageError(f"{name} does not accept {arguments}: {error}") from error
