"""Color steps that read other pixels than their own, on the GPU: the CPU's to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from colored import noise, smooth
from grids import slow_except

from picstore.train.cpu.run_color import run_color
from picstore.train.transforms.auto_augment import AugMix, AutoAugment, RandAugment, TrivialAugmentWide
from picstore.train.transforms.batch_random import BatchRandom
from picstore.train.transforms.blur_noise_erasing import GaussianBlur, RandomErasing
from picstore.train.transforms.color import (
    ColorJitter,
    Normalize,
    RandomAdjustSharpness,
    RandomAutocontrast,
    RandomChannelPermutation,
    RandomEqualize,
    RandomPhotometricDistort,
)
from picstore.train.transforms.color_program import ColorProgram, compose_color
from picstore.train.transforms.distort import ElasticTransform, RandomPerspective
from picstore.train.transforms.geometry import Geometry
from picstore.train.transforms.opcodes import OutputDtype
from picstore.train.transforms.timm_augment import TimmAutoAugment

pytest.importorskip("triton")

from picstore.train.cuda.augment import augment
from picstore.train.cuda.triton_jit import INTERPRETED

NORMALIZE = Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@pytest.fixture(
    scope="module",
    params=[pytest.param("cpu", marks=pytest.mark.interpreted), pytest.param("cuda", marks=pytest.mark.cuda)],
)
def device(request: pytest.FixtureRequest) -> str:
    """Where the kernels run: on the CPU, interpreted, or on a GPU."""
    if (request.param == "cpu") != INTERPRETED:
        pytest.skip("Triton runs kernels on the CPU where TRITON_INTERPRET=1, on the GPU elsewhere")
    return request.param


def made_on_both(
    transforms: list, images: list[np.ndarray], device: str, dtype: str = "uint8", seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """The batch of images of one size, colored on the device and on the CPU."""
    height, width = images[0].shape[1:]
    geometry = Geometry.identity([width] * len(images), [height] * len(images))
    program = compose_color(transforms, geometry.size, BatchRandom(seed, 0, np.arange(len(images))))
    tensors = [torch.from_numpy(image).to(device) for image in images]
    ours = augment(tensors, np.zeros((len(images), 2)), geometry, program, dtype=dtype)
    assert isinstance(ours, torch.Tensor)
    return ours.cpu(), colored(images, program, dtype)


def colored(images: list[np.ndarray], program: ColorProgram, dtype: str) -> torch.Tensor:
    out = torch.empty((len(images), *images[0].shape), dtype=getattr(torch, dtype))
    raw = out.view(torch.int16) if out.element_size() == 2 else out
    for slot, image in enumerate(images):
        run_color(program, slot, image.copy(), raw[slot].numpy(), OutputDtype.from_dtype(out.dtype))
    return out


LISTS: dict[str, list[Any]] = {
    "equalize": [RandomEqualize(0.7)],
    "autocontrast": [RandomAutocontrast(1)],
    "sharpness": [RandomAdjustSharpness(1.9, 0.7), RandomAdjustSharpness(0, 1)],
    "permutation": [RandomChannelPermutation()],
    "distort": [RandomPhotometricDistort()],
    "perspective": [RandomPerspective(0.5, 1)],
    "perspective with fill": [RandomPerspective(0.8, 0.7, fill=(200, 90, 10)), RandomEqualize(1)],
    "nearest": [RandomPerspective(0.6, 1, "nearest", fill=77)],
    "without fill": [RandomPerspective(0.6, 1, fill=None)],
    "bicubic": [RandomPerspective(0.6, 1, "bicubic", fill=(1, 2, 3))],
    "autoaugment": [AutoAugment(), AutoAugment("svhn"), RandomErasing(1, value="random")],
    "randaugment": [RandAugment(3), ColorJitter(0.4, 0.4, 0.4, 0.1)],
    "bilinear randaugment": [RandAugment(2, 20, interpolation="bilinear", fill=128)],
    "wide": [TrivialAugmentWide()],
    "mix": [AugMix()],
    "mix with contrast and erasing": [ColorJitter(contrast=0.5), AugMix(all_ops=True), RandomErasing(1)],
    "timm": [TimmAutoAugment("rand-m9-mstd0.5-inc1-n3-p1")],
    "timm mix": [TimmAutoAugment("augmix-m5-w2")],
}


@pytest.mark.parametrize("name", slow_except(["equalize"], LISTS, when=INTERPRETED))
def test_steps_are_the_cpus_to_the_bit(name: str, device: str) -> None:
    images = [(noise if k % 2 else smooth)(13, 37, k) for k in range(4)]
    ours, expected = made_on_both(LISTS[name], images, device)
    assert torch.equal(ours, expected)


@pytest.mark.parametrize("dtype", slow_except([], ["float16", "float32", "bfloat16"], when=INTERPRETED))
def test_steps_are_the_cpus_before_normalization(dtype: str, device: str) -> None:
    images = [smooth(17, 23, k) for k in range(4)]
    transforms = [RandAugment(2), NORMALIZE, RandomErasing(0.5, value="random")]
    ours, expected = made_on_both(transforms, images, device, dtype)
    assert torch.equal(ours, expected)


@pytest.mark.slow
@pytest.mark.parametrize(("height", "width"), slow_except([(2, 3)], [(2, 3), (1, 1), (9, 33)], when=INTERPRETED))
def test_small_canvases_are_the_cpus(height: int, width: int, device: str) -> None:
    images = [noise(height, width, k) for k in range(3)]
    transforms = [RandomEqualize(1), RandomAdjustSharpness(3, 1), RandomAutocontrast(0.5), RandAugment(2, 25)]
    ours, expected = made_on_both(transforms, images, device)
    assert torch.equal(ours, expected)


@pytest.mark.slow
@pytest.mark.parametrize("sigma", [1.0, (2.0, 0.4), 0.0])
def test_an_elastic_canvas_is_the_cpus(sigma: Any, device: str) -> None:
    images = [smooth(9, 33, k) for k in range(2)]
    ours, expected = made_on_both([ElasticTransform((20.0, 9.0), sigma), GaussianBlur(3)], images, device)
    assert torch.equal(ours, expected)
