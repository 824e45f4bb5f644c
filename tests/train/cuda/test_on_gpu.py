"""Each decoder on a GPU against the CPU's loader; without a GPU the tests' own steps run on the CPU alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
import torch

import picstore
from picstore.jpeg.transcode import add_restart_markers
from picstore.prepare.image.image_info import parse_image_info
from picstore.storage.format.record import Record
from picstore.train.pipeline import device_batch

SIZES = [(90, 70), (60, 16), (33, 200), (64, 64), (17, 9)]
KINDS = ["444", "422", "420", "440", "grey"]
LEVELS = {"picstore": 0, "cpu": 0, "torchvision": 60, "torchcodec": 60}  # nvJPEG repeats samples of chroma


@pytest.fixture(
    params=[
        pytest.param(("cuda", "picstore"), marks=pytest.mark.cuda),
        pytest.param(("cuda", "torchvision"), marks=pytest.mark.cuda),
        pytest.param(("cuda", "torchcodec"), marks=pytest.mark.cuda),
        pytest.param(("cuda", "cpu"), marks=pytest.mark.cuda),
        ("cpu", "cpu"),
    ],
    ids="-".join,
)
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Device and decoder."""
    device, decoder = request.param
    if decoder == "torchcodec":
        pytest.importorskip("torchcodec")
    return {"device": device, "decoder": decoder}


def encoded(kind: str, width: int, height: int, seed: int) -> bytes:
    y, x = np.mgrid[:height, :width]
    image = np.stack([128 + 90 * np.sin(x / 9 + seed), 128 + 90 * np.cos(y / 7), (x + y + 9 * seed) % 256], 2)
    image = image.astype(np.uint8)
    if kind == "grey":
        return add_restart_markers(simplejpeg.encode_jpeg(np.ascontiguousarray(image[:, :, :1]), 90, "GRAY"))
    return add_restart_markers(simplejpeg.encode_jpeg(image, 90, "RGB", kind))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Images of each sampling, also grey, small and one MCU high."""
    from hostile import write_dataset

    records = []
    for number, (kind, (width, height)) in enumerate((kind, size) for kind in KINDS for size in SIZES):
        data = encoded(kind, width, height, number)
        records.append(Record(id=number, label=number, jpeg=data, info=parse_image_info(data)))
    return write_dataset(tmp_path / "set", records)


def batches(path: Path, options: dict[str, Any], **others: Any) -> Iterator[tuple[picstore.Batch, picstore.Batch]]:
    """Batches of a loader with these options, and of the CPU's."""
    given = {"batch_size": 5, "seed": 3, "isolate": False, **others}
    one, other = picstore.Loader(path, **given, **options), picstore.Loader(path, **given)
    yield from zip(one, other, strict=True)
    assert one.stats.fallbacks == 0
    one.close(), other.close()


def assert_alike(ours: torch.Tensor, theirs: torch.Tensor, options: dict[str, Any]) -> None:
    assert ours.device.type == options["device"] and ours.shape == theirs.shape
    assert (ours.cpu().float() - theirs.float()).abs().max() <= LEVELS[options["decoder"]]


def test_whole_images_of_all_samplings_and_sizes_are_the_cpus(path: Path, options: dict[str, Any]) -> None:
    for ours, theirs in batches(path, options, transform=[]):
        for a, b in zip(ours.images, theirs.images, strict=True):
            assert_alike(a, b, options)


def test_small_crops_are_the_cpus(path: Path, options: dict[str, Any]) -> None:
    steps = [picstore.RandomResizedCrop(24, scale=(0.02, 0.2)), picstore.RandomHorizontalFlip()]
    for ours, theirs in batches(path, options, transform=steps):
        assert_alike(ours.images, theirs.images, options)


def test_views_and_columns_come_from_the_device(path: Path, options: dict[str, Any]) -> None:
    dataset = picstore.Dataset(path).with_columns({"score": np.arange(25.0)})
    views = picstore.Views(large=(2, [picstore.Resize((20, 30))]), small=(1, [picstore.Resize((8, 8))]))
    for ours, theirs in batches(dataset, options, transform=views, targets=["score"]):  # type: ignore[arg-type]
        for name in ("large", "small"):
            assert_alike(ours.views[name], theirs.views[name], options)
        assert ours.columns["score"].device.type == options["device"]
        assert torch.equal(ours.columns["score"].cpu(), theirs.columns["score"])


@pytest.mark.cuda
def test_memory_that_runs_out_on_a_gpu_is_an_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        return torch.empty(1 << 60, dtype=torch.uint8, device="cuda")

    monkeypatch.setattr(device_batch, "_augment", fail)
    loader = picstore.Loader(path, batch_size=5, device="cuda", decoder="picstore", transform=[], isolate=False)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        next(iter(loader))


@pytest.mark.cuda
def test_two_gpus_make_the_same_batches(path: Path) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    options = {"batch_size": 5, "transform": [picstore.Resize((20, 20))], "isolate": False}
    loaders = [picstore.Loader(path, device=f"cuda:{number}", **options) for number in (0, 1)]
    for one, other in zip(*loaders, strict=True):
        assert one.images.device != other.images.device and torch.equal(one.images.cpu(), other.images.cpu())
