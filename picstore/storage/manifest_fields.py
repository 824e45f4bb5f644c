"""Types and bounds of the manifest's fields, in one table (docs/format.md, "Manifest"; docs/manifest.schema.json)."""

from __future__ import annotations

from picstore.storage.format.layout import MAX_ATTACHMENTS, MAX_FILE
from picstore.storage.json_types import Check, closed_object, integer, list_of, open_object, optional, text
from picstore.storage.location.resolve import EDITS, INDEX

UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"

_U32 = integer(0, (1 << 32) - 1)
_COUNT = integer(0, MAX_FILE)
_UUID = text(UUID, "a uuid of version 8 in lower case")

_FILE = closed_object({"stream": _U32, "file": _U32, "bytes": _COUNT, "records": _COUNT, "crc32c": _U32})
_NPY_FILE = closed_object(
    {
        "file": text(rf"{EDITS}/[0-9a-f]{{16}}\.npy", "the name of a .npy file"),
        "bytes": integer(1, MAX_FILE),
        "crc32c": _U32,
    }
)
_COLUMN = closed_object(
    {
        "name": text(r"(?s).+", "a name"),
        "kind": text("numbers|text", "'numbers' or 'text'"),
        "ids": _NPY_FILE,
        "values": _NPY_FILE,
        "ends": optional(_NPY_FILE),
    }
)
_EDITS = closed_object(
    {
        "index": text(rf"{INDEX.replace('.', '[.]')}|{EDITS}/[0-9a-f]{{16}}\.idx", "the name of an index"),
        "deleted": _COUNT,
        "tombstones": optional(_NPY_FILE),
        "columns": list_of(_COLUMN),
    }
)
_ENCODE = open_object({"resize": optional(text()), "quality": integer(1, 100), "subsampling": text()})
_OUTCOME = open_object(
    {"source_bytes": _COUNT, "jpeg_bytes": _COUNT},
    dict.fromkeys(("lossless", "reencoded", "failed", "duplicate"), _COUNT),
)
_PROVENANCE = open_object(
    {},
    {
        "picstore": text(),
        "source": text(),
        "inputs": _COUNT,
        "outcome": optional(_OUTCOME),
        "appended": list_of(open_object({"inputs": _COUNT})),
        "shape": open_object({}),
    },
)
_REFERENCES = closed_object({"root": text(r"(?s).+", "a path or URL"), "foreign": _COUNT})
_FIELDS: dict[str, Check] = {
    "uuid": _UUID,
    "images": _COUNT,
    "bytes": _COUNT,
    "streams": _U32,
    "containers": _COUNT,
    "container_size": _COUNT,
    "classes": list_of(text()),
    "attachments": list_of(text(), MAX_ATTACHMENTS),
    "encode": optional(_ENCODE),
    "provenance": _PROVENANCE,
    "shuffle": list_of(open_object({"method": text(), "seed": integer(), "parent": _UUID})),
    "index_crc32c": _U32,
    "files": list_of(_FILE),
}
check_plain = closed_object(_FIELDS)
check_edited = closed_object({**_FIELDS, "edits": _EDITS})
check_referring = closed_object({**_FIELDS, "edits": optional(_EDITS), "references": _REFERENCES})
