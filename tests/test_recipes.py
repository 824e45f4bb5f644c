"""Recipes make what their originals make: the same distribution of pictures over thousands of draws."""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from samples import picture
from torchvision.transforms import v2

import picstore
from picstore import recipes
from picstore.arrays import F64
from picstore.train.transforms.batch_random import BatchRandom
from picstore.train.transforms.geometry import Geometry

WIDTH, HEIGHT, SIZE = 96, 72, 48
DRAWS = 512
NEGLIGIBLE = 0.04  # difference of a statistic, in deviations: two levels, as single pixels may differ
LEAST_P = 1e-4  # of a test that both samples have one distribution; there are some 200
MEAN, STD = recipes.IMAGENET_MEAN, recipes.IMAGENET_STD
BICUBIC = v2.InterpolationMode.BICUBIC
END = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
BLUR = v2.GaussianBlur(9, (0.1, 2.0))
Transform = Callable[[Any], torch.Tensor]

pytestmark = pytest.mark.slow


def p_value(a: Any, b: Any) -> float:
    """Probability that samples of one distribution differ as much, by Kolmogorov and Smirnov."""
    from scipy import stats  # 1 s of each test process, if imported above

    return float(stats.ks_2samp(a, b, method="asymp").pvalue)


@pytest.fixture(scope="module")
def jpeg() -> bytes:
    """A picture whose left half is brighter, so that it has no symmetry, with some noise."""
    pixels = picture(3, width=WIDTH, height=HEIGHT).astype(np.float64)
    pixels = pixels * np.linspace(1.0, 0.4, WIDTH)[:, None] * np.linspace(0.7, 1.0, HEIGHT)[:, None, None]
    pixels += np.random.default_rng(0).normal(0, 12, pixels.shape)
    out = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(out, "JPEG", quality=95, subsampling=0)
    return out.getvalue()


@pytest.fixture(scope="module")
def dataset(jpeg: bytes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of that picture."""
    path = tmp_path_factory.mktemp("recipes") / "dataset"
    with picstore.Writer(path) as writer:
        writer.add(jpeg, label=0)
    return path


def our_draws(dataset: Path, transforms: Sequence[Any], count: int = DRAWS) -> list[torch.Tensor]:
    """What a list of transforms makes of the picture: views of it in several epochs."""
    views = picstore.Views(all=(256, transforms))
    with_views = picstore.Loader(dataset, batch_size=1, transform=views, threads=2, isolate=False)
    drawn: list[torch.Tensor] = []
    while len(drawn) < count:
        for batch in with_views:
            drawn.extend(view[0] for view in batch.views["all"])
    with_views.close()
    return drawn[:count]


def their_draws(jpeg: bytes, transform: Transform, count: int = DRAWS) -> list[torch.Tensor]:
    """What the original makes of the picture, as Pillow decodes it."""
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    with Image.open(io.BytesIO(jpeg)) as image:
        pixels = image.convert("RGB")
    return [transform(pixels).float() for _ in range(count)]


def statistics_of(image: torch.Tensor) -> list[float]:
    """Size, levels, contrast, edges, asymmetry, saturation and flatness of an image (3, H, W)."""
    pixels = image.numpy()  # torch takes longer for arrays this small
    _, height, width = pixels.shape
    grey = pixels.mean(0)
    halves = grey[:, : width // 2].mean() - grey[:, -(width // 2) :].mean()
    upper = grey[: height // 2].mean() - grey[-(height // 2) :].mean()
    across, down = np.abs(np.diff(grey, axis=1)), np.abs(np.diff(grey, axis=0))
    numbers = [*pixels.mean((1, 2)), pixels.std(ddof=1), across.mean(), down.mean(), halves, upper, grey.min()]
    numbers += [grey.max(), pixels.std(0, ddof=1).mean(), (across == 0).mean()]
    return [height, width, *map(float, numbers)]


def assert_alike(ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor]) -> None:
    mine, others = (np.array([statistics_of(image) for image in images]) for images in (ours, theirs))
    assert ours[0].dtype == torch.float32 and mine.shape == others.shape
    for number, (a, b) in enumerate(zip(mine.T, others.T, strict=True)):
        # Pillow rounds to whole levels between its two passes, which moves all of a distribution a little.
        quantiles = [np.quantile(each, np.linspace(0.05, 0.95, 19)) for each in (a, b)]
        if np.abs(quantiles[0] - quantiles[1]).max() > NEGLIGIBLE:
            p = p_value(a, b)
            assert p > LEAST_P, f"statistic {number}: p is {p:.1e}, means are {a.mean():.3f} and {b.mean():.3f}"


def compose(*steps: Any) -> Transform:
    return v2.Compose([*steps, *END])


def dino_original(size: int, scale: tuple[float, float], *extra: Any) -> Transform:
    """``DataAugmentationDINO`` of the repository dinov2."""
    color = [v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.2, 0.1)], 0.8), v2.RandomGrayscale(0.2)]
    return compose(v2.RandomResizedCrop(size, scale, interpolation=BICUBIC), v2.RandomHorizontalFlip(), *color, *extra)


@pytest.fixture(autouse=True)
def posterize(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let timm keep no bits, as Pillow did before its release 13."""
    real = ImageOps.posterize
    monkeypatch.setattr(
        ImageOps, "posterize", lambda image, bits: real(image, bits) if bits else image.point([0] * 768)
    )


def timm_original(**options: Any) -> Transform:
    from timm.data import create_transform

    transform: Transform = create_transform(SIZE, is_training=True, **options)
    return transform


def simclr_original() -> Transform:
    jitter = v2.RandomApply([v2.ColorJitter(0.8, 0.8, 0.8, 0.2)], 0.8)
    blur = v2.RandomApply([v2.GaussianBlur(5, (0.1, 2.0))], 0.5)
    return compose(v2.RandomResizedCrop(SIZE), v2.RandomHorizontalFlip(), jitter, v2.RandomGrayscale(0.2), blur)


def torchvision_original() -> Transform:
    """``ClassificationPresetTrain`` of torchvision's references."""
    steps = [v2.RandomResizedCrop(SIZE), v2.RandomHorizontalFlip()]
    widened = v2.TrivialAugmentWide(interpolation=v2.InterpolationMode.BILINEAR)
    return v2.Compose([*steps, widened, *END, v2.RandomErasing(0.1)])


def dino_views() -> dict[str, Sequence[Any]]:
    return {name: listed for name, (_, listed) in recipes.dinov2(SIZE, SIZE // 2).groups.items()}


RECIPES: dict[str, tuple[Callable[[], Sequence[Any]], Callable[[], Transform]]] = {
    "torchvision_resnet50_v2": (lambda: recipes.torchvision_resnet50_v2(SIZE), torchvision_original),
    "timm_default": (
        lambda: recipes.timm_default(SIZE),
        lambda: timm_original(
            auto_augment="rand-m9-mstd0.5-inc1", interpolation="random", re_prob=0.25, re_mode="pixel"
        ),
    ),
    "timm_default without RandAugment": (
        lambda: recipes.timm_default(SIZE, None, interpolation="bicubic", erasing=0.0),
        lambda: timm_original(color_jitter=0.4, interpolation="bicubic"),
    ),
    "deit3": (
        lambda: recipes.deit3(SIZE),
        lambda: timm_original(auto_augment="3a", color_jitter=0.3, interpolation="bicubic"),
    ),
    "open_clip": (
        lambda: recipes.open_clip(SIZE),
        lambda: v2.Compose(
            [
                v2.RandomResizedCrop(SIZE, (0.9, 1.0), interpolation=BICUBIC),
                *END[:2],
                v2.Normalize(recipes.OPENAI_MEAN, recipes.OPENAI_STD),
            ]
        ),
    ),
    "mae": (
        lambda: recipes.mae(SIZE),
        lambda: compose(v2.RandomResizedCrop(SIZE, (0.2, 1.0), interpolation=BICUBIC), v2.RandomHorizontalFlip()),
    ),
    "simclr": (lambda: recipes.simclr(SIZE).groups["views"][1], simclr_original),
    "dinov2, first": (lambda: dino_views()["global_1"], lambda: dino_original(SIZE, (0.32, 1.0), BLUR)),
    "dinov2, second": (
        lambda: dino_views()["global_2"],
        lambda: dino_original(SIZE, (0.32, 1.0), v2.RandomApply([BLUR], 0.1), v2.RandomSolarize(128, 0.2)),
    ),
    "dinov2, local": (
        lambda: dino_views()["local"],
        lambda: dino_original(SIZE // 2, (0.05, 0.32), v2.RandomApply([BLUR], 0.5)),
    ),
}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_draws_what_its_original_draws(name: str, jpeg: bytes, dataset: Path) -> None:
    mine, original = RECIPES[name]
    assert_alike(our_draws(dataset, mine()), their_draws(jpeg, original()))


def test_the_test_tells_a_wrong_recipe(jpeg: bytes, dataset: Path) -> None:
    wrong = compose(v2.RandomResizedCrop(SIZE, (0.4, 1.0), interpolation=BICUBIC), v2.RandomHorizontalFlip())
    with pytest.raises(AssertionError, match="statistic"):
        assert_alike(our_draws(dataset, recipes.mae(SIZE)), their_draws(jpeg, wrong))


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
def test_evaluation_is_torchvisions_within_a_level_and_timms_within_two(
    interpolation: str, jpeg: bytes, dataset: Path
) -> None:
    from timm.data import create_transform

    (mine,) = our_draws(dataset, recipes.evaluation(SIZE, 56, interpolation), 1)
    resize = v2.Resize(56, v2.InterpolationMode(interpolation))
    levels = [v2.ToImage(), v2.ToDtype(torch.float32), resize, v2.CenterCrop(SIZE)]  # rounded once, as here
    rounded = v2.Lambda(lambda image: image.clamp(0, 255).round() / 255)
    by_torchvision = v2.Compose([*levels, rounded, v2.Normalize(MEAN, STD)])
    by_timm = create_transform(SIZE, interpolation=interpolation, crop_pct=SIZE / 56)  # Pillow's, which rounds twice
    for theirs, most, mean in ((by_torchvision, 1, 0.1), (by_timm, 2, 0.25)):
        (expected,) = their_draws(jpeg, theirs, 1)
        apart = (mine - expected).abs() * torch.tensor(STD)[:, None, None] * 255
        assert apart.max() < most + 0.01 and apart.mean() < mean


def test_boxes_are_drawn_as_torchvision_draws_them() -> None:
    count = 10_000
    for scale in ((0.08, 1.0), (0.05, 0.32), (0.9, 1.0)):
        transform = picstore.RandomResizedCrop(SIZE, scale=scale)
        identity = Geometry.identity([WIDTH] * count, [HEIGHT] * count)
        mine: F64 = transform(identity, BatchRandom(0, 0, np.arange(count))).box
        theirs = v2.RandomResizedCrop(SIZE, scale)
        image = torch.empty(3, HEIGHT, WIDTH)
        torch.manual_seed(0)
        drawn = [theirs.make_params([image]) for _ in range(count)]
        others = np.array([[each[name] for name in ("left", "top", "width", "height")] for each in drawn])
        for a, b in zip(mine.T, others.T, strict=True):
            assert p_value(a, b) > LEAST_P


def detr_original() -> Callable[[Image.Image], tuple[int, int]]:
    """Output sizes of ``make_coco_transforms`` of the repository detr, with its own functions' arithmetic."""

    def resized(size: tuple[int, int], side: int, most: int | None) -> tuple[int, int]:
        width, height = size
        if most is not None and max(size) / min(size) * side > most:
            side = round(most * min(size) / max(size))
        if min(size) == side:
            return size
        return (side, int(side * height / width)) if width < height else (int(side * width / height), side)

    def draw(image: Image.Image) -> tuple[int, int]:
        size = image.size
        if random.random() >= 0.5:
            size = resized(size, random.choice([400, 500, 600]), None)
            size = random.randint(384, min(size[0], 600)), random.randint(384, min(size[1], 600))
        return resized(size, random.choice(recipes.DETR_SIZES), 1333)

    return draw


def test_detr_draws_sizes_as_its_original_and_moves_the_boxes(tmp_path: Path) -> None:
    with picstore.Writer(tmp_path / "boxes") as writer:
        pixels = np.zeros((300, 400, 3), np.uint8)
        pixels[100:200, 150:250] = 255
        writer.add(pixels, label=0, extra={"boxes": [[150, 100, 250, 200]], "box_labels": [3]})
    views = picstore.Views(all=(64, recipes.detr()[:-1]))
    loader = picstore.Loader(
        tmp_path / "boxes", batch_size=1, transform=views, targets=["boxes"], threads=2, isolate=False
    )
    sizes, seen = [], 0
    for _ in range(4):
        for batch in loader:
            for (image,), (target,) in zip(batch.views["all"], batch.targets["all"], strict=True):
                sizes.append((image.shape[2], image.shape[1]))
                for box in target["boxes"].as_subclass(torch.Tensor).tolist():
                    left, top, right, bottom = map(round, box)
                    assert image[:, top + 2 : bottom - 2, left + 2 : right - 2].float().mean() > 225
                    seen += 1
    loader.close()
    random.seed(0)
    draw, image = detr_original(), Image.fromarray(pixels)
    expected = [draw(image) for _ in range(len(sizes))]
    assert seen > 200
    for mine, theirs in zip(np.array(sizes).T, np.array(expected).T, strict=True):
        assert p_value(mine, theirs) > LEAST_P
