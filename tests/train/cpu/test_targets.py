"""Targets go where the pixels go: against torchvision's functions, and against the pixels themselves."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from grids import examples
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageDraw
from samples import picture
from torchvision import tv_tensors
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as tv

import picstore
from picstore.storage.annotations import MAX_COORDINATE, read_objects
from picstore.train.batch import make_tensors
from picstore.train.cpu.targets import make_target
from picstore.train.transforms.affine import RandomRotation
from picstore.train.transforms.batch_random import BatchRandom
from picstore.train.transforms.crops import CenterCrop, Pad, RandomHorizontalFlip, RandomResizedCrop, RandomVerticalFlip
from picstore.train.transforms.geometry import Geometry
from picstore.train.transforms.resizing import Resize
from picstore.train.transforms.transform_lists import compose
from picstore.train.transforms.transform_plan import check_targets

WIDTH, HEIGHT = 64, 48
FLIP, FLOP = RandomHorizontalFlip(1.0), RandomVerticalFlip(1.0)
Steps = list[Any]


def geometry_of(steps: Steps, width: int = WIDTH, height: int = HEIGHT) -> Geometry:
    return compose(steps, Geometry.identity([width], [height]), BatchRandom(0, 0, [0]))


def target_of(names: list[str], extra: Any, steps: Steps | None = None, masks: Any = None) -> dict[str, Any]:
    geometry = geometry_of(steps or [])
    width, height = geometry.size[0].tolist()
    return make_tensors(make_target(names, extra, masks or {}, geometry, 0), (height, width))


def crop(left: int, top: int, width: int, height: int) -> Callable[[Geometry, BatchRandom], Geometry]:
    """A transform that cuts out one box."""

    class Crop:
        fixes_size = (height, width)

        def __call__(self, geometry: Geometry, random: BatchRandom) -> Geometry:
            return geometry.crop([[left, top]], [[width, height]])

    return Crop()


def png(values: np.ndarray, mode: str | None = None, format: str = "PNG") -> bytes:
    out = io.BytesIO()
    image = Image.fromarray(values)
    if mode == "P":
        image.putpalette([7 * k % 256 for k in range(768)])
    image.save(out, format)
    return out.getvalue()


MASK = (np.add.outer(np.arange(HEIGHT) // 8 * 8, np.arange(WIDTH) // 8) % 251).astype(np.uint8)
BOXES = [[10, 5, 30, 25], [0, 0, 64, 48], [40.5, 30.25, 60, 47.5], [2, 40, 9, 46]]

# Each list, and what torchvision does for it to boxes or masks.
SAME: dict[str, tuple[Steps, Callable[[Any], Any]]] = {
    "nothing": ([], lambda x: x),
    "flip": ([FLIP], tv.horizontal_flip),
    "flop": ([FLOP], tv.vertical_flip),
    "crop": ([crop(12, 8, 40, 30)], lambda x: tv.crop(x, 8, 12, 30, 40)),
    "resize": ([Resize((96, 100))], lambda x: tv.resize(x, [96, 100])),
    "pad": ([Pad((3, 4, 5, 6))], lambda x: tv.pad(x, [3, 4, 5, 6])),
    "crop beyond the image": ([CenterCrop((60, 50))], lambda x: tv.center_crop(x, [60, 50])),
    "crop, flip, pad": ([crop(8, 8, 24, 32), FLIP, Pad(6)], lambda x: tv.pad(tv.hflip(tv.crop(x, 8, 8, 32, 24)), [6])),
    "crop, resize": ([crop(8, 8, 24, 16), Resize((64, 96))], lambda x: tv.resized_crop(x, 8, 8, 16, 24, [64, 96])),
}


def by_torchvision(step: Callable[[Any], Any], boxes: list[list[float]]) -> torch.Tensor:
    """Boxes clamped to the canvas, those with a side below a pixel left out."""
    given_ = tv_tensors.BoundingBoxes(boxes, format="XYXY", canvas_size=(HEIGHT, WIDTH), dtype=torch.float64)
    moved = tv.clamp_bounding_boxes(step(given_))
    return moved[((moved[:, 2:] - moved[:, :2]) >= 1 - 1e-6).all(dim=1)]


@pytest.mark.parametrize("name", SAME)
def test_boxes_agree_with_torchvision(name: str) -> None:
    steps, step = SAME[name]
    extra = {"boxes": BOXES, "box_labels": [3, 1, 4, 1]}
    target = target_of(["boxes"], extra, steps)
    expected = by_torchvision(step, BOXES)
    torch.testing.assert_close(target["boxes"].double().as_subclass(torch.Tensor), expected.as_subclass(torch.Tensor))
    assert target["boxes"].dtype == torch.float32
    assert target["boxes"].format == tv_tensors.BoundingBoxFormat.XYXY
    assert target["boxes"].canvas_size == tuple(geometry_of(steps).size[0, ::-1])
    assert target["labels"].tolist() == [extra["box_labels"][k] for k in target["index"]]


@pytest.mark.parametrize("name", [name for name in SAME if "resize" not in name])
def test_masks_agree_with_torchvision(name: str) -> None:
    steps, step = SAME[name]
    target = target_of(["mask"], None, steps, {"mask": png(MASK)})
    assert isinstance(target["mask"], tv_tensors.Mask)
    assert torch.equal(target["mask"], step(torch.from_numpy(MASK)[None])[0])


@pytest.mark.parametrize("size", [(96, 128), (24, 32), (31, 77)])
def test_a_resized_mask_agrees_with_torchvision_s_exact_nearest_neighbor(size: tuple[int, int]) -> None:
    target = target_of(["mask"], None, [Resize(size)], {"mask": png(MASK)})
    expected = tv.resize(torch.from_numpy(MASK)[None], list(size), interpolation=InterpolationMode.NEAREST_EXACT)[0]
    assert (target["mask"] != expected).float().mean() < 0.01  # ties of centers between two pixels


@pytest.mark.parametrize("angle", [-170.0, -35.0, 10.0, 90.0])
def test_rotated_boxes_and_masks_agree_with_torchvision(angle: float) -> None:
    steps = [RandomRotation((angle, angle))]
    target = target_of(["boxes", "mask"], {"boxes": BOXES}, steps, {"mask": png(MASK)})
    expected = by_torchvision(lambda boxes: tv.rotate(boxes, angle), BOXES)
    assert target["boxes"].shape == expected.shape
    assert (target["boxes"] - expected).abs().max() < 1
    mask = tv.rotate(torch.from_numpy(MASK)[None], angle, interpolation=InterpolationMode.NEAREST)[0]
    assert (target["mask"] != mask).float().mean() < 0.02


LISTS: list[Steps] = [
    [RandomResizedCrop(40), FLIP],
    [RandomRotation((25, 25))],
    [Resize((90, 70)), RandomRotation((-60, -60)), CenterCrop(50), Pad(4)],
    [RandomRotation(180), RandomResizedCrop((50, 60)), FLOP],
]


@pytest.mark.parametrize("steps", LISTS)
def test_boxes_and_polygons_stay_around_the_pixels_of_their_object(steps: Steps) -> None:
    """One object is marked in a mask; box, outline and moved mask must show the same place."""
    left, top, right, bottom = 20, 14, 44, 34
    marked = np.zeros((HEIGHT, WIDTH), dtype=np.uint8)
    marked[top:bottom, left:right] = 1
    polygon = [left, top, right, top, right, bottom, left, bottom]
    extra = {"boxes": [[left, top, right, bottom]], "polygons": [[polygon]]}
    target = target_of(["boxes", "polygons", "mask"], extra, steps, {"mask": png(marked)})
    ys, xs = np.nonzero(target["mask"].numpy())
    shown = np.array([xs.min(), ys.min(), xs.max() + 1, ys.max() + 1])
    outline = torch.cat(target["polygons"][0]).numpy()
    assert np.abs(np.concatenate([outline.min(axis=0), outline.max(axis=0)]) - shown).max() <= 1.5
    box = target["boxes"][0].numpy()
    assert (box[:2] <= shown[:2] + 1).all()
    assert (box[2:] >= shown[2:] - 1).all()
    drawn = Image.new("1", target["mask"].shape[::-1])
    ImageDraw.Draw(drawn).polygon([tuple(point) for point in (outline - 0.5).tolist()], fill=1)
    assert (np.asarray(drawn) != target["mask"].numpy()).mean() < 0.03


def test_an_object_that_is_not_shown_is_dropped_with_all_its_fields() -> None:
    extra = {
        "boxes": [[0, 0, 10, 10], [20, 20, 30, 30], [0, 20, 20.5, 30]],
        "box_labels": [5, 6, 7],
        "keypoints": [[[1, 1, 2]], [[25, 25, 2], [64, 25, 1]], []],
        "polygons": [[[0, 0, 5, 0, 5, 5]], [[20, 20, 30, 20, 30, 30], [0, 0, 9, 0, 9, 9]], []],
        "note": "kept",
    }
    target = target_of(["boxes", "keypoints", "polygons", "extra"], extra, [crop(20, 20, 30, 20)])
    assert target["index"].tolist() == [1]  # half a pixel of the third is left, which is no object
    assert target["labels"].tolist() == [6]
    assert target["boxes"].tolist() == [[0, 0, 10, 10]]
    assert target["keypoints"].tolist() == [[[5, 5], [0, 0]]]
    assert target["visibility"].tolist() == [[2, 0]]
    assert [outline.tolist() for outline in target["polygons"][0]] == [[[0, 0], [10, 0], [10, 10]]]
    assert target["extra"] is extra


def test_what_is_dropped_depends_on_no_names_and_without_boxes_is_nothing() -> None:
    extra = {"boxes": [[0, 0, 9, 9], [30, 30, 40, 40]], "keypoints": [[[1, 1, 2]], [[35, 35, 2]]]}
    steps = [crop(20, 20, 30, 20)]
    assert target_of(["keypoints"], extra, steps)["visibility"].tolist() == [[2]]
    del extra["boxes"]
    target = target_of(["keypoints"], extra, steps)
    assert target["visibility"].tolist() == [[0], [2]]
    assert target["index"].tolist() == [0, 1]


def test_keypoints_count_from_pixel_centers_so_a_flip_is_torchvisions() -> None:
    points = [[0, 0], [63, 47], [10.25, 20]]
    target = target_of(["keypoints"], {"keypoints": [[[*point, 2] for point in points]]}, [FLIP])
    like = tv_tensors.KeyPoints(points, canvas_size=(HEIGHT, WIDTH))
    assert isinstance(target["keypoints"], tv_tensors.KeyPoints)
    assert target["keypoints"].canvas_size == (HEIGHT, WIDTH)
    assert torch.equal(target["keypoints"][0], tv.horizontal_flip(like))


def test_what_a_later_padding_uncovers_is_not_there_any_more() -> None:
    """After a rotation a cut is no rectangle of the source: the object that it cut off must not come back."""
    steps = [RandomRotation((30, 30)), CenterCrop(20), Pad(14)]
    extra = {
        "boxes": [[0, 0, 12, 12], [28, 20, 36, 28]],
        "polygons": [[[0, 0, 12, 0, 12, 12]], [[28, 20, 36, 20, 36, 28]]],
        "keypoints": [[[6, 6, 2]], [[32, 24, 2]]],
    }
    target = target_of(["boxes", "polygons", "keypoints"], extra, steps)
    assert target["index"].tolist() == [1]
    assert target["visibility"].tolist() == [[2]]
    del extra["boxes"]
    target = target_of(["polygons", "keypoints"], extra, steps)
    assert [len(outlines) for outlines in target["polygons"]] == [0, 1]
    assert target["visibility"].tolist() == [[0], [2]]
    beside = {"boxes": [[26, 20, 60, 28]], "keypoints": [[[47, 24, 2], [38, 24, 2]]]}
    target = target_of(["boxes", "keypoints"], beside, steps)
    box = target["boxes"][0].tolist()
    assert min(box) >= 14 - 1e-3
    assert max(box) <= 34 + 1e-3
    assert target["visibility"].tolist() == [[0, 2]]


def test_a_record_without_extra_has_no_objects_but_the_same_fields() -> None:
    for extra in (None, {}, {"caption": "empty street"}):
        target = target_of(["boxes", "keypoints", "polygons", "extra"], extra, [FLIP])
        assert target["boxes"].shape == (0, 4)
        assert target["labels"].shape == (0,)
        assert target["keypoints"].shape == (0, 0, 2)
        assert target["visibility"].shape == (0, 0)
        assert target["polygons"] == []
        assert target["index"].shape == (0,)
        assert target["extra"] is extra
    assert target_of(["boxes"], {"boxes": BOXES})["labels"].tolist() == [-1] * 4


@pytest.mark.parametrize(
    ("blob", "dtype"),
    [
        (png(MASK), torch.uint8),
        (png(MASK, "P"), torch.uint8),
        (png(MASK.astype(np.uint16) * 257), torch.int64),
        (png(MASK, format="TIFF"), torch.uint8),
        (png(MASK.astype(np.uint16) * 257, format="TIFF"), torch.int64),
        (png(MASK.astype(np.int32) * 70_000, format="TIFF"), torch.int64),
        (png(MASK % 2 == 1), torch.uint8),
        (png(MASK, "P", format="BMP"), torch.uint8),
        (png(MASK, "P", format="GIF"), torch.uint8),
    ],
)
def test_masks_keep_their_values_whatever_lossless_format_holds_them(blob: bytes, dtype: torch.dtype) -> None:
    mask = target_of(["mask"], None, [], {"mask": memoryview(blob)})["mask"]
    assert mask.dtype == dtype
    with Image.open(io.BytesIO(blob)) as image:
        assert np.array_equal(mask.numpy(), np.asarray(image))


def test_a_mask_is_0_outside_of_the_image_and_none_where_a_record_has_none() -> None:
    target = target_of(["mask", "depth"], None, [Pad(2)], {"mask": png(MASK + 1)})
    assert (target["mask"][:2] == 0).all()
    assert target["mask"][2, 2] == 1
    assert target["depth"] is None


def truncated() -> bytes:
    noise = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH), dtype=np.uint8)
    return png(noise)[:-1000]


@pytest.mark.parametrize(
    ("blob", "reason"),
    [
        (png(MASK[:-1]), r"64 × 47 pixels, its image 64 × 48"),
        (png(np.zeros((HEIGHT, WIDTH, 3), dtype=np.uint8)), "mode RGB"),
        (b"text", "is not a mask"),
        (truncated(), "is not a mask"),
    ],
)
def test_a_mask_that_is_none_is_an_error_of_the_record(blob: bytes, reason: str) -> None:
    with pytest.raises(picstore.ImageError, match=reason):
        target_of(["mask"], None, [], {"mask": blob})


BAD = [
    ([], "not a JSON object"),
    ({"boxes": 3}, "boxes is 3"),
    ({"boxes": {"a": 1}}, "boxes is an object"),
    ({"boxes": [1, 2, 3, 4]}, r"boxes is \[1, 2, 3, 4\]"),
    ({"boxes": [[1, 2, 3]]}, "left, top, right, bottom"),
    ({"boxes": [[1, 2, 3, 4], [1, 2, 3]]}, "left, top, right, bottom"),
    ({"boxes": [[1, 2, 3, "4"]]}, "left, top, right, bottom"),
    ({"boxes": [[1, 2, 3, None]]}, "left, top, right, bottom"),
    ({"boxes": [[True, False, True, True]]}, "left, top, right, bottom"),
    ({"boxes": [[1, 2, 3, 10**400]]}, "left, top, right, bottom"),
    ({"boxes": [[1, 2, 3, float("nan")]]}, "NaN"),
    ({"boxes": [[1, 2, 3, float("inf")]]}, "beyond"),
    ({"boxes": [[1, 2, 3, MAX_COORDINATE + 1]]}, "beyond"),
    ({"boxes": [[5, 2, 3, 4]]}, r"boxes\[0\].*comes before"),
    ({"boxes": [[1, 2, 3, 4]], "box_labels": [1, 2]}, "1 boxes, 2 box_labels"),
    ({"boxes": [[1, 2, 3, 4]], "box_labels": [1.0]}, "integers"),
    ({"boxes": [[1, 2, 3, 4]], "box_labels": [True]}, "integers"),
    ({"boxes": [[1, 2, 3, 4]], "box_labels": [1 << 63]}, "integers"),
    ({"boxes": [[1, 2, 3, 4]], "box_labels": [-2]}, "integers"),
    ({"keypoints": [[1, 2, 2]]}, r"keypoints\[0\]"),
    ({"keypoints": [[[1, 2]]]}, r"keypoints\[0\]"),
    ({"keypoints": [[[1, 2, 3]]]}, "0, 1 or 2"),
    ({"keypoints": [7]}, r"keypoints\[0\] is 7"),
    ({"polygons": [[1, 2, 3, 4, 5, 6]]}, r"polygons\[0\]\[0\]"),
    ({"polygons": [[[1, 2, 3, 4]]]}, "three points"),
    ({"polygons": [[[1, 2, 3, 4, 5, 6, 7]]]}, "three points"),
    ({"polygons": ["outline"]}, r"polygons\[0\] is 'outl'"),
    ({"keypoints": [[]]}, "no boxes"),
]


@pytest.mark.parametrize(("extra", "reason"), BAD)
def test_an_extra_of_another_form_is_an_error_of_its_record_and_says_where(extra: Any, reason: str) -> None:
    with pytest.raises(picstore.ImageError, match=reason):
        target_of(["boxes", "keypoints", "polygons"], extra)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["boxes", "box_labels", "polygons", "keypoints"]), JSON, max_size=4))
@examples(300)
def test_no_extra_raises_anything_but_an_image_error(extra: Any) -> None:
    try:
        objects = read_objects(extra)
    except picstore.ImageError as error:
        assert len(str(error)) < 300
    else:
        assert objects.boxes is None or objects.boxes.shape == (objects.count, 4)


numbers = st.floats(-20, 90)


@given(st.lists(st.tuples(numbers, numbers, numbers, numbers), max_size=6), st.sampled_from(range(len(LISTS))))
@examples(100)
def test_all_that_is_left_lies_inside_the_output(corners: list[tuple[float, ...]], chosen: int) -> None:
    boxes = [[min(a, c), min(b, d), max(a, c), max(b, d)] for a, b, c, d in corners]
    extra = {
        "boxes": boxes,
        "polygons": [[[a, b, c, b, c, d, a, d]] for a, b, c, d in boxes],
        "keypoints": [[[a, b, 2]] for a, b, _, _ in boxes],
    }
    geometry = geometry_of(LISTS[chosen])
    found = make_target(["boxes", "polygons", "keypoints"], extra, {}, geometry, 0)
    target = make_tensors(found, (1, 1))
    size = torch.tensor(geometry.size[0])
    held = target["boxes"].as_subclass(torch.Tensor)
    assert (held >= 0).all()
    assert (held.reshape(-1, 2) <= size).all()
    assert (held[:, 2:] - held[:, :2] >= 0.999).all()
    assert len(held) == len(target["index"]) == len(target["polygons"]) == len(target["keypoints"])
    for outline in (outline for outlines in target["polygons"] for outline in outlines):
        assert (outline >= -1e-3).all()
        assert (outline <= size + 1e-3).all()
    seen = target["keypoints"][target["visibility"] > 0].as_subclass(torch.Tensor)
    assert (seen >= -0.501).all()
    assert (seen <= size - 0.499).all()


def test_names_are_fields_of_the_extra_or_attachments_of_the_data_set(tmp_path: Path) -> None:
    with picstore.Writer(tmp_path / "d", attachments=["mask", "labels"]) as writer:
        writer.add(picture(1), attachments={"mask": b"x"})
    dataset = picstore.Dataset(tmp_path / "d")
    assert check_targets(["mask", "boxes", "mask"], dataset) == ("mask", "boxes")
    with pytest.raises(picstore.UsageError, match=r"'depth' is unknown.*boxes, keypoints, polygons, extra.*mask"):
        check_targets(["depth"], dataset)
    with pytest.raises(picstore.UsageError, match="'labels' is unknown"):  # what comes with the boxes has this name
        check_targets(["labels"], dataset)


def test_masks_may_be_larger_than_pillow_s_own_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow's classes still refuse a tile of TIFF beyond it; the pixels of a loader are bounded by its max_pixels."""
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", HEIGHT * WIDTH // 3)
    mask = np.arange(HEIGHT * WIDTH, dtype=np.uint8).reshape(HEIGHT, WIDTH)
    for kind in ("PNG", "BMP", "GIF"):
        out = io.BytesIO()
        Image.fromarray(mask).save(out, kind)
        np.testing.assert_array_equal(target_of(["mask"], None, [], {"mask": out.getvalue()})["mask"], mask)
