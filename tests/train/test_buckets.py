"""Buckets: batches of several sizes, each of records whose aspect ratios are alike."""

from __future__ import annotations

import json
import math
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from grids import slow_except
from samples import picture
from torch.utils.data import DataLoader

import picstore
from picstore.errors import UsageError
from picstore.prepare.convert.row_division import DatasetShape

Make = Callable[..., Path]
SIZES = [(32, 32), (24, 40), (40, 24)]


def crops(size: tuple[int, int]) -> list[Any]:
    return [picstore.RandomResizedCrop(size, scale=(0.5, 1)), picstore.RandomHorizontalFlip()]


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """120 pictures of which most are wide, in containers of five or so."""
    path = tmp_path_factory.mktemp("buckets") / "dataset"
    shape = DatasetShape(streams=2, container_size=16 << 10, file_size=64 << 10)
    with picstore.Writer(path, classes=list("abcde"), shape=shape) as writer:
        for number in range(120):
            width, height = (60, 40) if number % 7 else (40, 60) if number % 2 else (50, 48)
            objects = {"objects": [{"bbox": [5, 5, 20, 20], "label": 1}]}
            image = picture(number, width=width + number % 5, height=height + number % 3)
            writer.add(image, label=number % 5, extra=objects)
    return path


def loader_of(dataset: Path | picstore.Dataset, **options: Any) -> picstore.Loader:
    buckets = picstore.Buckets(SIZES, options.pop("crops", crops), **options.pop("buckets", {}))
    options = {"batch_size": 8, "transform": buckets, "threads": 2, "isolate": False, "lanes": 4, **options}
    return picstore.Loader(dataset, **options)


def contents(batches: Any) -> list[tuple[list[int], torch.Tensor]]:
    return [(batch.ids.tolist(), batch.images.clone()) for batch in batches]


def same(one: list[tuple[list[int], torch.Tensor]], other: list[tuple[list[int], torch.Tensor]]) -> bool:
    assert one and [ids for ids, _ in one] == [ids for ids, _ in other]
    return all(torch.equal(a, b) for (_, a), (_, b) in zip(one, other, strict=True))


def nearest(width: int, height: int) -> tuple[int, int]:
    """The size whose aspect ratio is nearest."""
    return min(SIZES, key=lambda size: abs(math.log(size[1] / size[0]) - math.log(width / height)))


@pytest.mark.parametrize("isolate", [False, True])
def test_each_batch_has_the_size_nearest_to_its_records_which_come_once(pictures: Path, isolate: bool) -> None:
    table = picstore.Dataset(pictures).table
    sizes = dict(
        zip(table["id"].tolist(), zip(table["width"].tolist(), table["height"].tolist(), strict=True), strict=True)
    )
    loader = loader_of(pictures, isolate=isolate, drop_last=False)
    seen: Counter[int] = Counter()
    batches = list(loader)
    loader.close()
    assert len(loader) == len(batches)
    for batch in batches:
        assert {nearest(*sizes[id_]) for id_ in batch.ids.tolist()} == {tuple(batch.images.shape[-2:])}
        seen.update(batch.ids.tolist())
    assert seen == Counter(range(120))
    assert len({batch.images.shape for batch in batches}) > 3


@pytest.mark.slow
def test_images_are_those_of_a_loader_with_the_bucket_s_transforms(pictures: Path) -> None:
    plain: dict[tuple[int, int], dict[int, torch.Tensor]] = {}
    for size in SIZES:
        loader = picstore.Loader(pictures, batch_size=1, transform=crops(size), threads=2, isolate=False)
        plain[size] = {int(batch.ids[0]): batch.images[0] for batch in loader}
    for batch in loader_of(pictures):
        height, width = batch.images.shape[-2:]
        for id_, image in zip(batch.ids.tolist(), batch.images, strict=True):
            assert torch.equal(image, plain[height, width][id_])


def test_resuming_at_any_batch_gives_the_batches_that_would_have_followed(pictures: Path) -> None:
    loader = loader_of(pictures, batch_size=4)
    whole = contents(loader)
    following = contents(loader)
    for first in range(0, len(whole), 5):
        resumed = loader_of(pictures, batch_size=4)
        state = {**loader_of(pictures, batch_size=4).state_dict(), "batches": first}
        assert len(json.dumps(state)) < 1024
        resumed.load_state_dict(state)
        assert same(contents(resumed), whole[first:])
        assert same(contents(resumed), following)


def test_ranks_have_the_same_bucket_at_each_step_and_the_batches_of_one(pictures: Path) -> None:
    whole = [(set(batch.ids.tolist()), batch.images.shape[-2:]) for batch in loader_of(pictures)]
    ranks = [list(loader_of(pictures, batch_size=4, rank=rank, world_size=2)) for rank in range(2)]
    assert [len(batches) for batches in ranks] == [len(whole)] * 2
    for (ids, size), one, other in zip(whole, *ranks, strict=True):
        assert {*one.ids.tolist(), *other.ids.tolist()} == ids
        assert one.images.shape == other.images.shape == (4, 3, *size)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_workers_of_a_dataloader_make_the_same_batches(pictures: Path) -> None:
    loader = loader_of(pictures, threads=1)
    whole = contents(loader)
    for workers in (1, 3):
        again = loader_of(pictures, threads=1)
        assert same(contents(DataLoader(again, batch_size=None, num_workers=workers)), whole)


@pytest.mark.slow
def test_each_container_is_read_once_an_epoch(tmp_path: Path) -> None:
    shape = DatasetShape(streams=1, container_size=32 << 10, file_size=1 << 20)
    with picstore.Writer(tmp_path / "set", shape=shape) as writer:
        for number in range(900):
            writer.add(picture(number, width=40 if number % 40 == 0 else 60, height=60 if number % 40 == 0 else 40))
    dataset = picstore.Dataset(tmp_path / "set")
    read = {}
    for name, options in {"plain": {"transform": crops((32, 32))}, "buckets": {}}.items():
        loader = loader_of(dataset, batch_size=16, **options)
        for _ in range(4):
            for _batch in loader:
                pass
        loader.close()
        read[name] = loader.stats.bytes / 4 / int(dataset.rows["size"].sum())
    assert len(dataset.rows) > 20
    assert read["buckets"] < read["plain"] + 0.1  # of what is read ahead
    rare = [batch.ids.tolist() for batch in loader_of(dataset, batch_size=16) if batch.images.shape[-2:] == (40, 24)]
    assert len(rare) == 1 and set(rare[0]) <= set(range(0, 900, 40))


def damage(path: Path, id_: int) -> None:
    """Flip a bit in an image."""
    dataset = picstore.Dataset(path)
    for number in range(len(dataset.rows)):
        for entry in dataset.entries(number):
            if entry["id"] == id_:
                file = path / dataset.containers.container_ref(number).name
                data = bytearray(file.read_bytes())
                data[int(dataset.rows["offset"][number]) + int(entry["offset"]) + int(entry["length"]) // 2] ^= 0x10
                file.write_bytes(data)
                return
    raise LookupError(id_)


@pytest.mark.parametrize("batch_size", slow_except([4], [1, 4]))
def test_a_damaged_record_is_replaced_in_its_bucket_the_same_on_any_way(
    pictures: Path, tmp_path: Path, batch_size: int
) -> None:
    path = Path(shutil.copytree(pictures, tmp_path / "copy"))
    table = picstore.Dataset(path).table
    shape = {id_: nearest(w, h) for id_, w, h in zip(table["id"], table["width"], table["height"], strict=True)}
    lost = {1, 14, 35, 63, 64}
    for id_ in lost:
        damage(path, id_)
    loader = loader_of(path, batch_size=batch_size, drop_last=False)
    whole = contents(loader)
    assert loader.damaged == len(lost)
    for ids, images in whole:
        assert not lost & set(ids)
        assert batch_size == 1 or {shape[id_] for id_ in ids} == {tuple(images.shape[-2:])}
    assert sum(shape[ids[0]] == tuple(images.shape[-2:]) for ids, images in whole) >= len(whole) - 1
    sound = Counter(id_ for ids, _ in whole for id_ in ids)
    assert len(sound) == 120 - len(lost) and sound.total() == 120
    for first in range(0, len(whole), 7):  # records are read alone then
        resumed = loader_of(path, batch_size=batch_size, drop_last=False)
        resumed.load_state_dict({**resumed.state_dict(), "batches": first})
        assert same(contents(resumed), whole[first:])


def test_records_that_wait_keep_their_targets_columns_and_views(pictures: Path) -> None:
    dataset = picstore.Dataset(pictures)
    dataset = dataset.with_columns({"text": [f"caption {id_}" for id_ in dataset.ids]}).without([3, 4])

    def views(size: tuple[int, int]) -> picstore.Views:
        return picstore.Views(one=(2, crops(size)), small=(1, [picstore.RandomResizedCrop(16)]))

    for options in ({"crops": views}, {"aug_repeats": 2}):
        seen = set()
        for batch in loader_of(dataset, targets=["boxes", "extra", "text"], drop_last=False, **options):
            repeats = options.get("aug_repeats", 1)
            assert batch.columns["text"] == [f"caption {id_}" for id_ in batch.ids.tolist()]
            if "crops" in options:
                assert batch.views["small"].shape == (1, len(batch.labels), 3, 16, 16)
                assert len(batch.targets["one"][0]) == len(batch.labels)
            else:
                assert len(batch.targets) == len(batch.labels) == len(set(batch.ids.tolist())) * repeats
            seen.update(batch.ids.tolist())
        assert seen == set(range(120)) - {3, 4}


def test_a_selection_is_in_the_buckets_of_its_records(pictures: Path) -> None:
    dataset = picstore.Dataset(pictures)
    tall = dataset.select(dataset.table["height"] > dataset.table["width"])
    batches = list(loader_of(tall, drop_last=False, batch_size=4))
    assert sum(len(batch.labels) for batch in batches) == len(tall) > 4
    assert {tuple(batch.images.shape[-2:]) for batch in batches} == {(40, 24)}


def test_a_batch_is_made_by_itself_and_the_step_of_a_record_is_known(pictures: Path) -> None:
    both = picstore.Dataset(pictures)
    both = both.concat(both.select(range(40)))
    ranks = [loader_of(both, rank=rank, world_size=2, batch_size=4) for rank in range(2)]
    whole = [list(loader) for loader in ranks]
    for step in range(0, len(whole[0]), 3):
        batch, _ = ranks[1].make_batch(0, step)
        assert batch.ids.tolist() == whole[1][step].ids.tolist()
        assert torch.equal(batch.images, whole[1][step].images)
    places = {
        id_: (rank, step, slot)
        for rank, batches in enumerate(whole)
        for step, batch in enumerate(batches)
        for slot, id_ in enumerate(batch.ids.tolist())
    }
    for position, id_ in enumerate(both.ids.tolist()):
        assert ranks[0].order.find(both.live, position, 0) == ([places[id_]] if id_ in places else [])
    with pytest.raises(UsageError, match="there is no batch"):
        ranks[0].make_batch(0, len(ranks[0]))


def test_callables_take_batches_of_all_sizes(pictures: Path) -> None:
    loader = loader_of(
        pictures, dtype=torch.float32, buckets={"callables": [picstore.MixUp(0.2), lambda images: images + 1]}
    )
    for images, labels in loader:
        assert images.dtype == torch.float32 and images.min() >= 1
        assert labels.shape == (8, 5)


def test_a_budget_of_tokens_sets_the_size_of_each_bucket_s_batches(pictures: Path) -> None:
    loader = loader_of(pictures, batch_size=None, buckets={"tokens": 64, "patch": 8})
    found = {batch.images.shape for batch in loader}
    assert found == {(4, 3, 32, 32), (4, 3, 24, 40), (4, 3, 40, 24)}
    wide = picstore.Buckets([(8, 32), (16, 16), (32, 8)], crops, tokens=10, patch=8)
    assert wide.sizes == ((32, 8), (16, 16), (8, 32))
    assert wide.batch_sizes(None) == ((2,), (2,), (2,))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: picstore.Buckets([], crops), "there are 0 sizes"),
        (lambda path: picstore.Buckets([(0, 16)], crops), "Buckets: size"),
        (lambda path: picstore.Buckets([(16, -16)], crops), "Buckets: size"),
        (lambda path: picstore.Buckets([16], crops), "list of"),
        (lambda path: picstore.Buckets([(k, 300) for k in range(1, 258)], crops), "there are 257 sizes"),
        (lambda path: picstore.Buckets([(16, 32), (32, 64)], crops), "same aspect ratio"),
        (lambda path: picstore.Buckets(SIZES, crops((8, 8))), "function of a size"),
        (lambda path: picstore.Buckets(SIZES, crops, tokens=3, patch=16), "has 4 patches; tokens is 3"),
        (lambda path: picstore.Buckets(SIZES, crops, tokens=100, patch=25), "has 0 patches"),
        (lambda path: picstore.Buckets(SIZES, crops, tokens=100.5), "give integers"),
        (lambda path: picstore.Buckets(SIZES, crops, tokens=100, patch=0), "give integers"),
        (lambda path: picstore.Buckets.of_area(0, crops), "positive"),
        (lambda path: picstore.Buckets.of_area(1000, crops), "there are 0 sizes"),
        (lambda path: picstore.Buckets.of_area(512, crops, ratio=0.5), "positive"),
        (lambda path: loader_of(path, batch_size=None), "give the loader's batch_size, or"),
        (lambda path: loader_of(path, buckets={"tokens": 100}), "give the loader's batch_size, or"),
        (lambda path: loader_of(path, batch_size=0), "batch_size is 0"),
        (lambda path: loader_of(path, batch_size=121), "make no batch"),
        (lambda path: loader_of(path, crops=lambda size: [picstore.Resize(24)]), "several sizes"),
        (lambda path: loader_of(path, crops=lambda size: crops(size[::-1])), r"of \(24, 40\)|of \(40, 24\)"),
        (lambda path: loader_of(path, crops=lambda size: [*crops(size), torch.abs]), "abs in callables"),
        (lambda path: loader_of(path, repeat=2), "do not go together with weights"),
        (lambda path: loader_of(path, lanes=0), "lanes is 0"),
        (
            lambda path: loader_of(path, rank=0, world_size=40, lanes=40, batch_size=1, drop_last=False),
            "too few for 40",
        ),
        (lambda path: picstore.MapDataset(path, transform=picstore.Buckets(SIZES, crops)), "only picstore.Loader"),
        (
            lambda path: picstore.DataMux([(picstore.Dataset(path), 0, 1)], transform=picstore.Buckets(SIZES, crops)),
            "only picstore.Loader",
        ),
    ],
)
def test_buckets_that_make_no_sense_are_refused(pictures: Path, make: Callable[[Path], Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        make(pictures)


def test_a_state_is_refused_by_a_loader_of_other_buckets_or_batches(pictures: Path) -> None:
    state = loader_of(pictures).state_dict()
    for other in ({"batch_size": 4}, {"drop_last": False}, {"seed": 1}, {"lanes": 8}, {"shuffle": False}):
        with pytest.raises(UsageError, match="the state has"):
            loader_of(pictures, **other).load_state_dict(state)
    with pytest.raises(UsageError, match="batches"):
        loader_of(pictures).load_state_dict({**state, "batches": 1000})
    with pytest.raises(UsageError, match="the state has buckets None"):
        loader_of(pictures).load_state_dict(picstore.Loader(pictures, batch_size=8, lanes=4).state_dict())
    half = loader_of(pictures, batch_size=4, rank=1, world_size=2)
    half.load_state_dict({**state, "batches": 3})
    assert half.state_dict()["batches"] == 3
