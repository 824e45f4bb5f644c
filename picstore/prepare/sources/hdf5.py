"""HDF5 as a source: images as pixels or as bytes of image files, with labels; read by h5py (the extra ``hdf5``)."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from picstore.errors import Corrupt, Damage, ImageError, TooLarge, UsageError, counted
from picstore.prepare.sources.compressed_and_raw import image_file
from picstore.prepare.sources.inputs import MAX_INPUT, Input, Listing
from picstore.prepare.sources.labels import LABEL_FIELDS, LabelFields, take_label, usual_field
from picstore.prepare.sources.listing_builder import ListingBuilder
from picstore.prepare.sources.lost_samples import end_at_damage
from picstore.prepare.sources.metadata import decode_text
from picstore.prepare.sources.samples import SourceSample, choose_image
from picstore.prepare.sources.source_file import SourceFile, printable
from picstore.prepare.sources.source_kinds import SourceFormat, SourceProbe, import_library
from picstore.prepare.sources.splits import choose_split, split_of_name, without_split
from picstore.storage.location.local import Folder

_MAGIC = b"\x89HDF\r\n\x1a\n"
# Offset up to which the magic number is searched, at 0, 512, 1024, 2048, …, because a user block may precede it.
_MAX_USER_BLOCK = 1 << 30
# Attribute of HDF5 datasets that MATLAB wrote; their dimensions are in reverse order.
_MATLAB = "MATLAB_class"
_ROWS_PER_READ = 4096
# Largest number of values per row of a label field that holds lists, such as one-hot vectors.
_MAX_VALUES = 1 << 12
# Number of rows per read if strings have variable length; small, because a row may be as large as the file.
_TEXTS_PER_READ = 64
# Largest plausible number of bytes of a dataset per stored byte; deflate reaches 1,032.
_MAX_RATIO = 1100
# Number of bytes that a dataset may have in addition to _MAX_RATIO per stored byte, because HDF5 does not store values
# that were never written.
_UNWRITTEN = 64 << 20
# Pattern of the x in the name of a dataset of images, such as train_set_x, whose labels are in train_set_y.
_X = re.compile(r"(?<![a-z0-9])x(?![a-z0-9])")


def list_hdf5(
    path: Path, *, image_field: str | None = None, label_field: str | None = None, split: str | None = None
) -> Listing:
    """List every row of a dataset of images: uint8 (N, H, W), (N, H, W, C) or (N, C, H, W), or N image files.

    Other datasets of N numbers or strings in the group of the images, except the label, become the extra. The name of a
    dataset includes its group (``train/images``). Links are not followed. Raise UsageError if a dataset's values lie in
    another file. Raise Damage if a dataset claims far more values than the file can hold.
    """
    h5py = _import_h5py()
    # SourceFile raises Damage for a pipe; h5py would wait for a program to write into the pipe.
    with SourceFile(path) as opened:
        size, version = opened.size, opened.version
    try:
        with h5py.File(path, "r") as file:
            found: dict[str, Any] = {}
            file.visititems(lambda name, item: found.update({name: item}) if isinstance(item, h5py.Dataset) else None)
            for name, item in found.items():
                # Refuse values in other files, because an untrusted HDF5 file could name any file of the user.
                if item.external or item.is_virtual:
                    what = f"dataset {name!r} has its values in other files"
                    raise UsageError(f"{path}: {what}; write them into one file")
            images = [name for name, item in found.items() if _holds_images(h5py, item)]
            if image_field is None or split is not None:
                images = choose_split(images, str, split, path)
            image = _choose_image(images, found, image_field, path)
            _check_matlab(found[image], image, path)
            group, _, last = image.rpartition("/")
            count = len(found[image])
            rows = {
                name.rpartition("/")[2]: item
                for name, item in found.items()
                if name.rpartition("/")[0] == group and _is_column(h5py, item, count, label_field, name)
            }
            rows.pop(last, None)
            # Keep the datasets of the images' split: the labels for X_train are y_train, even if y_test is as long.
            if (of_image := split_of_name(last)) is not None:
                rows = {
                    without_split(name): item for name, item in rows.items() if split_of_name(name) in (None, of_image)
                }
            for name, item in ((last, found[image]), *rows.items()):
                _check_size(item, name, size, path)
            labels = LabelFields(label_field, path)
            partner = _X.sub("y", without_split(last).lower())
            label = labels.choose(rows, only=[name for name in rows if name.lower() == partner != last.lower()])
            samples = _samples(path, image, len(found[image]), rows, label, size)
            remarks = [
                f"dataset {name}: left out" + (f" of {item.shape[0]:,} rows" if item.shape else "")
                for name, item in found.items()
                if name != image and item not in rows.values()
            ]
            listed = end_at_damage(samples, path, f"{path.name}/{image}", count=len(found[image]), version=version)
            return ListingBuilder(listed).build("hdf5", where=path, remarks=remarks, labels=labels)
    # h5py raises any of these exceptions if a file is damaged.
    except (OSError, RuntimeError, KeyError, TypeError, ValueError) as error:
        raise Damage(f"not an HDF5 file that can be read: {error}", printable(str(path))) from error


def _check_size(item: Any, name: str, size: int, path: Path) -> None:
    """Raise TooLarge, before any memory is allocated, if a dataset cannot fit into the file's ``size`` bytes."""
    row = item.dtype.itemsize * math.prod(item.shape[1:])
    stored = min(item.id.get_storage_size(), size)
    if max(1, row) * len(item) > _MAX_RATIO * stored + _UNWRITTEN:
        what = f"dataset {name!r} claims {counted(len(item), 'row')} of {row:,} bytes, and {stored:,} bytes are there"
        raise TooLarge(what, printable(str(path)))
    if item.chunks and math.prod(item.chunks) * item.dtype.itemsize > MAX_INPUT:
        raise TooLarge(f"dataset {name!r} has chunks of shape {item.chunks}", printable(str(path)))


def _import_h5py() -> Any:
    return import_library("h5py", "h5py", "hdf5")


def _choose_image(images: list[str], found: dict[str, Any], given: str | None, path: Path) -> str:
    if not images and any(item.dtype.kind == "O" for item in found.values()):
        raise UsageError(f"{path} holds objects or references, not images; store uint8, of variable length or not")
    last_names = {name.rpartition("/")[2].lower() for name in images}
    if given is None and len(images) > 1 and len(last_names) == 1:
        raise UsageError(f"{path} has images in {', '.join(images)}; name one by --image-field")
    return choose_image(given, images, path)


def _check_matlab(item: Any, name: str, path: Path) -> None:
    channels = [size in (1, 3, 4) for size in item.shape]
    if _is_of_matlab(item) and item.ndim == 4 and channels[0] and not any(channels[1:]):
        shape = " × ".join(map(str, reversed(item.shape)))
        raise UsageError(
            f"{path}: MATLAB's array {name!r} of {shape} has its images in the first dimension; "
            "write it as height × width × channels × images"
        )


def _holds_images(h5py: Any, item: Any) -> bool:
    if item.shape is None or not item.shape:
        return False
    if item.dtype == np.uint8 and item.ndim in (3, 4):
        return True
    inner = h5py.check_vlen_dtype(item.dtype)
    return item.ndim == 1 and (inner in (np.dtype(np.uint8), np.dtype(np.int8)) or item.dtype.kind == "V")


def _is_column(h5py: Any, item: Any, count: int, label_field: str | None, path: str) -> bool:
    """Return whether a dataset has one number or string per image, in shape (N,), (N, 1), … or MATLAB's (1, N).

    The label's dataset may also have shape (N, k), such as one-hot vectors, which become part of the extra.
    """
    if item.shape is None or count not in item.shape:
        return False
    of_texts = h5py.check_string_dtype(item.dtype) is not None
    if not of_texts and item.dtype.kind not in "iufbS":
        return False
    if math.prod(item.shape) == count:
        return True
    name = path.rpartition("/")[2]
    is_label = name == label_field or usual_field([name, without_split(name)], LABEL_FIELDS) is not None
    numbers = not of_texts and item.ndim == 2 and len(item) == count and item.shape[1] <= _MAX_VALUES
    return is_label and numbers and not _is_of_matlab(item)


def _is_of_matlab(item: Any) -> bool:
    return _MATLAB in item.attrs


def _samples(
    path: Path, image: str, count: int, rows: dict[str, Any], label: str | None, size: int
) -> Iterator[SourceSample]:
    """Yield a sample per row of the dataset ``image``. Its fields are the row's values in the datasets of ``rows``.

    Raise Corrupt once the strings read so far have more than ``size`` bytes, the size of the file, because all rows of
    a hostile file may refer to one string, which would take memory for each row.
    """
    fixed = sum(item.dtype.itemsize * math.prod(item.shape) // max(1, count) for item in rows.values())
    texts = [name for name, item in rows.items() if item.dtype.kind == "O"]
    step = _TEXTS_PER_READ if texts else max(1, min(_ROWS_PER_READ, _UNWRITTEN // max(1, fixed)))
    for start in range(0, count, step):
        stop = min(start + step, count)
        columns = {name: _values(item, start, stop, count) for name, item in rows.items()}
        size -= sum(len(value) for name in texts for value in columns[name] if isinstance(value, bytes))
        if size < 0:
            raise Corrupt("rows that share their texts", printable(str(path)))
        for k in range(stop - start):
            name = printable(f"{path.name}/{image}/{start + k}")
            sample = SourceSample(name, str(path), start + k, reader=read_hdf5, key=image.encode())
            row = {column: values[k] for column, values in columns.items()}
            sample.extra = {name: decode_text(each) if isinstance(each, bytes) else each for name, each in row.items()}
            damaged = [column for column, value in sample.extra.items() if isinstance(value, Damage)]
            if damaged:
                sample.problem = f"damaged: {damaged[0]}: {sample.extra[damaged[0]].what}"
                sample.extra = {}
            sample.label = take_label(sample.extra, label)
            yield sample


def _values(item: Any, start: int, stop: int, count: int) -> list[Any]:
    """Return the values of a dataset's rows ``start`` to ``stop`` − 1; an unreadable row has a Damage as its value."""
    axis = item.shape.index(count)
    try:
        values = np.asarray(item[(slice(None),) * axis + (slice(start, stop),)])
        return list((values.ravel() if math.prod(item.shape) == count else values).tolist())
    except (OSError, RuntimeError) as error:
        if stop - start == 1:
            return [Damage(f"cannot be read: {error}", item.name)]
    return [value for row in range(start, stop) for value in _values(item, row, row + 1, count)]


@functools.lru_cache(1)
def _open_file(path: str, version: str) -> Any:  # noqa: ARG001 - in the key of the cache
    """Return an open HDF5 file; ``version`` is part of the cache's key, so that a changed file is opened again."""
    return _import_h5py().File(path, "r")


def read_hdf5(source: Input) -> bytes:
    """Return row ``offset`` of the dataset named ``key`` as an image file; the HDF5 file stays open for later rows."""
    item = _open_file(source.path, source.version)[source.key.decode()]
    if item.dtype == np.uint8 and np.prod(item.shape[1:], dtype=float) > MAX_INPUT:
        raise ImageError(f"pixels of shape {item.shape[1:]}")
    value = item[source.offset]
    if isinstance(value, np.void):
        return value.tobytes()
    array = np.asarray(value).view(np.uint8)
    if array.ndim > 1 and _is_of_matlab(item):
        array = array.transpose()
    return array.tobytes() if array.ndim == 1 else image_file(np.ascontiguousarray(array))


def recognizes(probe: SourceProbe) -> bool:
    """Return whether a file has HDF5's magic number, perhaps after a user block, such as MATLAB writes."""
    if probe.is_folder or probe.head().startswith(_MAGIC) or not isinstance(probe.location, Folder):
        return not probe.is_folder and probe.head().startswith(_MAGIC)
    try:
        with SourceFile(probe.location) as file:
            offset = 512
            while offset + len(_MAGIC) <= min(file.size, _MAX_USER_BLOCK):
                if file.read(offset, len(_MAGIC)) == _MAGIC:
                    return True
                offset *= 2
    except Damage:
        pass
    return False


FORMAT = SourceFormat(list_hdf5, options=("image_field", "label_field", "split"), recognizes=recognizes)
