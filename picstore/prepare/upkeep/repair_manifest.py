"""Making the manifest anew where it is damaged or missing.

What files and index say is counted from them. Of the rest there may be several candidates: what is left of the damaged
manifest, what earlier versions of the data set said, what follows from the ledger. The uuid is a digest of all of it,
so that of all combinations it tells the right one, and that nothing was lost.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import Any

from picstore.arrays import Table
from picstore.errors import Damage, NotADataset, PicstoreError, UnsupportedVersion, UsageError
from picstore.prepare.convert import ledger
from picstore.prepare.upkeep.parse_damaged import (
    KEPT,
    Fields,
    earlier_versions,
    edits_of,
    holds_crc,
    mend_bit,
    provenances_by_ledger,
    salvage,
)
from picstore.prepare.upkeep.repair_index import FILE, Found, attachments_in, entries_of, find_index, rows_of_files
from picstore.storage.dataset import Dataset
from picstore.storage.edits.manifest_entries import Edits
from picstore.storage.format.layout import ALIGNMENT, MAX_MANIFEST
from picstore.storage.location.resolve import LEDGER, MANIFEST, UNFINISHED, Location, file_name
from picstore.storage.manifest import Manifest, count, index_file, manifest_file, read_manifest, with_uuid

DAMAGED = f"{MANIFEST}.damaged"  # what a manifest that could not be restored in full is kept as
_COMBINATIONS = 200
_SHOWN = 5  # names in a remark


@dataclass(frozen=True, slots=True)
class Mended:
    """A manifest that was made anew.

    Attributes:
        remarks: what could not be restored, or not for certain; empty where it is what it was.
        index: whether the index had to be, too.
    """

    manifest: Manifest
    remarks: list[str]
    index: bool


def mend_manifest(root: Location, *, classes: Sequence[str] | None = None) -> Mended | None:
    """Write the manifest anew, and the index if need be; None where it is sound.

    Args:
        classes: names of the classes, instead of those that may be found.

    Raises:
        Unfinished, NotADataset: there is no data set here.
        UnsupportedVersion: it is one of a later picstore.
        Damage: too much is lost to say what belongs to the data set.
    """
    try:
        read_manifest(root)
    except (NotADataset, UnsupportedVersion, Damage) as error:
        raw = _read_whatever(root)
        if raw is None and (root / UNFINISHED).is_folder():
            raise
        left = salvage(raw or b"")
        if isinstance(error, UnsupportedVersion) and holds_crc(left):
            raise
        index, rows = find_index(root, left)
        if rows is None:
            rows = rows_of_files(root)
        if not len(rows) and index is None:
            raise  # it never was a data set
    else:
        return None
    return _mend(root, raw, left, (index, rows), classes)


def _mend(root: Location, raw: bytes | None, left: Fields, found: Found, classes: Sequence[str] | None) -> Mended:
    index, rows = found
    choice = _choose(root, left, found, classes)
    if not choice.certain:
        whole = _with_a_bit_mended(choice.manifest, raw, left)
        again = choice if whole is None else _choose(root, whole, found, classes)
        choice = again if again.certain else choice
    manifest = choice.manifest
    if index is None:
        (root / (manifest.edits or Edits()).index).write(index_file(rows))
    if raw is not None and not choice.certain:
        (root / DAMAGED).write(raw)
    (root / MANIFEST).write(manifest_file(manifest))
    if choice.certain:
        return Mended(manifest, [], index is None)
    if "classes" in choice.lost:
        manifest = with_uuid(replace(manifest, classes=classes_of_paths(Dataset(root))), rows)
        (root / MANIFEST).write(manifest_file(manifest))
    return Mended(manifest, [*_remarks(manifest, choice.lost, left), *_files_left_out(root, manifest)], index is None)


@dataclass(frozen=True, slots=True)
class _Choice:
    """A manifest made of candidates.

    Attributes:
        certain: whether it has the uuid or the CRC of before.
        lost: fields that had no candidates.
    """

    manifest: Manifest
    certain: bool
    lost: list[str]


def _choose(root: Location, left: Fields, found: Found, classes: Sequence[str] | None) -> _Choice:
    """The combination of candidates that is certain; where none is, the first of each."""
    _, rows = found
    candidates = _candidates(root, left, found)
    if classes is not None:
        candidates["classes"] = [tuple(classes)]
    lost = [name for name, values in candidates.items() if not values]
    candidates |= {name: [value] for name, value in _fallbacks(root, rows).items() if name in lost}
    files = entries_of(rows)
    manifests = (
        count(rows, files, **dict(zip(candidates, values, strict=True)))
        for values in islice(product(*candidates.values()), _COMBINATIONS)
    )
    first = next(manifests)
    for manifest in (first, *manifests):
        if manifest.uuid == left.get("uuid") or json.loads(manifest_file(manifest))["crc32c"] == left.get("crc32c"):
            return _Choice(manifest, True, lost)
    return _Choice(first, False, lost)


def _with_a_bit_mended(manifest: Manifest, raw: bytes | None, left: Fields) -> Fields | None:
    """All fields, one bit of which makes them hold the CRC of before. It was searched for: the uuid must decide."""
    document = json.loads(manifest_file(manifest)) | {"uuid": left.get("uuid")}
    del document["crc32c"]
    return mend_bit(document, raw or b"", left.get("crc32c"))


def _remarks(manifest: Manifest, lost: Sequence[str], left: Fields) -> list[str]:
    remarks = []
    for name in lost:
        value = getattr(manifest, name)
        if isinstance(value, tuple):
            value = ", ".join(map(str, value[:_SHOWN])) + (", …" if len(value) > _SHOWN else "")
        given = f"now {value}" if value else "left out"
        hint = "; --classes FILE gives others" if name == "classes" else ""
        remarks.append(f"{name}: lost, {given}{hint}")
    if "uuid" in left or "crc32c" in left:
        remarks.append(
            f"the uuid is another than before: what is left of {', '.join(sorted(KEPT.keys() - set(lost)))} may be "
            f"damaged too; the damaged manifest is kept as {DAMAGED}"
        )
    else:
        remarks.append("nothing is left that would tell whether this is all as it was")
    return remarks


def _files_left_out(root: Location, manifest: Manifest) -> list[str]:
    known = {file_name(entry.stream, entry.file) for entry in manifest.files}
    others = sorted(name for name, _ in root.files() if FILE.fullmatch(name) and name not in known)
    if not others:
        return []
    return [f"{len(others)} files are not in the index and were left out, the first is {others[0]}"]


def classes_of_paths(dataset: Dataset) -> tuple[str, ...]:
    """The first folder, or the tar, of the inputs of each label by the ledger; none unless that is one for each."""
    try:
        inputs = {line.id: line.input for line in ledger.read_lines(dataset.path / LEDGER)}
    except (PicstoreError, ValueError, TypeError):
        return ()
    names: dict[int, str] = {}
    for number in range(len(dataset.rows)):
        with suppress(NotADataset, Damage):  # of a file that is lost
            for id_, label in dataset.entries(number)[["id", "label"]].tolist():
                folder, _, rest = inputs.get(id_, "").partition("/")
                if not rest or names.setdefault(label, folder) != folder:
                    return ()
    if sorted(names) != list(range(len(names))) or len(set(names.values())) < len(names):
        return ()
    return tuple(names[label].removesuffix(".tar") for label in range(len(names)))


def _read_whatever(root: Location) -> bytes | None:
    """The manifest's bytes, None where there are none."""
    with suppress(PicstoreError):
        return (root / MANIFEST).read_all(MAX_MANIFEST)
    return None


def _candidates(root: Location, left: Fields, found: Found) -> dict[str, list[Any]]:
    """For each field that cannot be counted its possible values, the likeliest first, or none where it is lost."""
    index, rows = found
    sources = [left, *earlier_versions(root)]
    candidates = {name: [*_values(sources, name)] for name in KEPT}
    width, streams = attachments_in(root, rows), _streams_in(rows)
    shapes = [each["shape"] for each in candidates["provenance"] if isinstance(each.get("shape"), dict)]
    for name in ("streams", "container_size"):
        candidates[name] += _values(shapes, name)
    candidates["streams"] = [value for value in candidates["streams"] if value >= streams]
    candidates["attachments"] = [names for names in candidates["attachments"] if len(names) == width]
    if candidates["provenance"]:
        candidates["provenance"] += provenances_by_ledger(root, candidates["provenance"])
    candidates["edits"] = [edits_of(root, left, index)]
    return {name: _distinct(values) for name, values in candidates.items()}


def _values(sources: Sequence[Fields], name: str) -> Iterator[Any]:
    for source in sources:
        with suppress(KeyError, TypeError, ValueError, UsageError):
            yield KEPT[name](source[name])


def _fallbacks(root: Location, rows: Table) -> Fields:
    """What is put in the place of fields of which nothing is left."""
    return {
        "streams": _streams_in(rows),
        "container_size": int(rows["size"].max(initial=ALIGNMENT)),
        "classes": (),
        "attachments": tuple(f"attachment{k}" for k in range(attachments_in(root, rows))),
        "encode": None,
        "provenance": next(iter(provenances_by_ledger(root, [{}])), {}),
        "shuffle": (),
    }


def _streams_in(rows: Table) -> int:
    return 1 + int(rows["stream"].max(initial=0))


def _distinct(values: list[Any]) -> list[Any]:
    return [value for k, value in enumerate(values) if value not in values[:k]]
