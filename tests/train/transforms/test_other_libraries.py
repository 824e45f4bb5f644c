"""Albumentations by PerImage, Kornia as a bare callable: the examples of docs/transforms.md."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import picstore

PAGE = Path(__file__).parents[3] / "docs" / "transforms.md"
Make = Callable[..., Path]


def loader_of(library: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> picstore.Loader:
    """What the library's section of the page makes, of a data set named train."""
    pytest.importorskip(library)
    (code,) = re.findall(rf"^## {library}$.*?^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S | re.I)
    monkeypatch.chdir(path.parent)
    names: dict[str, Any] = {"torch": torch, "picstore": picstore}
    exec(code, names)  # noqa: S102 - our own page
    loader: picstore.Loader = names["loader"]
    return loader


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("library", ["albumentations", "kornia"])
def test_the_example_draws_for_each_image_and_the_same_after_a_resume(
    make_dataset: Make, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    path = make_dataset(16, name="train")
    with contextlib.closing(loader_of(library, path, monkeypatch)) as loader:
        batches = [batch.images.clone() for batch in loader]
    dtype = batches[0].dtype
    plain = [picstore.RandomResizedCrop(64), picstore.RandomHorizontalFlip()]
    with contextlib.closing(picstore.Loader(path, batch_size=4, transform=plain, dtype=dtype, isolate=False)) as bare:
        changed = [one != other for one, other in zip(batches, (batch.images for batch in bare), strict=True)]
    assert sum(bool(image.any()) for images in changed for image in images) >= 4
    with contextlib.closing(loader_of(library, path, monkeypatch)) as resumed:
        resumed.load_state_dict(resumed.state_at(0, 2))
        assert torch.equal(next(iter(resumed)).images, batches[2])
