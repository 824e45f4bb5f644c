"""What is left of a damaged manifest: its fields, one by one if need be, and what edits of it can be checked."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from typing import Any

from picstore.errors import Corrupt, PicstoreError
from picstore.prepare.convert import ledger
from picstore.prepare.image.settings import EncodeSettings
from picstore.storage.edits.manifest_entries import ColumnEntry, Edits
from picstore.storage.edits.npy_files import Part, parse_part
from picstore.storage.format.checksum import crc32c
from picstore.storage.format.layout import ALIGNMENT, FORMAT_VERSION, MAX_CONTAINER, MAX_MANIFEST
from picstore.storage.location.resolve import EDITS, INDEX, LEDGER, MANIFEST, Location
from picstore.storage.manifest import canonical

Fields = dict[str, Any]

_SEPARATOR = re.compile(rb'",."|., "|", .|". "')  # of two names, with any one of its bytes damaged
_LINE = re.compile(r'^ ?("\w+"): ([^\ufffd]*?),?$', re.MULTILINE)  # as manifest_file lays fields out


def salvage(raw: bytes) -> Fields:
    """The fields of a damaged manifest that can still be read as JSON, one by one if need be."""
    with suppress(ValueError, RecursionError):
        document = json.loads(raw)
        if isinstance(document, dict):
            return document
    found: Fields = {}
    for match in _LINE.finditer(raw.decode("utf-8", "replace")):
        with suppress(ValueError, RecursionError):
            found[json.loads(match[1])] = json.loads(match[2])
    return found


def holds_crc(document: Fields) -> bool:
    """Whether these are all fields of a manifest, as they were written."""
    rest = {name: value for name, value in document.items() if name != "crc32c"}
    return document.get("crc32c") == crc32c(canonical(rest))


def mend_bit(document: Fields, raw: bytes, crc: Any) -> Fields | None:
    """A manifest's fields with the one bit flipped that makes them hold its CRC; None where there is no such bit.

    Names of classes and attachments are taken as they stand in the file, so that they need not be JSON any more. The
    result has a CRC that was searched for, so only its uuid can say whether it is right.

    Args:
        document: all fields but the CRC, of which those that can be counted are right.
        raw: the damaged file.
    """
    texts = {name: canonical(value) for name, value in document.items()}
    for name in (b"classes", b"attachments"):
        if match := re.search(rb'^ "%s": (.*?),?$' % name, raw, re.MULTILINE):
            texts[name.decode()] = _SEPARATOR.sub(_without_space, match[1])
    text = bytearray(b"{" + b",".join(canonical(name) + b":" + texts[name] for name in sorted(texts)) + b"}")
    # A flipped bit changes a CRC by what does not depend on the other bits: that of the last byte is looked up, and
    # each byte behind it is a step, which can be gone backwards from the difference that there is.
    table = [crc32c(bytes([byte])) ^ crc32c(b"\0") for byte in range(256)]
    of_last = {table[1 << bit]: 1 << bit for bit in range(8)}
    before = {value >> 24: byte for byte, value in enumerate(table)}
    if type(crc) is not int:
        return None
    difference = crc32c(text) ^ crc
    for at in reversed(range(len(text))):
        if difference in (0, *of_last):  # 0 where it was a space between names
            text[at] ^= of_last.get(difference, 0)
            with suppress(ValueError, RecursionError, TypeError):
                return _object(_in_order(json.loads(text), document))
            return None
        byte = before[difference >> 24 & 0xFF]
        difference = (difference ^ table[byte]) << 8 & 0xFFFFFF00 | byte
    return None


def _without_space(separator: re.Match[bytes]) -> bytes:
    text = separator[0]
    return text.replace(b" ", b"") if b" " in text else text[:2] + text[3:]


def _in_order(value: Any, other: Any) -> Any:
    """The same value with the keys of objects in the order of another, which canonical JSON has lost."""
    if not isinstance(value, dict) or not isinstance(other, dict):
        return value
    names = [name for name in other if name in value]
    return {
        name: _in_order(value[name], other.get(name))
        for name in [*names, *(name for name in value if name not in other)]
    }


def earlier_versions(root: Location) -> Iterator[Fields]:
    """What the manifests of before it was edited say."""
    for name, _ in sorted((root / EDITS).files()):
        if name.endswith(".json"):
            with suppress(PicstoreError):
                document = salvage((root / EDITS / name).read_all(MAX_MANIFEST))
                if holds_crc(document):
                    yield document


def provenances_by_ledger(root: Location, known: list[Fields]) -> list[Fields]:
    """The provenances with what the ledger says."""
    tally = ledger.Tally()
    try:
        for line in ledger.read_lines(root / LEDGER):
            tally.add(line)
    except (PicstoreError, ValueError, TypeError):
        return []
    counts = {"inputs": tally.inputs, "outcome": tally.outcome()}
    return [{**each, **counts} for each in known if "appended" not in each]


def edits_of(root: Location, left: Fields, index: str | None) -> Edits | None:
    """What was edited; Corrupt where that cannot be known, as deleted records would come back."""
    names = [name for name, _ in (root / EDITS).files()]
    if not names:
        return None
    if "edits" not in left and left.get("format_version") == FORMAT_VERSION:
        return None
    with suppress(KeyError, TypeError, ValueError, PicstoreError):
        document = left["edits"]
        gone = document["tombstones"]
        tombstones = None if gone is None else _part(root, gone)
        deleted = 0 if tombstones is None else len(parse_part(_bytes(root, tombstones.file), place=tombstones.file))
        columns = tuple(_column(root, entry) for entry in document["columns"])
        return Edits(
            index=index or Edits.parse(document).index, deleted=deleted, tombstones=tombstones, columns=columns
        )
    if any(name.endswith(".npy") for name in names):
        text = (
            "what was deleted and attached cannot be told any more; restore the manifest from a copy, "
            f"or remove the .npy files in {EDITS} to have all records as they were"
        )
        raise Corrupt(text, str(root / MANIFEST))
    return Edits(index=index or INDEX)


def _bytes(root: Location, name: str) -> bytes:
    return (root / name).read_all(MAX_MANIFEST)


def _part(root: Location, document: Mapping[str, Any]) -> Part:
    """A part by its file, whose name is a digest of it; ValueError where it is not."""
    name = Part.parse({**document, "bytes": 0}).file
    raw = _bytes(root, name)
    if name != f"{EDITS}/{sha256(raw).hexdigest()[:16]}.npy":
        raise ValueError(f"{name} is damaged")
    return Part(name, len(raw), crc32c(raw))


def _column(root: Location, entry: Mapping[str, Any]) -> ColumnEntry:
    ends = entry["ends"]
    return ColumnEntry(
        name=str(entry["name"]),
        kind="numbers" if ends is None else "text",
        ids=_part(root, entry["ids"]),
        values=_part(root, entry["values"]),
        ends=None if ends is None else _part(root, ends),
    )


def _whole(low: int, high: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            raise ValueError(value)
        return value

    return read


def _names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise TypeError(value)
    return tuple(value)


def _object(value: Any) -> Fields:
    if not isinstance(value, dict):
        raise TypeError(value)
    return value


def _settings(value: Any) -> Fields | None:
    if value is None:
        return None
    EncodeSettings.from_json(_object(value))
    return _object(value)


def _objects(value: Any) -> tuple[Fields, ...]:
    if not isinstance(value, list):
        raise TypeError(value)
    return tuple(map(_object, value))


# The fields that cannot be counted, each with what checks a value that is found.
KEPT: dict[str, Callable[[Any], Any]] = {
    "streams": _whole(1, 9999),
    "container_size": _whole(ALIGNMENT, MAX_CONTAINER),
    "classes": _names,
    "attachments": _names,
    "encode": _settings,
    "provenance": _object,
    "shuffle": _objects,
}
