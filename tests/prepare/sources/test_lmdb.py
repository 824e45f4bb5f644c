"""LMDB as a source."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import numpy as np
import pytest
from source_files import DATA, JPEGS, decoded, extras, images, images_before_damage, labels, library, pixels

from picstore.errors import PicstoreError, UsageError
from picstore.prepare.sources.open import open_source


def write_lmdb(path: Path, entries: dict[bytes, bytes], *, map_size: int = 1 << 22) -> Path:
    lmdb = library("lmdb")
    with lmdb.open(str(path), map_size=map_size) as environment, environment.begin(write=True) as transaction:
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


def test_an_lmdb_of_images_and_texts_has_the_texts_as_captions(tmp_path: Path) -> None:
    entries = {b"num-samples": b"7", b"path-000000001": b"a.jpg"}
    for k, data in enumerate(JPEGS, 1):
        entries |= {b"image-%09d" % k: data, b"label-%09d" % k: f"Straße {k}".encode()}
    del entries[b"label-000000003"]
    listing = open_source(write_lmdb(tmp_path / "texts", entries))
    assert images_before_damage(listing) == JPEGS
    assert "6 samples are there, and 7 are stated" in listing.inputs[-1].problem
    assert extras(listing)[:3] == [{"caption": "Straße 1"}, {"caption": "Straße 2"}, None]
    assert listing.remarks[:2] == [
        "texts: 1 of 6 images have none",
        "1 entries that are neither images nor their texts: left out",
    ]


def test_named_databases_are_refused_by_their_names(tmp_path: Path) -> None:
    lmdb = library("lmdb")
    with lmdb.open(str(tmp_path / "db"), map_size=1 << 22, max_dbs=2) as environment:
        for name in (b"train", b"val"):
            with environment.begin(write=True, db=environment.open_db(name)) as transaction:
                transaction.put(b"0", JPEGS[0])
    with pytest.raises(UsageError, match="named databases, train, val; copy"):
        open_source(tmp_path / "db")


def test_entries_behind_one_that_kills_its_reader_fail_each(tmp_path: Path) -> None:
    entries = {b"%06d" % k: JPEGS[k % 6] * 8 for k in range(40) if k != 30}
    # A Datum of 100,000 bytes of data: its next field would lie behind the end of the file.
    datum = b"\x08\x03\x22" + bytes([100_000 & 127 | 128, 100_000 >> 7 & 127 | 128, 100_000 >> 14])
    path = write_lmdb(tmp_path / "db", entries | {b"000030": datum + bytes(9000)}, map_size=1 << 26)
    data = bytearray((path / "data.mdb").read_bytes())
    assert len(data) > 110_000
    for match in re.finditer(b"000030", bytes(data)):
        (size,) = struct.unpack_from("<I", data, match.start() - 8)
        if size == len(datum) + 9000:
            struct.pack_into("<I", data, match.start() - 8, 110_000)
    (path / "data.mdb").write_bytes(data)
    listing = open_source(path)
    assert [one.problem for one in listing.inputs[:30]] == [""] * 30
    assert len(listing.inputs) == 40
    assert all("its process was ended by SIG" in one.problem for one in listing.inputs[30:])


def test_a_cut_lmdb_fails_entry_by_entry(tmp_path: Path) -> None:
    path = write_lmdb(tmp_path / "db", {b"%06d" % k: JPEGS[k % 6] * 8 for k in range(40)})
    data = (path / "data.mdb").read_bytes()
    for cut in range(0, len(data), len(data) // 7):
        (path / "data.mdb").write_bytes(data[:cut])
        try:
            listing = open_source(path, kind="lmdb")
        except PicstoreError:
            continue
        assert all(one.problem for one in listing.inputs)
        assert len(listing.inputs) + sum(max(0, one.lost - 1) for one in listing.inputs) >= 1
