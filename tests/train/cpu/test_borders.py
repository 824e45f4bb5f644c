"""Padding by pixels of the image: torchvision's, whatever follows, and from no more of the image than it reaches."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision.transforms.v2 import functional

import picstore
from picstore.errors import UsageError
from picstore.train.cpu.render import render, render_mask
from picstore.train.transforms.batch_random import BatchRandom
from picstore.train.transforms.geometry import Geometry
from picstore.train.transforms.padding_and_edges import BORDERS, border_indices
from picstore.train.transforms.transform_lists import compose
from picstore.train.transforms.transform_plan import plan_transforms

MODES = ["edge", "reflect", "symmetric"]
modes = pytest.mark.parametrize("mode", MODES)
sides = st.integers(1, 40)


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def tensor(image: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(image).permute(2, 0, 1)


def geometry_of(image: np.ndarray, transforms: list, seed: int = 0) -> Geometry:
    (group,) = plan_transforms(transforms)[0].groups
    return compose(group.geometry, Geometry.identity([image.shape[1]], [image.shape[0]]), BatchRandom(seed, 0, [0]))


def shown(image: np.ndarray, geometry: Geometry, origin: tuple[int, int] = (0, 0)) -> torch.Tensor:
    width, height = geometry.size[0]
    out = np.full((3, height, width), 99, dtype=np.uint8)
    render(image, geometry, 0, origin=origin, factor=1, out=out)
    return torch.from_numpy(out)


@given(st.integers(1, 20), st.integers(-50, 20), st.integers(1, 60), st.sampled_from(MODES))
def test_the_indices_of_a_border_are_those_of_numpys_padding(extent, low, count, mode):
    before, after = max(-low, 0), max(low + count - extent, 0)
    padded = np.pad(np.arange(extent), (before, after), mode)
    expected = padded[low + before : low + before + count]
    assert border_indices(low, low + count, extent, BORDERS[mode]).tolist() == expected.tolist()


@modes
def test_padding_is_torchvisions(mode):
    image = noise(30, 40)
    padding = [7, 3, 11, 20]
    expected = functional.pad(tensor(image), padding, padding_mode=mode)
    assert torch.equal(shown(image, geometry_of(image, [picstore.Pad(padding, padding_mode=mode)])), expected)
    flipped = geometry_of(image, [picstore.RandomHorizontalFlip(1.0), picstore.Pad(padding, padding_mode=mode)])
    assert torch.equal(shown(image, flipped), functional.pad(tensor(image).flip(2), padding, padding_mode=mode))


@modes
def test_a_random_crop_of_a_padded_image_is_torchvisions(mode):
    image = noise(32, 32)
    padded = functional.pad(tensor(image), 4, padding_mode=mode)
    for seed in range(20):
        x, y = np.floor(BatchRandom(seed, 0, [0]).uniform(2)[0] * 9).astype(int).tolist()
        made = shown(image, geometry_of(image, [picstore.RandomCrop(32, 4, padding_mode=mode)], seed))
        assert torch.equal(made, padded[:, y : y + 32, x : x + 32])


@modes
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_a_padded_image_is_resized_as_torchvisions(mode, interpolation):
    image = noise(30, 40)
    padded = functional.pad(tensor(image), [9, 5, 3, 12], padding_mode=mode).float()
    for size in ((20, 31), (90, 70)):
        steps = [picstore.Pad([9, 5, 3, 12], padding_mode=mode), picstore.Resize(size, interpolation)]
        expected = functional.resize(padded, list(size), interpolation).clamp(0, 255).round()
        assert (shown(image, geometry_of(image, steps)) - expected).abs().max() <= 1


@modes
def test_a_padded_image_and_its_mask_are_turned_as_torchvisions(mode):
    image = noise(30, 40)
    geometry = geometry_of(image, [picstore.Pad(8, padding_mode=mode), picstore.RandomRotation((33, 33))])
    expected = functional.rotate(functional.pad(tensor(image), 8, padding_mode=mode), 33)
    assert ((shown(image, geometry) != expected).any(0)).float().mean() < 0.005
    mask = np.ascontiguousarray(image[:, :, 0])
    out = np.empty(geometry.size[0, ::-1], np.uint8)
    render_mask(mask, geometry, 0, out=out)
    assert (torch.from_numpy(out) != expected[0]).float().mean() < 0.005


@modes
def test_padding_that_follows_is_of_the_fill(mode):
    image = noise(20, 20)
    steps = [picstore.Pad(4, padding_mode=mode, fill=9), picstore.Pad(3, 9), picstore.CenterCrop(40)]
    expected = functional.pad(functional.pad(tensor(image), 4, padding_mode=mode), 6, fill=[9.0] * 3)
    with_fill = shown(image, geometry_of(image, steps))
    assert torch.equal(with_fill, expected)


@given(sides, sides, st.sampled_from(MODES), st.integers(0, 60), st.integers(0, 1000))
def test_only_what_is_reached_is_needed(height, width, mode, padding, seed):
    image = noise(height, width)
    steps = [
        picstore.RandomCrop(12, padding, pad_if_needed=True, padding_mode=mode),
        picstore.RandomRotation(40, "bilinear"),
    ]
    for transforms in (steps[:1], steps, [*steps, picstore.Resize(5)]):
        geometry = geometry_of(image, transforms, seed)
        left, top, right, bottom = geometry.reach[0].tolist()
        assert 0 <= left < right <= width and 0 <= top < bottom <= height
        part = np.ascontiguousarray(image[top:bottom, left:right])
        assert torch.equal(shown(part, geometry, (left, top)), shown(image, geometry))


@pytest.mark.parametrize(
    "transforms",
    [
        [picstore.CenterCrop(20), picstore.Pad(3, padding_mode="edge")],
        [picstore.Resize(20), picstore.RandomCrop(20, 4, padding_mode="reflect")],
        [picstore.Pad(3, padding_mode="edge"), picstore.Pad(3, padding_mode="edge")],
    ],
)
def test_a_border_of_another_canvas_than_the_stored_image_is_refused(transforms):
    with pytest.raises(UsageError, match="put it first"):
        plan_transforms(transforms)


def test_a_border_inside_of_a_container_is_refused():
    with pytest.raises(UsageError, match="only 'constant'"):
        picstore.RandomApply([picstore.Pad(3, padding_mode="edge")])
