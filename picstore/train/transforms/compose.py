"""Transform plans: a user's list of transforms, split into geometry, color and callables; names of targets."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from picstore.errors import UsageError
from picstore.storage.dataset import Dataset
from picstore.train.transforms import affine, color, crops
from picstore.train.transforms.color_program import ColorTransform, check_color, normalises
from picstore.train.transforms.geometry import Transform, common_fill, output_size

UserTransform: TypeAlias = Any  # a geometric or color transform, or any callable that takes the images of a batch

# Transforms that a configuration file may name.
_TRANSFORMS: Mapping[str, Any] = {
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
        affine.RandomAffine,
        affine.RandomRotation,
    )
}

TARGETS = ("boxes", "keypoints", "polygons", "extra")  # besides attachments and columns
_COMPANIONS = ("labels", "visibility", "index")  # come with boxes and keypoints


@dataclass(frozen=True, slots=True)
class TransformPlan:
    """The stages in which the images of a data set are transformed, and what accompanies them.

    Attributes:
        geometry: transforms that become one resampling.
        color: transforms that become one pass over the pixels.
        targets: names of fields and attachments that move with the images, see ``train/cpu/targets.py``.
        columns: names of the data set's columns in batches.
    """

    geometry: tuple[Transform, ...] = ()
    color: tuple[ColorTransform, ...] = ()
    targets: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()

    @property
    def size(self) -> tuple[int, int] | None:
        """(height, width) of every output, or None if it differs between images."""
        return output_size(self.geometry)

    @property
    def normalises(self) -> bool:
        """Whether the images are floats."""
        return normalises(self.color)


def check_targets(names: Sequence[str], dataset: Dataset, columns: Collection[str] = ()) -> tuple[str, ...]:
    """Check names of targets and drop repeated ones.

    Args:
        names: fields of the extra, attachments or columns.
        columns: columns that other data sets of a mux have; this one need not.

    Raises:
        UsageError: the data set has no such target, ``names`` is a string, or a name is an attachment of one data set
            of a mux and a column of another.
    """
    attachments = dataset.manifest.attachments
    if isinstance(names, str):
        raise UsageError(f"targets is {names!r}; give a list: [{names!r}]")
    for name in names:
        if name in columns:
            if name in attachments:
                raise UsageError(f"target {name!r} is an attachment of {dataset.path} and a column of another data set")
            continue
        if name not in (*TARGETS, *dataset.columns) and (name not in attachments or name in _COMPANIONS):
            held = f"its attachments {', '.join(attachments)}" if attachments else "no attachments"
            if dataset.columns:
                held += f" and the columns {', '.join(dataset.columns)}"
            raise UsageError(f"target {name!r} is unknown; {dataset.path} has {', '.join(TARGETS)} and {held}")
    return tuple(dict.fromkeys(names))


def plan_transforms(
    transforms: Sequence[UserTransform], *, targets: tuple[str, ...] = (), columns: Sequence[str] = ()
) -> tuple[TransformPlan, tuple[UserTransform, ...]]:
    """Split a list of transforms into a plan and the callables that take whole batches afterwards.

    Args:
        targets: names of targets and columns.
        columns: the data set's columns.

    Raises:
        UsageError: the order is not geometry, color, callables; an element is none of these; or transforms contradict
            each other.
    """
    stages: tuple[list[UserTransform], list[UserTransform], list[UserTransform]] = ([], [], [])
    latest = 0
    for transform in transforms:
        stage = _stage_of(transform)
        if stage < latest:
            raise UsageError(
                f"{_name_of(transform)} follows {_name_of(stages[latest][-1])}; give geometric transforms first, then "
                "color transforms, then other callables"
            )
        stages[stage].append(transform)
        latest = stage
    geometry, color, callables = map(tuple, stages)
    common_fill(geometry)
    check_color(color)
    others = tuple(name for name in targets if name not in columns)
    return TransformPlan(geometry, color, others, tuple(name for name in targets if name in columns)), callables


def transform_from_config(table: Mapping[str, Any]) -> UserTransform:
    """Make a transform from a configuration: a table of its ``name`` and arguments.

    Raises:
        UsageError: there is no such transform, or it does not take these arguments.
    """
    arguments = dict(table)
    name = arguments.pop("name", None)
    if not isinstance(name, str) or name not in _TRANSFORMS:
        raise UsageError(f"unknown transform {name!r}; possible are {', '.join(_TRANSFORMS)}")
    try:
        return _TRANSFORMS[name](**arguments)
    except TypeError as error:
        raise UsageError(f"{name} does not accept {arguments}: {error}") from error


def _stage_of(transform: UserTransform) -> int:
    if isinstance(transform, ColorTransform):
        return 1
    if hasattr(transform, "fixes_size"):
        return 0
    if callable(transform):
        return 2
    raise UsageError(f"transform contains {transform!r}, which is neither a transform nor callable")


def _name_of(transform: UserTransform) -> str:
    return getattr(transform, "__name__", type(transform).__name__)
