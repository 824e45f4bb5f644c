"""CSVs with a row for each box: one record an image, with all of its boxes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands import ledger, picstore_json
from samples import jpeg
from source_files import put

import picstore
from picstore.errors import UsageError
from picstore.prepare.sources.inputs import Listing
from picstore.prepare.sources.open import open_source

WIDTH, HEIGHT = 64, 48
ROWS = "a.jpg,1,2,30,40,cat\nb.jpg,5,6,7,8,dog\na.jpg,0,0,10.5,10,dog\n"
BOXES = {
    "a.jpg": {"boxes": [[1, 2, 30, 40], [0, 0, 10.5, 10]], "box_labels": [0, 1]},
    "b.jpg": {"boxes": [[5, 6, 7, 8]], "box_labels": [1]},
}


def table(root: Path, text: str, name: str = "boxes.csv") -> Path:
    for number, stem in enumerate("abc"):
        put(root / f"{stem}.jpg", jpeg(number, width=WIDTH, height=HEIGHT))
    return put(root / name, text.encode())


def extras(listing: Listing) -> dict[str, Any]:
    return {one.name: json.loads(one.extra) for one in listing.inputs}


@pytest.mark.parametrize(
    "header",
    [
        "filename,xmin,ymin,xmax,ymax,class\n",
        "path,x1,y1,x2,y2,label\n",
        "image,Left,Top,Right,Bottom,class_name\n",
        "",
    ],
    ids=["Roboflow", "x1", "left", "RetinaNet"],
)
def test_rows_of_an_image_are_one_record_with_its_boxes(tmp_path: Path, header: str) -> None:
    listing = open_source(table(tmp_path, header + ROWS))
    assert extras(listing) == BOXES
    assert listing.classes == ["cat", "dog"]
    assert all(one.label == -1 for one in listing.inputs)
    assert any(remark.startswith("boxes: 3 rows give the boxes of 2 images, in pixels") for remark in listing.remarks)


def test_corners_from_0_to_1_become_pixels(tmp_path: Path) -> None:
    text = "ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax,IsOccluded\n"
    text += "a,x,/m/0,1,0.25,0.5,0.125,1,0\na,x,/m/1,1,0,1,0,1,1\n"
    picstore.convert(table(tmp_path / "in", text), tmp_path / "out")
    (record,) = picstore.Dataset(tmp_path / "out")
    assert record.extra["boxes"] == [[16, 6, 32, 48], [0, 0, 64, 48]]
    assert record.extra["IsOccluded"] == ["0", "1"]
    assert record.extra["Source"] == "x"
    assert picstore.Dataset(tmp_path / "out").classes == ["/m/0", "/m/1"]


def test_an_image_without_a_box_is_a_record_and_a_broken_row_is_not(tmp_path: Path) -> None:
    text = "path,xmin,ymin,xmax,ymax\na.jpg,,,,\nb.jpg,1,2,3,x\nb.jpg,1,2,3,4\nc.jpg,5,5,5,9\nc.jpg,1,2\n"
    done = picstore_json("convert", table(tmp_path / "in", text), tmp_path / "out", "--max-errors", "80%")
    assert done["status"] == {"lossless": 2, "failed": 2}
    assert [record.extra["boxes"] for record in picstore.Dataset(tmp_path / "out")] == [[], []]
    failed = {line["input"]: line["reason"] for line in ledger(tmp_path / "out") if line["status"] == "failed"}
    assert failed["b.jpg"] == "line 3: ymax is 'x', not a number"
    assert failed["boxes.csv line 6"].startswith("line 6: 3 values")
    assert any("without an area" in remark for remark in done["remarks"])


def test_boxes_are_scaled_with_their_image_and_follow_given_classes(tmp_path: Path) -> None:
    source = table(tmp_path / "in", "path,xmin,ymin,xmax,ymax,class\n" + ROWS)
    names = put(tmp_path / "classes.txt", b"dog\ncat\n")
    picstore.convert(source, tmp_path / "out", classes=names, resize="shorter:24")
    found = {record.extra["path"]: record.extra for record in picstore.Dataset(tmp_path / "out")}
    assert found["a.jpg"]["boxes"] == [[0.5, 1, 15, 20], [0, 0, 5.25, 5]]
    assert found["a.jpg"]["box_labels"] == [1, 0]


def test_classes_that_are_numbers_keep_them(tmp_path: Path) -> None:
    listing = open_source(table(tmp_path, "path,xmin,ymin,xmax,ymax,class\na.jpg,1,2,3,4,7\na.jpg,1,2,3,4,\n"))
    assert extras(listing)["a.jpg"]["box_labels"] == [7, -1]
    assert listing.classes == []


def test_a_class_column_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no column 'kind'"):
        open_source(table(tmp_path, "path,xmin,ymin,xmax,ymax\na.jpg,1,2,3,4\n"), label_field="kind")


@pytest.mark.parametrize("name", ["boxes.csv", "boxes.jsonl"])
def test_other_tables_that_repeat_an_image_say_what_to_write(tmp_path: Path, name: str) -> None:
    text = 'image_id,bbox\na.jpg,"[1, 2, 3, 4]"\na.jpg,"[5, 6, 7, 8]"\nb.jpg,\n'
    if name.endswith("jsonl"):
        text = '{"path": "a.jpg", "bbox": [1]}\n{"path": "a.jpg", "bbox": [2]}\n{"path": "b.jpg"}\n'
    listing = open_source(table(tmp_path, text, name))
    assert len(listing.inputs) == 3
    assert any("1 row names the same image as the row before, such as a.jpg" in remark for remark in listing.remarks)
