"""COCO's annotation files as a source: objects, outlines and keypoints become targets in the extras of the records.

An annotation file is one JSON object with ``images``, ``annotations`` and ``categories`` (cocodataset.org, "Data
format"), such as ``instances_train2017.json``. Every value is checked before it is used. Messages name a value by its
path in the document.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from picstore.errors import UsageError
from picstore.prepare.sources.inputs import Input, Listing
from picstore.prepare.sources.lenient_json import JsonItems
from picstore.prepare.sources.source_file import named_file, visible_entries
from picstore.prepare.sources.source_kinds import SourceFormat, SourceProbe
from picstore.storage.annotations import MAX_COORDINATE, OWN
from picstore.storage.format.record import MAX_EXTRA
from picstore.storage.location.resolve import Location, Where, locate
from picstore.storage.location.text_files import text_of_file

MAX_ANNOTATIONS = 1 << 32  # largest size in bytes of an annotation file; COCO 2017's has 448 MB
_BESIDE = "_annotations.coco.json"  # annotation file that Roboflow writes into a folder of images
_LISTS = ("images", "annotations", "categories")
# Characters that names must not contain: control characters and unpaired UTF-16 surrogates.
_NO_TEXT = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")
# Decimal places to which boxes' coordinates are rounded, because COCO states widths, and left + width is inexact.
_DECIMALS = 3


def list_coco(folder: Location, *, annotations: Where | None = None) -> Listing:
    """List the images of an annotation file in file order, with label −1 and their objects in the extra.

    docs/formats.md describes the objects' fields. Boxes are clipped to their image. Objects whose clipped box has no
    area are left out, and a message counts them. Listing takes memory of about twice the annotation file's size, the
    returned inputs about once that size.
    """
    # Raise NotADataset or UsageError if ``folder`` is not a folder.
    visible_entries(folder)
    document = _Document(_annotation_file(folder, annotations))
    images: dict[int, Input] = {}
    categories: dict[int, str] = {}
    # Offsets of annotations in the text, by id of the image. They are parsed only once all categories are known.
    offsets: dict[int, list[int]] = {}
    optional: set[str] = set()
    numbers: set[int] = set()  # ids of the annotations read so far, to detect repeated ids
    for name, path, offset, value in document.items():
        id_ = document.integer(value, "id", path)
        if name == "annotations":
            if id_ in numbers:
                document.refuse(f"{path}.id", f"{id_} is there twice")
            numbers.add(id_)
            offsets.setdefault(document.integer(value, "image_id", path), []).append(offset)
            optional |= {"segmentation", "keypoints"} & value.keys()
        elif id_ in (images if name == "images" else categories):
            document.refuse(f"{path}.id", f"{id_} is there twice")
        elif name == "images":
            images[id_] = _parse_image(document, folder, value, path)
        else:
            categories[id_] = document.text(value, "name", path)
    labels = {id_: label for label, id_ in enumerate(sorted(categories))}
    inputs = []
    total = without_area = 0
    for id_, image in images.items():
        found = offsets.pop(id_, [])
        targets = _targets(document, image, (document.values.parse(offset) for offset in found), labels, optional)
        total += len(found)
        without_area += len(found) - len(targets["boxes"])
        fields = {"image_id": id_, "size": image.annotated, **targets}
        extra = json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()
        if len(extra) > MAX_EXTRA:
            document.refuse(image.name, f"its annotations take {len(extra):,} bytes; {MAX_EXTRA:,} can be stored")
        inputs.append(replace(image, extra=extra))
    for id_, (offset, *_) in offsets.items():
        document.refuse(f"annotation {document.values.parse(offset)['id']}.image_id", f"no image has the id {id_}")
    remarks = [f"{without_area:,} of {total:,} boxes have no area inside their image: left out"] if without_area else []
    return Listing("coco", inputs, [categories[id_] for id_ in labels], remarks=remarks)


def _annotation_file(folder: Location, annotations: Where | None) -> Location:
    if annotations is not None:
        return locate(annotations)
    if (folder / _BESIDE).is_file():
        return folder / _BESIDE
    raise UsageError("the source coco needs --annotations, the JSON file that names images and objects")


class _Document:
    """COCO annotation file: yields the images, annotations and categories; raises UsageError for malformed values."""

    def __init__(self, file: Location) -> None:
        self._file = file
        try:
            if (size := file.size()) > MAX_ANNOTATIONS:
                raise UsageError(f"{file} has {size:,} bytes; give annotations of at most {MAX_ANNOTATIONS:,}")
            # This takes twice the file's size in memory, because bytes and decoded text are there at the same time.
            self.values = JsonItems(text_of_file(file.read(0, size, file=str(file))))
        except ValueError as error:
            raise UsageError(f"{file} is not JSON: {error}") from error

    def refuse(self, path: str, what: str) -> NoReturn:
        raise UsageError(f"{self._file}: {path}: {what}")

    def items(self) -> Iterator[tuple[str, str, int, dict[str, Any]]]:
        """Yield (list's name, item's JSON path, item's offset in the text, item) for each item of the lists _LISTS."""
        counts: dict[str, int] = {}
        try:
            for name, offset, value in self.values.items(_LISTS):
                counts[name] = counts.get(name, -1) + 1
                if offset < 0:
                    continue
                path = f"{name}[{counts[name] - 1}]"
                if not isinstance(value, dict):
                    self.refuse(path, "not an object")
                yield name, path, offset, value
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{self._file} is not JSON: {error}") from error
        if missing := [name for name in _LISTS if name not in counts]:
            lists = ", ".join(_LISTS)
            raise UsageError(f"{self._file} has no list of {missing[0]}; annotations of COCO need {lists}")

    def integer(self, value: dict[str, Any], key: str, path: str) -> int:
        """Return member ``key`` of the object ``value``; raise UsageError, naming ``path``, unless it is an integer."""
        number = value.get(key)
        if type(number) is not int:
            self.refuse(f"{path}.{key}", "missing" if key not in value else "not an integer")
        return number

    def text(self, value: dict[str, Any], key: str, path: str) -> str:
        """Return member ``key`` of the object ``value``; raise UsageError unless it is a nonempty line of text."""
        text = value.get(key)
        if not isinstance(text, str) or not text or _NO_TEXT.search(text):
            self.refuse(f"{path}.{key}", "missing" if key not in value else "not a line of text")
        return text

    def numbers(self, values: Any, path: str, format_: str, *, multiple: int = 1) -> list[float]:
        """Return the numbers in the list ``values``; raise UsageError if one lies outside of ±MAX_COORDINATE.

        The list's length must be a multiple of ``multiple``. Messages name ``path``, the list's JSON path, and
        ``format_``, its expected values.
        """
        if not isinstance(values, list) or len(values) % multiple or not {int, float}.issuperset(map(type, values)):
            self.refuse(path, f"not {format_}")
        if not all(-MAX_COORDINATE <= value <= MAX_COORDINATE for value in values):
            self.refuse(path, f"a number beyond ±{MAX_COORDINATE:,}, or NaN")
        return list(values)


def _parse_image(document: _Document, folder: Location, value: dict[str, Any], path: str) -> Input:
    name = document.text(value, "file_name", path)
    try:
        location = str(named_file(folder, name))
    except UsageError as error:
        document.refuse(f"{path}.file_name", str(error))
    width, height = (document.integer(value, key, path) for key in ("width", "height"))
    if not (0 < width <= MAX_COORDINATE and 0 < height <= MAX_COORDINATE):
        document.refuse(path, f"an image of {width} × {height} pixels")
    return Input(name, -1, location, annotated=(width, height), targets=OWN)


def _targets(
    document: _Document,
    image: Input,
    annotations: Iterable[dict[str, Any]],
    labels: dict[int, int],
    optional: set[str],
) -> dict[str, list[Any]]:
    """Return an image's target fields. Each is a list with one value per object whose clipped box has an area.

    ``labels`` maps ids of categories to class numbers. If ``optional`` has ``segmentation``, every image gets the field
    ``polygons``; if it has ``keypoints``, the field ``keypoints``.
    """
    fields = ["boxes", "box_labels", "iscrowd", "area", "annotation_ids"]
    fields += ["polygons"] * ("segmentation" in optional) + ["keypoints"] * ("keypoints" in optional)
    columns: dict[str, list[Any]] = {name: [] for name in fields}
    runs = []
    for annotation in annotations:
        path = f"annotation {annotation['id']}"
        values = _object_fields(document, annotation, labels, path)
        values["boxes"] = _clipped_box(document, annotation, image, path)
        if values["boxes"] is not None:
            runs.append(values.pop("rle"))
            for name, column in columns.items():
                column.append(values[name])
    if any(runs):
        columns["rle"] = runs
    return columns


def _object_fields(
    document: _Document, annotation: dict[str, Any], labels: dict[int, int], path: str
) -> dict[str, Any]:
    """Return what an annotation states about its object, except the box: values by name of the target field."""
    label = labels.get(document.integer(annotation, "category_id", path))
    if label is None:
        document.refuse(f"{path}.category_id", f"no category has the id {annotation['category_id']}")
    crowd = annotation.get("iscrowd", 0)
    if type(crowd) is not int or crowd not in (0, 1):
        document.refuse(f"{path}.iscrowd", "neither 0 nor 1")
    area = annotation.get("area")
    area = None if isinstance(area, float) and math.isnan(area) else area
    if area is not None and not (type(area) in (int, float) and 0 <= area < MAX_COORDINATE**2):
        document.refuse(f"{path}.area", "not a number of pixels")
    flat = document.numbers(annotation.get("keypoints", []), f"{path}.keypoints", "x, y, visibility, x, …", multiple=3)
    if not {0, 1, 2}.issuperset(flat[2::3]):
        document.refuse(f"{path}.keypoints", "a visibility that is not 0, 1 or 2")
    polygons, run = _outlines(document, annotation.get("segmentation", []), f"{path}.segmentation")
    return {
        "box_labels": label,
        "iscrowd": crowd,
        "area": area,
        "annotation_ids": annotation["id"],
        "keypoints": [flat[k : k + 3] for k in range(0, len(flat), 3)],
        "polygons": polygons,
        "rle": run,
    }


def _clipped_box(document: _Document, annotation: dict[str, Any], image: Input, path: str) -> list[float] | None:
    format_ = "[left, top, width, height]"
    box = document.numbers(annotation.get("bbox"), f"{path}.bbox", format_)
    if len(box) != 4:
        document.refuse(f"{path}.bbox", f"not {format_}")
    x, y, width, height = box
    return clip_box((x, y, x + width, y + height), image.annotated or (0, 0))


def clip_box(corners: Sequence[float], size: tuple[int, int]) -> list[float] | None:
    """Clip a box (left, top, right, bottom) to an image of ``size`` (width, height); return None if no area is left."""
    x0, y0, x1, y1 = (round(corner, _DECIMALS) for corner in corners)
    left, top, right, bottom = max(x0, 0), max(y0, 0), min(x1, size[0]), min(y1, size[1])
    return [left, top, right, bottom] if left < right and top < bottom else None


def _outlines(document: _Document, value: Any, path: str) -> tuple[list[list[float]], dict[str, Any] | None]:
    """Return an object's polygons of at least three points, and its run-length mask, unchanged, or else None."""
    if isinstance(value, dict):
        counts, size = value.get("counts"), value.get("size")
        if isinstance(counts, list):
            document.numbers(counts, f"{path}.counts", "a list of numbers")
        elif not (isinstance(counts, str) and counts.isascii()):
            document.refuse(f"{path}.counts", "neither run lengths nor their text")
        if len(document.numbers(size, f"{path}.size", "[height, width]")) != 2:
            document.refuse(f"{path}.size", "not [height, width]")
        return [], {"size": size, "counts": counts}
    if not isinstance(value, list):
        document.refuse(path, "neither a list of polygons nor run lengths")
    format_ = "x0, y0, x1, y1, …"
    polygons = [document.numbers(flat, f"{path}[{n}]", format_, multiple=2) for n, flat in enumerate(value)]
    return [flat for flat in polygons if len(flat) >= 6], None


def recognizes(probe: SourceProbe) -> bool:
    """Return whether a location is a folder with images and the annotation file that Roboflow writes beside images."""
    return probe.is_folder and _BESIDE in probe.files


FORMAT = SourceFormat(list_coco, options=("annotations",), recognizes=recognizes, object_stores=True)
