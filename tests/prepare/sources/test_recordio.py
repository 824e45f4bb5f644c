"""MXNet's RecordIO as a source, from what MXNet and im2rec wrote."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
from source_files import (
    DATA,
    JPEGS,
    decoded,
    extras,
    images,
    images_before_damage,
    labels,
    pixels,
    put,
)

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
