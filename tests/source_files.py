"""Sources for tests: the files of tests/fixtures/sources, writers of small ones, and what a listing holds.

tests/fixtures/sources is written by tests/fixtures/make_source_fixtures.py with the formats' own libraries.
"""

from __future__ import annotations

import importlib
import io
import json
import pickle
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
from pictures import missing
from PIL import Image

from picstore.prepare.sources.inputs import Listing
from picstore.prepare.sources.open import read_input

DATA = Path(__file__).parent / "fixtures" / "sources"
NAMES = ["cat", "dog", "ant"]
JPEGS = [(DATA / "images" / f"{k}.jpg").read_bytes() for k in range(6)]


def put(path: Path, data: bytes = b"image") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def make_tar(path: Path, members: list[tuple[str, bytes]] | dict[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, data in members.items() if isinstance(members, dict) else members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def recordio(payload: bytes) -> bytes:
    """One record, split wherever its payload holds the magic number at a multiple of 4."""
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


def library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        missing(name)


def images(listing: Listing) -> list[bytes]:
    """Bytes of all inputs, read as in another process: from a pickled input."""
    return [read_input(pickle.loads(pickle.dumps(source))) for source in listing.inputs]  # noqa: S301 - our own


def labels(listing: Listing) -> list[int]:
    return [source.label for source in listing.inputs]


def extras(listing: Listing) -> list[Any]:
    return [json.loads(source.extra) if source.extra else None for source in listing.inputs]


def decoded(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def pixels(number: int) -> np.ndarray:
    """Pictures of the fixtures, as tests/fixtures/make_source_fixtures.py draws them."""
    x, y = np.meshgrid(np.arange(24), np.arange(16))
    return np.stack([x * 10, y * 15, np.full_like(x, 40 * number)], axis=-1).astype(np.uint8)


def problems(listing: Listing) -> list[str]:
    return [source.problem for source in listing.inputs if source.problem]


def images_before_damage(listing: Listing) -> list[bytes]:
    assert listing.inputs[-1].problem.startswith("damaged"), listing.inputs[-1]
    return [read_input(source) for source in listing.inputs[:-1]]


def names(listing: Listing) -> list[tuple[str, int]]:
    return [(source.name, source.label) for source in listing.inputs]
