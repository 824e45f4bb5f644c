"""MapDataset: records by index, with the pixels of the loader, in torch's samplers and DataLoaders."""

from __future__ import annotations

import contextlib
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from grids import slow_except
from PIL import Image
from samples import jpeg, picture
from torch.utils.data import DataLoader, DistributedSampler, Subset, WeightedRandomSampler, random_split
from torchvision.datasets import ImageFolder

import picstore
from picstore.errors import Damage, UsageError
from picstore.prepare.convert.row_division import DatasetShape
from picstore.storage import dataset_reader, partial_reader

Make = Callable[..., Path]
CROP = [picstore.RandomResizedCrop(24), picstore.RandomHorizontalFlip()]
COLOR = [*CROP, picstore.ColorJitter(0.4, 0.4, 0.4, 0.1), picstore.Normalize((0.5,) * 3, (0.2,) * 3)]

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded", "ignore:This DataLoader will")


def by_id(path: Path | picstore.Dataset, epochs: int = 2, **options: Any) -> list[dict[int, tuple[Any, ...]]]:
    """What a loader makes of each record, epoch by epoch."""
    loader = picstore.Loader(path, batch_size=7, drop_last=False, threads=1, isolate=False, **options)
    made: list[dict[int, tuple[Any, ...]]] = []
    with contextlib.closing(loader):
        for _ in range(epochs):
            epoch: dict[int, tuple[Any, ...]] = {}
            for batch in loader:
                targets = batch.targets or [None] * len(batch.labels)
                images = [image.clone() for image in batch.images]
                rows = zip(batch.ids.tolist(), images, batch.labels.tolist(), targets, strict=True)
                epoch.update({number: rest for number, *rest in rows})
            made.append(epoch)
    return made


@pytest.mark.parametrize("transform", [CROP, COLOR, [], [picstore.RandomRotation(30)]])
def test_an_item_is_the_loaders_image_and_label_of_the_same_seed_and_epoch(make_dataset: Make, transform: Any) -> None:
    path = make_dataset(60)
    expected = by_id(path, transform=transform, seed=5)
    dataset = picstore.MapDataset(path, transform=transform, seed=5)
    assert len(dataset) == 60
    for epoch in (0, 1):
        dataset.set_epoch(epoch)
        alone = [dataset[k] for k in range(60)]
        together = dataset.__getitems__(list(range(60)))
        for number, one, other in zip(dataset.dataset.ids.tolist(), alone, together, strict=True):
            image, label, _ = expected[epoch][number]
            for made in (one, other):
                assert made[1] == label and type(made[1]) is int
                assert made[0].dtype == image.dtype and torch.equal(made[0], image)


def test_dtypes_are_those_of_the_loader(make_dataset: Make) -> None:
    path = make_dataset(8)
    for dtype in (torch.uint8, torch.float16, torch.bfloat16, torch.float32):
        expected = by_id(path, 1, transform=CROP, dtype=dtype)[0]
        dataset = picstore.MapDataset(path, transform=CROP, dtype=dtype)
        image, _ = dataset[3]
        assert image.dtype == dtype and torch.equal(image, expected[dataset.dataset[3].id][0])


def test_classes_targets_and_samples_are_those_of_imagefolder(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    for name, count in (("bird", 3), ("cat", 2)):
        (folder / name).mkdir(parents=True)
        for k in range(count):
            (folder / name / f"{k}.jpg").write_bytes(jpeg(k))
    picstore.convert(folder, tmp_path / "set", workers=1)
    theirs, ours = ImageFolder(str(folder)), picstore.MapDataset(tmp_path / "set")
    assert ours.classes == theirs.classes and ours.class_to_idx == theirs.class_to_idx == {"bird": 0, "cat": 1}
    assert ours.targets == [label for _, label in ours] == [label for _, label in ours.samples]
    relative = [(str(Path(path).relative_to(folder)), label) for path, label in theirs.samples]
    assert sorted(ours.samples) == sorted(relative)
    part = ours.dataset.select(ours.dataset.table["label"] == 1)
    assert part.targets == [1, 1] and {path for path, _ in part.samples} == {"cat/0.jpg", "cat/1.jpg"}


def test_samples_without_a_path_and_names_that_occur_twice(make_dataset: Make) -> None:
    dataset = picstore.Dataset(make_dataset(4))
    assert dataset.samples == [(None, label) for label in dataset.table["label"].tolist()]
    named = dataset.with_columns({"label": [0, 1, 2, 0]}, classes=["a", "b", "a"])
    assert named.class_to_idx == {"a": 0, "b": 1} and sorted(named.targets) == [0, 0, 1, 2]


def test_deletions_selections_and_columns_count_and_a_slot_may_come_twice(make_dataset: Make) -> None:
    dataset = picstore.Dataset(make_dataset(40)).without(range(0, 40, 3)).select(range(2, 24))
    dataset = dataset.with_columns({"label": [4] * len(dataset), "caption": [f"of {k}" for k in dataset.ids]})
    expected = by_id(dataset, 1, transform=CROP)[0]
    mapped = picstore.MapDataset(dataset, transform=CROP, targets=["caption"])
    order = [5, 0, len(mapped) - 1, 5, -1]
    for position, (image, target) in zip(order, mapped.__getitems__(order), strict=True):
        number = int(dataset.ids[position])
        assert target == {"label": 4, "id": number, "caption": f"of {number}"}
        assert torch.equal(image, expected[number][0])


@pytest.mark.parametrize("steps", [CROP, [picstore.RandomIoUCrop(), picstore.Resize((24, 24))]])
def test_targets_come_in_a_dict_with_label_and_id(tmp_path: Path, steps: list[Any]) -> None:
    with picstore.Writer(tmp_path / "set", classes=["a", "b"], attachments=["mask"]) as writer:
        for k in range(6):
            mask = io.BytesIO()
            Image.fromarray(picture(k)[..., 0]).save(mask, "PNG")
            extra = {"boxes": [[2, 3, 20 + k, 30], [5, 5, 50, 35]], "box_labels": [0, 1]}
            writer.add(picture(k), label=k % 2, extra=extra, attachments={"mask": mask.getvalue()})
    options: dict[str, Any] = {"transform": steps, "targets": ["boxes", "mask"]}
    expected = by_id(tmp_path / "set", 1, **options)[0]
    dataset = picstore.MapDataset(tmp_path / "set", **options)
    for k in range(6):
        image, target = dataset[k]
        assert list(target) == ["label", "id", "boxes", "labels", "index", "mask"]
        other, label, wanted = expected[target["id"]]
        assert torch.equal(image, other) and target["label"] == label
        assert all(torch.equal(target[name], wanted[name]) for name in wanted)
        assert type(target["boxes"]).__name__ == "BoundingBoxes" and target["boxes"].canvas_size == (24, 24)


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_of_a_dataloader_make_the_same_items_and_follow_set_epoch(make_dataset: Make, context: str) -> None:
    path = make_dataset(60)
    expected = by_id(path, transform=CROP)
    dataset = picstore.MapDataset(path, transform=CROP)
    order = np.random.default_rng(0).permutation(60).tolist()
    workers = {"num_workers": 1 if context == "spawn" else 2, "persistent_workers": True}  # each imports torch
    batches = DataLoader(dataset, batch_size=8, sampler=order, multiprocessing_context=context, **workers)
    for epoch in (0, 1):
        dataset.set_epoch(epoch)
        images, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
        for number, image, label in zip(dataset.dataset.ids[order].tolist(), images, labels.tolist(), strict=True):
            assert torch.equal(image, expected[epoch][number][0]) and label == expected[epoch][number][1]


@pytest.mark.parametrize("persistent", slow_except([True], [False, True]))
def test_without_set_epoch_workers_draw_anew_in_each_epoch_by_torchs_seed(make_dataset: Make, persistent: bool) -> None:
    path = make_dataset(40)

    def epochs() -> list[torch.Tensor]:
        torch.manual_seed(3)
        batches = DataLoader(
            picstore.MapDataset(path, transform=CROP), batch_size=8, num_workers=2, persistent_workers=persistent
        )
        return [torch.cat([images for images, _ in batches]) for _ in range(3)]

    first, again = epochs(), epochs()
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
    for a, b in ((0, 1), (0, 2), (1, 2)):
        same = (first[a] == first[b]).flatten(1).all(1)
        assert same.sum() == 0


def test_a_record_that_comes_twice_in_an_unknown_epoch_is_warned_of_once(make_dataset: Make) -> None:
    path = make_dataset(600)
    dataset = picstore.MapDataset(path, transform=CROP)
    batches = DataLoader(dataset, batch_size=50, shuffle=True)
    list(batches)
    with pytest.warns(UserWarning, match=r"a second time .* call set_epoch\(epoch\) of the MapDataset"):
        list(batches)
    list(batches)  # warnings are errors
    known = picstore.MapDataset(path, transform=CROP)
    for epoch in range(2):
        known.set_epoch(epoch)
        known[0]
    central = picstore.MapDataset(path, transform=[picstore.CenterCrop(24)])
    assert torch.equal(central[0][0], central[0][0])


def test_a_samplers_epoch_does_not_reach_it_workers_draw_and_others_warn(make_dataset: Make) -> None:
    path = make_dataset(16)

    def epochs(workers: int) -> list[torch.Tensor]:
        dataset = picstore.MapDataset(path, transform=CROP)
        sampler = DistributedSampler(dataset, num_replicas=1, rank=0, shuffle=False)
        batches = DataLoader(dataset, batch_size=8, sampler=sampler, num_workers=workers)
        made = []
        for epoch in range(2):
            sampler.set_epoch(epoch)
            made.append(torch.cat([images for images, _ in batches]))
        return made

    first, second = epochs(1)
    assert not (first == second).flatten(1).all(1).any()
    with pytest.warns(UserWarning, match=r"call set_epoch\(epoch\) of the MapDataset"):
        epochs(0)


def test_subsets_splits_and_samplers_take_it(make_dataset: Make) -> None:
    dataset = picstore.MapDataset(make_dataset(50), transform=CROP)
    dataset.set_epoch(0)
    train, rest = random_split(dataset, [0.8, 0.2], generator=torch.Generator().manual_seed(0))
    seen = [torch.cat([images for images, _ in DataLoader(part, batch_size=4)]) for part in (train, rest)]
    assert [len(part) for part in seen] == [40, 10]
    weighted = WeightedRandomSampler([1.0] * 49 + [1000.0], 12, generator=torch.Generator().manual_seed(0))
    images, _ = next(iter(DataLoader(dataset, batch_size=12, sampler=weighted)))
    assert sum(torch.equal(image, dataset[49][0]) for image in images) >= 8
    assert torch.equal(Subset(dataset, [7])[0][0], dataset[7][0])
    assert len(list(dataset)) == 50  # by indices until IndexError


def test_a_pickled_data_set_makes_the_same_items(make_dataset: Make) -> None:
    dataset = picstore.MapDataset(make_dataset(20), transform=CROP, seed=3)
    dataset.set_epoch(2)
    copied = pickle.loads(pickle.dumps(dataset))  # noqa: S301
    assert all(torch.equal(copied[k][0], dataset[k][0]) for k in range(20))


def test_views_of_an_item_are_those_of_the_loader(make_dataset: Make) -> None:
    path = make_dataset(12)
    views = picstore.Views(big=(2, CROP), any=(1, [picstore.RandomHorizontalFlip()]))
    loader = picstore.Loader(path, batch_size=12, shuffle=False, transform=views, isolate=False)
    dataset = picstore.MapDataset(path, transform=views)
    (batch,) = loader
    for k, (images, label) in enumerate(dataset.__getitems__(range(12))):
        assert label == batch.labels[k] and images["big"].shape == (2, 3, 24, 24)
        assert torch.equal(images["big"], batch.views["big"][:, k])
        assert torch.equal(images["any"][0], batch.views["any"][0][k])
    loader.close()


def test_callables_take_each_image(make_dataset: Make) -> None:
    path = make_dataset(6)
    plain, halved = (picstore.MapDataset(path, transform=t) for t in (CROP, [*CROP, lambda image: image[:, ::2] // 2]))
    for k in range(6):
        assert torch.equal(halved[k][0], plain[k][0][:, ::2] // 2)
    wrapped = picstore.MapDataset(path, transform=[*CROP, picstore.PerImage(lambda image: image[:, ::2] // 2)])
    halved.set_epoch(0)
    assert torch.equal(wrapped[0][0], halved[0][0])


@pytest.mark.parametrize("index", [6, -7, 100])
def test_an_index_beyond_the_end_is_an_index_error(make_dataset: Make, index: int) -> None:
    dataset = picstore.MapDataset(make_dataset(6), transform=CROP)
    assert dataset.__getitems__([]) == []
    for ask in (lambda: dataset[index], lambda: dataset.__getitems__([0, index])):
        with pytest.raises(IndexError, match=f"index {index} of a dataset of 6"):
            ask()
    with pytest.raises(TypeError):
        dataset[1.5]


def test_a_damaged_record_raises_and_its_neighbors_do_not(make_dataset: Make) -> None:
    path = make_dataset(30)
    dataset = picstore.Dataset(path)
    record = dataset[4]
    file = next(file for file in path.rglob("*.pic") if record.jpeg in file.read_bytes())
    data = bytearray(file.read_bytes())
    data[data.index(record.jpeg) + len(record.jpeg) // 2] ^= 1
    file.write_bytes(data)
    mapped = picstore.MapDataset(path, transform=CROP)
    for ask in (lambda: mapped[4], lambda: mapped.__getitems__([3, 4])):
        with pytest.raises(Damage, match=f"record {record.id} fails its CRC"):
            ask()
    assert len(dataset.containers.read(0)) > 5  # all in one
    for k in (3, 5):
        assert mapped[k][0].shape == (3, 24, 24)


def test_bad_arguments_are_refused_when_it_is_made(make_dataset: Make) -> None:
    path = make_dataset(4)
    for options in (
        {"targets": ["masks"]},
        {"dtype": torch.int32},
        {"transform": [*COLOR, picstore.RandomGrayscale()]},
        {"transform": [3]},
        {"transform": picstore.Views(one=(2, CROP)), "targets": ["boxes"]},
        {"transform": picstore.Views(one=(2, [*CROP, torch.sigmoid]))},
    ):
        with pytest.raises(UsageError):
            picstore.MapDataset(path, **options)


@pytest.mark.parametrize("large", [False, True])
def test_of_a_container_only_the_records_asked_for_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    shape = DatasetShape(streams=1, container_size=1 << 20)
    with picstore.Writer(tmp_path / "set", shape=shape) as writer:
        for k in range(12):
            noise = np.random.default_rng(k).integers(0, 255, (1200 if large else 200, 400, 3), dtype=np.uint8)
            writer.add(noise)
    dataset = picstore.MapDataset(tmp_path / "set", transform=[picstore.RandomCrop(64)])
    monkeypatch.setattr(dataset_reader, "MIN_MEAN", 0 if large else 1 << 40)
    sizes = []
    run = partial_reader.PartialRead.run

    def spy(read: partial_reader.PartialRead, *args: Any, **options: Any) -> None:
        before = read.container.read_size
        run(read, *args, **options)
        sizes.append(read.container.read_size - before)

    monkeypatch.setattr(partial_reader.PartialRead, "run", spy)
    expected = by_id(tmp_path / "set", 1, transform=[picstore.RandomCrop(64)])[0]
    sizes.clear()
    record = dataset.dataset[3]
    assert torch.equal(dataset[3][0], expected[record.id][0])
    assert len(sizes) == 1
    assert 0 < sizes[0] < len(record.jpeg) / 2 if large else sizes[0] == len(record.jpeg)
