"""YOLO's folders: every object arrives where it was, and every image or label file is counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands import ledger, one_line, picstore_command, picstore_json
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from samples import jpeg
from source_files import put

import picstore
from picstore.errors import UsageError
from picstore.prepare.sources.inputs import Input
from picstore.prepare.sources.open import open_source
from picstore.prepare.sources.yolo_labels import Meaning, parse_labels

WIDTH, HEIGHT = 64, 48
IMAGE = jpeg(1, width=WIDTH, height=HEIGHT)
BOX = "1 0.5 0.5 0.25 0.5\n"  # left 24, top 12, right 40, bottom 36
IN_PIXELS = [[24, 12, 40, 36]]
DATA = b"path: ..\nnames:\n  0: no\n  1: dog\n"  # YAML 1.1 has a truth value called no


def extras(path: Path) -> dict[str, Any]:
    return {record.extra["path"]: record.extra for record in picstore.Dataset(path)}


def fields(one: Input) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(one.extra)
    return found


def ultralytics(root: Path, labels: dict[str, str], *, data: bytes = DATA) -> Path:
    """Write images and labels of one split, with a data.yaml."""
    for stem, text in labels.items():
        put(root / "images" / "train" / f"{stem}.jpg", IMAGE)
        put(root / "labels" / "train" / f"{stem}.txt", text.encode())
    put(root / "data.yaml", data)
    return root


# Files of each layout, in which x has a box; the name of its image; and the names of the classes.
LAYOUTS: dict[str, tuple[list[str], dict[str, bytes], list[str]]] = {
    "Ultralytics": (["images/train/x.jpg", "labels/train/x.txt"], {"data.yaml": DATA}, ["no", "dog"]),
    "Ultralytics, deeper": (["images/a/b/x.jpg", "labels/a/b/x.txt"], {"any.yml": b"names: [a, b]"}, ["a", "b"]),
    "Roboflow": (["train/images/x.jpg", "train/labels/x.txt"], {"data.yaml": DATA, "README.txt": b"a"}, ["no", "dog"]),
    "Label Studio": (["images/x.jpg", "labels/x.txt"], {"classes.txt": b"a\nb\n", "notes.json": b"{}"}, ["a", "b"]),
    "darknet of CVAT": (
        ["obj_train_data/x.jpg", "obj_train_data/x.txt"],
        {"obj.names": b"a\nb\n", "obj.data": b"classes = 2", "train.txt": b"data/obj_train_data/x.jpg\n"},
        ["a", "b"],
    ),
    "darknet of Roboflow": (["x.jpg", "x.txt"], {"_darknet.labels": b"a\nb\n"}, ["a", "b"]),
    "LabelImg": (["x.jpg", "x.txt"], {"classes.txt": b"a\nb\n"}, ["a", "b"]),
    "numbers only": (["x.jpg", "x.txt"], {}, []),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_is_recognized_with_its_classes(tmp_path: Path, layout: str) -> None:
    (image, labels), others, classes = LAYOUTS[layout]
    for name, data in {image: IMAGE, labels: BOX.encode(), **others}.items():
        put(tmp_path / name, data)
    listing = open_source(tmp_path)
    assert (listing.kind, listing.classes) == ("yolo", classes)
    assert [(one.name, one.problem, one.label) for one in listing.inputs] == [(image, "", -1)]
    assert fields(listing.inputs[0]) == {"boxes": [[0.375, 0.25, 0.625, 0.75]], "box_labels": [1]}
    assert listing.remarks == ([] if classes else listing.remarks)


def test_boxes_outlines_and_classes_arrive_in_pixels(tmp_path: Path) -> None:
    outline = "0 0 0 0.5 0 0.5 0.25\n"
    source = ultralytics(tmp_path / "yolo", {"a": BOX, "b": outline + BOX, "none": ""})
    picstore.convert(source, tmp_path / "out")
    found = extras(tmp_path / "out")
    assert found["images/train/a.jpg"]["boxes"] == IN_PIXELS
    assert found["images/train/b.jpg"]["boxes"] == [[0, 0, 32, 12], *IN_PIXELS]
    assert found["images/train/b.jpg"]["polygons"] == [[[0, 0, 32, 0, 32, 12]], []]
    assert found["images/train/b.jpg"]["box_labels"] == [0, 1]
    assert found["images/train/none.jpg"]["boxes"] == found["images/train/none.jpg"]["polygons"] == []
    assert picstore.Dataset(tmp_path / "out").classes == ["no", "dog"]


def test_corners_of_oriented_boxes_are_outlines(tmp_path: Path) -> None:
    source = ultralytics(tmp_path / "yolo", {"a": "1 0.5 0.25 0.75 0.5 0.5 0.75 0.25 0.5\n"})
    picstore.convert(source, tmp_path / "out")
    (extra,) = extras(tmp_path / "out").values()
    assert extra["polygons"] == [[[32, 12, 48, 24, 32, 36, 16, 24]]]
    assert extra["boxes"] == [[16, 12, 48, 36]]


@pytest.mark.parametrize(("length", "visible"), [(2, 2), (3, 1)])
def test_keypoints_count_from_the_center_of_the_first_pixel(tmp_path: Path, length: int, visible: int) -> None:
    first, second = ("0.5 0.5", "-1 -1") if length == 2 else ("0.5 0.5 1", "0 0 0")
    data = DATA + f"kpt_shape: [2, {length}]\n".encode()
    source = ultralytics(tmp_path / "yolo", {"a": f"{BOX.strip()} {first} {second}\n"}, data=data)
    picstore.convert(source, tmp_path / "out")
    (extra,) = extras(tmp_path / "out").values()
    assert extra["boxes"] == IN_PIXELS
    assert extra["keypoints"] == [[[31.5, 23.5, visible], [0, 0, 0]]]


def test_boxes_refer_to_the_upright_image_and_follow_its_size(tmp_path: Path) -> None:
    source = ultralytics(tmp_path / "yolo", {"a": BOX})
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (HEIGHT, WIDTH)).save(source / "images" / "train" / "a.jpg", exif=exif)
    picstore.convert(source, tmp_path / "out", resize="shorter:24")
    (record,) = picstore.Dataset(tmp_path / "out")
    assert (record.width, record.height) == (32, 24)
    assert record.extra["boxes"] == [[12, 6, 20, 18]]


def test_an_image_without_a_label_file_has_no_objects(tmp_path: Path) -> None:
    source = ultralytics(tmp_path / "yolo", {"a": BOX, "b": BOX})
    (source / "labels" / "train" / "b.txt").unlink()
    listing = open_source(source)
    assert [len(fields(one)["boxes"]) for one in listing.inputs] == [1, 0]
    assert listing.remarks == ["1 × image without a label file: no objects"]


BROKEN = {
    "pixels": ("0 320 240 10 10", "not from 0 to 1"),
    "a class beyond": ("2 0.5 0.5 0.1 0.1", "not the number of a class of 2"),
    "a class below": ("-1 0.5 0.5 0.1 0.1", "not the number of a class"),
    "no number": ("0 0.5 0.5 a 0.1", "is not a number"),
    "not finite": ("0 0.5 0.5 nan 0.1", "not a finite number"),
    "too few": ("0 0.5 0.5 0.1", "3 numbers"),
    "a confidence": ("0 0.5 0.5 0.1 0.1 0.9", "5 numbers"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_malformed_line_says_its_number(name: str) -> None:
    line, message = BROKEN[name]
    with pytest.raises(ValueError, match=rf"line 3: .*{message}"):
        parse_labels(f"{BOX}\n{line}\n{BOX}", Meaning(("a", "b")))


def test_a_malformed_line_and_a_missing_image_cost_no_other(tmp_path: Path) -> None:
    source = ultralytics(tmp_path / "yolo", {"a": BOX, "b": BOX + "0 2 2 2 2\n", "c": ""})
    put(source / "labels" / "train" / "missing.txt", BOX.encode())
    put(source / "labels" / "train" / "c.txt", b"\xff" * 20)
    done = picstore_json("convert", source, tmp_path / "out", "--max-errors", "80%")
    assert done["status"] == {"lossless": 1, "failed": 3}
    failed = {line["input"]: line["reason"] for line in ledger(tmp_path / "out") if line["status"] == "failed"}
    assert failed["labels/train/missing.txt"] == "a label file without an image"
    assert "b.txt cannot be read: line 2" in failed["images/train/b.jpg"]
    assert "c.txt cannot be read" in failed["images/train/c.jpg"]


def test_boxes_are_clipped_and_those_without_an_area_counted(tmp_path: Path) -> None:
    listing = open_source(ultralytics(tmp_path / "yolo", {"a": "0 0 0.5 0.5 1\n0 0.5 0.5 0 0.1\n"}))
    assert fields(listing.inputs[0])["boxes"] == [[0, 0, 0.25, 1]]
    assert listing.remarks == ["1 × box without an area inside its image: left out"]


@pytest.mark.parametrize(
    "place", ["images/{}/x.jpg labels/{}/x.txt", "{}/images/x.jpg {}/labels/x.txt", "{}/x.jpg {}/x.txt"]
)
def test_a_split_is_a_folder_that_has_to_be_chosen(tmp_path: Path, place: str) -> None:
    for split in ("train", "valid"):
        image, labels = place.format(split, split).split()
        put(tmp_path / image, IMAGE)
        put(tmp_path / labels, BOX.encode())
    with pytest.raises(UsageError, match=r"splits train, valid; give --split"):
        open_source(tmp_path)
    listing = open_source(tmp_path, split="validation")
    assert listing.kind == "yolo"
    assert len(listing.inputs) == 1
    if not place.startswith("{}/x"):
        assert len(open_source(tmp_path, split="all").inputs) == 2
        assert "valid" in listing.inputs[0].name


def test_a_split_is_a_list_beside_folders_without_splits(tmp_path: Path) -> None:
    for stem in "abc":
        put(tmp_path / "images" / f"{stem}.jpg", IMAGE)
        put(tmp_path / "labels" / f"{stem}.txt", BOX.encode())
    put(tmp_path / "train.txt", b"./images/a.jpg\n/content/set/images/c.jpg\n")
    put(tmp_path / "val.txt", b"images/b.jpg\nimages/lost.jpg\n")
    with pytest.raises(UsageError, match="give --split"):
        open_source(tmp_path)
    assert [one.name for one in open_source(tmp_path, split="train").inputs] == ["images/a.jpg", "images/c.jpg"]
    found = {one.name: one.problem for one in open_source(tmp_path, split="val").inputs}
    assert found == {"images/b.jpg": "", "images/lost.jpg": "a list names it; it is missing"}


def test_masks_in_a_folder_of_labels_are_neither_images_nor_classes(tmp_path: Path) -> None:
    for stem in "ab":
        put(tmp_path / "set" / "images" / f"{stem}.jpg", IMAGE)
        put(tmp_path / "set" / "labels" / f"{stem}.png", IMAGE)
    message = one_line(picstore_command("convert", tmp_path / "set", tmp_path / "out", code=2))
    assert "masks" in message
    assert open_source(tmp_path / "set", kind="folder").classes == ["images", "labels"]


def test_captions_beside_images_are_not_labels(tmp_path: Path) -> None:
    put(tmp_path / "x.jpg", IMAGE)
    put(tmp_path / "x.txt", b"3 dogs in 2 baskets on 1 table")
    assert open_source(tmp_path).kind == "folder"


@pytest.mark.parametrize(
    "data",
    [b"names: [a", b"names: {x: a}", b"names: {9999999999: a}", b"names: [[a]]", b"kpt_shape: [0, 7]", b"[" * 10_000],
)
def test_a_malformed_data_yaml_is_refused_in_one_line(tmp_path: Path, data: bytes) -> None:
    source = ultralytics(tmp_path / "yolo", {"a": BOX}, data=data)
    assert "data.yaml" in one_line(picstore_command("convert", source, tmp_path / "out", code=2))


def test_boxes_follow_the_order_of_given_classes(tmp_path: Path) -> None:
    source = ultralytics(tmp_path / "yolo", {"a": BOX})
    names = put(tmp_path / "classes.txt", b"dog\nbird\nno\n")
    picstore.convert(source, tmp_path / "out", classes=names)
    (extra,) = extras(tmp_path / "out").values()
    assert extra["box_labels"] == [0]


@given(st.text(alphabet="0123456789.-e \n\x00a", max_size=200))
def test_any_text_is_parsed_or_refused_with_its_line(text: str) -> None:
    try:
        found = parse_labels(text, Meaning())
    except ValueError as error:
        assert str(error).startswith("line ")
        return
    assert len(found["boxes"]) == len(found["box_labels"]) == len(found["polygons"]) == len(found["keypoints"])
    assert all(0 <= value <= 1 for box in found["boxes"] for value in box)
