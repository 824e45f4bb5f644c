"""Arguments of transforms: the first and last value that is taken, and the next that is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import picstore
from picstore.errors import UsageError
from picstore.kernels import filters
from picstore.train.transforms import arguments as a
from picstore.train.transforms.padding_and_edges import BORDERS, border_indices, mirrored_reach

LARGEST = 32_768  # pixels a side


@pytest.mark.parametrize(
    ("check", "given", "expected"),
    [
        (a.checked_integer, (0, "n", 0, 5), 0), (a.checked_integer, (5, "n", 0, 5), 5),
        (a.checked_integer, (np.int64(7), "n"), 7),
        (a.checked_probability, (0, ""), 0.0), (a.checked_probability, (1, ""), 1.0),
        (a.checked_range, ((1, 2), ""), (1.0, 2.0)), (a.checked_range, ([3], ""), (3.0, 3.0)),
        (a.checked_range, ((2, 2), ""), (2.0, 2.0)),
        (a.checked_numbers, ((1, 2.5), "", (2, 4)), (1.0, 2.5)),
        (a.checked_angles, (10, "", (2,)), (-10.0, 10.0)), (a.checked_angles, (0, "", (2,)), (0.0, 0.0)),
        (a.checked_angles, ((1, 2, -3, -3), "", (2, 4)), (1.0, 2.0, -3.0, -3.0)),
        (a.checked_channels, (7, ""), [7.0] * 3), (a.checked_channels, ((1, 2, 3), ""), [1.0, 2.0, 3.0]),
        (a.checked_channels, ([4], ""), [4.0] * 3),
        (a.checked_fill, (None, ""), (0, 0, 0)), (a.checked_fill, (255, ""), (255, 255, 255)),
        (a.checked_fill, ((0, 254.0, 255), ""), (0, 254, 255)), (a.checked_fill, ([9], ""), (9, 9, 9)),
        (a.checked_size, (1, ""), (1, 1)), (a.checked_size, ((2, LARGEST), ""), (2, LARGEST)),
        (a.checked_size, ([3], ""), (3, 3)),
        (a.checked_padding, (0, ""), (0, 0, 0, 0)), (a.checked_padding, ((1, LARGEST), ""), (1, LARGEST, 1, LARGEST)),
        (a.checked_padding, ((1, 2, 3, 4), ""), (1, 2, 3, 4)),
        (a.checked_padding_mode, ("symmetric", ""), BORDERS["symmetric"]),
        (a.checked_interpolation, ("random", ""), (filters.BILINEAR, filters.BICUBIC)),
        (a.checked_interpolation, (["nearest", "lanczos"], ""), (filters.NEAREST, filters.code_of("lanczos"))),
    ],
)  # fmt: skip
def test_a_value_within_the_limits_is_taken(check: Any, given: tuple[Any, ...], expected: Any) -> None:
    assert check(*given) == expected


@pytest.mark.parametrize(
    ("check", "given"),
    [
        (a.checked_integer, (-1, "n", 0, 5)), (a.checked_integer, (6, "n", 0, 5)), (a.checked_integer, (True, "n")),
        (a.checked_integer, (1.0, "n")), (a.checked_integer, (-1, "n", 0)), (a.checked_integer, (6, "n", None, 5)),
        (a.checked_integer, (np.timedelta64(3, "s"), "n")),
        (a.checked_probability, (-1e-9, "")), (a.checked_probability, (1.0001, "")), (a.checked_probability, ("1", "")),
        (a.checked_probability, (math.nan, "")),
        (a.checked_range, ((2, 1), "")), (a.checked_range, ((1, 2, 3), "")), (a.checked_range, (1, "")),
        (a.checked_range, ((1, math.inf), "")), (a.checked_range, ((), "")),
        (a.checked_numbers, ((1, 2, 3), "", (2, 4))), (a.checked_numbers, ((1, math.inf), "", (2,))),
        (a.checked_numbers, ((1, "2"), "", (2,))), (a.checked_numbers, ("12", "", (2,))),
        (a.checked_angles, (-1, "", (2,))), (a.checked_angles, ((1, 2, 4, 3), "", (4,))),
        (a.checked_angles, ((3, 2, 3, 4), "", (4,))),
        (a.checked_channels, ((1, 2), "")), (a.checked_channels, ("123", "")), (a.checked_channels, ((1, 2, 3, 4), "")),
        (a.checked_channels, ((1, 2, math.nan), "")),
        (a.checked_fill, (-1, "")), (a.checked_fill, (256, "")), (a.checked_fill, ((1, 2), "")),
        (a.checked_fill, (1.5, "")), (a.checked_fill, ((1, 2, 3, 4), "")), (a.checked_fill, ("1", "")),
        (a.checked_size, (0, "")), (a.checked_size, (LARGEST + 1, "")), (a.checked_size, ((1, 2, 3), "")),
        (a.checked_size, (1.0, "")), (a.checked_size, ((1, LARGEST + 1), "")), (a.checked_size, ((0, 1), "")),
        (a.checked_padding, (-1, "")), (a.checked_padding, (LARGEST + 1, "")), (a.checked_padding, ((1, 2, 3), "")),
        (a.checked_padding, ((1, 2, 3, 4, 5), "")), (a.checked_padding, (1.0, "")),
        (a.checked_padding_mode, ("wrap", "")), (a.checked_padding_mode, (0, "")),
        (a.checked_interpolation, ([], "")), (a.checked_interpolation, (["nearest", "best"], "")),
        (a.checked_sampling, ("lanczos", "")),
    ],
)  # fmt: skip
def test_a_value_beyond_the_limits_is_refused(check: Any, given: tuple[Any, ...]) -> None:
    with pytest.raises(UsageError):
        check(*given)


@pytest.mark.parametrize(
    "make",
    [
        "MixUp(0.001, 1)", "MixUp(1, 1, label_smoothing=0)", "MixUp(1, 1, label_smoothing=0.999)",
        "RandomPosterize(0)", "RandomPosterize(8)", "RandomSolarize(0)", "RandomAdjustSharpness(0)",
        "GaussianBlur(1)", "GaussianBlur((3, 5), 0.001)", "GaussianNoise(0, 0)", "ColorJitter(0, 0, 0, 0.5)",
        "ColorJitter(hue=(-0.5, 0.5))", "RandomPerspective(0)", "RandomPerspective(1)", "RandAugment(0)",
        "RandAugment(1, 0, 2)", "RandAugment(1, 9, 10)", "TrivialAugmentWide(2)", "AugMix(1, 1, 1, 0.001)",
        "AugMix(10)", "RandomErasing(1, (0, 1), (0.1, 0.1))", "Resize(1)", "Resize(5, max_size=6)",
        "RandomResizedCrop(1, (0.5, 0.5), (1, 1))", "RandomAffine(0, (0, 1), (0.001, 0.001))",
        "RandomCrop(1, multiple_of=1)", "RandomSizeCrop(1, 1)", "RandomZoomOut(0, (1, 1))",
        "RandomResize(1, 2)", "RandomShortestSize([1], 1)",
        "ScaleJitter(1, (0.001, 0.001))", "ResizeToSequence(1, 1, 0.001)", "RandomIoUCrop(0.001, 1, 0.5, 2, [0, 1], 1)",
        "Views(a=(1, []))", "Views(a=(255, []), b=(1, []))", "Grayscale(3)",
        "Normalize(0, -1)", "Progressive({0: []})", "Buckets([(1, 1)], len)", "Buckets([(16, 16)], len, tokens=1)",
    ],
)  # fmt: skip
def test_a_transform_takes_what_is_just_within(make: str) -> None:
    eval(make, {name: getattr(picstore, name) for name in dir(picstore)} | {"len": len})  # noqa: S307 - of the list


@pytest.mark.parametrize(
    "make",
    [
        "MixUp(0, 1)", "MixUp(1, 0)", "MixUp(1, 1, label_smoothing=1)", "MixUp(1, 1, label_smoothing=-0.001)",
        "RandomPosterize(-1)", "RandomPosterize(9)", "RandomAdjustSharpness(-0.001)",
        "GaussianBlur(2)", "GaussianBlur(0)", "GaussianBlur(3, 0)", "GaussianNoise(0, -0.001)",
        "ColorJitter(-0.001)", "ColorJitter(hue=0.501)", "ColorJitter(hue=(-0.501, 0))", "ColorJitter((-0.1, 1))",
        "RandomPerspective(-0.001)", "RandomPerspective(1.001)", "RandAugment(-1)", "RandAugment(1, -1)",
        "AugMix(0)", "AugMix(11)", "AugMix(1, 0)", "AugMix(alpha=0)", "RandomErasing(1, (-0.001, 1))",
        "RandomErasing(1, (0, 1.001))", "RandomErasing(1, (0, 1), (0, 1))", "Resize(5, max_size=5)",
        "RandomResizedCrop(1, (0, 0.5), (0, 1))", "RandomAffine(0, (0, 1.001))", "RandomAffine(0, (-0.001, 1))",
        "RandomCrop(1, multiple_of=0)", "RandomCrop(1, multiple_of=1.5)",
        "RandomAffine(0, None, (0, 1))", "RandomSizeCrop(0, 1)", "RandomSizeCrop(2, 1)", "RandomZoomOut(0, (0.999, 1))",
        "ScaleJitter(1, (0, 1))", "ResizeToSequence(1, 0)", "ResizeToSequence(1, 1, 0)", "ResizeToSequence(0)",
        "Views(a=(0, []))", "Views(a=(256, []), b=(1, []))", "Views()", "Views(a=(True, []))",
        "Grayscale(2)", "Grayscale(1)", "Normalize(0, 0)",
        "Progressive({1: []})", "Progressive({0: [], -1: []})", "Buckets([], len)",
        "Buckets([(16, 16)], len, tokens=0)", "Buckets([(15, 16)], len, tokens=9)", "Buckets([(1, 2), (2, 4)], len)",
        "Buckets([(32, 32)], len, tokens=3)",
    ],
)  # fmt: skip
def test_a_transform_refuses_what_is_just_beyond(make: str) -> None:
    with pytest.raises(UsageError):
        eval(make, {name: getattr(picstore, name) for name in dir(picstore)} | {"len": len})  # noqa: S307


@pytest.mark.parametrize(("name", "mode"), [("edge", "edge"), ("reflect", "reflect"), ("symmetric", "symmetric")])
@pytest.mark.parametrize("extent", [1, 2, 3, 7])
def test_borders_are_numpys(name: str, mode: Any, extent: int) -> None:
    if extent == 1 and name == "reflect":
        mode = "edge"
    padded = np.pad(np.arange(extent), 30, mode=mode)
    for low, high in ((-30, extent + 30), (-3, 2), (0, extent), (extent, extent + 5), (-9, -2)):
        found = border_indices(low, high, extent, BORDERS[name])
        np.testing.assert_array_equal(found, padded[low + 30 : high + 30])
        first, last = mirrored_reach(*(np.array([each]) for each in (low, high, extent)))
        assert first[0] <= found.min() and found.max() < last[0]
        assert 0 <= first[0] < last[0] <= extent
