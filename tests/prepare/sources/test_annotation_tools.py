"""Exports of Label Studio, CVAT and Roboflow, laid out as these write them: read with all boxes, or refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from samples import jpeg
from source_files import put

from picstore.errors import UsageError
from picstore.prepare.sources.open import open_source
from picstore.storage.annotations import OWN, in_own_form

WIDTH, HEIGHT = 64, 48
JPEG = jpeg(1, width=WIDTH, height=HEIGHT)
BOX = [8, 6, 24, 18]
YOLO = b"1 0.25 0.25 0.25 0.25\n"
VOC = (
    b"<?xml version='1.0'?><annotation><filename>x.jpg</filename><size><width>64</width><height>48</height>"
    b"<depth>3</depth></size><object><name>dog</name><bndbox><xmin>%d</xmin><ymin>%d</ymin><xmax>24</xmax>"
    b"<ymax>18</ymax></bndbox></object></annotation>" % (BOX[0] + 1, BOX[1] + 1)
)

# label-studio-converter 0.0.59 writes the left edge as it is.
OWNER = b"<annotation><owner><flickrid>NULL</flickrid><name>Label Studio</name></owner>"
VOC_FROM_0 = VOC.replace(b"<annotation>", OWNER).replace(b"<xmin>9<", b"<xmin>8<").replace(b"<ymin>7<", b"<ymin>6<")


def coco(name: str) -> bytes:
    document = {
        "info": {"description": "exported"},
        "images": [{"id": 0, "file_name": name, "width": WIDTH, "height": HEIGHT}],
        "categories": [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}],
        "annotations": [{"id": 1, "image_id": 0, "category_id": 2, "bbox": [8, 6, 16, 12], "iscrowd": 0}],
    }
    return json.dumps(document).encode()


# Files of an export; options; and the kind and names of classes that it is read with.
READ: dict[str, tuple[dict[str, bytes], dict[str, Any], str, list[str]]] = {
    "Label Studio, COCO": (
        {"images/x.jpg": JPEG, "result.json": coco("images/x.jpg")},
        {"annotations": "result.json"},
        "coco",
        ["cat", "dog"],
    ),
    "Label Studio, VOC": ({"images/x.jpg": JPEG, "Annotations/x.xml": VOC_FROM_0}, {}, "voc", ["dog"]),
    "Label Studio, YOLO": (
        {"images/x.jpg": JPEG, "labels/x.txt": YOLO, "classes.txt": b"cat\ndog\n", "notes.json": b'{"categories": []}'},
        {},
        "yolo",
        ["cat", "dog"],
    ),
    "CVAT, COCO": (
        {"images/default/x.jpg": JPEG, "annotations/instances_default.json": coco("x.jpg")},
        {"folder": "images/default", "annotations": "annotations/instances_default.json"},
        "coco",
        ["cat", "dog"],
    ),
    "CVAT, VOC": (
        {
            "JPEGImages/x.jpg": JPEG,
            "Annotations/x.xml": VOC,
            "ImageSets/Main/default.txt": b"x\n",
            "labelmap.txt": b"# label:color_rgb:parts:actions\nbackground:::\n",
        },
        {},
        "voc",
        ["dog"],
    ),
    "CVAT, YOLO 1.1": (
        {
            "obj_train_data/x.jpg": JPEG,
            "obj_train_data/x.txt": YOLO,
            "obj.names": b"cat\ndog\n",
            "obj.data": b"classes = 2\ntrain = data/train.txt\nnames = data/obj.names\nbackup = backup/\n",
            "train.txt": b"data/obj_train_data/x.jpg\n",
        },
        {},
        "yolo",
        ["cat", "dog"],
    ),
    "CVAT, Ultralytics YOLO": (
        {
            "images/train/x.jpg": JPEG,
            "labels/train/x.txt": YOLO,
            "data.yaml": b"names:\n  0: cat\n  1: dog\npath: .\ntrain: train.txt\n",
            "train.txt": b"data/images/train/x.jpg\n",
        },
        {},
        "yolo",
        ["cat", "dog"],
    ),
    "Roboflow, COCO": (
        {f"{split}/{name}": data for split in ("train", "valid") for name, data in
         {"x.jpg": JPEG, "_annotations.coco.json": coco("x.jpg")}.items()},
        {"split": "train"},
        "coco",
        ["cat", "dog"],
    ),
    "Roboflow, VOC": (
        {f"{split}/x.{suffix}": data for split in ("train", "valid") for suffix, data in (("jpg", JPEG), ("xml", VOC))},
        {"split": "valid"},
        "voc",
        ["dog"],
    ),
    "Roboflow, YOLO": (
        {
            "train/images/x.jpg": JPEG,
            "train/labels/x.txt": YOLO,
            "valid/images/x.jpg": JPEG,
            "valid/labels/x.txt": YOLO,
            "data.yaml": b"train: ../train/images\nval: ../valid/images\n\nnc: 2\nnames: ['cat', 'dog']\n",
            "README.roboflow.txt": b"text",
        },
        {"split": "val"},
        "yolo",
        ["cat", "dog"],
    ),
    "Roboflow, darknet": (
        {"train/x.jpg": JPEG, "train/x.txt": YOLO, "train/_darknet.labels": b"cat\ndog\n"},
        {"split": "train"},
        "yolo",
        ["cat", "dog"],
    ),
    "Roboflow, CSV": (
        {
            "train/x.jpg": JPEG,
            "train/_annotations.csv": b"filename,width,height,class,xmin,ymin,xmax,ymax\nx.jpg,64,48,dog,8,6,24,18\n",
        },
        {"folder": "train/_annotations.csv"},
        "table",
        ["dog"],
    ),
}  # fmt: skip

# Files of an export, and what the message names.
REFUSED: dict[str, tuple[dict[str, bytes], str]] = {
    "Label Studio, COCO": ({"images/x.jpg": JPEG, "result.json": coco("images/x.jpg")}, "result.json; give the folder"),
    "CVAT, COCO": (
        {"images/default/x.jpg": JPEG, "annotations/instances_default.json": coco("x.jpg")},
        "annotations/instances_default.json; give the folder",
    ),
    "CVAT, XML": (
        {"images/x.jpg": JPEG, "annotations.xml": b'<?xml version="1.0" encoding="utf-8"?>\n<annotations>\n'},
        "export COCO, Pascal VOC or YOLO",
    ),
    "Roboflow, CSV": (
        {"x.jpg": JPEG, "_annotations.csv": b"filename,width,height,class,xmin,ymin,xmax,ymax\n"},
        "_annotations.csv; give this file",
    ),
    "Label Studio, JSON": ({"export.json": b'[{"id": 1, "annotations": []}]'}, "JSON document"),
}


def write(root: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        put(root / name, data)
    return root


@pytest.mark.parametrize("export", READ)
def test_an_export_is_read_with_its_boxes_and_classes(tmp_path: Path, export: str) -> None:
    files, options, kind, classes = READ[export]
    write(tmp_path, files)
    given = {name: tmp_path / value if name == "annotations" else value for name, value in options.items()}
    folder = given.pop("folder", "")
    listing = open_source(tmp_path / folder, **given)
    assert (listing.kind, listing.classes) == (kind, classes)
    (one,) = listing.inputs
    extra = json.loads(one.extra)
    own = extra if one.targets == OWN else in_own_form(extra, one.targets, (WIDTH, HEIGHT))
    assert not one.problem
    assert own["boxes"] == [BOX]
    assert [classes[label] for label in own["box_labels"]] == ["dog"]


@pytest.mark.parametrize("export", REFUSED)
def test_an_export_that_is_not_read_is_refused_by_name(tmp_path: Path, export: str) -> None:
    files, message = REFUSED[export]
    write(tmp_path, files)
    with pytest.raises(UsageError, match=message):
        open_source(tmp_path / next(iter(files)) if len(files) == 1 else tmp_path)


def test_folders_of_classes_beside_json_of_other_programs_are_read(tmp_path: Path) -> None:
    write(tmp_path, {"cat/x.jpg": JPEG, "dog/x.jpg": JPEG, "meta.json": b'{"name": "pets", "images": 2}'})
    assert open_source(tmp_path).classes == ["cat", "dog"]
