"""Resizes and zooms of detection: torchvision's sizes and places for the same random numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision.transforms import v2

import picstore
from picstore.errors import UsageError
from picstore.train.transforms.batch_random import BatchRandom
from picstore.train.transforms.geometry import Geometry, Transform, compose, output_size

sides = st.integers(1, 900)


class Numbers:
    """Gives torch's functions the random numbers of a record."""

    def __init__(self, *numbers: float) -> None:
        self.left = list(numbers)

    def rand(self, count: int) -> torch.Tensor:
        taken, self.left = self.left[:count], self.left[count:]
        return torch.tensor(taken, dtype=torch.float64)

    def randint(self, *bounds: object) -> torch.Tensor:
        limits = [bound for bound in bounds if isinstance(bound, int)]
        low, high = limits if len(limits) == 2 else (0, limits[0])
        return torch.tensor(low + int(self.left.pop(0) * (high - low)))


def ours(transform: Transform, height: int, width: int, seed: int) -> Geometry:
    return transform(Geometry.identity([width], [height]), BatchRandom(seed, 0, [0]))


def theirs(transform: v2.Transform, height: int, width: int, numbers: Numbers) -> dict:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "rand", numbers.rand)
        patch.setattr(torch, "randint", numbers.randint)
        return transform.make_params([torch.zeros(3, height, width)])


@given(sides, sides, st.integers(0, 1000))
def test_jittered_scales_are_torchvisions(height, width, seed):
    u = BatchRandom(seed, 0, [0]).uniform(1)[0]
    size = theirs(v2.ScaleJitter((300, 200), (0.4, 1.7)), height, width, Numbers(*u))["size"]
    made = ours(picstore.ScaleJitter((300, 200), (0.4, 1.7)), height, width, seed)
    assert made.size[0, ::-1].tolist() == [max(side, 1) for side in size]


@given(sides, sides, st.integers(0, 1000), st.sampled_from([None, 400]))
def test_shortest_sizes_are_torchvisions(height, width, seed, longest):
    u = BatchRandom(seed, 0, [0]).uniform(1)[0]
    sizes = [200, 224, 333]
    size = theirs(v2.RandomShortestSize(sizes, longest), height, width, Numbers(*u))["size"]
    made = ours(picstore.RandomShortestSize(sizes, longest), height, width, seed)
    assert made.size[0, ::-1].tolist() == [max(side, 1) for side in size]


@given(sides, sides, st.integers(0, 1000))
def test_random_sizes_are_torchvisions(height, width, seed):
    u = BatchRandom(seed, 0, [0]).uniform(1)[0]
    (shorter,) = theirs(v2.RandomResize(20, 90), height, width, Numbers(*u))["size"]
    expected = v2.functional.resize(torch.zeros(1, height, width, dtype=torch.uint8), [shorter], antialias=True)
    assert tuple(ours(picstore.RandomResize(20, 90), height, width, seed).size[0, ::-1]) == expected.shape[1:]


@given(sides, sides, st.integers(0, 1000))
def test_an_image_lies_on_its_canvas_where_torchvisions_does(height, width, seed):
    u = BatchRandom(seed, 0, [0]).uniform(4)[0]
    made = ours(picstore.RandomZoomOut(7, (1.2, 3.0)), height, width, seed)
    if u[0] >= 0.5:
        assert made.size.tolist() == [[width, height]]
        return
    left, top, right, bottom = theirs(v2.RandomZoomOut(7, (1.2, 3.0)), height, width, Numbers(*u[1:]))["padding"]
    assert made.size.tolist() == [[left + width + right, top + height + bottom]]
    assert made.box[0, :2].tolist() == [-left, -top]
    assert (made.fill == 7).all()


def test_images_of_a_loader_have_own_scales_and_one_size_only_after_a_crop():
    canvas = Geometry.identity([100] * 500, [80] * 500)
    for transform, count in (
        (picstore.ScaleJitter((90, 90)), 50),
        (picstore.RandomShortestSize([40, 50, 60]), 3),
        (picstore.RandomResize(40, 60), 20),
        (picstore.RandomZoomOut(p=1.0), 50),
    ):
        made = compose([transform], canvas, BatchRandom(0, 0, np.arange(500)))
        assert len(np.unique(made.size, axis=0)) >= count
        assert output_size([picstore.Resize((9, 9)), transform]) is None
        assert output_size([transform, picstore.CenterCrop(32)]) == (32, 32)


@pytest.mark.parametrize(
    "make",
    [
        lambda: picstore.ScaleJitter((0, 5)),
        lambda: picstore.ScaleJitter((5, 5), (0, 1)),
        lambda: picstore.ScaleJitter((5, 5), (2, 1)),
        lambda: picstore.RandomShortestSize([]),
        lambda: picstore.RandomShortestSize([5, "6"]),
        lambda: picstore.RandomShortestSize(5, 0),
        lambda: picstore.RandomResize(9, 9),
        lambda: picstore.RandomResize(0, 9),
        lambda: picstore.RandomResize(3, 9, "cubic"),
        lambda: picstore.RandomZoomOut(side_range=(0.5, 2)),
        lambda: picstore.RandomZoomOut(p=2),
        lambda: picstore.RandomZoomOut(300),
    ],
)
def test_arguments_that_cannot_be_right_for_detection_are_refused(make):
    with pytest.raises(UsageError):
        make()
