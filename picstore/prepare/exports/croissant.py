"""Croissant 1.1 metadata of a dataset or an export: its files, fields and origin, as JSON-LD.

The specification is at https://docs.mlcommons.org/croissant/docs/croissant-spec-1.1.html.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any

from picstore.display.progress import Progress, begin_stage, progress_callback
from picstore.errors import UsageError, counted
from picstore.storage.dataset import Dataset
from picstore.storage.edits.columns import LABEL, Column
from picstore.storage.edits.edit_entries import Edits
from picstore.storage.location.resolve import (
    LEDGER,
    MANIFEST,
    Location,
    Where,
    file_name,
    locate_output,
    map_concurrently,
)

CROISSANT = "croissant.json"
_MAX_FILE = 1 << 26  # largest number of bytes of an existing Croissant file, which is read to keep some of its fields
_CHUNK = 8 << 20

_TERMS = (
    "arrayShape citeAs column containedIn equivalentProperty extract field fileProperty fileObject fileSet format "
    "includes isArray isLiveDataset jsonPath key md5 parentField path recordSet references regex repeated replace "
    "samplingRate separator source subField transform"
)
_CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "sc": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "dct": "http://purl.org/dc/terms/",
    "prov": "http://www.w3.org/ns/prov#",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "name": {"@container": "@language"},
    "description": {"@container": "@language"},
    **{term: f"cr:{term}" for term in _TERMS.split()},
}
_ENCODINGS = {
    ".json": "application/json",
    ".jsonl": "application/jsonlines",
    ".tar": "application/x-tar",
    ".parquet": "application/x-parquet",
}
_TYPES = {"int64": "cr:Int64", "float16": "cr:Float16", "float32": "cr:Float32", "float64": "cr:Float64"}
_SOURCE = {"fileSet": {"@id": "files"}}


def write_dataset_croissant(dataset: Dataset, out: Where, progress: Progress | None = None) -> str:
    """Describe a saved dataset in the Croissant file ``out``, and return the file's path or URL.

    All files of the dataset are read to compute their SHA-256. If ``out`` exists, its name and description are kept,
    and all fields that picstore does not write, such as license and creator.

    Raises:
        UsageError: the dataset is a selection or joined, or has unsaved edits; or ``out`` exists and is not JSON-LD.
        NotADataset: a file of the dataset is missing.
    """
    root, manifest = dataset.path, dataset.manifest
    if not isinstance(root, Location) or not dataset.is_saved or len(dataset) != manifest.images_left:
        raise UsageError(f"{root} is not a whole saved dataset; save the edits, or write them by `picstore shuffle`")
    target, edits = locate_output(out), manifest.edits or Edits()
    names = [MANIFEST, edits.index, *(file_name(each.stream, each.file) for each in manifest.files)]
    names += [each.file for each in edits.npy_files]
    names += [LEDGER] if (root / LEDGER).is_file() else []
    base = "" if str(target.absolute().parent) == str(root.absolute()) else f"{root.absolute()}/"
    begin_stage(progress, "hashing", len(names))
    fields = [_field(name, kind, {**_SOURCE, "extract": {"column": name}}) for name, kind in _record_fields(dataset)]
    images = {
        "@type": "cr:FileSet",
        "@id": "files",
        "description": "Containers of records; picstore reads them: docs/format.md of the package describes the bytes.",
        "encodingFormat": "application/octet-stream",
        "includes": "*/*.pic",
    }
    files = [*list_files(root, dict.fromkeys(names), base=base, progress=progress), images]
    _write(target, _document(dataset, str(root.absolute().name), files, fields))
    return str(target)


def write_export_croissant(dataset: Dataset, folder: Location, form: str) -> None:
    """Write a Croissant file that describes an export into the export's folder.

    The file lists shards and tables with their SHA-256, but only a path pattern for images that are single files. The
    dataset's name in the file begins with ``picstore-`` and the start of the dataset's uuid, so that equal datasets
    give equal files.
    """
    name = f"picstore-{dataset.uuid[:8]}"
    names = sorted(each for each, _ in folder.files() if form != "folder" or "/" not in each)
    column = {"image": {"transform": {"jsonPath": "bytes"}}} if form == "parquet" else {}
    content: dict[str, Any] = {"extract": {"fileProperty": "content"}}
    sources = {each: {"extract": {"column": each}, **column.get(each, {})} for each in ("image", "label", "extra")}
    pattern, encoding, inside = "data/*.parquet", _ENCODINGS[".parquet"], None
    if form == "mds":
        pattern, encoding = "*.mds*", "application/octet-stream"
    elif form != "parquet":
        pattern, encoding, sources = ("*/*.jpg" if form == "folder" else "*.jpg"), "image/jpeg", {"image": content}
        inside = [each for each in names if each.endswith(".tar")]
    held: dict[str, Any] = {"@type": "cr:FileSet", "@id": "files", "encodingFormat": encoding, "includes": pattern}
    if inside:
        held["containedIn"] = [{"@id": each} for each in inside]
    kinds = {"image": "sc:ImageObject", "label": "cr:Int64", "extra": "sc:Text"}
    fields = [_field(each, {"dataType": kinds[each]}, {**_SOURCE, **source}) for each, source in sources.items()]
    _write(locate_output(str(folder / CROISSANT)), _document(dataset, name, [*list_files(folder, names), held], fields))


def list_files(
    root: Location, names: Iterable[str], *, base: str = "", progress: Progress | None = None
) -> list[dict[str, Any]]:
    """Return a Croissant FileObject for each file, with size and SHA-256; raise NotADataset if a file is missing."""
    on_progress = progress_callback(progress)

    def describe(name: str) -> dict[str, Any]:
        size, sha256 = _hash(root / name)
        on_progress(1)
        encoding = _ENCODINGS.get(PurePosixPath(name).suffix, "application/octet-stream")
        if PurePosixPath(name).suffix in (".txt", ".md"):
            encoding = "text/plain"
        return {
            "@type": "cr:FileObject",
            "@id": name,
            "name": name,
            "contentUrl": base + name,
            "contentSize": f"{size} B",
            "encodingFormat": encoding,
            "sha256": sha256,
        }

    return list(map_concurrently(describe, names))


def _hash(file: Location) -> tuple[int, str]:
    size, digest = file.size(), hashlib.sha256()
    for offset in range(0, size, _CHUNK):
        digest.update(file.read(offset, min(_CHUNK, size - offset), file=str(file)))
    return size, digest.hexdigest()


def _record_fields(dataset: Dataset) -> list[tuple[str, dict[str, Any]]]:
    label: dict[str, Any] = {"dataType": ["cr:Int64", "cr:Label"]}
    if dataset.classes:
        label["references"] = {"field": {"@id": "classes/label"}}
    fields: list[tuple[str, dict[str, Any]]] = [
        ("id", {"dataType": "cr:Int64"}),
        ("image", {"dataType": "sc:ImageObject"}),
        ("label", label),
    ]
    fields += [("extra", {"dataType": "sc:Text", "description": "A JSON object from the source."})]
    fields += [(name, {"dataType": "sc:Text"}) for name in dataset.manifest.attachments]
    return fields + [(name, _column_type(dataset.column(name))) for name in dataset.columns if name != LABEL]


def _column_type(column: Column) -> dict[str, Any]:
    if column.ends is not None:
        return {"dataType": "sc:Text"}
    kind: dict[str, Any] = {"dataType": _TYPES[column.values.dtype.name]}
    if column.values.ndim > 1:
        kind |= {"isArray": True, "arrayShape": ",".join(map(str, column.values.shape[1:]))}
    return kind


def _field(name: str, kind: Mapping[str, Any], source: Mapping[str, Any]) -> dict[str, Any]:
    return {"@type": "cr:Field", "@id": f"records/{name}", "name": name, **kind, "source": dict(source)}


def _document(dataset: Dataset, name: str, files: list[dict[str, Any]], fields: list[dict[str, Any]]) -> dict[str, Any]:
    manifest, sets = dataset.manifest, [{"@type": "cr:RecordSet", "@id": "records", "name": "records", "field": fields}]
    if dataset.classes:
        sets.append(_class_set(dataset.classes))
    origin = dict(manifest.provenance)
    activity = {"options": {**origin, "encode": manifest.encode, "shuffle": list(manifest.shuffle)}}
    outcome = origin.get("outcome") or {}
    statuses = ", ".join(f"{count:,} {status}" for status, count in outcome.items() if not status.endswith("_bytes"))
    return {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.1",
        "name": name,
        "description": counted(len(dataset), "image")
        + (f" of {counted(len(dataset.classes), 'class')}." if dataset.classes else "."),
        "identifier": f"urn:uuid:{manifest.uuid}",
        "prov:wasDerivedFrom": {"@type": "prov:Entity", "prov:label": str(origin.get("source", "unknown"))},
        "prov:wasGeneratedBy": {
            "@type": "prov:Activity",
            "prov:label": f"picstore {origin.get('picstore', '')}" + (f": {statuses}" if statuses else ""),
            "prov:value": json.dumps(activity, sort_keys=True),
        },
        "distribution": files,
        "recordSet": sets,
    }


def _class_set(classes: list[str]) -> dict[str, Any]:
    fields = [("label", "cr:Int64"), ("name", "sc:Text")]
    return {
        "@type": "cr:RecordSet",
        "@id": "classes",
        "name": "classes",
        "dataType": "sc:Enumeration",
        "key": {"@id": "classes/label"},
        "field": [
            {"@type": "cr:Field", "@id": f"classes/{name}", "name": name, "dataType": kind} for name, kind in fields
        ],
        "data": [{"classes/label": label, "classes/name": name} for label, name in enumerate(classes)],
    }


def _write(target: Any, document: dict[str, Any]) -> None:
    earlier: Any = {}
    if target.is_file():
        try:
            earlier = json.loads(target.read_all(_MAX_FILE))
        except ValueError as error:
            raise UsageError(f"{target} exists and is not JSON; choose another file") from error
        if not isinstance(earlier, dict) or "@context" not in earlier:
            raise UsageError(f"{target} exists and is not JSON-LD; choose another file")
    kept = {name: value for name, value in earlier.items() if name not in document or name in ("name", "description")}
    target.write(
        (json.dumps({**document, **kept}, indent=1, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")
    )
