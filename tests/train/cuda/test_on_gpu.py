"""Each decoder on a GPU against the CPU's loader; without a GPU a stand-in for nvJPEG, or the loaders on the CPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
import torch
from hostile import write_dataset

import picstore
from picstore.jpeg.transcode import add_restart_markers
from picstore.prepare.image.training_jpeg import parse_image_info
from picstore.storage.format.record import Record
from picstore.train.cpu import decode_crop
from picstore.train.pipeline import device_decoding, runner

SIZES = [(90, 70), (60, 16), (33, 200), (64, 64), (17, 9)]
KINDS = ["444", "422", "420", "440", "grey"]
NVJPEG = ("torchvision", "torchcodec")
ROUNDING = 4  # levels: inverse DCTs differ by one in each of Y, Cb and Cr, which makes 2.8 of blue, and one is rounded
ON_GPU = [pytest.param(("cuda", name), marks=pytest.mark.cuda) for name in ("picstore", *NVJPEG, "cpu")]
STAND_IN = pytest.param(("cpu", "torchvision"), marks=[pytest.mark.interpreted, pytest.mark.slow])
EVERY = [*ON_GPU, ("cpu", "cpu")]
with_stand_in = pytest.mark.parametrize("options", [*EVERY, STAND_IN], indirect=True, ids="-".join)


@pytest.fixture(params=EVERY, ids="-".join)
def options(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Device and decoder. Beside nvJPEG the CPU's loader repeats samples of chroma, as nvJPEG does."""
    device, decoder = request.param
    if decoder == "torchcodec":
        pytest.importorskip("torchcodec")
    if decoder in NVJPEG:
        request.getfixturevalue("stage_by_stage")
        refuse_or_decode = decode_crop.decode_rgb

        def decode_rgb(jpeg: Any, **size: Any) -> np.ndarray:
            refuse_or_decode(jpeg, **size)
            return repeating(bytes(jpeg))

        monkeypatch.setattr(decode_crop, "decode_rgb", decode_rgb)
    if request.param == STAND_IN.values[0]:
        request.getfixturevalue("nothing_ahead")
        monkeypatch.setattr(runner, "choose_decoder", lambda name, _: "cpu" if name == "auto" else name)
        monkeypatch.setattr(runner, "load_decoder", lambda *_: stand_in)
    return {"device": device, "decoder": decoder}


def repeating(jpeg: bytes) -> np.ndarray:
    """Pixels whose samples of chroma are repeated; interpolated ones differ by up to 87 levels here."""
    return simplejpeg.decode_jpeg(jpeg, "RGB", fastupsample=True)


def stand_in(streams: list[torch.Tensor]) -> list[torch.Tensor]:
    """Decodes as nvJPEG does."""
    try:
        return [torch.from_numpy(repeating(each.numpy().tobytes()).transpose(2, 0, 1)) for each in streams]
    except ValueError as error:
        raise RuntimeError("nvjpegDecodeBatched failed: 6") from error


def encoded(kind: str, width: int, height: int, seed: int) -> bytes:
    y, x = np.mgrid[:height, :width]
    image = np.stack([128 + 90 * np.sin(x / 9 + seed), 128 + 90 * np.cos(y / 7), (x + y + 9 * seed) % 256], 2)
    image = image.astype(np.uint8)
    if kind == "grey":
        return add_restart_markers(simplejpeg.encode_jpeg(np.ascontiguousarray(image[:, :, :1]), 90, "GRAY"))
    return add_restart_markers(simplejpeg.encode_jpeg(image, 90, "RGB", kind))


def write(path: Path, images: Iterable[tuple[str, tuple[int, int]]]) -> Path:
    records = []
    for number, (kind, (width, height)) in enumerate(images):
        data = encoded(kind, width, height, number)
        records.append(Record(id=number, label=number, jpeg=data, info=parse_image_info(data)))
    return write_dataset(path, records)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Images of each sampling, also grey, small and one MCU high."""
    return write(tmp_path / "set", product(KINDS, SIZES))


def batches(path: Path, options: dict[str, Any], **others: Any) -> Iterator[tuple[picstore.Batch, picstore.Batch]]:
    """Batches of a loader with these options, and of the CPU's."""
    given = {"batch_size": 5, "seed": 3, "isolate": False, **others}
    one, other = picstore.Loader(path, **given, **options), picstore.Loader(path, **given)
    yield from zip(one, other, strict=True)
    assert one.stats.fallbacks == 0 or options["decoder"] in NVJPEG  # which does not promise to take any small image
    one.close(), other.close()


def assert_alike(ours: torch.Tensor, theirs: torch.Tensor, options: dict[str, Any]) -> None:
    assert ours.device.type == options["device"] and ours.shape == theirs.shape
    levels = ROUNDING if options["decoder"] in NVJPEG else 0
    assert (ours.cpu().float() - theirs.float()).abs().max() <= levels


@with_stand_in
def test_whole_images_of_all_samplings_and_sizes_are_the_cpus(path: Path, options: dict[str, Any]) -> None:
    for ours, theirs in batches(path, options, transform=[]):
        for a, b in zip(ours.images, theirs.images, strict=True):
            assert_alike(a, b, options)


@with_stand_in
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


@pytest.mark.parametrize("options", [*ON_GPU[1:3], STAND_IN], indirect=True)
def test_nvjpeg_takes_all_that_its_documentation_promises(tmp_path: Path, options: dict[str, Any]) -> None:
    path = write(tmp_path / "set", product(("444", "422", "420", "grey"), [(90, 70), (64, 64)]))
    loader = picstore.Loader(path, batch_size=8, transform=[], isolate=False, **options)
    assert len(next(iter(loader)).labels) == 8 and loader.stats.fallbacks == 0
    loader.close()


def flipped(jpeg: bytes) -> bytes:
    """A JPEG with one bit flipped in its entropy-coded data, which libjpeg-turbo refuses."""
    for place in range(jpeg.index(b"\xff\xda") + 30, len(jpeg)):
        broken = jpeg[:place] + bytes([jpeg[place] ^ 1]) + jpeg[place + 1 :]
        if 0xFF not in (jpeg[place - 1], jpeg[place], broken[place]):  # no marker comes or goes
            try:
                simplejpeg.decode_jpeg(broken)
            except ValueError:
                return broken
    raise AssertionError("no bit matters")


@with_stand_in
def test_a_flipped_bit_harms_no_other_image_of_its_batch(tmp_path: Path, options: dict[str, Any]) -> None:
    sound = [encoded("420", 90, 70, number) for number in range(5)]
    streams = [*sound[:2], flipped(sound[2]), *sound[3:]]
    records = [Record(id=k, label=k, jpeg=data, info=parse_image_info(sound[k])) for k, data in enumerate(streams)]
    path = write_dataset(tmp_path / "set", records)
    given = {"batch_size": 5, "shuffle": False, "transform": [], "isolate": False}
    one, other = picstore.Loader(path, **given, **options), picstore.Loader(path, **given)
    ours, theirs = next(iter(one)), next(iter(other))
    assert other.damaged == 1 and theirs.ids[2] != 2
    found = one.stats.fallbacks == (options["decoder"] != "cpu")
    assert one.damaged == found and (found or options["decoder"] in NVJPEG)  # which does not promise to find damage
    for k in range(5) if found else [0, 1, 3, 4]:
        assert ours.ids[k] == theirs.ids[k] and ours.labels[k] == theirs.labels[k]
        assert_alike(ours.images[k], theirs.images[k], options)
    one.close(), other.close()


@pytest.mark.parametrize("options", ON_GPU[:3], indirect=True)
def test_memory_that_runs_out_on_a_gpu_is_an_error(
    path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        return torch.empty(1 << 60, dtype=torch.uint8, device="cuda")

    monkeypatch.setattr(device_decoding, "augment_batches", fail)
    loader = picstore.Loader(path, batch_size=5, transform=[], isolate=False, **options)
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


@pytest.mark.cuda
def test_batches_that_a_gpu_decodes_together_are_the_cpus(
    make_dataset: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    start = device_decoding.DecodeTiles.start

    def noting(make: device_decoding.DecodeTiles, hosts: Any) -> Any:
        sizes.append(len(hosts))
        return start(make, hosts)

    monkeypatch.setattr(device_decoding.DecodeTiles, "start", noting)
    path = make_dataset(120, width=90, height=70)
    given: dict[str, Any] = {"batch_size": 4, "transform": [picstore.RandomResizedCrop(32)], "seed": 3}
    one, other = picstore.Loader(path, device="cuda", **given), picstore.Loader(path, **given)
    for batch, expected in zip(one, other, strict=True):
        time.sleep(0.01)  # so that batches wait
        assert torch.equal(batch.images.cpu(), expected.images) and torch.equal(batch.labels.cpu(), expected.labels)
    assert max(sizes) > 1 and one.stats.fallbacks == 0
    one.close(), other.close()
