"""TFRecord as a source, from what TensorFlow wrote."""

from __future__ import annotations

import struct
from pathlib import Path

from source_files import DATA, JPEGS, extras, images, images_before_damage, labels, put

from picstore.prepare.sources.open import open_source, read_input
from picstore.storage.format.checksum import crc32c, masked


def test_tf_examples_that_tensorflow_wrote_are_read_where_they_stand() -> None:
    listing = open_source(DATA / "tfrecord")
    assert listing.kind == "tfrecord"
    assert images(listing) == JPEGS
    assert all(source.reader is None for source in listing.inputs)
    assert labels(listing) == [0, 1, 2, 0, 1, 2]
    expected = {"image/class/text": "dog", "image/object/bbox/xmin": [0.25, 0.5], "image/height": 16, "offset": -4}
    assert extras(listing)[4] == expected
    skipped, boxes = listing.remarks
    assert skipped == "feature hash, bytes: left out of 6 samples"
    assert boxes.startswith("image/object/bbox/xmin and the other fields of objects are metadata in 6 samples")
    by_name = open_source(DATA / "tfrecord" / "train-00001-of-00002", label_field="image/class/text")
    assert (by_name.classes, labels(by_name)) == (["ant", "cat", "dog"], [1, 2, 0])


def test_a_tfrecord_with_a_damaged_length_keeps_what_stands_before_it(tmp_path: Path) -> None:
    data = bytearray((DATA / "tfrecord" / "train-00000-of-00002").read_bytes())
    (length,) = struct.unpack_from("<Q", data)
    data[16 + length] ^= 1
    listing = open_source(put(tmp_path / "a.tfrecord", bytes(data)))
    assert images_before_damage(listing) == JPEGS[:1]


def test_an_example_that_is_no_protocol_buffer_fails_alone(tmp_path: Path) -> None:
    def record(data: bytes) -> bytes:
        length = struct.pack("<Q", len(data))
        return length + struct.pack("<I", masked(crc32c(length))) + data + struct.pack("<I", masked(crc32c(data)))

    good = (DATA / "tfrecord" / "train-00000-of-00002").read_bytes()
    for bad in (b"\x0a\xff\xff\xff\x7f", b"\x0b", b"\x0a\x02\x0a\x50", b"\xff" * 12):
        listing = open_source(put(tmp_path / "a.tfrecord", record(bad) + good))
        assert listing.inputs[0].problem.startswith("damaged")
        assert [read_input(source) for source in listing.inputs[1:]] == JPEGS[:3]
