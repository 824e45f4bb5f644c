"""Lists of geometric transforms: composition, the common fill, the place of borders, and the size of outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from picstore.errors import UsageError
from picstore.train.transforms.arguments import Fill, name_of
from picstore.train.transforms.batch_random import BatchRandom
from picstore.train.transforms.geometry import Geometry
from picstore.train.transforms.padding_and_edges import CONSTANT


class Transform(Protocol):
    """Geometric transform of a batch. A transform that pads images has the padding's color as attribute ``fill``."""

    @property
    def fixes_size(self) -> tuple[int, int] | None:
        """(height, width) of every output, or None if the size depends on the input."""

    def __call__(self, geometry: Geometry, random: BatchRandom) -> Geometry:
        """Return the geometry after this step, using the same number of random numbers for each image."""


def compose(transforms: Sequence[Transform], geometry: Geometry, random: BatchRandom) -> Geometry:
    """Apply transforms in order; raise UsageError if their fill colors differ or a crop does not fit an image."""
    common_fill(transforms)
    for transform in transforms:
        geometry = transform(geometry, random)
    return geometry


def common_fill(transforms: Sequence[Transform]) -> Fill:
    """Return the fill that all transforms of a list share, black by default; raise UsageError if fills differ."""
    given: list[tuple[str, Fill]] = [(name_of(each), each.fill) for each in transforms if hasattr(each, "fill")]
    first, color = given[0] if given else ("", (0, 0, 0))
    for name, fill in given[1:]:
        if fill != color:
            raise UsageError(f"{first} has the fill {color} and {name} {fill}; give all transforms the same fill")
    return color


def check_borders(transforms: Sequence[Transform]) -> None:
    """Raise UsageError if a transform whose padding repeats the image's border follows a transform other than flips."""
    for i, transform in enumerate(transforms):
        if getattr(transform, "border", CONSTANT) != CONSTANT:
            others = [each for each in transforms[:i] if not getattr(each, "only_mirrors", False)]
            if others:
                raise UsageError(
                    f"{type(transform).__name__} repeats the border of the stored image and follows "
                    f"{type(others[0]).__name__}; put it first, or use padding_mode='constant'"
                )


def output_size(transforms: Sequence[Transform]) -> tuple[int, int] | None:
    """Return (height, width) of all outputs, or None if the size differs between images."""
    for i in reversed(range(len(transforms))):
        if getattr(transforms[i], "varies_size", False):
            return None
        fixed = transforms[i].fixes_size
        if fixed is not None:
            # All images have one size after transform i, so one image tells their size after the later transforms.
            image = Geometry.identity([fixed[1]], [fixed[0]])
            width, height = compose(transforms[i + 1 :], image, BatchRandom(0, 0, [0])).size[0]
            return int(height), int(width)
    return None
