"""torchvision's transforms in a list become picstore's: the same parameters, pixels and distribution."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from samples import picture
from torch import nn
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.models import ResNet50_Weights
from torchvision.transforms import v2

import picstore
from picstore.errors import UsageError
from picstore.train.transforms.from_torchvision import Steps, _levels
from picstore.train.transforms.transform_plan import plan_transforms

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
FLOATS = v2.ToDtype(torch.float32, scale=True)
NEAREST, BICUBIC = v2.InterpolationMode.NEAREST, v2.InterpolationMode.BICUBIC
# By name, arguments other than the defaults; for v1, where it has the class, and v2.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "AugMix": {"severity": 5, "mixture_width": 2, "chain_depth": 2, "alpha": 0.5, "all_ops": False},
    "AutoAugment": {"policy": v1.AutoAugmentPolicy.CIFAR10, "interpolation": v2.InterpolationMode.BILINEAR},
    "CenterCrop": {"size": (20, 30)},
    "ColorJitter": {"brightness": 0.4, "contrast": (0.2, 1.5), "saturation": 0, "hue": 0.1},
    "CutMix": {"alpha": 0.3, "num_classes": 7},
    "ElasticTransform": {"alpha": 30.0, "sigma": 4.0, "fill": 7},
    "GaussianBlur": {"kernel_size": (5, 9), "sigma": (0.2, 1.5)},
    "GaussianNoise": {"mean": 0.1, "sigma": 0.2, "clip": False},
    "Grayscale": {"num_output_channels": 3},
    "MixUp": {"alpha": 0.3, "num_classes": 7},
    "Normalize": {"mean": MEAN, "std": STD},
    "Pad": {"padding": [1, 2, 3, 4], "fill": (1, 2, 3), "padding_mode": "constant"},
    "RandAugment": {"num_ops": 3, "magnitude": 7, "num_magnitude_bins": 20, "fill": [9.0, 8.0, 7.0]},
    "RandomAdjustSharpness": {"sharpness_factor": 2, "p": 0.3},
    "RandomAffine": {"degrees": 10, "translate": (0.1, 0.2), "scale": (0.5, 2), "shear": 5, "center": [3, 4]},
    "RandomAutocontrast": {"p": 0.3},
    "RandomChannelPermutation": {},
    "RandomCrop": {"size": 20, "padding": 4, "pad_if_needed": True, "fill": 3, "padding_mode": "reflect"},
    "RandomEqualize": {"p": 0.3},
    "RandomErasing": {"p": 0.25, "scale": (0.1, 0.2), "ratio": (0.5, 2), "value": "random"},
    "RandomGrayscale": {"p": 0.3},
    "RandomHorizontalFlip": {"p": 0.3},
    "RandomInvert": {"p": 0.3},
    "RandomIoUCrop": {"min_scale": 0.4, "max_scale": 0.9, "sampler_options": [0.0, 0.5], "trials": 9},
    "RandomPerspective": {"distortion_scale": 0.3, "p": 0.4, "interpolation": NEAREST, "fill": 9},
    "RandomPhotometricDistort": {"brightness": (0.9, 1.1), "hue": (-0.1, 0.1), "p": 0.3},
    "RandomPosterize": {"bits": 3, "p": 0.3},
    "RandomResize": {"min_size": 20, "max_size": 40, "interpolation": BICUBIC},
    "RandomResizedCrop": {"size": (20, 30), "scale": (0.3, 0.9), "ratio": (0.5, 1.5), "interpolation": BICUBIC},
    "RandomRotation": {"degrees": (5, 20), "expand": True, "fill": 4},
    "RandomShortestSize": {"min_size": [20, 30], "max_size": 50, "antialias": False},
    "RandomSolarize": {"threshold": 100, "p": 0.3},
    "RandomVerticalFlip": {"p": 0.3},
    "RandomZoomOut": {"fill": 5, "side_range": (1.5, 2.0), "p": 0.3},
    "Resize": {"size": 20, "interpolation": BICUBIC, "max_size": 40, "antialias": False},
    "ScaleJitter": {"target_size": (30, 20), "scale_range": (0.5, 1.5)},
    "TrivialAugmentWide": {"num_magnitude_bins": 9},
}


def steps_of(*transforms: Any) -> Steps:
    steps = Steps()
    steps.read(list(transforms))
    return steps


def only(*transforms: Any) -> Any:
    (step,) = steps_of(*transforms).steps
    return step


def plain(value: Any) -> Any:
    """A transform as nested tuples and dicts, which can be compared."""
    if isinstance(value, (tuple, list)):
        return [plain(each) for each in value]
    if isinstance(value, np.ndarray):
        return value.tolist()
    if type(value).__module__.startswith("picstore"):
        # The arguments that were given differ: torchvision has defaults of its own.
        own = [name for name in getattr(value, "__dict__", {}) if name != "_given"]
        names = [*own, *getattr(type(value), "__slots__", ())]
        return type(value).__name__, {name: plain(getattr(value, name)) for name in names if name != "_choice"}
    return value


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> picstore.Dataset:
    path = tmp_path_factory.mktemp("torchvision") / "set"
    with picstore.Writer(path) as writer:
        for k in range(8):
            writer.add(picture(k, width=90 + k, height=70), label=k % 3)
    return picstore.Dataset(path)


@functools.cache
def decoded(dataset: picstore.Dataset, k: int) -> torch.Tensor:
    return torch.from_numpy(dataset[k].image).permute(2, 0, 1).contiguous()


@pytest.mark.parametrize("name", sorted(ARGUMENTS))
def test_a_transform_becomes_a_class_of_picstore_with_its_parameters(name: str) -> None:
    given = ARGUMENTS[name]
    expected = plain(getattr(picstore, name)(**given))
    assert plain(only(getattr(v2, name)(**given))) == expected
    if name == "RandomErasing":
        assert plain(only(v2.RandomErasing(value=(1, 2, 3)))) == plain(picstore.RandomErasing(value=(1, 2, 3)))
    if hasattr(v1, name):
        assert plain(only(getattr(v1, name)(**given))) == expected


def test_every_transform_of_both_is_translated_taken_or_refused() -> None:
    containers = {"RandomApply", "RandomChoice", "RandomOrder"}
    assert set(ARGUMENTS) | containers == set(picstore.__all__) & set(dir(v2))
    made = {
        "Lambda": v2.Lambda(abs),
        "FiveCrop": v2.FiveCrop(3),
        "TenCrop": v2.TenCrop(3),
        "UniformTemporalSubsample": v2.UniformTemporalSubsample(3),
        "ConvertBoundingBoxFormat": v2.ConvertBoundingBoxFormat("CXCYWH"),
        "SetClampingMode": v2.SetClampingMode("soft"),
        "SanitizeBoundingBoxes": v2.SanitizeBoundingBoxes(min_size=9),
        "ClampKeyPoints": v2.ClampKeyPoints(),
        "SanitizeKeyPoints": v2.SanitizeKeyPoints(),
    }
    for name, transform in made.items():
        with pytest.raises(UsageError, match=f"{name} of torchvision has no counterpart in picstore: [a-z]+"):
            steps_of(transform)
    for needless in (v2.Identity(), v2.ToImage(), v2.PILToTensor(), v2.RGB(), v2.ClampBoundingBoxes()):
        assert steps_of(needless, v2.SanitizeBoundingBoxes()).steps == []


@pytest.mark.parametrize("library", [v1, v2])
def test_choices_hold_the_transforms_that_torchvision_holds(library: Any) -> None:
    jitter, gray = library.ColorJitter(0.4), library.RandomGrayscale(0.5)
    ours = picstore.ColorJitter(0.4), picstore.RandomGrayscale(0.5)
    assert plain(only(library.RandomApply([jitter, gray], p=0.8))) == plain(picstore.RandomApply(ours, p=0.8))
    assert plain(only(library.RandomOrder([jitter, gray]))) == plain(picstore.RandomOrder(ours))
    chosen = only(library.RandomChoice([library.Compose([jitter, gray]), jitter], p=[1, 3]))
    assert plain(chosen) == plain(picstore.RandomChoice([picstore.RandomApply(ours, p=1), ours[0]], p=[1, 3]))
    for inner in (library.PILToTensor(), library.ToTensor() if library is v1 else FLOATS):
        with pytest.raises(UsageError, match=r"RandomApply of torchvision holds .*picstore\.PerImage\(RandomApply"):
            steps_of(library.RandomApply([inner]))
    with pytest.raises(UsageError, match=r"callables of your own write picstore\.PerImage"):
        steps_of(library.RandomApply([jitter, torch.relu]))


def test_a_compose_a_sequential_and_one_transform_are_lists() -> None:
    crop, flip = v2.RandomCrop(20), v2.RandomHorizontalFlip()
    expected = plain([picstore.RandomCrop(20), picstore.RandomHorizontalFlip()])
    for several in ([crop, flip], v2.Compose([crop, flip]), v1.Compose([crop, flip]), nn.Sequential(crop, flip)):
        assert plain(list(plan_transforms(several)[0].groups[0].geometry)) == expected
    nested = v2.Compose([v1.Compose([crop]), nn.Sequential(nn.Sequential(flip))])
    assert plain(steps_of(nested).steps) == expected
    assert plain(list(plan_transforms(crop)[0].groups[0].geometry)) == expected[:1]
    assert plan_transforms(torch.relu)[1] == (torch.relu,)
    assert plan_transforms(None)[0] == plan_transforms([])[0]  # type: ignore[arg-type]


def test_conversions_stand_where_scripts_have_them_and_name_the_dtype() -> None:
    crop, flip, normalize = v2.RandomCrop(20), v2.RandomHorizontalFlip(), v2.Normalize(MEAN, STD)
    wanted = plain([picstore.RandomCrop(20), picstore.RandomHorizontalFlip(), picstore.Normalize(MEAN, STD)])
    old = v1.ConvertImageDtype(torch.float32)
    for listed in (
        [v1.RandomCrop(20), v1.RandomHorizontalFlip(), v1.ToTensor(), v1.Normalize(MEAN, STD)],
        [v1.ToTensor(), v1.RandomCrop(20), v1.RandomHorizontalFlip(), v1.Normalize(MEAN, STD)],
        [v1.RandomCrop(20), v1.RandomHorizontalFlip(), v1.PILToTensor(), old, v1.Normalize(MEAN, STD)],
        [v2.ToImage(), v2.ToDtype(torch.uint8, scale=True), crop, flip, FLOATS, normalize, v2.ToPureTensor()],
        [v2.PILToTensor(), crop, flip, v2.ToDtype({tv_tensors.Image: torch.float32, "others": None}, True), normalize],
    ):
        steps = steps_of(*listed)
        assert plain(steps.steps) == wanted and steps.dtype == "float32"
    assert steps_of(crop, v2.ToDtype(torch.float16, scale=True)).dtype == "float16"
    assert steps_of(FLOATS, crop, v1.ToPILImage()).dtype is None
    assert steps_of(crop, v2.ToDtype({"others": None})).dtype is None
    for wrong, message in (
        ([v2.ToDtype(torch.float32)], "give scale=True"),
        ([v2.ToDtype(torch.float64, scale=True)], "torch.float64; give float32"),
        ([FLOATS, normalize, v2.ToDtype(torch.uint8, scale=True)], "what Normalize returned"),
        ([torch.relu, v1.ToTensor()], "ToTensor follows a callable; write v2.ToDtype"),
    ):
        with pytest.raises(UsageError, match=message):
            steps_of(*wrong)


def test_names_and_none_among_levels_stay() -> None:
    assert _levels([None, "random", (0.2, 1)], "fill", whole=False) == [None, "random", [51.0, 255]]
    for wrong in (-0.1, 1.1):
        with pytest.raises(UsageError, match="levels of 0 to 1"):
            _levels([0, wrong], "fill", whole=False)


def test_levels_after_a_conversion_are_those_of_floats() -> None:
    for theirs, ours in (
        (v2.Pad(2, fill=0.4), picstore.Pad(2, fill=102)),
        (v2.RandomRotation(9, fill=[1.0, 0.0, 0.2]), picstore.RandomRotation(9, fill=[255, 0, 51])),
        (v2.RandomSolarize(0.3), picstore.RandomSolarize(76.5)),
        (v2.RandomErasing(value=0.5), picstore.RandomErasing(value=127.5)),
        (v2.RandomErasing(value="random"), picstore.RandomErasing(value="random")),
    ):
        assert plain(only(FLOATS, theirs)) == plain(ours)
    erasing = steps_of(FLOATS, v2.Normalize(MEAN, STD), v2.RandomErasing(value=0.5)).steps[-1]
    assert plain(erasing) == plain(picstore.RandomErasing(value=0.5))
    with pytest.raises(UsageError, match=r"Pad: fill is 1\.01 after"):
        steps_of(FLOATS, v2.Pad(2, fill=1.01))
    with pytest.raises(UsageError, match="Pad: fill is 128 after a conversion to floats; give levels of 0 to 1"):
        steps_of(FLOATS, v2.Pad(2, fill=128))
    with pytest.raises(UsageError, match="fill of their own"):
        steps_of(v2.Pad(2, fill={tv_tensors.Image: 3}))


class Tinted(v2.Transform):
    """A transform of a user's."""


def test_what_would_draw_once_for_a_batch_is_refused_with_what_to_write() -> None:
    with pytest.raises(UsageError, match=r"Tinted derives .* write picstore\.PerImage\(Tinted"):
        steps_of(Tinted())
    with pytest.raises(UsageError, match=r"the class RandomHorizontalFlip; write RandomHorizontalFlip\("):
        steps_of(v2.RandomHorizontalFlip)
    for library, instead in (("timm.data", r"picstore\.recipes\.timm_default"), ("albumentations", "PerImage")):
        foreign = type("Crop", (), {"__module__": library, "__call__": lambda self, image: image})
        with pytest.raises(UsageError, match=rf"Crop of \w+ takes one image; write .*{instead}"):
            steps_of(foreign())
    for wrong in ("Resize", 3, [picstore.Resize(3), "flip"]):
        with pytest.raises(UsageError, match="neither a transform nor callable"):
            plan_transforms(wrong)


EVALUATIONS = [
    ([v2.Resize(40), v2.CenterCrop(32)], 1),
    ([v1.Resize((30, 50), interpolation=BICUBIC)], 4),
    ([v2.Resize(None, max_size=50), v2.Pad(3, fill=9)], 1),
    ([v2.CenterCrop(100)], 0),
    ([v2.CenterCrop(40), v2.Grayscale(3)], 1),
    ([v2.CenterCrop(40), FLOATS], 0),
    ([v2.CenterCrop(40), v2.ToDtype(torch.float16, scale=True)], 0),
    ([v2.ToImage(), FLOATS, v2.CenterCrop(40), v2.Normalize(MEAN, STD)], 0),
    ([v2.Resize(40), v2.CenterCrop(32), FLOATS, v2.Normalize(MEAN, STD)], 1),
    ([v2.CenterCrop(40), v2.RandomSolarize(100, p=1), v2.RandomPosterize(3, p=1), v2.RandomInvert(p=1)], 0),
    ([v2.CenterCrop(40), v2.RandomHorizontalFlip(p=0), v2.RandomAdjustSharpness(2, p=1)], 1),
    ([v2.CenterCrop(40), v2.GaussianBlur(5, 1.5)], 1),
    ([v2.RandomHorizontalFlip(p=1), v2.RandomVerticalFlip(p=1), v2.RandomEqualize(p=1)], 0),
    ([ResNet50_Weights.IMAGENET1K_V2.transforms(crop_size=32, resize_size=40)], 1),
]


@pytest.mark.parametrize(("listed", "levels"), EVALUATIONS, ids=lambda case: None)
def test_transforms_without_draws_make_the_pixels_of_torchvision(
    dataset: picstore.Dataset, listed: Any, levels: int
) -> None:
    """Within the levels that docs/reference/transforms.md states; bicubic overshoots, which torch clips twice."""
    made = picstore.MapDataset(dataset, transform=listed)
    for k in range(3):
        expected = decoded(dataset, k)
        for transform in listed:
            expected = transform(expected)
        image, _ = made[k]
        assert image.dtype == expected.dtype and image.shape == expected.shape
        unit = 1 if image.dtype == torch.uint8 else 1 / 255 / min(STD)
        rounding = 1e-3 if image.dtype == torch.float16 else 1e-5
        assert float((image.double() - expected.double()).abs().max()) <= levels * unit + rounding


def test_a_batch_has_a_crop_of_its_own_for_each_image_and_flips_of_half(dataset: picstore.Dataset) -> None:
    """Called with the batch, torchvision's cut one box out of all images, and flipped all or none."""
    options: dict[str, Any] = {"batch_size": 64, "aug_repeats": 64, "isolate": False, "threads": 1}
    one = dataset.select([0])
    crops = picstore.Loader(one, transform=[v2.RandomCrop(20)], **options)
    flips = picstore.Loader(one, transform=[v2.CenterCrop(20), v2.RandomHorizontalFlip()], **options)
    center = v2.CenterCrop(20)(decoded(dataset, 0))
    boxes, flipped = set(), 0
    for _ in range(4):
        boxes.update(image.numpy().tobytes() for images, _labels in crops for image in images)
        for images, _labels in flips:
            for image in images:
                assert torch.equal(image, center) or torch.equal(image, center.flip(-1))
                flipped += not torch.equal(image, center)
    crops.close(), flips.close()
    assert len(boxes) > 230  # of 256 draws among 51 · 71
    assert 96 < flipped < 160  # 128 ± 4 deviations


def test_a_loader_a_mux_views_and_stages_take_torchvision_transforms(dataset: picstore.Dataset) -> None:
    listed = v2.Compose([v2.ToImage(), v2.RandomResizedCrop(16), FLOATS, v2.Normalize(MEAN, STD)])
    ours = [picstore.RandomResizedCrop(16), picstore.Normalize(MEAN, STD)]
    options: dict[str, Any] = {"isolate": False, "threads": 1}

    def images_of(make: Callable[[Any], Any], transform: Any) -> Any:
        loader = make(transform)
        images = next(iter(loader)).images
        loader.close()
        return images if isinstance(images, torch.Tensor) else torch.stack([*images.values()])

    kinds: list[Callable[[Any], Any]] = [
        lambda each: picstore.Loader(dataset, batch_size=4, transform=each, **options),
        lambda each: picstore.DataMux([(dataset, 0, 4)], transform=each, **options),
        lambda each: picstore.Loader(dataset, batch_size=4, transform=picstore.Views(a=(2, each)), **options),
        lambda each: picstore.Loader(dataset, batch_size=4, transform=picstore.Progressive({0: each}), **options),
        lambda each: picstore.Loader(
            dataset, batch_size=4, transform=picstore.Buckets([(16, 16)], lambda size: each), **options
        ),
    ]
    for make in kinds:
        one, other = images_of(make, listed), images_of(make, ours)
        assert one.dtype == torch.float32 and torch.equal(one, other)


def test_a_dtype_that_the_loader_is_given_has_precedence(dataset: picstore.Dataset) -> None:
    listed = [v2.CenterCrop(16), FLOATS]
    for dtype, expected in ((None, torch.float32), (torch.uint8, torch.uint8), (torch.float16, torch.float16)):
        image, _ = picstore.MapDataset(dataset, transform=listed, dtype=dtype)[0]
        assert image.dtype == expected
    views = picstore.Views(a=(1, listed), b=(1, [v2.CenterCrop(16), v2.ToDtype(torch.float16, scale=True)]))
    with pytest.raises(UsageError, match="convert to float16, float32; give all the same"):
        picstore.Loader(dataset, batch_size=4, transform=views)


def test_after_a_callable_conversions_and_normalize_take_what_it_returned(dataset: picstore.Dataset) -> None:
    listed = [v2.CenterCrop(16), picstore.PerImage(lambda image: image // 2), FLOATS, v2.Normalize(MEAN, STD)]
    loader = picstore.Loader(dataset, batch_size=8, shuffle=False, transform=listed, isolate=False, threads=1)
    (batch,) = loader
    loader.close()
    halves = torch.stack([v2.CenterCrop(16)(decoded(dataset, k)) // 2 for k in range(8)])
    assert torch.allclose(batch.images, v2.Normalize(MEAN, STD)(halves / 255), atol=1e-6)


@pytest.mark.filterwarnings("ignore:The image decoding and encoding capabilities of TorchVision are deprecated")
def test_random_jpegs_are_drawn_for_each_image(dataset: picstore.Dataset) -> None:
    loader = picstore.Loader(
        dataset.select([0]),
        batch_size=8,
        aug_repeats=8,
        transform=[v2.CenterCrop(32), v2.JPEG((5, 95))],
        isolate=False,
        threads=1,
    )
    (batch,) = loader
    loader.close()
    assert len({image.numpy().tobytes() for image in batch.images}) > 4


def test_importing_a_plan_imports_no_torchvision() -> None:
    import subprocess
    import sys

    program = (
        "import sys, picstore.train.transforms.transform_plan; print({'torch', 'torchvision'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()", Path(done.stdout)


@pytest.mark.parametrize("recipe", [picstore.recipes.simclr, [picstore.recipes.mae], (picstore.recipes.evaluation,)])
def test_a_recipe_that_is_not_called_is_named_with_its_call(recipe: Any) -> None:
    with pytest.raises(UsageError, match=r"function picstore\.recipes\.\w+; write picstore\.recipes\.\w+"):
        plan_transforms(recipe)


def test_timms_evaluation_transform_is_taken_as_it_is() -> None:
    timm_data = pytest.importorskip("timm.data")
    for size, ours in ((224, picstore.recipes.evaluation(224)), ((96, 96), None)):
        transform = timm_data.create_transform(size, is_training=False, crop_pct=0.875)
        (group,) = plan_transforms(transform)[0].groups
        assert [type(each).__name__ for each in (*group.geometry, *group.color)] == [
            "Resize",
            "CenterCrop",
            "Normalize",
        ]
        assert ours is None or repr(group.geometry[1]) in (repr(ours[1]), "CenterCrop((224, 224))")
    bytes_of = timm_data.create_transform(224, is_training=False, use_prefetcher=True)
    assert not plan_transforms(bytes_of)[0].normalizes


def test_timms_other_evaluation_transforms_lead_to_the_recipe() -> None:
    timm_data = pytest.importorskip("timm.data")
    transform = timm_data.create_transform(224, is_training=False, crop_mode="border")
    with pytest.raises(UsageError, match=r"picstore\.recipes\.evaluation\(size\) for timm's create_transform"):
        plan_transforms(transform)
    with pytest.raises(UsageError, match=r"recipes\.timm_default"):
        plan_transforms(timm_data.create_transform(224, is_training=True))
