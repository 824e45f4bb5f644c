"""Records of a conversion's inputs: each input becomes a training JPEG with its extra and attachments, or a reference.

Inputs are read in groups, and a group's JPEGs get restart markers together: two scans are read at a time, and Python's
code stays in the CPU's caches from image to image.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from picstore import rng
from picstore.display.progress import ProgressCallback
from picstore.errors import ImageError, UsageError
from picstore.prepare.convert.row_writer import make_record
from picstore.prepare.engine import worker_processes
from picstore.prepare.image.encode_settings import EncodeSettings
from picstore.prepare.image.exif_orientation import CoordinateMap
from picstore.prepare.image.read_map import make_map
from picstore.prepare.image.targets_and_masks import map_targets, move_attachment
from picstore.prepare.image.training_jpeg import TrainingJpeg, index_image, make_lossless, make_training_jpeg, reencode
from picstore.prepare.sources.inputs import Input, Listing, read_input
from picstore.storage.annotations import OWN, in_own_form, target_fields
from picstore.storage.format.checksum import crc32c
from picstore.storage.format.maps import PREFIX, MapSpec, map_problem
from picstore.storage.format.record import Record, extra_to_json
from picstore.storage.format.reference import Reference
from picstore.storage.location.resolve import Location

Read: TypeAlias = Callable[[Input], bytes]

_MAX_INPUTS = 16
# A group of inputs ends once it has more bytes than this; one call converts the JPEGs of a group.
_MAX_BYTES = 4 << 20
# Largest size in bytes of an input in a group. No time limit applies in groups, because such an input takes 3 ms.
_MAX_SIZE = 1 << 20


@dataclass(frozen=True, slots=True)
class GroupedInput:
    """Input with its id, its bytes, and the result of trying to convert it without loss.

    Attributes:
        data: bytes of the input, or the error of reading it; None if it is still to be read.
        made: training JPEG, or the reason why lossless conversion is impossible; None if it was not tried, as for a
            large input.
    """

    id: int
    source: Input
    data: bytes | ImageError | None = None
    made: TrainingJpeg | str | None = None


def group_inputs(
    numbered: Iterable[tuple[int, Input]],
    read: Callable[[int, Input], bytes],
    settings: EncodeSettings,
    skipped: Callable[[int], bool],
) -> Iterator[GroupedInput]:
    """Read inputs in groups, try to make a training JPEG of each without loss, and yield all inputs in order.

    ``numbered`` has ids and inputs. ``skipped`` returns, given an id, whether to yield the input unread.
    """
    group: list[tuple[int, Input, bytes | ImageError | None]] = []
    size = 0
    for id_, source in numbered:
        data = None if skipped(id_) else _try_read(read, id_, source)
        group.append((id_, source, data))
        size += len(data) if isinstance(data, bytes) else 0
        if len(group) == _MAX_INPUTS or size > _MAX_BYTES:
            yield from _make_group(group, settings)
            group, size = [], 0
    yield from _make_group(group, settings)


def _try_read(read: Callable[[int, Input], bytes], id_: int, source: Input) -> bytes | ImageError:
    try:
        return read(id_, source)
    except ImageError as error:
        return error


def _make_group(
    group: Iterable[tuple[int, Input, bytes | ImageError | None]], settings: EncodeSettings
) -> Iterator[GroupedInput]:
    small = {id_: data for id_, _, data in group if isinstance(data, bytes) and len(data) <= _MAX_SIZE}
    made = dict(zip(small, make_lossless(list(small.values()), settings=settings), strict=True))
    for id_, source, data in group:
        yield GroupedInput(id_, source, data, made.pop(id_, None))


@dataclass(frozen=True, slots=True)
class InputRecord:
    """Record of an input, with its training JPEG and sizes.

    Attributes:
        source_bytes: size of the input in bytes.
        referenced: bytes of image and attachments in the source, if the record refers to its image; else 0.
    """

    record: Record
    made: TrainingJpeg
    source_bytes: int
    referenced: int = 0


def make_input_record(
    each: GroupedInput,
    read: Read,
    *,
    encode: EncodeSettings,
    image_timeout: float,
    references: Location | None,
    maps: Mapping[str, Any],
) -> InputRecord:
    """Convert an input, and build the record of its image, attachments and metadata.

    Args:
        read: function that reads the bytes of attachments, and of the input if ``group_inputs`` has not read it.
        image_timeout: seconds for decoding and encoding; 0 for no limit.
        references: folder of the source's files, for a record that refers to its image; None to store the image.
        maps: specifications of maps, by attachment name.

    Raises:
        ImageError: the image or an attachment cannot be read or converted.
        UsageError: the extra (JSON metadata) is too large.
    """
    source = each.source
    data = read(source) if each.data is None else each.data
    if isinstance(data, ImageError):
        raise data
    if isinstance(each.made, TrainingJpeg):
        made = each.made
    else:
        with worker_processes.time_limit(image_timeout):
            made = _make_alone(data, each, encode, is_reference=references is not None)
    attachments = _read_attachments(source, read)
    if references is not None:
        for name in (PREFIX + each for each in maps if attachments.get(PREFIX + each)):
            spec, size = MapSpec.from_json(maps[name.removeprefix(PREFIX)]), _coordinates(source, made).upright_size
            if problem := map_problem(name, attachments[name], spec, size):
                raise ImageError(f"{problem}: `picstore convert` reads it")
        record = _make_reference(each.id, source, made, attachments, references)
        return InputRecord(record, made, len(data), len(made.jpeg) + sum(map(len, attachments.values())))
    attachments = _move(attachments, _coordinates(source, made), maps)
    extra, label = _make_extra(source, made), source.label
    record = make_record(made.jpeg, id=each.id, label=label, extra=extra, attachments=attachments, info=made.info)
    return InputRecord(record, made, len(data))


def _move(attachments: Mapping[str, bytes], image: CoordinateMap, maps: Mapping[str, Any]) -> dict[str, bytes]:
    """Rotate and resize attachments like their image; those named in ``maps`` are encoded as maps, dropped if empty."""
    specs = {PREFIX + name: MapSpec.from_json(entry) for name, entry in maps.items()}
    return {
        name: make_map(name, blob, specs[name], image) if name in specs else move_attachment(name, blob, image)
        for name, blob in attachments.items()
        if blob or name not in specs
    }


def _make_alone(data: bytes, each: GroupedInput, encode: EncodeSettings, *, is_reference: bool) -> TrainingJpeg:
    name = each.source.name
    if is_reference:
        return index_image(data, settings=encode, name=name)
    if isinstance(each.made, str):
        return reencode(data, each.made, settings=encode, name=name)
    return make_training_jpeg(data, settings=encode, name=name)


def _coordinates(source: Input, made: TrainingJpeg) -> CoordinateMap:
    return replace(made.coordinates, orientation=1) if source.upright else made.coordinates


def _make_extra(source: Input, made: TrainingJpeg) -> Any:
    """Build a record's extra: the input's path and fields, with boxes and polygons in pixels of the stored image."""
    extra = {"path": source.name}
    if source.extra:
        extra |= json.loads(source.extra)
    elif source.annotated is None:
        return extra
    if not source.targets:
        return extra
    coordinates = _coordinates(source, made)
    if source.targets != OWN:
        own = in_own_form(extra, source.targets, coordinates.upright_size)
        fields = target_fields(source.targets)
        mapped = map_targets({name: own[name] for name in fields if name in own}, coordinates)
        return {**own, **mapped}
    return map_targets(extra, coordinates, annotated=source.annotated)


def _read_attachments(source: Input, read: Read) -> dict[str, bytes]:
    return {name: _read_attachment(name, attached, read) for name, attached in source.attachments}


def _read_attachment(name: str, attached: Input, read: Read) -> bytes:
    try:
        return read(attached)
    except ImageError as error:
        raise ImageError(f"{name} {attached.name} {error}") from error


def convert_sample(
    task: tuple[int, Input, EncodeSettings, float, Mapping[str, Any]], _: ProgressCallback
) -> int | None:
    """Convert an input without writing anything, to learn how many bytes its record would have.

    ``task`` holds the input's index, the input, encode settings, the time limit in seconds, and map specifications by
    name. Return the size in bytes of training JPEG and attachments, or None if the input fails.
    """
    _number, source, encode, image_timeout, maps = task
    try:
        data = read_input(source)
        with worker_processes.time_limit(image_timeout):
            made = make_training_jpeg(data, settings=encode, name=source.name)
        attachments = _move(_read_attachments(source, read_input), _coordinates(source, made), maps)
    except ImageError:
        return None
    return len(made.jpeg) + sum(map(len, attachments.values()))


def _make_reference(
    id_: int, source: Input, made: TrainingJpeg, attachments: Mapping[str, bytes], root: Location
) -> Record:
    """Build a record of references; raise ImageError if image or attachments are not byte ranges of files."""
    extra = _make_extra(source, made)
    names = dict(source.attachments)
    blobs: dict[str, bytes | memoryview] = {
        name: _refer(names[name], data, root) for name, data in attachments.items() if data
    }
    return Record(
        id=id_,
        label=source.label,
        jpeg=_refer(source, made.jpeg, root),
        info=made.info,
        extra_json=extra_to_json(extra),
        attachments=blobs,
    )


def _refer(source: Input, data: bytes, root: Location) -> bytes:
    """Serialize a reference (path, range, CRC) to an input; raise ImageError if no file in ``root`` holds its bytes."""
    if source.reader is not None:
        raise ImageError("its file does not hold it as it is: `picstore convert` reads it")
    folder = str(root).rstrip("/") + "/"
    if not source.path.startswith(folder):
        raise ImageError(f"{source.path} is no file below {folder}")
    try:
        return Reference(source.path[len(folder) :], source.offset, len(data), crc32c(data)).pack()
    except UsageError as error:
        raise ImageError(f"cannot be indexed: {error}") from error


def require_references(listing: Listing) -> None:
    """Raise UsageError if an index could refer to none of the source's images, because none is a file's byte range."""
    if all(one.reader is not None for one in listing.inputs):
        text = "no image of this source lies in a file as it is; they are compressed, or in pages of a library"
        raise UsageError(f"{text} (read as source {listing.kind}): use `picstore convert`")


def references_root(source: Location, root: Location | None) -> Location:
    """Return the folder to which an index's references are relative: ``root``, or by default the source's folder."""
    if root is not None:
        return root.absolute()
    return source if source.is_folder() else source.parent


def shuffled(listing: Listing, seed: int) -> Listing:
    """Shuffle a listing's inputs by ``seed``, so that each container of an index has images from the whole source."""
    order = rng.permutation(rng.key(rng.DEAL, seed), len(listing.inputs))
    inputs = list(listing.inputs)
    return replace(listing, inputs=[inputs[k] for k in order.tolist()])


def is_of_files(listing: Listing) -> bool:
    """Return whether each image is a file of its own; such images are read equally fast in any order."""
    return all(one.size < 0 or not one.offset for one in listing.inputs)
