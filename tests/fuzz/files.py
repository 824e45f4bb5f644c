"""Inputs that are several files: data sets, whose checksums are made right again after a mutation, and sources."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from hostile import canonical, content_uuid
from mutate import NUMBERS, mutate_bytes, mutate_document

from picstore.storage.format import layout
from picstore.storage.format.checksum import crc32c, entry_crcs
from picstore.storage.location.resolve import COPY, INDEX, MANIFEST

OPENED = "opened.json"  # of a source: how it is opened; never changed


def pack(files: dict[str, bytes]) -> bytes:
    """Join files to one input."""
    return b"".join(b"%s\0%d\0%s" % (name.encode(), len(data), data) for name, data in files.items())


def unpack(data: bytes) -> dict[str, bytes]:
    """Split an input into its files; ValueError if it is none."""
    files = {}
    while data:
        name, size, rest = data.split(b"\0", 2)
        files[name.decode()], data = rest[: int(size)], rest[int(size) :]
    return files


def write(folder: Path, data: bytes) -> dict[str, bytes]:
    """Write the files of an input into an empty folder, and return them."""
    files = unpack(data)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return files


def mutate_files(data: bytes, rng: Random) -> bytes:
    """Change one of the files; of a data set make all checksums right, as its attacker would."""
    files = unpack(data)
    for _ in range(rng.choice((1, 1, 2))):
        name = rng.choice([name for name in files if name != OPENED])
        files[name] = _mutate_file(name, files[name], rng)
    if MANIFEST in files and rng.random() < 0.9:
        repair(files)
    return pack(files)


def _mutate_file(name: str, data: bytes, rng: Random) -> bytes:
    suffix = name.rsplit(".", 1)[-1]
    if suffix == "json":
        return mutate_document(data, rng)
    if suffix == "jsonl":
        lines = data.splitlines(keepends=True)
        at = rng.randrange(len(lines) + 1)
        return b"".join(
            [*lines[:at], *(mutate_document(line, rng) + b"\n" for line in lines[at:][:1]), *lines[at + 1 :]]
        )
    if suffix in ("pic", "idx", "npy") and rng.random() < 0.8:
        return _mutate_fields(data, rng)
    return mutate_bytes(data, rng)


def _mutate_fields(data: bytes, rng: Random) -> bytes:
    """Overwrite fields of fixed structures with other numbers; most lie near the beginnings of blocks and the end."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 3))):
        size = rng.choice((1, 2, 4, 4, 4, 8))
        block = rng.randrange(0, len(out) + 1, layout.ALIGNMENT) if rng.random() < 0.8 else len(out) - 200
        at = max(0, block + rng.randrange(0, rng.choice((64, 200, 700, 4096)), size))
        old = int.from_bytes(out[at : at + size], "little")
        near = rng.choice((old + 1, old - 1, old + 64, old - 64, old << 8, old ^ (1 << rng.randrange(8 * size))))
        new = rng.choice((near, rng.choice(NUMBERS))) % (1 << 8 * size)
        out[at : at + size] = new.to_bytes(size, "little")[: len(out) - at]
    return bytes(out)


def repair(files: dict[str, bytes]) -> None:
    """Make the checksums of a data set right, from the bottom up; what cannot be parsed stays as it is."""
    headers: dict[tuple[int, int, int], int] = {}
    footers: dict[tuple[int, int], int] = {}
    for name in files:
        if name.endswith(".pic"):
            raw = bytearray(files[name])
            stream, file = int(name[:4]), int(name[5:11])
            footers[stream, file] = _repair_file(raw, (stream, file), headers)
            files[name] = bytes(raw)
    for name in files:
        if name.endswith(".idx"):
            files[name] = _repair_index(files[name], headers)
    for name in (COPY, MANIFEST):
        with suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
            files[name] = _repair_manifest(json.loads(files[name]), files, footers)


def _repair_file(raw: bytearray, file: tuple[int, int], headers: dict[tuple[int, int, int], int]) -> int:
    """Repair file header, containers, footer and trailer; returns the CRC of the footer."""
    if len(raw) < layout.ALIGNMENT + layout.SEALED:
        return 0
    _seal(raw, 0)
    end = len(raw) - layout.SEALED
    magic, *fields = layout.Trailer.STRUCT.unpack_from(raw, end)
    first = end - layout.FOOTER_ROW.itemsize * min(fields[1], 100)
    if first < layout.ALIGNMENT:
        return 0
    footer = np.frombuffer(bytes(raw[first:end]), layout.FOOTER_ROW).copy()
    for row in footer:
        at, size = int(row["offset"]), int(row["size"])
        if at + size <= first and size >= layout.SEALED:
            raw[at : at + size] = repair_container(raw[at : at + size])
            row["header_crc"] = headers[(*file, at)] = int.from_bytes(raw[at + 60 : at + 64], "little")
    raw[first:end] = footer.tobytes()
    crc = crc32c(footer.tobytes())
    layout.Trailer.STRUCT.pack_into(raw, end, magic, *fields[:-1], crc)
    _seal(raw, end)
    return crc


def repair_container(raw: bytearray) -> bytearray:
    """Repair the checksums of a container's sections, entries and images, and of its header."""
    magic, *fields = layout.ContainerHeader.STRUCT.unpack_from(raw)
    header = layout.ContainerHeader(*fields)
    if header.payload[1] <= len(raw):
        count = header.records
        index = np.frombuffer(raw, layout.ENTRY, count, layout.SEALED)
        table = np.frombuffer(raw, layout.ATTACHMENT, count * header.attachments, layout.SEALED + index.nbytes)
        for entries in (index, table):
            for entry in entries:
                first = int(entry["offset"])
                entry["crc"] = crc32c(bytes(raw[first : first + int(entry["length"])]))
            entries["entry_crc"] = entry_crcs(entries)
        edges = (layout.SEALED, header.segments_at, header.extras_at, header.payload_at, header.payload[1])
        fields[8:12] = (crc32c(bytes(raw[a:b])) for a, b in pairwise(edges))
    sealed = bytearray(raw)
    layout.ContainerHeader.STRUCT.pack_into(sealed, 0, magic, *fields)
    _seal(sealed, 0)
    return sealed


def _repair_index(raw: bytes, headers: dict[tuple[int, int, int], int]) -> bytes:
    if len(raw) < layout.SEALED:
        return raw
    out = bytearray(raw)
    rows = np.frombuffer(out, layout.INDEX_ROW, (len(out) - layout.SEALED) // layout.INDEX_ROW.itemsize, layout.SEALED)
    for row in rows:
        position = int(row["stream"]), int(row["file"]), int(row["offset"])
        row["header_crc"] = headers.get(position, int(row["header_crc"]))
    magic, *fields = layout.IndexHeader.STRUCT.unpack_from(out)
    layout.IndexHeader.STRUCT.pack_into(out, 0, magic, *fields[:-1], crc32c(bytes(out[layout.SEALED :])))
    _seal(out, 0)
    return bytes(out)


def _repair_manifest(document: Any, files: dict[str, bytes], footers: dict[tuple[int, int], int]) -> bytes:
    """Repair the checksums that a manifest holds of files, and its own."""
    for entry in document["files"]:
        entry["crc32c"] = footers.get((entry["stream"], entry["file"]), entry["crc32c"])
    edits = document.get("edits") or {}
    columns = edits.get("columns", [])
    for npy in (edits.get("tombstones"), *(column[part] for column in columns for part in ("ids", "values", "ends"))):
        if npy and npy["file"] in files:
            npy["bytes"], npy["crc32c"] = len(files[npy["file"]]), crc32c(files[npy["file"]])
    rows = files.get(edits.get("index", INDEX), b"")[layout.SEALED :]
    document["index_crc32c"] = crc32c(rows)
    document["uuid"] = content_uuid(document, rows)
    return sealed_json(document)


def sealed_json(document: dict[str, Any]) -> bytes:
    """A manifest's JSON text with its own CRC."""
    body = {name: value for name, value in document.items() if name != "crc32c"}
    return json.dumps({**body, "crc32c": crc32c(canonical(body))}).encode()


def _seal(raw: bytearray, at: int) -> None:
    raw[at + 60 : at + 64] = crc32c(bytes(raw[at : at + 60])).to_bytes(4, "little")
