"""Views: several images of a record, decoded once; repeated augmentation, which is views in one batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from samples import picture

import picstore
from picstore.errors import UsageError
from picstore.train.batch import Batch
from picstore.train.cpu import fill_images

Make = Callable[..., Path]
NORMALIZE = picstore.Normalize((0.5, 0.4, 0.3), (0.2, 0.2, 0.2))
LARGE = [picstore.RandomResizedCrop(32, scale=(0.4, 1.0)), picstore.RandomHorizontalFlip()]
SMALL = [picstore.RandomResizedCrop(16, scale=(0.05, 0.4)), picstore.ColorJitter(0.4, 0.4, 0.4, 0.1)]
VIEWS = picstore.Views(global_=(2, LARGE), local=(3, SMALL))


def loader_of(path: Path, transform: object = VIEWS, **options: object) -> picstore.Loader:
    chosen: dict[str, Any] = {"batch_size": 8, "threads": 2, "isolate": False, **options}
    return picstore.Loader(path, transform=transform, **chosen)  # type: ignore[arg-type]


def same(one: Batch, other: Batch) -> bool:
    pairs = [(one.views[name], other.views[name]) for name in one.views] + [(one.ids, other.ids)]
    return one.views.keys() == other.views.keys() and all(torch.equal(a, b) for a, b in pairs)


def test_a_batch_has_a_tensor_for_each_group(make_dataset: Make) -> None:
    batch = next(iter(loader_of(make_dataset())))
    assert {name: tuple(views.shape) for name, views in batch.views.items()} == {
        "global": (2, 8, 3, 32, 32),
        "local": (3, 8, 3, 16, 16),
    }
    images, labels = batch
    assert images is batch.views and len(labels) == len(batch.labels) == 8
    first, second = batch.views["global"]
    assert first.is_contiguous() and not torch.equal(first, second)


def test_the_first_view_is_the_image_of_a_loader_without_views(make_dataset: Make) -> None:
    path = make_dataset()
    for batch, plain in zip(loader_of(path), loader_of(path, LARGE), strict=True):
        assert torch.equal(batch.views["global"][0], plain.images)


def test_views_of_an_image_differ_in_every_draw(make_dataset: Make) -> None:
    strong = [*LARGE, picstore.ColorJitter(0.8, 0.8, 0.8, 0.2)]
    batch = next(iter(loader_of(make_dataset(), picstore.Views(a=(3, strong), b=(3, strong)))))
    views = torch.cat([batch.views["a"], batch.views["b"]])
    for slot in range(len(batch.labels)):
        assert len({view[slot].numpy().tobytes() for view in views}) == 6


@pytest.mark.parametrize("options", [{"threads": 1}, {"threads": 4}, {"isolate": True}], ids=str)
def test_views_are_the_same_on_any_threads_and_process(make_dataset: Make, options: dict[str, Any]) -> None:
    path = make_dataset()
    other = loader_of(path, **options)
    assert all(same(a, b) for a, b in zip(loader_of(path), other, strict=True))
    other.close()


def test_views_resume_in_the_middle_of_an_epoch(make_dataset: Make) -> None:
    path = make_dataset()
    loader = loader_of(path)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    state = loader.state_dict()
    resumed = loader_of(path)
    resumed.load_state_dict(state)
    rest, again = list(iterator), list(resumed)
    assert len(rest) == len(again) == 3 and all(map(same, rest, again))


def test_views_are_the_same_at_any_world_size(make_dataset: Make) -> None:
    path = make_dataset(64)
    whole = list(loader_of(path, batch_size=16))
    ranks = [list(loader_of(path, batch_size=8, rank=rank, world_size=2)) for rank in range(2)]
    for batch, *parts in zip(whole, *ranks, strict=True):
        of_whole = {id_: batch.views["local"][:, slot] for slot, id_ in enumerate(batch.ids.tolist())}
        for part in parts:
            for slot, id_ in enumerate(part.ids.tolist()):
                assert torch.equal(part.views["local"][:, slot], of_whole.pop(id_))
        assert not of_whole


def test_views_are_those_made_stage_by_stage(make_dataset: Make, request: pytest.FixtureRequest) -> None:
    path = make_dataset()
    expected = list(loader_of(path))
    request.getfixturevalue("stage_by_stage")
    assert all(map(same, expected, loader_of(path)))


def test_a_record_is_decoded_once_for_all_of_its_views(
    make_dataset: Make, monkeypatch: pytest.MonkeyPatch, stage_by_stage: None
) -> None:
    calls: list[str] = []  # appending is one step, also on a free-threaded Python

    def counting(name: str) -> Callable[..., Any]:
        real = getattr(fill_images, name)

        def call(*arguments: Any, **options: Any) -> Any:
            calls.append(name)
            return real(*arguments, **options)

        return call

    for name in ("decode_slot", "render"):
        monkeypatch.setattr(fill_images, name, counting(name))
    loader = loader_of(make_dataset(48))
    assert len(list(loader)) == 6
    loader.close()  # the next epoch had begun
    decoded = calls.count("decode_slot")
    assert decoded >= 48 and calls.count("render") == 5 * decoded


def test_a_view_that_rotates_leaves_the_others_as_they_are(make_dataset: Make) -> None:
    path = make_dataset()
    rotated = picstore.Views(plain=(1, LARGE), turned=(1, [picstore.RandomRotation(30), picstore.Resize((20, 24))]))
    for batch, plain in zip(loader_of(path, rotated), loader_of(path, LARGE), strict=True):
        assert torch.equal(batch.views["plain"][0], plain.images)
        assert batch.views["turned"].shape == (1, 8, 3, 20, 24) and batch.views["turned"].any()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16])
def test_views_have_the_dtype_and_layout_of_the_loader(make_dataset: Make, dtype: torch.dtype) -> None:
    path = make_dataset()
    options: dict[str, Any] = {"dtype": dtype, "memory_format": torch.channels_last}
    given = picstore.Views(a=(2, LARGE), b=(1, SMALL))
    for batch, plain in zip(loader_of(path, given, **options), loader_of(path, given), strict=True):
        for name, views in batch.views.items():
            assert views.dtype == dtype
            assert all(view.is_contiguous(memory_format=torch.channels_last) for view in views)
            scale = 1 if dtype == torch.uint8 else 255
            assert torch.allclose(views.float() * scale, plain.views[name].float(), atol=0.2)


def test_one_group_that_normalizes_makes_all_views_floats(make_dataset: Make) -> None:
    batch = next(iter(loader_of(make_dataset(), picstore.Views(a=(1, [*LARGE, NORMALIZE]), b=(1, SMALL)))))
    assert {views.dtype for views in batch.views.values()} == {torch.float32}
    assert batch.views["a"].min() < 0 <= batch.views["b"].min()


def test_views_of_several_sizes_are_lists(make_dataset: Make) -> None:
    half = picstore.Views(whole=(2, []), half=(1, [picstore.Resize(20)]))
    batch = next(iter(loader_of(make_dataset(), half)))
    assert [len(view) for view in batch.views["whole"]] == [8, 8]
    for one, other, small in zip(*batch.views["whole"], *batch.views["half"], strict=True):
        assert torch.equal(one, other) and one.data_ptr() != other.data_ptr()
        assert min(small.shape[1:]) == 20


def test_a_damaged_record_is_replaced_in_every_view(
    make_dataset: Make, monkeypatch: pytest.MonkeyPatch, stage_by_stage: None
) -> None:
    path = make_dataset()
    expected = list(loader_of(path, shuffle=False))
    decode, calls = fill_images.decode_slot, []

    def failing(*arguments: Any, **options: Any) -> np.ndarray:
        calls.append(arguments)
        if len(calls) == 3:
            raise picstore.ImageError("does not decode: test")
        return decode(*arguments, **options)

    monkeypatch.setattr(fill_images, "decode_slot", failing)
    loader = loader_of(path, shuffle=False, threads=1)
    batch, whole = next(iter(loader)), expected[0]
    slots = [0, 1, 3, 3, 4, 5, 6, 7]
    assert loader.damaged == 1 and torch.equal(batch.ids, whole.ids[slots])
    assert all(torch.equal(views, whole.views[name][:, slots]) for name, views in batch.views.items())


def test_targets_move_with_each_view(tmp_path: Path) -> None:
    with picstore.Writer(tmp_path / "boxes") as writer:
        for number in range(8):
            image = np.zeros((40, 60, 3), np.uint8)
            image[10:30, 20:40] = 255
            writer.add(image, label=0, extra={"boxes": [[20, 10, 40, 30]], "box_labels": [number]})
    given = picstore.Views(a=(2, [picstore.RandomCrop(32, padding=8)]), b=(1, [picstore.CenterCrop(40)]))
    batch = next(iter(loader_of(tmp_path / "boxes", given, targets=["boxes"])))
    seen = 0
    for name, views in batch.views.items():
        for images, targets in zip(views, batch.targets[name], strict=True):
            for image, target in zip(images, targets, strict=True):
                for box in target["boxes"].as_subclass(torch.Tensor).tolist():
                    left, top, right, bottom = map(round, box)
                    assert (image[:, top:bottom, left:right].float().mean()) > 230  # JPEG's ringing at the edges
                    seen += 1
    assert seen > 16


def test_callables_of_a_group_take_its_views(make_dataset: Make) -> None:
    shapes = []

    def double(images: torch.Tensor) -> torch.Tensor:
        shapes.append(tuple(images.shape))
        return images.float() * 2

    path = make_dataset()
    given = picstore.Views(a=(2, [*LARGE, double]), b=(1, SMALL))
    for batch, plain in zip(loader_of(path, given), loader_of(path, picstore.Views(a=(2, LARGE))), strict=True):
        assert torch.equal(batch.views["a"], plain.views["a"].float() * 2)
    assert set(shapes) == {(16, 3, 32, 32)}


def test_views_move_to_a_device(make_dataset: Make) -> None:
    moved = next(iter(loader_of(make_dataset()))).to("meta")
    assert {views.device.type for views in moved.views.values()} == {"meta"}


def test_a_mux_gives_views_of_all_its_data_sets(make_dataset: Make, tmp_path: Path) -> None:
    make_dataset(30, name="a"), make_dataset(20, name="b")
    config = tmp_path / "mux.tsv"
    config.write_text("a 0 5\nb 1000 3\n")
    mux = picstore.DataMux(config, transform=VIEWS, threads=2, isolate=False)
    alone = picstore.DataMux(config, transform=LARGE, threads=2, isolate=False)
    for batch, plain in islice(zip(mux, alone, strict=False), 4):
        assert torch.equal(batch.views["global"][0], plain.images) and batch.views["local"].shape == (3, 8, 3, 16, 16)
    with pytest.raises(UsageError, match="iterate for batches"):
        mux.read()
    mux.close(), alone.close()


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({}, "0 views"),
        ({"a": [*LARGE, NORMALIZE]}, "give the number of views and a list"),
        ({"a": (0, LARGE)}, "at least 1"),
        ({"a": (2.0, LARGE)}, "at least 1"),
        ({"a": (2, "Resize")}, "give a list"),
        ({"global": (1, LARGE), "global_": (1, LARGE)}, "given twice"),
        ({"a": (300, LARGE)}, "1 to 256"),
    ],
)
def test_views_that_make_no_sense_are_refused_when_they_are_made(groups: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        picstore.Views(**groups)


def test_a_batch_without_views_says_how_to_get_them(make_dataset: Make) -> None:
    with pytest.raises(UsageError, match=r"transform=picstore\.Views"):
        _ = next(iter(loader_of(make_dataset(), LARGE))).views


def _asymmetric(blur: float, solarize: float) -> list[Any]:
    """A view of BYOL (Grill et al., 2020, appendix B) and MoCo v3, which differ in blur and solarization."""
    jitter = picstore.RandomApply([picstore.ColorJitter(0.4, 0.4, 0.2, 0.1)], 0.8)
    blurred = picstore.RandomApply([picstore.GaussianBlur(3, (0.1, 2.0))], blur)
    flipped = [picstore.RandomResizedCrop(24), picstore.RandomHorizontalFlip()]
    return [*flipped, jitter, picstore.RandomGrayscale(0.2), blurred, picstore.RandomSolarize(128, solarize), NORMALIZE]


WEAK = [picstore.RandomCrop(24, padding=3, padding_mode="reflect"), picstore.RandomHorizontalFlip()]
METHODS = {
    "SimCLR": (picstore.recipes.simclr(24), {"views": 2}),
    "BYOL and MoCo v3": (
        picstore.Views(query=(1, _asymmetric(1.0, 0.0)), key=(1, _asymmetric(0.1, 0.2))),
        {"query": 1, "key": 1},
    ),
    "DINOv2": (picstore.recipes.dinov2(24, 24, local_views=3), {"global_1": 1, "global_2": 1, "local": 3}),
    "FixMatch's weak and strong pair": (
        picstore.Views(weak=(1, [*WEAK, NORMALIZE]), strong=(1, [*WEAK, picstore.RandAugment(), NORMALIZE])),
        {"weak": 1, "strong": 1},
    ),
    "mean teacher": (picstore.Views(student=(1, [*WEAK, NORMALIZE]), teacher=(1, [*WEAK, NORMALIZE])), None),
}


@pytest.mark.parametrize("name", METHODS)
def test_methods_of_two_and_more_views_are_a_transform(make_dataset: Make, name: str) -> None:
    views, counts = METHODS[name]
    for batch in loader_of(make_dataset(16), views):
        expected = counts or {"student": 1, "teacher": 1}
        assert {name: tuple(images.shape) for name, images in batch.views.items()} == {
            name: (count, 8, 3, 24, 24) for name, count in expected.items()
        }
        shown = torch.cat(list(batch.views.values()))
        assert shown.dtype == torch.float32 and not torch.equal(shown[0], shown[1])


# Repeated augmentation.


def test_repeats_hold_each_record_several_times_in_a_batch(make_dataset: Make) -> None:
    path = make_dataset(48)
    loader = loader_of(path, LARGE, batch_size=12, aug_repeats=3)
    assert len(loader) == 12
    seen: Counter[int] = Counter()
    for batch in loader:
        assert batch.images.shape == (12, 3, 32, 32) and len(batch.labels) == 12
        assert set(Counter(batch.ids.tolist()).values()) == {3}
        assert torch.equal(batch.labels, batch.ids % 5)
        for id_ in set(batch.ids.tolist()):
            images = batch.images[batch.ids == id_]
            assert not torch.equal(images[0], images[1]) and not torch.equal(images[1], images[2])
        seen.update(batch.ids.tolist())
    assert set(seen) == set(range(48)) and set(seen.values()) == {3}


def test_repeats_are_the_views_of_their_records(make_dataset: Make) -> None:
    path = make_dataset(48)
    repeated = loader_of(path, LARGE, batch_size=12, aug_repeats=3)
    viewed = loader_of(path, picstore.Views(all=(3, LARGE)), batch_size=4)
    for batch, views in zip(repeated, viewed, strict=True):
        assert torch.equal(batch.images, views.views["all"].flatten(0, 1))


def test_global_batches_with_repeats_are_the_same_at_any_world_size(make_dataset: Make) -> None:
    path = make_dataset(64)

    def images_of(batches: tuple[Batch, ...]) -> Counter[tuple[int, bytes]]:
        return Counter(
            (id_, image.numpy().tobytes())
            for batch in batches
            for id_, image in zip(batch.ids.tolist(), batch.images, strict=True)
        )

    whole = loader_of(path, LARGE, batch_size=16, aug_repeats=2)
    parts = [loader_of(path, LARGE, batch_size=4, aug_repeats=2, rank=rank, world_size=4) for rank in range(4)]
    for batch, *others in zip(whole, *parts, strict=True):
        assert images_of((batch,)) == images_of(tuple(others))


def test_repeats_resume_after_any_batch(make_dataset: Make) -> None:
    path = make_dataset(48)
    loader = loader_of(path, LARGE, batch_size=12, aug_repeats=3)
    iterator = iter(loader)
    for _ in range(5):
        next(iterator)
    resumed = loader_of(path, LARGE, batch_size=12, aug_repeats=3)
    resumed.load_state_dict(loader.state_dict())
    rest, again = list(iterator), list(resumed)
    assert len(rest) == len(again) == 7
    assert all(torch.equal(a.images, b.images) and torch.equal(a.ids, b.ids) for a, b in zip(rest, again, strict=True))


def test_repeats_repeat_targets_and_columns(tmp_path: Path) -> None:
    with picstore.Writer(tmp_path / "boxes") as writer:
        for number in range(8):
            writer.add(picture(number), label=number, extra={"boxes": [[5, 5, 30, 30]], "box_labels": [number]})
    dataset = picstore.Dataset(tmp_path / "boxes")
    dataset = dataset.with_columns({"weight": np.arange(8.0)}, ids=range(8))
    loader = loader_of(dataset, [picstore.CenterCrop(40)], aug_repeats=2, targets=["boxes", "weight"], shuffle=False)  # type: ignore[arg-type]
    batch = next(iter(loader))
    ids = batch.ids.tolist()
    assert ids[:4] == ids[4:] and len(set(ids)) == 4
    assert batch.labels.tolist() == batch.columns["weight"].tolist() == ids
    assert [target["labels"].item() for target in batch.targets] == ids


@pytest.mark.parametrize(
    ("repeats", "message"), [(0, "aug_repeats is 0"), (3, "divides the batch size, 8"), (1.5, "aug_repeats is 1.5")]
)
def test_repeats_divide_the_batch_size(make_dataset: Make, repeats: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        loader_of(make_dataset(), LARGE, aug_repeats=repeats)


def test_repeats_and_views_do_not_go_together(make_dataset: Make) -> None:
    with pytest.raises(UsageError, match="raise the numbers of views"):
        loader_of(make_dataset(), aug_repeats=2)
