"""JPEG attachments as targets: the crop of a smaller image that belongs to the crop of its record."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
import torch
from torchvision import tv_tensors

import picstore
from picstore.jpeg.transcode import add_restart_markers
from picstore.train.transforms.batch_random import BatchRandom
from picstore.train.transforms.geometry import Geometry

WIDTH, HEIGHT, SCALE = 512, 384, 4


def gradient(width: int, height: int) -> np.ndarray[Any, Any]:
    """Red rises to the right and green downwards, by the share of the image."""
    x, y = (np.arange(width) + 0.5) / width * 255, (np.arange(height) + 0.5) / height * 255
    return np.stack([*np.broadcast_arrays(x[None], y[:, None]), np.full((height, width), 128.0)], 2).astype(np.uint8)


def encode(width: int, height: int) -> bytes:
    return simplejpeg.encode_jpeg(np.ascontiguousarray(gradient(width, height)), quality=100, colorsubsampling="444")


def pairs(tmp_path: Path, small: bytes, transform: list[Any], **options: Any) -> list[tuple[torch.Tensor, Any]]:
    with picstore.Writer(tmp_path / "set", attachments=["small"]) as writer:
        for _ in range(6):
            writer.add(encode(WIDTH, HEIGHT), attachments={"small": small})
    loader = picstore.Loader(
        tmp_path / "set", transform=transform, targets=["small"], batch_size=3, isolate=False, **options
    )
    with contextlib.closing(loader):
        return [
            (image, target["small"])
            for batch in loader
            for image, target in zip(batch.images, batch.targets, strict=True)
        ]


@pytest.mark.parametrize("marked", [False, True])
@pytest.mark.parametrize(
    "steps",
    [
        [picstore.RandomCrop((96, 128), multiple_of=SCALE)],
        [picstore.RandomCrop(64, multiple_of=SCALE), picstore.RandomHorizontalFlip(1), picstore.RandomVerticalFlip(1)],
        [picstore.RandomResizedCrop(64)],
        [picstore.RandomRotation(20), picstore.CenterCrop(128)],
    ],
)
def test_both_show_the_same_part_in_the_same_position(tmp_path: Path, steps: list[Any], marked: bool) -> None:
    small = encode(WIDTH // SCALE, HEIGHT // SCALE)
    for image, target in pairs(tmp_path, add_restart_markers(small) if marked else small, steps):
        assert isinstance(target, tv_tensors.Image) and target.dtype == torch.uint8
        height, width = image.shape[1:]
        assert target.shape == (3, height // SCALE, width // SCALE)
        reduced = image.float().reshape(3, height // SCALE, SCALE, width // SCALE, SCALE).mean((2, 4))
        inner = (slice(None), slice(1, -1), slice(1, -1))
        assert (reduced - target.float())[inner].abs().max() < 4


def test_an_aligned_crop_is_the_attachments_own_pixels(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (HEIGHT // SCALE, WIDTH // SCALE, 3), np.uint8)
    small = add_restart_markers(simplejpeg.encode_jpeg(noise, quality=90))
    whole = simplejpeg.decode_jpeg(small)
    for image, target in pairs(tmp_path, small, [picstore.RandomCrop(64, multiple_of=SCALE)]):
        left = round(float(image[0].float().mean()) / 255 * WIDTH) - 32
        top = round(float(image[1].float().mean()) / 255 * HEIGHT) - 32
        places = [
            (x, y)
            for x in range(left // SCALE - 2, left // SCALE + 3)
            for y in range(top // SCALE - 2, top // SCALE + 3)
        ]
        crops = [whole[max(y, 0) :, max(x, 0) :][:16, :16].transpose(2, 0, 1) for x, y in places]
        assert any(np.array_equal(crop, target.numpy()) for crop in crops)


def test_a_crop_may_start_at_multiples_only_and_reaches_the_last() -> None:
    geometry = Geometry.identity([100] * 200, [83] * 200)
    corners = picstore.RandomCrop(64, multiple_of=8)(geometry, BatchRandom(0, 0, np.arange(200))).box[:, :2]
    assert sorted(set(corners[:, 0])) == [0, 8, 16, 24, 32] and sorted(set(corners[:, 1])) == [0, 8, 16]
    with pytest.raises(picstore.UsageError, match="multiple_of is 0"):
        picstore.RandomCrop(64, multiple_of=0)


@pytest.mark.parametrize(
    ("size", "steps", "reason"),
    [
        ((WIDTH // 3, HEIGHT // 4), [picstore.RandomCrop(64)], "not a whole fraction"),
        ((WIDTH // 4, HEIGHT // 4), [picstore.RandomCrop(66)], "an output of 66 × 66 is not a multiple of that"),
    ],
)
def test_an_attachment_that_does_not_fit_is_damage_that_says_so(
    tmp_path: Path, size: tuple[int, int], steps: list[Any], reason: str
) -> None:
    with pytest.raises(picstore.Damage, match=reason):
        pairs(tmp_path, encode(*size), steps, on_damage="raise")


def test_a_damaged_jpeg_attachment_is_damage(tmp_path: Path) -> None:
    with pytest.raises(picstore.Damage, match="record"):
        pairs(tmp_path, encode(WIDTH // 4, HEIGHT // 4)[:700], [picstore.RandomCrop(64)], on_damage="raise")
