"""Data sets as an attacker makes them: every checksum is right, and the contents are whatever he likes."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pictures import saved
from PIL import Image
from samples import jpeg

import picstore
from picstore.jpeg.transcode import add_restart_markers
from picstore.prepare.image.training_jpeg import parse_image_info
from picstore.storage.format import layout
from picstore.storage.format.checksum import crc32c
from picstore.storage.format.container import ContainerRef
from picstore.storage.format.container_index import read_summary
from picstore.storage.format.container_writer import FileWriter, pack_container
from picstore.storage.format.record import ImageInfo, Record
from picstore.storage.location.resolve import COPY, INDEX, MANIFEST
from picstore.storage.manifest_writer import publish_dataset


def canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def content_uuid(document: dict[str, Any], rows: bytes) -> str:
    """The uuid that docs/format.md defines, computed from that page alone."""
    body = {name: document[name] for name in document if name not in ("format", "format_version", "crc32c")}
    digest = bytearray(hashlib.sha256(rows + canonical({**body, "uuid": ""})).digest()[:16])
    digest[6], digest[8] = digest[6] & 0x0F | 0x80, digest[8] & 0x3F | 0x80
    return str(uuid.UUID(bytes=bytes(digest)))


def rewrite_manifest(root: Path, *, name: str = MANIFEST, **fields: Any) -> dict[str, Any]:
    """Replace fields of a manifest, the uuid too unless one is given, and make its CRC right."""
    document = {**json.loads((root / name).read_bytes()), **fields}
    del document["crc32c"]
    if "uuid" not in fields:
        index = (document.get("edits") or {}).get("index", INDEX)
        document["uuid"] = content_uuid(document, (root / index).read_bytes()[layout.SEALED :])
    document["crc32c"] = crc32c(canonical(document))
    for each in {name, COPY} if name == MANIFEST else {name}:
        (root / each).write_text(json.dumps(document))
    return document


def good_record(number: int, **fields: Any) -> Record:
    """A training JPEG as convert makes it."""
    data = add_restart_markers(jpeg(number))
    return Record(**{"id": number, "label": number % 2, "jpeg": data, "info": parse_image_info(data), **fields})


def tiny_jpeg(width: int, height: int, *, marker: int = 0xC0, data: bytes = bytes(8)) -> bytes:
    """A JPEG of some 150 bytes that claims a size; ``marker`` 0xC2 makes it progressive."""

    def segment(code: int, body: bytes) -> bytes:
        return bytes((0xFF, code)) + (len(body) + 2).to_bytes(2, "big") + body

    size = height.to_bytes(2, "big") + width.to_bytes(2, "big")
    table = bytes([1, *[0] * 15, 0])
    spectral = bytes((0, 0 if marker == 0xC2 else 63, 0))
    return (
        b"\xff\xd8"
        + segment(0xDB, bytes(1) + bytes([1]) * 64)
        + segment(marker, b"\x08" + size + bytes((3, 1, 0x22, 0, 2, 0x11, 0, 3, 0x11, 0)))
        + segment(0xC4, b"\x00" + table + b"\x10" + table)
        + segment(0xDA, bytes((3, 1, 0, 2, 0, 3, 0)) + spectral)
        + data
        + b"\xff\xd9"
    )


def claiming(number: int, width: int, height: int, *, data: bytes = b"", **fields: Any) -> Record:
    """A record whose index entry claims a size, whatever its bytes are: by default a progressive JPEG of that size."""
    data = data or tiny_jpeg(width, height, marker=0xC2)
    info = ImageInfo(width, height, sampling="420", header_length=max(0, data.find(b"\xff\xda")))
    return Record(**{"id": number, "label": 0, "jpeg": data, "info": info, **fields})


def write_dataset(
    root: Path, records: Sequence[Record], *, fields: Sequence[str] = (), container_size: int = 1 << 20, **manifest: Any
) -> Path:
    """A data set of one file."""
    with FileWriter(root, stream=0, file=0, container_size=container_size, fields=fields) as writer:
        for record in records:
            writer.add(record)
        summary = writer.close()
    outline = {"streams": 1, "container_size": container_size, "attachments": tuple(fields), **manifest}
    publish_dataset(root, [summary], **outline)
    return root


def preimage(function: Callable[[int], int], target: int) -> int:
    """Find x with function(x) = target, for a function of 32 bits that is affine over GF(2), as CRCs are."""
    base = function(0)
    rows: list[tuple[int, int]] = []
    for bit in range(32):
        value, source = function(1 << bit) ^ base, 1 << bit
        for other, of in rows:
            if value ^ other < value:
                value, source = value ^ other, source ^ of
        rows.append((value, source))
        rows.sort(reverse=True)
    rest, found = base ^ target, 0
    for value, source in rows:
        if rest ^ value < rest:
            rest, found = rest ^ value, found ^ source
    assert function(found) == target
    return found


def replace_container(root: Path, records: Sequence[Record]) -> None:
    """Put other records in place of those of the only container, under the same size, header CRC and footer."""
    path = root / "0000" / "000000.pic"
    row = read_summary(root, stream=0, file=0).footer[0]
    size, at = int(row["size"]), int(row["offset"])
    raw = b"".join(map(bytes, pack_container(records, ref=ContainerRef(path.name, at))))
    header = layout.ContainerHeader.unpack(raw, file=path.name, offset=at)
    body = raw[layout.SEALED : header.payload[1]].ljust(size - layout.SEALED, b"\0")
    fields = {name: getattr(header, name) for name in header.__dataclass_fields__ if not name.isupper()}
    fields |= {"size": size, "payload_size": size - header.payload_at}

    def header_of(payload_crc: int) -> bytes:
        return layout.ContainerHeader(**{**fields, "payload_crc": payload_crc}).pack()

    payload = body[header.payload_at - layout.SEALED : -4]  # whose last four bytes belong to no image
    wanted = preimage(lambda crc: crc32c(header_of(crc)[:-4]), int(row["header_crc"]))
    tail = preimage(lambda word: crc32c(payload + word.to_bytes(4, "little")), wanted)
    raw = header_of(wanted) + body[:-4] + tail.to_bytes(4, "little")
    content = bytearray(path.read_bytes())
    content[at : at + size] = raw
    path.write_bytes(content)


# Drawing it takes hours, with Python's lock held.
ENDLESS = b"""<svg xmlns="http://www.w3.org/2000/svg" width="64" height="48"><filter id="f"><feTurbulence
numOctaves="1000000000" baseFrequency="0.1"/></filter><rect width="64" height="48" filter="url(#f)"/></svg>"""


def forge(data: bytes, size: int, wanted: int) -> bytes:
    """Append a comment for a size and a CRC-32C: it is linear, so equations tell which letters of 64 to change."""
    whole = bytearray(data + b"<!--" + b"a" * (size - len(data) - 7) + b"-->")
    base = crc32c(whole)
    pivots: dict[int, tuple[int, int]] = {}  # by their highest bit
    for bit in range(64):
        whole[len(data) + 4 + bit] ^= 2
        value, mask = crc32c(whole) ^ base, 1 << bit
        whole[len(data) + 4 + bit] ^= 2
        while value and value.bit_length() in pivots:
            other = pivots[value.bit_length()]
            value, mask = value ^ other[0], mask ^ other[1]
        pivots[value.bit_length()] = value, mask
    target, changed = base ^ wanted, 0
    while target:
        value, mask = pivots[target.bit_length()]
        target, changed = target ^ value, changed ^ mask
    for bit in range(64):
        whole[len(data) + 4 + bit] ^= 2 * (changed >> bit & 1)
    return bytes(whole)


def index_endless_image(root: Path) -> Path:
    """Make an index of two images, ``root / "index"``, in which the file of the first is then an endless drawing."""
    photos = root / "photos"
    photos.mkdir()
    noise = np.random.default_rng(0).integers(0, 255, (48, 64, 3), dtype=np.uint8)
    for number in range(2):
        (photos / f"{number}.png").write_bytes(saved(Image.fromarray(noise), "PNG"))
    picstore.index(photos, root / "index")
    sound = (photos / "0.png").read_bytes()
    (photos / "0.png").write_bytes(forge(ENDLESS, len(sound), crc32c(sound)))
    return root / "index"
