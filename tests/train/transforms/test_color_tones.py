"""Transforms of tones and channels: torchvision's pixels and distributions."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from colored import differences, noise, program_of, run, same_distribution, smooth
from grids import examples
from hypothesis import given
from hypothesis import strategies as st
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from picstore.errors import UsageError
from picstore.train.transforms import color, opcodes
from picstore.train.transforms.batch_random import BatchRandom

SIZES = [(40, 61), (7, 9), (3, 3), (2, 8), (1, 1)]


@pytest.mark.parametrize(("height", "width"), SIZES)
@pytest.mark.parametrize("make", [noise, smooth])
def test_equalize_and_autocontrast_match_torchvision(make: Any, height: int, width: int) -> None:
    image = make(height, width)
    equalized = run(program_of([color.RandomEqualize(1)], 1), 0, image)
    assert (equalized == functional.equalize(torch.from_numpy(image)).numpy()).all()
    stretched = run(program_of([color.RandomAutocontrast(1)], 1), 0, image)
    assert (stretched == functional.autocontrast(torch.from_numpy(image)).numpy()).all()


@examples(60)
@given(st.integers(0, 255), st.integers(0, 255), st.integers(1, 40), st.integers(1, 300))
def test_levels_of_any_range_are_equalized_as_in_torchvision(low: int, high: int, height: int, width: int) -> None:
    image = np.random.default_rng(height).integers(min(low, high), max(low, high) + 1, (3, height, width))
    image = image.astype(np.uint8)
    tensor = torch.from_numpy(image)
    assert (run(program_of([color.RandomEqualize(1)], 1), 0, image) == functional.equalize(tensor).numpy()).all()
    stretched = run(program_of([color.RandomAutocontrast(1)], 1), 0, image)
    assert differences(stretched, functional.autocontrast(tensor)).max() <= 1


@pytest.mark.parametrize(("height", "width"), SIZES)
@pytest.mark.parametrize("factor", [0, 0.1, 0.7, 1, 1.9, 5])
def test_sharpness_matches_torchvision_within_one_level(factor: float, height: int, width: int) -> None:
    for image in (noise(height, width), smooth(height, width)):
        ours = run(program_of([color.RandomAdjustSharpness(factor, 1)], 1), 0, image)
        difference = differences(ours, functional.adjust_sharpness(torch.from_numpy(image), factor))
        assert difference.max() <= 1
        assert (difference > 0).mean() < 0.03


def test_grayscale_matches_torchvision() -> None:
    image = noise(20, 31)
    ours = run(program_of([color.Grayscale()], 1), 0, image)
    assert differences(ours, functional.rgb_to_grayscale(torch.from_numpy(image), 3)).max() <= 1


def test_channels_are_permuted_in_all_orders_alike() -> None:
    image = noise(3, 5)
    program = program_of([color.RandomChannelPermutation()], 6000)
    found: dict[tuple[int, ...], int] = {}
    for slot in range(600):
        permuted = run(program, slot, image)
        order = tuple(next(c for c in range(3) if (image[c] == plane).all()) for plane in permuted)
        found[order] = found.get(order, 0) + 1
    assert len(found) == 6
    assert min(found.values()) > 60
    moved = program.opcode[:, 0] == opcodes.PERMUTE
    assert moved.mean() == pytest.approx(5 / 6, abs=0.02)


@pytest.mark.slow
def test_photometric_distortion_is_drawn_as_in_torchvision() -> None:
    count = 10_000
    theirs = [v2.RandomPhotometricDistort().make_params([torch.empty(3, 2, 2)]) for _ in range(count)]
    program = program_of([color.RandomPhotometricDistort()], count)
    named = {
        opcodes.SCALE: "brightness_factor",
        opcodes.CONTRAST: "contrast_factor",
        opcodes.SATURATION: "saturation_factor",
        opcodes.HUE: "hue_factor",
    }
    for opcode, name in named.items():
        ours = program.operands[:, :, 0][program.opcode == opcode]
        drawn = [params[name] for params in theirs if params[name] is not None]
        assert len(ours) == pytest.approx(len(drawn), rel=0.06)
        assert same_distribution(ours, drawn)
    steps = [[code for code in row if code not in (0, opcodes.NORMALIZE)] for row in program.opcode.tolist()]
    late = [row.index(opcodes.CONTRAST) > row.index(opcodes.HUE) for row in steps if {2, 4} <= set(row)]
    assert np.mean(late) == pytest.approx(0.5, abs=0.05)
    assert np.mean([row[-1] == opcodes.PERMUTE for row in steps if row]) == pytest.approx(5 / 12, abs=0.03)


def test_photometric_distortion_makes_the_pixels_of_torchvision() -> None:
    image = smooth(30, 41)
    program = program_of([color.RandomPhotometricDistort(p=1)], 20)
    for slot in range(20):
        tensor = torch.from_numpy(image)
        for code, value in zip(program.opcode[slot].tolist(), program.operands[slot].tolist(), strict=True):
            if code == opcodes.SCALE:
                tensor = functional.adjust_brightness(tensor, value[0])
            elif code == opcodes.CONTRAST:
                tensor = functional.adjust_contrast(tensor, value[0])
            elif code == opcodes.SATURATION:
                tensor = functional.adjust_saturation(tensor, value[0])
            elif code == opcodes.HUE:
                tensor = functional.adjust_hue(tensor, value[0])
            elif code == opcodes.PERMUTE:
                first, second = int(value[0]), int(value[1])
                tensor = functional.permute_channels(tensor, [first, second, 3 - first - second])
        difference = differences(run(program, slot, image), tensor)
        assert difference.max() <= 4  # a step differs by one level, which the next ones multiply
        assert difference.mean() < 0.05


@pytest.mark.parametrize(
    ("transform", "count"),
    [
        (color.Grayscale(), 0),
        (color.RandomEqualize(), 1),
        (color.RandomAutocontrast(), 1),
        (color.RandomAdjustSharpness(2), 1),
        (color.RandomChannelPermutation(), 1),
        (color.RandomPhotometricDistort(), 11),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_transform_of_tones_uses_the_documented_number_of_random_numbers(transform: Any, count: int) -> None:
    words = f"{count} random number{'s' * (count != 1)}" if count else "no random numbers"
    assert f"Uses {words}." in " ".join(type(transform).__doc__.split())
    taken, fresh = BatchRandom(3, 1, [4, 5]), BatchRandom(3, 1, [4, 5])
    transform(np.array([[20, 30], [2, 1]]), taken)
    fresh.uniform(count)
    assert (taken.uniform(1) == fresh.uniform(1)).all()


@pytest.mark.parametrize(
    "make",
    [
        lambda: color.Grayscale(1),
        lambda: color.RandomEqualize(2),
        lambda: color.RandomAutocontrast(-1),
        lambda: color.RandomAdjustSharpness(-0.1),
        lambda: color.RandomAdjustSharpness("much"),
        lambda: color.RandomPhotometricDistort(hue=(-0.6, 0)),
        lambda: color.RandomPhotometricDistort(contrast=(2, 1)),
        lambda: color.RandomPhotometricDistort(p=1.1),
    ],
)
def test_wrong_arguments_of_tones_are_refused_when_the_transform_is_made(make: Any) -> None:
    with pytest.raises(UsageError, match="give"):
        make()


def test_the_channels_are_put_in_each_of_their_six_orders() -> None:
    assert sorted(map(tuple, color._PERMUTATIONS.tolist())) == list(itertools.permutations(range(3)))
