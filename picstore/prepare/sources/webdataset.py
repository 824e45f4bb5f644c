"""WebDataset as a source: tars in which adjacent members with one key form a sample.

The key is the path up to the first dot of its last part; the rest is the field (webdataset's ``base_plus_ext``).
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import Any

from picstore.errors import Damage
from picstore.prepare.engine.processes import Engine
from picstore.prepare.sources.base import SourceFormat, SourceProbe
from picstore.prepare.sources.fields import Label, SkippedFields, to_label
from picstore.prepare.sources.file_patterns import shard_files
from picstore.prepare.sources.inputs import Input, Listing
from picstore.prepare.sources.json_stream import json_object
from picstore.prepare.sources.parts import FoundPart, list_parts
from picstore.prepare.sources.samples import SourceSample, end_at_damage
from picstore.prepare.sources.source_file import SourceFile, printable
from picstore.prepare.sources.tars import Member, members_of
from picstore.storage.format.record import MAX_EXTRA
from picstore.storage.location.resolve import Location

IMAGES = frozenset(
    ("jpg", "jpeg", "jpe", "jfif", "png", "webp", "gif", "bmp", "tif", "tiff", "ppm", "pgm", "pbm", "pnm")
) | {"avif", "heic", "heif", "jxl", "jp2", "exr", "dds", "tga", "image", "img"}
_LABELS = ("cls", "cls2", "class")
_TEXTS = frozenset(("txt", "text", "transcript", "id", "index", "inx", "count", *_LABELS))
_PROBED_MEMBERS = 64  # to tell a WebDataset from a tar of images


def list_webdataset(location: Location, *, engine: Engine | None = None) -> Listing:
    """List samples of a tar, of all tars in a folder, or of tars named by braces (``train-{000..146}.tar``).

    The first image of a sample is its image; further ones, and fields .bin, become attachments: ``seg.png`` is ``seg``.
    ``cls`` is the label, an integer or a name; without it ``label`` of the JSON is. JSON objects and texts become the
    extra; all other fields, pickles among them, are skipped.
    """
    found = list_parts(_list_tar, list(shard_files(location, ".tar")), engine)
    skipped = SkippedFields({what: count for what, (count, _) in found.notes.items()})
    return found.build("webdataset", remarks=skipped.remarks())


def _list_tar(tar: Location) -> FoundPart:
    skipped = SkippedFields()
    samples = list(end_at_damage(_samples(tar, skipped), tar))
    return FoundPart(samples, {what: (count, "") for what, count in skipped.items()})


def split_name(name: str) -> tuple[str, str]:
    """Key and field of a member's name; the field is empty if the name has no dot."""
    folder, slash, last = name.rpartition("/")
    base, _, field = last.partition(".")
    return folder + slash + base, field.lower()


def _samples(tar: Location, skipped: SkippedFields) -> Iterator[SourceSample]:
    with SourceFile(tar) as file:
        # Members of macOS (._x) and of webdataset itself (__index__) are no samples.
        members = (m for m in members_of(str(tar)) if not os.path.basename(m.name).startswith(("._", "__")))  # noqa: PTH119
        # A tar that breaks off loses its last sample, whose label may be missing.
        for key, group in itertools.groupby(members, key=lambda member: split_name(member.name)[0]):
            yield _sample(file, key, list(group), skipped)


def _sample(file: SourceFile, key: str, members: list[Member], skipped: SkippedFields) -> SourceSample:
    tar = file.name
    fields = {split_name(member.name)[1]: member for member in members}
    images = [field for field in fields if field.rpartition(".")[2] in IMAGES or field.endswith(".bin")]
    images.sort(key=lambda field: ("." in field, field.endswith(".bin")))  # jpg before seg.png
    extra: dict[str, Any] = {}
    for field, member in fields.items():
        if field not in images and not _read_field(file, field, member, extra):
            skipped[f"field .{printable(field)}"] += 1
    label = _pop_label(extra)
    if not images or images[0].endswith(".bin"):
        listed = ", ".join(f".{printable(field)}" for field in fields)
        return SourceSample(printable(f"{tar}/{key}"), file.path, problem=f"no image among {listed}")
    image, *others = (fields[field] for field in images)
    named = [field.rpartition(".")[0] or field for field in images[1:]]
    named = named if len(set(named)) == len(named) else images[1:]
    attachments = tuple(
        (printable(field), Input(printable(f"{tar}/{member.name}"), -1, file.path, member.offset_data, member.size))
        for field, member in zip(named, others, strict=True)
    )
    name = printable(f"{tar}/{image.name}")
    return SourceSample(name, file.path, image.offset_data, image.size, label, extra, attachments=attachments)


def _read_field(file: SourceFile, field: str, member: Member, extra: dict[str, Any]) -> bool:
    """Put a text or JSON object into the extra; returns False for any other field."""
    if member.size > MAX_EXTRA:
        return False
    if field in ("json", "jsn"):
        value = json_object(file.read(member.offset_data, member.size))
        if value is not None:
            extra.update(value)
        return value is not None
    if field in _TEXTS:
        text = file.read(member.offset_data, member.size).decode("utf-8", "backslashreplace")
        extra[field] = text.strip() if field in _LABELS else text
        return True
    return False


def _pop_label(extra: dict[str, Any]) -> Label:
    for field in _LABELS:
        if field in extra:
            return to_label(extra.pop(field) or None)
    label = extra.get("label")
    return label if isinstance(label, (int, str)) and not isinstance(label, bool) else None


def recognizes(probe: SourceProbe) -> bool:
    """Whether it is a tar or a folder of tars whose first members share keys, or a name with braces."""
    if "{" in probe.location.name and not probe.location.exists():
        return probe.location.name.endswith(".tar")
    if not probe.is_folder:
        return probe.head()[257:262] == b"ustar"
    tars = probe.files_ending(".tar")
    return bool(tars) and _has_pairs(probe.location / tars[0])


def _has_pairs(tar: Location) -> bool:
    """Whether adjacent members share a key among the first of a tar."""
    try:
        keys = [split_name(member.name)[0] for member in itertools.islice(members_of(str(tar)), _PROBED_MEMBERS)]
    except Damage:
        return False
    return any(one == other for one, other in itertools.pairwise(keys))


FORMAT = SourceFormat(list_webdataset, recognizes=recognizes, object_stores=True, takes_engine=True)
