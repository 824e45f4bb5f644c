"""Transforms of color: torchvision's pixels within a grey level, its types to the bit, and draws as documented.

Where a list of several steps is compared with torchvision's, the one level by which a step differs is multiplied by
the factors of the next ones: by three of 1.8 it becomes 6. On average the lists here differ by less than 0.05, since
contrast treats all pixels of a level alike: one level on the other side of an integer is 1 pixel in 30 of a flat image.
"""

from __future__ import annotations

import itertools
import math
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
import torch
from grids import examples, slow_except
from hypothesis import given
from hypothesis import strategies as st
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from picstore import rng
from picstore.errors import UsageError
from picstore.train.cpu.run_color import run_color
from picstore.train.transforms import opcodes
from picstore.train.transforms.batch_random import BatchRandom
from picstore.train.transforms.blur_noise_erasing import GaussianBlur, GaussianNoise, RandomErasing
from picstore.train.transforms.color import (
    ColorJitter,
    Normalize,
    RandomGrayscale,
    RandomInvert,
    RandomPosterize,
    RandomSolarize,
)
from picstore.train.transforms.color_program import ColorProgram, check_color, compose_color
from picstore.train.transforms.opcodes import OutputDtype
from picstore.train.transforms.transform_plan import plan_transforms

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
sides = st.integers(1, 45)
seeds = st.integers(0, 1000)


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (3, height, width), dtype=np.uint8)


def smooth(height: int, width: int, seed: int = 0) -> np.ndarray:
    """Like a photograph in that neighbors are alike, and partly without color."""
    coarse = torch.from_numpy(noise(height // 8 + 2, width // 8 + 2, seed))
    image = functional.resize(coarse, [height, width], antialias=True)
    image[:, : height // 4] = image[:1, : height // 4]
    return np.ascontiguousarray(image.numpy())


def program_of(transforms: list, count: int, *, width: int = 20, height: int = 30, seed: int = 0) -> ColorProgram:
    """The program of ``count`` images of the same size."""
    check_color(transforms)
    return compose_color(transforms, np.tile([width, height], (count, 1)), BatchRandom(seed, 0, np.arange(count)))


def run(
    program: ColorProgram, slot: int, image: np.ndarray, dtype: torch.dtype = torch.uint8, last: bool = False
) -> Any:
    """The developed image as a tensor, in its usual layout or with the channels last."""
    shape = (1, *image.shape)
    out = torch.full(shape, 99).to(dtype).to(memory_format=torch.channels_last if last else torch.contiguous_format)
    raw = out.view(torch.int16) if dtype in (torch.float16, torch.bfloat16) else out
    run_color(program, slot, image.copy(), raw[0].numpy(), OutputDtype.from_dtype(dtype))
    return out[0]


def blurred(tensor: torch.Tensor, value: list[float]) -> torch.Tensor:
    taps = [2 * int(value[0]) + 1, 2 * int(value[1]) + 1]
    return functional.gaussian_blur(tensor, taps, [value[2], value[2]])


def erased(tensor: torch.Tensor, value: list[float]) -> torch.Tensor:
    left, top, right, bottom = map(int, value[:4])
    return functional.erase(tensor, top, left, bottom - top, right - left, torch.tensor(value[4:7])[:, None, None])


def saturated(tensor: torch.Tensor, value: list[float]) -> torch.Tensor:
    return functional.adjust_saturation(tensor, value[0]) if value[0] else functional.rgb_to_grayscale(tensor, 3)


THEIRS = {
    opcodes.SCALE: lambda tensor, value: functional.adjust_brightness(tensor, value[0]),
    opcodes.CONTRAST: lambda tensor, value: functional.adjust_contrast(tensor, value[0]),
    opcodes.SATURATION: saturated,
    opcodes.HUE: lambda tensor, value: functional.adjust_hue(tensor, value[0]),
    opcodes.SOLARIZE: lambda tensor, value: functional.solarize(tensor, value[0]),
    opcodes.POSTERIZE: lambda tensor, value: functional.posterize(tensor, 8 - int(math.log2(value[0]))),
    opcodes.BLUR: blurred,
    opcodes.ERASE: erased,
}


def torchs(program: ColorProgram, slot: int, image: np.ndarray) -> torch.Tensor:
    """What torchvision makes of an image by the steps of a program before ``Normalize``; none may be random."""
    tensor = torch.from_numpy(image.copy())
    for code, value in zip(program.opcode[slot].tolist(), program.operands[slot].tolist(), strict=True):
        if code == opcodes.NORMALIZE:
            break
        tensor = THEIRS[code](tensor, value)
    return tensor


def differences(ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    return (ours.int() - theirs.int()).abs()


SINGLE = [
    ColorJitter(brightness=0.9),
    ColorJitter(contrast=0.9),
    ColorJitter(saturation=(0, 3)),
    ColorJitter(hue=0.5),
    RandomGrayscale(1),
    RandomInvert(1),
    RandomSolarize(100.5, 1),
    RandomPosterize(3, 1),
    GaussianBlur(5),
    GaussianBlur((23, 7), (0.1, 9.0)),
    RandomErasing(1, value=(200, 3.7, 0)),
]


@pytest.mark.parametrize("transform", SINGLE, ids=lambda transform: type(transform).__name__)
@pytest.mark.parametrize("make", [noise, smooth])
def test_a_single_step_matches_torchvision_within_one_level(transform: Any, make: Any) -> None:
    image = make(40, 61)
    program = program_of([transform], 12, width=61, height=40)
    for slot in range(12):
        difference = differences(run(program, slot, image), torchs(program, slot, image))
        assert difference.max() <= 1
        assert (difference > 0).float().mean() < 0.03


@examples(80)
@given(sides, sides, seeds, st.permutations(SINGLE[:8]))
def test_steps_match_torchvision_on_images_of_any_size(height: int, width: int, seed: int, transforms: list) -> None:
    image = noise(height, width, seed)
    program = program_of([transforms[0]], 2, width=width, height=height, seed=seed)
    assert differences(run(program, 1, image), torchs(program, 1, image)).max() <= 1
    # A hard step such as solarize can turn one level into 255, so that a list is compared without those.
    soft = [transform for transform in transforms if isinstance(transform, ColorJitter)]
    program = program_of(soft, 2, width=width, height=height, seed=seed)
    # A level that one step is off is multiplied by later ones, 1.9 × 1.9 × 3: most lists are within 1, and 8 was seen.
    assert differences(run(program, 1, image), torchs(program, 1, image)).max() <= 10


LISTS = {
    "jitter": [ColorJitter(0.4, 0.4, 0.4, 0.1)],
    "simclr": [ColorJitter(0.8, 0.8, 0.8, 0.2), RandomGrayscale(0.2), GaussianBlur(23)],
    "blur first": [GaussianBlur(9), ColorJitter(0.4, 0.4, 0.4), RandomInvert(0.5), ColorJitter(contrast=0.5)],
    "erase first": [RandomErasing(1, value=(10, 20, 30)), ColorJitter(0.4, 0.4, 0.4, 0.5), RandomGrayscale(0.5)],
}


@pytest.mark.parametrize("name", slow_except(["simclr", "erase first"], LISTS))
def test_a_list_matches_torchvision_within_six_levels(name: str) -> None:
    program = program_of(LISTS[name], 24, width=97, height=64)
    for slot in range(24):
        for image in (noise(64, 97, slot), smooth(64, 97, slot)):
            difference = differences(run(program, slot, image), torchs(program, slot, image))
            assert difference.max() <= 6
            assert difference.float().mean() < 0.05


@pytest.mark.parametrize("step", slow_except([200], [40, 200]))
def test_photographs_become_what_torchvision_makes_of_them(photographs: list[Path], step: int) -> None:
    for slot, path in enumerate(photographs[::step]):
        image = np.ascontiguousarray(simplejpeg.decode_jpeg(path.read_bytes()).transpose(2, 0, 1))
        program = program_of(LISTS["simclr"], 10, width=image.shape[2], height=image.shape[1])
        difference = differences(run(program, slot, image), torchs(program, slot, image))
        assert difference.max() <= 6
        assert difference.float().mean() < 0.05


def test_all_hues_of_all_corners_turn_as_in_torchvision() -> None:
    levels = [0, 1, 2, 127, 128, 254, 255]
    image = np.array(list(itertools.product(levels, repeat=3)), dtype=np.uint8).T.reshape(3, 1, -1).copy()
    for turns in np.linspace(-0.5, 0.5, 25):
        program = program_of([ColorJitter(hue=(turns, turns))], 1)
        assert differences(run(program, 0, image), functional.adjust_hue(torch.from_numpy(image), turns)).max() <= 1


def test_a_small_image_is_mirrored_until_the_kernel_is_full() -> None:
    image = noise(2, 5)
    program = program_of([GaussianBlur(11, 3.0)], 1)
    weights = np.exp(-0.5 * (np.arange(-5, 6) / 3.0) ** 2)
    wide = np.pad(image.astype(float), ((0, 0), (5, 5), (5, 5)), mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(wide, (11, 11), axis=(1, 2))
    expected = np.einsum("cyxij,i,j->cyx", windows, weights, weights) / weights.sum() ** 2
    assert np.abs(run(program, 0, image).numpy() - expected).max() <= 0.51
    one = noise(1, 1)
    assert (run(program, 0, one).numpy() == one).all()


# Noise and random boxes


def normals(key: int, first: int, pairs: int) -> np.ndarray:
    """float64 (pairs, 2), from the definition in ``normals.py``."""
    words = rng.bits(key, np.arange(first, first + pairs))
    radius = np.sqrt(-2 * np.log(((words >> np.uint64(33)).astype(float) + 0.5) * 2.0**-31))
    low = (words >> np.uint64(2)) & np.uint64(2**31 - 1)
    angle = (low.astype(float) - 2**30) * (np.pi / 4) * 2.0**-30
    cosine = np.where(words & np.uint64(1), -1, 1) * radius * np.cos(angle)
    pair = np.stack([cosine, radius * np.sin(angle)], axis=1)
    return np.where((words & np.uint64(2) != 0)[:, None], pair[:, ::-1], pair)


@pytest.mark.parametrize("clip", [True, False])
@pytest.mark.parametrize(("height", "width"), [(1, 1), (7, 9), (40, 60)])
def test_noise_is_what_the_specification_says(clip: bool, height: int, width: int) -> None:
    image = noise(height, width)
    program = program_of([GaussianNoise(0.05, 0.3, clip)], 3)
    pixels = height * width
    for slot in range(3):
        key, pairs = int(program.key[slot, 0]), (pixels + 1) // 2
        drawn = np.stack([normals(key, c * pairs, pairs).ravel()[:pixels] for c in range(3)])
        exact = 255 * 0.05 + 255 * 0.3 * drawn.reshape(image.shape)
        sure = np.abs(exact - np.rint(exact)) > 1e-3  # elsewhere float32 may truncate to the other side
        expected = image + np.trunc(exact)
        expected = np.clip(expected, 0, 255) if clip else expected % 256
        assert (run(program, slot, image).numpy() == expected)[sure].all()


def test_noise_is_normal_and_independent_between_images_and_channels() -> None:
    image = np.full((3, 200, 200), 128, dtype=np.uint8)
    program = program_of([GaussianNoise(0.0, 0.1)], 2)
    first, second = (run(program, slot, image).double() - 128 for slot in (0, 1))
    # Truncation towards zero takes half a level off each magnitude.
    assert abs(first.mean()) < 0.3
    assert first.abs().mean() == pytest.approx(25.5 * math.sqrt(2 / math.pi) - 0.5, rel=0.01)
    rows = np.corrcoef(np.concatenate([first.reshape(3, -1), second.reshape(3, -1)]))
    assert np.abs(rows - np.eye(6)).max() < 0.03
    assert abs(np.corrcoef(first[:, :, :-1].ravel(), first[:, :, 1:].ravel())[0, 1]) < 0.02


def test_random_boxes_are_what_the_specification_says() -> None:
    steps = [RandomErasing(1, value="random"), Normalize((0, 0, 0), (1, 1, 1)), RandomErasing(1, value="random")]
    before, behind = program_of(steps[:1], 4), program_of(steps[1:], 4)
    for slot in range(4):
        left, top, right, bottom = before.operands[slot, 0, :4].astype(int)
        words = rng.bits(int(before.key[slot, 0]), np.arange(3 * (right - left) * (bottom - top)))
        levels = run(before, slot, noise(30, 20))[:, top:bottom, left:right].numpy()
        assert (levels.ravel() == words >> np.uint64(56)).all()
        left, top, right, bottom = behind.operands[slot, 1, :4].astype(int)
        values = run(behind, slot, noise(30, 20), torch.float32)[:, top:bottom, left:right].numpy().ravel()
        expected = normals(int(behind.key[slot, 1]), 0, (len(values) + 1) // 2).ravel()[: len(values)]
        assert np.abs(values - expected).max() < 1e-4


def test_random_boxes_are_uniform_before_normalize_and_normal_behind_it() -> None:
    image = np.zeros((3, 300, 300), dtype=np.uint8)
    whole = {"p": 1, "scale": (0.3, 0.3), "ratio": (1, 1), "value": "random"}
    program = program_of([RandomErasing(**whole)], 1, width=300, height=300)
    left, top, right, bottom = program.operands[0, 0, :4].astype(int)
    levels = run(program, 0, image)[:, top:bottom, left:right]
    counts = torch.bincount(levels.reshape(-1).int(), minlength=256)
    expected = levels.numel() / 256
    assert ((counts - expected) ** 2 / expected).sum() < 350  # chi-squared of 255 degrees: 1 in 20,000
    program = program_of([Normalize(MEAN, STD), RandomErasing(**whole)], 1, width=300, height=300)
    values = run(program, 0, image, torch.float32)[:, top:bottom, left:right].double()
    assert abs(values.mean()) < 0.02
    assert values.std() == pytest.approx(1, abs=0.02)
    assert ((values**4).mean() / values.var() ** 2) == pytest.approx(3, abs=0.1)
    assert len(torch.unique(values)) > 0.99 * values.numel()


# Types and layouts


def expected_floats(image: np.ndarray, dtype: torch.dtype, mean: Any = None, std: Any = None) -> torch.Tensor:
    tensor = functional.to_dtype(torch.from_numpy(image), torch.float32, scale=True)
    return (tensor if mean is None else functional.normalize(tensor, list(mean), list(std))).to(dtype)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_floats_match_torch_to_the_bit(dtype: torch.dtype, last: bool) -> None:
    image = noise(33, 17)
    assert torch.equal(run(program_of([], 1), 0, image, dtype, last), expected_floats(image, dtype))
    assert torch.equal(
        run(program_of([], 1), 0, image, dtype), functional.to_dtype(torch.from_numpy(image), dtype, scale=True)
    )
    ours = run(program_of([Normalize(MEAN, STD)], 1), 0, image, dtype, last)
    assert torch.equal(ours, expected_floats(image, dtype, MEAN, STD))


moderate = st.floats(-100, 100)
tiny_to_huge = st.floats(1e-7, 1e5)


@pytest.mark.filterwarnings("ignore:Normalize has mean")
@examples(100)
@given(st.tuples(moderate, moderate, moderate), st.tuples(tiny_to_huge, tiny_to_huge, tiny_to_huge))
def test_normalized_values_match_torch_for_all_levels(mean: tuple, std: tuple) -> None:
    image = np.tile(np.arange(256, dtype=np.uint8), (3, 1, 1))
    program = program_of([Normalize(mean, std)], 1)
    for dtype in DTYPES:  # with infinities and subnormal numbers
        assert torch.equal(run(program, 0, image, dtype), expected_floats(image, dtype, mean, std))


TO_FLOATS = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]


@pytest.mark.parametrize("make", [list, np.array, torch.tensor, lambda values: np.array(values, np.float32)])
def test_normalize_takes_lists_arrays_and_tensors_of_torchvision_too(make: Any) -> None:
    image = noise(33, 17)
    wanted = expected_floats(image, torch.float32, MEAN, STD)
    plan, _ = plan_transforms([*TO_FLOATS, v2.Normalize(make(MEAN), make(STD))])
    for step in (Normalize(make(MEAN), make(STD)), plan.groups[0].color[-1]):
        assert torch.allclose(run(program_of([step], 1), 0, image, torch.float32), wanted, atol=1e-6)
    program, wanted = program_of([Normalize(make([0.5]), make([0.25]))], 1), (image / 255 - 0.5) / 0.25
    assert np.allclose(run(program, 0, image, torch.float32), wanted, atol=1e-6)


def test_means_of_levels_up_to_255_are_warned_of_with_what_to_give() -> None:
    levels = [(123.675, 116.28, 103.53), (58.395, 57.12, 57.375)]
    with pytest.warns(UserWarning, match=r"give mean \(0\.485, 0\.456, 0\.406\) and std \(0\.229, 0\.224, 0\.225\)"):
        Normalize(*levels)
    with pytest.warns(UserWarning, match=r"mean \(0, 0, 0\) and std \(255, 255, 255\), .* std \(1, 1, 1\)"):
        Normalize(0, 255)
    with pytest.warns(UserWarning, match="from 0 to 255"):
        plan_transforms([*TO_FLOATS, v2.Normalize(*levels)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Normalize((0.5, 1, 0), 1)
        Normalize((0, 1, -50), (1e-7, 1e5, 3e-6))  # no levels


@pytest.mark.parametrize("dtype", [torch.uint8, *DTYPES])
def test_channels_last_holds_the_same_values(dtype: torch.dtype) -> None:
    steps: list = [ColorJitter(0.4, 0.4, 0.4, 0.1), RandomErasing(1, value="random")]
    if dtype != torch.uint8:
        steps += [Normalize(MEAN, STD), RandomErasing(1, value="random"), RandomErasing(1, value=(0.5, -1, 1e-6))]
    program = program_of(steps, 5, width=31, height=22)
    for slot in range(5):
        image = noise(22, 31, slot)
        assert torch.equal(run(program, slot, image, dtype), run(program, slot, image, dtype, last=True))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_box_behind_normalize_has_the_value_in_normalized_units(dtype: torch.dtype) -> None:
    program = program_of([Normalize(MEAN, STD), RandomErasing(1, value=(0.1, -2.0, 300.3))], 4)
    image = noise(30, 20)
    for slot in range(4):
        left, top, right, bottom = program.operands[slot, 1, :4].astype(int)
        expected = expected_floats(image, dtype, MEAN, STD)
        expected[:, top:bottom, left:right] = torch.tensor([0.1, -2.0, 300.3])[:, None, None].to(dtype)
        assert torch.equal(run(program, slot, image, dtype), expected)


def test_half_types_round_random_values_as_torch_does() -> None:
    steps = [Normalize(MEAN, STD), RandomErasing(1, value="random")]
    program = program_of(steps, 1, width=100, height=100)
    image = noise(100, 100)
    single = run(program, 0, image, torch.float32)
    for dtype in (torch.float16, torch.bfloat16):
        assert torch.equal(run(program, 0, image, dtype), single.to(dtype))


def test_the_image_may_be_the_output_itself() -> None:
    image = noise(30, 20)
    program = program_of([ColorJitter(0.4, 0.4, 0.4, 0.1)], 1)
    expected = run(program, 0, image)
    run_color(program, 0, image, image, OutputDtype.UINT8)
    assert (image == expected.numpy()).all()


# Programs


def test_an_empty_list_changes_nothing() -> None:
    image = noise(9, 7)
    program = program_of([], 3)
    assert program.empty
    assert (run(program, 2, image).numpy() == image).all()
    strided = np.asfortranarray(image)
    run_color(program, 0, strided, strided, OutputDtype.UINT8)
    assert (strided == image).all()
    assert len(program_of([ColorJitter(0.1)], 0).opcode) == 0


def test_steps_that_change_nothing_are_left_out() -> None:
    steps = [ColorJitter(), ColorJitter((1, 1), (1, 1), (1, 1), (0, 0)), RandomGrayscale(0), RandomPosterize(8, 1)]
    assert program_of(steps, 5).empty
    assert not program_of([ColorJitter(0.1)], 5).empty
    code = program_of([RandomInvert(0.5), ColorJitter(0.1)], 50).opcode
    assert ((code == opcodes.SOLARIZE) | (code[:, :1] == opcodes.SCALE)).any(axis=1).all()


def test_an_image_does_not_depend_on_its_batch() -> None:
    steps = [*LISTS["simclr"], GaussianNoise(), RandomErasing(0.5, value="random"), Normalize(MEAN, STD)]
    sizes = np.array([[20 + k, 30 - k] for k in range(12)])
    ids = np.arange(12) * 7 + 3
    together = compose_color(steps, sizes, BatchRandom(5, 2, ids))
    for slot in range(12):
        alone = compose_color(steps, sizes[slot : slot + 1], BatchRandom(5, 2, ids[slot : slot + 1]))
        image = noise(sizes[slot][1], sizes[slot][0], slot)
        assert torch.equal(run(together, slot, image, torch.float32), run(alone, 0, image, torch.float32))


def test_another_epoch_or_seed_gives_other_parameters() -> None:
    steps, sizes = [ColorJitter(0.4), GaussianNoise()], np.tile([20, 30], (8, 1))
    programs = [
        compose_color(steps, sizes, BatchRandom(seed, epoch, np.arange(8))) for seed, epoch in [(0, 0), (0, 1), (1, 0)]
    ]
    for one, other in itertools.combinations(programs, 2):
        assert (one.operands[:, 0, 0] != other.operands[:, 0, 0]).all()
        assert (one.key[:, 1] != other.key[:, 1]).all()


def test_programs_of_different_lists_are_joined_in_the_given_order() -> None:
    lists: list = [[ColorJitter(0.4, 0.4, 0.4, 0.1), Normalize(MEAN, STD)], [], [RandomErasing(1), GaussianBlur(5)]]
    programs = [program_of(steps, 3, seed=k) for k, steps in enumerate(lists)]
    order = np.random.default_rng(0).permutation(9)
    joined = ColorProgram.concatenate(programs, order)
    image = noise(30, 20)
    for slot, number in enumerate(order.tolist()):
        single = run(programs[number // 3], number % 3, image, torch.float32)
        assert torch.equal(run(joined, slot, image, torch.float32), single)


def test_threads_give_the_same_pixels() -> None:
    program = program_of([*LISTS["simclr"], GaussianNoise()], 64, width=97, height=64)
    image = noise(64, 97)
    expected = [run(program, slot, image) for slot in range(64)]
    with ThreadPoolExecutor(4) as pool:
        assert all(map(torch.equal, expected, pool.map(lambda slot: run(program, slot, image), range(64))))


@pytest.mark.parametrize(
    ("image", "out", "finish"),
    [
        (np.zeros((3, 4, 5), np.float32), np.zeros((3, 4, 5), np.uint8), OutputDtype.UINT8),
        (np.zeros((4, 5), np.uint8), np.zeros((4, 5), np.uint8), OutputDtype.UINT8),
        (np.zeros((1, 4, 5), np.uint8), np.zeros((1, 4, 5), np.uint8), OutputDtype.UINT8),
        (np.zeros((3, 4, 10), np.uint8)[:, :, ::2], np.zeros((3, 4, 5), np.uint8), OutputDtype.UINT8),
        (np.zeros((3, 4, 5), np.uint8), np.zeros((3, 4, 5), np.float32), OutputDtype.UINT8),
        (np.zeros((3, 4, 5), np.uint8), np.zeros((3, 4, 5), np.uint8), OutputDtype.FLOAT32),
        (np.zeros((3, 4, 5), np.uint8), np.zeros((3, 4, 5), np.float16), OutputDtype.BFLOAT16),
        (np.zeros((3, 4, 5), np.uint8), np.zeros((3, 5, 4), np.float32), OutputDtype.FLOAT32),
        (np.zeros((3, 0, 5), np.uint8), np.zeros((3, 0, 5), np.float32), OutputDtype.FLOAT32),
    ],
)
def test_arrays_that_do_not_fit_are_wrong_usage(image: Any, out: Any, finish: OutputDtype) -> None:
    with pytest.raises(UsageError, match="give"):
        run_color(program_of([RandomInvert(1)], 1), 0, image, out, finish)


def test_a_box_beyond_the_image_is_cut_off() -> None:
    """A program may be made for one size and meet another: nothing is written outside."""
    program = program_of([RandomErasing(1, (0.9, 0.9), (1, 1), 255)], 4, width=100, height=100)
    for slot in range(4):
        image = np.zeros((3, 50, 60), np.uint8)
        left, top, right, bottom = program.operands[slot, 0, :4].astype(int)
        expected = image.copy()
        expected[:, top:bottom, left:right] = 255
        assert (run(program, slot, image).numpy() == expected).all()


# BatchRandom


@pytest.mark.parametrize(
    ("transform", "count"),
    [
        (ColorJitter(), 8),
        (ColorJitter(0.1, 0.1, 0.1, 0.1), 8),
        (RandomGrayscale(), 1),
        (RandomInvert(), 1),
        (RandomSolarize(128), 1),
        (RandomPosterize(4), 1),
        (GaussianNoise(), 1),
        (GaussianBlur(3), 1),
        (RandomErasing(), 24),
        (Normalize(MEAN, STD), 0),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_transform_uses_the_documented_number_of_random_numbers(transform: Any, count: int) -> None:
    words = f"{count} random number{'s' * (count != 1)}" if count else "no random numbers"
    assert f"Uses {words}." in " ".join(type(transform).__doc__.split())
    taken, fresh = BatchRandom(3, 1, [4, 5]), BatchRandom(3, 1, [4, 5])
    transform(np.array([[20, 30], [2, 1]]), taken)
    fresh.uniform(count)
    assert (taken.uniform(1) == fresh.uniform(1)).all()


def test_factors_are_uniform_in_their_ranges() -> None:
    program = program_of([ColorJitter(0.4, (0.2, 2), 1.5, 0.1)], 4000)
    bounds = {
        opcodes.SCALE: (0.6, 1.4),
        opcodes.CONTRAST: (0.2, 2.0),
        opcodes.SATURATION: (0.0, 2.5),
        opcodes.HUE: (-0.1, 0.1),
    }
    for code, (low, high) in bounds.items():
        found = np.sort(program.operands[:, :, 0][program.opcode == code])
        assert len(found) == 4000
        uniform = np.linspace(low, high, 4000)
        assert np.abs(found - uniform).max() < 0.03 * (high - low)


def test_the_order_of_a_jitter_is_uniform() -> None:
    orders = program_of([ColorJitter(0.4, 0.4, 0.4, 0.1)], 24_000).opcode[:, :4]
    assert (np.sort(orders, axis=1) == np.arange(1, 5)).all()
    counts = np.unique(orders, axis=0, return_counts=True)[1]
    assert len(counts) == 24
    assert ((counts - 1000) ** 2 / 1000).sum() < 58  # chi-squared of 23 degrees: 1 in 13,000


@pytest.mark.parametrize("make", [RandomGrayscale, RandomInvert, lambda p: RandomSolarize(9, p), RandomErasing])
def test_a_step_has_its_probability(make: Any) -> None:
    program = program_of([make(0.3)], 10_000, width=200, height=200)
    assert (program.opcode[:, 0] != opcodes.NORMALIZE).mean() == pytest.approx(0.3, abs=0.02)


def test_sigma_is_uniform_in_its_range() -> None:
    sigma = np.sort(program_of([GaussianBlur(5, (0.5, 2.5))], 4000).operands[:, 0, 2])
    assert np.abs(sigma - np.linspace(0.5, 2.5, 4000)).max() < 0.06


def test_boxes_have_areas_ratios_and_places_as_in_torchvision() -> None:
    count, width, height = 2000, 300, 200
    program = program_of([RandomErasing(1, (0.05, 0.4), (0.3, 3.3))], count, width=width, height=height)
    box = program.operands[:, 0, :4]
    assert (program.opcode[:, 0] == opcodes.ERASE).all()
    assert (box[:, :2] >= 0).all()
    assert (box[:, 2:] <= [width, height]).all()
    theirs = v2.RandomErasing(1, (0.05, 0.4), (0.3, 3.3))
    torch.manual_seed(0)
    drawn = [theirs.make_params([torch.empty(3, height, width)]) for _ in range(count)]
    expected = np.array([[p["j"], p["i"], p["j"] + p["w"], p["i"] + p["h"]] for p in drawn], dtype=float)
    for measure in (
        lambda b: (b[:, 2] - b[:, 0]) * (b[:, 3] - b[:, 1]),
        lambda b: np.log((b[:, 3] - b[:, 1]) / (b[:, 2] - b[:, 0])),
        lambda b: b[:, 0],
        lambda b: b[:, 3],
    ):
        ours, others = np.sort(measure(box)), np.sort(measure(expected))
        # The two-sample statistic of Kolmogorov and Smirnov: 1 in 10,000 beyond 2.23 · sqrt(2 / count).
        grid = np.concatenate([ours, others])
        gap = np.searchsorted(ours, grid, "right") - np.searchsorted(others, grid, "right")
        assert np.abs(gap).max() / count < 2.23 * math.sqrt(2 / count)


def test_an_image_too_small_for_any_box_is_left_alone() -> None:
    assert program_of([RandomErasing(1)], 100, width=1, height=1).empty


# Wrong usage


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([Normalize(MEAN, STD), ColorJitter(0.1)], "ColorJitter follows Normalize"),
        ([Normalize(MEAN, STD), RandomErasing(), GaussianBlur(3)], "put it before Normalize"),
        ([Normalize(MEAN, STD), Normalize(MEAN, STD)], "keep one"),
        ([RandomErasing(value=-1)], "after Normalize"),
        ([RandomErasing(value=(0, 0, 256)), Normalize(MEAN, STD)], "after Normalize"),
    ],
)
def test_an_impossible_order_says_how_to_reorder(steps: list, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        check_color(steps)


def test_erasing_may_stand_on_either_side_of_normalize() -> None:
    check_color([RandomErasing(value=255), Normalize(MEAN, STD), RandomErasing(value=-1), RandomErasing()])


@pytest.mark.parametrize(
    "make",
    [
        lambda t: t.ColorJitter(brightness=-0.1),
        lambda t: t.ColorJitter(contrast=(2, 1)),
        lambda t: t.ColorJitter(saturation=(-1, 1)),
        lambda t: t.ColorJitter(saturation=(1, 2, 3)),
        lambda t: t.ColorJitter(brightness="much"),
        lambda t: t.ColorJitter(hue=0.6),
        lambda t: t.ColorJitter(hue=(-0.6, 0)),
        lambda t: t.ColorJitter(hue=-0.1),
        lambda t: t.RandomGrayscale(1.5),
        lambda t: t.RandomInvert(-0.1),
        lambda t: t.GaussianBlur(4),
        lambda t: t.GaussianBlur(0),
        lambda t: t.GaussianBlur((3, 5, 7)),
        lambda t: t.GaussianBlur(3, 0),
        lambda t: t.GaussianBlur(3, (2, 1)),
        lambda t: t.GaussianBlur(3, "wide"),
        lambda t: t.RandomErasing(2),
        lambda t: t.RandomErasing(scale=(-0.1, 0.5)),
        lambda t: t.RandomErasing(scale=(0.1, 1.5)),
        lambda t: t.RandomErasing(scale=0.5),
        lambda t: t.RandomErasing(ratio=1),
        lambda t: t.RandomErasing(value="noise"),
        lambda t: t.RandomErasing(value=None),
    ],
)
def test_arguments_that_torchvision_refuses_are_wrong_usage(make: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        make(v2)
    with pytest.raises(UsageError):
        make(_Transforms)


class _Transforms:
    """Ours, by torchvision's names."""

    ColorJitter, RandomGrayscale, RandomInvert = ColorJitter, RandomGrayscale, RandomInvert
    GaussianBlur, RandomErasing = GaussianBlur, RandomErasing


@pytest.mark.parametrize(
    "make",
    [
        lambda: GaussianBlur(2001),
        lambda: GaussianNoise(sigma=-1),
        lambda: GaussianNoise(mean=math.nan),
        lambda: Normalize((0, 0), (1, 1)),
        lambda: Normalize(MEAN, (1, 0, 1)),
        lambda: Normalize(MEAN, (1, 1e-60, 1)),
        lambda: Normalize(MEAN, "abc"),
        lambda: RandomErasing(value=(1, 2)),
        lambda: RandomErasing(value=math.inf),
        lambda: RandomErasing(scale=(0.4, 0.3)),
        lambda: RandomErasing(ratio=(0, 1)),
        lambda: RandomPosterize(9),
        lambda: RandomPosterize(2.5),
        lambda: RandomSolarize(256),
        lambda: RandomSolarize("half"),
        lambda: OutputDtype.from_dtype(torch.float64),
    ],
)
def test_arguments_that_cannot_work_are_wrong_usage(make: Any) -> None:
    with pytest.raises(UsageError):
        make()
