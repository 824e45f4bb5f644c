"""Resizes and zooms of detection: torchvision's sizes and places for the same random numbers."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from grids import slow_except
from hypothesis import given
from hypothesis import strategies as st
from torchvision import tv_tensors
from torchvision.transforms import v2

import picstore
from picstore.arrays import F64
from picstore.errors import UsageError
from picstore.train.transforms.batch_random import BatchRandom
from picstore.train.transforms.geometry import Geometry
from picstore.train.transforms.transform_lists import Transform, compose, output_size

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
def test_jittered_scales_match_torchvision(height, width, seed):
    u = BatchRandom(seed, 0, [0]).uniform(1)[0]
    size = theirs(v2.ScaleJitter((300, 200), (0.4, 1.7)), height, width, Numbers(*u))["size"]
    made = ours(picstore.ScaleJitter((300, 200), (0.4, 1.7)), height, width, seed)
    assert made.size[0, ::-1].tolist() == [max(side, 1) for side in size]


@given(sides, sides, st.integers(0, 1000), st.sampled_from([None, 400]))
def test_shortest_sizes_match_torchvision(height, width, seed, longest):
    u = BatchRandom(seed, 0, [0]).uniform(1)[0]
    sizes = [200, 224, 333]
    size = theirs(v2.RandomShortestSize(sizes, longest), height, width, Numbers(*u))["size"]
    made = ours(picstore.RandomShortestSize(sizes, longest), height, width, seed)
    assert made.size[0, ::-1].tolist() == [max(side, 1) for side in size]


@given(sides, sides, st.integers(0, 1000))
def test_random_sizes_match_torchvision(height, width, seed):
    u = BatchRandom(seed, 0, [0]).uniform(1)[0]
    (shorter,) = theirs(v2.RandomResize(20, 90), height, width, Numbers(*u))["size"]
    expected = v2.functional.resize(torch.zeros(1, height, width, dtype=torch.uint8), [shorter], antialias=True)
    assert tuple(ours(picstore.RandomResize(20, 90), height, width, seed).size[0, ::-1]) == expected.shape[1:]


@given(sides, sides, st.integers(0, 1000))
def test_an_image_lies_on_its_canvas_as_in_torchvision(height, width, seed):
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


WIDTH, HEIGHT, COUNT = 90, 60, 600
BOXES = np.array([[10.0, 10, 40, 50], [50, 20, 80, 40], [5, 45, 15, 55]])


def drawn(transform: Any, boxes: F64 | None = None) -> Geometry:
    repeated = None if boxes is None else np.tile(boxes, (COUNT, 1, 1))
    images = Geometry.identity([WIDTH] * COUNT, [HEIGHT] * COUNT, repeated)
    result: Geometry = transform(images, BatchRandom(0, 0, np.arange(COUNT)))
    return result


def test_a_crop_of_random_size_lies_in_the_image() -> None:
    geometry = drawn(picstore.RandomSizeCrop(30, 70))
    assert geometry.size.min(axis=0).tolist() == [30, 30] and geometry.size.max(axis=0).tolist() == [70, HEIGHT]
    assert (geometry.box[:, :2] >= 0).all() and (geometry.box[:, :2] + geometry.box[:, 2:] <= [WIDTH, HEIGHT]).all()
    small = picstore.RandomSizeCrop(200, 300)
    assert (drawn(small).size == [WIDTH, HEIGHT]).all()  # no image is large enough, so it stays


def their_crops(transform: Callable[[Any, Any], Any], boxes: F64) -> tuple[np.ndarray, np.ndarray]:
    """Sizes of crops, and how many boxes remain of each."""
    torch.manual_seed(0)
    image = torch.zeros(3, HEIGHT, WIDTH, dtype=torch.uint8)
    given = tv_tensors.BoundingBoxes(torch.tensor(boxes), format="XYXY", canvas_size=(HEIGHT, WIDTH))
    sizes, counts = [], []
    for _ in range(COUNT):
        cropped, rest = transform(image, given)
        sizes.append(cropped.shape[:0:-1])
        counts.append(int((rest[:, 2:] > rest[:, :2]).all(dim=1).sum()))
    return np.array(sizes), np.array(counts)


@pytest.mark.slow
@pytest.mark.parametrize("options", slow_except([[0.3]], [None, [0.3], [0.7, 1.0]], mark=pytest.mark.nightly), ids=str)
def test_crops_around_objects_are_distributed_as_in_torchvision(options: Any) -> None:
    from scipy import stats  # 1 s of each test process, if imported above

    geometry = drawn(picstore.RandomIoUCrop(sampler_options=options), BOXES)
    sizes, counts = their_crops(v2.RandomIoUCrop(sampler_options=options), BOXES)
    for a, b in zip(geometry.size.T, sizes.T, strict=True):
        assert stats.ks_2samp(a, b).pvalue > 1e-3
    assert geometry.kept is not None
    kept = geometry.kept.sum(axis=1)
    assert kept.min() >= 1 and stats.ks_2samp(kept, counts).pvalue > 1e-3


def test_a_crop_around_objects_holds_the_centers_of_those_that_it_keeps() -> None:
    flipped = drawn(picstore.RandomHorizontalFlip(0.5), BOXES)
    geometry = picstore.RandomIoUCrop(sampler_options=[0.5])(flipped, BatchRandom(1, 0, np.arange(COUNT)))
    boxes, kept = geometry.objects_on_canvas()
    centers = (boxes[:, :, :2] + boxes[:, :, 2:]) / 2
    inside = ((centers > 0) & (centers < geometry.size[:, None])).all(axis=2)
    cropped = (geometry.size != [WIDTH, HEIGHT]).any(axis=1)
    assert cropped.mean() > 0.9 and np.array_equal(kept[cropped], inside[cropped])
    overlap = np.minimum(boxes[:, :, 2:], geometry.size[:, None]) - np.maximum(boxes[:, :, :2], 0)
    shared = np.maximum(overlap, 0).prod(axis=2)
    union = geometry.size.prod(axis=1)[:, None] + (boxes[:, :, 2:] - boxes[:, :, :2]).prod(axis=2) - shared
    assert (np.where(kept, shared / union, 0).max(axis=1)[cropped] >= 0.5).all()


def test_an_image_without_objects_is_left_as_it_is() -> None:
    assert (drawn(picstore.RandomIoUCrop(), np.empty((0, 4))).size == [WIDTH, HEIGHT]).all()


def test_crops_around_objects_do_not_depend_on_the_rest_of_the_batch() -> None:
    transform = picstore.RandomIoUCrop()
    whole = drawn(transform, BOXES)
    images = Geometry.identity([WIDTH] * 3, [HEIGHT] * 3, np.tile(BOXES, (3, 1, 1)))
    some = transform(images, BatchRandom(0, 0, [7, 70, 300]))
    assert np.array_equal(some.frame, whole.frame[[7, 70, 300]]) and np.array_equal(some.size, whole.size[[7, 70, 300]])


@pytest.mark.slow
def test_an_image_of_a_crowd_takes_memory_for_itself_alone() -> None:
    crowd = np.full((64, 8000, 4), np.nan)
    crowd[:, : len(BOXES)] = BOXES
    left, top = np.random.default_rng(0).uniform(0, 50, (2, 8000))
    crowd[7] = np.stack([left, top, left + 5, top + 5], axis=1)
    images = Geometry.identity([WIDTH] * 64, [HEIGHT] * 64, crowd)
    tracemalloc.start()
    try:
        geometry = picstore.RandomIoUCrop()(images, BatchRandom(0, 0, np.arange(64)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 200e6  # 1.8 GB for all at once
    assert np.array_equal(geometry.frame[:7], drawn(picstore.RandomIoUCrop(), BOXES).frame[:7])


def test_a_loader_drops_objects_whose_center_was_cropped_away(tmp_path: Path) -> None:
    with picstore.Writer(tmp_path / "boxes") as writer:
        for _ in range(32):
            pixels = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
            writer.add(pixels, label=0, extra={"boxes": BOXES.tolist(), "box_labels": [0, 1, 2]})
    options: dict[str, Any] = {"batch_size": 32, "threads": 2, "isolate": False}
    steps = [picstore.RandomIoUCrop(sampler_options=[0.3]), picstore.Resize((40, 40))]
    batch = next(iter(picstore.Loader(tmp_path / "boxes", transform=steps, targets=["boxes"], **options)))
    counts = [len(target["labels"]) for target in batch.targets]
    assert min(counts) >= 1 and min(counts) < 3
    with pytest.raises(UsageError, match='targets=\\["boxes"\\]'):
        picstore.Loader(tmp_path / "boxes", transform=steps, **options)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: picstore.RandomSizeCrop(50, 40), "the lesser first"),
        (lambda: picstore.RandomIoUCrop(min_scale=0.0), "0 < min"),
        (lambda: picstore.RandomIoUCrop(max_scale=1.5), "at most 1"),
        (lambda: picstore.RandomIoUCrop(sampler_options=[]), "at least one"),
        (lambda: picstore.RandomIoUCrop(trials=0), "1 to 1,000"),
    ],
)
def test_arguments_of_such_crops_that_make_no_sense_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()
