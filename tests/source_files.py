"""Files of other libraries' formats, for tests: tests/fixtures/sources, and what is written by hand here."""

from __future__ import annotations

import io
import struct
import tarfile
from pathlib import Path

DATA = Path(__file__).parent / "fixtures" / "sources"
JPEGS = [(DATA / "images" / f"{k}.jpg").read_bytes() for k in range(6)]


def put(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def make_tar(path: Path, members: list[tuple[str, bytes]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def recordio(payload: bytes) -> bytes:
    """One record, split where its payload holds the magic at a multiple of 4."""
    magic = struct.pack("<I", 0xCED7230A)
    cuts = [at for at in range(0, len(payload) - 3, 4) if payload[at : at + 4] == magic]
    starts, ends = [0, *(at + 4 for at in cuts)], [*cuts, len(payload)]
    flags = [0] if not cuts else [1, *[2] * (len(cuts) - 1), 3]
    out = b""
    for flag, start, end in zip(flags, starts, ends, strict=True):
        part = payload[start:end]
        out += magic + struct.pack("<I", flag << 29 | len(part)) + part + bytes(-len(part) % 4)
    return out


def im2rec(image: bytes, label: float | list[float], id_: int) -> bytes:
    if isinstance(label, list):
        return struct.pack("<IfQQ", len(label), 0, id_, 0) + struct.pack(f"<{len(label)}f", *label) + image
    return struct.pack("<IfQQ", 0, label, id_, 0) + image


def picpoc_record(image: bytes, label: int, serial: int, extra: bytes) -> bytes:
    data = struct.pack("<IiiII", 0x50494352, label, serial, len(image), len(extra)) + image + extra
    return data + bytes(-len(data) % 16)


def picpoc_file(containers: list[list[bytes]], *, closed: bool = True) -> bytes:
    body, ends = b"", []
    for records in containers:
        payload = b"".join(records)
        body += struct.pack("<IIII", 0x50494343, len(records), len(payload), 0) + payload
        body += bytes(-len(body) % 512)
        ends.append(4096 + len(body))
    head = struct.pack("<IIII", 0x50494346, 1, len(ends), 0) + struct.pack(f"<{len(ends)}Q", *ends)
    return (head if closed else b"").ljust(4096, b"\0") + body


def write_picpoc(root: Path, *, closed: bool = True) -> Path:
    records = [picpoc_record(data, k - 1, 100 + k, b'{"fname": "%d.jpg"}' % k) for k, data in enumerate(JPEGS)]
    put(root / "0" / "0", picpoc_file([records[:2], records[2:3]]))
    put(root / "0" / "10", picpoc_file([records[4:5]]))
    put(root / "0" / "9", picpoc_file([records[3:4]], closed=closed))
    put(root / "1" / "0", picpoc_file([records[5:]]))
    return root
