"""What the images of a loader's batches are, in names that need no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from picstore.errors import UsageError
from picstore.train.transforms.compose import TransformPlan

# numpy's dtype of the same size for each that images may have; it has no bfloat16.
_ITEMS: dict[str, Any] = {"uint8": np.uint8, "float16": np.uint16, "bfloat16": np.uint16, "float32": np.float32}


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """What the images of all batches are.

    Attributes:
        size: (height, width) of all, None where they differ.
        dtype: torch's name for it: uint8, float16, bfloat16 or float32.
        channels_last: whether the three values of a pixel are neighbours in memory.
        targets: names of what goes with the images.
        decoded: False leaves them streams, cut, for a decoder on a device.
    """

    size: tuple[int, int] | None = None
    dtype: str = "uint8"
    channels_last: bool = False
    targets: tuple[str, ...] = ()
    decoded: bool = True

    @classmethod
    def of(
        cls, recipes: Sequence[TransformPlan], *, dtype: str | None = None, channels_last: bool = False
    ) -> OutputSpec:
        """What the images of some sources become together.

        Raises:
            UsageError: they would be of several sizes, or cannot be of this dtype.
        """
        sizes = sorted({recipe.size or (0, 0) for recipe in recipes})
        if len(sizes) > 1:
            raise UsageError(f"the sources give images of sizes {sizes} (0 for any); end all lists with the same size")
        normalised = any(recipe.normalises for recipe in recipes)
        if dtype is None:
            dtype = "float32" if normalised else "uint8"
        if dtype not in _ITEMS or (normalised and dtype == "uint8"):
            possible = "float16, bfloat16 or float32" + ("" if normalised else " or uint8")
            raise UsageError(f"dtype {dtype} is not possible{' after Normalize' if normalised else ''}; use {possible}")
        targets = recipes[0].targets if recipes else ()
        return cls(recipes[0].size, dtype, channels_last, targets)

    @property
    def item(self) -> np.dtype[Any]:
        """numpy's dtype that holds a value: ``dtype``, or uint16 for its 16 bits."""
        item: np.dtype[Any] = np.dtype(_ITEMS[self.dtype])
        return item
