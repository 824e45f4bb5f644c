"""torchvision's transforms, v1 and v2, as picstore's of the same names; nothing here imports torchvision.

Its transforms draw once a call, so in a list of picstore's they would crop all images of a batch alike. Each is
translated by its attributes, which have the names of its parameters. Lists for tensors hold conversions, after which
levels are 0 … 1: a fill, a threshold and an erasing value that stand behind one are multiplied by 255.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any

from picstore.errors import UsageError
from picstore.train.transforms.by_name import TRANSFORMS
from picstore.train.transforms.callables import PerImage, SameForAll
from picstore.train.transforms.color_program import ColorTransform
from picstore.train.transforms.containers import RandomApply, unfolded

_PACKAGE = "torchvision.transforms"
_FLOATS = ("float32", "float16", "bfloat16")
# What images of a batch are already, or what holds for all boxes.
_NEEDLESS = {"Identity", "ToImage", "PILToTensor", "ToPureTensor", "RGB", "ClampBoundingBoxes"}
_CONVERSIONS = {"ToTensor", "ToDtype", "ConvertImageDtype", "ToPILImage"}
_WITHOUT_DRAWS = {"LinearTransformation"}  # which take batches as they are
_ATTRIBUTES = {"sampler_options": "options"}  # of parameters that torchvision keeps by another name
_OURS = {"multiple_of", "label_smoothing"}  # parameters that torchvision does not have
_LEVELS = {"fill", "threshold", "value"}  # parameters that are levels
_OTHER_LIBRARIES = {  # whose transforms take single images, and what to write
    "albumentations": "picstore.PerImage(function), as docs/howto/transforms.md shows",
    "timm": "picstore.recipes.timm_default(size, auto_augment) for timm's create_transform, or picstore.PerImage(...)",
}
_INSTEAD = {  # what to write for a transform that has no counterpart
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


@dataclass
class Steps:
    """The steps of a list of transforms, as far as it was read.

    Attributes:
        steps: picstore's transforms, and callables.
        dtype: a float's name, if the list converts images to floats.
    """

    steps: list[Any] = field(default_factory=list)
    dtype: str | None = None
    _unit: bool = False  # levels are 0 … 1 here, and not 0 … 255
    _normalized: bool = False
    _called: bool = False  # a callable stands before

    def read(self, transform: Any) -> None:
        """Add a transform, or all of a list, a Compose or an nn.Sequential; UsageError for one that has no place."""
        name, module = type(transform).__name__, type(transform).__module__
        library = module.partition(".")[0]
        if isinstance(transform, type):
            raise UsageError(f"transform contains the class {transform.__name__}; write {transform.__name__}(...)")
        if isinstance(transform, (list, tuple)):
            for each in transform:
                self.read(each)
        elif (name, module) == ("Sequential", "torch.nn.modules.container"):
            self.read(list(transform))
        elif library in _OTHER_LIBRARIES:
            raise UsageError(f"{name} of {library} takes one image; write {_OTHER_LIBRARIES[library]}")
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

    def _translate(self, transform: Any) -> None:
        name = type(transform).__name__
        if name == "Compose":
            self.read(list(transform.transforms))
        elif name == "ImageClassification":  # of torchvision's weights
            for each in ("Resize", "CenterCrop", "Normalize"):
                self._add(_preset_step(transform, each))
        elif name in _CONVERSIONS:
            self._convert(transform)
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
        """A parameter's value, in picstore's terms."""
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
        levels = _levels(value, f"{name}: {parameter}")
        return levels if parameter != "fill" else _rounded(levels)

    def _choice(self, transform: Any, container: str) -> Any:
        """One of a container's transforms; of a Compose with several a container that applies all."""
        inner = Steps(_unit=self._unit, _normalized=self._normalized)
        inner.read(transform)
        if inner.dtype is not None or not inner.steps:
            raise UsageError(
                f"{container} of torchvision holds {type(transform).__name__}, which changes no image; put conversions "
                f"outside of it, and leave out what does nothing, or write picstore.PerImage({container}(...)) last"
            )
        return inner.steps[0] if len(inner.steps) == 1 else RandomApply(inner.steps, p=1)

    def _convert(self, transform: Any) -> None:
        """Note the dtype that images have from here on; after a callable, convert what it returned."""
        name = type(transform).__name__
        dtype, scaled = _target_dtype(transform)
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


def _preset_step(preset: Any, name: str) -> Any:
    """One of the steps of ``weights.transforms()``."""
    if name == "Resize":
        return TRANSFORMS[name](preset.resize_size, preset.interpolation, antialias=preset.antialias)
    return TRANSFORMS[name](*((preset.crop_size,) if name == "CenterCrop" else (preset.mean, preset.std)))


def _target_dtype(transform: Any) -> tuple[str | None, bool]:
    """Name of the dtype that a conversion gives images, None for theirs; and whether it scales levels."""
    name = type(transform).__name__
    if name in ("ToTensor", "ToPILImage"):
        return ("float32" if name == "ToTensor" else "uint8"), True
    dtype = transform.dtype
    if isinstance(dtype, dict):  # by class, or "others"
        by_name = {getattr(key, "__name__", key): value for key, value in dtype.items()}
        dtype = by_name.get("Image", by_name.get("Tensor", by_name.get("others")))
    return None if dtype is None else str(dtype).removeprefix("torch."), getattr(transform, "scale", True)


def _drops_small_boxes(transform: Any) -> bool:
    """Whether it drops what picstore drops, boxes below one pixel."""
    named = type(transform).__name__ == "SanitizeBoundingBoxes"
    return named and transform.min_size <= 1 and transform.min_area <= 1


def _levels(value: Any, name: str) -> Any:
    """Levels of 0 to 255 for values of 0 to 1; a name and None stay."""
    if isinstance(value, (list, tuple)):
        return [_levels(each, name) for each in value]
    if value is None or isinstance(value, str):
        return value
    if not 0 <= value <= 1:
        raise UsageError(f"{name} is {value} after a conversion to floats; give levels of 0 to 1")
    return 255 * value


def _rounded(levels: Any) -> Any:
    """The nearest whole levels."""
    if isinstance(levels, list):
        return [_rounded(each) for each in levels]
    return levels if levels is None else round(levels)
