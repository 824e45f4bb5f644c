"""Batches of every recipe from picstore's decoder on a GPU: the CPU loader's, to the bit.

Without a GPU the kernels run in Triton's interpreter, and pictures are small there.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from grids import slow_except
from samples import picture

import picstore
from picstore import recipes
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
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, nothing_ahead: None) -> str:
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


@pytest.mark.parametrize(
    ("name", "dtype"),
    slow_except([("mae", "bfloat16")], ((name, DTYPES[k % 3]) for k, name in enumerate(SIZES)), when=INTERPRETED),
)
def test_a_recipes_batches_are_the_cpus(path: Path, device: str, name: str, dtype: str) -> None:
    steps = SIZES[name](12 if device == "cpu" else 224)
    options: dict[str, Any] = {"batch_size": 1, "transform": steps, "seed": 3, "isolate": False, "threads": 1}
    layout = torch.contiguous_format if dtype == "float32" else torch.channels_last
    options |= {"dtype": getattr(torch, dtype), "memory_format": layout}
    one = picstore.Loader(path, decoder="picstore", device=device, **options)
    other = picstore.Loader(path, **options)
    for batch, expected in zip(one, other, strict=True):
        assert torch.equal(batch.ids.cpu(), expected.ids) and torch.equal(batch.labels.cpu(), expected.labels)
        pairs = list(zip(all_images(batch), all_images(expected), strict=True))
        for ours, theirs in pairs:
            assert torch.equal(ours.cpu(), theirs)
            assert ours.is_contiguous(memory_format=layout) == theirs.is_contiguous(memory_format=layout)
    assert one.stats.fallbacks == 0
    one.close(), other.close()
