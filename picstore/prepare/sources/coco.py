"""COCO's annotation files as a source: objects, their outlines and keypoints become targets of the images' records.

The file is one JSON object of ``images``, ``annotations`` and ``categories`` (cocodataset.org, "Data format"), such as
``instances_train2017.json`` and ``person_keypoints_train2017.json``. It comes from somewhere, so that every value is
checked before it is used; what is wrong is named with its place.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, NoReturn

from picstore.errors import UsageError
from picstore.prepare.sources.base import Source
from picstore.prepare.sources.inputs import Input, Listing, entries_of
from picstore.prepare.sources.json_stream import JsonItems
from picstore.storage.annotations import MAX_COORDINATE
from picstore.storage.format.record import MAX_EXTRA
from picstore.storage.location.resolve import Location, Where, locate

MAX_ANNOTATIONS = 1 << 32  # bytes of a file; that of COCO 2017 has 448 MB
_LISTS = ("images", "annotations", "categories")
_NO_TEXT = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")  # control characters, and halves of UTF-16 pairs
_DECIMALS = 3  # of boxes, whose right = left + width would show the error of floats otherwise


def coco_source(folder: Location, *, annotations: Where | None = None) -> Listing:
    """Every image of an annotation file in its order, with label −1 and its objects in the extra; see docs/formats.md.

    A box is clipped to its image; an object whose box has no area then is left out, and a remark counts them.

    Args:
        folder: where the images' ``file_name`` begin.
        annotations: the JSON file. Listing takes its size twice in memory, and once while the inputs live.

    Raises:
        NotADataset: there is no such file.
        UsageError: ``folder`` is no folder, or the file is not COCO's: the message says what is wrong where.
    """
    if annotations is None:
        raise UsageError("the source coco needs --annotations, the JSON file that names images and objects")
    entries_of(folder)
    file = _File(locate(annotations))
    images: dict[int, _Image] = {}
    categories: dict[int, str] = {}
    offsets: dict[int, list[int]] = {}  # of the annotations in the file, by image
    kinds: set[str] = set()
    for name, place, at, value in file.walk():
        id_ = file.whole(value, "id", place)
        if name == "annotations":
            offsets.setdefault(file.whole(value, "image_id", place), []).append(at)
            kinds |= {"segmentation", "keypoints"} & value.keys()
        elif id_ in (images if name == "images" else categories):
            file.refuse(f"{place}.id", f"{id_} is there twice")
        elif name == "images":
            images[id_] = _image(file, value, place)
        else:
            categories[id_] = file.text(value, "name", place)
    labels = {id_: label for label, id_ in enumerate(sorted(categories))}
    inputs = []
    total = left_out = 0
    for id_, image in images.items():
        found = offsets.pop(id_, [])
        targets = _targets(file, image, (file.parse(at) for at in found), labels, kinds)
        total += len(found)
        left_out += len(found) - len(targets["boxes"])
        extra = {"image_id": id_, "size": [image.width, image.height], **targets}
        inputs.append(_as_input(file, image, folder, extra))
    for id_, (at, *_) in offsets.items():
        file.refuse(f"annotation {file.parse(at)['id']}.image_id", f"{id_} is the id of no image")
    remarks = [f"{left_out:,} of {total:,} boxes have no area inside their image: left out"] if left_out else []
    return Listing("coco", inputs, [categories[id_] for id_ in labels], remarks=remarks)


@dataclass(frozen=True, slots=True)
class _Image:
    """An image as the file lists it."""

    name: str
    width: int
    height: int


class _File:
    """An annotation file: reading it, and naming what is wrong in it."""

    def __init__(self, place: Location) -> None:
        self._place = place
        try:
            if (size := place.size()) > MAX_ANNOTATIONS:
                raise UsageError(f"{place} has {size:,} bytes; annotations of {MAX_ANNOTATIONS:,} can be read")
            self._items = JsonItems(str(place.read(0, size, file=str(place)), "utf-8-sig"))  # one copy, and the text
        except ValueError as error:
            raise UsageError(f"{place} is not JSON: {error}") from error

    def refuse(self, place: str, what: str) -> NoReturn:
        raise UsageError(f"{self._place}: {place}: {what}")

    def parse(self, at: int) -> Any:
        """The value that begins at an offset."""
        return self._items.parse(at)

    def walk(self) -> Iterator[tuple[str, str, int, dict[str, Any]]]:
        """The items of the three lists as they come: name of the list, place and offset of the item, and the item."""
        counts: dict[str, int] = {}
        try:
            for name, at, value in self._items.walk(_LISTS):
                counts[name] = counts.get(name, -1) + 1
                if at < 0:
                    continue
                place = f"{name}[{counts[name] - 1}]"
                if not isinstance(value, dict):
                    self.refuse(place, "not an object")
                yield name, place, at, value
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{self._place} is not JSON: {error}") from error
        if missing := [name for name in _LISTS if name not in counts]:
            raise UsageError(f"{self._place} is not an annotation file of COCO: it has no list of {missing[0]}")

    def whole(self, value: dict[str, Any], key: str, place: str) -> int:
        """An integer of an object."""
        number = value.get(key)
        if type(number) is not int:
            self.refuse(f"{place}.{key}", "missing" if key not in value else "not an integer")
        return number

    def text(self, value: dict[str, Any], key: str, place: str) -> str:
        """A text of an object that is not empty."""
        text = value.get(key)
        if not isinstance(text, str) or not text or _NO_TEXT.search(text):
            self.refuse(f"{place}.{key}", "missing" if key not in value else "not a line of text")
        return text

    def numbers(self, values: Any, place: str, form: str, *, several: int = 1) -> list[float]:
        """A list of numbers, none beyond what coordinates can be, whose length is a multiple of ``several``."""
        if not isinstance(values, list) or len(values) % several or not {int, float}.issuperset(map(type, values)):
            self.refuse(place, f"not {form}")
        if values and not -MAX_COORDINATE <= min(values) <= max(values) <= MAX_COORDINATE:
            self.refuse(place, f"a number beyond ±{MAX_COORDINATE:,}")
        return list(values)


def _image(file: _File, value: dict[str, Any], place: str) -> _Image:
    name = file.text(value, "file_name", place)
    if PurePath(name).is_absolute() or ".." in PurePath(name).parts:
        file.refuse(f"{place}.file_name", f"{name} leads out of the folder of images")
    width, height = (file.whole(value, key, place) for key in ("width", "height"))
    if not (0 < width <= MAX_COORDINATE and 0 < height <= MAX_COORDINATE):
        file.refuse(place, f"an image of {width} × {height} pixels")
    return _Image(name, width, height)


def _targets(
    file: _File, image: _Image, annotations: Iterable[dict[str, Any]], labels: dict[int, int], kinds: set[str]
) -> dict[str, list[Any]]:
    """The objects of an image by field, those without area left out.

    Args:
        labels: by category id.
        kinds: which of ``segmentation`` and ``keypoints`` the file has anywhere; all images get the same fields.
    """
    fields = ["boxes", "box_labels", "iscrowd", "area", "annotation_ids"]
    fields += ["polygons"] * ("segmentation" in kinds) + ["keypoints"] * ("keypoints" in kinds)
    columns: dict[str, list[Any]] = {name: [] for name in fields}
    runs = []
    for annotation in annotations:
        place = f"annotation {annotation['id']}"
        values = _fields(file, annotation, labels, place)
        box = _clipped(file, annotation, image, place)
        if box is None:
            continue
        values["boxes"] = box
        runs.append(values.pop("rle"))
        for name, column in columns.items():
            column.append(values[name])
    if any(runs):
        columns["rle"] = runs
    return columns


def _fields(file: _File, annotation: dict[str, Any], labels: dict[int, int], place: str) -> dict[str, Any]:
    """What an annotation says of its object, but for the box."""
    label = labels.get(file.whole(annotation, "category_id", place))
    if label is None:
        file.refuse(f"{place}.category_id", f"{annotation['category_id']} is the id of no category")
    crowd = annotation.get("iscrowd", 0)
    if type(crowd) is not int or crowd not in (0, 1):
        file.refuse(f"{place}.iscrowd", "neither 0 nor 1")
    area = annotation.get("area")
    if area is not None and not (type(area) in (int, float) and 0 <= area < MAX_COORDINATE**2):
        file.refuse(f"{place}.area", "not a number of pixels")
    flat = file.numbers(annotation.get("keypoints", []), f"{place}.keypoints", "x, y, visibility, x, …", several=3)
    if not {0, 1, 2}.issuperset(flat[2::3]):
        file.refuse(f"{place}.keypoints", "a visibility that is none of 0, 1, 2")
    polygons, run = _outlines(file, annotation.get("segmentation", []), f"{place}.segmentation")
    return {
        "box_labels": label,
        "iscrowd": crowd,
        "area": area,
        "annotation_ids": annotation["id"],
        "keypoints": [flat[k : k + 3] for k in range(0, len(flat), 3)],
        "polygons": polygons,
        "rle": run,
    }


def _clipped(file: _File, annotation: dict[str, Any], image: _Image, place: str) -> list[float] | None:
    """The box as left, top, right, bottom inside the image; None where it has no area there."""
    form = "[left, top, width, height]"
    box = file.numbers(annotation.get("bbox"), f"{place}.bbox", form)
    if len(box) != 4:
        file.refuse(f"{place}.bbox", f"not {form}")
    x, y, width, height = box
    left, top = max(round(x, _DECIMALS), 0), max(round(y, _DECIMALS), 0)
    right = min(round(x + width, _DECIMALS), image.width)
    bottom = min(round(y + height, _DECIMALS), image.height)
    return [left, top, right, bottom] if left < right and top < bottom else None


def _outlines(file: _File, value: Any, place: str) -> tuple[list[list[float]], dict[str, Any] | None]:
    """Polygons of three points or more, or the run lengths of a crowd as they are."""
    if isinstance(value, dict):
        counts, size = value.get("counts"), value.get("size")
        if isinstance(counts, list):
            file.numbers(counts, f"{place}.counts", "a list of numbers")
        elif not isinstance(counts, str):
            file.refuse(f"{place}.counts", "neither run lengths nor their text")
        if len(file.numbers(size, f"{place}.size", "[height, width]")) != 2:
            file.refuse(f"{place}.size", "not [height, width]")
        return [], {"size": size, "counts": counts}
    if not isinstance(value, list):
        file.refuse(place, "neither a list of polygons nor run lengths")
    form = "x0, y0, x1, y1, …"
    polygons = [file.numbers(flat, f"{place}[{n}]", form, several=2) for n, flat in enumerate(value)]
    return [flat for flat in polygons if len(flat) >= 6], None


def _as_input(file: _File, image: _Image, folder: Location, extra: dict[str, Any]) -> Input:
    text = json.dumps(extra, ensure_ascii=False, separators=(",", ":")).encode()
    if len(text) > MAX_EXTRA:
        file.refuse(image.name, f"its annotations take {len(text):,} bytes; {MAX_EXTRA:,} can be stored")
    return Input(image.name, -1, str(folder / image.name), extra=text, annotated=(image.width, image.height))


SOURCE = Source(coco_source, options=("annotations",), stores=True)
