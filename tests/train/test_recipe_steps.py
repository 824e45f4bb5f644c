"""Loaders whose transforms follow color: the same batches in any process, and refusals when a loader is made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import picstore
from picstore.errors import UsageError
from picstore.train.transforms.from_torchvision import transform_from_config

Make = Callable[..., Path]
CROP = picstore.RandomResizedCrop(40)
NORMALIZE = picstore.Normalize((0.5, 0.4, 0.3), (0.2, 0.2, 0.2))
STEPS: list[Any] = [
    picstore.RandAugment(),
    picstore.TrivialAugmentWide(),
    picstore.AutoAugment(),
    picstore.AugMix(),
    picstore.TimmAutoAugment("rand-m9-mstd0.5-inc1"),
    picstore.RandomPerspective(),
    picstore.ElasticTransform(10.0, 2.0),
    picstore.RandomEqualize(),
    picstore.RandomAutocontrast(),
    picstore.RandomAdjustSharpness(2),
    picstore.RandomPhotometricDistort(),
    picstore.RandomChannelPermutation(),
]


def batches_of(path: Path, transform: Any, **options: Any) -> list[torch.Tensor]:
    chosen = {"batch_size": 8, "threads": 2, "isolate": False, **options}
    loader = picstore.Loader(path, transform=transform, **chosen)
    with_images = [batch.images for batch in loader]
    loader.close()
    return with_images


@pytest.mark.slow
def test_batches_do_not_depend_on_threads_or_processes(make_dataset: Make) -> None:
    path, transform = make_dataset(), [CROP, *STEPS, NORMALIZE]
    expected = batches_of(path, transform, threads=1)
    for options in ({"threads": 3}, {"isolate": True}):
        for ours, theirs in zip(batches_of(path, transform, **options), expected, strict=True):
            assert torch.equal(ours, theirs)


def test_each_step_changes_some_image(make_dataset: Make) -> None:
    path = make_dataset()
    plain = batches_of(path, [CROP])
    for step in STEPS:
        changed = batches_of(path, [CROP, step])
        assert any(not torch.equal(one, other) for one, other in zip(changed, plain, strict=True)), step


def test_weak_and_strong_views_share_their_decoding(make_dataset: Make) -> None:
    views = picstore.Views(weak=(1, [CROP]), strong=(2, [CROP, picstore.RandAugment(3), NORMALIZE]))
    batch = next(iter(picstore.Loader(make_dataset(), batch_size=8, transform=views, isolate=False)))
    weak, strong = batch.views["weak"], batch.views["strong"]
    assert weak.shape == (1, 8, 3, 40, 40) and strong.shape == (2, 8, 3, 40, 40)
    assert not torch.equal(strong[0], strong[1])


@pytest.mark.parametrize("step", STEPS[:7], ids=lambda step: type(step).__name__)
def test_a_loader_of_boxes_refuses_steps_that_move_pixels_when_it_is_made(step: Any, make_dataset: Make) -> None:
    with pytest.raises(UsageError, match=f"{type(step).__name__} moves"):
        picstore.Loader(make_dataset(), batch_size=8, transform=[CROP, step], targets=["boxes"])


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("RandAugment", {"magnitude": 5}),
        ("TrivialAugmentWide", {}),
        ("AutoAugment", {"policy": "cifar10"}),
        ("AugMix", {"severity": 2}),
        ("TimmAutoAugment", {"config": "rand-m9-mstd0.5-inc1"}),
        ("RandomPerspective", {"p": 1}),
        ("ElasticTransform", {}),
        ("Grayscale", {}),
        ("RandomAdjustSharpness", {"sharpness_factor": 2}),
        ("RandomAutocontrast", {}),
        ("RandomChannelPermutation", {}),
        ("RandomEqualize", {}),
        ("RandomPhotometricDistort", {}),
    ],
)
def test_a_configuration_names_it(name: str, arguments: dict[str, Any]) -> None:
    assert type(transform_from_config({"name": name, **arguments})) is getattr(picstore, name)
