"""Buckets: their sizes, which images they take, and the images of a batch; tests/train/test_buckets.py has loaders."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import picstore
from picstore.errors import UsageError
from picstore.train.transforms.buckets import AspectRatios
from picstore.train.transforms.progressive import EpochStages


def crops(size: tuple[int, int]) -> list[object]:
    return [picstore.RandomResizedCrop(size)]


def test_buckets_of_an_area_are_as_large_as_possible_and_of_limited_ratios() -> None:
    buckets = picstore.Buckets.of_area(512 * 512, crops)
    assert buckets.sizes == ((640, 384), (576, 448), (512, 512), (448, 576), (384, 640))
    wide = picstore.Buckets.of_area(100 * 100, crops, multiple_of=8, ratio=4).sizes
    possible = [
        (h, w) for h in range(8, 201, 8) for w in range(8, 201, 8) if h * w <= 10_000 and max(h, w) <= 4 * min(h, w)
    ]
    largest = {(h, w) for h, w in possible if (h + 8, w) not in possible or (h, w + 8) not in possible}
    assert set(wide) <= largest and len(wide) > 10
    assert {size[::-1] for size in wide} == set(wide)


@given(
    sizes=st.lists(st.tuples(st.integers(1, 2000), st.integers(1, 2000)), min_size=1, max_size=30),
    images=st.lists(st.tuples(st.integers(0, 65535), st.integers(0, 65535)), min_size=1, max_size=50),
)
def test_a_record_is_in_the_bucket_of_the_nearest_logarithm_of_ratios(
    sizes: list[tuple[int, int]], images: list[tuple[int, int]]
) -> None:
    ratios = sorted({width / height: (height, width) for height, width in sizes}.items())
    found = AspectRatios.of([size for _, size in ratios]).assign(np.array(images))
    for (width, height), bucket in zip(images, found.tolist(), strict=True):
        logarithm = math.log(max(width, 1) / max(height, 1))
        distances = [abs(math.log(ratio) - logarithm) for ratio, _ in ratios]
        assert distances[bucket] <= min(distances) + 1e-12


def test_the_limits_are_the_geometric_means_of_neighboring_ratios() -> None:
    limits = AspectRatios.of([(30, 10), (7, 7), (20, 50)]).limits
    np.testing.assert_allclose(np.sqrt(limits), [math.sqrt(10 / 30), math.sqrt(50 / 20)], rtol=1e-15)
    images = np.tile([[10, 100], [1, 1], [0, 0], [100, 1]], (20_000, 1))  # more than are assigned at a time
    assert AspectRatios.of([(30, 10), (7, 7), (20, 50)]).assign(images).tolist() == [0, 1, 1, 2] * 20_000
    wide, tall = (picstore.Buckets([(8, 8), size], crops).sizes for size in ((4, 9), (9, 4)))
    assert (wide, tall) == (((8, 8), (4, 9)), ((9, 4), (8, 8)))


def test_tokens_give_the_images_of_a_batch() -> None:
    buckets = picstore.Buckets([(40, 20), (20, 90)], crops, tokens=37, patch=10)
    assert buckets.batch_sizes(None) == ((37 // 8,), (37 // 18,))
    assert picstore.Buckets([(10, 10)], crops, tokens=1, patch=10).batch_sizes(None) == ((1,),)
    assert picstore.Buckets([(40, 20), (20, 90)], crops).batch_sizes(5) == ((5,), (5,))
    for tokens, batch_size in ((37, 5), (None, None)):
        with pytest.raises(UsageError):
            picstore.Buckets([(40, 20)], crops, tokens=tokens, patch=10).batch_sizes(batch_size)
    sequences = picstore.Sequences([3, 10, 37], lambda length: [], tokens=37)
    assert sequences.batch_sizes(None) == ((12, 3, 1),)
    with pytest.raises(UsageError):
        sequences.batch_sizes(4)


def test_as_many_buckets_and_lengths_as_fit_a_byte_are_taken() -> None:
    assert len(picstore.Buckets([(k, 300) for k in range(1, 257)], crops).sizes) == 256
    with pytest.raises(UsageError):
        picstore.Buckets([(k, 300) for k in range(1, 258)], crops)
    for lengths in ([], [1, 1], [0], [6], [1.0]):
        with pytest.raises(UsageError):
            picstore.Sequences(lengths, lambda length: [], tokens=5)


def test_a_stage_holds_from_its_first_epoch_to_the_next_one_s() -> None:
    stages = EpochStages((0, 3, 4))
    assert [stages.stage(epoch) for epoch in range(6)] == [0, 0, 0, 1, 2, 2]
    sizes = np.zeros((5, 2), np.int64)
    assert [bool(stages.uses(1, epoch, sizes).all()) for epoch in (2, 3, 4)] == [False, True, False]
    assert len(stages.uses(1, 3, sizes)) == 5
