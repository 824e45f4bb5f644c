"""Canvas steps: warps and displacements of torchvision and Pillow, pixel for pixel."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from colored import differences, noise, program_of, run, same_distribution, smooth
from grids import examples
from hypothesis import assume, given
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms import v2
from torchvision.transforms.functional import _get_perspective_coeffs
from torchvision.transforms.v2 import functional

from picstore import rng
from picstore.errors import UsageError
from picstore.train.transforms import opcodes
from picstore.train.transforms.batch_random import BatchRandom
from picstore.train.transforms.color_program import ColorProgram, compose_color
from picstore.train.transforms.distort import ElasticTransform, RandomPerspective
from picstore.train.transforms.transform_plan import plan_transforms

FILLS = [(None, [-1.0] * 3), (0, [0.0] * 3), ([250.0, 3.0, 90.0], [250.0, 3.0, 90.0])]


def warped(image: np.ndarray, coefficients: Any, sampling: int, fill: Any) -> np.ndarray:
    step = ColorProgram.from_step(opcodes.WARP, [*coefficients, sampling, *fill], count=1)
    end = compose_color([], np.array([image.shape[:0:-1]]), BatchRandom(0, 0, [0]))
    return run(ColorProgram.chain([step, end]), 0, image)


def rotation(degrees: float, width: int, height: int) -> list[float]:
    """Coefficients of a rotation about the center, counter-clockwise."""
    c, s = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    x, y = width / 2, height / 2
    return [c, -s, x - c * x + s * y, s, c, y - s * x - c * y, 0, 0]


@pytest.mark.parametrize(("given", "operands"), FILLS)
@pytest.mark.parametrize(("height", "width"), [(64, 64), (33, 50), (3, 4), (1, 1)])
@pytest.mark.parametrize("make", [noise, smooth])
def test_a_rotated_canvas_matches_torchvision(make: Any, height: int, width: int, given: Any, operands: Any) -> None:
    image = make(height, width)
    for degrees in (-30.0, 7.3, 141.0, *([90.0] if height == width else [])):  # pixels stay pixels
        coefficients = rotation(degrees, width, height)
        for sampling, mode in ((opcodes.NEAREST, "nearest"), (opcodes.BILINEAR, "bilinear")):
            theirs = functional.rotate(torch.from_numpy(image), degrees, v2.InterpolationMode(mode), fill=given)
            difference = differences(warped(image, coefficients, sampling, operands), theirs)
            if sampling == opcodes.NEAREST:  # torch computes in float32, and may take the other pixel at a tie
                assert (difference > 0).mean() < 0.002
            else:
                assert difference.max() <= 1


@pytest.mark.parametrize(("height", "width"), [(64, 64), (33, 50), (3, 4), (1, 1)])
@pytest.mark.parametrize("make", [noise, smooth])
def test_a_canvas_rotated_as_in_pillow_matches_pillow(make: Any, height: int, width: int) -> None:
    image = make(height, width)
    picture = Image.fromarray(image.transpose(1, 2, 0))
    for degrees in (-30.0, 7.3, 141.0):
        coefficients = rotation(degrees, width, height)
        for sampling, mode in (
            (opcodes.PILLOW_BILINEAR, Image.Resampling.BILINEAR),
            (opcodes.PILLOW_BICUBIC, Image.Resampling.BICUBIC),
        ):
            theirs = np.asarray(picture.rotate(degrees, mode, fillcolor=(128, 7, 200))).transpose(2, 0, 1)
            assert differences(warped(image, coefficients, sampling, (128, 7, 200)), theirs).max() <= 1


SAMPLINGS = [opcodes.NEAREST, opcodes.BILINEAR, opcodes.PILLOW_BILINEAR, opcodes.PILLOW_BICUBIC]
anything = st.one_of(st.floats(), st.floats(-3, 3), st.sampled_from([0.0, math.inf, -math.inf, math.nan, 1e300]))


@examples(200)
@given(st.lists(anything, min_size=8, max_size=8), st.sampled_from(SAMPLINGS), st.integers(1, 40), st.integers(1, 40))
def test_no_map_makes_a_warp_read_outside_of_the_canvas(
    coefficients: list[float], sampling: int, height: int, width: int
) -> None:
    image = np.full((3, height, width), 9, np.uint8)
    done = warped(image, coefficients, sampling, (9.0, 9.0, 9.0))
    least = {opcodes.BILINEAR: 6, opcodes.PILLOW_BICUBIC: 8}.get(sampling, 9)  # the darker seam; truncated sums
    assert least <= done.min() and done.max() <= 9


corner = st.tuples(st.integers(0, 20), st.integers(0, 14))


@examples(60)
@given(st.tuples(corner, corner, corner, corner), st.sampled_from(FILLS), st.integers(0, 99))
def test_any_perspective_matches_torchvision(corners: Any, fills: Any, seed: int) -> None:
    height, width = 30, 42
    image = noise(height, width, seed)
    (a, b), (c, d), (e, f), (g, h) = corners
    ends = [[a, b], [width - 1 - c, d], [width - 1 - e, height - 1 - f], [g, height - 1 - h]]
    starts = [[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]]
    coefficients = _get_perspective_coeffs(starts, ends)
    # An image cut in two by the horizon has pixels whose position is any.
    assume(min(coefficients[6] * x + coefficients[7] * y + 1 for x in (0, width) for y in (0, height)) > 0.01)
    theirs = functional.perspective(torch.from_numpy(image), None, None, fill=fills[0], coefficients=coefficients)
    difference = differences(warped(image, coefficients, opcodes.BILINEAR, fills[1]), theirs)
    # On noise the 12 bits of a position, and torch's 24 at its far end, are worth a level.
    assert (difference > 1).mean() < 0.01


@pytest.mark.slow
def test_perspectives_have_the_corners_of_torchvision() -> None:
    count, width, height = 10_000, 90, 61
    program = program_of([RandomPerspective(0.4, 1)], count, width=width, height=height)
    theirs = v2.RandomPerspective(0.4, 1)
    drawn = [theirs.make_params([torch.empty(3, height, width)])["coefficients"] for _ in range(count)]
    assert (program.opcode[:, 0] == opcodes.WARP).all()
    for k in range(8):
        digits = 3 if k in (2, 5) else 5 if k < 6 else 7  # torch's are of float32
        ours, others = program.operands[:, 0, k], np.array([coefficients[k] for coefficients in drawn])
        assert same_distribution(ours.round(digits), others.round(digits))


def test_a_perspective_maps_its_corners_to_those_of_the_canvas() -> None:
    width, height = 40, 30
    program = program_of([RandomPerspective(0.5, 1)], 50, width=width, height=height)
    for a, b, c, d, e, f, g, h in program.operands[:, 0, :8]:
        forward = np.linalg.inv([[a, b, c], [d, e, f], [g, h, 1]])
        at = forward @ np.array([[0, width - 1, width - 1, 0], [0, 0, height - 1, height - 1], [1, 1, 1, 1]])
        x, y = at[:2] / at[2]
        assert np.abs([x, y] - np.rint([x, y])).max() < 1e-6  # corners move by whole pixels
        assert (np.abs(x - [0, width - 1, width - 1, 0]) < width * 0.25 + 1e-6).all()
        assert (np.abs(y - [0, 0, height - 1, height - 1]) < height * 0.25 + 1e-6).all()


def test_a_perspective_has_its_probability_and_leaves_lines_alone() -> None:
    program = program_of([RandomPerspective(p=0.3)], 4000, width=50, height=50)
    assert (program.opcode[:, 0] == opcodes.WARP).mean() == pytest.approx(0.3, abs=0.03)
    assert program_of([RandomPerspective(p=1)], 10, width=1, height=50).empty


@pytest.mark.parametrize(("alpha", "sigma"), [(50.0, 5.0), ((80.0, 20.0), (2.0, 6.0)), (6.0, 0.0)])
@pytest.mark.parametrize(("height", "width"), [(48, 64), (31, 9)])
def test_an_elastic_canvas_matches_torchvision_with_the_same_displacements(
    alpha: Any, sigma: Any, height: int, width: int
) -> None:
    alphas = alpha if isinstance(alpha, tuple) else (alpha, alpha)
    sigmas = sigma if isinstance(sigma, tuple) else (sigma, sigma)
    program = program_of([ElasticTransform(alpha, sigma)], 2, width=width, height=height)
    image = smooth(height, width)
    for slot in range(2):
        words = rng.bits(int(program.key[slot, 0]), np.arange(2 * height * width)) >> np.uint64(40)
        fields = torch.from_numpy(words.astype(np.float32) * 2.0**-23 - 1).reshape(2, 1, 1, height, width)
        shifts = []
        for axis, extent in enumerate((width, height)):
            taps = 2 * (int(8 * sigmas[axis] + 1) // 2) + 1
            # torch pads by less than the extent, ours repeats the reflection.
            margin = taps // 2
            padded = np.pad(fields[axis, 0, 0].numpy(), margin, mode="reflect") if min(sigmas) else None
            field = fields[axis]
            if padded is not None:
                blurred = functional.gaussian_blur(torch.from_numpy(padded)[None, None], [taps, taps], list(sigmas))
                field = blurred[:, :, margin:-margin, margin:-margin]
            shifts.append(field[0, 0] * alphas[axis] / extent)
        theirs = functional.elastic(torch.from_numpy(image), torch.stack(shifts, dim=2)[None], fill=0)
        difference = differences(run(program, slot, image), theirs)
        assert difference.max() <= 2  # the blur drops taps that add up to 2**-16
        assert (difference > 1).mean() < 0.001


def test_noise_of_an_elastic_canvas_differs_between_images() -> None:
    image = smooth(40, 40)
    program = program_of([ElasticTransform()], 2, width=40, height=40)
    assert (run(program, 0, image) != run(program, 1, image)).mean() > 0.1


@pytest.mark.parametrize("transform", [RandomPerspective(), ElasticTransform()])
def test_targets_that_would_have_to_follow_moved_pixels_are_refused(transform: Any) -> None:
    plan_transforms([transform], targets=("extra",))
    for name in ("boxes", "keypoints", "polygons", "mask"):
        with pytest.raises(UsageError, match=name):
            plan_transforms([transform], targets=(name,))


@pytest.mark.parametrize(
    ("transform", "count"), [(RandomPerspective(), 9), (ElasticTransform(), 1)], ids=lambda value: type(value).__name__
)
def test_a_distortion_uses_the_documented_number_of_random_numbers(transform: Any, count: int) -> None:
    assert f"Uses {count} random number{'s' * (count != 1)}" in " ".join(type(transform).__doc__.split())
    taken, fresh = BatchRandom(3, 1, [4, 5]), BatchRandom(3, 1, [4, 5])
    transform(np.array([[20, 30], [2, 1]]), taken)
    fresh.uniform(count)
    assert (taken.uniform(1) == fresh.uniform(1)).all()


@pytest.mark.parametrize(
    "make",
    [
        lambda: RandomPerspective(1.5),
        lambda: RandomPerspective(p=2),
        lambda: RandomPerspective(interpolation="lanczos"),
        lambda: RandomPerspective(interpolation=["bilinear"]),
        lambda: RandomPerspective(fill=300),
        lambda: ElasticTransform(alpha="much"),
        lambda: ElasticTransform(alpha=(1, 2, 3)),
        lambda: ElasticTransform(sigma=(0, 1)),
        lambda: ElasticTransform(sigma=-1),
        lambda: ElasticTransform(sigma=1000),
        lambda: ElasticTransform(fill="red"),
    ],
)
def test_wrong_arguments_of_distortions_are_refused_at_once(make: Any) -> None:
    with pytest.raises(UsageError, match="give"):
        make()
