"""Parameters of transforms: draws of views and copies, and boxes around what all views of an image need."""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import picstore
from picstore.train.batching.parameters import draw_crops, draw_geometry, draws_by_kernel, read_boxes, view_rows
from picstore.train.batching.views_reach import align_reach, boxes_to_cut, joint_factors, joint_reach
from picstore.train.transforms.batch_random import BatchRandom
from picstore.train.transforms.geometry import Geometry
from picstore.train.transforms.views import ViewGroup

IDS = np.array([5, 9, 5])
SIZES = np.array([[60, 40], [33, 70], [60, 40]])


def draw(first: int, count: int, views: int, **options: Any) -> Geometry:
    """The geometry of some views of three records, of a source whose records have so many views."""
    source: Any = SimpleNamespace(seed=3, plan=SimpleNamespace(view_count=views))
    group: Any = SimpleNamespace(first=first, count=count, geometry=[picstore.RandomResizedCrop(16)])
    return draw_geometry(source, group, 2, IDS, SIZES, **options)[0]


def expected(view: list[int]) -> np.ndarray:
    """Frames of the three records, each in a view of its own number."""
    random = BatchRandom(3, 2, IDS, np.array(view))
    return picstore.RandomResizedCrop(16)(Geometry.identity(*SIZES.T), random).frame


def test_views_are_numbered_on_through_the_copies_of_a_record() -> None:
    drawn = draw(first=1, count=2, views=3, copies=np.array([0, 0, 1]))
    assert np.array_equal(drawn.frame, np.concatenate([expected([1, 1, 4]), expected([2, 2, 5])]))
    assert np.array_equal(draw(first=0, count=1, views=2, copies=2).frame, expected([4, 4, 4]))
    assert np.array_equal(draw(first=0, count=1, views=1).frame, expected([0, 0, 0]))


def test_boxes_are_repeated_for_each_view() -> None:
    boxes = np.arange(24.0).reshape(3, 2, 4)
    drawn = draw(first=0, count=2, views=2, boxes=boxes)
    assert drawn.boxes is not None and drawn.boxes.tolist() == [*boxes.tolist()] * 2
    assert read_boxes([]).shape == (0, 0, 4) and read_boxes([b""]).shape == (1, 0, 4)


_side = st.integers(1, 65535) | st.integers(1, 40)
_bound = st.floats(0.01, 8)


@given(
    sizes=st.lists(st.tuples(_side, _side), min_size=1, max_size=40),
    scale=st.tuples(_bound, _bound).map(sorted),
    ratio=st.tuples(_bound, _bound).map(sorted),
    flips=st.lists(st.tuples(st.booleans(), st.floats(0, 1)), max_size=3),
    interpolation=st.sampled_from(["nearest", "bilinear", "bicubic", "lanczos"]),
    numbers=st.tuples(*[st.integers(0, 2**63 - 1)] * 3),
    views=st.tuples(st.integers(0, 3), st.integers(1, 3), st.integers(0, 5)),
)
def test_kernels_draw_crops_and_flips_to_the_bit(
    sizes: Any, scale: Any, ratio: Any, flips: Any, interpolation: str, numbers: Any, views: Any
) -> None:
    seed, epoch, first = numbers
    kinds = picstore.RandomVerticalFlip, picstore.RandomHorizontalFlip
    crop = picstore.RandomResizedCrop((7, 9), scale, ratio, interpolation, antialias=bool(seed % 2))
    group = ViewGroup((crop, *(kinds[kind](p) for kind, p in flips)), count=views[1], first=views[0])
    source: Any = SimpleNamespace(seed=seed, plan=SimpleNamespace(view_count=4))
    images = first // 2 + np.arange(len(sizes)), np.array(sizes)
    copies = np.arange(len(sizes)) % 2 * views[2]
    assert draws_by_kernel(group)
    drawn = draw_crops(source, group, epoch, *images, copies=copies)
    assert drawn is not None
    (geometry, random), (expected_geometry, expected_random) = (
        drawn,
        draw_geometry(source, group, epoch, *images, copies=copies),
    )
    known = ("box", "grid_box", "reach", "upright", "flip", "shows_edges", "window", "shrink")
    for name in (*(field.name for field in fields(Geometry)), *known):
        found, wanted = getattr(geometry, name), getattr(expected_geometry, name)
        assert found is wanted is None or (found.dtype == wanted.dtype and np.array_equal(found, wanted)), name
    assert np.array_equal(random.uniform(3), expected_random.uniform(3))


def test_kernels_leave_images_without_pixels_and_other_lists_alone() -> None:
    source: Any = SimpleNamespace(seed=3, plan=SimpleNamespace(view_count=1))
    crop = picstore.RandomResizedCrop(16)
    assert draw_crops(source, ViewGroup((crop,)), 0, IDS, SIZES * [[1, 0]]) is None
    several = picstore.RandomResizedCrop(16, interpolation="random")
    for steps in ((), (several,), (picstore.RandomHorizontalFlip(), crop), (crop, picstore.CenterCrop(9))):
        assert not draws_by_kernel(ViewGroup(steps))


def test_rows_of_slots_are_those_of_each_view_after_the_other() -> None:
    assert view_rows(np.array([2, 0, 2]), count=3, n=4).tolist() == [2, 0, 2, 6, 4, 6, 10, 8, 10]


box = st.tuples(*[st.integers(-20, 90)] * 4)


@given(st.lists(st.tuples(box, box), min_size=1, max_size=4))
def test_the_joint_reach_is_around_all_that_are_not_empty(pairs: list[Any]) -> None:
    reaches = np.array(pairs).transpose(1, 0, 2)
    views: list[Any] = [SimpleNamespace(reach=each, size=each[:, :2]) for each in reaches]
    for geometries in (
        views,
        [SimpleNamespace(reach=np.concatenate(list(reaches)), size=np.zeros((2 * len(pairs), 2)))],
    ):
        found = joint_reach(geometries, len(pairs))  # type: ignore[arg-type]
        for row, pair in zip(found.tolist(), pairs, strict=True):
            full = np.array([each for each in pair if each[0] < each[2] and each[1] < each[3]])
            if len(full):
                assert row == [*full[:, :2].min(axis=0), *full[:, 2:].max(axis=0)]
            else:
                assert row[0] > row[2] and row[1] > row[3]
    assert joint_reach(views[:1], len(pairs)) is views[0].reach


def test_the_joint_factor_is_the_least_of_all_views() -> None:
    views: list[Any] = [SimpleNamespace(decode_factors=lambda gap, by=by: np.array(by)) for by in ([8, 1], [2, 4])]
    assert joint_factors(views, 2, 1.0).tolist() == [2, 1]


@given(st.lists(box, min_size=1, max_size=4), st.sampled_from((1, 2, 4, 8)))
def test_reaches_are_aligned_outwards_and_boxes_lie_in_the_image(boxes: list[Any], by: int) -> None:
    aligned = align_reach(np.array(boxes), np.full(len(boxes), by))
    cut = boxes_to_cut(np.array(boxes), np.tile([[64, 48]], (len(boxes), 1)))
    for each, (a, b, c, d), (left, top, right, bottom) in zip(boxes, aligned.tolist(), cut.tolist(), strict=True):
        assert not any(side % by for side in (a, b, c, d))
        assert 0 <= each[0] - a < by and 0 <= each[1] - b < by and 0 <= c - each[2] < by and 0 <= d - each[3] < by
        assert (left, top) == (min(max(each[0], 0), 63), min(max(each[1], 0), 47))
        assert (right, bottom) == (min(max(each[2], left + 1), 64), min(max(each[3], top + 1), 48))


def test_boxes_of_records_are_padded_and_those_of_damaged_extras_are_none() -> None:
    two, one = b'{"boxes": [[0, 0, 2, 3], [1, 1, 4, 5]]}', b'{"boxes": [[7, 7, 8, 8]]}'
    found = read_boxes([two, b"", one, b"{", b'{"boxes": 3}'])
    assert found.shape == (5, 2, 4)
    assert found[0].tolist() == [[0, 0, 2, 3], [1, 1, 4, 5]] and found[2, 0].tolist() == [7, 7, 8, 8]
    assert np.isnan(found[[1, 3, 4]]).all() and np.isnan(found[2, 1]).all()
    assert read_boxes([b""]).shape == (1, 0, 4)
