"""Sequences of several lengths by a budget of tokens, their patches, and transforms by epoch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from grids import slow_except
from hypothesis import example, given
from hypothesis import strategies as st

import picstore
from picstore.errors import UsageError
from picstore.train.order.global_batches import divide

Make = Callable[..., Path]
LENGTHS = [6, 12, 24]


def steps(length: int) -> list[Any]:
    return [picstore.ResizeToSequence(8, length), picstore.RandomHorizontalFlip()]


def loader_of(dataset: Path, lengths: list[int] = LENGTHS, tokens: int = 48, **options: Any) -> picstore.Loader:
    sequences = picstore.Sequences(lengths, steps, tokens=tokens)
    return picstore.Loader(dataset, **{"transform": sequences, "threads": 2, "isolate": False, **options})


def summary(batches: Any) -> list[tuple[list[int], list[tuple[int, ...]]]]:
    return [(batch.ids.tolist(), [tuple(image.shape) for image in batch.images]) for batch in batches]


@pytest.mark.parametrize("isolate", [False, True])
def test_each_batch_has_one_length_and_as_many_images_as_its_tokens_allow(make_dataset: Make, isolate: bool) -> None:
    loader = loader_of(make_dataset(200), isolate=isolate)
    lengths: list[list[int]] = []
    for _ in range(3):
        batches = list(loader)
        assert len(batches) == len(loader)
        lengths.append([48 // len(batch.labels) for batch in batches])
        for batch, length in zip(batches, lengths[-1], strict=True):
            patches = picstore.patchify(batch.images, 8, lengths=LENGTHS)
            assert patches["patches"].shape == (48 // length, length, 8 * 8 * 3)
    loader.close()
    assert {*lengths[0]} == set(LENGTHS)
    assert len({tuple(sorted(each)) for each in lengths}) == 1 and len({tuple(each) for each in lengths}) == 3


def test_sequences_resume_and_are_shared_by_ranks(make_dataset: Make) -> None:
    path = make_dataset(150)
    loader = loader_of(path)
    whole = summary(loader)
    for first in (1, len(whole) // 2):
        resumed = loader_of(path)
        resumed.load_state_dict({**resumed.state_dict(), "batches": first})
        assert summary(resumed) == whole[first:]
    ranks = [summary(loader_of(path, tokens=24, rank=rank, world_size=2)) for rank in range(2)]
    for (ids, _), one, other in zip(whole, *ranks, strict=True):
        assert {*one[0], *other[0]} == set(ids) and len(one[0]) == len(other[0])
    half = loader_of(path, tokens=24, rank=0, world_size=2)
    half.load_state_dict({**loader.state_dict(), "epoch": 0, "batches": 4})
    assert summary(half) == ranks[0][4:]
    everything = Counter(id_ for ids, _ in summary(loader_of(path, drop_last=False)) for id_ in ids)
    assert everything == Counter(range(150))


@given(
    count=st.integers(0, 400),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    ranks=st.integers(1, 4),
    keys=st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)),
    drop_last=st.booleans(),
)
@example(count=7, sizes=[1, 2], ranks=2, keys=(0, 0), drop_last=False)  # epochs end with batches of 2 and of 4
def test_divisions_have_whole_batches_of_a_drawn_size_and_drop_under_one(
    count: int, sizes: list[int], ranks: int, keys: tuple[int, int], drop_last: bool
) -> None:
    count = count if drop_last else max(count, ranks)
    batches = [ranks * size for size in sizes]
    division = divide(count, batches, keys, world_size=ranks, drop_last=drop_last)
    lengths = np.diff(division.ends, prepend=0)
    whole = ranks * np.array(sizes)[division.plans]
    assert (lengths >= ranks).all()
    if drop_last:
        assert (lengths == whole).all()
        assert count - lengths.sum() < ranks * max(sizes)
    else:
        assert lengths.sum() == count
        assert (lengths == whole)[:-2].all()
        assert (whole - lengths)[:-1].clip(0).sum() <= min(batches) // 2
        assert (lengths <= whole + ranks - 1).all()
    other = divide(count, batches, (keys[0], keys[1] ^ 1), world_size=ranks, drop_last=drop_last)
    assert len(other.ends) == len(division.ends)
    if drop_last:
        assert Counter(other.plans.tolist()) == Counter(division.plans.tolist())


def test_patches_are_timm_s() -> None:
    timm = pytest.importorskip("timm.data.naflex_transforms")
    images = [torch.rand(3, height, width) for height, width in ((32, 48), (16, 16), (64, 16))]
    found = picstore.patchify(images, 16, lengths=[4, 8, 16])
    assert found["patches"].shape == (3, 8, 768)
    for k, image in enumerate(images):
        patches, coordinates, _ = timm.patchify_image(image, (16, 16))
        n = len(patches)
        assert torch.equal(found["patches"][k, :n], patches)
        assert torch.equal(found["patch_coord"][k, :n], coordinates)
        assert found["patch_valid"][k].tolist() == [True] * n + [False] * (8 - n)
        assert not found["patches"][k, n:].any()
    longest = picstore.patchify([image.to(torch.uint8) for image in images], 16)
    assert longest["patches"].shape == (3, 6, 768) and longest["patches"].dtype == torch.uint8


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: loader_of(path, []), "lengths are"),
        (lambda path: loader_of(path, [4, 4]), "each once"),
        (lambda path: loader_of(path, [0]), "give 1 to tokens"),
        (lambda path: loader_of(path, [4.5]), "give 1 to tokens"),
        (lambda path: loader_of(path, [64]), "give 1 to tokens"),
        (lambda path: loader_of(path, tokens=None), "give 1 to tokens"),
        (lambda path: loader_of(path, batch_size=4), "have tokens in its place"),
        (lambda path: loader_of(path, balance="label"), "Sequences do not go together"),
        (lambda path: picstore.Sequences([4], steps(4), tokens=9), "function of a length"),
        (lambda path: loader_of(path, tokens=6000, lengths=[1]), "make no batch"),
        (lambda path: picstore.patchify([], 8), "patchify"),
        (lambda path: picstore.patchify([torch.zeros(3, 8, 9)], 8), "patchify"),
        (lambda path: picstore.patchify([torch.zeros(3, 8, 32)], 8, lengths=[2, 3]), "4 patches, more than"),
        (lambda path: picstore.Progressive({}), "no list for epoch 0"),
        (lambda path: picstore.Progressive({1: []}), "the first is for 1"),
        (lambda path: picstore.Progressive({-1: [], 0: []}), "by their first epochs"),
        (lambda path: picstore.Progressive([[], []]), "by their first epochs"),
        (lambda path: progressive(path, {0: [picstore.Resize(8)], 1: [picstore.CenterCrop(8)]}), "fix the size"),
        (lambda path: progressive(path, {0: picstore.Views(a=(1, []))} | {1: picstore.Views(b=(1, []))}), "the views"),
        (lambda path: picstore.MapDataset(path, transform=picstore.Progressive({0: []})), "only picstore.Loader"),
    ],
)
def test_what_makes_no_sense_is_refused(make_dataset: Make, make: Callable[[Path], Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        make(make_dataset(50))


def progressive(path: Path, stages: dict[int, Any], **options: Any) -> picstore.Loader:
    transform = picstore.Progressive(stages)
    return picstore.Loader(path, **{"batch_size": 8, "transform": transform, "threads": 2, "isolate": False, **options})


@pytest.mark.parametrize("isolate", slow_except([False], [False, True]))
def test_the_epoch_tells_which_list_of_transforms_applies(make_dataset: Make, isolate: bool) -> None:
    path = make_dataset(30)
    stages: dict[int, Any] = {
        2: [picstore.RandomResizedCrop(24), lambda images: images.float()],
        0: [picstore.RandomResizedCrop(16)],
        3: [picstore.RandomResizedCrop((32, 40)), picstore.ColorJitter(0.4)],
    }
    loader = progressive(path, stages, isolate=isolate)
    made = [list(loader) for _ in range(5)]
    loader.close()
    for epoch, batches in enumerate(made):
        plain = picstore.Loader(
            path, batch_size=8, transform=stages[max(first for first in stages if first <= epoch)], isolate=False
        )
        plain.set_epoch(epoch)
        for batch, expected in zip(batches, plain, strict=True):
            assert torch.equal(batch.ids, expected.ids)
            assert batch.images.dtype == expected.images.dtype and torch.equal(batch.images, expected.images)
    state = progressive(path, stages).state_dict()
    resumed = progressive(path, stages)
    resumed.load_state_dict({**state, "epoch": 3, "samples": 8})
    assert all(torch.equal(one.images, other.images) for one, other in zip(resumed, made[3][1:], strict=True))
