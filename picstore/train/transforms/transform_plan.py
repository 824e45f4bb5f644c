"""Transform plans: a user's list of transforms, split into geometry, color and callables, with names of targets."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from picstore.errors import UsageError
from picstore.jpeg.reducing import check_reducing_gap
from picstore.storage.dataset import Dataset
from picstore.storage.format.maps import split_target
from picstore.train.transforms import choices
from picstore.train.transforms.arguments import name_of
from picstore.train.transforms.buckets import AspectRatios, Buckets, Sequences
from picstore.train.transforms.color_program import ColorTransform, check_color
from picstore.train.transforms.from_torchvision import Steps
from picstore.train.transforms.mixup_cutmix import BatchTransform
from picstore.train.transforms.progressive import EpochStages, Progressive
from picstore.train.transforms.transform_lists import check_borders, common_fill
from picstore.train.transforms.views import ViewCallables, ViewGroup, Views

# Transform as users give it: one of picstore, one of torchvision, or a callable that takes a batch's images.
UserTransform: TypeAlias = Any
# Transforms as users give them: a list or Compose of transforms, an nn.Sequential, or a single transform.
Transforms: TypeAlias = "Sequence[UserTransform] | UserTransform"
LoaderTransform: TypeAlias = "Transforms | Views | Buckets | Sequences | Progressive"

TARGETS = ("boxes", "keypoints", "polygons", "extra")  # three targets read from a record's extra, and the extra itself
_COMPANIONS = ("labels", "visibility", "index")  # fields that a batch's targets have besides boxes or keypoints


@dataclass(frozen=True, slots=True)
class TransformPlan:
    """Geometric and color transforms of a dataset's images, and the names of the other values in a batch.

    Attributes:
        groups: groups of views of each image; a list of transforms is one group without a name.
        targets: names of fields and attachments that move with the images, see ``train/cpu/targets.py``.
        columns: names of the dataset's columns that batches contain.
        reducing_gap: minimum factor by which resampling shrinks an image that was decoded at a reduced size; None to
            decode at full size.
        dtype: name of the float dtype to which a transform such as ``ToDtype`` converts images, or None.
    """

    groups: tuple[ViewGroup, ...] = (ViewGroup(),)
    targets: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    reducing_gap: float | None = None
    dtype: str | None = None

    @property
    def normalizes(self) -> bool:
        """Whether any group's transforms normalize images, which makes the images floats."""
        return any(group.normalizes for group in self.groups)

    @property
    def view_count(self) -> int:
        """Number of images made from each record."""
        return sum(group.count for group in self.groups)


def check_targets(names: Sequence[str], dataset: Dataset, columns: Collection[str] = ()) -> tuple[str, ...]:
    """Return names of targets without repetitions, if the dataset has all of them.

    Args:
        names: names of fields of the extra, attachments or columns.
        columns: names of columns of the other datasets in a mixture, which this dataset may lack.

    Raises:
        UsageError: the dataset lacks a target, or a name is an attachment here and a column of another dataset.
    """
    attachments = dataset.manifest.attachments
    for name in names:
        if name in columns:
            if name in attachments:
                raise UsageError(
                    f"target {name!r} is an attachment of {dataset.path} and a column of another dataset; rename one"
                )
            continue
        base, _ = split_target(name)
        held_as = base if base in dataset.manifest.maps else name
        if name not in (*TARGETS, *dataset.columns) and (held_as not in attachments or name in _COMPANIONS):
            held = f"its attachments {', '.join(attachments)}" if attachments else "no attachments"
            if dataset.columns:
                held += f" and the columns {', '.join(dataset.columns)}"
            raise UsageError(
                f"target {name!r} is unknown; give what {dataset.path} has: {', '.join(TARGETS)} and {held}"
            )
    return tuple(dict.fromkeys(names))


def plan_transforms(
    transforms: Transforms | Views,
    *,
    targets: tuple[str, ...] = (),
    columns: Sequence[str] = (),
    aug_repeats: int = 1,
    reducing_gap: float | None = None,
) -> tuple[TransformPlan, tuple[UserTransform, ...]]:
    """Split a list of transforms, or the lists of Views, into a plan and the callables for whole batches.

    Args:
        targets: names of the values to yield with each image; columns are yielded unchanged.
        columns: names of all columns of the dataset.
        aug_repeats: number of images to make from each record, if ``transforms`` is a list.

    Raises:
        UsageError: the order is not geometry, color, callables; an element is not a transform; transforms contradict
            each other; or ``reducing_gap`` is invalid.
    """
    callables: tuple[UserTransform, ...]
    if isinstance(transforms, (Buckets, Sequences, Progressive)):
        raise UsageError(f"only picstore.Loader takes {type(transforms).__name__}")
    if isinstance(transforms, Views):
        if aug_repeats > 1:
            raise UsageError("aug_repeats and Views do not go together; raise the numbers of views instead")
        groups, of_groups, dtypes, first = [], {}, [], 0
        for name, (count, listed) in transforms.groups.items():
            (geometry, color, of_groups[name]), dtype = _split_stages(listed)
            dtypes.append(dtype)
            if mixing := [each for each in of_groups[name] if isinstance(each, BatchTransform)]:
                raise UsageError(f"{name_of(mixing[0])} mixes labels, which all views share; mix views in the loop")
            groups.append(ViewGroup(geometry, color, name, count, first))
            first += count
        callables = (ViewCallables(of_groups),) if any(of_groups.values()) else ()
    else:
        (geometry, color, callables), dtype = _split_stages(transforms)
        groups, dtypes = [ViewGroup(geometry, color, count=aug_repeats)], [dtype]
    others = tuple(name for name in targets if name not in columns)
    for group in groups:
        _check_pixels_stay(group.color, others)
        if group.needs_boxes and "boxes" not in others:
            raise UsageError('RandomIoUCrop crops around objects; give the loader targets=["boxes"]')
    named = tuple(name for name in targets if name in columns)
    floats = common_dtype(dtypes)
    return TransformPlan(tuple(groups), others, named, check_reducing_gap(reducing_gap), floats), callables


def plan_loader(
    transform: LoaderTransform, **options: Any
) -> tuple[tuple[TransformPlan, ...], Sequence[Sequence[UserTransform]], AspectRatios | EpochStages | None]:
    """Plan each list of a loader's transforms by :func:`plan_transforms` with ``options``.

    Returns:
        The plans; the callables of each stage of the training; and the rule that chooses an image's plan, or None.

    Raises:
        UsageError: see :func:`plan_transforms`; or the list of a bucket has callables, or does not make images of the
            bucket's size.
    """
    if isinstance(transform, (Buckets, Sequences)):
        return _plan_lists(transform, **options), [transform.callables], transform.choice
    lists = transform.lists if isinstance(transform, Progressive) else [transform]
    plans, callables = zip(*(plan_transforms(each, **options) for each in lists), strict=True)
    return plans, callables, transform.choice if isinstance(transform, Progressive) else None


def _plan_lists(several: Buckets | Sequences, **options: Any) -> tuple[TransformPlan, ...]:
    plans, name = [], type(several).__name__
    for size in several.sizes:
        listed = several.transform(size)  # type: ignore[arg-type]  # each class takes its own sizes
        plan, callables = plan_transforms(listed, **options)
        if callables:
            raise UsageError(f"{name}: give {name_of(callables[0])} in callables, which all batches go through")
        made = [group.size for group in plan.groups]
        if isinstance(several, Buckets) and (None in made or (not isinstance(listed, Views) and made != [size])):
            found = made[0] or "several sizes"
            raise UsageError(f"Buckets: the transforms of {size} make images of {found}; make that size")
        plans.append(plan)
    return tuple(plans)


def common_dtype(names: Sequence[str | None]) -> str | None:
    """Return the dtype to which lists of transforms convert, or None; raise UsageError if ``names`` has several."""
    named = sorted({name for name in names if name is not None})
    if len(named) > 1:
        raise UsageError(f"lists of transforms convert to {', '.join(named)}; give all the same dtype")
    return named[0] if named else None


def _split_stages(transforms: Transforms) -> tuple[tuple[tuple[UserTransform, ...], ...], str | None]:
    """Split a list into geometric transforms, color transforms and callables; raise UsageError for another order.

    Also return the name of the float dtype to which a transform such as ToDtype converts images, or None.
    """
    read = Steps()
    read.read(() if transforms is None else transforms)
    stages: tuple[list[UserTransform], list[UserTransform], list[UserTransform]] = ([], [], [])
    latest = 0
    for transform in map(choices.unfolded, read.steps):
        stage = _stage_of(transform)
        if stage < latest:
            raise UsageError(
                f"{name_of(transform)} follows {name_of(stages[latest][-1])}; give geometric transforms first, then "
                "color transforms, then other callables"
            )
        stages[stage].append(transform)
        latest = stage
    geometry, color, callables = map(tuple, stages)
    common_fill(geometry)
    check_borders(geometry)
    check_color(color)
    return (geometry, color, callables), read.dtype


def _check_pixels_stay(color: Sequence[ColorTransform], targets: Sequence[str]) -> None:
    following = [name for name in targets if name != "extra"]
    for transform in color:
        if transform.moves_pixels and following:
            raise UsageError(
                f"{name_of(transform)} moves the pixels of the finished crop, and targets ({', '.join(following)}) do "
                "not follow; leave out the one or the others, or use RandomAffine or RandomRotation"
            )


def _stage_of(transform: UserTransform) -> int:
    if isinstance(transform, ColorTransform):
        return 1
    if hasattr(transform, "fixes_size"):
        return 0
    if callable(transform):
        return 2
    raise UsageError(f"transform contains {transform!r}, neither a transform nor callable; leave it out")
