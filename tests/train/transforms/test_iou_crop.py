"""Crops around objects, and crops of random size."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from grids import slow_except
from torchvision import tv_tensors
from torchvision.transforms import v2

import picstore
from picstore.arrays import F64
from picstore.errors import UsageError
from picstore.train.transforms.batch_random import BatchRandom
from picstore.train.transforms.geometry import Geometry

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


@pytest.mark.parametrize("options", slow_except([], [None, [0.3], [0.7, 1.0]]), ids=str)
def test_crops_around_objects_are_distributed_as_torchvisions(options: Any) -> None:
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
        (lambda: picstore.RandomIoUCrop(trials=0), "1 to 1000"),
    ],
)
def test_arguments_of_such_crops_that_make_no_sense_are_refused(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()
