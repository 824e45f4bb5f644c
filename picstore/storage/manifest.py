"""Manifest ``picstore.json``: its fields, JSON text and uuid, and reading it (docs/format.md, "Manifest").

``manifest_writer`` writes and replaces the manifest and its copy.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from picstore.arrays import Table
from picstore.errors import (
    Corrupt,
    Damage,
    NotADataset,
    PicstoreError,
    TooLarge,
    Truncated,
    Unfinished,
    UsageError,
    counted,
)
from picstore.storage.edits.edit_entries import Edits
from picstore.storage.format.checksum import crc32c
from picstore.storage.format.container_index import read_index_file
from picstore.storage.format.layout import (
    EDITED_VERSION,
    FORMAT_VERSION,
    MAX_MANIFEST,
    REFERENCES_VERSION,
    check_version,
)
from picstore.storage.format.maps import PREFIX, MapSpec
from picstore.storage.location.resolve import COPY, EDITS, INDEX, MANIFEST, UNFINISHED, Location, Where, locate
from picstore.storage.manifest_fields import UUID, MalformedJson, check_edited, check_plain, check_referring

_RESUMABLE = ("convert", "index")  # verbs that have the option --resume
_CHECKS = {FORMAT_VERSION: check_plain, EDITED_VERSION: check_edited, REFERENCES_VERSION: check_referring}


@dataclass(frozen=True, slots=True)
class FileEntry:
    """File of a dataset as the manifest lists it; ``crc32c`` is the CRC-32C of the file's footer."""

    stream: int
    file: int
    bytes: int
    records: int
    crc32c: int


@dataclass(frozen=True, slots=True)
class References:
    """Folder of an index's images, as a path or URL, and the number of these images that are not upright JPEGs."""

    root: str
    foreign: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Description of a dataset (docs/format.md). Only an edited dataset has ``edits``, only an index ``references``."""

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
    references: References | None = None

    @property
    def format_version(self) -> int:
        """Lowest format version whose manifests have all fields that this manifest sets."""
        if self.references is not None:
            return REFERENCES_VERSION
        return FORMAT_VERSION if self.edits is None else EDITED_VERSION

    @property
    def maps(self) -> dict[str, MapSpec]:
        """Specifications of the attachments that are maps, by attachment name, such as ``map:depth``."""
        entries = self.provenance.get("maps", {})
        return {PREFIX + name: MapSpec.from_json(entry) for name, entry in entries.items()}

    @property
    def images_left(self) -> int:
        """Number of images that are not deleted."""
        return self.images - (0 if self.edits is None else self.edits.deleted)


def with_uuid(manifest: Manifest, rows: Table) -> Manifest:
    """Return the manifest with its uuid set to a hash of its fields and of the index's rows; empty edits become None.

    Raise UsageError if a field's value is of a wrong type or out of range.
    """
    edits = None if manifest.edits == Edits() else manifest.edits
    bare = replace(manifest, uuid="", edits=edits)
    # Convert to JSON and back, because a manifest that was read has lists in place of tuples, and only strings as keys.
    body = json.loads(json.dumps(_body(bare)))
    try:
        return _parse_fields({**body, "uuid": _content_uuid(body, rows)}, bare.format_version)
    except MalformedJson as error:
        raise UsageError(f"the manifest cannot be written: {error}") from error


def _content_uuid(body: dict[str, Any], rows: Table) -> str:
    """Compute the uuid from the index's rows and from a manifest's fields, in which ``uuid`` is empty."""
    # Hash the rows' memory without a copy, because the index of 5 × 10**9 images has 760 MB of rows.
    digest = hashlib.sha256(rows.view(np.uint8).data)
    digest.update(_canonical(body))
    bits = bytearray(digest.digest()[:16])
    bits[6] = bits[6] & 0x0F | 0x80  # mark of a UUID of version 8, for custom rules (RFC 9562, section 5.8)
    bits[8] = bits[8] & 0x3F | 0x80
    return str(uuid.UUID(bytes=bytes(bits)))


def uuid_of_containers(manifest: Manifest, rows: Table) -> str:
    """Return the uuid that the manifest would have without deletions and columns, as these change no container."""
    if manifest.edits is None:
        return manifest.uuid
    return with_uuid(replace(manifest, edits=Edits(index=manifest.edits.index)), rows).uuid


def _canonical(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=True, sort_keys=True, separators=(",", ":")).encode()


def _body(manifest: Manifest) -> dict[str, Any]:
    """Return a manifest's fields as JSON values, without the fields that its format version lacks."""
    body = asdict(replace(manifest, files=()))
    body["files"] = [{name: getattr(entry, name) for name in FileEntry.__slots__} for entry in manifest.files]
    if manifest.references is None:
        del body["references"]
        if manifest.edits is None:
            del body["edits"]
    return body


def manifest_file(manifest: Manifest) -> bytes:
    """Serialize a manifest as JSON, with one line per field and per file, so that people can compare manifests."""
    document = {"format": "picstore", "format_version": manifest.format_version, **_body(manifest)}
    document["crc32c"] = crc32c(_canonical(document))
    lines = []
    for name, value in document.items():
        text = json.dumps(value)
        if name == "files" and value:
            text = "[\n  " + ",\n  ".join(json.dumps(entry) for entry in value) + "\n ]"
        lines.append(f" {json.dumps(name)}: {text}")
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def read_manifest(root: Where, version: str | None = None) -> Manifest:
    """Read and check the latest manifest of a dataset, or the manifest of the version whose uuid is ``version``.

    Raises:
        Unfinished: a conversion or shuffle into this folder has not ended.
        NotADataset: there is no manifest, or another program wrote the file.
        UsageError: the version does not exist.
        UnsupportedVersion: a later picstore wrote the manifest.
        Damage: the manifest is cut off, edited by hand or damaged.
    """
    root = locate(root)
    try:
        manifest = read_manifest_file(root / MANIFEST)
    except NotADataset:
        if (root / MANIFEST).is_file():
            raise
        raise _absence(root) from None
    if version in (None, manifest.uuid):
        return manifest
    path = root / EDITS / f"{version}.json"
    if not re.fullmatch(UUID, str(version)) or not path.is_file():
        raise UsageError(f"{root} has no version {version}; leave it out for the latest, {manifest.uuid}")
    earlier = read_manifest_file(path)
    if earlier.uuid != version:
        raise Corrupt(f"this is version {earlier.uuid}, misplaced; restore the file from a backup", str(path))
    return earlier


def read_manifest_file(path: Location) -> Manifest:
    """Read a manifest from ``picstore.json``, its copy, or the file of an earlier version.

    Raise NotADataset if the file is missing or too large; other errors: see :func:`parse_manifest`.
    """
    try:
        raw = path.read_all(MAX_MANIFEST)
    except TooLarge as error:
        raise NotADataset(f"{path} is larger than any picstore manifest; it belongs to another program") from error
    return parse_manifest(raw, path)


def parse_manifest(raw: bytes, path: Location) -> Manifest:
    """Parse and check the text of a manifest; ``path`` is its file, for messages.

    Raise NotADataset if another program wrote the JSON, UnsupportedVersion if a later picstore wrote the manifest,
    Truncated if the JSON is incomplete, and Corrupt if the CRC or a field is wrong.
    """
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise Truncated(f"the manifest is not whole JSON; {_remedy(path)}", file=str(path)) from error
    if not isinstance(document, dict) or document.get("format") != "picstore":
        raise NotADataset(f"{path} is not a picstore manifest; {path.parent} belongs to another program")
    version = document.get("format_version")
    if type(version) is not int:  # JSON's true is not a version, although True == 1.
        raise Corrupt("the manifest has no format_version", file=str(path))
    check_version(version, str(path), known=tuple(_CHECKS), read_by=document.get("read_by"))
    stored = document.pop("crc32c", None)
    if stored != crc32c(_canonical(document)):
        raise Corrupt(f"the manifest fails its CRC: it was edited or damaged; {_remedy(path)}", file=str(path))
    del document["format"], document["format_version"]
    try:
        return _parse_fields(document, version)
    except MalformedJson as error:
        raise Corrupt(f"the manifest does not have the fields of version {version}: {error}", str(path)) from error


def holds_crc(raw: bytes) -> bool:
    """Return whether bytes are a JSON object with a CRC of its other fields, as is a manifest of any version."""
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError):
        return False
    return isinstance(document, dict) and document.pop("crc32c", None) == crc32c(_canonical(document))


def _parse_fields(document: dict[str, Any], version: int) -> Manifest:
    _CHECKS[version](document)
    fields = dict(document)
    fields["files"] = tuple(FileEntry(**entry) for entry in fields["files"])
    for name in ("classes", "attachments", "shuffle"):
        fields[name] = tuple(fields[name])
    if fields.get("edits") is not None:
        fields["edits"] = Edits.parse(fields["edits"])
    if "references" in fields:
        fields["references"] = References(**fields["references"])
    return Manifest(**fields)


def _remedy(path: Location) -> str:
    if path.name == MANIFEST and (path.parent / COPY).is_file():
        return f"`picstore repair` restores it from {COPY}"
    return "restore it from a backup"


def _absence(root: Location) -> NotADataset:
    if not root.is_folder():
        if root.is_file():
            return NotADataset(f"{root} is a file; a picstore dataset is a directory")
        return NotADataset(f"{root} does not exist")
    verb = _unfinished_verb(root)
    # An unfinished append is not why the manifest is missing, because `append` never removes a manifest.
    if verb not in (None, "append"):
        remedy = "run the same command with --resume" if verb in _RESUMABLE else "remove it and run it again"
        return Unfinished(f"{root} is an unfinished {verb}; {remedy}")
    if (root / COPY).is_file():
        return NotADataset(f"{root} has lost its {MANIFEST}; `picstore repair` restores it from {COPY}")
    return NotADataset(f"{root} is not a picstore dataset (it has no {MANIFEST}); make one with `picstore convert`")


def _unfinished_verb(root: Location) -> str | None:
    if not (root / UNFINISHED).is_folder():
        return None
    try:
        return str(json.loads((root / UNFINISHED / "job.json").read_all(MAX_MANIFEST))["verb"])
    except (PicstoreError, ValueError, RecursionError, KeyError, TypeError):
        return "convert"  # The job file is missing or incomplete, as if a conversion was killed while writing it.


def read_index(root: Where, manifest: Manifest) -> Table:
    """Read and check a dataset's index, ``layout.INDEX_ROW`` (containers,) in stored order.

    Call this function before using the manifest's uuid as a cache key, because only this function checks that the uuid
    is the hash of manifest and index.

    Raises:
        Damage: the index is missing or damaged, or does not match the manifest, or the uuid is wrong.
        UnsupportedVersion: a later picstore wrote the index.
    """
    path = locate(root) / (INDEX if manifest.edits is None else manifest.edits.index)
    try:
        rows = read_index_file(path)
    except NotADataset as error:
        raise Damage("the index is missing; `picstore repair` rebuilds it", file=str(path)) from error
    if len(rows) != manifest.containers:
        raise Corrupt(f"the index has {counted(len(rows), 'row')}, the manifest {manifest.containers}", file=str(path))
    if crc32c(rows.view(np.uint8)) != manifest.index_crc32c:
        raise Corrupt("the index has another CRC than the manifest says; `picstore repair` rebuilds it", str(path))
    if _content_uuid(_body(replace(manifest, uuid="")), rows) != manifest.uuid:
        text = f"the manifest's uuid {manifest.uuid} contradicts its content: no picstore wrote it"
        raise Corrupt(text, str(locate(root) / MANIFEST))
    return rows
