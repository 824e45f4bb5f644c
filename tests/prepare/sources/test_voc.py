"""Pascal VOC's folders: every object arrives where it was, and every image or annotation is counted."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import ledger, one_line, picstore_command, picstore_json
from PIL import Image
from samples import jpeg

import picstore
from picstore.errors import UsageError
from picstore.prepare.sources.open import open_source

WIDTH, HEIGHT = 64, 48
Object = tuple[str, float, float, float, float]


def annotation(*objects: Object, size: tuple[int, int] = (WIDTH, HEIGHT)) -> str:
    found = "".join(
        f"<object><name>{name}</name><difficult>1</difficult><bndbox><xmin>{left}</xmin><ymin>{top}</ymin>"
        f"<xmax>{right}</xmax><ymax>{bottom}</ymax></bndbox></object>"
        for name, left, top, right, bottom in objects
    )
    return f"<annotation><size><width>{size[0]}</width><height>{size[1]}</height></size>{found}</annotation>"


def devkit(root: Path, annotations: dict[str, str], **sets: str) -> Path:
    """Write a source in the devkit's layout, with an image and a mask for each annotation."""
    for name in ("JPEGImages", "Annotations", "ImageSets/Main", "SegmentationClass"):
        (root / name).mkdir(parents=True)
    for number, (stem, text) in enumerate(annotations.items()):
        (root / "JPEGImages" / f"{stem}.jpg").write_bytes(jpeg(number, width=WIDTH, height=HEIGHT))
        (root / "Annotations" / f"{stem}.xml").write_text(text)
        Image.fromarray(np.full((HEIGHT, WIDTH), number, np.uint8)).save(root / "SegmentationClass" / f"{stem}.png")
    for name, stems in sets.items():
        (root / "ImageSets" / "Main" / f"{name}.txt").write_text("\n".join(stems.split()) + "\n")
    return root


def extras(path: Path) -> dict[str, Any]:
    return {Path(record.extra["path"]).stem: record.extra for record in picstore.Dataset(path)}


TWO = {"b": annotation(("dog", 1, 1, 10, 20), ("cat", 5, 6, WIDTH, HEIGHT)), "a": annotation()}


def test_boxes_count_from_one_and_end_with_their_last_pixel(tmp_path: Path) -> None:
    picstore.convert(devkit(tmp_path / "voc", TWO), tmp_path / "out")
    dataset = picstore.Dataset(tmp_path / "out")
    assert dataset.classes == ["cat", "dog"]
    assert all(record.label == -1 for record in dataset)
    found = extras(tmp_path / "out")
    assert found["b"]["boxes"] == [[0, 0, 10, 20], [4, 5, WIDTH, HEIGHT]]
    assert found["b"]["box_labels"] == [1, 0]
    assert found["b"]["difficult"] == [1, 1]
    assert found["a"]["boxes"] == []


def test_a_box_that_begins_at_0_says_that_all_count_from_0(tmp_path: Path) -> None:
    objects = {**TWO, "c": annotation(("dog", 0, 3, 7, 9))}
    listing = open_source(devkit(tmp_path / "voc", objects))
    boxes = {one.name: json.loads(one.extra)["boxes"] for one in listing.inputs}
    assert boxes["JPEGImages/c.jpg"] == [[0, 3, 7, 9]]
    assert boxes["JPEGImages/b.jpg"] == [[1, 1, 10, 20], [5, 6, WIDTH, HEIGHT]]
    assert any("from 0" in remark for remark in listing.remarks)


def test_segmentations_are_masks_and_not_images(tmp_path: Path) -> None:
    picstore.convert(devkit(tmp_path / "voc", TWO), tmp_path / "out")
    records = list(picstore.Dataset(tmp_path / "out"))
    assert len(records) == 2
    values = {r.extra["path"]: np.asarray(Image.open(io.BytesIO(r.attachments["mask"]))).max() for r in records}
    assert values == {"JPEGImages/b.jpg": 0, "JPEGImages/a.jpg": 1}


@pytest.mark.parametrize("suffix", ["png", "jpg"])
def test_annotations_beside_their_images_are_recognized(tmp_path: Path, suffix: str) -> None:
    (tmp_path / "flat").mkdir()
    Image.new("RGB", (WIDTH, HEIGHT)).save(tmp_path / "flat" / f"x.{suffix}")
    (tmp_path / "flat" / "x.xml").write_text(annotation(("dog", 1, 1, 2, 2)))
    listing = open_source(tmp_path / "flat")
    assert (listing.kind, listing.classes, len(listing.inputs)) == ("voc", ["dog"], 1)


def test_a_split_is_chosen_by_the_lists_of_images(tmp_path: Path) -> None:
    source = devkit(tmp_path / "voc", TWO, train="a", val="b", dog_train="b 1")
    with pytest.raises(UsageError, match=r"splits train, val; give --split"):
        open_source(source)
    assert [one.name for one in open_source(source, split="validation").inputs] == ["JPEGImages/b.jpg"]
    assert len(open_source(source, split="all").inputs) == 2


def test_folders_of_splits_are_read_one_by_one(tmp_path: Path) -> None:
    for name in ("train", "valid"):
        (tmp_path / "voc" / name).mkdir(parents=True)
        (tmp_path / "voc" / name / "x.jpg").write_bytes(jpeg(1))
        (tmp_path / "voc" / name / "x.xml").write_text(annotation(("dog", 1, 1, 2, 2), size=(0, 0)))
    with pytest.raises(UsageError, match="give --split"):
        open_source(tmp_path / "voc")
    assert open_source(tmp_path / "voc", split="train").kind == "voc"


def test_several_years_of_the_devkit_are_refused_by_name(tmp_path: Path) -> None:
    for year in ("VOC2007", "VOC2012"):
        devkit(tmp_path / "kit" / year, TWO)
    assert "VOC2007, VOC2012" in one_line(picstore_command("convert", tmp_path / "kit", tmp_path / "out", code=2))


BROKEN = {
    "no XML": "<annotation>",
    "an entity": "<!DOCTYPE a [<!ENTITY b 'c'>]><annotation>&b;</annotation>",
    "no number": annotation(("dog", 1, 1, 2, 2)).replace("<xmin>1<", "<xmin>one<"),
    "not finite": annotation(("dog", 1, 1, 2, 2)).replace("<xmin>1<", "<xmin>nan<"),
    "no name": annotation(("", 1, 1, 2, 2)),
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=list(BROKEN))
def test_a_broken_annotation_costs_its_own_image_only(tmp_path: Path, text: str) -> None:
    source = devkit(tmp_path / "voc", {**TWO, "broken": text})
    (source / "Annotations" / "missing.xml").write_text(annotation())
    done = picstore_json("convert", source, tmp_path / "out", "--max-errors", "50%")
    assert done["status"] == {"lossless": 2, "failed": 2}
    failed = {line["input"]: line["reason"] for line in ledger(tmp_path / "out") if line["status"] == "failed"}
    assert set(failed) == {"JPEGImages/broken.jpg", "JPEGImages/missing"}
    assert "broken.xml cannot be read" in failed["JPEGImages/broken.jpg"]


def test_boxes_follow_the_order_of_given_classes(tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_text("dog\nbird\ncat\n")
    picstore.convert(devkit(tmp_path / "voc", TWO), tmp_path / "out", classes=tmp_path / "classes.txt")
    assert picstore.Dataset(tmp_path / "out").classes == ["dog", "bird", "cat"]
    assert extras(tmp_path / "out")["b"]["box_labels"] == [0, 2]


def test_boxes_are_clipped_and_those_without_an_area_counted(tmp_path: Path) -> None:
    objects = {"a": annotation(("dog", 1, 1, 500, 20), ("dog", 70, 1, 80, 9))}
    listing = open_source(devkit(tmp_path / "voc", objects))
    assert json.loads(listing.inputs[0].extra)["boxes"] == [[0, 0, WIDTH, 20]]
    assert any("without an area" in remark for remark in listing.remarks)
