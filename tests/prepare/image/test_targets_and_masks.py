"""Masks and metadata called as targets: what follows the image, and what stays as it is."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import ledger, picstore_command, picstore_json
from PIL import Image, ImageOps
from samples import jpeg

import picstore
from picstore.errors import ImageError, UsageError
from picstore.prepare.image.exif_orientation import CoordinateMap
from picstore.prepare.image.targets_and_masks import move_attachment
from picstore.storage.annotations import check_targets, in_own_form


def encoded(pixels: np.ndarray, kind: str = "PNG", **options: Any) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind, **options)
    return out.getvalue()


def decoded(blob: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(blob)))


RAW = np.arange(48 * 64, dtype=np.uint16).reshape(48, 64)


@pytest.mark.parametrize("orientation", [1, 5, 6, 7, 8])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_a_mask_turns_as_pillow_turns_and_takes_the_nearest_pixel(orientation: int, dtype: Any, kind: str) -> None:
    exif = Image.Exif()
    exif[274] = orientation
    upright = decoded(move_attachment("mask", encoded(RAW, kind), CoordinateMap(1, (64, 48), (64, 48))))
    assert np.array_equal(upright, RAW)
    mask = (RAW % 251).astype(dtype)
    given = Image.open(io.BytesIO(encoded((RAW % 251).astype(np.uint8), "PNG", exif=exif)))
    expected = np.asarray(ImageOps.exif_transpose(given))
    size = expected.shape[::-1]
    turned = move_attachment("mask", encoded(mask, kind), CoordinateMap(orientation, size, size))
    assert np.array_equal(decoded(turned), expected) and decoded(turned).dtype == dtype
    half = CoordinateMap(orientation, size, (size[0] // 2, size[1] // 2))
    assert np.array_equal(decoded(move_attachment("mask", encoded(mask, kind), half)), expected[1::2, 1::2])


def test_what_does_not_lie_on_the_pixels_stays_as_it_is() -> None:
    image = CoordinateMap(1, (64, 48), (32, 24))
    for blob in (encoded(np.zeros((10, 10, 3), np.uint8)), b"text", b"", encoded(np.zeros((24, 32), np.uint8))):
        assert move_attachment("mask", blob, image) == blob
    same = CoordinateMap(1, (64, 48), (64, 48))
    assert move_attachment("mask", encoded(RAW), same) == encoded(RAW)


def test_converted_masks_cover_what_they_covered(tmp_path: Path) -> None:
    pixels = np.zeros((48, 64, 3), np.uint8)
    pixels[:24, :32] = 255
    mask = (pixels[..., 0] > 0).astype(np.uint8)
    rotated = Image.Exif()
    rotated[274] = 6
    (tmp_path / "0.jpg").write_bytes(encoded(pixels, "JPEG", exif=rotated))
    (tmp_path / "1.jpg").write_bytes(encoded(pixels, "JPEG"))
    (tmp_path / "m.png").write_bytes(encoded(mask))
    rows = [{"path": f"{k}.jpg", "label": 0, "attachments": {"mask": "m.png"}} for k in (0, 1)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for options in ([], ["--resize", "shorter:24"]):
        out = tmp_path / f"out{len(options)}"
        picstore_json("convert", tmp_path / "t.jsonl", out, "--streams", "1", *options)
        for record in picstore.Dataset(out):
            image, found = decoded(record.jpeg)[..., 0], decoded(record.attachments["mask"])
            assert image.shape == found.shape
            assert ((image > 127) == (found > 0)).mean() > 0.98
        assert picstore.verify(out, decode=True).ok


def frames(kind: str) -> bytes:
    out = io.BytesIO()
    masks = [Image.fromarray(RAW.astype(np.uint8) // 16 + k) for k in range(2)]
    masks[0].save(out, kind, save_all=True, append_images=masks[1:])
    return out.getvalue()


# Masks that cannot lie on an image of 64 × 48 pixels once it is resized, and what is said of them.
CANNOT_FOLLOW = {
    **{kind: (encoded(np.zeros((24, 33), np.uint8), kind), "33 × 24 pixels") for kind in ("PNG", "TIFF", "BMP", "GIF")},
    "half as large": (encoded(np.zeros((24, 32), np.uint8)), "32 × 24 pixels"),
    "16 bits": (encoded(np.zeros((49, 64), np.uint16)), "64 × 49 pixels"),
    "two levels": (encoded(np.zeros((48, 65), bool)), "65 × 48 pixels"),
    "cut": (encoded(RAW)[: len(encoded(RAW)) // 2], "cannot be turned or resized with its image"),
    "no header": (encoded(RAW)[:20], "cannot be turned or resized with its image"),
    **{f"{kind} of two frames": (frames(kind), "it has 2 frames") for kind in ("PNG", "TIFF", "GIF")},
}


def test_an_image_whose_mask_cannot_follow_it_fails_by_name(tmp_path: Path) -> None:
    rows = []
    for k, (blob, _) in enumerate([*CANNOT_FOLLOW.values(), (encoded(RAW), "")]):
        (tmp_path / f"{k}.jpg").write_bytes(jpeg(k, width=64, height=48))
        (tmp_path / f"{k}.mask").write_bytes(blob)
        rows.append({"path": f"{k}.jpg", "label": k, "attachments": {"mask": f"{k}.mask"}})
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ["--streams", "1", "--max-errors", str(len(CANNOT_FOLLOW))]
    picstore_command("convert", tmp_path / "t.jsonl", tmp_path / "out", "--resize", "shorter:20", *options)
    assert [(r.label, decoded(r.attachments["mask"]).shape) for r in picstore.Dataset(tmp_path / "out")] == [
        (len(CANNOT_FOLLOW), (20, 27))
    ]
    reasons = {line["input"]: line["reason"] for line in ledger(tmp_path / "out") if line["status"] == "failed"}
    for k, (_, reason) in enumerate(CANNOT_FOLLOW.values()):
        assert reasons[f"{k}.jpg"].startswith("mask: ") and reason in reasons[f"{k}.jpg"]
    with (
        picstore.Writer(tmp_path / "writer", attachments=["mask"], resize="shorter:20") as writer,
        pytest.raises(ImageError, match="33 × 24 pixels, its image 64 × 48"),
    ):
        writer.add(jpeg(0, width=64, height=48), attachments={"mask": CANNOT_FOLLOW["PNG"][0]})
    picstore_command("convert", tmp_path / "t.jsonl", tmp_path / "as-it-is", "--streams", "1")
    assert len(picstore.Dataset(tmp_path / "as-it-is")) == len(rows)
    found = [each.problem for each in picstore.verify(tmp_path / "as-it-is", decode=True).damage]
    assert any("mask has 33 × 24 pixels, its image 64 × 48" in problem for problem in found)


def test_verify_finds_a_mask_of_another_size_than_its_image(tmp_path: Path) -> None:
    with picstore.Writer(tmp_path / "out", attachments=["mask"]) as writer:
        writer.add(jpeg(0), attachments={"mask": encoded(np.zeros((7, 9), np.uint8))})
    assert picstore.verify(tmp_path / "out").ok
    found = picstore.verify(tmp_path / "out", decode=True)
    assert "mask has 9 × 7 pixels, its image 60 × 40" in found.damage[0].problem and found.records_lost == 0


ODD: list[dict[str, Any]] = [
    {"boxes": [[40, 30, 10, 12]]},
    {"boxes": 3},
    {"boxes": []},
    {"keypoints": {"nose": [1, 2]}},
    {"keypoints": [10, 20, 2]},
    {"boxes": [[1, 2, 3, 4]], "box_labels": ["cat"]},
    {"polygons": "none", "mask": [[0]]},
    {"boxes": [[0.1, 0.2, 0.5, 0.6]]},
]


def test_metadata_called_as_targets_are_stays_and_costs_no_image(tmp_path: Path) -> None:
    (tmp_path / "0.jpg").write_bytes(jpeg(0))
    (tmp_path / "t.jsonl").write_text("".join(json.dumps({"path": "0.jpg", "label": 0, **row}) + "\n" for row in ODD))
    result = picstore_json(
        "convert", tmp_path / "t.jsonl", tmp_path / "out", "--resize", "shorter:20", "--streams", "1"
    )
    assert result["outcome"]["failed"] == 0
    assert any("the field 'boxes' of 5 samples is kept as metadata" in remark for remark in result["remarks"])
    stored = sorted(picstore.Dataset(tmp_path / "out"), key=lambda record: record.id)
    assert [{key: record.extra[key] for key in row} for record, row in zip(stored, ODD, strict=True)] == ODD


@pytest.mark.parametrize(
    ("forms", "box"),
    [
        ("boxes:xyxy", [6, 8, 30, 20]),
        ("boxes:xywh", [6, 8, 24, 12]),
        ("boxes:cxcywh", [18, 14, 24, 12]),
        ("boxes:xyxy-normalized", [0.1, 0.2, 0.5, 0.5]),
        ("boxes:xywh-normalized", [0.1, 0.2, 0.4, 0.3]),
        ("boxes:cxcywh-normalized", [0.3, 0.35, 0.4, 0.3]),
    ],
)
def test_boxes_of_each_form_become_corners_and_are_resized(forms: str, box: list[float], tmp_path: Path) -> None:
    (tmp_path / "0.jpg").write_bytes(jpeg(0))
    rows = [{"path": "0.jpg", "boxes": [box]}, {"path": "0.jpg", "boxes": []}, {"path": "0.jpg", "boxes": 3}]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = ["--targets", forms, "--resize", "shorter:20", "--streams", "1", "--max-errors", "1"]
    picstore_command("convert", tmp_path / "t.jsonl", tmp_path / "out", *arguments)
    stored = sorted(picstore.Dataset(tmp_path / "out"), key=lambda record: record.id)
    assert [record.id for record in stored] == [0, 1]  # the user says that boxes are boxes, and 3 is none
    assert np.allclose(stored[0].extra["boxes"], [[3, 4, 15, 10]]) and stored[1].extra["boxes"] == []


def test_normalized_outlines_and_keypoints_are_in_pixels() -> None:
    extra = {"polygons": [[[0, 0, 1, 0, 1, 1]]], "keypoints": [[[0.5, 0.5, 2], [0, 0, 0]]]}
    own = in_own_form(extra, check_targets("polygons:normalized, keypoints:normalized"), (60, 40))
    assert own == {"polygons": [[[0, 0, 60, 0, 60, 40]]], "keypoints": [[[29.5, 19.5, 2], [0, 0, 0]]]}


@pytest.mark.parametrize("forms", ["boxes", "boxes:yxyx", "masks", "", "boxes:xyxy,boxes:xywh"])
def test_forms_that_are_not_understood_are_refused(forms: str) -> None:
    with pytest.raises(UsageError, match="targets"):
        check_targets(forms)


def test_hidden_files_and_folders_are_counted_and_taken_on_request(tmp_path: Path) -> None:
    for name in ("cat/1.jpg", "cat/.2.jpg", "dog/1.jpg", ".net/1.jpg", "cat/._1.jpg", "cat/.DS_Store"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(jpeg(0))
    result = picstore_json("convert", tmp_path / "in", tmp_path / "out", "--streams", "1")
    assert "4 hidden files and folders, such as .net: left out; --hidden takes them" in result["remarks"]
    result = picstore_json("convert", tmp_path / "in", tmp_path / "all", "--streams", "1", "--hidden")
    assert (result["images"], picstore.Dataset(tmp_path / "all").classes) == (4, [".net", "cat", "dog"])
