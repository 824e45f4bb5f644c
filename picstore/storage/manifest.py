"""The manifest ``picstore.json`` and the index ``picstore.idx`` (docs/format.md, "Manifest" and "Index").

The index has a row for each container in **stored order**: by file number, then by the container's ordinal in its file,
then by stream, so that reading in stored order takes from all streams in turn.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from picstore.arrays import I64, Table
from picstore.errors import Corrupt, Damage, NotADataset, PicstoreError, TooLarge, Truncated, Unfinished, UsageError
from picstore.storage.edits.manifest_entries import Edits
from picstore.storage.format.checksum import crc32c
from picstore.storage.format.file import FileSummary
from picstore.storage.format.layout import (
    EDITED_VERSION,
    FORMAT_VERSION,
    INDEX_ROW,
    MAX_FILE,
    MAX_MANIFEST,
    SEALED,
    IndexHeader,
    check_rows,
    check_version,
)
from picstore.storage.location.resolve import EDITS, INDEX, MANIFEST, UNFINISHED, Location, Where, locate, read_at

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file as the manifest lists it; ``crc32c`` is of its footer."""

    stream: int
    file: int
    bytes: int
    records: int
    crc32c: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a data set is. See docs/format.md for each field; ``edits`` is None for one that is as it was made."""

    uuid: str
    images: int
    bytes: int
    streams: int
    containers: int
    container_size: int
    classes: tuple[str, ...] = ()
    attachments: tuple[str, ...] = ()
    encode: dict[str, Any] | None = None
    provenance: dict[str, Any] = field(default_factory=dict)
    shuffle: tuple[dict[str, Any], ...] = ()
    index_crc32c: int = 0
    files: tuple[FileEntry, ...] = ()
    edits: Edits | None = None

    @property
    def images_left(self) -> int:
        """How many of the images are not deleted."""
        return self.images - (0 if self.edits is None else self.edits.deleted)


def index_rows(summaries: Sequence[FileSummary]) -> Table:
    """The rows of the index, in stored order, from the files' footers."""
    parts = []
    ordinals = []
    for summary in summaries:
        rows = np.zeros(len(summary.footer), dtype=INDEX_ROW)
        rows["stream"], rows["file"] = summary.stream, summary.file
        for name in ("offset", "size", "records", "header_crc"):
            rows[name] = summary.footer[name]
        parts.append(rows)
        ordinals.append(np.arange(len(rows)))
    if not parts:
        return np.zeros(0, dtype=INDEX_ROW)
    joined = np.concatenate(parts)
    order = np.lexsort((joined["stream"], np.concatenate(ordinals), joined["file"]))
    return joined[order]


def ordinals_of(rows: Table) -> I64:
    """For each row of an index the container's ordinal in its file."""
    order = np.lexsort((rows["offset"], rows["stream"], rows["file"]))
    position = np.arange(len(rows))
    same = np.zeros(len(rows), dtype=np.bool_)
    a, b = rows[order[:-1]], rows[order[1:]]
    same[1:] = (a["file"] == b["file"]) & (a["stream"] == b["stream"])
    first = np.maximum.accumulate(np.where(same, 0, position)) if len(rows) else position
    ordinals = np.empty(len(rows), dtype=np.int64)
    ordinals[order] = position - first
    return ordinals


def finish(root: Where, summaries: Sequence[FileSummary], **fields: Any) -> Manifest:
    """Write the index, then the manifest, which makes the directory a data set.

    Args:
        root: the data set.
        summaries: its files.
        **fields: of :class:`Manifest`, those that cannot be counted: ``streams``, ``container_size``, ``classes`` ….
    """
    rows = index_rows(summaries)
    files = sorted((s.file, s.stream, s) for s in summaries)
    entries = tuple(FileEntry(s.stream, s.file, s.size, s.records, s.crc) for _, _, s in files)
    manifest = count(rows, entries, **fields)
    (locate(root) / INDEX).write(index_file(rows))
    (locate(root) / MANIFEST).write(manifest_file(manifest))
    return manifest


def count(rows: Table, files: tuple[FileEntry, ...], **fields: Any) -> Manifest:
    """The manifest of a data set of these containers and files."""
    counted = Manifest(
        uuid="",
        images=sum(entry.records for entry in files),
        bytes=sum(entry.bytes for entry in files),
        containers=len(rows),
        index_crc32c=crc32c(rows.tobytes()),
        files=files,
        **fields,
    )
    return with_uuid(counted, rows)


def with_uuid(manifest: Manifest, rows: Table) -> Manifest:
    """The same manifest with the uuid of its content; edits that change nothing are none."""
    edits = None if manifest.edits == Edits() else manifest.edits
    bare = replace(manifest, uuid="", edits=edits)
    # As it is read again: what JSON makes of tuples and keys must not change the uuid.
    body = json.loads(json.dumps(_body(bare)))
    digest = hashlib.sha256(rows.tobytes() + canonical(body)).digest()
    return _parse({**body, "uuid": _uuid8(digest)}, edited=edits is not None)


def append_rows(
    manifest: Manifest, old: Table, summaries: Sequence[FileSummary], **fields: Any
) -> tuple[Manifest, bytes]:
    """The manifest of a data set to which files were added behind, and the index that it names, as bytes.

    Args:
        old: the rows of before.
        summaries: the files that are added, whose numbers are beyond those of before.
        fields: of the manifest that are others now.
    """
    rows = np.concatenate([old, index_rows(summaries)])
    raw = index_file(rows)
    name = f"{EDITS}/{hashlib.sha256(raw).hexdigest()[:16]}.idx"
    added = sorted(summaries, key=lambda s: (s.file, s.stream))
    files = (*manifest.files, *(FileEntry(s.stream, s.file, s.size, s.records, s.crc) for s in added))
    counted = {"uuid", "images", "bytes", "containers", "index_crc32c", "files"}
    kept = {name: getattr(manifest, name) for name in Manifest.__slots__ if name not in counted}
    edits = replace(manifest.edits or Edits(), index=name)
    return count(rows, files, **{**kept, "edits": edits, **fields}), raw


def index_file(rows: Table) -> bytes:
    """The bytes of an index."""
    raw = rows.tobytes()
    header = IndexHeader(FORMAT_VERSION, INDEX_ROW.itemsize, len(rows), int(rows["records"].sum()), crc32c(raw))
    return header.pack() + raw


def publish(root: Location, origin: str, manifest: Manifest) -> None:
    """Replace the manifest of a data set; the old one stays under its uuid, for who wants that version.

    Raises:
        UsageError: the uuid of the data set is not ``origin`` any more.
    """
    old = read_manifest(root)
    if old.uuid == manifest.uuid:
        return
    if old.uuid != origin:
        raise UsageError(f"{root} was edited since it was opened; open it again and repeat the change")
    (root / EDITS / f"{old.uuid}.json").write(manifest_file(old))
    (root / MANIFEST).write(manifest_file(manifest))


def _uuid8(digest: bytes) -> str:
    """A version 8 uuid (RFC 9562, section 5.8: made by a rule of one's own) of the first 16 bytes."""
    bits = bytearray(digest[:16])
    bits[6] = bits[6] & 0x0F | 0x80
    bits[8] = bits[8] & 0x3F | 0x80
    return str(uuid.UUID(bytes=bytes(bits)))


def canonical(value: Any) -> bytes:
    """The canonical JSON of a value."""
    return json.dumps(value, ensure_ascii=True, sort_keys=True, separators=(",", ":")).encode()


def _body(manifest: Manifest) -> dict[str, Any]:
    """The fields as JSON values; those of a later version only where they are needed."""
    body = asdict(replace(manifest, files=()))
    body["files"] = [{name: getattr(entry, name) for name in FileEntry.__slots__} for entry in manifest.files]
    if manifest.edits is None:
        del body["edits"]
    return body


def manifest_file(manifest: Manifest) -> bytes:
    """The manifest's text: one line a field and one a file, so that it reads well and compares line by line."""
    version = FORMAT_VERSION if manifest.edits is None else EDITED_VERSION
    document = {"format": "picstore", "format_version": version, **_body(manifest)}
    document["crc32c"] = crc32c(canonical(document))
    lines = []
    for name, value in document.items():
        text = json.dumps(value)
        if name == "files" and value:
            text = "[\n  " + ",\n  ".join(json.dumps(entry) for entry in value) + "\n ]"
        lines.append(f" {json.dumps(name)}: {text}")
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def read_manifest(root: Where, version: str | None = None) -> Manifest:
    """Read and check the manifest.

    Args:
        version: uuid of the version wanted, by default the latest.

    Raises:
        Unfinished: a conversion or shuffle has not ended here.
        NotADataset: there is no manifest, or it is another program's file.
        UsageError: there is no such version.
        UnsupportedVersion, Damage: as their names say.
    """
    root = locate(root)
    manifest = _read(root, root / MANIFEST)
    if version in (None, manifest.uuid):
        return manifest
    path = root / EDITS / f"{version}.json"
    if not _UUID.fullmatch(str(version)) or not path.is_file():
        raise UsageError(f"{root} has no version {version}; the latest is {manifest.uuid}")
    return _read(root, path)


def _read(root: Location, path: Location) -> Manifest:
    try:
        document = json.loads(path.read_all(MAX_MANIFEST))
    except NotADataset as error:
        raise _absence(root) from error
    except TooLarge as error:
        raise NotADataset(f"{path} is larger than any picstore manifest; it belongs to another program") from error
    except (ValueError, RecursionError) as error:
        raise Truncated("the manifest is not whole JSON; `picstore repair` writes it anew", place=str(path)) from error
    if not isinstance(document, dict) or document.get("format") != "picstore":
        raise NotADataset(f"{path} is not a picstore manifest; {root} belongs to another program")
    version = document.get("format_version")
    if not isinstance(version, int):
        raise Corrupt("the manifest has no format_version", place=str(path))
    check_version(version, str(path), known=(FORMAT_VERSION, EDITED_VERSION))
    stored = document.pop("crc32c", None)
    if stored != crc32c(canonical(document)):
        raise Corrupt(
            "the manifest fails its CRC: it was edited or damaged; `picstore repair` writes it anew",
            place=str(path),
        )
    del document["format"], document["format_version"]
    try:
        return _parse(document, edited=version == EDITED_VERSION)
    except (KeyError, TypeError, ValueError) as error:
        raise Corrupt(f"the manifest does not have the fields of version {version}: {error}", str(path)) from error


def _parse(document: dict[str, Any], *, edited: bool) -> Manifest:
    fields = dict(document)
    if ("edits" in fields) != edited:
        raise KeyError("edits")
    fields["files"] = tuple(FileEntry(**entry) for entry in fields["files"])
    for name in ("classes", "attachments", "shuffle"):
        fields[name] = tuple(fields[name])
    if edited:
        fields["edits"] = Edits.parse(fields["edits"])
    return Manifest(**fields)


def _absence(root: Location) -> NotADataset:
    """Why there is no manifest, and what to do."""
    if not root.is_folder():
        if root.is_file():
            return NotADataset(f"{root} is a file; a picstore data set is a directory")
        return NotADataset(f"{root} does not exist")
    if (root / UNFINISHED).is_folder():
        try:
            verb = json.loads((root / UNFINISHED / "job.json").read_all(MAX_MANIFEST))["verb"]
        except (PicstoreError, ValueError, RecursionError, KeyError, TypeError):
            verb = "convert"  # killed while it wrote the job down
        remedy = "run the same command with --resume" if verb == "convert" else "remove it and run it again"
        return Unfinished(f"{root} is an unfinished {verb}; {remedy}")
    return NotADataset(f"{root} is not a picstore data set (it has no {MANIFEST}); make one with `picstore convert`")


def read_index(root: Where, manifest: Manifest) -> Table:
    """Read and check the index: ``layout.INDEX_ROW`` (containers,) in stored order."""
    path = locate(root) / (INDEX if manifest.edits is None else manifest.edits.index)
    try:
        rows = load_index(path)
    except NotADataset as error:
        raise Damage("the index is missing; `picstore repair` writes it anew", place=str(path)) from error
    if len(rows) != manifest.containers:
        raise Corrupt(f"the index has {len(rows)} rows, the manifest {manifest.containers}", place=str(path))
    if crc32c(rows.tobytes()) != manifest.index_crc32c:
        raise Corrupt(
            "the index has another CRC than the manifest says; `picstore repair` writes it anew", place=str(path)
        )
    return rows


def load_index(path: Location) -> Table:
    """Read an index by itself; NotADataset, Damage or UnsupportedVersion as their names say."""
    place = str(path)
    first = read_at(path, 0, min(SEALED, path.size()), place=place)
    header = IndexHeader.unpack(first, place=place, offset=0)
    check_version(header.version, place)
    if header.row_size != INDEX_ROW.itemsize:
        raise Corrupt(f"the index has rows of {header.row_size} bytes", place=place)
    if header.rows * INDEX_ROW.itemsize > MAX_FILE:
        raise TooLarge(f"the index has {header.rows} rows", place=place)
    raw = read_at(path, SEALED, header.rows * INDEX_ROW.itemsize, place=place)
    if crc32c(raw) != header.rows_crc:
        raise Corrupt("the index fails its CRC; `picstore repair` writes it anew", place=place, offset=SEALED)
    rows = np.frombuffer(raw, dtype=INDEX_ROW)
    check_rows(rows, place=place)
    return rows
