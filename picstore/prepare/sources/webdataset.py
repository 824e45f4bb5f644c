"""WebDataset as a source: tars in which adjacent members with one key form a sample.

A member's key is its path up to the first dot in the file name; the rest is the field (webdataset's ``base_plus_ext``).
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from picstore.errors import Damage
from picstore.prepare.engine.worker_processes import Engine
from picstore.prepare.sources.inputs import Input, Listing
from picstore.prepare.sources.labels import InFolder, RowLabels
from picstore.prepare.sources.lenient_json import json_object
from picstore.prepare.sources.listing_builder import FoundPart, Notes, list_parts
from picstore.prepare.sources.lost_samples import end_at_damage
from picstore.prepare.sources.metadata import SkippedFields
from picstore.prepare.sources.samples import SourceSample
from picstore.prepare.sources.shard_files import (
    index_of_tar,
    missing_shards,
    names_beside,
    read_count,
    shard_files,
    stated_counts,
)
from picstore.prepare.sources.source_file import SourceFile, printable
from picstore.prepare.sources.source_kinds import SourceFormat, SourceProbe
from picstore.prepare.sources.splits import ALL, match_split, no_split, refuse, split_of_name, split_of_word
from picstore.prepare.sources.tar_members import Member, members_of
from picstore.storage.format.record import MAX_EXTRA
from picstore.storage.location.resolve import Location
from picstore.storage.location.text_files import text_of_file

IMAGES = frozenset(
    ("jpg", "jpeg", "jpe", "jfif", "png", "webp", "gif", "bmp", "tif", "tiff", "ppm", "pgm", "pbm", "pnm")
) | {"avif", "heic", "heif", "jxl", "jp2", "exr", "dds", "tga", "image", "img"}
_LABELS = ("cls", "cls2", "class")
_JSON = ("json", "jsn")
_TEXTS = frozenset(("txt", "text", "transcript", "id", "index", "inx", "count", *_LABELS))
_PROBED_MEMBERS = 64  # number of members to read to distinguish a WebDataset from a tar of images
# Prefixes of keys of ``notes``: the first precedes the name of a split, found among the folders in a tar; the second,
# the name of a field with a further image.
_SPLIT, _FURTHER = "split ", "further image "
_MAX_NAMED = 5  # largest number of fields that a message lists
# Largest size in bytes of a JSON object that is read. An extra that becomes too large leaves out its largest fields.
_MAX_JSON = 4 * MAX_EXTRA


def list_webdataset(
    location: Location,
    *,
    image_field: str | None = None,
    label_field: str | None = None,
    split: str | None = None,
    maps: Sequence[str] = (),
    engine: Engine | None = None,
) -> Listing:
    """List the samples of a tar, of a folder's tars, or of tars named by braces (``train-{000..146}.tar``).

    A sample's image is its field ``image_field``, by default its first image. Further images, fields ``.bin`` and those
    in ``maps`` become attachments; the field ``seg.png`` gives the attachment ``seg``. The label is ``cls``, or else
    ``label``, ``class``, … of the JSON. If no sample has a label, the folders in the tars are classes. JSON objects and
    texts become the extra; all other fields are skipped.

    If two fields of a sample have equal names, or names that differ only in case, each of its images becomes an input
    that fails.
    """
    files = shard_files(location, ".tar", split=ALL)
    in_folders = split not in (None, ALL) and not any(split_of_name(file.name) for file in files)
    if not in_folders:
        files = shard_files(location, ".tar", split=split)
    counts, names = stated_counts(location if location.is_folder() else location.parent), names_beside(location)
    if location.is_folder() and not in_folders:
        absent = sorted(counts.keys() - names)
        files += [
            location / name
            for name in absent
            if split in (None, ALL) or match_split(split, [split_of_name(name) or ""])
        ]
    image_field = None if image_field is None else image_field.lower().lstrip(".")
    fields = image_field, label_field, frozenset(maps)
    tars = [
        _Tar(file, *fields, split, None, None)
        if in_folders
        else _Tar(file, *fields, None, counts.get(file.name), index_of_tar(file, names))
        for file in files
    ]
    found = list_parts(_list_tar, tars, engine)
    splits = [what.removeprefix(_SPLIT) for what in found.notes if what.startswith(_SPLIT)]
    if in_folders and not len(found):
        raise no_split(str(split), [name for name in splits if name], location)
    # Refuse to mix splits. But if some samples are not in folders named like splits, all folders are taken for classes.
    if split is None and len(splits) > 1 and "" not in splits:
        refuse(splits, location)
    further = {what: note for what, note in found.notes.items() if what.startswith(_FURTHER)}
    counts = {what: count for what, (count, _) in found.notes.items() if not what.startswith((_FURTHER, _SPLIT))}
    absent_shards = missing_shards(file.name for file in files) if location.is_folder() else ()
    remarks = itertools.chain(_further_images(further), SkippedFields(counts).remarks(), absent_shards)
    return found.build("webdataset", where=location, remarks=remarks, labels=label_field)


def _further_images(notes: Notes) -> Iterator[str]:
    if notes:
        count, example = sum(count for count, _ in notes.values()), min(example for _, example in notes.values())
        fields = sorted(what.removeprefix(_FURTHER) for what in notes)
        names = ", ".join(f".{field}" for field in fields[:_MAX_NAMED]) + ", …" * (len(fields) > _MAX_NAMED)
        became = "1 image is an attachment" if count == 1 else f"{count:,} images are attachments"
        yield f"{became} of another image of the same key ({names}): {example}; --image-field names the image's field"


@dataclass(frozen=True, slots=True)
class _Tar:
    """Tar of a source, and what is needed to list its samples.

    Attributes:
        image_field, label_field: fields that the user named, or None.
        maps: names of attachments that are maps.
        split: split whose folders in the tar are listed; None for all folders.
        count: number of samples that an index file of all tars states, or None.
        index: file that states the number of samples of this tar, or None.
    """

    location: Location
    image_field: str | None
    label_field: str | None
    maps: frozenset[str]
    split: str | None
    count: int | None
    index: Location | None


def _list_tar(tar: _Tar) -> FoundPart:
    skipped = SkippedFields()
    notes: Notes = {}
    count = read_count(tar.index) if tar.count is None and tar.index is not None else tar.count
    found, empty = _samples(tar, skipped, notes), tar.split is not None
    samples = list(end_at_damage(found, tar.location, count=count, may_be_empty=empty))
    return FoundPart(samples, notes | {what: (count, "") for what, count in skipped.items()})


def split_name(name: str) -> tuple[str, str]:
    """Return (key, field) of a member's name; the field is empty if the name has no dot."""
    folder, slash, last = name.rpartition("/")
    base, _, field = last.partition(".")
    return folder + slash + base, field.lower()


def _samples(tar: _Tar, skipped: SkippedFields, notes: Notes) -> Iterator[SourceSample]:
    """Yield a tar's samples; note in ``notes`` the split that each sample's folders name, or "" for none."""
    labels = RowLabels(tar.label_field, always=(*_LABELS, "label"))
    with SourceFile(tar.location) as file:
        # Skip members that belong to no sample: macOS writes files ``._x``, webdataset writes ``__index__``.
        members = (m for m in members_of(str(tar.location)) if not os.path.basename(m.name).startswith(("._", "__")))  # noqa: PTH119
        # In a truncated tar, ``members`` raises Damage before the last sample is yielded, whose label may be missing.
        for key, group in itertools.groupby(members, key=lambda member: split_name(member.name)[0]):
            split = next(filter(split_of_word, key.split("/")[:-1]), "")
            notes[_SPLIT + split] = (1, "")
            if tar.split is not None and (not split or match_split(tar.split, [split]) is None):
                continue
            found = [(split_name(member.name)[1], member) for member in group]
            fields = dict(found)
            if len(fields) == len(found):
                yield _sample(file, key, fields, tar, labels, skipped, notes)
            else:
                yield from _ambiguous(file, key, found)


def _ambiguous(file: SourceFile, key: str, members: list[tuple[str, Member]]) -> Iterator[SourceSample]:
    """Yield one failing sample for each image of a sample that has a field twice: which label is right is unknown."""
    counts = Counter(field for field, _ in members)
    twice = ", ".join(printable(os.path.basename(member.name)) for field, member in members if counts[field] > 1)  # noqa: PTH119
    problem = f"a field comes twice in this sample: {twice}"
    images = [member.name for field, member in members if _is_image(field)]
    for name in images or [key]:
        yield SourceSample(printable(f"{file.name}/{name}"), file.path, problem=problem)


def _name(field: str) -> str:
    """Return the name that a field's attachment gets: ``seg`` for the field ``seg.png``."""
    return field.rpartition(".")[0] or field


def _is_image(field: str) -> bool:
    return field.rpartition(".")[2] in IMAGES


def _sample(
    file: SourceFile,
    key: str,
    fields: dict[str, Member],
    tar: _Tar,
    labels: RowLabels,
    skipped: SkippedFields,
    notes: Notes,
) -> SourceSample:
    image_field = tar.image_field
    # Images whose field has no dot, such as jpg, come before images such as seg.png. Other fields that become
    # attachments, .bin and maps, are added after the images.
    images = sorted(filter(_is_image, fields), key=lambda field: "." in field)
    chosen = (
        next((each for each in images if _name(each) not in tar.maps), None) if image_field is None else image_field
    )
    images += [each for each in fields if each not in images and (each.endswith(".bin") or _name(each) in tar.maps)]
    extra: dict[str, Any] = {}
    # Read JSON first, so that another member of the sample replaces a field of the same name in the JSON.
    for field, member in sorted(fields.items(), key=lambda each: each[0] not in _JSON):
        if field not in (chosen, *images) and not _read_field(file, field, member, extra, skipped):
            skipped[f"field .{printable(field)}"] += 1
    label = labels.take(extra)
    if not extra and label is None and len(images) == len(fields):
        label = InFolder(printable(key.rpartition("/")[0].removeprefix("./")))
    if chosen is None or chosen not in fields:
        listed = ", ".join(f".{printable(field)}" for field in fields)
        what = "image" if image_field is None else f"field .{printable(image_field)}"
        return SourceSample(printable(f"{file.name}/{key}"), file.path, problem=f"no {what} among {listed}")
    image, others = fields[chosen], [field for field in images if field != chosen]
    named = [_name(field) for field in others]
    named = named if len(set(named)) == len(named) else others
    attachments = tuple(
        (
            printable(name),
            Input(printable(f"{file.name}/{member.name}"), -1, file.path, member.offset_data, member.size),
        )
        for name, member in zip(named, map(fields.__getitem__, others), strict=True)
    )
    name = printable(f"{file.name}/{image.name}")
    for field in (each for each in others if _is_image(each) and _name(each) not in tar.maps):
        count, example = notes.get(_FURTHER + printable(field), (0, ""))
        notes[_FURTHER + printable(field)] = count + 1, example or f"{printable(fields[field].name)} of {name}"
    return SourceSample(name, file.path, image.offset_data, image.size, label, extra, attachments=attachments)


def _read_field(file: SourceFile, field: str, member: Member, extra: dict[str, Any], skipped: SkippedFields) -> bool:
    """Add a text or JSON object to ``extra``; return False if the field is neither, or is too large."""
    if member.size > (_MAX_JSON if field in _JSON else MAX_EXTRA):
        return False
    if field in _JSON:
        value = json_object(file.read(member.offset_data, member.size), skipped)
        skipped.merge(extra, value or {})
        return value is not None
    if field in _TEXTS:
        text = text_of_file(file.read(member.offset_data, member.size), "surrogateescape")
        skipped.merge(extra, {field: text.strip() if field in _LABELS else text})
        return True
    return False


def recognizes(probe: SourceProbe) -> bool:
    """Return whether a location is a tar, a brace pattern of tars, or a folder whose first tar is a WebDataset."""
    if "{" in probe.location.name and not probe.location.exists():
        return probe.location.name.endswith(".tar")
    if not probe.is_folder:
        return probe.head()[257:262] == b"ustar"
    tars = probe.files_ending(".tar")
    return bool(tars) and _has_pairs(probe.location / tars[0])


def _has_pairs(tar: Location) -> bool:
    """Return whether files near a tar's start lie in folders, or share a name but for suffixes, as in WebDatasets.

    A single folder that has the tar's name does not count.
    """
    keys: list[str] = []
    with contextlib.suppress(Damage):  # A tar that is cut has members before the cut.
        keys.extend(split_name(member.name)[0] for member in itertools.islice(members_of(str(tar)), _PROBED_MEMBERS))
    folders = {key.rpartition("/")[0].rpartition("/")[2] for key in keys} - {"", "."}
    in_classes = bool(folders) and folders != {tar.name.removesuffix(".tar")}
    return in_classes or any(one == other for one, other in itertools.pairwise(keys))


FORMAT = SourceFormat(
    list_webdataset,
    options=("image_field", "label_field", "split"),
    recognizes=recognizes,
    object_stores=True,
    takes_engine=True,
    takes_maps=True,
)
