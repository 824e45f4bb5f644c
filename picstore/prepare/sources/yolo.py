"""YOLO's folders as a source: lines of the label files become boxes, outlines and keypoints in the extras.

Label files have one object per line, ``class cx cy width height`` from 0 to 1, or ``class x1 y1 x2 y2 …``
(docs.ultralytics.com, "Detection Datasets Overview"). Layouts: ``images/train`` and ``labels/train``, ``train/images``
and ``train/labels``, ``images`` and ``labels``, or images and label files in one folder, such as ``obj_train_data``.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from picstore.errors import NotADataset, UsageError
from picstore.prepare.sources import splits
from picstore.prepare.sources.input_table import InputTable
from picstore.prepare.sources.inputs import Input, Listing
from picstore.prepare.sources.source_file import printable, read_whole, visible_entries
from picstore.prepare.sources.source_kinds import SourceFormat, SourceProbe
from picstore.prepare.sources.yolo_labels import Meaning, parse_labels, read_yaml
from picstore.storage.class_names import from_lines
from picstore.storage.format.record import MAX_EXTRA
from picstore.storage.location.resolve import Location, map_concurrently
from picstore.storage.location.text_files import text_of_file

_IMAGES, _LABELS = "images", "labels"
_SUFFIXES = (
    *(".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".mpo"),
    *(".heic", ".avif", ".jp2", ".jxl", ".dng", ".gif"),
)
_DARKNET = re.compile(r"obj(_\w+_data)?")  # folders with images and label files beside obj.names
_NAMES = ("obj.names", "_darknet.labels", "classes.txt")
_NOT_LABELS = re.compile(r"(predefined_)?classes\.txt|notes\.txt|readme.*", re.IGNORECASE)
_FORMS = {"boxes": "boxes:xyxy-normalized", "polygons": "polygons:normalized", "keypoints": "keypoints:normalized"}
_MAX_LABELS = 1 << 24  # largest size in bytes of a label file
_MAX_NAMES = 1 << 22  # largest size in bytes of a file of class names
_MAX_LIST = 1 << 28  # largest size in bytes of a list of images
_MAX_DEPTH = 16  # largest depth of nested folders, because links may form a circle
_PROBED = 8  # number of label files to read to recognize YOLO's layout, and of sub-folders to search for files
_LINE = re.compile(rb"\s*\d+(\.0*)?(\s+-?[\d.]+(e[+-]?\d+)?){4,}\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Tree:
    """Folder of images, and folder of label files; both may be the same.

    Attributes:
        image_prefix, label_prefix: prefix of the names of inputs from each folder.
    """

    images: Location
    labels: Location
    image_prefix: str = ""
    label_prefix: str = ""

    @property
    def is_shared(self) -> bool:
        return str(self.images) == str(self.labels)


@dataclass(frozen=True, slots=True)
class _Pair:
    """Image and its label file, either of which may be missing; and the name of the input."""

    image: Location | None
    labels: Location | None
    name: str


def list_yolo(folder: Location, *, split: str | None = None) -> Listing:
    """List the images sorted by name, with label −1 and the objects of their label files in the extra.

    Class names come from ``data.yaml``, ``obj.names`` or ``classes.txt``; without them classes have only numbers.
    ``split`` names a folder of images, or a list such as ``train.txt``; ``"all"`` stands for all images. Raise
    MissingDependency if there is a ``data.yaml`` but PyYAML is not installed.
    """
    trees, lists = _find_trees(folder), dict[str, Location]()
    if not trees:
        raise UsageError(f"{folder} does not have a layout of YOLO; give images in images, label files in labels")
    if len(trees) == 1:
        lists = _find_lists(folder)
    names = list(trees if len(trees) > 1 or "" not in trees else lists)
    if split is None and len(names) > 1:
        splits.refuse(names, folder)
    chosen = None if split in (None, splits.ALL) else splits.require_split(str(split), names, folder)
    meaning, remarks = _read_meaning(folder, list(trees.values()))
    notes = Counter[str]()
    pairs = [pair for name, tree in trees.items() if chosen in (None, name) or lists for pair in _pairs(tree, notes)]
    if chosen is not None and lists:
        pairs = _of_list(pairs, lists[chosen])
    _require_labels(folder, pairs, notes)
    listed, fields = InputTable(), set[str]()
    found = map_concurrently(lambda pair: _read(pair, meaning), pairs)
    for pair, objects in zip(pairs, found, strict=True):
        problem = "a label file without an image" if pair.labels else "a list names it; it is missing"
        name = printable(pair.name)
        one = Input(name, -1, str(pair.image or pair.labels or name), problem="" if pair.image else problem)
        if isinstance(objects, str):
            listed.append(replace(one, problem=one.problem or objects))
            continue
        notes["image without a label file: no objects"] += pair.labels is None
        notes["box without an area inside its image: left out"] += objects.pop("without_area")
        fields |= {name for name in ("polygons", "keypoints") if any(objects[name])}
        listed.append(replace(one, extra=json.dumps(objects).encode()))
    inputs = InputTable(_finish(one, fields) for one in listed)
    remarks += [f"{count:,} × {what}" for what, count in sorted(notes.items()) if count]
    return Listing("yolo", inputs, [printable(name) for name in meaning.names], (), remarks)


def _find_trees(folder: Location) -> dict[str, _Tree]:
    """Return a source's pairs of folders (images, labels) by split or folder name, or by "" if there is only one."""
    entries = visible_entries(folder)
    folders = [name for name, is_folder in entries if is_folder]
    if {_IMAGES, _LABELS} <= set(folders):
        images, labels = folder / _IMAGES, folder / _LABELS
        inner = {name for place in (images, labels) for name, is_folder in visible_entries(place) if is_folder}
        if not any(map(splits.split_of_word, inner)):
            return {"": _Tree(images, labels, f"{_IMAGES}/", f"{_LABELS}/")}
        return {
            name: _Tree(images / name, labels / name, f"{_IMAGES}/{name}/", f"{_LABELS}/{name}/")
            for name in sorted(inner)
        }
    if divided := _divided(folder, folders):
        return {
            name: _Tree(folder / name / _IMAGES, folder / name / _LABELS, f"{name}/{_IMAGES}/", f"{name}/{_LABELS}/")
            for name in divided
        }
    if _has_darknet(entry.name for entry in entries):
        found = [name for name in folders if _DARKNET.fullmatch(name)]
        words = {name: splits.split_of_name(name) or name for name in found}
        several = len(set(words.values())) == len(found) > 1
        return {
            words[name] if several else "" if len(found) == 1 else name: _Tree(
                folder / name, folder / name, f"{name}/", f"{name}/"
            )
            for name in found
        }
    return {"": _Tree(folder, folder)} if any(not is_folder for _, is_folder in entries) else {}


def _divided(folder: Location, names: Iterable[str]) -> list[str]:
    """Return which of the sub-folders ``names`` are named like splits and hold folders ``images`` and ``labels``."""
    found = [name for name in names if splits.split_of_word(name)]
    return [
        name
        for name in found
        if {_IMAGES, _LABELS} <= {entry.name for entry in visible_entries(folder / name) if entry.is_folder}
    ]


def _has_darknet(names: Iterable[str]) -> bool:
    there = set(names)
    return bool({"obj.names", "obj.data"} & there) and any(map(_DARKNET.fullmatch, there))


def _find_lists(folder: Location) -> dict[str, Location]:
    """Return, by split, the files in a source's folder that list images, such as ``train.txt``."""
    files = [entry.name for entry in visible_entries(folder) if not entry.is_folder and entry.name.endswith(".txt")]
    return {name[:-4]: folder / name for name in files if splits.split_of_word(name)}


def _pairs(tree: _Tree, notes: Counter[str]) -> list[_Pair]:
    """Pair a tree's images with label files of the same path and stem; label files without images come last."""
    images = dict[str, Location]()
    labels = dict[str, Location]()
    for place in {str(tree.images): tree.images, str(tree.labels): tree.labels}.values():
        for name, file in _walk(place, notes):
            lower = name.lower()
            if lower.endswith(_SUFFIXES) and (tree.is_shared or place is tree.images):
                images[name] = file
            elif lower.endswith(".txt") and place is not (None if tree.is_shared else tree.images):
                labels[_stem(name)] = file
            elif not lower.endswith((".cache", ".yaml", ".yml", *_NAMES)):
                notes["file that is neither an image nor a label file: left out"] += 1
    stems = set(map(_stem, images))
    # Stems of text files that may be a readme, class names or a list; such a file is a label file only beside an image
    # with the same stem.
    of_others = {
        stem
        for stem, file in labels.items()
        if _NOT_LABELS.fullmatch(file.name) or (tree.is_shared and splits.split_of_word(file.name))
    }
    pairs = [_Pair(file, labels.get(_stem(name)), tree.image_prefix + name) for name, file in sorted(images.items())]
    alone = sorted(labels.keys() - stems - of_others)
    return pairs + [_Pair(None, labels[stem], f"{tree.label_prefix}{stem}.txt") for stem in alone]


def _stem(name: str) -> str:
    return name.rpartition(".")[0]


def _walk(folder: Location, notes: Counter[str], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Location]]:
    if depth > _MAX_DEPTH:
        raise UsageError(f"{folder} lies in more than {_MAX_DEPTH} folders; links may lead in a circle")
    if not depth and not folder.is_folder():
        return
    for name, is_folder in folder.entries():
        if name.startswith("."):
            notes["hidden file or folder: left out"] += 1
        elif is_folder:
            yield from _walk(folder / name, notes, f"{prefix}{name}/", depth + 1)
        else:
            yield prefix + name, folder / name


def _of_list(pairs: Sequence[_Pair], file: Location) -> list[_Pair]:
    """Return the pairs that a list of images names; a name that matches no image gives a pair without files."""
    by_name = {pair.name: pair for pair in pairs}
    by_end = {pair.name.partition("/")[2]: pair for pair in pairs} | by_name
    lines = text_of_file(read_whole(file, _MAX_LIST), "surrogateescape").splitlines()
    chosen = []
    for line in filter(None, map(str.strip, lines)):
        parts = line.replace("\\", "/").split("/")
        ends = ("/".join(parts[k:]) for k in range(len(parts)))
        chosen.append(next((by_end[end] for end in ends if end in by_end), _Pair(None, None, line)))
    return chosen


def _require_labels(folder: Location, pairs: Sequence[_Pair], notes: Mapping[str, int]) -> None:
    if pairs and all(pair.labels is None for pair in pairs) and sum(notes.values()) >= len(pairs):
        raise UsageError(
            f"{folder} has other files than YOLO's .txt in {_LABELS}; if they are masks, name each image and its mask "
            "as attachments in a table .jsonl; if the folders are classes, give --source folder"
        )


def _finish(one: Input, fields: set[str]) -> Input:
    """Remove from an input those of polygons and keypoints that are not in ``fields``; set ``Input.targets``."""
    if not one.extra:
        return one
    found: dict[str, Any] = json.loads(one.extra)
    for name in {"polygons", "keypoints"} - fields:
        del found[name]
    extra = json.dumps(found, separators=(",", ":")).encode()
    if len(extra) > MAX_EXTRA:
        problem = f"its label file gives {len(extra):,} bytes; {MAX_EXTRA:,} can be stored"
        return replace(one, extra=b"", problem=problem)
    return replace(one, extra=extra, targets=",".join(_FORMS[name] for name in ("boxes", *sorted(fields))))


def _read(pair: _Pair, meaning: Meaning) -> dict[str, Any] | str:
    if pair.labels is None or pair.image is None:
        return parse_labels("", meaning)
    try:
        return parse_labels(text_of_file(read_whole(pair.labels, _MAX_LABELS)), meaning)
    except (UsageError, NotADataset, ValueError) as error:
        return f"its label file {printable(pair.labels.name)} cannot be read: {error}"


def _read_meaning(folder: Location, trees: Sequence[_Tree]) -> tuple[Meaning, list[str]]:
    """Return the class names and the shape of keypoints that a source states, and a message if it states no names."""
    files = {name for name, is_folder in visible_entries(folder) if not is_folder}
    yamls = sorted(name for name in files if name.lower().endswith((".yaml", ".yml")))
    preferred = [name for name in ("data.yaml", "dataset.yaml", *yamls) if name in yamls]
    above = folder.parent / "data.yaml"
    described = folder / preferred[0] if preferred else above if above.is_file() else None
    meaning = Meaning() if described is None else read_yaml(described)
    if meaning.names:
        return meaning, []
    places = {str(place): place for place in (folder, folder / _LABELS, *(tree.labels for tree in trees))}
    for name in _NAMES:
        for place in places.values():
            if (place / name).is_file():
                try:
                    text = text_of_file(read_whole(place / name, _MAX_NAMES), "surrogateescape")
                    return replace(meaning, names=from_lines(text)), []
                except UsageError as error:
                    raise UsageError(f"{place / name}: {error}") from error
    return meaning, ["classes have no names, as there is no data.yaml, obj.names or classes.txt; give --classes"]


def recognizes(probe: SourceProbe) -> bool:
    """Return whether a location is a folder with one of YOLO's layouts."""
    if not probe.is_folder:
        return False
    if {_IMAGES, _LABELS} <= set(probe.folders):
        return set(probe.folders) == {_IMAGES, _LABELS} or any(
            name.endswith(".txt") for name, _ in _first_files(probe.location / _LABELS)
        )
    if _divided(probe.location, probe.folders) or _has_darknet((*probe.folders, *probe.files)):
        return True
    texts = {_stem(name): name for name in probe.files_ending(".txt")}
    beside = [texts[_stem(name)] for name in probe.files_ending(*_SUFFIXES) if _stem(name) in texts]
    heads = [probe.head(name).split(b"\n", 1)[0] for name in beside[:_PROBED]]
    if any(heads):
        return all(not head.strip() or _LINE.fullmatch(head) for head in heads)
    return bool(heads) and not set(_NAMES).isdisjoint(probe.files)


def _first_files(folder: Location) -> Iterator[tuple[str, Location]]:
    """Yield (path, location) of each file in a folder and in its first few sub-folders, but not in deeper folders."""
    entries = visible_entries(folder)
    for place, prefix in ((folder, ""), *((folder / name, name) for name, is_folder in entries[:_PROBED] if is_folder)):
        for name, is_folder in visible_entries(place):
            if not is_folder:
                yield f"{prefix}{name}", place / name


FORMAT = SourceFormat(list_yolo, options=("split",), recognizes=recognizes, object_stores=True)
