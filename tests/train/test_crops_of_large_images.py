"""Crops of large images: batches are those of containers read whole, for fewer bytes."""

from __future__ import annotations

import contextlib
import io
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
import torch
from PIL import Image

import picstore
from picstore.prepare.convert.row_division import DatasetShape
from picstore.storage import dataset_reader
from picstore.storage.format import segment_table
from picstore.storage.format.segment_table import row_ends
from picstore.storage.location.resolve import locate
from picstore.train.batching.views_reach import needed_rows
from picstore.train.order.requests import TrainingSource
from picstore.train.transforms.transform_plan import plan_transforms

COUNT, WIDTH, HEIGHT = 12, 640, 1600
CROPS = {
    "crop": [picstore.RandomCrop(64), picstore.RandomHorizontalFlip()],
    "shrunk": [picstore.RandomCrop((200, 320)), picstore.Resize((25, 40))],
    "resized": [picstore.Resize(800), picstore.RandomCrop(96)],
    "resized crop": [picstore.RandomResizedCrop(64, scale=(0.01, 0.1))],
    "rotated": [picstore.RandomCrop(96), picstore.RandomRotation(30)],
    "reflected": [picstore.RandomCrop(96, 60, padding_mode="reflect")],
    "bicubic": [picstore.RandomResizedCrop(64, interpolation="bicubic")],
    "all": [picstore.Resize((64, 64))],
}


def smooth(seed: int) -> np.ndarray[Any, Any]:
    """Noise on 8 × 8 pixels, so that interpolation and scaled decoding show."""
    small = np.random.default_rng(seed).integers(0, 256, (HEIGHT // 8, WIDTH // 8, 3), np.uint8)
    return small.repeat(8, axis=0).repeat(8, axis=1)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("large") / "set"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment_table, "MIN_BYTES", 0)
        shape = DatasetShape(streams=2, container_size=1 << 20)
        with picstore.Writer(path, classes=["a", "b"], shape=shape, attachments=["mask"]) as writer:
            for k in range(COUNT):
                mask = io.BytesIO()
                Image.new("L", (WIDTH, HEIGHT), k).save(mask, "PNG")
                jpeg = simplejpeg.encode_jpeg(smooth(k), quality=95)
                writer.add(jpeg, label=k % 2, attachments={"mask": mask.getvalue()})
        yield path


@pytest.fixture
def in_part(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Switches reading in part on or off."""
    return lambda on: monkeypatch.setattr(dataset_reader, "MIN_MEAN", 0 if on else 1 << 40)


def batches(root: Path | str, transform: list[Any], **options: Any) -> list[Any]:
    """Batches of two epochs."""
    loader = picstore.Loader(root, transform=transform, **{"batch_size": 5, "threads": 2, "isolate": False, **options})
    with contextlib.closing(loader):
        return [batch for _ in range(2) for batch in loader]


def same(batches: list[Any], others: list[Any]) -> bool:
    pairs = list(zip(batches, others, strict=True))
    return bool(pairs) and all(
        one.ids.tolist() == other.ids.tolist() and torch.equal(one.images, other.images) for one, other in pairs
    )


def share_read(root: Path | str, transform: list[Any], gap: float | None = None) -> float:
    """What an epoch reads of the data set."""
    dataset = picstore.Dataset(root)
    plan = plan_transforms(transform, reducing_gap=gap)[0]
    rows_of = partial(needed_rows, TrainingSource(dataset, seed=0, plan=plan), 0, 1 << 28)
    read = dataset.containers.read_in_part(range(len(dataset.rows)), rows_of, mask=dataset.live.mask, attachments=False)
    return sum(each.read_size for each in read) / int(dataset.rows["size"].sum())  # type: ignore[union-attr]


@pytest.mark.parametrize("name", CROPS)
def test_batches_are_those_of_whole_containers(root: Path, in_part: Callable[[bool], None], name: str) -> None:
    in_part(False)
    assert share_read(root, CROPS[name]) == 1
    whole = batches(root, CROPS[name])
    in_part(True)
    assert (share_read(root, CROPS[name]) == 1) == (name == "all")
    assert same(batches(root, CROPS[name]), whole)


@pytest.mark.parametrize("sampling", ["440", "420"])
def test_batches_of_images_decoded_smaller_are_those_of_whole_containers(
    tmp_path: Path, in_part: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch, sampling: str
) -> None:
    """Chroma of 4:4:0 is interpolated down, across rows of tiles."""
    monkeypatch.setattr(segment_table, "MIN_BYTES", 0)
    with picstore.Writer(tmp_path / "set", shape=DatasetShape(streams=2, container_size=1 << 20)) as writer:
        for k in range(8):
            noise = np.random.default_rng(k).integers(0, 256, (900, 120, 3), np.uint8)
            writer.add(simplejpeg.encode_jpeg(noise, quality=80, colorsubsampling=sampling))
    steps = [picstore.RandomResizedCrop((12, 12), scale=(0.02, 0.3))]
    in_part(False)
    whole = batches(tmp_path / "set", steps, reducing_gap=1.0, batch_size=4)
    in_part(True)
    assert share_read(tmp_path / "set", steps, 1.0) < 0.9
    assert same(batches(tmp_path / "set", steps, reducing_gap=1.0, batch_size=4), whole)


@pytest.mark.parametrize("repeat", [2, 9])
def test_the_crops_of_all_copies_of_a_record_are_read(root: Path, in_part: Callable[[bool], None], repeat: int) -> None:
    found = []
    for on in (True, False):
        in_part(on)
        found.append(batches(root, CROPS["crop"], repeat=repeat, on_damage="raise"))
    assert same(*found)


def test_a_small_crop_reads_a_small_part(root: Path, in_part: Callable[[bool], None]) -> None:
    in_part(True)
    assert share_read(root, CROPS["crop"]) < 0.4


@pytest.mark.slow
def test_images_of_a_megabyte_are_read_in_part_by_the_loaders_process(
    tmp_path: Path, in_part: Callable[[bool], None]
) -> None:
    with picstore.Writer(tmp_path / "set") as writer:
        for seed in range(4):
            noise = np.random.default_rng(seed).integers(0, 256, (1600, 800, 3), np.uint8)
            writer.add(simplejpeg.encode_jpeg(noise, quality=80))
    assert share_read(tmp_path / "set", CROPS["crop"]) < 0.4
    made = batches(tmp_path / "set", CROPS["crop"], batch_size=2, isolate=True)
    in_part(False)
    assert same(batches(tmp_path / "set", CROPS["crop"], batch_size=2), made)


def test_targets_come_with_the_crops(root: Path, in_part: Callable[[bool], None]) -> None:
    options = {"targets": ["mask"]}
    in_part(True)
    for batch in batches(root, CROPS["crop"], **options):
        for id_, target in zip(batch.ids.tolist(), batch.targets, strict=True):
            assert target["mask"].shape == (64, 64) and bool((target["mask"] == id_).all())


def test_a_row_that_fails_its_checksum_is_damage_with_its_name(
    root: Path, tmp_path: Path, in_part: Callable[[bool], None]
) -> None:
    copy = Path(shutil.copytree(root, tmp_path / "copy"))
    container = picstore.Dataset(copy).containers.read(0)
    ends = row_ends(container.info(0), int(container.index["length"][0]))
    assert ends is not None
    path = copy / container.ref.name
    data = bytearray(path.read_bytes())
    for row in range(len(ends) - 1):
        data[container.ref.offset + int(container.index["offset"][0]) + int(ends[row]) + 5] ^= 1
    path.write_bytes(data)
    lost = int(container.index["id"][0])
    in_part(True)
    with pytest.raises(picstore.Damage, match=rf"tile row \d+ of record {lost} fails its CRC") as caught:
        batches(copy, CROPS["crop"], on_damage="raise")
    assert caught.value.file == str(path) and caught.value.offset > 4096
    loader = picstore.Loader(copy, transform=CROPS["crop"], batch_size=4, threads=1, isolate=False)
    with contextlib.closing(loader):
        ids = [id_ for batch in loader for id_ in batch.ids.tolist()]
        assert lost not in ids and len(ids) == COUNT and loader.damaged == 1


@pytest.mark.slow
def test_a_data_set_in_a_store_is_read_in_part(root: Path, bucket: str, in_part: Callable[[bool], None]) -> None:
    for name, _ in locate(root).files():
        (locate(root) / name).copy_to(locate(f"{bucket}/set") / name)
    in_part(False)
    whole = batches(root, CROPS["crop"])
    in_part(True)
    assert share_read(f"{bucket}/set", CROPS["crop"]) < 0.4
    assert same(batches(f"{bucket}/set", CROPS["crop"]), whole)


def test_a_lost_container_costs_its_records_whatever_size_a_crop_has(root: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(root, tmp_path / "copy"))
    path = copy / picstore.Dataset(copy).containers.container_ref(0).name
    path.write_bytes(path.read_bytes()[:4096])
    loader = picstore.Loader(copy, transform=CROPS["crop"], batch_size=COUNT, threads=1, isolate=False)
    with contextlib.closing(loader):
        (batch,) = loader
        assert batch.images.shape == (COUNT, 3, 64, 64) and loader.damaged > 0
