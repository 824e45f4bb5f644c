"""The data set of format version 1 in tests/fixtures/golden, made by tests/fixtures/make_golden.py.

These bytes are the format. A change that breaks a test here breaks every data set there is: it needs a new version
number, and code that still reads this one. Nothing is encoded here, so Pillow's version does not matter.
"""

from __future__ import annotations

import hashlib
import io
import json
from dataclasses import asdict
from pathlib import Path

import pytest
from PIL import Image

import picstore
from picstore.storage.format.container_index import FileSummary, read_summary
from picstore.storage.format.container_writer import FileWriter
from picstore.storage.format.read_container import recover_containers
from picstore.storage.format.record import Record
from picstore.storage.location.resolve import COPY, INDEX, MANIFEST, file_name
from picstore.storage.manifest_writer import publish_dataset

GOLDEN = Path(__file__).parents[2] / "fixtures" / "golden"
ROOT = GOLDEN / "dataset"
EXPECTED = json.loads((GOLDEN / "expected.json").read_text(encoding="utf-8"))

# (file, offset): what stands there, in hexadecimal
BYTES = {
    # file header: magic, version, stream, file, …, CRC
    ("0000/000000.pic", 0): (
        "895049430d0a1a0a010000000000000000000000000000000000000000000000"
        "00000000000000000000000000000000000000000000000000000000bc75f275"
    ),
    # container header: magic, attachments, 0, records, size, segments, extras, payload, four CRCs, ref, CRC
    ("0000/000000.pic", 4096): (
        "5049434301000000080000000010000010000000250000001c000000f40a0000"
        "de0ffb2f7b58ccc5a2aabb510484634f000000000000000000000000607c9339"
    ),
    # index entry: id, label, offset, length, CRC, width, height, sampling, flags, interval, header length, …
    ("0000/000000.pic", 4160): (
        "01000000000000000100000000000000050300007b01000094ed5c2115001100"
        "05000200360100000000000002000000000000001c00000000000000010f702b"
    ),
    # attachment entry: offset, length, CRC, CRC of the entry
    ("0000/000000.pic", 4672): ("8004000002000000529ff8030437461f"),
    # segment table
    ("0000/000000.pic", 4800): ("2a001700150015003f000e00160016000d000d00e2006b000800080068003400"),
    # extras: a zstd frame
    ("0000/000000.pic", 4832): ("28b52ffd201ce100007b2263617074696f6e223a22cea96d6567612c20e58c97e4baac227d"),
    # footer: offset, size, records, CRC of the header, 0
    ("0000/000000.pic", 12288): (
        "00100000000000000010000008000000607c93390000000000200000000000000010000004000000766385a100000000"
    ),
    # trailer: magic, version, containers, footer's offset, records, bytes, stream, file, CRC of the footer, …, CRC
    ("0000/000000.pic", 12336): (
        "504943545241494c010000000200000000300000000000000c00000000000000"
        "7030000000000000000000000000000081cd6a9400000000000000006bb6d5ac"
    ),
    # index header: magic, version, bytes a row, rows, records, CRC of the rows, …, CRC
    ("picstore.idx", 0): (
        "504943494e444558010000002000000004000000000000001800000000000000"
        "2bdf58c6000000000000000000000000000000000000000000000000b5cba58b"
    ),
    # index row: stream, file, offset, size, records, CRC of the header, 0
    ("picstore.idx", 64): ("000000000000000000100000000000000010000008000000607c933900000000"),
}
SHA256 = {
    "0000/000000.pic": "391ff80281c83bff7f6ce02f3f6c10413f2c4a5fa227f2d914ff16724edc28e3",
    "0001/000000.pic": "da4ff9f52c2f274a73e367f3e32c327edeebd31752a46ab4b8f6de6597a420fa",
    "picstore.idx": "5ea61e121cfd4af7c8febbfd52a2347c5654d018b099f911247f2d05af1b96cc",
    "picstore.copy.json": "b24d601eafc0bddb1690de248438bbd99dabc708cda7b572e9fb93df79043059",
    "picstore.json": "b24d601eafc0bddb1690de248438bbd99dabc708cda7b572e9fb93df79043059",
}


@pytest.mark.parametrize("name", SHA256)
def test_the_golden_files_are_the_ones_that_were_committed(name: str) -> None:
    assert hashlib.sha256((ROOT / name).read_bytes()).hexdigest() == SHA256[name]


@pytest.mark.parametrize(("name", "offset"), BYTES)
def test_every_structure_has_the_bytes_of_version_1(name: str, offset: int) -> None:
    expected = bytes.fromhex(BYTES[name, offset])
    assert (ROOT / name).read_bytes()[offset : offset + len(expected)].hex() == expected.hex()


def described(record: Record) -> dict[str, object]:
    return {
        "id": record.id,
        "label": record.label,
        "jpeg_sha256": hashlib.sha256(record.jpeg).hexdigest(),
        "width": record.width,
        "height": record.height,
        "sampling": record.info.sampling,
        "restart_interval": record.info.restart_interval,
        "header_length": record.info.header_length,
        "segments": record.info.segments.tolist(),
        "extra": record.extra,
        "attachments": {name: bytes(blob).hex() for name, blob in record.attachments.items()},
    }


def test_the_golden_data_set_is_read_as_it_was_written() -> None:
    dataset = picstore.Dataset(ROOT)
    assert dataset.uuid == EXPECTED["uuid"]
    assert dataset.classes == ["grey", "colour"]
    assert dataset.manifest.attachments == ("mask",)
    assert len(dataset) == len(EXPECTED["records"]) == 24
    assert [described(record) for record in dataset] == EXPECTED["records"]
    assert [described(dataset[k]) for k in range(len(dataset))] == EXPECTED["records"]


def test_the_golden_data_set_has_every_kind_of_record() -> None:
    records = EXPECTED["records"]
    assert {record["sampling"] for record in records} == {"grey", "420"}
    assert {record["label"] for record in records} == {-1, 0, 1}
    assert {bool(record["attachments"]) for record in records} == {True, False}
    assert sum(record["extra"] is not None for record in records) == 4
    assert {len(record["segments"]) for record in records} == {2}
    assert len(picstore.Dataset(ROOT).rows) == 4


def test_the_golden_images_decode() -> None:
    for record in picstore.Dataset(ROOT):
        with Image.open(io.BytesIO(record.jpeg)) as image:
            image.load()
            assert image.size == (record.width, record.height)


def test_packing_the_golden_records_again_gives_the_same_bytes(tmp_path: Path) -> None:
    """The four extras have so little in common that every version of zstd stores them as they are."""
    manifest = picstore.Dataset(ROOT).manifest
    summaries: list[FileSummary] = []
    for entry in manifest.files:
        with FileWriter(
            tmp_path, stream=entry.stream, file=entry.file, container_size=manifest.container_size, fields=("mask",)
        ) as writer:
            for container in recover_containers(ROOT, stream=entry.stream, file=entry.file, fields=("mask",)):
                for k in range(len(container)):
                    writer.add(container.record(k))
            summaries.append(writer.close())
        name = file_name(entry.stream, entry.file)
        assert (tmp_path / name).read_bytes() == (ROOT / name).read_bytes()
        assert read_summary(tmp_path, stream=entry.stream, file=entry.file).crc == entry.crc32c
    counted = {"uuid", "images", "bytes", "containers", "index_crc32c", "files"}
    publish_dataset(
        tmp_path, summaries, **{name: value for name, value in asdict(manifest).items() if name not in counted}
    )
    for name in (INDEX, COPY, MANIFEST):
        assert (tmp_path / name).read_bytes() == (ROOT / name).read_bytes()


def test_the_worked_example_of_the_format_page_shows_these_bytes() -> None:
    page = (Path(__file__).parents[3] / "docs" / "archive" / "format-example.md").read_text(encoding="utf-8")
    example = page.replace(" ", "")
    for (name, offset), digits in BYTES.items():
        if name.endswith(".pic"):
            words = [digits[k : k + 8] for k in range(0, len(digits), 8)]
            for word in words[: 16 if offset != 4800 else 1]:
                assert word in example or word == "00000000" or offset == 4832, (name, offset, word)
