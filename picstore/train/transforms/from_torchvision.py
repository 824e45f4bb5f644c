"""torchvision's transforms, v1 and v2, translated to picstore's, and transforms of configuration files, both by name.

torchvision's transforms draw once per call, so in a list of picstore's they would crop all images of a batch alike. So
each transform is translated to picstore's class of that name, by its attributes, which are named as the parameters.
Lists for tensors hold conversions, after which levels are 0 … 1: a fill, threshold or erasing value behind a conversion
is multiplied by 255. Nothing here imports torchvision.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from picstore import _public
from picstore.errors import UsageError
from picstore.train.transforms.callables import PerImage, SameForAll
from picstore.train.transforms.choices import RandomApply, unfolded
from picstore.train.transforms.color_program import ColorTransform

_PACKAGE = "torchvision.transforms"
_FLOATS = ("float32", "float16", "bfloat16")
# torchvision's transforms to leave out, because they convert images or boxes to the form that a batch has anyway.
_NEEDLESS = {"Identity", "ToImage", "PILToTensor", "ToPureTensor", "RGB", "ClampBoundingBoxes"}
_CONVERSIONS = {"ToTensor", "ToDtype", "ConvertImageDtype", "ToPILImage"}
# For each class by which timm's evaluation transforms convert an image, torchvision's class that does the same.
_OF_TIMM = {"MaybeToTensor": "ToTensor", "MaybePILToTensor": "PILToTensor", "ToNumpy": "PILToTensor"}
# What to write instead of timm's evaluation transforms for a ``crop_mode`` other than its default.
_EVALUATION_OF_TIMM = dict.fromkeys(
    ("ResizeKeepRatio", "CenterCropOrPad"),
    "picstore.recipes.evaluation(size) for timm's create_transform(is_training=False)",
)
_WITHOUT_DRAWS = {"LinearTransformation"}  # transforms without random numbers: one call takes a batch
_ATTRIBUTES = {"sampler_options": "options"}  # torchvision's attribute for a parameter, if their names differ
_OURS = {"multiple_of", "label_smoothing"}  # parameters that only picstore has
_LEVELS = {"fill", "threshold", "value"}  # parameters that are grey levels, 0 … 1 after a conversion to floats
# Libraries whose transforms take single images, and what to write instead.
_OTHER_LIBRARIES = {
    "albumentations": "picstore.PerImage(function), as docs/transforms.md shows",
    "timm": "picstore.recipes.timm_default(size, auto_augment) for timm's create_transform, or picstore.PerImage(...)",
}
# Transforms of torchvision without a counterpart in picstore, and what to write instead.
_INSTEAD = {
    "Lambda": "write picstore.PerImage(function) for a function of one image, or the function itself for one of the "
    "batch",
    "FiveCrop": "resize only, and apply it to the batch in the loop",
    "TenCrop": "resize only, and apply it to the batch in the loop",
    "UniformTemporalSubsample": "it is for videos; leave it out",
    "ConvertBoundingBoxFormat": "boxes are XYXY; convert them in the loop with torchvision.ops.box_convert",
    "SetClampingMode": "leave it out, as boxes are always clipped",
    "SanitizeBoundingBoxes": "leave it out for min_size=1 and min_area=1, as boxes below one pixel are dropped; "
    "filter larger ones in the loop",
    "ClampKeyPoints": "leave it out, as keypoints outside are marked by their visibility",
    "SanitizeKeyPoints": "leave it out, as keypoints outside are marked by their visibility",
}
# Classes that take functions or lists, which configurations cannot express.
_NOT_IN_CONFIGURATIONS = {"Buckets", "PerImage", "Progressive", "Sequences", "Views"}
TRANSFORMS: Mapping[str, Any] = {
    name: getattr(importlib.import_module(f"picstore.{module}"), name)
    for name, module in _public.modules_by_name(_public.TRANSFORMS).items()
    if name not in _NOT_IN_CONFIGURATIONS
}


def transform_from_config(table: Mapping[str, Any]) -> Any:
    """Build a transform from a configuration table with its ``name`` and its arguments.

    The argument ``transforms`` of a choice, such as RandomApply, is a list of tables.

    Raises:
        UsageError: the name is unknown, or the transform does not take the arguments.
    """
    arguments = dict(table)
    name = arguments.pop("name", None)
    if isinstance(arguments.get("transforms"), list):
        arguments["transforms"] = [transform_from_config(each) for each in arguments["transforms"]]
    if not isinstance(name, str) or name not in TRANSFORMS:
        raise UsageError(f"unknown transform {name!r}; possible are {', '.join(TRANSFORMS)}")
    try:
        return TRANSFORMS[name](**arguments)
    except TypeError as error:
        raise UsageError(f"{name} does not accept {arguments}: {error}") from error


@dataclass
class Steps:
    """Translation of a list of transforms to picstore's transforms, as far as the list has been translated.

    Attributes:
        steps: picstore's transforms, and callables.
        dtype: name of the float dtype to which the list converts images; None for bytes.
        _unit: whether the list's next transform takes levels of 0 … 1, not 0 … 255.
        _normalized: whether ``steps`` has ``Normalize``.
        _called: whether ``steps`` has a callable.
    """

    steps: list[Any] = field(default_factory=list)
    dtype: str | None = None
    _unit: bool = False
    _normalized: bool = False
    _called: bool = False

    def read(self, transform: Any) -> None:
        """Add a transform, or all in a list, Compose or nn.Sequential; raise UsageError if any has no counterpart."""
        name, module = type(transform).__name__, type(transform).__module__
        library = module.partition(".")[0]
        _require_called(transform)
        if isinstance(transform, (list, tuple)):
            for each in transform:
                self.read(each)
        elif (name, module) == ("Sequential", "torch.nn.modules.container"):
            self.read(list(transform))
        elif library == "timm" and name in _OF_TIMM:
            self._translate(transform, _OF_TIMM[name])
        elif library in _OTHER_LIBRARIES:
            instead = _EVALUATION_OF_TIMM.get(name, _OTHER_LIBRARIES[library])
            raise UsageError(f"{name} of {library} takes one image; write {instead}")
        elif module.startswith(_PACKAGE):
            self._translate(transform)
        elif any(base.__module__.startswith(_PACKAGE) for base in type(transform).__mro__):
            raise UsageError(
                f"{name} derives from a transform of torchvision, which draws once for all images that it is given; "
                f"write picstore.PerImage({name}(...)), or lambda images: ... for one that takes the batch"
            )
        else:
            self._add(transform)

    def _add(self, step: Any) -> None:
        self.steps.append(step)
        self._normalized = self._normalized or getattr(step, "normalizes", False) is True
        step = unfolded(step)
        self._called = self._called or not (hasattr(step, "fixes_size") or isinstance(step, ColorTransform))

    def _translate(self, transform: Any, name: str = "") -> None:
        """Add the counterpart of ``transform``; for one of timm, ``name`` is torchvision's class that does the same."""
        name = name or type(transform).__name__
        if name == "Compose":
            self.read(list(transform.transforms))
        elif name == "ImageClassification":  # torchvision's preprocessing for pretrained weights
            for each in ("Resize", "CenterCrop", "Normalize"):
                self._add(_preset_step(transform, each))
        elif name in _CONVERSIONS:
            self._convert(transform, name)
        elif (self._called and name == "Normalize") or name in _WITHOUT_DRAWS:
            self._add(SameForAll(transform))
        elif name == "JPEG":
            self._add(PerImage(transform))
        elif name not in _NEEDLESS and not _drops_small_boxes(transform):
            self._add(self._translated(transform))

    def _translated(self, transform: Any) -> Any:
        name = type(transform).__name__
        ours = TRANSFORMS.get(name)
        if ours is None:
            instead = _INSTEAD.get(name, "write picstore.PerImage(...) for a transform of one image")
            raise UsageError(f"{name} of torchvision has no counterpart in picstore: {instead}")
        arguments = {
            parameter: self._argument(transform, parameter)
            for parameter in inspect.signature(ours).parameters
            if parameter not in _OURS and hasattr(transform, _ATTRIBUTES.get(parameter, parameter))
        }
        return ours(**arguments)

    def _argument(self, transform: Any, parameter: str) -> Any:
        name = type(transform).__name__
        value = getattr(transform, _ATTRIBUTES.get(parameter, parameter))
        if parameter == "transforms":
            return [self._choice(each, name) for each in value]
        if parameter == "fill" and isinstance(value, dict):
            raise UsageError(f"{name}: fill is {value}; give the fill of images, as targets have a fill of their own")
        if name == "RandomErasing" and parameter == "value" and value is None:
            return "random"
        if parameter not in _LEVELS or not self._unit or self._normalized:
            return value
        return _levels(value, f"{name}: {parameter}", whole=parameter == "fill")

    def _choice(self, transform: Any, choice: str) -> Any:
        """Translate a transform within a torchvision choice of class ``choice``, such as ``"RandomOrder"``.

        If the translation has several transforms, return a RandomApply of all, with probability 1.
        """
        inner = Steps(_unit=self._unit, _normalized=self._normalized)
        inner.read(transform)
        if inner.dtype is not None or not inner.steps:
            raise UsageError(
                f"{choice} of torchvision holds {type(transform).__name__}, which changes no image; put conversions "
                f"outside of it, and leave out what does nothing, or write picstore.PerImage({choice}(...)) last"
            )
        return inner.steps[0] if len(inner.steps) == 1 else RandomApply(inner.steps, p=1)

    def _convert(self, transform: Any, name: str) -> None:
        """Set ``dtype`` by a conversion such as ToDtype. After a callable, add the conversion to ``steps`` instead."""
        dtype, scaled = _target_dtype(transform, name)
        if self._called:
            if not hasattr(transform, "dtype"):
                raise UsageError(f"{name} follows a callable; write v2.ToDtype(torch.{dtype}, scale=True)")
            self._add(SameForAll(transform))
            return
        if dtype is None:
            return
        if dtype not in ("uint8", *_FLOATS):
            raise UsageError(f"{name}: dtype is torch.{dtype}; give float32, float16, bfloat16 or uint8")
        if not scaled and (dtype in _FLOATS) != self._unit:
            raise UsageError(f"{name}: dtype is torch.{dtype} and scale False; give scale=True, for levels of 0 to 1")
        if self._normalized and dtype == "uint8":
            raise UsageError(f"{name} makes bytes of what Normalize returned; leave it out")
        self._unit = dtype in _FLOATS
        self.dtype = dtype if self._unit else None


def _require_called(transform: Any) -> None:
    if isinstance(transform, type):
        raise UsageError(f"transform contains the class {transform.__name__}; write {transform.__name__}(...)")
    if getattr(transform, "__module__", "") == "picstore.recipes":
        name = f"picstore.recipes.{transform.__name__}"
        raise UsageError(f"transform contains the function {name}; write {name}(...)")


def _preset_step(preset: Any, name: str) -> Any:
    """Return picstore's Resize, CenterCrop or Normalize, by ``name``, for a preset made by ``weights.transforms()``."""
    if name == "Resize":
        return TRANSFORMS[name](preset.resize_size, preset.interpolation, antialias=preset.antialias)
    return TRANSFORMS[name](*((preset.crop_size,) if name == "CenterCrop" else (preset.mean, preset.std)))


def _target_dtype(transform: Any, name: str) -> tuple[str | None, bool]:
    """Return the dtype that a conversion gives images, or None for their own; and whether it scales their levels."""
    if name in ("ToTensor", "ToPILImage"):
        return ("float32" if name == "ToTensor" else "uint8"), True
    dtype = transform.dtype
    if isinstance(dtype, dict):
        # torchvision's ToDtype accepts a dict from classes such as Image, their names or "others" to dtypes.
        by_name = {getattr(key, "__name__", key): value for key, value in dtype.items()}
        dtype = by_name.get("Image", by_name.get("Tensor", by_name.get("others")))
    return None if dtype is None else str(dtype).removeprefix("torch."), getattr(transform, "scale", True)


def _drops_small_boxes(transform: Any) -> bool:
    """Return whether a transform only drops boxes smaller than a pixel, which picstore drops anyway."""
    named = type(transform).__name__ == "SanitizeBoundingBoxes"
    return named and transform.min_size <= 1 and transform.min_area <= 1


def _levels(value: Any, name: str, *, whole: bool) -> Any:
    """Scale values from 0 … 1 to levels 0 … 255, and round them if ``whole``; return strings and None unchanged."""
    if isinstance(value, (list, tuple)):
        return [_levels(each, name, whole=whole) for each in value]
    if value is None or isinstance(value, str):
        return value
    if not 0 <= value <= 1:
        raise UsageError(f"{name} is {value} after a conversion to floats; give levels of 0 to 1")
    return round(255 * value) if whole else 255 * value
