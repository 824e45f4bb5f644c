"""LMDB as a source."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from source_files import (
    DATA,
    JPEGS,
    decoded,
    images,
    labels,
    library,
    pixels,
)

from picstore.prepare.sources.open import open_source


def write_lmdb(path: Path, entries: dict[bytes, bytes]) -> Path:
    lmdb = library("lmdb")
    with lmdb.open(str(path), map_size=1 << 22) as environment, environment.begin(write=True) as transaction:
        for key, value in entries.items():
            transaction.put(key, value)
    return path


def test_caffes_lmdb_is_read_encoded_and_as_planes_of_blue_green_and_red() -> None:
    library("lmdb")
    listing = open_source(DATA / "caffe")
    assert listing.kind == "lmdb"
    assert labels(listing) == [7, -1, 0]
    encoded, planes, with_shape = images(listing)
    assert (encoded, with_shape) == (JPEGS[0], JPEGS[1])
    assert np.array_equal(decoded(planes), pixels(3))


def test_an_lmdb_of_keys_and_image_files_is_read_by_key(tmp_path: Path) -> None:
    path = write_lmdb(tmp_path / "plain", {f"b/{k}.jpg".encode(): data for k, data in enumerate(JPEGS)})
    listing = open_source(path)
    assert images(listing) == JPEGS
    assert [source.name for source in listing.inputs[:2]] == ["plain/b/0.jpg", "plain/b/1.jpg"]
    assert set(labels(listing)) == {-1}
