"""Sizes that sources claim take no memory and no time beyond what their bytes can be worth."""

from __future__ import annotations

import json
import shutil
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from source_files import DATA, JPEGS, extras, images, put

from picstore.errors import Corrupt, TooLarge
from picstore.prepare.sources.compressed_and_raw import CompressedBlock, decompress_block
from picstore.prepare.sources.lmdb import _datum
from picstore.prepare.sources.open import open_source
from picstore.prepare.sources.tar_members import _parse_pax
from picstore.prepare.sources.tfrecord import _MAX_FEATURES, _MAX_VALUE
from picstore.storage.format.checksum import crc32c, masked
from picstore.storage.format.zstd import compress


def peak_of_decompression(path: Path, block: CompressedBlock) -> int:
    decompress_block.cache_clear()
    tracemalloc.start()
    try:
        decompress_block(str(path), block, "")
    except (Corrupt, TooLarge):
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak


def test_a_small_block_cannot_claim_gigabytes(tmp_path: Path) -> None:
    size, packed = 1 << 30, compress(bytes(1 << 20)).ljust(1 << 15, b"\0")
    path = put(tmp_path / "x.zstd", packed)
    with pytest.raises(TooLarge, match="unpacked"):
        decompress_block(str(path), CompressedBlock("zstd", 0, len(packed), size), "")


@pytest.mark.parametrize("codec", ["zstd", "gz", "bz2"])
def test_memory_is_taken_as_data_comes_out_not_as_a_block_claims(tmp_path: Path, codec: str) -> None:
    packed = {"zstd": compress(b"few"), "gz": b"", "bz2": b""}[codec].ljust(1 << 16, b"\0")
    path = put(tmp_path / "x", packed)
    assert peak_of_decompression(path, CompressedBlock(codec, 0, len(packed), 60 << 20)) < 8 << 20


def test_samples_of_a_beton_cannot_share_their_json(tmp_path: Path) -> None:
    text, count = b'{"a":"%s"}\0' % (b"x" * 1000), 400
    fields = np.zeros(2, np.dtype([("type", "u1"), ("name", "S16"), ("arguments", "V1024")]))
    fields["type"], fields["name"] = (2, 5), (b"image", b"meta")
    image = np.dtype([("mode", "u1"), ("w", "<u2"), ("h", "<u2"), ("offset", "<u8")])
    span = np.dtype([("offset", "<u8"), ("size", "<u8")])
    row = np.dtype([("image", image), ("meta", span)], align=True)
    rows = np.zeros(count, row)
    start = 24 + fields.nbytes + rows.nbytes
    rows["image"]["offset"], rows["meta"]["offset"], rows["meta"]["size"] = start, start + len(JPEGS[0]), len(text)
    data = JPEGS[0] + text
    head = struct.pack("<HHIQQ", 2, 2, 4096, count, start + len(data)) + fields.tobytes() + rows.tobytes()
    beton = put(tmp_path / "x.beton", head + data + struct.pack("<QQQ", 0, start, len(JPEGS[0])))
    listing = open_source(beton)
    assert "share" in listing.inputs[-1].problem
    assert 0 < sum(len(source.extra) for source in listing.inputs) < beton.stat().st_size


def test_frames_of_a_litdata_chunk_cannot_overlap(tmp_path: Path) -> None:
    folder = tmp_path / "litdata"
    shutil.copytree(DATA / "litdata-zstd-batch", folder)
    index = json.loads((folder / "index.json").read_text())
    chunk = folder / index["chunks"][0]["filename"]
    fields = len(index["config"]["data_format"])
    sizes = struct.pack(f"<{fields}I", *[1] * fields)
    block = compress(sizes + bytes(fields))
    for frames in (1, 3):
        head = struct.pack("<8sHHIII", b"LDFZ01\0\0", 1, 0, 1, 1, frames) + struct.pack("<II", 0, len(sizes) + fields)
        start = len(head) + 24 * frames
        frame = struct.pack("<IIQII", 0, 1, start, len(block), len(sizes) + fields)
        chunk.write_bytes(head + frame * frames + block)
        index["chunks"][0]["chunk_size"] = 1
        (folder / "index.json").write_text(json.dumps(index))
        problem = open_source(folder).inputs[0].problem
        assert ("overlap" in problem) == (frames == 3), problem


def varint(number: int) -> bytes:
    out = b""
    while number > 0x7F:
        out, number = out + bytes([number & 0x7F | 0x80]), number >> 7
    return out + bytes([number])


def message(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked(crc32c(length))) + data + struct.pack("<I", masked(crc32c(data)))


def feature(name: bytes, kind: int, values: bytes) -> bytes:
    return message(1, message(1, name) + message(2, message(kind, values)))


def test_integers_that_are_not_packed_are_bounded_as_packed_ones(tmp_path: Path) -> None:
    image = feature(b"image", 1, message(1, JPEGS[0]))
    few = feature(b"few", 3, b"\x08\x07" * 3)
    many = feature(b"many", 3, b"\x08\x07" * (_MAX_VALUE + 1))
    path = put(tmp_path / "a.tfrecord", record(message(1, image + few + many)))
    listing = open_source(path)
    assert images(listing) == JPEGS[:1]
    assert extras(listing) == [{"few": [7, 7, 7]}]
    assert listing.remarks[0] == "feature many, bytes: left out of 1 sample"


def test_an_example_of_too_many_features_fails_alone(tmp_path: Path) -> None:
    image = feature(b"image", 1, message(1, JPEGS[0]))
    crowd = b"".join(feature(b"%d" % k, 3, b"\x08\x01") for k in range(_MAX_FEATURES))
    both = record(message(1, image + crowd)) + record(message(1, image))
    bad, good = open_source(put(tmp_path / "a.tfrecord", both)).inputs
    assert "features" in bad.problem
    assert not good.problem


def test_fields_of_a_value_that_is_no_datum_are_not_collected() -> None:
    value = b"".join(varint(number << 3) + b"\x01" for number in range(1, 100_000))
    tracemalloc.start()
    assert _datum(value) is None
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_pax_records_are_read_in_one_pass() -> None:
    records = b"6 a=b\n" * 170_000 + b"12 path=n.j\n"
    assert _parse_pax(records, b"", -1) == (b"n.j", -1)
    assert _parse_pax(b"5 a=", b"old", 3) == (b"old", 3)
