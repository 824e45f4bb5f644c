"""MXNet's RecordIO as a source, from what MXNet and im2rec wrote."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import numpy as np
from PIL import Image
from source_files import (
    DATA,
    JPEGS,
    decoded,
    extras,
    im2rec,
    images,
    images_before_damage,
    labels,
    pixels,
    put,
    recordio,
)

import picstore
from picstore.prepare.sources.open import open_source


def test_recordio_of_mxnets_writer_is_read_with_one_label_or_several() -> None:
    listing = open_source(DATA / "recordio" / "one.rec")
    assert listing.kind == "recordio"
    assert images(listing) == JPEGS
    assert all(source.reader is None for source in listing.inputs)
    assert labels(listing) == [0, 1, 2, 0, 1, 2]
    assert extras(listing) == [{"id": 10 + k} for k in range(6)]
    several = open_source(DATA / "recordio" / "several.rec")
    assert images(several) == JPEGS
    assert labels(several) == [0, 1, 2, 0, 1, 2]
    assert extras(several)[3] == {"labels": [0.0, 1.5], "id": 13}


def test_records_that_mxnet_split_at_its_magic_number_are_joined() -> None:
    listing = open_source(DATA / "recordio" / "split.rec")
    magic, image = struct.pack("<I", 0xCED7230A), JPEGS[2] + bytes(-len(JPEGS[2]) % 4)
    assert images(listing) == [image + magic + b"abcd" + magic + magic + b"end", JPEGS[1], image + magic]
    assert labels(listing) == [-1, 1, 2]
    assert extras(listing) == [{"label": 0.25, "id": 10}, {"id": 11}, {"id": 12}]


def test_what_im2rec_makes_of_folders_is_read_by_its_file_and_in_a_folder() -> None:
    listing = open_source(DATA / "recordio" / "im2rec.rec")
    assert labels(listing) == [0, 0, 1, 1, 2, 2]  # ant, cat, dog
    assert all(
        np.array_equal(decoded(data), pixels(k)) for k, data in zip((2, 5, 0, 3, 1, 4), images(listing), strict=True)
    )
    folder = open_source(DATA / "recordio")
    assert folder.kind == "recordio"
    assert images(folder)[:12] == images(listing) + JPEGS  # im2rec.rec, one.rec, several.rec, split.rec


def test_a_recordio_that_breaks_off_keeps_its_whole_records(tmp_path: Path) -> None:
    data = (DATA / "recordio" / "one.rec").read_bytes()
    listing = open_source(put(tmp_path / "a.rec", data[:-40]))
    assert images_before_damage(listing) == JPEGS[:5]


def test_records_of_detection_become_boxes_without_a_label(tmp_path: Path) -> None:
    objects = [[float(k % 3), 0.25, 0.125, 0.5, 0.75, 1.0] for k in range(6)]
    rows = [[4.0, 6.0, 640.0, 480.0, *objects[0], *objects[1]], [4.0, 6.0, 640.0, 480.0], [2.0, 5.0, *objects[2][:5]]]
    path = put(tmp_path / "a.rec", b"".join(recordio(im2rec(JPEGS[k], row, k)) for k, row in enumerate(rows)))
    listing = open_source(path)
    assert (images(listing), labels(listing)) == (JPEGS[:3], [-1] * 3)
    boxes = [[0.25, 0.125, 0.5, 0.75]]
    assert extras(listing) == [
        {"boxes": boxes * 2, "box_labels": [0, 1], "header": [640, 480], "object_values": [[1], [1]], "id": 0},
        {"boxes": [], "box_labels": [], "header": [640, 480], "object_values": [], "id": 1},
        {"boxes": boxes, "box_labels": [2], "id": 2},
    ]
    picstore.convert(path, tmp_path / "out")
    width, height = Image.open(io.BytesIO(JPEGS[0])).size
    stored = {record.extra["id"]: record.extra["boxes"] for record in picstore.Dataset(tmp_path / "out")}
    assert stored[0] == [[width * 0.25, height * 0.125, width * 0.5, height * 0.75]] * 2
    assert stored[1] == []


def test_several_labels_that_describe_no_objects_stay_labels(tmp_path: Path) -> None:
    rows = [[2.0, 5.0], [2.0, 5.0, 0.0, 0.5, 0.5, 0.25, 0.75], [4.0, 4.0, 0.0, 0.0, 1.0, 0.1, 0.2, 0.3], [1.0, 7.0]]
    for row in rows:
        listing = open_source(put(tmp_path / "a.rec", recordio(im2rec(JPEGS[0], row, 0))))
        assert labels(listing) == [int(row[0])]
    found = [4.0, 5.0, 640.0, 480.0, 1.0, 0.0, 0.0, 1.0, 1.0]
    data = b"".join(recordio(im2rec(JPEGS[0], row, 0)) for row in (found, rows[1]))
    assert "no objects" in open_source(put(tmp_path / "b.rec", data)).inputs[1].problem
