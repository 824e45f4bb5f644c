"""What each transform draws for 60 images of any size, in digests: a changed number of any formula changes one.

That the numbers are right is what the other files test, by torchvision and timm. These stay as they are, so that a run
resumes with the same images. Running this file writes the digests anew, after a change that is meant to change them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import picstore
from picstore.train.transforms.batch_random import BatchRandom
from picstore.train.transforms.color_program import ColorProgram, compose_color
from picstore.train.transforms.geometry import Geometry
from picstore.train.transforms.transform_lists import compose
from picstore.train.transforms.transform_plan import plan_transforms

GOLDEN = Path(__file__).parents[2] / "fixtures" / "golden" / "draws.json"
COUNT = 60
_DERIVED = ("matrix", "upright", "box", "flip", "scale", "shrink", "output_edges", "shows_edges", "reach", "window")

GEOMETRY = (
    "Resize(30)", "Resize((40, 70), 'bicubic', antialias=False)", "Resize(50, max_size=80)", "CenterCrop((33, 90))",
    "Pad((1, 2, 3, 4), fill=(9, 8, 7))", "Pad(7, padding_mode='reflect')", "RandomCrop(7, padding=3)",
    "RandomCrop((40, 90), pad_if_needed=True, padding_mode='edge')", "RandomResizedCrop(64)",
    "RandomResizedCrop((32, 48), (0.2, 0.5), (0.5, 3.0), interpolation='lanczos')", "RandomHorizontalFlip(0.3)",
    "RandomVerticalFlip(0.8)", "RandomRotation(30)", "RandomRotation((20, 200), expand=True, center=(3, 4), fill=5)",
    "RandomAffine(15, (0.1, 0.3), (0.5, 2.0), (-5, 9, -7, 20), interpolation='bilinear')", "RandomAffine(0, shear=8)",
    "RandomIoUCrop()", "RandomIoUCrop(0.2, 0.7, 0.8, 1.5, [0.3, 0.9], 7)", "ScaleJitter((90, 70), (0.3, 1.7))",
    "RandomShortestSize([20, 41, 70], 77)", "RandomResize(20, 60)", "RandomZoomOut((1, 2, 3), (1.5, 3.0), 0.7)",
    "RandomSizeCrop(20, 60)", "ResizeToCover((40, 60))", "ResizeToSequence(8, 50)", "ResizeToSequence(7, 90, 1.3)",
    "RandomApply([RandomCrop(20, pad_if_needed=True), RandomRotation(9)], 0.6)",
    "RandomChoice([RandomHorizontalFlip(), RandomAffine(20), RandomResizedCrop(30)], [3, 1, 2])",
    "RandomOrder([RandomRotation(40), RandomResizedCrop(41), RandomVerticalFlip(), Pad(3)])",
)  # fmt: skip
COLOR = (
    "ColorJitter(0.4, 0.3, 0.2, 0.1)", "ColorJitter((0.2, 0.9), 0, (1.1, 2), (-0.3, 0.1))", "RandomGrayscale(0.4)",
    "RandomInvert()", "RandomSolarize(99.5, 0.6)", "RandomPosterize(3, 0.6)", "GaussianNoise(0.1, 0.2)",
    "GaussianNoise(clip=False)", "GaussianBlur((5, 9), (0.3, 3.0))", "GaussianBlur(3)", "RandomErasing()",
    "RandomErasing(0.8, (0.1, 0.5), (0.2, 4.0), value=(1, 2, 3))", "RandomErasing(0.9, value='random')",
    "Normalize((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))", "Grayscale(3)", "RandomEqualize(0.3)", "RandomAutocontrast(0.7)",
    "RandomAdjustSharpness(1.7, 0.6)", "RandomChannelPermutation()", "RandomPhotometricDistort()",
    "RandomPhotometricDistort((0.1, 0.5), (1.1, 1.5), (0.9, 1.0), (-0.2, 0.4), 0.8)", "RandomPerspective()",
    "RandomPerspective(0.3, 0.9, 'nearest', (1, 2, 3))", "ElasticTransform()",
    "ElasticTransform((10.0, 40.0), (2.0, 4.0), 'nearest', 7)", "AutoAugment()", "AutoAugment('svhn')",
    "AutoAugment('cifar10', 'bilinear', 9)", "RandAugment()",
    "RandAugment(4, 17, 40, 'bilinear', (1, 2, 3))", "TrivialAugmentWide()",
    "TrivialAugmentWide(11, 'bilinear')", "AugMix()", "AugMix(7, 2, 3, 0.5, False, 'nearest', 3)",
    "AugMix(alpha=3.7)", "GaussianNoise()",
    *(f"TimmAutoAugment({each!r})" for each in (
        "rand-m9-mstd0.5-inc1", "rand-m7-n3-p0.4-mmax14-mstd101", "rand-n4-tweights", "original", "originalr",
        "v0", "v0r-mstd0.7", "3a", "augmix-m5-w4-d2", "augmix-m3-w2-b1-mstd0.4",
    )),
    "TimmAutoAugment('rand-m9', translate_const=17, translate_pct=0.2, interpolation='bilinear', img_mean=(1, 2, 3))",
    "RandomApply([RandomInvert(1.0), ColorJitter(0.4)], 0.4)", "RandomChoice([RandomInvert(), RandomEqualize()])",
    "RandomOrder([RandomInvert(), RandomSolarize(7), ColorJitter(0.3, hue=0.2)])",
)  # fmt: skip
BATCHES = (
    "MixUp(0.2, 9)", "MixUp(0.9, 9, p=0.5, label_smoothing=0.1)", "CutMix(1.0, 9)",
    "CutMix(0.3, 9, label_smoothing=0.2)",
    "RandomChoice([MixUp(1.3, 9), CutMix(1.0, 9)])", "CutMix(2.0, 9, p=0.5)",
)  # fmt: skip


def made(text: str) -> Any:
    return eval(text, {name: getattr(picstore, name) for name in dir(picstore)})  # noqa: S307 - of the lists above


def sizes() -> np.ndarray:
    drawn = np.random.default_rng(1).integers(1, 130, (COUNT, 2))
    drawn[:4] = [[1, 1], [1, 90], [120, 1], [64, 64]]
    return drawn


def objects(each: np.ndarray) -> np.ndarray:
    """Three boxes in each image, of which some images have fewer."""
    corners = np.sort(np.random.default_rng(2).random((COUNT, 3, 2, 2)), axis=2) * each[:, None, None]
    corners[::7, 2] = np.nan
    return corners.reshape(COUNT, 3, 4)


def geometry(text: str) -> Iterator[Any]:
    """Fields and properties, of the transform and of a crop and a turn of what it makes."""
    (group,) = plan_transforms([made(text)], targets=("boxes",))[0].groups
    each = sizes()
    boxes = objects(each) if "IoU" in text else None
    drawn = compose(group.geometry, Geometry.identity(*each.T, boxes), BatchRandom(3, 4, np.arange(COUNT)))
    turned = drawn.crop([[2, -3]] * COUNT, [[9, 11]] * COUNT).mirror([[True, False]] * COUNT).clip_to_canvas()
    turned = turned.warp(np.tile([[0.6, 0.8, -3], [-0.8, 0.6, 7]], (COUNT, 1, 1)), np.full((COUNT, 2), 20))
    for found in (drawn, turned):
        yield from (getattr(found, each.name) for each in fields(found))
        yield from (getattr(found, name) for name in _DERIVED)
        yield from (found.decode_factors(gap) for gap in (None, 1.0, 2.5))
        yield found.points_to_output(5, [[0.0, 1.0], [30.0, 40.0]])
        yield from found.objects_on_canvas()


def color(text: str) -> Iterator[Any]:
    (group,) = plan_transforms([made(text)])[0].groups
    program: ColorProgram = compose_color(group.color, sizes(), BatchRandom(5, 6, np.arange(COUNT)))
    yield from (program.opcode, program.operands, program.key)


def batch(text: str) -> Iterator[Any]:
    mixing = plan_transforms([made(text)])[1][0].for_classes(0)
    images, labels = torch.linspace(0, 1, 6 * 3 * 9 * 13).reshape(6, 3, 9, 13), torch.tensor([0, 3, 8, 1, -1, 3])
    for epoch in range(12):
        yield from map(torch.Tensor.numpy, mixing(images.clone(), labels, BatchRandom(7, epoch, [1])))


def digest(arrays: Iterator[Any]) -> str:
    """Of numbers with 5 digits, as the last bits of sine and exponential depend on the machine."""
    hashed = hashlib.sha256()
    for each in arrays:
        array = np.asarray(0 if each is None else each)
        array = np.round(array.astype(np.float64), 5) + 0.0 if array.dtype.kind == "f" else array.astype(np.int64)
        hashed.update(str(array.shape).encode() + np.ascontiguousarray(array).tobytes())
    return hashed.hexdigest()[:16]


CASES: list[tuple[Callable[[str], Iterator[Any]], str]] = [
    *((geometry, text) for text in GEOMETRY), *((color, text) for text in COLOR), *((batch, text) for text in BATCHES)
]  # fmt: skip


@pytest.mark.parametrize(("draw", "text"), CASES, ids=[text for _, text in CASES])
def test_a_transform_draws_what_it_has_always_drawn(draw: Callable[[str], Iterator[Any]], text: str) -> None:
    assert digest(draw(text)) == json.loads(GOLDEN.read_text())[text]


if __name__ == "__main__":
    written = {text: digest(draw(text)) for draw, text in CASES}
    GOLDEN.write_text(json.dumps(written, indent=0) + "\n")
