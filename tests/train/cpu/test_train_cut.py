"""Cutting in the loader: less is decoded, and the images are the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import simplejpeg
import torch
from pictures import saved
from PIL import Image
from samples import picture

import picstore
from picstore.jpeg import decode_any
from picstore.train.cpu import decode_crop, fused
from picstore.train.transforms.batch_random import BatchRandom
from picstore.train.transforms.geometry import Geometry


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of many sizes, a third of them grey."""
    path = tmp_path_factory.mktemp("cut") / "dataset"
    with picstore.Writer(path) as writer:
        for number in range(24):
            image = picture(number, width=300 + 17 * number, height=420 - 11 * number)
            noisy = (image.astype(int) + np.random.default_rng(number).integers(-20, 20, image.shape)).clip(0, 255)
            image = noisy.astype(np.uint8)
            writer.add(image[..., 0] if number % 3 == 0 else image)
    return path


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Noise of all samplings that interpolate chroma."""
    path = tmp_path_factory.mktemp("wide") / "dataset"
    with picstore.Writer(path) as writer:
        for number in range(12):
            noise = np.random.default_rng(number).integers(0, 256, (290 - 7 * number, 210 + 9 * number, 3), np.uint8)
            sampling = ("422", "440", "420", "444")[number % 4]
            writer.add(simplejpeg.encode_jpeg(noise, quality=90, colorsubsampling=sampling))
    return path


def batches(path: Path, transform: list[object], **options: object) -> list[picstore.Batch]:
    return list(picstore.Loader(path, batch_size=8, transform=transform, drop_last=False, isolate=False, **options))


@pytest.mark.parametrize("antialias", [True, False])
def test_cutting_changes_no_pixel_of_any_batch(
    dataset: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, antialias: bool
) -> None:
    transform = [picstore.RandomResizedCrop(160, antialias=antialias), picstore.RandomHorizontalFlip()]
    in_one_go = batches(dataset, transform)
    request.getfixturevalue("stage_by_stage")
    decoded: dict[str, list[int]] = {"cut": [], "whole": []}  # of the epoch, and of what of the next is made
    decode = decode_crop.decode_rgb

    def count(how: str) -> None:
        def decode_rgb(jpeg: object, **size: int) -> np.ndarray:
            decoded[how].append(size["width"] * size["height"])
            return decode(jpeg, **size)

        monkeypatch.setattr(decode_crop, "decode_rgb", decode_rgb)

    count("cut")
    cut = batches(dataset, transform)
    count("whole")
    monkeypatch.setattr(decode_crop, "decode_part", lambda *_, **__: None)
    whole = batches(dataset, transform)
    assert np.mean(decoded["cut"]) < 0.7 * np.mean(decoded["whole"])
    for a, b, c in zip(cut, whole, in_one_go, strict=True):
        assert torch.equal(a.ids, b.ids)
        assert torch.equal(a.images, b.images) and torch.equal(a.images, c.images)


@pytest.mark.usefixtures("stage_by_stage")
def test_transforms_that_need_the_whole_image_cut_nothing(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("nothing is to be cut")

    monkeypatch.setattr(decode_crop, "cut_batch", fail)
    assert len(batches(dataset, [picstore.Resize((96, 96))])) == 3
    images = batches(dataset, [])
    assert all(isinstance(batch.images, list) for batch in images)


def test_a_central_crop_decodes_its_tiles_only(dataset: Path) -> None:
    records = {record.id: record for record in picstore.Dataset(dataset)}
    for batch in batches(dataset, [picstore.CenterCrop(100)]):
        for image, id_ in zip(batch.images, batch.ids.tolist(), strict=True):
            full = simplejpeg.decode_jpeg(records[id_].jpeg, "RGB")
            top, left = round((full.shape[0] - 100) / 2), round((full.shape[1] - 100) / 2)
            expected = torch.from_numpy(full[top : top + 100, left : left + 100]).permute(2, 0, 1)
            assert torch.equal(image, expected)


@pytest.mark.parametrize("gap", [1.0, 2.0, 3.0])
def test_an_image_is_decoded_smaller_only_where_resampling_keeps_the_gap(gap: float) -> None:
    shrink = np.array([1, 1.99, 2, 3.99, 4, 8, 80]) * gap
    widths = np.ceil(100 * shrink).astype(int)
    geometry = picstore.Resize((100, 100))(Geometry.identity(widths, np.full(7, 90_000)), BatchRandom(0, 0, range(7)))
    assert geometry.decode_factors(gap).tolist() == [1, 1, 2, 2, 4, 8, 8]
    assert set(geometry.decode_factors(None).tolist()) == {1}
    for resize in (picstore.Resize((100, 100), antialias=False), picstore.Resize((100, 100), "nearest")):
        plain = resize(Geometry.identity(widths, widths), BatchRandom(0, 0, range(7)))
        assert set(plain.decode_factors(gap).tolist()) == {1}


@pytest.mark.parametrize(("gap", "mean"), [(1.0, 3), (2.0, 1.2), (3.0, 0.8)])
def test_decoding_smaller_stays_close_to_decoding_whole(dataset: Path, gap: float, mean: float) -> None:
    transform = [picstore.RandomResizedCrop(24, scale=(0.5, 1))]
    small = batches(dataset, transform, shuffle=False, reducing_gap=gap)
    for a, b in zip(small, batches(dataset, transform, shuffle=False), strict=True):
        assert 0 < (a.images.int() - b.images.int()).abs().float().mean() < mean


@pytest.mark.slow
@pytest.mark.parametrize("gap", [1.0, 2.0])
@pytest.mark.parametrize("steps", [[picstore.RandomResizedCrop(16)], [picstore.RandomRotation(9), picstore.Resize(16)]])
def test_cutting_changes_no_pixel_of_images_that_are_decoded_smaller(
    wide: Path, monkeypatch: pytest.MonkeyPatch, steps: list[object], gap: float
) -> None:
    cut = batches(wide, steps, reducing_gap=gap)
    monkeypatch.setattr(fused, "can_fuse", lambda geometry: np.zeros(len(geometry.size), np.bool_))
    monkeypatch.setattr(decode_crop, "decode_part", lambda *_, **__: None)
    for a, b in zip(cut, batches(wide, steps, reducing_gap=gap), strict=True):
        assert torch.equal(a.ids, b.ids)
        assert all(map(torch.equal, a.images, b.images))


def test_streams_of_another_decoder_are_decoded_smaller_too(tmp_path: Path) -> None:
    image = picture(1, width=400, height=300)
    progressive, plain = (saved(Image.fromarray(image), "JPEG", progressive=each) for each in (True, False))
    for jpeg in (progressive, plain):
        for factor in (1, 2, 4, 8):
            pixels = decode_any.decode_rgb(jpeg, width=400, height=300, factor=factor)
            assert np.array_equal(pixels, decode_any.decode_rgb(plain, width=400, height=300, factor=factor))
    for jpeg in (b"no image", progressive):
        with pytest.raises(picstore.ImageError, match=r"does not decode|by its headers"):
            decode_any.decode_rgb(jpeg, width=3, height=4)
