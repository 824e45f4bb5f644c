"""Resizes to cover a size, and to a number of patches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import picstore
from picstore.errors import UsageError
from picstore.train.transforms.batch_random import BatchRandom
from picstore.train.transforms.geometry import Geometry

SIDE = st.integers(1, 3000)


def sizes_after(transform: Any, sizes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Width and height of images of given ones."""
    widths, heights = np.array(sizes).T
    random = BatchRandom(0, 0, np.arange(len(sizes)))
    made = transform(Geometry.identity(widths, heights), random)
    return [(width, height) for width, height in made.size.tolist()]


@given(images=st.lists(st.tuples(SIDE, SIDE), min_size=1, max_size=9), height=SIDE, width=SIDE)
def test_covering_fits_one_side_exactly_and_the_other_by_the_ratio(
    images: list[tuple[int, int]], height: int, width: int
) -> None:
    for (w, h), (wide, high) in zip(images, sizes_after(picstore.ResizeToCover((height, width)), images), strict=True):
        scale = max(width / w, height / h)
        assert wide >= width and high >= height and (wide == width or high == height)
        assert wide - 1 < scale * w + 1e-6 and high - 1 < scale * h + 1e-6


@given(
    images=st.lists(st.tuples(st.integers(8, 3000), st.integers(8, 3000)), min_size=1, max_size=9),
    patch=st.sampled_from([8, 14, 16, 32]),
    length=st.sampled_from([1, 16, 100, 576, 1024]),
)
def test_sequences_have_the_sizes_of_timm_s(images: list[tuple[int, int]], patch: int, length: int) -> None:
    timm = pytest.importorskip("timm.data.naflex_transforms")
    found = sizes_after(picstore.ResizeToSequence(patch, length), images)
    for (width, height), made in zip(images, found, strict=True):
        assert made[::-1] == timm.get_image_size_for_seq((height, width), patch, length)[1]
        assert made[0] % patch == made[1] % patch == 0
        assert made[0] * made[1] // patch**2 <= length
    limited = sizes_after(picstore.ResizeToSequence(patch, length, max_ratio=0.5), images)
    for (width, height), made in zip(images, limited, strict=True):
        assert made[::-1] == timm.get_image_size_for_seq((height, width), patch, length, max_ratio=0.5)[1]


@pytest.mark.parametrize(
    ("transform", "arguments"),
    [
        (picstore.ResizeToCover, {"size": 0}),
        (picstore.ResizeToCover, {"size": (10, 40_000)}),
        (picstore.ResizeToCover, {"size": 10, "interpolation": "best"}),
        (picstore.ResizeToSequence, {"patch_size": 0}),
        (picstore.ResizeToSequence, {"patch_size": 16, "max_seq_len": 0}),
        (picstore.ResizeToSequence, {"patch_size": 16, "max_seq_len": 2.5}),
        (picstore.ResizeToSequence, {"patch_size": 16, "max_ratio": 0}),
        (picstore.ResizeToSequence, {"patch_size": 16, "max_ratio": float("nan")}),
    ],
)
def test_sizes_that_are_none_are_refused(transform: Any, arguments: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=transform.__name__):
        transform(**arguments)
