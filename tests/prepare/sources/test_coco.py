"""COCO's annotation files: every object arrives where it was, whatever convert does to its image."""

from __future__ import annotations

import copy
import io
import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import ledger, one_line, picstore_command, picstore_json
from grids import slow_except
from PIL import Image
from samples import jpeg, picture

import picstore
from picstore.prepare.convert.conversion_job import ConvertOptions, convert
from picstore.prepare.convert.row_division import DatasetShape
from picstore.prepare.image.encode_settings import EncodeSettings, Size
from picstore.prepare.sources.inputs import Input, Listing
from picstore.prepare.sources.open import open_source
from picstore.storage.format.record import MAX_EXTRA

SMALL = DatasetShape(streams=2, file_size=16 << 10, container_size=16 << 10)
LEFT, TOP, RIGHT, BOTTOM = 16, 24, 56, 40
MARK = (230, 20, 20)


def annotation(id_: int, image: int, bbox: list[float], category: int = 7, **more: Any) -> dict[str, Any]:
    return {"id": id_, "image_id": image, "category_id": category, "bbox": bbox, **more}


def document() -> dict[str, Any]:
    """Two images of 96 × 64 pixels with three objects, and one without."""
    polygon = [10, 10, 30, 10, 30, 30]
    runs = {"counts": [10, 4, 6130], "size": [64, 96]}
    points = [20, 20, 2, 0, 0, 0, 25.5, 30, 1]
    return {
        "info": {"year": 2017},
        "images": [
            {"id": 9, "file_name": "b.jpg", "width": 96, "height": 64},
            {"id": 4, "file_name": "sub/a b.jpg", "width": 96, "height": 64},
            {"id": 5, "file_name": "empty.jpg", "width": 96, "height": 64},
        ],
        "annotations": [
            annotation(100, 4, [10, 10, 20, 20], segmentation=[polygon, [1, 2, 3, 4]], area=200.5, iscrowd=0),
            annotation(101, 9, [10.1, 20.2, 30.3, 10], 90, keypoints=points, num_keypoints=2, segmentation=[polygon]),
            annotation(102, 4, [0, 0, 96, 64], 90, segmentation=runs, area=4, iscrowd=1, keypoints=[0] * 9),
        ],
        "categories": [{"id": 90, "name": "person"}, {"id": 7, "name": "bicycle", "supercategory": "vehicle"}],
    }


@pytest.fixture
def make_source(tmp_path: Path) -> Callable[..., tuple[Path, Path]]:
    """Writes the images of a document, and the document; returns their folder and its path."""

    def make(content: dict[str, Any]) -> tuple[Path, Path]:
        for number, image in enumerate(content["images"]):
            path = tmp_path / "images" / image["file_name"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(jpeg(number, width=96, height=64))
        file = tmp_path / "instances.json"
        file.write_text(json.dumps(content))
        return tmp_path / "images", file

    return make


def records_of(listing: Listing, out: Path, **encode: Any) -> list[picstore.Record]:
    convert(listing, out, ConvertOptions(encode=EncodeSettings(**encode), shape=SMALL, workers=2))
    return sorted(picstore.Dataset(out), key=lambda record: record.id)


def test_every_image_becomes_a_record_in_the_file_s_order_with_its_objects(make_source: Any, tmp_path: Path) -> None:
    folder, file = make_source(document())
    result = picstore_json("convert", folder, tmp_path / "out", "--source", "coco", "--annotations", file)
    assert result["status"] == {"lossless": 3}
    dataset = picstore.Dataset(tmp_path / "out")
    assert dataset.classes == ["bicycle", "person"]
    records = sorted(dataset, key=lambda record: record.id)
    assert [record.label for record in records] == [-1, -1, -1]
    assert records[0].extra == {
        "path": "b.jpg",
        "image_id": 9,
        "size": [96, 64],
        "boxes": [[10.1, 20.2, 40.4, 30.2]],
        "box_labels": [1],
        "iscrowd": [0],
        "area": [None],
        "annotation_ids": [101],
        "polygons": [[[10, 10, 30, 10, 30, 30]]],
        "keypoints": [[[20, 20, 2], [0, 0, 0], [25.5, 30, 1]]],
    }
    assert records[1].extra == {
        "path": "sub/a b.jpg",
        "image_id": 4,
        "size": [96, 64],
        "boxes": [[10, 10, 30, 30], [0, 0, 96, 64]],
        "box_labels": [0, 1],
        "iscrowd": [0, 1],
        "area": [200.5, 4],
        "annotation_ids": [100, 102],
        "polygons": [[[10, 10, 30, 10, 30, 30]], []],
        "keypoints": [[], [[0, 0, 0]] * 3],
        "rle": [None, {"size": [64, 96], "counts": [10, 4, 6130]}],
    }
    empty = {name: [] for name in ("boxes", "box_labels", "iscrowd", "area", "annotation_ids", "polygons", "keypoints")}
    assert records[2].extra == {"path": "empty.jpg", "image_id": 5, "size": [96, 64], **empty}


def test_a_file_of_boxes_alone_gives_no_other_fields(make_source: Any) -> None:
    content = document()
    content["annotations"] = [annotation(1, 9, [1, 2, 3, 4])]
    folder, file = make_source(content)
    first = json.loads(open_source(folder, annotations=file).inputs[0].extra)
    assert first.keys() == {"image_id", "size", "boxes", "box_labels", "iscrowd", "area", "annotation_ids"}


def test_boxes_are_clipped_to_their_image_and_empty_ones_are_counted(make_source: Any, tmp_path: Path) -> None:
    content = document()
    boxes = [
        [-5, -5, 10, 10],
        [90, 60, 10.02, 9],
        [4, 4, 0, 5],
        [4, 4, 5, -1],
        [96, 0, 5, 5],
        [-9, 0, 9, 5],
        [1, 1, 2, 2],
    ]
    content["annotations"] = [annotation(k, 9, box, area=k) for k, box in enumerate(boxes)]
    folder, file = make_source(content)
    done = picstore_command("convert", folder, tmp_path / "out", "--annotations", file)
    assert "4 of 7 boxes have no area inside their image: left out" in done.stderr
    extra = next(record.extra for record in picstore.Dataset(tmp_path / "out") if record.id == 0)
    assert extra["boxes"] == [[0, 0, 5, 5], [90, 60, 96, 64], [1, 1, 3, 3]]
    assert extra["area"] == extra["annotation_ids"] == [0, 1, 6]
    assert extra["box_labels"] == [0, 0, 0]


def marked(width: int = 96, height: int = 64) -> Image.Image:
    image = Image.new("RGB", (width, height), (120, 130, 140))
    image.paste(MARK, (LEFT, TOP, RIGHT, BOTTOM))
    return image


def turned(image: Image.Image, orientation: int, format: str = "JPEG") -> bytes:
    """A file that a viewer shows as ``image``: its pixels are turned the other way."""
    back = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    out = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = orientation
    (image.transpose(back[orientation]) if orientation > 1 else image).save(out, format, exif=exif)
    return out.getvalue()


def box_of_mark(data: bytes) -> list[int]:
    """Left, top, right, bottom of what has the color of the mark, in the pixels as they are in the file."""
    with Image.open(io.BytesIO(data)) as image:
        pixels = np.asarray(image).astype(int)
    ys, xs = np.nonzero(np.abs(pixels - MARK).max(axis=2) < 60)
    return [int(xs.min()), int(ys.min()), int(xs.max()) + 1, int(ys.max()) + 1]


def shows(record: picstore.Record, tolerance: float) -> None:
    """The record's box, outline and keypoint are where the mark is in its pixels."""
    box = box_of_mark(bytes(record.jpeg))
    assert np.abs(np.subtract(record.extra["boxes"][0], box)).max() <= tolerance
    outline = np.reshape(record.extra["polygons"][0][0], (-1, 2))
    assert np.abs(np.subtract([*outline.min(axis=0), *outline.max(axis=0)], box)).max() <= tolerance
    (x, y, visibility), unmarked = record.extra["keypoints"][0]
    center = (box[0] + box[2] - 1) / 2, (box[1] + box[3] - 1) / 2
    assert np.abs(np.subtract((x, y), center)).max() <= tolerance
    assert (visibility, unmarked) == (2, [0, 0, 0])


def targets_at(left: float, top: float, right: float, bottom: float) -> dict[str, Any]:
    """Targets around a box, as fields of an extra."""
    middle = [(left + right - 1) / 2, (top + bottom - 1) / 2, 2]
    return {
        "boxes": [[left, top, right, bottom]],
        "polygons": [[[left, top, right, top, right, bottom, left, bottom]]],
        "keypoints": [[middle, [0, 0, 0]]],
    }


def coco_of(name: str, size: tuple[int, int], box: list[int]) -> dict[str, Any]:
    """Document of one image with targets around a box."""
    left, top, right, bottom = box
    targets = targets_at(left, top, right, bottom)
    points = [value for point in targets["keypoints"][0] for value in point]
    one = annotation(
        1, 1, [left, top, right - left, bottom - top], segmentation=targets["polygons"][0], keypoints=points
    )
    image = {"id": 1, "file_name": name, "width": size[0], "height": size[1]}
    return {"images": [image], "annotations": [one], "categories": [{"id": 7, "name": "mark"}]}


@pytest.mark.parametrize(
    ("orientation", "format", "resize"),
    slow_except(
        [*product(range(1, 9), ["JPEG"], [None]), (3, "TIFF", None), (6, "JPEG", "shorter:32"), (8, "TIFF", "120x50")],
        [
            *product(range(1, 9), ["JPEG"], [None]),
            # Each pair of two of them.
            *((k, "JPEG", ("shorter:32", "120x50")[k % 2]) for k in range(1, 9)),
            *((k, "TIFF", (None, "shorter:32", "120x50")[k % 3]) for k in range(1, 9)),
        ],
    ),
)
def test_targets_are_turned_by_exif_and_scaled_with_their_image(
    tmp_path: Path, orientation: int, format: str, resize: str | None
) -> None:
    """Annotated as a viewer shows it; and, where that has another size, as the pixels are in the file."""
    upright = marked()
    data = turned(upright, orientation, format)
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a").write_bytes(data)
    cases = {"upright": ((96, 64), [LEFT, TOP, RIGHT, BOTTOM])}
    if orientation >= 5:
        with Image.open(io.BytesIO(turned(upright, orientation))) as image:
            assert image.size == (64, 96)
        cases["in the file"] = ((64, 96), box_of_mark(turned(upright, orientation)))
    for name, (size, box) in cases.items():
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps(coco_of("a", size, box)))
        listing = open_source(tmp_path / "images", annotations=file)
        how = {} if resize is None else {"resize": Size.parse(resize)}
        (record,) = records_of(listing, tmp_path / name, **how)
        shows(record, tolerance=1.01 if resize else 0.51)


def test_annotations_of_another_size_than_the_image_fail_in_the_ledger(make_source: Any, tmp_path: Path) -> None:
    content = document()
    content["images"][1].update(width=97, height=64)
    folder, file = make_source(content)
    arguments = ("--annotations", file, "--max-errors", "1")
    picstore_command("convert", folder, tmp_path / "out", *arguments)
    failed = [line for line in ledger(tmp_path / "out") if line["status"] == "failed"]
    assert [(line["input"], line["reason"]) for line in failed] == [
        ("sub/a b.jpg", "annotated as 97 × 64 pixels, but it has 96 × 64")
    ]


def test_an_image_that_is_listed_but_missing_fails_in_the_ledger(make_source: Any, tmp_path: Path) -> None:
    folder, file = make_source(document())
    (folder / "b.jpg").unlink()
    picstore_command("convert", folder, tmp_path / "out", "--annotations", file, "--max-errors", "1")
    assert "No such file" in ledger(tmp_path / "out")[0]["reason"]


def changed(**changes: Any) -> dict[str, Any]:
    """The document with values replaced: ``annotations_0_bbox=…``; a value of ``KeyError`` removes the key."""
    content: Any = copy.deepcopy(document())
    for path, value in changes.items():
        where = content
        *steps, last = path.split("__")
        for step in steps:
            where = where[int(step) if step.isdigit() else step]
        if value is KeyError:
            del where[last]
        else:
            where[int(last) if last.isdigit() else last] = value
    return content


BAD = [
    ({}, "no list of images"),
    (changed(images=KeyError), "no list of images"),
    (changed(annotations={}), "no list of annotations"),
    (changed(categories=3), "no list of categories"),
    (changed(images__0=3), r"images\[0\]: not an object"),
    (changed(images__0__id=KeyError), r"images\[0\].id: missing"),
    (changed(images__0__id="9"), r"images\[0\].id: not an integer"),
    (changed(images__1__id=9), r"images\[1\].id: 9 is there twice"),
    (changed(images__0__file_name=KeyError), r"images\[0\].file_name: missing"),
    (changed(images__0__file_name="a\0b"), r"images\[0\].file_name: not a line"),
    (changed(images__0__file_name="\ud800"), r"images\[0\].file_name: not a line"),
    (changed(images__0__file_name="../../secret.jpg"), "leads out of the folder"),
    (changed(images__0__file_name="/secret.jpg"), "leads out of the folder"),
    (changed(images__0__width=KeyError), r"images\[0\].width: missing"),
    (changed(images__0__height=64.0), r"images\[0\].height: not an integer"),
    (changed(images__0__height=0), "96 × 0 pixels"),
    (changed(annotations__1__id=100), r"annotations\[1\].id: 100 is there twice"),
    (changed(categories__1__id=90), r"categories\[1\].id: 90 is there twice"),
    (changed(categories__1__name=[]), r"categories\[1\].name: not a line"),
    (changed(annotations__1=None), r"annotations\[1\]: not an object"),
    (changed(annotations__1__id=KeyError), r"annotations\[1\].id: missing"),
    (changed(annotations__1__image_id=77), "annotation 101.image_id: no image has the id 77"),
    (changed(annotations__1__image_id=True), r"annotations\[1\].image_id: not an integer"),
    (changed(annotations__1__category_id=1), "annotation 101.category_id: no category has the id 1"),
    (changed(annotations__1__category_id=KeyError), "annotation 101.category_id: missing"),
    (changed(annotations__1__bbox=KeyError), "annotation 101.bbox: not"),
    (changed(annotations__1__bbox=[1, 2, 3]), "annotation 101.bbox: not"),
    (changed(annotations__1__bbox=[1, 2, 3, "4"]), "annotation 101.bbox: not"),
    (changed(annotations__1__bbox=[1, 2, 3, None]), "annotation 101.bbox: not"),
    (changed(annotations__1__bbox=[1, 2, 3, 1e300]), "annotation 101.bbox: a number beyond"),
    (changed(annotations__1__bbox=[1, 2, 3, float("nan")]), "a number beyond ±16,777,216, or NaN"),
    (changed(annotations__1__bbox=[1, 2, 3, float("inf")]), "a number beyond ±16,777,216, or NaN"),
    (changed(annotations__1__iscrowd=2), "annotation 101.iscrowd"),
    (changed(annotations__1__area="large"), "annotation 101.area"),
    (changed(annotations__1__area=-1), "annotation 101.area"),
    (changed(annotations__1__keypoints=[1, 2]), "annotation 101.keypoints: not"),
    (changed(annotations__1__keypoints=[1, 2, 5]), "annotation 101.keypoints: a visibility"),
    (changed(annotations__1__keypoints={}), "annotation 101.keypoints: not"),
    (changed(annotations__1__segmentation=7), "annotation 101.segmentation: neither"),
    (changed(annotations__1__segmentation=[1, 2, 3, 4]), r"annotation 101.segmentation\[0\]: not"),
    (changed(annotations__1__segmentation=[[1, 2, 3]]), r"annotation 101.segmentation\[0\]: not"),
    (changed(annotations__1__segmentation={"size": [1, 2]}), "annotation 101.segmentation.counts"),
    (changed(annotations__1__segmentation={"size": [1], "counts": "a"}), "annotation 101.segmentation.size"),
]


@pytest.mark.parametrize(("content", "reason"), BAD)
def test_a_file_that_is_not_coco_s_is_refused_with_the_place(tmp_path: Path, content: Any, reason: str) -> None:
    file = tmp_path / "instances.json"
    file.write_text(json.dumps(content))
    with pytest.raises(picstore.UsageError, match=reason):
        open_source(tmp_path, annotations=file)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        "{} {}",
        "{3: 4}",
        '{"categories": [{"id": 1, "name": "a"},]}',
        '{"a": 1,}',
        '{"a" 1}',
        "{,}",
        "[" * 100_000,
        '{"images": [',
        "\xff",
        '{"images": ' + "9" * 5000 + "}",
    ],
)
def test_a_file_that_is_not_json_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "instances.json"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(picstore.UsageError, match="not JSON"):
        open_source(tmp_path, annotations=file)


def test_a_number_that_json_cannot_hold_as_a_float_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "instances.json"
    file.write_text(json.dumps(document()).replace("10.1", "1e999"))
    with pytest.raises(picstore.UsageError, match=r"annotation 101\.bbox: a number beyond"):
        open_source(tmp_path, annotations=file)


def test_files_beyond_the_limits_are_refused(make_source: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, file = make_source(document())
    monkeypatch.setattr("picstore.prepare.sources.coco.MAX_EXTRA", 200)
    with pytest.raises(picstore.UsageError, match=r"b\.jpg: its annotations take"):
        open_source(folder, annotations=file)
    monkeypatch.setattr("picstore.prepare.sources.coco.MAX_ANNOTATIONS", 100)
    with pytest.raises(picstore.UsageError, match="bytes; give annotations of at most 100"):
        open_source(folder, annotations=file)


def test_an_extra_that_outgrows_the_limit_with_its_path_fails_alone(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(jpeg(1))
    text = json.dumps({"note": "x" * (MAX_EXTRA - 20)}).encode()
    inputs = [Input("a.jpg", 0, str(tmp_path / "a.jpg"), extra=extra) for extra in (text, b"")]
    records = records_of(Listing("test", inputs, []), tmp_path / "out")
    assert [record.id for record in records] == [1]
    assert "extra takes" in ledger(tmp_path / "out")[0]["reason"]


def test_annotations_go_with_the_source_coco_and_with_no_other(make_source: Any, tmp_path: Path) -> None:
    folder, file = make_source(document())
    for arguments, reason in (
        (("--source", "folder", "--annotations", file), "--annotations belongs to the source coco"),
        (("--source", "coco"), "needs --annotations"),
        (("--annotations", file, "--root", folder), "--root belongs to the source index or list"),
    ):
        assert reason in one_line(picstore_command("convert", folder, tmp_path / "out", *arguments, code=2))
    error = one_line(picstore_command("convert", folder, tmp_path / "out", "--annotations", tmp_path / "no", code=1))
    assert "is missing" in error
    error = one_line(picstore_command("convert", file, tmp_path / "out", "--annotations", file, code=2))
    assert "not a folder" in error
    assert not (tmp_path / "out").exists()


def test_a_conversion_is_not_resumed_with_other_annotations(make_source: Any, tmp_path: Path) -> None:
    folder, file = make_source(document())
    before = open_source(folder, annotations=file).digest()
    assert before == open_source(folder, annotations=file).digest()
    picstore_command("convert", folder, tmp_path / "out", "--annotations", file)
    file.write_text(json.dumps(changed(annotations__0__bbox=[10, 10, 20, 21])))
    assert before != open_source(folder, annotations=file).digest()
    resumed = picstore_command("convert", folder, tmp_path / "out", "--annotations", file, "--resume", code=2)
    assert "made of other inputs" in one_line(resumed)


def test_photographs_with_objects_become_a_data_set(photographs_folder: Path, tmp_path: Path) -> None:
    """One of these photographs is turned by EXIF; the targets are of what a viewer shows."""
    rng = np.random.default_rng(0)
    images, annotations = [], []
    paths = sorted(photographs_folder.glob("*/*.JPEG"))[::4]
    paths += [path for path in sorted(photographs_folder.glob("*/*.JPEG")) if is_turned(path)]
    for number, path in enumerate(dict.fromkeys(paths)):
        with Image.open(path) as image:
            width, height = image.size[::-1] if is_turned(path) else image.size
        name = str(path.relative_to(photographs_folder))
        images.append({"id": number, "file_name": name, "width": width, "height": height, "license": 3})
        for _ in range(int(rng.integers(0, 8))):
            x, y = rng.uniform(0, (width - 20, height - 20)).round(2).tolist()
            w, h = rng.uniform(10, (width - x, height - y)).round(2).tolist()
            outline = [x, y, x + w, y, x + w / 2, y + h]
            annotations.append(
                annotation(len(annotations), number, [x, y, w, h], 1, segmentation=[outline], area=w * h / 2)
            )
    content = {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "thing"}]}
    (tmp_path / "all.json").write_text(json.dumps(content))
    out = tmp_path / "train"
    arguments = ("--annotations", tmp_path / "all.json", "--resize", "shorter:200")
    result = picstore_json("convert", photographs_folder, out, *arguments)
    assert (result["images"], result["outcome"]["failed"]) == (len(images), 0)
    by_image: dict[int, list[Any]] = {}
    for each in annotations:
        by_image.setdefault(each["image_id"], []).append(each["bbox"])
    for record in picstore.Dataset(out):
        scale = np.array([record.width, record.height]) / record.extra["size"]
        expected = np.reshape(by_image.get(record.extra["image_id"], []), (-1, 4))
        expected = np.concatenate([expected[:, :2], expected[:, :2] + expected[:, 2:]], axis=1) * np.tile(scale, 2)
        assert np.abs(np.reshape(record.extra["boxes"], (-1, 4)) - expected).max(initial=0) < 0.01
        assert min(record.width, record.height) <= 200
    picstore_command("verify", out)


def is_turned(path: Path) -> bool:
    with Image.open(path) as image:
        return bool(image.getexif().get(0x0112, 1) >= 5)


# What other sources and picstore.Writer can have too.


def test_any_source_can_carry_an_extra_and_attachments(tmp_path: Path) -> None:
    inputs = []
    for number in range(12):
        (tmp_path / f"{number}.jpg").write_bytes(jpeg(number))
        (tmp_path / f"{number}.txt").write_text(f"mask {number}, and more")
        mask = Input(f"{number}.txt", -1, str(tmp_path / f"{number}.txt"), size=len(f"mask {number}"))
        attachments = (("mask", mask),) if number % 3 else ()
        extra = json.dumps({"caption": f"número {number}"}).encode()
        inputs.append(
            Input(f"{number}.jpg", number, str(tmp_path / f"{number}.jpg"), extra=extra, attachments=attachments)
        )
    (tmp_path / "11.txt").unlink()
    listing = Listing("test", inputs, [], attachments=("mask",))
    records = records_of(listing, tmp_path / "out")
    assert picstore.Dataset(tmp_path / "out").manifest.attachments == ("mask",)
    assert [record.id for record in records] == list(range(11))
    for record in records:
        assert record.extra == {"path": f"{record.id}.jpg", "caption": f"número {record.id}"}
        assert record.attachments == ({"mask": f"mask {record.id}".encode()} if record.id % 3 else {})
    assert ledger(tmp_path / "out")[11]["reason"] == "mask 11.txt cannot be read: No such file or directory"
    others = [Input(each.name, each.label, each.path, extra=each.extra) for each in inputs]
    assert Listing("test", others, []).digest() != listing.digest()


@pytest.mark.parametrize("orientation", [1, 3, 6])
def test_the_writer_takes_targets_of_the_image_as_a_viewer_shows_it(tmp_path: Path, orientation: int) -> None:
    for name, resize in (("a", None), ("b", "longer:60")):
        with picstore.Writer(tmp_path / name, resize=resize) as writer:
            extra = {**targets_at(LEFT, TOP, RIGHT, BOTTOM), "box_labels": [3], "caption": "a mark"}
            writer.add(turned(marked(), orientation), extra=extra)
            writer.add(marked(), extra=extra)
        for record in picstore.Dataset(tmp_path / name):
            shows(record, tolerance=1.01 if resize else 0.51)
            assert record.extra["box_labels"] == [3]
            assert record.extra["caption"] == "a mark"
            assert resize or record.extra == extra


def test_the_writer_refuses_targets_of_another_form(tmp_path: Path) -> None:
    with picstore.Writer(tmp_path / "out") as writer:
        with pytest.raises(picstore.UsageError, match=r"extra: boxes is \[1, 2, 3, 4\], not a list of \[left"):
            writer.add(picture(1), extra={"boxes": [1, 2, 3, 4]})
        writer.add(picture(1), extra={"area": "Paris", "size": "XL"})
        writer.add(picture(1), extra=["boxes"])
    assert len(picstore.Dataset(tmp_path / "out")) == 2
