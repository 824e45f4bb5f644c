"""Recipes: the augmentations of published training runs, for the argument ``transform`` of a Loader.

Each function returns the list of transforms, or the Views, of a published training run. Its docstring says how the run
mixes batches (MixUp, CutMix) and how often it repeats a record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

from picstore.errors import UsageError
from picstore.train.transforms.auto_augment import TrivialAugmentWide
from picstore.train.transforms.blur_noise_erasing import GaussianBlur, RandomErasing
from picstore.train.transforms.choices import RandomApply, RandomChoice
from picstore.train.transforms.color import ColorJitter, Normalize, RandomGrayscale, RandomSolarize
from picstore.train.transforms.crops import CenterCrop, RandomHorizontalFlip, RandomResizedCrop
from picstore.train.transforms.detection import RandomSizeCrop
from picstore.train.transforms.resizing import RandomShortestSize, Resize
from picstore.train.transforms.timm_augment import TimmAutoAugment
from picstore.train.transforms.views import Views

Channels: TypeAlias = tuple[float, float, float]
Transforms: TypeAlias = list[Any]

IMAGENET_MEAN: Channels = (0.485, 0.456, 0.406)
IMAGENET_STD: Channels = (0.229, 0.224, 0.225)
# Mean and standard deviation of red, green and blue, in [0, 1], by which CLIP normalizes images.
OPENAI_MEAN: Channels = (0.48145466, 0.4578275, 0.40821073)
OPENAI_STD: Channels = (0.26862954, 0.26130258, 0.27577711)
DETR_SIZES = tuple(range(480, 801, 32))


def evaluation(
    size: int = 224,
    resize: int = 256,
    interpolation: str = "bicubic",
    *,
    mean: Channels = IMAGENET_MEAN,
    std: Channels = IMAGENET_STD,
) -> Transforms:
    """Usual transforms for evaluation on ImageNet: resize the shorter side to ``resize``, and crop the center."""
    return [Resize(resize, interpolation=interpolation), CenterCrop(size), Normalize(mean, std)]


def torchvision_resnet50_v2(size: int = 176) -> Transforms:
    """Transforms with which torchvision trained ResNet-50's weights IMAGENET1K_V2.

    Source: references/classification, and "How to train state-of-the-art models using TorchVision's latest primitives",
    2021. The training repeated each record four times (``aug_repeats=4``), mixed batches by ``RandomChoice([MixUp(0.2),
    CutMix(1.0)])``, and evaluated by ``evaluation(224, 232, "bilinear")``.
    """
    return [
        RandomResizedCrop(size),
        RandomHorizontalFlip(),
        TrivialAugmentWide(interpolation="bilinear"),
        Normalize(IMAGENET_MEAN, IMAGENET_STD),
        RandomErasing(0.1),
    ]


def timm_default(
    size: int = 224,
    auto_augment: str | None = "rand-m9-mstd0.5-inc1",
    *,
    interpolation: str = "random",
    color_jitter: float = 0.4,
    erasing: float = 0.25,
    mean: Channels = IMAGENET_MEAN,
    std: Channels = IMAGENET_STD,
) -> Transforms:
    """Transforms of timm's ``create_transform(size, is_training=True, …)``, with its usual RandAugment.

    ``auto_augment`` replaces color jitter. Erased boxes are filled with normal noise (``re_mode="pixel"``). Training
    with timm mixes batches by ``MixUp(0.8)`` and ``CutMix(1.0)``.
    """
    steps: Transforms = [RandomResizedCrop(size, interpolation=interpolation), RandomHorizontalFlip()]
    if auto_augment is not None:
        outside = [min(255, round(255 * level)) for level in mean]
        steps.append(TimmAutoAugment(auto_augment, img_mean=outside, interpolation=interpolation))
    elif color_jitter:
        steps.append(ColorJitter(color_jitter, color_jitter, color_jitter))
    steps.append(Normalize(mean, std))
    if erasing:
        steps.append(RandomErasing(erasing, scale=(0.02, 1 / 3), ratio=(0.3, 1 / 0.3), value="random"))
    return steps


def deit3(size: int = 224, *, color_jitter: float = 0.3) -> Transforms:
    """DeiT III's 3-Augment: turn grey, solarize or blur, then jitter colors (Touvron et al., ECCV 2022).

    The training repeated each record three times (``aug_repeats=3``) and mixed batches by ``MixUp(0.8)`` and
    ``CutMix(1.0)``. The "simple random crop" for ImageNet-21k is left out, because it mirrors the border of the resized
    image, but picstore resizes and crops in one step.
    """
    return [
        RandomResizedCrop(size, interpolation="bicubic"),
        RandomHorizontalFlip(),
        TimmAutoAugment("3a"),
        ColorJitter(color_jitter, color_jitter, color_jitter),
        Normalize(IMAGENET_MEAN, IMAGENET_STD),
    ]


def open_clip(size: int = 224, scale: tuple[float, float] = (0.9, 1.0)) -> Transforms:
    """OpenCLIP's augmentation of images that have captions (``image_transform(…, is_train=True)``)."""
    return [RandomResizedCrop(size, scale=scale, interpolation="bicubic"), Normalize(OPENAI_MEAN, OPENAI_STD)]


def mae(size: int = 224, scale: tuple[float, float] = (0.2, 1.0)) -> Transforms:
    """Augmentation for the pretraining of masked autoencoders (He et al., CVPR 2022)."""
    crop = RandomResizedCrop(size, scale=scale, interpolation="bicubic")
    return [crop, RandomHorizontalFlip(), Normalize(IMAGENET_MEAN, IMAGENET_STD)]


def simclr(size: int = 224, strength: float = 1.0, *, scale: tuple[float, float] = (0.08, 1.0)) -> Views:
    """SimCLR's two random views of an image, in ``batch.views["views"]`` (Chen et al., ICML 2020, appendix A).

    The blur's kernel has sides of ``size // 10`` pixels, rounded up to an odd number.
    """
    jitter = ColorJitter(0.8 * strength, 0.8 * strength, 0.8 * strength, 0.2 * strength)
    blur = GaussianBlur(size // 10 // 2 * 2 + 1, (0.1, 2.0))
    steps = [
        RandomResizedCrop(size, scale=scale),
        RandomHorizontalFlip(),
        RandomApply([jitter], 0.8),
        RandomGrayscale(0.2),
        RandomApply([blur], 0.5),
        Normalize(IMAGENET_MEAN, IMAGENET_STD),
    ]
    return Views(views=(2, steps))


def dinov2(
    size: int = 224,
    local_size: int = 96,
    *,
    local_views: int = 8,
    scale: tuple[float, float] = (0.32, 1.0),
    local_scale: tuple[float, float] = (0.05, 0.32),
) -> Views:
    """DINOv2's views ``"global_1"``, ``"global_2"`` and, ``local_views`` times, ``"local"`` (Oquab et al., 2023).

    The parameters are those of ``DataAugmentationDINO`` in DINOv2's repository.
    """

    def views(side: int, area: tuple[float, float], *extra: Any) -> Transforms:
        return [
            RandomResizedCrop(side, scale=area, interpolation="bicubic"),
            RandomHorizontalFlip(),
            RandomApply([ColorJitter(0.4, 0.4, 0.2, 0.1)], 0.8),
            RandomGrayscale(0.2),
            *extra,
            Normalize(IMAGENET_MEAN, IMAGENET_STD),
        ]

    blur = GaussianBlur(9, (0.1, 2.0))
    return Views(
        global_1=(1, views(size, scale, blur)),
        global_2=(1, views(size, scale, RandomApply([blur], 0.1), RandomSolarize(128, 0.2))),
        local=(local_views, views(local_size, local_scale, RandomApply([blur], 0.5))),
    )


def detr(*, sizes: Sequence[int] = DETR_SIZES, max_size: int = 1333) -> Transforms:
    """DETR's augmentation: crop half of the images, and resize all to a random size (Carion et al., ECCV 2020).

    The images of a batch differ in size. Give ``targets=["boxes"]`` to move boxes with the image. An image to be
    cropped is first resized to a shorter side of 400, 500 or 600 pixels; the crop's sides are drawn from 384 to 600
    pixels, as in DETR's ``make_coco_transforms``. With other ``sizes``, these numbers scale in proportion to the
    smallest size.
    """
    unit = min(sizes) / min(DETR_SIZES)
    before = [round(side * unit) for side in (400, 500, 600)]
    cropped = [
        RandomShortestSize(before),
        RandomSizeCrop(round(384 * unit), round(600 * unit)),
        RandomShortestSize(sizes, max_size),
    ]
    return [
        RandomHorizontalFlip(),
        RandomChoice([RandomShortestSize(sizes, max_size), RandomApply(cropped, 1.0)]),
        Normalize(IMAGENET_MEAN, IMAGENET_STD),
    ]


NAMED: Mapping[str, Callable[[], Transforms | Views]] = MappingProxyType(
    {
        each.__name__: each
        for each in (evaluation, torchvision_resnet50_v2, timm_default, deit3, open_clip, mae, simclr, dinov2, detr)
    }
)


def find_recipe(given: str) -> tuple[list[Transforms | Views], dict[str, Any]]:
    """Return the recipe called ``given``, or those in the TOML file ``given``, which may have one per dataset.

    Returns:
        The recipes, and the file's loader options, {} without a file.

    Raises:
        UsageError: no recipe has this name, or the file cannot be used.
    """
    if not given.lower().endswith(".toml"):
        if given not in NAMED:
            raise UsageError(f"no recipe {given!r}; possible are {', '.join(NAMED)}, or a file FILE.toml")
        return [NAMED[given]()], {}
    from picstore.storage.location.resolve import checked_path
    from picstore.train.mux_config import read_toml

    config = read_toml(checked_path(given), needs_source=False)
    lists = [entry.transform for entry in config.entries if entry.transform is not None]
    if len(lists) < len(config.entries) or not lists:
        lists.append(config.transform)
    return [list(transforms) for transforms in lists], config.options
