"""timm's augmentations by their configuration strings, against timm itself."""

from __future__ import annotations

import importlib.util
import pickle
import random
from typing import Any

import numpy as np
import pytest
from colored import differences, noise, program_of, run, same_distribution, same_frequencies, smooth
from grids import slow_except
from pictures import require
from PIL import Image

from picstore.errors import UsageError
from picstore.train.transforms import opcodes, timm_augment
from picstore.train.transforms.augment_operations import Operation, make_steps
from picstore.train.transforms.batch_random import BatchRandom
from picstore.train.transforms.color_program import ColorProgram, compose_color
from picstore.train.transforms.timm_augment import AUGMIX, INCREASING, LEVELS, RANDOM, THREE, WEIGHTED, TimmAutoAugment

require(importlib.util.find_spec("timm"), "timm")
from timm.data import auto_augment  # noqa: E402 - after that

WIDTH, HEIGHT = 90, 61
SAMPLINGS = {
    opcodes.PILLOW_BILINEAR: Image.Resampling.BILINEAR,
    opcodes.PILLOW_BICUBIC: Image.Resampling.BICUBIC,
    opcodes.NEAREST: Image.Resampling.NEAREST,
}

Applied = tuple[str, float, int]  # operation, argument, sampling of warps


def argument_of(name: str, arguments: tuple[float, ...]) -> float:
    """Our argument for timm's."""
    if not arguments:
        return 0.0
    if name.startswith("Translate"):
        return -arguments[0] * ((WIDTH if "X" in name else HEIGHT) if name.endswith("Rel") else 1)
    if name == "Desaturate":
        return 1 - arguments[0]
    if name == "GaussianBlurRand":
        return random.uniform(0.1, 2.0 * arguments[0])
    return arguments[0]


def applied_by_timm(config: str, count: int) -> list[list[Applied]]:
    """The operations that timm applies to each of ``count`` images."""
    make = {"rand": auto_augment.rand_augment_transform, "augmix": auto_augment.augment_and_mix_transform}
    transform = make.get(config.split("-")[0], auto_augment.auto_augment_transform)(config)
    images: list[list[Applied]] = []

    def note(name: str) -> Any:
        def apply(image: Any, *arguments: float, resample: Any, **_: Any) -> Any:
            interpolation = auto_augment._interpolation({"resample": resample})
            sampling = next(code for code, mode in SAMPLINGS.items() if mode == interpolation)
            images[-1].append((LEVELS[name][0].name, argument_of(name, arguments), sampling))
            return image

        return apply

    policy = getattr(transform, "policy", None)
    for op in (op for group in (policy or [transform.ops]) for op in group):
        op.aug_fn = note(op.name)
    random.seed(0)
    np.random.seed(0)
    image = Image.new("RGB", (WIDTH, HEIGHT))
    for _ in range(count):
        images.append([])
        transform(image)
    return images


def applied_by_us(config: str, count: int, monkeypatch: pytest.MonkeyPatch) -> list[list[Applied]]:
    images: list[list[Applied]] = [[] for _ in range(count)]

    def note(operations: Any, arguments: Any, sizes: Any, *, sampling: Any, fill: Any) -> ColorProgram:
        for image, operation, argument, code in zip(images, operations, arguments, sampling, strict=True):
            if operation:
                image.append((Operation(operation).name, float(argument), int(code)))
        return make_steps(operations, arguments, sizes, sampling=sampling, fill=fill)

    monkeypatch.setattr(timm_augment, "make_steps", note)
    program_of([TimmAutoAugment(config)], count, width=WIDTH, height=HEIGHT)
    return images


CONFIGS = [
    "rand-m9-mstd0.5-inc1",
    "rand-m9-mstd0.5",
    "rand-m7-n3-p0.8-mstd101",
    "rand-m12-mmax15-mstd1-inc1",
    "rand-m6-n3-tweights",
    "rand-m6-n3-t3aw-inc1",
    "rand-m6-n1-t3a",
    "original-mstd0.5",
    "originalr",
    "v0",
    "v0r-mstd0.5",
    "3a",
    "augmix-m5-w2-d2",
    "augmix-m3-mstd0.5",
]


@pytest.mark.parametrize(
    "config", [*slow_except(CONFIGS[:1], CONFIGS[:-1]), pytest.param(CONFIGS[-1], marks=pytest.mark.nightly)]
)
def test_operations_and_arguments_are_distributed_as_in_timm(config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 10_000
    ours, theirs = applied_by_us(config, count, monkeypatch), applied_by_timm(config, count)
    assert same_frequencies([len(image) for image in ours], [len(image) for image in theirs])
    flat, others = [each for image in ours for each in image], [each for image in theirs for each in image]
    assert same_frequencies([each[0] for each in flat], [each[0] for each in others])
    for name in {each[0] for each in others}:
        drawn, expected = ([each[1] for each in sample if each[0] == name] for sample in (flat, others))
        assert same_distribution(np.round(drawn, 9), np.round(expected, 9)), name
    warps = ("ROTATE", "SHEAR_X", "SHEAR_Y", "TRANSLATE_X", "TRANSLATE_Y")
    samplings = [[each[2] for each in sample if each[0] in warps] for sample in (flat, others)]
    assert not samplings[1] or same_frequencies(*samplings)


def test_weighted_operations_of_an_image_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    for image in applied_by_us("rand-m9-n6-p1-tweights", 500, monkeypatch):
        names = [name for name, _, _ in image]
        assert len(names) == len(set(names)) == 6


def test_sets_of_operations_match_timm() -> None:
    assert set(RANDOM) == set(auto_augment._RAND_TRANSFORMS)
    assert set(INCREASING) == set(auto_augment._RAND_INCREASING_TRANSFORMS)
    assert set(AUGMIX) == set(auto_augment._AUGMIX_TRANSFORMS)
    assert set(THREE) == set(auto_augment._RAND_3A)
    assert WEIGHTED == {"weights": auto_augment._RAND_WEIGHTED_0, "3aw": auto_augment._RAND_WEIGHTED_3A}
    assert set(LEVELS) == set(auto_augment.NAME_TO_OP)


ARGUMENTS: dict[str, list[tuple[float, ...]]] = {
    "AutoContrast": [()],
    "Equalize": [()],
    "Invert": [()],
    "Rotate": [(27.0,), (-8.5,), (0.0,)],
    "Posterize": [(1,), (3,), (8,)],  # Pillow 13 refuses 0, which earlier releases made black
    "Solarize": [(0,), (128,), (256,)],
    "SolarizeAdd": [(0,), (99,), (128,)],
    "Color": [(0.1,), (1.72,)],
    "Contrast": [(0.1,), (1.72,)],
    "Brightness": [(0.1,), (1.72,)],
    "Sharpness": [(0.1,), (1.72,)],
    "ShearX": [(0.27,), (-0.3,)],
    "ShearY": [(0.27,), (-0.3,)],
    "TranslateX": [(100.0,), (-7.25,)],
    "TranslateXRel": [(0.405,), (-0.1,)],
    "TranslateYRel": [(0.45,), (-0.07,)],
    "Desaturate": [(0.5,), (1.0,)],
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_an_operation_makes_the_pixels_of_timm(name: str) -> None:
    for arguments in ARGUMENTS[name]:
        for image in (noise(HEIGHT, WIDTH), smooth(HEIGHT, WIDTH)):
            for sampling, mode in SAMPLINGS.items():
                if mode == Image.Resampling.NEAREST:
                    continue  # Pillow's differs by ties only, as torchvision's
                picture = Image.fromarray(image.transpose(1, 2, 0))
                made = auto_augment.NAME_TO_OP[name](picture, *arguments, resample=mode, fillcolor=(124, 116, 104))
                step = make_steps(
                    np.array([int(LEVELS[name][0])]),
                    np.array([argument_of(name, arguments)], float),
                    np.array([[WIDTH, HEIGHT]]),
                    sampling=sampling,
                    fill=(124, 116, 104),
                )
                end = compose_color([], np.array([[WIDTH, HEIGHT]]), BatchRandom(0, 0, [0]))
                ours = run(ColorProgram.chain([step, end]), 0, image)
                assert differences(ours, np.asarray(made).transpose(2, 0, 1)).max() <= 1


@pytest.mark.parametrize("config", ["rand-m9-mstd0.5-inc1", "rand-tweights-n4", "augmix-m5", "original", "3a"])
def test_every_image_uses_the_same_random_numbers_and_so_does_a_copy(config: str) -> None:
    transform = TimmAutoAugment(config)
    sizes = np.array([[40, 30], [2, 1], [90, 90]])
    together = transform(sizes, BatchRandom(3, 1, [4, 5, 6]))
    copy = pickle.loads(pickle.dumps(transform))  # noqa: S301 - as the loader's process takes it
    for slot in range(3):
        alone = copy(sizes[slot : slot + 1], BatchRandom(3, 1, [4 + slot]))
        count = (alone.opcode[0] != opcodes.NOTHING).sum()
        assert (together.opcode[slot, :count] == alone.opcode[0, :count]).all()
        assert (together.operands[slot, :count] == alone.operands[0, :count]).all()


@pytest.mark.parametrize(
    "make",
    [
        lambda: TimmAutoAugment("rnd-m9"),
        lambda: TimmAutoAugment("rand-x9"),
        lambda: TimmAutoAugment("rand-m9-tstrange"),
        lambda: TimmAutoAugment("rand-m9-p2"),
        lambda: TimmAutoAugment("rand-m9-n1000"),
        lambda: TimmAutoAugment("rand-n30-tweights"),
        lambda: TimmAutoAugment("rand-m-9"),
        lambda: TimmAutoAugment("augmix-w0"),
        lambda: TimmAutoAugment("augmix-a0"),
        lambda: TimmAutoAugment("original-m9"),
        lambda: TimmAutoAugment("v0", interpolation="lanczos"),
        lambda: TimmAutoAugment("v0", img_mean=(1, 2)),
        lambda: TimmAutoAugment("v0", translate_const="far"),
    ],
)
def test_wrong_configurations_are_refused_when_the_transform_is_made(make: Any) -> None:
    with pytest.raises(UsageError, match="give"):
        make()
