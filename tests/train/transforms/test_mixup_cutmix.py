"""MixUp and CutMix: torchvision's arithmetic, a symmetric beta distribution, and batches that can be repeated."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

import picstore
from picstore.errors import UsageError
from picstore.train.transforms.batch_random import BatchRandom
from picstore.train.transforms.mixup_cutmix import symmetric_beta

Make = Callable[..., Path]
CROP: list[Any] = [picstore.RandomResizedCrop(32)]
FLOATS = [*CROP, picstore.Normalize((0.5,) * 3, (0.2,) * 3)]


def loader_of(path: Path | picstore.Dataset, *mix: Any, **options: Any) -> picstore.Loader:
    return picstore.Loader(
        path, **{"batch_size": 8, "transform": [*FLOATS, *mix], "isolate": False, "threads": 1, **options}
    )


def batches(*args: Any, **options: Any) -> list[picstore.Batch]:
    loader = loader_of(*args, **options)
    taken = list(loader)
    loader.close()
    return taken


def weight_of(labels: torch.Tensor, images: torch.Tensor, mixed: torch.Tensor) -> float:
    """The weight of each image, from the labels of those whose partner has another."""
    other = labels != labels.roll(1, 0)
    return float(mixed[other, labels[other]].mean())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_mixup_has_the_arithmetic_of_torchvision(make_dataset: Make, dtype: torch.dtype) -> None:
    path = make_dataset(40)
    theirs = v2.MixUp(num_classes=5)
    weights = set()
    for plain, mixed in zip(batches(path, dtype=dtype), batches(path, picstore.MixUp(), dtype=dtype), strict=True):
        weight = weight_of(plain.labels, plain.images, mixed.labels)
        params = {"labels": plain.labels, "batch_size": 8, "lam": weight}
        assert mixed.images.dtype == dtype and mixed.labels.dtype == torch.float32
        tolerance = {"atol": 1e-5, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 0.03, "rtol": 0.02}
        assert torch.allclose(mixed.images, theirs.transform(plain.images, params), **tolerance)
        assert torch.allclose(mixed.labels, theirs.transform(plain.labels, params), atol=1e-6)
        weights.add(round(weight, 6))
    assert len(weights) == 5


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_mixup_rounds_each_product_and_each_sum_by_itself(device: str, dtype: torch.dtype) -> None:
    """As NumPy does it image by image: a device that fused two operations would make other batches."""
    images = torch.randn(3, 3, 16, 33, generator=torch.Generator().manual_seed(1)).to(dtype)
    labels = torch.tensor([2, 0, 1])
    weight = symmetric_beta(0.8, *BatchRandom(5, 0, [0]).uniform(5)[0, 1:3].tolist())

    def rounded(values: np.ndarray) -> np.ndarray:
        return torch.from_numpy(values).to(dtype).float().numpy()

    def mixed(rows: np.ndarray, round_to: Callable[[np.ndarray], np.ndarray]) -> torch.Tensor:
        shares = np.float32(weight), np.float32(1 - weight)
        pairs = ([round_to(share * rows[k - j]) for j, share in enumerate(shares)] for k in range(3))
        return torch.from_numpy(np.stack([round_to(one + other) for one, other in pairs]))

    mix = picstore.MixUp(0.8, 3, label_smoothing=0.1)
    ours, soft = mix(images.to(device), labels.to(device), BatchRandom(5, 0, [0]))
    even = np.eye(3, dtype=np.float32)[labels] * np.float32(0.9) + np.float32(0.1 / 3)
    assert torch.equal(ours.cpu(), mixed(images.float().numpy(), rounded).to(dtype))
    assert torch.equal(soft.cpu(), mixed(even, lambda values: values))


@pytest.mark.parametrize("transform", [CROP, FLOATS])
def test_cutmix_has_the_arithmetic_of_torchvision(make_dataset: Make, transform: list[Any]) -> None:
    path = make_dataset(80)
    theirs = v2.CutMix(num_classes=5)
    boxes = set()
    plain_batches = batches(path, transform=transform)
    for plain, mixed in zip(plain_batches, batches(path, transform=[*transform, picstore.CutMix()]), strict=True):
        differs = (mixed.images != plain.images).any(dim=0).any(dim=0)
        rows, columns = (torch.nonzero(differs.any(dim=axis)).flatten().tolist() or [0, -1] for axis in (1, 0))
        box = (columns[0], rows[0], columns[-1] + 1, rows[-1] + 1)
        boxes.add(box)
        area = (box[2] - box[0]) * (box[3] - box[1])
        params = {"labels": plain.labels, "batch_size": 8, "box": box, "lam_adjusted": 1 - area / 32**2}
        assert mixed.images.dtype == plain.images.dtype
        assert torch.equal(mixed.images, theirs.transform(plain.images, params))
        assert torch.allclose(mixed.labels, theirs.transform(plain.labels, params), atol=1e-6)
    assert len(boxes) > 5


def test_boxes_of_cutmix_match_torchvision_for_the_same_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    images = torch.zeros(2, 3, 37, 53)
    images[1] = 1
    mix = picstore.CutMix(0.7, 2)
    for seed in range(200):
        _, u, v, x, y = BatchRandom(seed, 0, [0]).uniform(5)[0].tolist()
        mixed, _ = mix(images, torch.tensor([0, 1]), BatchRandom(seed, 0, [0]))
        theirs = v2.CutMix(num_classes=2)
        weight = torch.tensor([symmetric_beta(0.7, u, v)], dtype=torch.float64)
        monkeypatch.setattr(theirs, "_dist", type("Fixed", (), {"sample": lambda *_, weight=weight: weight}))
        centers = iter([torch.tensor([int(x * 53)]), torch.tensor([int(y * 37)])])
        monkeypatch.setattr(torch, "randint", lambda *_, centers=centers, **__: next(centers))
        left, top, right, bottom = theirs.make_params([images])["box"]
        expected = images.clone()
        expected[0, :, top:bottom, left:right], expected[1, :, top:bottom, left:right] = 1, 0
        assert torch.equal(mixed, expected)


@pytest.mark.parametrize("alpha", [0.1, 0.2, 0.5, 0.8, 1.0, 2.0, 8.0])
def test_weights_have_the_beta_distribution(alpha: float) -> None:
    numbers = np.random.default_rng(1).random((20_000, 2))
    ours = np.sort([symmetric_beta(alpha, u, v) for u, v in numbers])
    theirs = np.sort(np.random.default_rng(2).beta(alpha, alpha, 20_000))
    assert ours.min() >= 0 and ours.max() <= 1
    distance = np.abs(np.searchsorted(theirs, ours, side="right") / 20_000 - np.arange(1, 20_001) / 20_000).max()
    assert distance < 1.63 * math.sqrt(2 / 20_000)  # Kolmogorov and Smirnov's test at 1 %


@pytest.mark.parametrize("numbers", [(0.0, 0.0), (0.0, 0.25), (1 - 2**-53, 0.0), (1 - 2**-53, 0.5)])
@pytest.mark.parametrize("alpha", [1e-4, 1.0, 1e4])
def test_extreme_numbers_give_weights(alpha: float, numbers: tuple[float, float]) -> None:
    assert 0 <= symmetric_beta(alpha, *numbers) <= 1


def test_each_batch_epoch_rank_and_seed_draws_its_own_as_a_resumed_loader(make_dataset: Make) -> None:
    path = make_dataset(64)
    mix = picstore.MixUp(), picstore.CutMix(p=0.5)
    loader = loader_of(path, *mix)
    first = [(batch.images.clone(), batch.labels.clone()) for batch in loader]
    assert len({tuple(labels.flatten().tolist()) for _, labels in first}) == 8
    resumed = loader_of(path, *mix)
    iterator = iter(loader_of(path, *mix))
    other = loader_of(path, *mix)
    iterator = iter(other)
    for _ in range(3):
        next(iterator)
    torch.rand(7)  # torch's generator has no part in it
    resumed.load_state_dict(other.state_dict())
    for (images, labels), again in zip(first[3:], resumed, strict=True):
        assert torch.equal(images, again.images) and torch.equal(labels, again.labels)
    weights = []
    for options in ({"seed": 1}, {"rank": 0, "world_size": 2}, {"rank": 1, "world_size": 2}):
        ranked = loader_of(path, picstore.MixUp(), **options)
        batch, plain = next(iter(ranked)), next(iter(loader_of(path, **options)))
        weights.append(weight_of(plain.labels, plain.images, batch.labels))
        ranked.close()
    assert len(set(weights)) == 3
    for each in (loader, resumed, other):
        each.close()


def test_a_batch_that_is_not_mixed_has_soft_labels_too(make_dataset: Make) -> None:
    path = make_dataset(80)
    mixed = 0
    for plain, batch in zip(batches(path), batches(path, picstore.MixUp(p=0.5)), strict=True):
        assert batch.labels.shape == (8, 5)
        if torch.equal(batch.images, plain.images):
            assert torch.equal(batch.labels, torch.nn.functional.one_hot(plain.labels, 5).float())
        else:
            mixed += 1
    assert 1 <= mixed <= 9


def test_labels_are_smoothed_as_timm_does_and_unknown_ones_have_no_class(make_dataset: Make) -> None:
    path = make_dataset(16)
    for plain, batch in zip(batches(path), batches(path, picstore.MixUp(p=0, label_smoothing=0.1)), strict=True):
        expected = torch.full((8, 5), 0.1 / 5)
        expected[torch.arange(8), plain.labels] = 1 - 0.1 + 0.1 / 5
        assert torch.allclose(batch.labels, expected)
    unknown = picstore.Dataset(path).with_columns({"label": [-1] * 16})
    for batch in batches(unknown, picstore.CutMix()):
        assert torch.equal(batch.labels, torch.zeros(8, 5))


def test_callables_stand_before_and_after_and_images_of_the_loader_stay(make_dataset: Make) -> None:
    path = make_dataset(16)
    seen: list[torch.Tensor] = []

    def remember(images: torch.Tensor) -> torch.Tensor:
        seen.append(images.clone())
        return images.float()

    for batch in batches(path, transform=[*CROP, remember, picstore.MixUp(), lambda images: images / 255]):
        assert seen[-1].dtype == torch.uint8
        assert batch.labels.shape == (8, 5) and batch.images.min() >= 0 and batch.images.max() <= 1


def test_a_memory_format_survives(make_dataset: Make) -> None:
    for mix in (picstore.MixUp(), picstore.CutMix()):
        for batch in batches(make_dataset(8, name=str(id(mix))), mix, memory_format=torch.channels_last):
            assert batch.images.is_contiguous(memory_format=torch.channels_last)


def test_the_number_of_classes_is_the_data_sets_or_the_one_given(make_dataset: Make) -> None:
    path = make_dataset(8)
    assert batches(path, picstore.MixUp())[0].labels.shape == (8, 5)
    assert batches(path, picstore.CutMix(num_classes=7))[0].labels.shape == (8, 7)


@pytest.mark.parametrize("mix", [picstore.MixUp, picstore.CutMix])
@pytest.mark.parametrize(
    "arguments", [{"alpha": 0}, {"alpha": "1"}, {"num_classes": 0}, {"p": 1.5}, {"label_smoothing": 1}]
)
def test_bad_arguments_are_refused(mix: Any, arguments: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"{mix.__name__}: {next(iter(arguments))} is"):
        mix(**arguments)


def test_what_does_not_fit_is_refused_when_the_loader_is_made(make_dataset: Make, tmp_path: Path) -> None:
    path = make_dataset(8)
    with picstore.Writer(tmp_path / "nameless") as writer:
        for record in picstore.Dataset(path):
            writer.add(record.jpeg, label=9)
    mix = picstore.MixUp()
    for options, text in (
        ({"transform": [*FLOATS, picstore.MixUp(num_classes=4)]}, "the dataset has 5 classes"),
        ({"transform": [*CROP, mix]}, "mixes floats"),
        ({"transform": [picstore.Normalize(0.5, 0.2), mix]}, "images of one size"),
        ({"transform": [*FLOATS, mix], "targets": ["boxes"]}, "but not boxes"),
        ({"transform": [mix, *FLOATS]}, "follows MixUp"),
        ({"transform": picstore.Views(one=(2, [*FLOATS, mix]))}, "all views share"),
    ):
        with pytest.raises(UsageError, match=text):
            picstore.Loader(path, batch_size=4, **options)
    with pytest.raises(UsageError, match="give num_classes"):
        loader_of(tmp_path / "nameless", mix)
    with pytest.raises(UsageError, match="num_classes is 3, and a label is 9"):
        batches(tmp_path / "nameless", picstore.MixUp(num_classes=3))
    with pytest.raises(UsageError, match="single images"):
        picstore.MapDataset(path, transform=[*FLOATS, mix])


def test_a_mux_mixes_by_its_configuration_and_reads_no_single_samples(make_dataset: Make, tmp_path: Path) -> None:
    make_dataset(20)
    config = tmp_path / "mux.toml"
    config.write_text(
        'transform = [{ name = "RandomResizedCrop", size = 16 }, { name = "CutMix", alpha = 0.5 }]\n'
        '[[source]]\npath = "dataset"\ncount = 3\n[[source]]\npath = "dataset"\nbase = 5\ncount = 5\n'
    )
    mux = picstore.DataMux(config, isolate=False)
    batch = next(iter(mux))
    assert batch.labels.shape == (8, 10) and batch.images.dtype == torch.uint8
    with pytest.raises(UsageError, match="without Views, MixUp and CutMix"):
        mux.read()
    mux.close()


@pytest.mark.cuda
def test_on_a_gpu_batches_are_mixed_there(make_dataset: Make) -> None:
    path = make_dataset(16)
    for ours, theirs in zip(
        batches(path, picstore.MixUp(), device="cuda", decoder="cpu"), batches(path, picstore.MixUp()), strict=True
    ):
        assert ours.images.device.type == ours.labels.device.type == "cuda"
        assert torch.allclose(ours.images.cpu(), theirs.images, atol=1e-5)
        assert torch.allclose(ours.labels.cpu(), theirs.labels)
