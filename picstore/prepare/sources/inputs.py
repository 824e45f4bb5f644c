"""Input and Listing, the images that a source lists, and reading their bytes, ahead of use where it takes long."""

from __future__ import annotations

import hashlib
import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from picstore.errors import Changed, Damage, ImageError, NotADataset, PicstoreError, TooLarge, UsageError
from picstore.prepare.sources.source_file import locate_version
from picstore.storage.format.checksum import crc32c, masked
from picstore.storage.location.regular_file import is_version, open_regular

MAX_INPUT = 1 << 30  # bytes of one source image
_INPUT_ERRORS = (Damage, ImageError, NotADataset, UsageError)  # all others mean that a store cannot be reached


@dataclass(frozen=True, slots=True)
class Input:
    """One source image.

    Attributes:
        name: name in the ledger and in the record's extra; bytes of a file name that are not UTF-8 appear as ``\\xff``.
        label: class number, −1 for unknown.
        path: path of the file that holds it, or URL of the object.
        offset, size: byte range in that file; size −1 is up to its end.
        problem: reason why it cannot be read, if listing found one; else empty.
        extra: JSON object for the record's extra beside ``path``, as text, so that a million inputs with targets stay
            small; empty for none.
        annotated: width and height of the image that targets in the extra refer to; see ``coordinates.map_targets``.
        attachments: further inputs whose bytes become attachments of the record, by names that the listing declares.
        reader: module-level function that reads an input that is no byte range of a file, from ``path``, ``offset``,
            ``size`` and ``key``; None for a byte range. Other processes import it by name. It raises ImageError, and
            may keep files open.
        key: argument for the reader only.
        crc: CRC-32C that the bytes must have, if it is known.
        targets: forms of the targets in the extra, ``target_forms.OWN`` or as ``--targets`` has them; empty if fields
            that are called alike are metadata, which stays as it is.
        upright: whether targets in the extra are in pixels of the upright image, whatever the file's orientation.
        frame: offset and size of the record that holds the image, if the record's masked CRC-32C follows it. Reading
            the image then checks the record, whose label and metadata listing takes unchecked.
        lost: estimate of the samples of a damaged file that have no inputs, beside this one, which tells of the damage.
        version: version of the file in which ``offset`` and ``key`` were found, see ``SourceFile.version``; reading
            another one raises ImageError. Empty where the input is a whole file.
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
    """Ids of inputs, and their division into containers and rows, which a conversion keeps.

    Attributes:
        uuid: of the index that they come from, or of the one that it shares ids and order with.
        ids: of all inputs.
        containers: number of the first input of each container, and the number of inputs.
        rows: the same of each row.
    """

    uuid: str
    ids: tuple[int, ...]
    containers: tuple[int, ...]
    rows: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Listing:
    """All inputs of a source, in order.

    Attributes:
        kind: name of the kind, as in ``--source``.
        inputs: a list, or an ``InputTable`` of as many as do not fit in memory.
        classes: names by label.
        attachments: names of the attachments that inputs may have.
        remarks: messages for the user: files skipped, objects left out.
        duplicates: number of each input to leave out, with the number of the first that has the same bytes; None if
            nobody searched.
        partition: ids, containers and rows of the inputs, if the source has them.
        targets: forms of targets that the user named.
        alike: counts of samples with metadata that is called as targets are, by field.
    """

    kind: str
    inputs: Sequence[Input]
    classes: list[str]
    attachments: tuple[str, ...] = ()
    remarks: list[str] = field(default_factory=list)
    duplicates: dict[int, int] | None = None
    partition: Partition | None = None
    targets: str = ""
    alike: dict[str, int] = field(default_factory=dict)

    def digest(self) -> str:
        """SHA-256 of names, labels, extras and attachments; a resumed conversion compares it with the first run's."""
        digest = hashlib.sha256()
        for source in self.inputs:
            digest.update(f"{source.label} {source.name}\n".encode())
            digest.update(source.extra)
            digest.update(source.targets.encode())
            for name, attached in source.attachments:
                digest.update(f"{name} {attached.name}\n".encode())
        return digest.hexdigest()


def relabel_input(source: Input, labels: Sequence[int]) -> Input:
    """Map an input's label, and of targets the labels of boxes, through ``labels``; values outside of it stay."""
    extra = source.extra
    if source.targets and b'"box_labels"' in extra:
        fields = json.loads(extra)
        if isinstance(boxes := fields.get("box_labels"), list) and all(type(label) is int for label in boxes):
            fields["box_labels"] = [labels[label] if 0 <= label < len(labels) else label for label in boxes]
            extra = json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()
    label = labels[source.label] if 0 <= source.label < len(labels) else source.label
    return replace(source, label=label, extra=extra)


def read_input(source: Input) -> bytes:
    """Read an input's bytes; ImageError if impossible or over MAX_INPUT, PicstoreError for an unreachable store."""
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
        file, file_size = open_regular(source.path)  # a file object takes 30 µs more
        try:
            # pread allocates what it is asked for: with MAX_INPUT an image took 105 µs, with the file's size 25 µs.
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
    except (ValueError, OverflowError) as error:  # a name with a zero byte in it; an offset beyond 64 bits
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
    """Whether this is the URL of an object; no path is, since pathlib makes one slash of two."""
    return "://" in path


def _fetch_range(source: Input) -> bytes:
    """Read a byte range of an object. A store that cannot be reached is no ImageError, as the input is not at fault."""
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
    """Raise Changed if a local file is not the one that was listed; readers of stores open a pinned location."""
    if source.version and not is_remote(source.path) and not is_version(Path(source.path).stat(), source.version):
        raise Changed(Changed.WHAT, source.path)


def _call_reader(reader: Callable[[Input], bytes], source: Input) -> bytes:
    try:
        _check_version(source)
        data = reader(source)
        _check_version(source)  # the reader may have opened a file that took the place of the other one
    except PicstoreError as error:
        if isinstance(error, ImageError) or (is_remote(source.path) and not isinstance(error, _INPUT_ERRORS)):
            raise
        raise ImageError(str(error)) from error
    except Exception as error:  # a library may raise anything for a damaged file, which must not stop other inputs
        raise ImageError(f"cannot be read: {type(error).__name__}: {error}") from error
    return data


_MAX_AHEAD = 32 << 20  # of objects in flight or not read yet
_MAX_REQUESTS = 16
_ASSUMED_BYTES = _MAX_AHEAD // _MAX_REQUESTS  # for an object whose size no listing told


class ReadAhead:
    """Reader of inputs in order; fetches inputs from an object store before they are asked for, several at a time.

    A request takes about 20 ms at any store, as long as a worker needs for several images. Inputs with a reader are
    read when asked for, since the reader may depend on sequential access. Each of ``inputs`` is read before its
    attachments; some may be skipped.
    """

    def __init__(self, inputs: Iterable[Input]) -> None:
        each = (one for source in inputs for one in (source, *(attached for _, attached in source.attachments)))
        self._coming = (one for one in each if is_fetchable(one))
        self._threads = ThreadPoolExecutor(_MAX_REQUESTS, thread_name_prefix="picstore-ahead")
        self._requests: deque[tuple[Input, Future[bytes]]] = deque()
        self._bytes = 0

    def read(self, source: Input) -> bytes:
        """Read an input; raises as :func:`read_input` does."""
        while is_fetchable(source) and self._submit_requests():
            first, future = self._requests.popleft()
            self._bytes -= _expected_bytes(first)
            if first is source:
                return future.result()
            future.cancel()  # a skipped input
        return read_input(source)

    def _submit_requests(self) -> bool:
        """Fill up the requests in flight; returns whether there are any."""
        while self._bytes < _MAX_AHEAD and (following := next(self._coming, None)) is not None:
            self._requests.append((following, self._threads.submit(read_input, following)))
            self._bytes += _expected_bytes(following)
        return bool(self._requests)

    def __enter__(self) -> ReadAhead:
        return self

    def __exit__(self, *exception: object) -> None:
        self._threads.shutdown(cancel_futures=True)


def is_fetchable(source: Input) -> bool:
    """Whether reading an input is one request to a store, independent of all others."""
    return not source.problem and source.reader is None and is_remote(source.path)


def _expected_bytes(source: Input) -> int:
    return source.size if source.size >= 0 else _ASSUMED_BYTES
