"""A list of transforms, sorted into the stages that carry it out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from picstore.errors import UsageError
from picstore.storage.dataset import Dataset
from picstore.train.transforms import affine, color, crops
from picstore.train.transforms.color_program import ColorTransform, check_color, normalises
from picstore.train.transforms.geometry import Transform, common_fill, output_size

Step: TypeAlias = Any  # a geometric transform, one of colour, or any callable that takes the images of a batch

# What a configuration file may name.
_BY_NAME: Mapping[str, Any] = {
    step.__name__: step
    for step in (
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

TARGETS = ("boxes", "keypoints", "polygons", "extra")  # beside attachments
_ALSO = ("labels", "visibility", "index")  # what comes with boxes and keypoints


@dataclass(frozen=True, slots=True)
class TransformPlan:
    """What happens to each image of a source, in this order.

    Attributes:
        geometry: transforms that become one resampling.
        color: those that become one pass over the pixels.
        targets: names of what goes with the images, see ``train/targets.py``.
        columns: names of the data set's columns whose values go with the records.
    """

    geometry: tuple[Transform, ...] = ()
    color: tuple[ColorTransform, ...] = ()
    targets: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()

    @property
    def size(self) -> tuple[int, int] | None:
        """(height, width) of every output, or None where it differs."""
        return output_size(self.geometry)

    @property
    def normalises(self) -> bool:
        """Whether the images have to be floats."""
        return normalises(self.color)


def check_targets(names: Sequence[str], dataset: Dataset, columns: Collection[str] = ()) -> tuple[str, ...]:
    """The names of targets, each once.

    Args:
        columns: those that other data sets of a mux have; this one need not.

    Raises:
        UsageError: one is neither a field of the extra nor an attachment nor a column of the data set, or both of the
            latter in a mux.
    """
    attachments = dataset.manifest.attachments
    if isinstance(names, str):
        raise UsageError(f"targets is {names!r}; give a list: [{names!r}]")
    for name in names:
        if name in columns:
            if name in attachments:
                raise UsageError(f"target {name!r} is an attachment of {dataset.path} and a column of another data set")
            continue
        if name not in (*TARGETS, *dataset.columns) and (name not in attachments or name in _ALSO):
            held = f"its attachments {', '.join(attachments)}" if attachments else "no attachments"
            if dataset.columns:
                held += f" and the columns {', '.join(dataset.columns)}"
            raise UsageError(f"target {name!r} is unknown; {dataset.path} has {', '.join(TARGETS)} and {held}")
    return tuple(dict.fromkeys(names))


def plan_transforms(
    steps: Sequence[Step], *, targets: tuple[str, ...] = (), columns: Sequence[str] = ()
) -> tuple[TransformPlan, tuple[Step, ...]]:
    """The recipe of a list of transforms, and the callables behind it, which take whole batches.

    Args:
        targets: what is wanted, by name.
        columns: which of these names are columns.

    Raises:
        UsageError: the list has another order than geometry, colour, callables, or holds something else.
    """
    stages: tuple[list[Step], list[Step], list[Step]] = ([], [], [])
    latest = 0
    for step in steps:
        stage = _stage(step)
        if stage < latest:
            raise UsageError(
                f"{_name(step)} stands behind {_name(stages[latest][-1])}; give geometric transforms first, then "
                "those of colour, then other callables"
            )
        stages[stage].append(step)
        latest = stage
    geometry, color, callables = map(tuple, stages)
    common_fill(geometry)
    check_color(color)
    moved = tuple(name for name in targets if name not in columns)
    return TransformPlan(geometry, color, moved, tuple(name for name in targets if name in columns)), callables


def make_step(table: Mapping[str, Any]) -> Step:
    """A transform from a configuration: its ``name`` and arguments.

    Raises:
        UsageError: there is no such transform, or it does not take these arguments.
    """
    arguments = dict(table)
    name = arguments.pop("name", None)
    if not isinstance(name, str) or name not in _BY_NAME:
        raise UsageError(f"a transform has the name {name!r}; possible are {', '.join(_BY_NAME)}")
    try:
        return _BY_NAME[name](**arguments)
    except TypeError as error:
        raise UsageError(f"{name} does not take {arguments}: {error}") from error


def _stage(step: Step) -> int:
    if isinstance(step, ColorTransform):
        return 1
    if hasattr(step, "fixes_size"):
        return 0
    if callable(step):
        return 2
    raise UsageError(f"transform holds {step!r}, which is neither a transform nor callable")


def _name(step: Step) -> str:
    return getattr(step, "__name__", type(step).__name__)
