"""A stand-alone reader of picstore data sets: this file, NumPy and Pillow, without picstore.

    python docs/reader.py DATASET            count the records and decode every image
    for image, label, number in records("DATASET"): ...

It follows docs/format.md and checks every checksum on its way, so it is slow. It reads folders of version 1 and 2 of
the manifest; extras need a library of zstd and are left out here.
"""

import io
import json
import sys
from pathlib import Path

import numpy as np
from PIL import Image

_FIELDS = (  # of an index entry, docs/format.md "Container"
    "id:u8 label:i8 offset:u4 length:u4 crc:u4 width:u2 height:u2 sampling:u1 flags:u1 restart_interval:u2 "
    "header_length:u4 segment_first:u4 segment_count:u4 extra_offset:u4 extra_length:u4 zeros:u4 entry_crc:u4"
)
ENTRY = np.dtype([(name, "<" + kind) for name, kind in (field.split(":") for field in _FIELDS.split())])
ROW = np.dtype("<u4, <u4, <u8, <u4, <u4, <u4, <u4")  # of the index: stream, file, offset, size, records, …

_TABLE = np.arange(256, dtype=np.uint32)
for _ in range(8):
    _TABLE = np.where(_TABLE & 1, (_TABLE >> 1) ^ np.uint32(0x82F63B78), _TABLE >> 1)
_TABLE = _TABLE.tolist()


def crc32c(data):
    """CRC-32C, a byte at a time."""
    crc = 0xFFFFFFFF
    for byte in bytes(data):
        crc = _TABLE[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def check(data, crc, what):
    """Raise ValueError unless bytes have a checksum."""
    if crc32c(data) != crc:
        raise ValueError(f"{what} fails its checksum")


def header(data, magic, what):
    """A structure of 64 bytes as sixteen integers, its magic and checksum checked."""
    words = np.frombuffer(data[:64], "<u4")
    if len(words) != 16 or not data.startswith(magic):
        raise ValueError(f"{what} is not there")
    check(data[:60], words[15], what)
    return words.tolist()


def read_manifest(folder):
    """The manifest, checked."""
    manifest = json.loads((folder / "picstore.json").read_bytes())
    if manifest["format"] != "picstore" or manifest["format_version"] not in (1, 2):
        raise ValueError("no picstore data set of version 1 or 2")
    rest = {name: value for name, value in manifest.items() if name != "crc32c"}
    check(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode(), manifest["crc32c"], "the manifest")
    return manifest


def read_index(folder, manifest):
    """A row for each container, in stored order."""
    edits = manifest.get("edits") or {"index": "picstore.idx"}
    data = (folder / edits["index"]).read_bytes()
    words = header(data, b"PICINDEX", "the index")
    check(data[64:], words[8], "the index")
    return np.frombuffer(data[64:], ROW)


def read_array(folder, described):
    """An array file of the edits, checked."""
    data = (folder / described["file"]).read_bytes()
    check(data, described["crc32c"], described["file"])
    return np.load(io.BytesIO(data), allow_pickle=False)


def read_edits(folder, manifest):
    """Numbers of deleted records in stored order, and the labels that replace the records', by id."""
    edits = manifest.get("edits") or {"tombstones": None, "columns": []}
    deleted = read_array(folder, edits["tombstones"]).tolist() if edits["tombstones"] else []
    columns = [column for column in edits["columns"] if column["name"] == "label"]
    labels = [[read_array(folder, column[name]).tolist() for name in ("ids", "values")] for column in columns]
    return set(deleted), dict(zip(*labels[0], strict=True)) if labels else {}


def read_container(folder, row):
    """Index entries and bytes of a container."""
    stream, number, offset, size = row.tolist()[:4]
    with (folder / f"{stream:04}" / f"{number:06}.pic").open("rb") as file:
        file.seek(offset)
        data = file.read(size)
    words = header(data, b"PICC", "a container header")
    attachments, count = words[1] & 0xFFFF, words[2]
    end = 64 + (64 + 16 * attachments) * count
    check(data[64:end], words[8], "an index")
    start = end + 2 * words[4] + words[5]  # after the segment table and the extras
    check(data[start : start + words[7]], words[11], "a payload")
    return np.frombuffer(data, ENTRY, count, 64), data


def records(folder):
    """Yield (image, label, id) of every record in stored order; images are RGB, uint8 (height, width, 3)."""
    folder = Path(folder)
    manifest = read_manifest(folder)
    (deleted, labels), number = read_edits(folder, manifest), 0
    for row in read_index(folder, manifest):
        entries, data = read_container(folder, row)
        for entry in entries:
            if number not in deleted:
                id_, label, offset, length = entry.tolist()[:4]
                with Image.open(io.BytesIO(data[offset : offset + length])) as image:
                    yield np.asarray(image.convert("RGB")), labels.get(id_, label), id_
            number += 1


if __name__ == "__main__":
    print(sum(1 for _ in records(sys.argv[1])), "records")
