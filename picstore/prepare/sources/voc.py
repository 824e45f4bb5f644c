"""Pascal VOC's folders as a source: objects of the XML files become boxes in the extras, segmentations attachments.

The layout is the devkit's (``JPEGImages``, ``Annotations``, ``ImageSets``, ``SegmentationClass``), which CVAT also
writes, or one folder of images with an XML file beside each image, which LabelImg and Roboflow write.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from picstore.errors import NotADataset, PicstoreError, UsageError
from picstore.prepare.sources import splits
from picstore.prepare.sources.coco import clip_box
from picstore.prepare.sources.input_table import InputTable
from picstore.prepare.sources.inputs import Input, Listing
from picstore.prepare.sources.source_file import printable, read_whole, visible_entries
from picstore.prepare.sources.source_kinds import SourceFormat, SourceProbe
from picstore.storage.annotations import MAX_COORDINATE, OWN
from picstore.storage.format.record import MAX_EXTRA
from picstore.storage.location.resolve import Location, map_concurrently

# Possible names of the folders of images and of annotations; the devkit's names come first.
_IMAGES, _ANNOTATIONS = ("JPEGImages", "images"), ("Annotations", "annotations")
_SETS = "ImageSets"
# Folders of segmentations (images whose pixels are numbers of classes or objects), and names of their attachments.
_MASKS = {"SegmentationClass": "mask", "SegmentationObject": "object_mask"}
_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff")
_MAX_XML = 1 << 22  # largest size in bytes of an annotation file
_MAX_SET = 1 << 28  # largest size in bytes of a file that lists images
_YEAR = re.compile(r"VOC\d{4}")
_FLAGS = ("difficult", "truncated", "occluded")

# Files by stem, the name without its suffix.
Files = Mapping[str, Location]


@dataclass(frozen=True, slots=True)
class _Object:
    """Object of an annotation: class name, box (left, top, right, bottom) as in the file, and values of _FLAGS."""

    name: str
    box: tuple[float, float, float, float]
    flags: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Annotation:
    """Content of a VOC annotation, an XML file.

    Attributes:
        size: width and height in pixels; None if not stated.
        from_zero: whether Label Studio wrote the file, which counts pixels from 0.
    """

    size: tuple[int, int] | None = None
    objects: tuple[_Object, ...] = ()
    from_zero: bool = False


@dataclass(frozen=True, slots=True)
class _Layout:
    """Files of a VOC source.

    Attributes:
        images, annotations: files by stem; a stem may be in only one of them.
        masks: files of segmentations by stem, for each attachment's name.
        other: names of all other files.
    """

    images: Files
    annotations: Files
    masks: Mapping[str, Files]
    other: Sequence[str] = ()


def list_voc(folder: Location, *, split: str | None = None) -> Listing:
    """List the images sorted by name, with label −1 and the objects of their annotations in the extra.

    Classes are the sorted names of all objects. Boxes state their first and last pixel, counted from 1, so an ``xmin``
    of 1 is the image's left edge. If any box begins below 1, or Label Studio wrote a file, all pixels count from 0.

    Args:
        folder: folder with the VOC devkit's layout, or with XML files beside the images.
        split: name of a list in ``ImageSets``; ``"all"`` for all images.
    """
    layout = _find_files(folder)
    stems = _choose_stems(folder, layout, split)
    # ``classes`` maps the names of classes to provisional numbers, in order of appearance.
    listed, classes, notes = InputTable(), dict[str, int](), Counter[str]()
    from_one = True
    for stem, found in zip(
        stems, map_concurrently(lambda stem: _read(layout.annotations.get(stem)), stems), strict=True
    ):
        one = _input(folder, layout, stem)
        if isinstance(found, str):
            listed.append(replace(one, problem=one.problem or found))
            continue
        notes["image without an annotation: no objects"] += stem not in layout.annotations
        from_one = from_one and not found.from_zero and all(min(each.box[:2]) >= 1 for each in found.objects)
        numbers = [classes.setdefault(each.name, len(classes)) for each in found.objects]
        fields = {"boxes": [each.box for each in found.objects], "box_labels": numbers}
        fields |= {flag: [each.flags[k] for each in found.objects] for k, flag in enumerate(_FLAGS)}
        listed.append(replace(one, extra=json.dumps(fields).encode(), annotated=found.size, targets=OWN))
    names = sorted(classes)
    labels = [names.index(name) for name in classes]
    inputs = InputTable(_finish(one, labels, 1 if from_one else 0, notes) for one in listed)
    notes["hidden file: left out"] = hidden = sum(name.startswith(".") for name in layout.other)
    notes["file that is neither an image nor an annotation: left out"] = len(layout.other) - hidden
    remarks = [f"{count:,} × {what}" for what, count in sorted(notes.items()) if count]
    remarks += [f"{place}: the attachment {name}" for place, name in _MASKS.items() if layout.masks.get(name)]
    remarks += [] if from_one else ["boxes count pixels from 0, as a box begins below 1 or Label Studio wrote them"]
    return Listing("voc", inputs, names, tuple(layout.masks), remarks)


def _find_files(folder: Location) -> _Layout:
    folders = {entry.name for entry in visible_entries(folder) if entry.is_folder}
    if places := _places(folders):
        images, other = _by_stem(folder / places[0], _SUFFIXES)
        annotations, more = _by_stem(folder / places[1], (".xml",))
        masks = {name: _by_stem(folder / place, (".png",))[0] for place, name in _MASKS.items() if place in folders}
        return _Layout(images, annotations, masks, other + more)
    if years := _years(folders):
        raise UsageError(f"{folder} holds {', '.join(years)}; give one of these folders")
    images, other = _by_stem(folder, _SUFFIXES)
    annotations, other_too = _by_stem(folder, (".xml",))
    return _Layout(images, annotations, {}, [name for name in other if name in set(other_too)])


def _places(folders: Collection[str]) -> tuple[str, str] | None:
    images, annotations = ([name for name in names if name in folders] for names in (_IMAGES, _ANNOTATIONS))
    return (images[0], annotations[0]) if images and annotations else None


def _by_stem(folder: Location, suffixes: tuple[str, ...]) -> tuple[Files, list[str]]:
    """Return a folder's files that have one of ``suffixes``, by stem, and the names of all its other files."""
    found: dict[str, Location] = {}
    other = []
    for name, is_folder in folder.entries():
        stem, dot, suffix = name.rpartition(".")
        if is_folder:
            continue
        if name.startswith(".") or dot + suffix.lower() not in suffixes:
            other.append(name)
        elif stem in found:
            raise UsageError(
                f"{folder} holds {found[stem].name} and {name}, of which an annotation names one; remove one"
            )
        else:
            found[stem] = folder / name
    return found, other


def _choose_stems(folder: Location, layout: _Layout, split: str | None) -> list[str]:
    """Return the sorted stems of a split's images; for ``split`` None or "all", of all images and annotations."""
    everything = sorted({*layout.images, *layout.annotations})
    lists = _image_sets(folder)
    if split is None and len({*map(splits.split_of_word, lists)} - {None}) > 1:
        splits.refuse(list(lists), folder)
    if split in (None, splits.ALL):
        return everything
    name = splits.require_split(str(split), lists, folder)
    lines = read_whole(lists[name], _MAX_SET).decode("utf-8-sig", "surrogateescape").splitlines()
    # A line begins with the image's path (written by CVAT) or stem (by the devkit). Lists for one class have a number
    # after it, which is ignored.
    wanted = [line.split()[0].rpartition("/")[2] for line in lines if line.strip()]
    return sorted({each if each in layout.images else each.rpartition(".")[0] or each for each in wanted})


def _image_sets(folder: Location) -> dict[str, Location]:
    """Return the files that list images, by split, except lists for a single class, such as ``dog_train.txt``."""
    for place in ("Main", "Segmentation"):
        try:
            names = [entry.name for entry in visible_entries(folder / _SETS / place) if not entry.is_folder]
        except (NotADataset, UsageError):
            continue
        stems = {name.removesuffix(".txt"): folder / _SETS / place / name for name in names if name.endswith(".txt")}
        return {stem: file for stem, file in stems.items() if "_" not in stem}
    return {}


def _input(folder: Location, layout: _Layout, stem: str) -> Input:
    file = layout.images.get(stem)
    attached = {name: files.get(stem) for name, files in layout.masks.items()}
    attachments = tuple((name, Input(printable(mask.name), -1, str(mask))) for name, mask in attached.items() if mask)
    place = next(iter(layout.images.values())).parent if layout.images else folder
    prefix = f"{place.name}/" if place != folder else ""
    if file is None:
        missing = f"{prefix}{stem}"
        return Input(printable(missing), -1, str(folder / missing), problem="the image of an annotation is missing")
    return Input(printable(prefix + file.name), -1, str(file), attachments=attachments)


def _finish(one: Input, labels: Sequence[int], origin: int, notes: Counter[str]) -> Input:
    """Return an input with its boxes clipped to the image, and class k replaced by ``labels[k]``.

    File coordinates count from ``origin``, 0 or 1; the result's count from 0.
    """
    if not one.extra:
        return one
    fields: dict[str, list[Any]] = json.loads(one.extra)
    size = one.annotated or (MAX_COORDINATE, MAX_COORDINATE)
    boxes = [clip_box((box[0] - origin, box[1] - origin, *box[2:]), size) for box in fields["boxes"]]
    kept = [k for k, box in enumerate(boxes) if box is not None]
    notes["box without an area inside its image: left out"] += len(boxes) - len(kept)
    fields = {name: [values[k] for k in kept] for name, values in fields.items()}
    fields["boxes"] = [boxes[k] for k in kept]
    fields["box_labels"] = [labels[label] for label in fields["box_labels"]]
    extra = json.dumps(fields, separators=(",", ":")).encode()
    if len(extra) > MAX_EXTRA:
        return replace(
            one, extra=b"", problem=f"its annotation takes {len(extra):,} bytes; {MAX_EXTRA:,} can be stored"
        )
    return replace(one, extra=extra)


def _read(file: Location | None) -> _Annotation | str:
    if file is None:
        return _Annotation()
    try:
        return _parse(read_whole(file, _MAX_XML))
    except (UsageError, NotADataset, expat.ExpatError, ValueError) as error:
        what = error if isinstance(error, (PicstoreError, expat.ExpatError)) else str(error)
        return f"its annotation {printable(file.name)} cannot be read: {what}"


def _parse(data: bytes) -> _Annotation:
    """Parse an XML file; raise ValueError or ExpatError if the file violates VOC's format or has a document type."""
    builder, parser = TreeBuilder(), expat.ParserCreate()

    def refuse(*_: object) -> None:
        raise ValueError("it has a document type, as which entities are declared")

    parser.StartDoctypeDeclHandler = refuse
    parser.StartElementHandler, parser.EndElementHandler = builder.start, builder.end
    parser.CharacterDataHandler = builder.data
    parser.Parse(data, True)
    root = builder.close()
    size = tuple(int(_number(root, f"size/{side}", 0)) for side in ("width", "height"))
    objects = tuple(_object(each, number) for number, each in enumerate(root.iterfind("object")))
    from_zero = (root.findtext("owner/name") or "").strip() == "Label Studio"
    return _Annotation((size[0], size[1]) if min(size) > 0 else None, objects, from_zero)


def _object(element: Element, number: int) -> _Object:
    name = " ".join((element.findtext("name") or "").split())
    if not name:
        raise ValueError(f"object {number} has no name")
    box = tuple(_number(element, f"bndbox/{side}") for side in ("xmin", "ymin", "xmax", "ymax"))
    flags = tuple(int(_number(element, flag, 0)) for flag in _FLAGS)
    return _Object(name, (box[0], box[1], box[2], box[3]), flags)


def _number(element: Element, path: str, default: float | None = None) -> float:
    text = (element.findtext(path) or "").strip()
    if not text and default is not None:
        return default
    try:
        value = float(text)
    except ValueError as error:
        raise ValueError(f"{element.tag}/{path} is {text[:40]!r}, not a number") from error
    if not -MAX_COORDINATE <= value <= MAX_COORDINATE:
        raise ValueError(f"{element.tag}/{path} is {value}, beyond ±{MAX_COORDINATE:,}")
    return value


def recognizes(probe: SourceProbe) -> bool:
    """Return whether a folder has the layout of VOC's devkit, folders such as VOC2007, or XML files beside images."""
    return probe.is_folder and (bool(_years(probe.folders)) or _is_layout(probe))


def _years(names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if _YEAR.fullmatch(name))


def _is_layout(probe: SourceProbe) -> bool:
    if places := _places(probe.folders):
        names = [entry.name for entry in visible_entries(probe.location / places[1])]
        return places == (_IMAGES[0], _ANNOTATIONS[0]) or any(name.endswith(".xml") for name in names)
    xml = {name[:-4] for name in probe.files_ending(".xml")}
    beside = [name for name in probe.files_ending(*_SUFFIXES) if name.rpartition(".")[0] in xml]
    return bool(beside) and probe.head(beside[0].rpartition(".")[0] + ".xml").lstrip()[:1] == b"<"


FORMAT = SourceFormat(list_voc, options=("split",), recognizes=recognizes, object_stores=True)
