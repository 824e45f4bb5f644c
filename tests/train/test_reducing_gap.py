"""Exact pixels by default at any scale, and smaller decoding only where a reducing_gap asks for it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
import torch
from grids import slow_except
from samples import picture
from torchvision.transforms.v2 import functional

import picstore
from picstore.errors import UsageError

Make = Callable[..., Path]
SIZE = 40, 52
SHRINKS = [1, 1.5, 2, 3, 4, 5.3, 8, 12]
SMALLER = [picstore.RandomResizedCrop(8, scale=(0.6, 1))]  # of 60 × 40 pixels


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of 12 times SIZE, with noise, of two samplings."""
    path = tmp_path_factory.mktemp("large") / "dataset"
    with picstore.Writer(path) as writer:
        for number, sampling in enumerate(("420", "444")):
            noise = np.random.default_rng(number).integers(-40, 40, (12 * SIZE[0], 12 * SIZE[1], 3))
            image = picture(number, width=12 * SIZE[1], height=12 * SIZE[0]).astype(int) + noise
            pixels = np.ascontiguousarray(image.clip(0, 255).astype(np.uint8))
            writer.add(simplejpeg.encode_jpeg(pixels, quality=92, colorsubsampling=sampling))
    return path


def differences(path: Path, steps: list[Any], crop: tuple[int, int] | None, size: list[int], mode: str) -> torch.Tensor:
    """Levels between a loader's images and torchvision's on floats, of records in their stored order."""
    loader = picstore.Loader(path, batch_size=2, shuffle=False, transform=steps, isolate=False)
    (batch,) = loader
    loader.close()
    found = []
    for image, record in zip(batch.images, loader.dataset, strict=True):
        exact = torch.from_numpy(simplejpeg.decode_jpeg(record.jpeg, "RGB")).permute(2, 0, 1)
        exact = exact if crop is None else functional.center_crop(exact, list(crop))
        resized = functional.resize(exact.float(), size, mode, antialias=True).clamp(0, 255)
        if resized.shape != image.shape:
            resized = functional.center_crop(resized, list(image.shape[1:]))
        found.append((image.float() - resized).abs())
    return torch.stack(found)


@pytest.mark.parametrize("mode", slow_except(["bilinear"], ["bilinear", "bicubic", "lanczos"]))
def test_crops_of_any_multiple_are_torchvisions_on_floats_within_one_level(large: Path, mode: str) -> None:
    for shrink in SHRINKS:
        crop = int(SIZE[0] * shrink), int(SIZE[1] * shrink)
        apart = differences(large, [picstore.CenterCrop(crop), picstore.Resize(SIZE, mode)], crop, list(SIZE), mode)
        assert apart.max() <= 1, shrink
        assert apart.mean() < 0.3, shrink  # rounding alone makes 0.25


def test_the_usual_evaluation_is_torchvisions_on_floats_within_one_level(tmp_path: Path) -> None:
    with picstore.Writer(tmp_path / "dataset") as writer:
        for number in range(2):
            image = picture(number, width=768, height=512).astype(int)
            noise = np.random.default_rng(number).integers(-40, 40, image.shape)
            writer.add((image + noise).clip(0, 255).astype(np.uint8))
    steps = picstore.recipes.evaluation(224, 256, "bicubic")[:2]
    apart = differences(tmp_path / "dataset", steps, None, [256], "bicubic")
    assert apart.max() <= 1 and apart.mean() < 0.3


def first(loader: Any) -> torch.Tensor:
    images: torch.Tensor = next(iter(loader)).images
    loader.close()
    return images


def test_loader_mux_and_map_dataset_give_the_pixels_of_the_same_gap(make_dataset: Make) -> None:
    path = make_dataset(32)
    made = {}
    for gap in (None, 1, 2.0):
        options: dict[str, Any] = {"transform": SMALLER, "reducing_gap": gap}
        loader = picstore.Loader(path, batch_size=8, isolate=False, **options)
        batch = next(iter(loader))
        by_index = picstore.MapDataset(path, **options)
        ids = {record.id: k for k, record in enumerate(loader.dataset)}
        assert all(
            torch.equal(by_index[ids[i]][0], image) for i, image in zip(batch.ids.tolist(), batch.images, strict=True)
        )
        if gap == 1:
            assert torch.equal(first(picstore.Loader(path, batch_size=8, **options)), batch.images)
        loader.close()
        mux = [picstore.DataMux([(loader.dataset, 0, 8)], isolate=False, **options) for _ in range(2)]
        assert torch.equal(first(mux[0]), first(mux[1]))
        made[gap] = batch.images, first(mux[0])
    for one, other in ((None, 1), (None, 2.0), (1, 2.0)):
        assert not any(map(torch.equal, made[one], made[other]))


def test_a_toml_file_may_give_the_gap(make_dataset: Make, tmp_path: Path) -> None:
    make_dataset(8, name="set")
    config = tmp_path / "mux.toml"
    for text, gap in (("2", 2.0), ("1.5", 1.5)):
        config.write_text(f'reducing_gap = {text}\n[[source]]\npath = "set"\ncount = 4\n')
        assert picstore.DataMux(config, transform=SMALLER, isolate=False).output.reducing_gap == gap
    for text, problem in (("'2'", "must be of type"), ("true", "must be of type"), ("0.5", "at least 1.0")):
        config.write_text(f'reducing_gap = {text}\n[[source]]\npath = "set"\ncount = 4\n')
        with pytest.raises(UsageError, match=problem):
            picstore.DataMux(config, transform=SMALLER, isolate=False)


@pytest.mark.parametrize("gap", [0, 0.999, -2, True, "2", "", float("nan"), float("inf"), [2]])
def test_what_is_no_gap_is_refused_with_what_to_write(make_dataset: Make, gap: Any) -> None:
    path = make_dataset(8)
    for make in (
        lambda: picstore.Loader(path, batch_size=4, reducing_gap=gap),
        lambda: picstore.MapDataset(path, reducing_gap=gap),
        lambda: picstore.DataMux([(picstore.Dataset(path), 0, 4)], reducing_gap=gap),
    ):
        with pytest.raises(UsageError, match=r"reducing_gap is .*; give None for exact pixels, or a number"):
            make()


def test_decoders_of_a_gpus_engines_refuse_a_gap(make_dataset: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(UsageError, match="decodes at full size"):
        picstore.Loader(make_dataset(8), batch_size=4, device="cuda", decoder="torchvision", reducing_gap=2.0)


def test_a_state_of_another_gap_is_refused_and_exact_pixels_have_none(make_dataset: Make) -> None:
    path = make_dataset(32)

    def loaders(gap: float | None) -> list[Any]:
        options: dict[str, Any] = {"transform": SMALLER, "isolate": False, "reducing_gap": gap}
        return [
            picstore.Loader(path, batch_size=8, **options),
            picstore.DataMux([(picstore.Dataset(path), 0, 8)], **options),
        ]

    for exact, two, three in zip(loaders(None), loaders(2), loaders(3), strict=True):
        assert "reducing_gap" not in exact.state_dict()
        state = json.loads(json.dumps(two.state_dict()))
        assert state["reducing_gap"] == 2.0
        two.load_state_dict(state)
        exact.load_state_dict(exact.state_dict())
        for other, given in ((exact, state), (three, state), (two, exact.state_dict())):
            with pytest.raises(UsageError, match=r"the state has reducing_gap .*, this loader .*give reducing_gap="):
                other.load_state_dict(given)


def test_the_gap_is_shown(make_dataset: Make) -> None:
    path = make_dataset(8)
    for gap in (None, 2.0):
        loader = picstore.Loader(path, batch_size=4, reducing_gap=gap, isolate=False)
        shown = [str(loader), repr(picstore.MapDataset(path, reducing_gap=gap)), loader._repr_html_()]
        assert all(("reducing_gap" in each and "2.0" in each) == (gap is not None) for each in shown)
        assert str(loader).startswith(f"Loader({path}, 8 images, uint8, cpu")
