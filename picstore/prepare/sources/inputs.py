"""Inputs: what a source lists and convert reads, one for each image.

The one place where files and objects of a source are opened.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType

from picstore.errors import Damage, ImageError, NotADataset, PicstoreError, TooLarge, Truncated, UsageError
from picstore.storage.location.local import Folder
from picstore.storage.location.resolve import Entry, Location, Where, locate

MAX_INPUT = 1 << 30  # bytes of one source image
_WINDOW = 1 << 12  # bytes read at once while walking through the small fields of a file
_REMOTE_WINDOW = 8 << 20  # the same for an object: as long as a request takes, the network could bring a megabyte
_AHEAD = 32 << 20  # bytes of objects that are fetched before they are asked for
_AT_A_TIME = 16  # requests
_UNKNOWN = _AHEAD // _AT_A_TIME  # bytes that an object counts whose size no listing told: as many as there are requests
_OF_THE_INPUT = (Damage, ImageError, NotADataset, UsageError)  # other errors say that a store cannot be reached


@dataclass(frozen=True, slots=True)
class Input:
    """One source image.

    Attributes:
        name: as the ledger and the record's extra call it; bytes of a file name that are not UTF-8 appear as ``\\xff``.
        label: its class, −1 for unknown.
        path: the file that holds it, or the URL of the object.
        offset, size: where in that file; size −1 is all of it.
        problem: why it cannot be read, known since listing; empty otherwise.
        extra: a JSON object of what the record's extra holds beside ``path``, as text, so that a million inputs with
            targets stay small; empty for none.
        annotated: width and height of the image that targets in the extra are of; see ``coordinates.map_targets``.
        attachments: further inputs whose bytes the record carries along, by the names that the listing declares.
        reader: a function of a module that reads what is no stretch of a file, as it stands, from ``path``, ``offset``,
            ``size`` and ``key``; None for a stretch. It is handed to other processes by its name. It raises ImageError,
            and may keep a file open.
        key: what only the reader understands.
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


@dataclass(frozen=True, slots=True)
class Listing:
    """A source: its inputs in order.

    Attributes:
        kind: what ``--source`` calls it.
        classes: names by label.
        attachments: names of those that its inputs may have.
        remarks: what the user should hear of it: files passed over, objects left out.
        duplicates: inputs that are left out, each with the first that has the same bytes; None where nobody looked.
    """

    kind: str
    inputs: list[Input]
    classes: list[str]
    attachments: tuple[str, ...] = ()
    remarks: list[str] = field(default_factory=list)
    duplicates: dict[int, int] | None = None

    def digest(self) -> str:
        """SHA-256 of all that inputs are told by: tells a resumed conversion that its source is still the same."""
        digest = hashlib.sha256()
        for source in self.inputs:
            digest.update(f"{source.label} {source.name}\n".encode())
            digest.update(source.extra)
            for name, attached in source.attachments:
                digest.update(f"{name} {attached.name}\n".encode())
        return digest.hexdigest()


def read_input(source: Input) -> bytes:
    """The bytes of an input; ImageError with the reason when they cannot be had."""
    if source.problem:
        raise ImageError(source.problem)
    data = _read_stretch(source) if source.reader is None else _read_by(source.reader, source)
    if len(data) > MAX_INPUT:
        raise ImageError(f"larger than {MAX_INPUT >> 20} MiB")
    return data


def _read_stretch(source: Input) -> bytes:
    if is_remote(source.path):
        return _fetch(source)
    try:
        file = os.open(source.path, os.O_RDONLY)  # a file object takes 30 µs more
        try:
            # Asking for more than there is would allocate that much: 80 of 105 µs an image.
            there = max(0, os.fstat(file).st_size - source.offset)
            size = there if source.size < 0 else min(there, source.size)
            data = os.pread(file, min(size, MAX_INPUT + 1), source.offset)
        finally:
            os.close(file)
    except OSError as error:
        raise ImageError(f"cannot be read: {error.strerror or error}") from error
    except (ValueError, OverflowError) as error:  # a name with a zero byte in it; an offset beyond 64 bits
        raise ImageError(f"cannot be read: {error}") from error
    if len(data) < min(source.size, MAX_INPUT):
        raise ImageError(f"truncated: {len(data)} of {source.size} bytes are there")
    return data


def is_remote(path: str) -> bool:
    """Whether this is a URL of an object store. No path is: pathlib makes one slash of two."""
    return "://" in path


def _fetch(source: Input) -> bytes:
    """A stretch of an object. A store that cannot be reached is no ImageError: the input is not to blame."""
    try:
        place = locate(source.path)
        if source.size < 0 and not source.offset:
            return place.read_all(MAX_INPUT)
        size = source.size if source.size >= 0 else max(0, place.size() - source.offset)
        return bytes(place.read(source.offset, min(size, MAX_INPUT + 1), file=source.name))
    except TooLarge as error:
        raise ImageError(f"larger than {MAX_INPUT >> 20} MiB") from error
    except _OF_THE_INPUT as error:
        raise ImageError(f"cannot be read: {error}") from error


class ReadAhead:
    """Reads inputs in their order; those in an object store several at a time, before they are asked for.

    A request takes some 20 ms wherever it goes to, which is what a worker needs for several images. What has a reader
    of its own waits until it is asked for, since the reader may keep the place that it has come to.

    Args:
        inputs: that will be read, in order, each before its attachments; some may be passed over.
    """

    def __init__(self, inputs: Iterable[Input]) -> None:
        each = (one for source in inputs for one in (source, *(attached for _, attached in source.attachments)))
        self._coming = (one for one in each if is_fetched(one))
        self._threads = ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="picstore-ahead")
        self._ahead: deque[tuple[Input, Future[bytes]]] = deque()
        self._bytes = 0

    def read(self, source: Input) -> bytes:
        """As :func:`read_input`."""
        while is_fetched(source) and self._fetch_more():
            first, future = self._ahead.popleft()
            self._bytes -= _expected(first)
            if first is source:
                return future.result()
            future.cancel()  # it was passed over
        return read_input(source)

    def _fetch_more(self) -> bool:
        """Whether any is on its way or there."""
        while self._bytes < _AHEAD and (following := next(self._coming, None)) is not None:
            self._ahead.append((following, self._threads.submit(read_input, following)))
            self._bytes += _expected(following)
        return bool(self._ahead)

    def __enter__(self) -> ReadAhead:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._threads.shutdown(cancel_futures=True)


def is_fetched(source: Input) -> bool:
    """Whether reading it is one request to a store, of which many may be under way."""
    return not source.problem and source.reader is None and is_remote(source.path)


def _expected(source: Input) -> int:
    return source.size if source.size >= 0 else _UNKNOWN


def _read_by(reader: Callable[[Input], bytes], source: Input) -> bytes:
    try:
        return reader(source)
    except PicstoreError as error:
        if isinstance(error, ImageError) or (is_remote(source.path) and not isinstance(error, _OF_THE_INPUT)):
            raise
        raise ImageError(str(error)) from error
    except Exception as error:  # whatever a library has for a damaged file, it must not stop the other inputs
        raise ImageError(f"cannot be read: {type(error).__name__}: {error}") from error


class SourceFile:
    """A file of a source, read in stretches that must lie in it, so that no length is trusted.

    Args:
        where: the file.
        window: bytes that are read at once where fewer are asked for; 0 for what suits a walk through the file.

    Attributes:
        path: of the file, or the URL of the object.
        name: its last part.
        size: bytes.
        place: what messages call it.

    Raises:
        Damage: the system does not let us open or read it.
    """

    def __init__(self, where: Where, *, window: int = 0) -> None:
        location = locate(where)
        self.path, self.name = str(location), location.name
        self.place = printable(self.path)
        self._window, self._window_at = b"", 0
        self._object = None if isinstance(location, Folder) else location
        if self._object is not None:
            self._least = window or _REMOTE_WINDOW
            try:
                self.size = self._object.size()
            except NotADataset as error:  # in the words of a folder, since the ledger repeats them
                raise Damage(f"cannot be read: {os.strerror(errno.ENOENT)}", self.place) from error
            return
        self._least = window or _WINDOW
        try:
            self._file = os.open(self.path, os.O_RDONLY)
            self.size = os.fstat(self._file).st_size
        except OSError as error:
            raise Damage(f"cannot be read: {error.strerror or error}", self.place) from error

    def read(self, offset: int, size: int) -> bytes:
        """Exactly these bytes; Truncated, before anything is allocated, if the file does not have them."""
        if size < 0 or offset < 0 or offset + size > self.size:
            raise Truncated(f"{size:,} bytes are said to be here, the file has {self.size:,}", self.place, offset)
        at = offset - self._window_at
        if at < 0 or at + size > len(self._window):
            self._window, self._window_at, at = self._pread(offset, max(size, self._least)), offset, 0
        if at + size > len(self._window):
            raise Truncated("the file was cut off while it was read", self.place, offset)
        return self._window[at : at + size]

    def _pread(self, offset: int, size: int) -> bytes:
        if self._object is not None:
            return bytes(self._object.read(offset, min(size, self.size - offset), file=self.place))
        try:
            return os.pread(self._file, size, offset)
        except OSError as error:
            raise Damage(f"cannot be read: {error.strerror or error}", self.place, offset) from error

    def __enter__(self) -> SourceFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._object is None:
            os.close(self._file)


def printable(name: str) -> str:
    """A file name as UTF-8 text; its other bytes are written ``\\xff``."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def entries_of(place: Location) -> list[Entry]:
    """What a folder holds, by name, without hidden names."""
    return [entry for entry in place.entries() if not entry.name.startswith(".")]
