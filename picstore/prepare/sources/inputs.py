"""Input and Listing, the images that a source lists; and reading the bytes of inputs, from object stores in advance."""

from __future__ import annotations

import hashlib
import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from picstore.errors import Changed, Damage, ImageError, NotADataset, PicstoreError, TooLarge, UsageError
from picstore.prepare.sources.source_file import locate_version
from picstore.storage.format.checksum import crc32c, masked
from picstore.storage.location.regular_file import is_version, open_regular

MAX_INPUT = 1 << 30  # largest size in bytes of a source image
# Errors that make a single input fail. Any other PicstoreError means that an object store cannot be reached.
_INPUT_ERRORS = (Damage, ImageError, NotADataset, UsageError)


@dataclass(frozen=True, slots=True)
class Input:
    r"""Image of a source, not read yet.

    Attributes:
        name: name in the ledger and the record's extra; the escape ``\xff`` stands for a byte 255 that is not UTF-8.
        label: class number, −1 for unknown.
        path: path of the file that holds the image, or URL of the object.
        offset, size: byte range in the file; size −1 means up to the end.
        problem: reason why the image cannot be read; empty if listing found none.
        extra: members of the record's extra except ``path``, as bytes of a JSON object; empty for none.
        annotated: width and height in pixels of the image that targets in the extra refer to; see ``map_targets``.
        attachments: name of each attachment, and the input that has its bytes.
        reader: function that returns the input's bytes, or raises ImageError; None to read the byte range of ``path``.
            It must be at module level, because other processes import it by name.
        key: what ``reader`` needs besides the byte range, in the reader's format.
        crc: CRC-32C that the bytes must have; None if unknown.
        targets: how the targets (boxes, polygons, keypoints) in the extra are written: ``annotations.OWN`` or the value
            of ``--targets``. Empty if fields called like targets are metadata, which conversion leaves unchanged.
        upright: whether targets in the extra are in pixels of the image as rotated by its EXIF orientation.
        frame: offset and size in bytes of the data that contains the image, if a masked CRC-32C follows the data; else
            None. The CRC is checked when the image is read, not when the label and metadata are listed.
        lost: estimated number of lost samples, if the input stands for all samples that a damaged file lost; else 0.
        version: version of the file (``SourceFile.version``) for which ``offset`` and ``key`` hold; reading another
            version raises ImageError. Empty if the input is a whole file.
    """

    name: str
    label: int
    path: str
    offset: int = 0
    size: int = -1
    problem: str = ""
    extra: bytes = b""
    annotated: tuple[int, int] | None = None
    attachments: tuple[tuple[str, Input], ...] = ()
    reader: Callable[[Input], bytes] | None = None
    key: bytes = b""
    crc: int | None = None
    upright: bool = False
    frame: tuple[int, int] | None = None
    lost: int = 0
    targets: str = ""
    version: str = ""


@dataclass(frozen=True, slots=True)
class Partition:
    """Ids, containers and rows of files of an index, all of which a conversion keeps.

    Attributes:
        uuid: UUID of the index that the inputs come from, or of an earlier index with the same ids and order.
        ids: ids of all inputs.
        containers: position in the listing of the first input of each container (block of records), then the number of
            all inputs.
        rows: position in the listing of the first input of each row of files (one file per stream), then the number of
            all inputs.
    """

    uuid: str
    ids: tuple[int, ...]
    containers: tuple[int, ...]
    rows: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Listing:
    """All inputs of a source, in order.

    Attributes:
        kind: name of the source's kind, as for ``--source``.
        inputs: a list, or an ``InputTable`` for more inputs than fit in memory.
        classes: class names by label.
        attachments: names of the attachments that inputs may have.
        remarks: messages for the user: files skipped, objects left out.
        duplicates: for the index of each input to leave out, the index of the first input with the same bytes. None if
            no search for duplicates was made.
        partition: ids, containers and rows of the inputs, if the source is a picstore index; else None.
        targets: value of ``--targets``, which says how boxes, polygons and keypoints are written.
        maps: specifications of the attachments that are maps, by name without ``map:``, as in the manifest.
        alike: for each metadata field called like a target field, such as ``boxes``, the number of samples that have
            it.
    """

    kind: str
    inputs: Sequence[Input]
    classes: list[str]
    attachments: tuple[str, ...] = ()
    remarks: list[str] = field(default_factory=list)
    duplicates: dict[int, int] | None = None
    partition: Partition | None = None
    targets: str = ""
    maps: dict[str, Any] = field(default_factory=dict)
    alike: dict[str, int] = field(default_factory=dict)

    def digest(self) -> str:
        """Return a SHA-256 of names, labels, extras and attachments, by which a resumed job detects another source."""
        digest = hashlib.sha256()
        for source in self.inputs:
            digest.update(f"{source.label} {source.name}\n".encode())
            digest.update(source.extra)
            digest.update(source.targets.encode())
            for name, attached in source.attachments:
                digest.update(f"{name} {attached.name}\n".encode())
        return digest.hexdigest()


def relabel_input(source: Input, labels: Sequence[int]) -> Input:
    """Return an input with each label and each box's label k replaced by ``labels[k]``.

    Labels that are no index of ``labels``, such as −1, are kept.
    """
    extra = source.extra
    if source.targets and b'"box_labels"' in extra:
        fields = json.loads(extra)
        if isinstance(boxes := fields.get("box_labels"), list) and all(type(label) is int for label in boxes):
            fields["box_labels"] = [labels[label] if 0 <= label < len(labels) else label for label in boxes]
            extra = json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()
    label = labels[source.label] if 0 <= source.label < len(labels) else source.label
    return replace(source, label=label, extra=extra)


def read_input(source: Input) -> bytes:
    """Return an input's bytes; raise ImageError if unreadable or above MAX_INPUT, PicstoreError if its store fails."""
    if source.problem:
        raise ImageError(source.problem)
    read = _read_range if source.frame is None else _read_framed
    data = read(source) if source.reader is None else _call_reader(source.reader, source)
    if len(data) > MAX_INPUT:
        raise ImageError(f"larger than {MAX_INPUT >> 20} MiB")
    if source.crc is not None and crc32c(data) != source.crc:
        raise ImageError("its bytes have changed since they were indexed")
    return data


def _read_range(source: Input) -> bytes:
    if is_remote(source.path):
        return _fetch_range(source)
    try:
        # Open a file descriptor, because opening a file object would take 30 µs more.
        file, file_size = open_regular(source.path)
        try:
            # pread allocates what is requested: reading an image takes 25 µs, or 105 µs if MAX_INPUT is requested.
            available = max(0, file_size - source.offset)
            size = available if source.size < 0 else min(available, source.size)
            data = os.pread(file, min(size, MAX_INPUT + 1), source.offset)
            if source.version and not is_version(os.fstat(file), source.version):
                raise Changed(Changed.WHAT, source.path)
        finally:
            os.close(file)
    except OSError as error:
        raise ImageError(f"cannot be read: {error.strerror or error}") from error
    except Changed as error:
        raise ImageError(f"cannot be read: {error.what}") from error
    # ValueError is raised for a path with a zero byte, OverflowError for an offset of more than 64 bits.
    except (ValueError, OverflowError) as error:
        raise ImageError(f"cannot be read: {error}") from error
    if len(data) < min(source.size, MAX_INPUT):
        raise ImageError(f"truncated: {len(data)} of {source.size} bytes are there")
    return data


def _read_framed(source: Input) -> bytes:
    start, size = source.frame or (0, 0)
    frame = memoryview(_read_range(replace(source, offset=start, size=size + 4)))
    if masked(crc32c(frame[:size])) != int.from_bytes(frame[size:], "little"):
        raise ImageError("damaged: the checksum of its record does not hold")
    return bytes(frame[source.offset - start : source.offset - start + source.size])


def is_remote(path: str) -> bool:
    """Return whether a path is an object's URL. No local path has ``://``, because pathlib merges adjacent slashes."""
    return "://" in path


def _fetch_range(source: Input) -> bytes:
    """Read a byte range of an object; raise ImageError on any failure except an unreachable store."""
    try:
        location = locate_version(source.path, source.version)
        if source.size < 0 and not source.offset:
            return location.read_all(MAX_INPUT)
        size = source.size if source.size >= 0 else max(0, location.size() - source.offset)
        return bytes(location.read(source.offset, min(size, MAX_INPUT + 1), file=source.name))
    except TooLarge as error:
        raise ImageError(f"larger than {MAX_INPUT >> 20} MiB") from error
    except _INPUT_ERRORS as error:
        raise ImageError(f"cannot be read: {error}") from error


def _check_version(source: Input) -> None:
    """Raise Changed if a local file has changed since it was listed; for objects, their readers check this."""
    if source.version and not is_remote(source.path) and not is_version(Path(source.path).stat(), source.version):
        raise Changed(Changed.WHAT, source.path)


def _call_reader(reader: Callable[[Input], bytes], source: Input) -> bytes:
    try:
        _check_version(source)
        data = reader(source)
        # Check the version again, because the file may have been replaced after the first check.
        _check_version(source)
    except PicstoreError as error:
        if isinstance(error, ImageError) or (is_remote(source.path) and not isinstance(error, _INPUT_ERRORS)):
            raise
        raise ImageError(str(error)) from error
    # A library may raise any exception for a damaged file, and other inputs must still be read.
    except Exception as error:
        raise ImageError(f"cannot be read: {type(error).__name__}: {error}") from error
    return data


_MAX_AHEAD = 32 << 20  # number of requested and unread bytes at which ``ReadAhead`` pauses its requests
_MAX_REQUESTS = 16
_ASSUMED_BYTES = _MAX_AHEAD // _MAX_REQUESTS  # size that ``ReadAhead`` assumes for an object of unknown size


class ReadAhead(AbstractContextManager["ReadAhead"]):
    """Reader of inputs in order, which requests 16 objects at a time from an object store, ahead of their use.

    A request takes about 20 ms, in which a worker converts several images. Inputs with a ``reader`` are not requested
    ahead, because readers may need sequential access. Read each input before its attachments; inputs may be skipped.
    """

    def __init__(self, inputs: Iterable[Input]) -> None:
        each = (one for source in inputs for one in (source, *(attached for _, attached in source.attachments)))
        self._coming = (one for one in each if is_fetchable(one))
        self._threads = ThreadPoolExecutor(_MAX_REQUESTS, thread_name_prefix="picstore-ahead")
        self._requests: deque[tuple[Input, Future[bytes]]] = deque()
        self._bytes = 0

    def read(self, source: Input) -> bytes:
        """Read an input as :func:`read_input` does, and raise the same errors."""
        while is_fetchable(source) and self._submit_requests():
            first, future = self._requests.popleft()
            self._bytes -= _expected_bytes(first)
            if first is source:
                return future.result()
            future.cancel()  # The caller has skipped this input.
        return read_input(source)

    def _submit_requests(self) -> bool:
        """Request further inputs, up to about _MAX_AHEAD unread bytes; return whether any requested input is unread."""
        while self._bytes < _MAX_AHEAD and (following := next(self._coming, None)) is not None:
            self._requests.append((following, self._threads.submit(read_input, following)))
            self._bytes += _expected_bytes(following)
        return bool(self._requests)

    def __exit__(self, *exception: object) -> None:
        self._threads.shutdown(cancel_futures=True)


def is_fetchable(source: Input) -> bool:
    """Return whether an input is a byte range or whole object in a store, which one request reads."""
    return not source.problem and source.reader is None and is_remote(source.path)


def _expected_bytes(source: Input) -> int:
    return source.size if source.size >= 0 else _ASSUMED_BYTES
