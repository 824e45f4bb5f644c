"""AutoAugment and its successors against torchvision: the same operations, magnitudes and pixels."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from colored import differences, noise, program_of, run, same_distribution, same_frequencies, smooth
from grids import slow_except
from torchvision.transforms import v2

from picstore.errors import UsageError
from picstore.train.transforms import augment_operations, opcodes
from picstore.train.transforms.augment_operations import Operation, make_steps
from picstore.train.transforms.auto_augment import AugMix, AutoAugment, RandAugment, TrivialAugmentWide
from picstore.train.transforms.batch_random import BatchRandom
from picstore.train.transforms.color_program import ColorProgram, compose_color
from picstore.train.transforms.transform_plan import plan_transforms

WIDTH, HEIGHT = 90, 61
NAMES = {operation.name.title().replace("_", ""): operation for operation in Operation}

Drawn = list[tuple[str, float]]  # names and magnitudes of one image's operations


def drawn_by_torchvision(transform: Any, count: int, monkeypatch: pytest.MonkeyPatch) -> list[Drawn]:
    """What a transform of torchvision does to ``count`` images."""
    images: list[Drawn] = []

    def note(image: Any, name: str, magnitude: float, **_: Any) -> Any:
        images[-1].append((name, magnitude))
        return image

    monkeypatch.setattr(transform, "_apply_image_or_video_transform", note)
    torch.manual_seed(0)
    image = torch.zeros(3, HEIGHT, WIDTH, dtype=torch.uint8)
    for _ in range(count):
        images.append([])
        transform(image)
    return images


@functools.cache
def expected_step(name: str, magnitude: float) -> tuple[int, ...] | None:
    """Opcode and first map or factor, rounded, of an operation of torchvision; None of one that changes nothing."""
    argument = magnitude
    if name in ("Brightness", "Color", "Contrast", "Sharpness"):
        argument = 1 + magnitude
    elif name in ("TranslateX", "TranslateY", "Posterize"):
        argument = float(int(magnitude))
    elif name == "Solarize":
        argument = 255.0 * magnitude
    step = make_steps(
        np.array([NAMES[name]]), np.array([argument]), np.array([[WIDTH, HEIGHT]]), sampling=0, fill=(0, 0, 0)
    )
    if step.opcode[0, 0] == opcodes.NOTHING:
        return None
    return (int(step.opcode[0, 0]), *step.operands[0, 0, :8].round(4).tolist())


def expected_steps(drawn: Drawn) -> tuple[tuple[int, ...], ...]:
    """The steps of one image's operations."""
    return tuple(step for step in itertools.starmap(expected_step, drawn) if step is not None)


def own_steps(program: ColorProgram, slot: int) -> tuple[tuple[int, ...], ...]:
    used = [k for k, code in enumerate(program.opcode[slot]) if code not in (opcodes.NOTHING, opcodes.NORMALIZE)]
    return tuple((int(program.opcode[slot, k]), *program.operands[slot, k, :8].round(4).tolist()) for k in used)


CASES = [
    (RandAugment(num_ops=1), v2.RandAugment(num_ops=1)),
    (RandAugment(num_ops=1, magnitude=4, num_magnitude_bins=7), v2.RandAugment(1, 4, 7)),
    (TrivialAugmentWide(), v2.TrivialAugmentWide()),
    (TrivialAugmentWide(6), v2.TrivialAugmentWide(6)),
    *[(AutoAugment(policy), v2.AutoAugment(policy)) for policy in v2.AutoAugmentPolicy],
]


@pytest.mark.parametrize(("ours", "theirs"), slow_except(CASES[:1], CASES), ids=lambda case: type(case).__name__)
def test_operations_and_magnitudes_are_distributed_as_in_torchvision(
    ours: Any, theirs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 10_000
    program = program_of([ours], count, width=WIDTH, height=HEIGHT)
    expected = [expected_steps(drawn) for drawn in drawn_by_torchvision(theirs, count, monkeypatch)]
    assert same_frequencies([own_steps(program, slot) for slot in range(count)], expected)


def test_operations_of_one_image_are_independent() -> None:
    program = program_of([RandAugment(num_ops=2)], 20_000, width=WIDTH, height=HEIGHT)
    both = [own_steps(program, slot) for slot in range(20_000)]
    pairs = [(steps[0][0], steps[1][0]) for steps in both if len(steps) == 2]
    first, second = zip(*pairs, strict=True)
    shuffled = np.random.default_rng(0).permutation(len(pairs))
    assert same_frequencies(pairs, [(first[k], second[j]) for k, j in enumerate(shuffled)])


@pytest.mark.parametrize(("make", "theirs"), [(AugMix, v2.AugMix), (lambda **k: AugMix(alpha=0.4, **k), None)])
def test_mixtures_have_weights_and_depths_as_in_torchvision(make: Callable[..., Any], theirs: Any) -> None:
    count = 10_000
    program = program_of([make()], count)
    weights = program.operands[:, :, 0][program.opcode == opcodes.MIX].reshape(count, 4)
    assert np.allclose(weights.sum(axis=1), 1)
    torch.manual_seed(0)
    alpha = 1.0 if theirs else 0.4
    share = torch._sample_dirichlet(torch.full((count, 2), alpha))
    parts = torch._sample_dirichlet(torch.full((count, 3), alpha)) * share[:, 1:]
    for ours, drawn in zip(weights.T, [share[:, 0], *parts.T], strict=True):
        assert same_distribution(ours, drawn.numpy())


def test_chains_of_a_mixture_have_operations_as_in_torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 6000
    program = program_of([AugMix(mixture_width=1)], count, width=WIDTH, height=HEIGHT)
    chains = [tuple(step for step in own_steps(program, slot) if step[0] != opcodes.MIX)[:1] for slot in range(count)]
    expected = [
        expected_steps(drawn)[:1] for drawn in drawn_by_torchvision(v2.AugMix(mixture_width=1), count, monkeypatch)
    ]
    assert same_frequencies(chains, expected)
    lengths = [len(own_steps(program, slot)) - 2 for slot in range(count)]
    # A third are of three operations; the least of three magnitudes makes 9 of 13 an identity, without a step.
    assert np.bincount(lengths)[3] == pytest.approx(count / 3 * (1 - 9 / 39) ** 3, rel=0.15)


ARGUMENTS = {
    "ShearX": [0.31, -0.11, 0.97],
    "ShearY": [0.21, -0.97],
    "TranslateX": [30.0, -7.0],
    "TranslateY": [-11.0, 60.0],
    "Rotate": [30.0, -12.6, 135.0],
    "Brightness": [0.4, -0.9],
    "Color": [0.9, -0.31],
    "Contrast": [0.7, -0.9],
    "Sharpness": [0.9, -0.9],
    "Posterize": [0.0, 3.0, 8.0],
    "Solarize": [0.0, 0.35, 1.0],
    "AutoContrast": [0.0],
    "Equalize": [0.0],
    "Invert": [0.0],
    "Identity": [0.0],
}


@pytest.mark.parametrize("name", ARGUMENTS)
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
def test_an_operation_makes_the_pixels_of_torchvision(name: str, interpolation: str) -> None:
    sampling = {"nearest": opcodes.NEAREST, "bilinear": opcodes.BILINEAR}[interpolation]
    theirs = v2.RandAugment(interpolation=v2.InterpolationMode(interpolation))
    for magnitude in ARGUMENTS[name]:
        for image in (noise(HEIGHT, WIDTH), smooth(HEIGHT, WIDTH)):
            expected = theirs._apply_image_or_video_transform(
                torch.from_numpy(image), name, magnitude, interpolation=theirs.interpolation, fill=theirs._fill
            )
            argument = magnitude + 1 if name in ("Brightness", "Color", "Contrast", "Sharpness") else magnitude
            step = make_steps(
                np.array([NAMES[name]]),
                np.array([255 * magnitude if name == "Solarize" else argument]),
                np.array([[WIDTH, HEIGHT]]),
                sampling=sampling,
                fill=[opcodes.NO_FILL] * 3,
            )
            end = compose_color([], np.array([[WIDTH, HEIGHT]]), BatchRandom(0, 0, [0]))
            difference = differences(run(ColorProgram.chain([step, end]), 0, image), expected)
            if interpolation == "nearest" and name in ("ShearX", "ShearY", "Rotate"):
                assert (difference > 1).mean() < 0.002  # ties, which torch decides in float32
            else:
                assert difference.max() <= 1


def test_a_mixture_is_the_weighted_sum_of_its_chains() -> None:
    image = smooth(HEIGHT, WIDTH)
    program = program_of([AugMix()], 12, width=WIDTH, height=HEIGHT)
    for slot in range(12):
        total, begin = np.zeros(image.shape), 0
        ends = np.flatnonzero(program.opcode[slot] == opcodes.MIX)
        for begin, end in zip([ends[0], *ends[:-1]], ends, strict=True):
            steps = slice(begin + 1, max(end, begin + 1))
            parts = (array[slot : slot + 1, steps] for array in (program.opcode, program.operands, program.key))
            normalize = compose_color([], np.array([[WIDTH, HEIGHT]]), BatchRandom(0, 0, [0]))
            chain = run(ColorProgram.chain([ColorProgram(*parts), normalize]), 0, image)
            total += program.operands[slot, end, 0] * chain
        assert differences(run(program, slot, image), np.floor(total + 1e-3).astype(np.uint8)).max() <= 1


def test_policies_match_torchvision() -> None:
    for policy in v2.AutoAugmentPolicy:
        ours = getattr(augment_operations, policy.name)
        theirs = v2.AutoAugment(policy)._policies
        assert [[(n, c, m or 0) for n, c, m in pair] for pair in theirs] == [[tuple(s) for s in pair] for pair in ours]


@pytest.mark.parametrize(
    ("transform", "count"),
    [(RandAugment(3), 6), (TrivialAugmentWide(), 3), (AutoAugment(), 5), (AugMix(), 35), (AugMix(alpha=2), 155)],
)
def test_an_automatic_augmentation_draws_equally_often_for_every_image(transform: Any, count: int) -> None:
    taken, fresh = BatchRandom(3, 1, [4, 5]), BatchRandom(3, 1, [4, 5])
    transform(np.array([[20, 30], [2, 1]]), taken)
    fresh.uniform(count)
    assert (taken.uniform(1) == fresh.uniform(1)).all()


@pytest.mark.parametrize(
    "make",
    [
        lambda: RandAugment(num_ops=-1),
        lambda: RandAugment(magnitude=31),
        lambda: RandAugment(magnitude=-1),
        lambda: RandAugment(num_magnitude_bins=1),
        lambda: RandAugment(interpolation="hamming"),
        lambda: RandAugment(fill=(1, 2)),
        lambda: TrivialAugmentWide(1.5),
        lambda: AutoAugment("mnist"),
        lambda: AutoAugment(None),
        lambda: AugMix(severity=11),
        lambda: AugMix(mixture_width=0),
        lambda: AugMix(alpha=0),
        lambda: AugMix(chain_depth=0.5),
    ],
)
def test_wrong_arguments_of_automatic_augmentation_are_refused_at_once(make: Any) -> None:
    with pytest.raises(UsageError, match="give"):
        make()


@pytest.mark.parametrize("transform", [RandAugment(), TrivialAugmentWide(), AutoAugment(), AugMix()])
def test_automatic_augmentation_is_refused_where_targets_had_to_follow(transform: Any) -> None:
    with pytest.raises(UsageError, match="boxes"):
        plan_transforms([transform], targets=("boxes",))
