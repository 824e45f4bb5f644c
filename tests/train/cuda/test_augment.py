"""The GPU's kernels against the CPU's: the same pixels, to the bit.

Without a GPU the kernels run in Triton's interpreter, so pictures are small there; the same tests take larger ones on
a GPU. Pictures are of noise, which shows any weight that differs.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
import torch
from grids import slow_except
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from picstore.errors import MissingDependency, UsageError
from picstore.train.batching.parameters import TransformParams
from picstore.train.cpu.render import render
from picstore.train.cpu.run_color import run_color
from picstore.train.transforms.affine import RandomAffine, RandomRotation
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
from picstore.train.transforms.color_program import ColorProgram, compose_color
from picstore.train.transforms.crops import (
    CenterCrop,
    Pad,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
)
from picstore.train.transforms.geometry import Geometry
from picstore.train.transforms.opcodes import OutputDtype
from picstore.train.transforms.resizing import Resize
from picstore.train.transforms.transform_lists import compose

pytest.importorskip("triton")

from picstore.train.cuda.augment import augment
from picstore.train.cuda.triton_jit import INTERPRETED

NORMALIZE = Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
DTYPES = ["uint8", "float16", "bfloat16", "float32"]
few = settings(max_examples=4 if INTERPRETED else 40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def interpreted(default: Iterable[Any], cases: Iterable[Any]) -> list[Any]:
    """Cases of which a default run takes a part in the interpreter, which needs seconds for each, and all on a GPU."""
    return slow_except(default, cases, when=INTERPRETED)


@pytest.fixture(
    scope="module",
    params=[pytest.param("cpu", marks=pytest.mark.interpreted), pytest.param("cuda", marks=pytest.mark.cuda)],
)
def device(request: pytest.FixtureRequest) -> str:
    """Where the kernels run: on the CPU, interpreted, or on a GPU."""
    if (request.param == "cpu") != INTERPRETED:
        pytest.skip("Triton runs kernels on the CPU where TRITON_INTERPRET=1, on the GPU elsewhere")
    return request.param


def scaled(device: str) -> int:
    """How many times larger pictures are on a GPU."""
    return 1 if device == "cpu" else 5


def noise(count: int, height: int, width: int, seed: int = 0) -> list[np.ndarray]:
    """uint8 (h, w, 3), the last ones smaller than the first."""
    random = np.random.default_rng(seed)
    shapes = [(max(height - k, 1), max(width - 2 * k, 1), 3) for k in range(count)]
    return [random.integers(0, 256, shape, dtype=np.uint8) for shape in shapes]


def planes(image: np.ndarray, device: str) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1))).to(device)


def geometry_of(images: list[np.ndarray], transforms: list, seed: int = 0) -> Geometry:
    sizes = np.array([image.shape[:2] for image in images])
    return compose(
        transforms, Geometry.identity(sizes[:, 1], sizes[:, 0]), BatchRandom(seed, 0, np.arange(len(images)))
    )


def program_of(geometry: Geometry, transforms: list, seed: int = 0) -> ColorProgram:
    return compose_color(transforms, geometry.size, BatchRandom(seed, 1, np.arange(len(geometry.size))))


def nothing(geometry: Geometry) -> ColorProgram:
    return program_of(geometry, [])


def made(
    images: list[np.ndarray], geometry: Geometry, device: str, program: ColorProgram | None = None, **options: Any
) -> torch.Tensor:
    """The batch that the kernels make, on the CPU."""
    count = len(images)
    tensors = [planes(image, device) for image in images]
    program = program or nothing(geometry)
    batch = augment(tensors, options.pop("origins", np.zeros((count, 2))), geometry, program, **options)
    assert isinstance(batch, torch.Tensor)
    return batch.cpu()


def rendered(images: list[np.ndarray], geometry: Geometry, origins: Any = None) -> torch.Tensor:
    """The batch that the CPU makes, before its color."""
    width, height = geometry.size[0]
    out = np.empty((len(images), 3, height, width), dtype=np.uint8)
    for slot, image in enumerate(images):
        origin = (0, 0) if origins is None else tuple(map(int, origins[slot]))
        render(image, geometry, slot, origin=origin, factor=1, out=out[slot])
    return torch.from_numpy(out)


def colored(batch: torch.Tensor, program: ColorProgram, dtype: str = "uint8") -> torch.Tensor:
    """What the CPU's kernels of color make of a batch of bytes."""
    out = torch.empty(batch.shape, dtype=getattr(torch, dtype))
    raw = out.view(torch.int16) if out.element_size() == 2 else out
    for slot, image in enumerate(batch):
        run_color(program, slot, image.numpy().copy(), raw[slot].numpy(), OutputDtype.from_dtype(out.dtype))
    return out


# Geometry

LISTS: dict[str, list] = {
    "crop": [RandomResizedCrop((8, 35), (0.1, 0.4)), RandomHorizontalFlip()],
    "crop, plain": [RandomResizedCrop((12, 40), antialias=False), RandomVerticalFlip()],
    "smaller": [Resize((7, 11))],
    "larger": [Resize((50, 33))],
    "bicubic": [RandomResizedCrop((8, 35), (0.1, 0.9), interpolation="bicubic")],
    "bicubic, plain": [RandomResizedCrop((30, 35), interpolation="bicubic", antialias=False)],
    "lanczos": [Resize((20, 75), "lanczos")],
    "box": [Resize((20, 75), "box")],
    "nearest": [Resize((20, 75), "nearest"), RandomHorizontalFlip()],
    "of any filter": [RandomResizedCrop((12, 40), interpolation=["nearest", "bilinear", "bicubic", "lanczos", "box"])],
    "rotated, nearest": [CenterCrop((20, 33)), RandomRotation(50, fill=(200, 10, 77))],
    "rotated, bicubic": [CenterCrop((20, 33)), RandomRotation(50, "bicubic", fill=7)],
    "rotated, bicubic, plain": [RandomAffine(50, interpolation="bicubic"), Resize((33, 50), antialias=False)],
    "rotated, smaller, lanczos": [RandomRotation(50), Resize((13, 20), "lanczos")],
    "rotated, smaller, box": [RandomRotation(50), Resize((13, 20), "box")],
    "padded": [Pad((3, 11, 20, 7), (9, 130, 77)), RandomVerticalFlip(1.0), Resize((23, 35))],
    "reflected": [Pad((30, 11, 20, 70), padding_mode="reflect"), Resize((23, 35))],
    "repeated, rotated": [RandomCrop((50, 34), 19, padding_mode="edge"), RandomRotation(30), Resize((13, 20))],
    "padded crop": [RandomCrop((50, 34), 9, pad_if_needed=True, fill=200)],
    "rotated": [CenterCrop((20, 33)), RandomRotation(50, "bilinear", fill=(200, 10, 77))],
    "rotated, smaller": [RandomRotation(50, fill=80), Resize((13, 20))],
    "rotated, smaller, plain": [RandomRotation(50), Resize((13, 20), antialias=False)],
    "rotated, expanded": [RandomRotation(180, expand=True, fill=5), RandomResizedCrop((12, 33))],
    "affine": [RandomAffine(30, (0.2, 0.1), (0.5, 1.5), 20, "bilinear", fill=99), CenterCrop((17, 35))],
    "affine, padded": [RandomAffine(0, (0.3, 0.3)), Pad(5), RandomHorizontalFlip(), Resize((20, 31))],
}


@pytest.mark.parametrize(
    ("name", "count"),
    interpreted(
        [("crop", 2), ("rotated, smaller", 2)],
        [("crop", 2), ("rotated, smaller", 2), *((name, 1) for name in LISTS), ("of any filter", 4), ("affine", 4)],
    ),
)
def test_pixels_are_the_cpus(name: str, count: int, device: str) -> None:
    images = noise(count, 48 * scaled(device), 61 * scaled(device), seed=count)
    geometry = geometry_of(images, LISTS[name], seed=count)
    assert torch.equal(made(images, geometry, device), rendered(images, geometry))


def test_resampled_photographs_are_the_cpus(photographs: list[Path], device: str) -> None:
    images = [np.ascontiguousarray(simplejpeg.decode_jpeg(path.read_bytes())) for path in photographs[::250]]
    images = [np.repeat(image, 3 // image.shape[2], axis=2) for image in images]
    geometry = geometry_of(
        images, [RandomResizedCrop((8, 64) if device == "cpu" else 224, (0.01, 0.05)), RandomHorizontalFlip()]
    )
    assert torch.equal(made(images, geometry, device), rendered(images, geometry))


side = st.integers(1, 40)
filters = st.sampled_from(["nearest", "box", "bilinear", "bicubic", "lanczos"])
steps = st.lists(
    st.one_of(
        st.builds(lambda a, i: RandomRotation((a, a), i, fill=77), st.floats(-180, 180), filters),
        st.builds(
            lambda a, t, s, h: RandomAffine((a, a), t, (s, s), (-h, h, -h, h), fill=77),
            st.floats(-40, 40),
            st.tuples(st.floats(0, 0.3), st.floats(0, 0.3)),
            st.floats(0.3, 3),
            st.floats(0, 20),
        ),
        st.builds(lambda p: Pad(p, 77), st.tuples(*[st.integers(0, 12)] * 4)),
        st.builds(lambda h, w: RandomCrop((h, w), 20, True, 77), side, side),
        st.builds(Resize, side, filters),
        st.builds(lambda s, i, a: RandomResizedCrop(s, interpolation=i, antialias=a), side, filters, st.booleans()),
        st.sampled_from([RandomHorizontalFlip(), RandomVerticalFlip()]),
    ),
    max_size=3,
)


@few
@given(st.tuples(side, side), steps, st.tuples(side, side), st.booleans(), st.integers(0, 1000))
def test_any_list_gives_the_cpus_pixels(
    device: str, source: tuple, steps: list, size: tuple, antialias: bool, seed: int
) -> None:
    images = noise(2, *(side * scaled(device) for side in source), seed=seed)
    geometry = geometry_of(images, [Pad(0, 77), *steps, Resize(size, "nearest", antialias=antialias)], seed)
    assert torch.equal(made(images, geometry, device), rendered(images, geometry))


@few
@given(st.integers(0, 1000), st.booleans())
def test_cuts_lie_where_their_origins_say(device: str, seed: int, turned: bool) -> None:
    turns = [RandomRotation(40)] if turned else []
    whole = noise(1, 60, 80, seed)
    geometry = geometry_of(whole, [RandomResizedCrop((8, 24), (0.1, 0.5)), *turns], seed)
    low, high = geometry.reach[:, :2] // 8 * 8, geometry.reach[:, 2:]
    cuts = [
        np.ascontiguousarray(image[top:bottom, left:right])
        for image, (left, top), (right, bottom) in zip(whole, low, high, strict=True)
    ]
    ours = made(cuts, geometry, device, origins=low)
    assert torch.equal(ours, rendered(cuts, geometry, low))


MOVES: list[list] = [[CenterCrop(33)], [RandomCrop(30, 12), RandomHorizontalFlip()], [Pad(5), RandomVerticalFlip(1)]]


@pytest.mark.parametrize("transforms", interpreted(MOVES[1:2], MOVES))
def test_pixels_that_only_move_stay_as_they_are(transforms: list, device: str) -> None:
    images = noise(2, 40 * scaled(device), 50 * scaled(device))
    geometry = geometry_of(images, [*transforms, CenterCrop((15, 35))])
    assert torch.equal(made(images, geometry, device), rendered(images, geometry))


@pytest.mark.slow
def test_a_grey_image_becomes_three_equal_channels(device: str) -> None:
    grey = [np.repeat(image[:, :, :1], 3, axis=2) for image in noise(2, 20, 30)]
    for transforms in ([RandomResizedCrop(8)], [RandomRotation(30), Resize((8, 15))]):
        geometry = geometry_of(grey, transforms)
        tensors = [planes(image, device)[:1].contiguous() for image in grey]
        ours = augment(tensors, np.zeros((2, 2)), geometry, nothing(geometry)).cpu()
        assert torch.equal(ours, made(grey, geometry, device))


@pytest.mark.parametrize("level", interpreted([254], [0, 1, 254, 255]))
def test_an_image_of_the_color_of_its_padding_stays_even(level: int, device: str) -> None:
    images = [np.full((15, 45, 3), level, dtype=np.uint8)]
    for transforms in ([Pad(5, level), Resize((8, 31))], [RandomRotation(20, fill=level), Resize((14, 15))]):
        assert (made(images, geometry_of(images, transforms), device) == level).all()


@pytest.mark.slow
def test_no_map_clip_or_edge_makes_the_kernels_leave_the_images(device: str) -> None:
    random = np.random.default_rng(0)
    for number in range(16 if device == "cpu" else 200):
        height, width = random.integers(1, 60, 2)
        size = random.integers(1, (33, 9), (1, 2))
        frame = random.normal(0, 1, (1, 2, 3)) * 10.0 ** random.uniform(-3, 6 if number % 5 == 0 else 2.5)
        clip = np.sort(random.integers(-30, 90, (1, 2, 2)), axis=1).reshape(1, 4)
        if number % 2:
            clip = np.array([[0, 0, width, height]])
        edges = random.normal(0, 1, (1, random.integers(0, 3), 3)) * [1, 1, 30]
        fill = np.array([[9, 9, 9]], np.uint8)
        antialias = np.array([number % 3 > 0])
        interpolation = np.array([number % 5])
        geometry = Geometry(
            np.array([[width, height]]), frame, clip, size, edges, interpolation, antialias, fill, np.zeros(1, int)
        )
        assert (made([np.full((height, width, 3), 9, np.uint8)], geometry, device) == 9).all()


@pytest.mark.parametrize("last", interpreted([], [False, True]))
def test_outputs_of_different_sizes_come_as_a_list_of_what_each_is_alone(last: bool, device: str) -> None:
    images = [noise(1, (24 - 4 * k) * scaled(device), 40 * scaled(device), k)[0] for k in range(3)]
    geometry = geometry_of(images, [Resize(7 * scaled(device)), RandomHorizontalFlip()])
    program = program_of(geometry, [ColorJitter(contrast=0.4), GaussianBlur(3), NORMALIZE])
    tensors, zeros = [planes(image, device) for image in images], np.zeros((3, 2))
    options: dict[str, Any] = {"dtype": "float32", "channels_last": last}
    batch = augment(tensors, zeros, geometry, program, **options)
    assert isinstance(batch, list) and len({picture.shape for picture in batch}) == 3
    for slot, picture in enumerate(batch):
        one = np.array([slot])
        expected = made(
            [images[slot]],
            Geometry.concatenate([geometry], one),
            device,
            ColorProgram.concatenate([program], one),
            **options,
        )
        assert torch.equal(picture.cpu(), expected[0]) and picture.stride() == expected[0].stride()


# Color

EVERY = {
    "brightness": [ColorJitter(brightness=0.9)],
    "contrast": [ColorJitter(contrast=0.9)],
    "saturation": [ColorJitter(saturation=(0, 3))],
    "hue": [ColorJitter(hue=0.5)],
    "jitter": [ColorJitter(0.4, 0.4, 0.4, 0.1)],
    "grey": [RandomGrayscale(0.5)],
    "invert": [RandomInvert(0.5)],
    "solarize": [RandomSolarize(100.5, 1)],
    "posterize": [RandomPosterize(3, 1)],
    "noise": [GaussianNoise(0.05, 0.3)],
    "noise that wraps": [GaussianNoise(0.05, 0.3, clip=False)],
    "box": [RandomErasing(1, value=(200, 3.7, 0))],
    "random box": [RandomErasing(1, value="random")],
    "several": [RandomErasing(1, value="random"), ColorJitter(0.4, 0.4, 0.4, 0.1), RandomSolarize(90), GaussianNoise()],
    "contrast twice": [ColorJitter(contrast=0.5), RandomGrayscale(0.5), ColorJitter(contrast=(1.2, 1.8))],
}


@pytest.mark.parametrize("name", interpreted(["hue", "several"], EVERY))
def test_color_is_the_cpus_to_the_bit(name: str, device: str) -> None:
    images = noise(2, 25 * scaled(device), 47 * scaled(device), seed=3)
    geometry = geometry_of(images, [CenterCrop((5 * scaled(device), 37 * scaled(device)))])
    program = program_of(geometry, EVERY[name])
    assert torch.equal(made(images, geometry, device, program), colored(rendered(images, geometry), program))


@pytest.mark.parametrize("taps", interpreted([(1,)], [(1,), (9,), ((3, 9),), ((3, 23),), ((51, 5),)]))
def test_a_blur_is_the_cpus(taps: Any, device: str) -> None:
    images = noise(2, 25 * scaled(device), 47 * scaled(device), seed=3)
    geometry = geometry_of(images, [CenterCrop((8 * scaled(device), 37 * scaled(device)))])
    blur = GaussianBlur(taps, (0.1, 9.0))
    for transforms in ([blur], [RandomInvert(1), blur, RandomPosterize(2, 1)]):
        program = program_of(geometry, transforms)
        assert torch.equal(made(images, geometry, device, program), colored(rendered(images, geometry), program))


@pytest.mark.slow
def test_images_of_one_batch_may_need_different_phases(device: str) -> None:
    images = noise(7, 25, 50)
    geometry = geometry_of(images, [CenterCrop((9, 20))])
    lists: list[list] = [
        [],
        [ColorJitter(contrast=0.5)],
        [GaussianBlur(5)],
        [GaussianBlur(5), ColorJitter(contrast=0.5), RandomInvert(1)],
        [RandomInvert(1), ColorJitter(contrast=0.5), GaussianBlur(7), GaussianNoise(), ColorJitter(contrast=(2, 2))],
        [RandomGrayscale(1)],
        [ColorJitter(contrast=0.5), RandomErasing(1, value=(1, 2, 3))],
    ]
    sizes = geometry.size[:1]
    programs = [compose_color(steps, sizes, BatchRandom(0, k, [k])) for k, steps in enumerate(lists)]
    program = ColorProgram.concatenate(programs, np.arange(7))
    assert torch.equal(made(images, geometry, device, program), colored(rendered(images, geometry), program))


@pytest.mark.slow
@few
@given(st.permutations(list(chain(*EVERY.values()))), st.integers(0, 1000))
def test_any_list_of_colors_in_one_launch_is_its_steps_one_after_the_other(
    device: str, transforms: list, seed: int
) -> None:
    images = noise(1, 20, 41, seed)
    geometry = geometry_of(images, [CenterCrop((9 * scaled(device), 19 * scaled(device)))], seed)
    program = program_of(geometry, transforms[:4], seed)
    plain = made(images, geometry, device)
    assert torch.equal(made(images, geometry, device, program), colored(plain, program))


@pytest.mark.parametrize(("dtype", "last"), interpreted([("bfloat16", True)], product(DTYPES, [False, True])))
def test_types_and_layouts_hold_the_cpus_values_to_the_bit(dtype: str, last: bool, device: str) -> None:
    images = noise(2, 15, 47)
    geometry = geometry_of(images, [CenterCrop((8 * scaled(device), 33 * scaled(device)))])
    transforms: list = [ColorJitter(0.4, 0.4, 0.4, 0.1), RandomErasing(1, value="random")]
    if dtype != "uint8":
        transforms += [NORMALIZE, RandomErasing(1, value="random"), RandomErasing(1, value=(0.5, -1, 1e-6))]
    program = program_of(geometry, transforms)
    ours = made(images, geometry, device, program, dtype=dtype, channels_last=last)
    layout = torch.channels_last if last else torch.contiguous_format
    assert ours.dtype == getattr(torch, dtype) and ours.is_contiguous(memory_format=layout)
    assert torch.equal(ours, colored(made(images, geometry, device), program, dtype))


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")  # NumPy's, in the interpreter
@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_all_levels_are_normalized_as_by_the_cpu(dtype: str, device: str) -> None:
    images = [np.repeat(np.arange(256, dtype=np.uint8).reshape(8, 32, 1), 3, axis=2)]
    geometry = geometry_of(images, [CenterCrop((8, 32))])
    for transforms in ([], [NORMALIZE], [Normalize((0, 1, -50), (1e-7, 1e5, 3e-6))]):  # with infinite and tiny values
        program = program_of(geometry, transforms)
        ours = made(images, geometry, device, program, dtype=dtype)
        assert torch.equal(ours, colored(rendered(images, geometry), program, dtype))


# Arguments


@pytest.mark.parametrize("last", interpreted([True], [False, True]))
def test_batches_made_together_are_what_each_is_alone_in_its_own_memory(last: bool, device: str) -> None:
    """With programs of different lengths, a canvas step in one, and slanted images that are first minified."""
    steps: list[tuple[int, list[Any], list[Any]]] = [
        (2, [RandomResizedCrop((7, 9)), RandomHorizontalFlip()], [NORMALIZE]),
        (1, [CenterCrop(24), RandomRotation((20, 20)), Resize((7, 9))], [NORMALIZE]),
        (3, [Resize((7, 9))], [ColorJitter(contrast=0.4), GaussianBlur(3), NORMALIZE]),
    ]
    alone, given = [], []
    for seed, (count, geometric, color) in enumerate(steps):
        images = noise(count, 30, 40, seed)
        geometry = geometry_of(images, geometric, seed)
        program, tensors = program_of(geometry, color, seed), [planes(image, device) for image in images]
        options: dict[str, Any] = {"dtype": "bfloat16", "channels_last": last}
        alone.append(augment(tensors, np.zeros((count, 2)), geometry, program, **options))
        given.append((tensors, TransformParams(geometry, program)))
    params = TransformParams.concatenate([params for _, params in given])
    counts = [count for count, _, _ in steps]
    tensors = [tensor for some, _ in given for tensor in some]
    together = augment(tensors, np.zeros((6, 2)), params.geometry, params.program, counts=counts, **options)
    assert len(together) == 3 and len({batch.untyped_storage().data_ptr() for batch in together}) == 3
    for batch, expected in zip(together, alone, strict=True):
        assert batch.stride() == expected.stride() and torch.equal(batch, expected)


def test_rows_may_be_longer_than_their_pixels(device: str) -> None:
    image = noise(1, 12, 14)[0]
    padded = torch.full((3, 12, 16), 77, dtype=torch.uint8, device=device)
    padded[:, :, :14] = planes(image, device)
    geometry = geometry_of([image], [Pad(2), Resize((5, 6))])
    given = np.zeros((1, 2)), geometry, nothing(geometry)
    assert torch.equal(augment([padded[:, :, :14]], *given), augment([planes(image, device)], *given))  # type: ignore[arg-type]


def test_what_cannot_be_made_is_refused(device: str) -> None:
    images = noise(2, 20, 30)
    geometry = geometry_of(images, [CenterCrop(9)])
    tensors, zeros = [planes(image, device) for image in images], np.zeros((2, 2))

    def refused(text: str, *arguments: Any, **options: Any) -> None:
        given_ = [*arguments, *[tensors, zeros, geometry, nothing(geometry)][len(arguments) :]]
        with pytest.raises(UsageError, match=text):
            augment(*given_, **options)

    for wrong in (tensors[1][:2], tensors[1].float(), tensors[1][:, :, ::2], tensors[1][:, :0], tensors[1][0]):
        refused("give uint8 of shape", [tensors[0], wrong])
    refused("1 image, 2 geometries", tensors[:1])
    refused("there are 0 images", [])
    refused("origins have shape", tensors, np.zeros(2))
    refused("not possible", dtype="int8")
    refused("at most 16777216", tensors, zeros, replace(geometry, frame=geometry.frame * 1e9))


def test_images_elsewhere_than_the_kernels_are_refused() -> None:
    images = noise(1, 20, 30)
    geometry = geometry_of(images, [CenterCrop(9)])
    with pytest.raises(UsageError, match="images are on"):
        made(images, geometry, "meta" if INTERPRETED else "cpu")


# Triton


def test_without_triton_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("augment", "augment_kernels", "triton_jit"):
        monkeypatch.delitem(sys.modules, f"picstore.train.cuda.{name}")
    monkeypatch.setitem(sys.modules, "triton", None)  # as if it were not installed
    with pytest.raises(MissingDependency, match="pip install triton"):
        importlib.import_module("picstore.train.cuda.augment")


@pytest.mark.slow
def test_triton_is_imported_in_one_place() -> None:
    import picstore.train.cuda.triton_jit as triton_jit

    package = Path(triton_jit.__file__).parents[2]
    for path in package.rglob("*.py"):
        names = [
            name
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, (ast.Import, ast.ImportFrom))
            for name in ([node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
        ]
        uses = any(name and name.split(".")[0] == "triton" for name in names)
        assert uses == (path == Path(triton_jit.__file__)), path
