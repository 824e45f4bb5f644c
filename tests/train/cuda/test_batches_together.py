"""Batches that one set of launches decodes and augments: each is what the CPU makes of it, damaged ones too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
import torch
from grids import slow_except
from hostile import claiming, write_dataset

import picstore
from picstore.errors import Corrupt, UsageError
from picstore.jpeg.transcode import add_restart_markers
from picstore.prepare.image.training_jpeg import parse_image_info
from picstore.storage.format.record import Record
from picstore.train.pipeline import runner
from picstore.train.pipeline.device_decoding import DecodeTiles, Finish, MadeBatch
from picstore.train.pipeline.to_device import AheadStage

pytestmark = pytest.mark.interpreted
CROP: list[Any] = [picstore.RandomResizedCrop((5, 7), scale=(0.5, 1.0)), picstore.RandomHorizontalFlip()]
VIEWS = picstore.Views(
    large=(1, [picstore.Resize((9, 8)), picstore.RandomRotation(30)]), small=(2, [picstore.RandomResizedCrop(6)])
)
STEPS = {"stacked": CROP, "listed": [picstore.RandomVerticalFlip()], "views": VIEWS}


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Has stages make three batches at a time, when the first is asked for; the numbers of batches made together."""
    if torch.cuda.is_available():
        pytest.skip("replaces the stage, whose threads need streams of their own on a GPU")
    waiting: list[Finish] = []
    sizes: list[int] = []
    choose = runner.choose_decoder
    monkeypatch.setattr(runner, "choose_decoder", lambda name, at: name if name == "picstore" else choose(name, at))

    def receive(stage: AheadStage) -> MadeBatch | None:
        if not waiting:
            hosts = [host for _ in range(3) if not sizes and (host := stage._source.receive()) is not None]
            sizes.append(len(hosts))
            waiting.extend(stage._make.start(hosts) if hosts else [])
        return waiting.pop(0)().hand_over() if waiting else None

    monkeypatch.setattr(AheadStage, "receive", receive)
    return sizes


def records(*, broken: tuple[int, ...] = ()) -> Iterator[Record]:
    """Six pictures of three samplings; one without tiles, and broken ones."""
    for number, sampling in enumerate(("444", "420", "422", "420", "444", "420")):
        y, x = np.mgrid[: 16 + 3 * number, :24]
        levels = np.stack([60 + 3.0 * x + number, 200 - 2.0 * y, 90.0 + x + y], 2).astype(np.uint8)
        plain = simplejpeg.encode_jpeg(levels, 50, colorsubsampling=sampling)
        tiles = add_restart_markers(plain)
        whole = Record(id=number, label=10 + number, jpeg=tiles, info=parse_image_info(tiles))
        if number in broken:
            end = tiles.index(b"\xff\xd0")
            yield replace(whole, jpeg=tiles[: end - 2] + b"\xfe\xfe" + tiles[end:], crc=None)
        elif number == 4:
            yield replace(claiming(number, *levels.shape[1::-1]), label=14, jpeg=plain, crc=None)
        else:
            yield whole


def images_of(batch: picstore.Batch) -> list[torch.Tensor]:
    groups = batch.images.values() if isinstance(batch.images, dict) else [batch.images]
    return [image for group in groups for image in group]


@pytest.mark.parametrize("steps", slow_except(["stacked"], list(STEPS)))
def test_batches_decoded_together_are_the_cpus(tmp_path: Path, sizes: list[int], steps: str) -> None:
    path = write_dataset(tmp_path / "set", list(records(broken=(1,))))
    given: dict[str, Any] = {
        "batch_size": 2, "threads": 1, "isolate": False, "transform": STEPS[steps], "seed": 5, "shuffle": False,
    }  # fmt: skip
    one, other = picstore.Loader(path, decoder="picstore", **given), picstore.Loader(path, **given)
    batches = list(zip(one, other, strict=True))
    assert len(batches) == 3 and sizes[0] == 3
    for batch, expected in batches:
        assert batch.ids.tolist() == expected.ids.tolist() and batch.labels.tolist() == expected.labels.tolist()
        pairs = list(zip(images_of(batch), images_of(expected), strict=True))
        assert all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)
    assert one.stats.fallbacks >= 2 and one.damaged == other.damaged
    assert one.damaged or steps != "listed"  # which show all of the broken image
    memory = {images_of(batch)[0].untyped_storage().data_ptr() for batch, _ in batches}
    assert len(memory) == 3  # so that a batch that is kept keeps no other
    one.close(), other.close()


@pytest.mark.slow
def test_damage_ends_the_batch_that_has_it_and_no_earlier_one(tmp_path: Path, sizes: list[int]) -> None:
    path = write_dataset(tmp_path / "set", list(records(broken=(3,))))
    loader = picstore.Loader(
        path, decoder="picstore", batch_size=2, threads=1, isolate=False, transform=CROP, shuffle=False,
        on_damage="raise",
    )  # fmt: skip
    batches = iter(loader)
    assert next(batches).labels.tolist() == [10, 11]
    with pytest.raises(Corrupt, match="record 3 "):
        next(batches)
    assert sizes[0] == 3
    loader.close()


def test_batches_are_made_together_up_to_a_number_and_a_size(
    tmp_path: Path, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    from picstore.train.pipeline import device_decoding

    taken: list[tuple[bool, bool, bool]] = []

    def start(make: DecodeTiles, hosts: Any) -> list[Finish]:
        values = 3 * 5 * 7 * 2
        for most in (3 * values, 3 * values - 1):
            monkeypatch.setattr(device_decoding, "_MOST_VALUES", most)
            taken.append((make.takes(hosts[:2]), make.takes(hosts), make.takes([*hosts, *hosts])))
        raise UsageError("enough")

    monkeypatch.setattr(DecodeTiles, "start", start)
    path = write_dataset(tmp_path / "set", list(records()))
    with pytest.raises(UsageError, match="enough"):
        next(iter(picstore.Loader(path, decoder="picstore", batch_size=2, threads=1, isolate=False, transform=CROP)))
    assert taken == [(True, True, False), (True, False, False)]
