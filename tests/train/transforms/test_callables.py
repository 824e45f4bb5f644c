"""Callables in a list of transforms: PerImage for one image, others for the batch, and what they must return."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import picstore
from picstore.errors import UsageError

Make = Callable[..., Path]
CROP = [picstore.RandomResizedCrop(24), picstore.RandomHorizontalFlip()]
UNEQUAL = [picstore.RandomHorizontalFlip()]


def batches_of(path: Path, transform: Any, **options: Any) -> list[picstore.Batch]:
    given = {"batch_size": 8, "isolate": False, "threads": 1, **options}
    with contextlib.closing(picstore.Loader(path, transform=transform, **given)) as loader:
        return list(loader)


def darker(image: torch.Tensor) -> torch.Tensor:
    """One image, by a factor drawn for it."""
    assert image.ndim == 3
    return (image * torch.rand(())).to(torch.uint8)


def test_per_image_draws_for_each_image_and_the_same_after_a_resume(make_dataset: Make) -> None:
    path = make_dataset(32)
    plain, wrapped = batches_of(path, CROP), batches_of(path, [*CROP, picstore.PerImage(darker)])
    again = batches_of(path, picstore.PerImage(darker))
    assert isinstance(again[0].images, list)
    factors = set()
    for one, other in zip(plain, wrapped, strict=True):
        assert isinstance(other.images, torch.Tensor) and other.images.shape == one.images.shape
        factors.update(torch.stack([a.sum() / b.sum() for a, b in zip(other.images, one.images, strict=True)]).tolist())
    assert len(factors) == 32
    loader = picstore.Loader(path, batch_size=8, transform=[*CROP, picstore.PerImage(darker)], isolate=False)
    with contextlib.closing(loader):
        loader.load_state_dict(loader.state_at(0, 2))
        assert torch.equal(next(iter(loader)).images, wrapped[2].images)


def test_per_image_of_a_group_of_views_takes_each_view(make_dataset: Make) -> None:
    views = picstore.Views(a=(2, [*CROP, picstore.PerImage(darker)]))
    path = make_dataset(8)
    assert batches_of(path, views)[0].views["a"].shape == (2, 8, 3, 24, 24)
    sizes = iter(range(1, 20))
    uneven = picstore.Views(a=(2, [*CROP, picstore.PerImage(lambda image: image[:, : next(sizes)])]))
    with pytest.raises(UsageError, match=r"PerImage\(<lambda>\) returned no tensor; views need images of one shape"):
        batches_of(path, uneven)


@pytest.mark.parametrize(
    ("transform", "returned"),
    [
        (lambda images: images[:5], r"a Tensor of shape \(5, 3, 24, 24\)"),
        (lambda images: images[0], r"a Tensor of shape \(3, 24, 24\)"),
        (lambda images: list(images), "a list of 8"),
        (lambda images: tuple(images), "a tuple of 8"),
        (lambda images: {"images": images, "first": images[0]}, r"a Tensor of shape \(3, 24, 24\)"),
        (torch.Tensor.sum, r"a Tensor of shape \(\)"),
        (lambda images: None, "a NoneType"),
    ],
)
def test_a_callable_that_returns_no_batch_is_an_error(make_dataset: Make, transform: Any, returned: str) -> None:
    with pytest.raises(UsageError, match=rf"returned {returned} .*\(8, 3, 24, 24\).* write picstore\.PerImage\("):
        batches_of(make_dataset(8), [*CROP, transform])


def test_a_callable_takes_and_returns_images_of_several_sizes_as_a_list(make_dataset: Make) -> None:
    path = make_dataset(8)
    (batch,) = batches_of(path, [*UNEQUAL, lambda images: [image[:, :9] for image in images]])
    assert {image.shape[1] for image in batch.images} == {9}
    (batch,) = batches_of(path, [*UNEQUAL, lambda images: torch.stack([image[:, :9, :9] for image in images])])
    assert batch.images.shape == (8, 3, 9, 9)
    (batch,) = batches_of(path, [*CROP, lambda images: {"pixels": images}, lambda named: {**named, "more": 1}])
    assert batch.images["more"] == 1
    with pytest.raises(UsageError, match="a list of 7 for the images of a batch, a list of 8"):
        batches_of(path, [*UNEQUAL, lambda images: images[1:]])


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (picstore.Resize(3), "Resize is picstore's; put it into the list"),
        (picstore.Grayscale(), "Grayscale is picstore's"),
        (picstore.CutMix(), "CutMix is picstore's"),
        (picstore.RandomApply([picstore.Grayscale()]), "RandomApply is picstore's"),
        (picstore.PerImage(darker), "PerImage"),
        (3, "function is 3; give a function"),
    ],
)
def test_per_image_refuses_what_it_is_not_for(function: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        picstore.PerImage(function)


def test_per_image_refuses_what_is_no_tensor(make_dataset: Make) -> None:
    with pytest.raises(UsageError, match=r"PerImage\(<lambda>\) returned a ndarray of shape .*; return a tensor"):
        batches_of(make_dataset(8), [*CROP, picstore.PerImage(lambda image: image.numpy())])


def test_callables_in_several_threads_draw_as_one_after_the_other(make_dataset: Make) -> None:
    path = make_dataset(32)

    def noisy(images: torch.Tensor) -> torch.Tensor:
        out = images.float()
        for _ in range(20):
            out = out + torch.rand(out.shape)
        return out

    def run(seed: int) -> list[torch.Tensor]:
        return [batch.images for batch in batches_of(path, [*CROP, noisy], seed=seed)]

    torch.manual_seed(1)
    expected = [run(seed) for seed in range(3)]
    following = torch.rand(1)
    torch.manual_seed(1)
    with ThreadPoolExecutor(3) as threads:
        found = list(threads.map(run, range(3)))
    assert torch.equal(torch.rand(1), following)
    for some, others in zip(found, expected, strict=True):
        assert all(torch.equal(one, other) for one, other in zip(some, others, strict=True)) and len(some) == 4
