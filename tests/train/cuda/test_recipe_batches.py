"""Batches of every recipe from picstore's decoder on a GPU: the CPU loader's, to the bit.

Without a GPU the kernels run in Triton's interpreter, and pictures are small there.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
import torch
from grids import slow_except
from hostile import write_dataset
from samples import picture

import picstore
from picstore import recipes
from picstore.jpeg.transcode import add_restart_markers
from picstore.prepare.image.training_jpeg import parse_image_info
from picstore.storage.format.record import Record
from picstore.train.pipeline import runner

pytest.importorskip("triton")

from picstore.train.cuda.triton_jit import INTERPRETED

SIZES: dict[str, Callable[[int], Any]] = {
    "evaluation": lambda size: recipes.evaluation(size, size + size // 8),
    "torchvision_resnet50_v2": recipes.torchvision_resnet50_v2,
    "timm_default": recipes.timm_default,
    "deit3": recipes.deit3,
    "open_clip": recipes.open_clip,
    "mae": recipes.mae,
    "simclr": recipes.simclr,
    "dinov2": lambda size: recipes.dinov2(size, size // 2, local_views=2),
    "detr": lambda size: recipes.detr(sizes=[size, size + 8], max_size=2 * size),
}
DTYPES = ["float32", "float16", "bfloat16"]


@pytest.fixture(
    params=[pytest.param("cpu", marks=pytest.mark.interpreted), pytest.param("cuda", marks=pytest.mark.cuda)]
)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where the kernels run: on the CPU, interpreted, or on a GPU."""
    if (request.param == "cpu") != INTERPRETED:
        pytest.skip("Triton runs kernels on the CPU where TRITON_INTERPRET=1, on the GPU elsewhere")
    choose = runner.choose_decoder
    monkeypatch.setattr(
        runner, "choose_decoder", lambda name, device: name if name == "picstore" else choose(name, device)
    )
    return str(request.param)


@pytest.fixture
def path(tmp_path: Path, device: str) -> Path:
    """Pictures; on the CPU one of few coefficients, as the interpreter takes a millisecond for each."""
    with picstore.Writer(tmp_path / "set") as writer:
        for number, (width, height) in enumerate([(37, 21), (18, 26), (50, 50)][: 1 if device == "cpu" else 3]):
            if device == "cpu":
                y, x = np.mgrid[:height, :width]
                image = np.stack([40 + 5 * x, 200 - 4 * y, 90 + 2 * x + 3 * y], axis=2).astype(np.uint8)
            else:
                image = picture(number, width=12 * width, height=12 * height)
            writer.add(image, label=number)
    return tmp_path / "set"


def all_images(batch: picstore.Batch) -> list[torch.Tensor]:
    groups = batch.images.values() if isinstance(batch.images, dict) else [batch.images]
    found: list[torch.Tensor] = []
    for group in groups:
        parts = [group] if isinstance(group, torch.Tensor) else list(group)
        while any(isinstance(part, list) for part in parts):
            parts = [each for part in parts for each in (part if isinstance(part, list) else [part])]
        found += parts
    return found


def steps_of(images: torch.Tensor) -> list[int]:
    """Strides, but for sides of 1, where any will do."""
    return [step for step, size in zip(images.stride(), images.shape, strict=True) if size > 1]


def assert_equal_batches(path: Path, device: str, **options: Any) -> None:
    """Compare all batches of an epoch, decoded by picstore's kernels, with the CPU's."""
    given = {"seed": 3, "isolate": False, "threads": 1, **options}
    one, other = picstore.Loader(path, decoder="picstore", device=device, **given), picstore.Loader(path, **given)
    count = 0
    for batch, expected in zip(one, other, strict=True):
        assert torch.equal(batch.ids.cpu(), expected.ids) and torch.equal(batch.labels.cpu(), expected.labels)
        for ours, theirs in zip(all_images(batch), all_images(expected), strict=True):
            assert ours.dtype == theirs.dtype and steps_of(ours) == steps_of(theirs)
            assert torch.equal(ours.cpu(), theirs)
        count += 1
    assert count and one.stats.fallbacks == 0
    one.close(), other.close()


@pytest.mark.usefixtures("nothing_ahead")
@pytest.mark.parametrize(
    ("name", "dtype"),
    slow_except([("mae", "bfloat16")], ((name, DTYPES[k % 3]) for k, name in enumerate(SIZES)), when=INTERPRETED),
)
def test_a_recipes_batches_are_the_cpus(path: Path, device: str, name: str, dtype: str) -> None:
    layout = torch.contiguous_format if dtype == "float32" else torch.channels_last
    steps = SIZES[name](12 if device == "cpu" else 224)
    options = {"transform": steps, "dtype": getattr(torch, dtype), "memory_format": layout}
    assert_equal_batches(path, device, batch_size=1, **options)


@pytest.fixture
def mixed(tmp_path: Path, device: str) -> Path:
    """Records of three samplings; on the CPU small ones of few coefficients."""
    records = []
    for number, (sampling, width, height) in enumerate([("420", 18, 11), ("444", 9, 15), ("grey", 14, 10)]):
        y, x = np.mgrid[:height, :width]
        levels = np.stack([40 + 5 * x, 200 - 4 * y, 90 + 2 * x + 3 * y], axis=2).astype(np.uint8)
        if device == "cuda":
            levels = picture(number, width=12 * width, height=12 * height)
        if sampling == "grey":
            jpeg = simplejpeg.encode_jpeg(np.ascontiguousarray(levels[:, :, :1]), 50, "GRAY")
        else:
            jpeg = simplejpeg.encode_jpeg(levels, 50, colorsubsampling=sampling)
        jpeg = add_restart_markers(jpeg)
        records.append(Record(id=number, label=number, jpeg=jpeg, info=parse_image_info(jpeg)))
    return write_dataset(tmp_path / "mixed", records)


def without_normalize(steps: Any) -> Any:
    """A recipe whose images are bytes."""
    if isinstance(steps, picstore.Views):
        groups = {name: (count, without_normalize(each)) for name, (count, each) in steps.groups.items()}
        return picstore.Views(**groups)
    return [step for step in steps if not isinstance(step, picstore.Normalize)]


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_ahead")
@pytest.mark.parametrize(
    ("name", "dtype", "layout"),
    slow_except(
        [
            # Each of them.
            ("mae", torch.uint8, torch.contiguous_format),
            ("simclr", torch.bfloat16, torch.channels_last),
            ("detr", torch.float32, torch.contiguous_format),
        ],
        [
            # Each pair of two of them.
            ("mae", torch.uint8, torch.contiguous_format),
            ("mae", torch.float32, torch.channels_last),
            ("mae", torch.bfloat16, torch.contiguous_format),
            ("simclr", torch.uint8, torch.channels_last),
            ("simclr", torch.float32, torch.contiguous_format),
            ("simclr", torch.bfloat16, torch.channels_last),
            ("detr", torch.uint8, torch.contiguous_format),
            ("detr", torch.float32, torch.contiguous_format),
            ("detr", torch.bfloat16, torch.channels_last),
        ],
        when=INTERPRETED,
        mark=pytest.mark.nightly,
    ),
    ids=str,
)
def test_batches_of_mixed_samplings_are_the_cpus_in_each_dtype_and_layout(
    mixed: Path, device: str, name: str, dtype: torch.dtype, layout: torch.memory_format
) -> None:
    steps = SIZES[name](10 if device == "cpu" else 224)
    if dtype == torch.uint8:
        steps = without_normalize(steps)
    assert_equal_batches(mixed, device, batch_size=3, transform=steps, dtype=dtype, memory_format=layout)


@pytest.mark.slow
def test_two_processes_make_batches_for_picstores_decoder_as_one_does(mixed: Path, device: str) -> None:
    steps = [picstore.RandomCrop(8, pad_if_needed=True), picstore.RandomHorizontalFlip()]
    assert_equal_batches(mixed, device, batch_size=1, transform=steps, isolate=True, processes=2, threads=2)
