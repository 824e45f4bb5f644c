"""Multipart upload of an object, which aborts unless every part arrives."""

from __future__ import annotations

import contextlib
import queue
import threading
import zlib
from collections.abc import Callable, Iterator

from picstore.storage.location.abstract_location import Buffer

PART_SIZE = 8 << 20  # bytes; S3 takes 10,000 parts, so an object may have 78 GiB


class _Abandoned(Exception):
    """Raised by the iterator of parts to abort the upload."""


class SentParts:
    """Parts of an object as they are uploaded.

    Attributes:
        size, crc: number of bytes and CRC-32 of the parts so far.
        ended: whether there are no more.
    """

    def __init__(self, parts: Iterator[bytes]) -> None:
        self._parts = parts
        self._first: bytes | None = None  # until a second one is asked for
        self._count = 0
        self.size = self.crc = 0
        self.ended = False

    def all_unsent(self) -> bool:
        """Whether the parts can be iterated over again, as at most one was taken."""
        return self._count < 2 and not self.ended

    def __iter__(self) -> Iterator[bytes]:
        if self._first is not None:
            yield self._first
        for part in self._parts:
            self._count += 1
            self._first = part if self._count == 1 else None
            self.size += len(part)
            self.crc = zlib.crc32(part, self.crc)
            yield part
        self.ended = True


class MultipartUpload:
    """Writer that uploads parts in a thread as they fill; an object of less than one part is one request.

    Args:
        put: writes the object from its bytes, or from parts; an error that these raise must abort the upload.
    """

    def __init__(self, put: Callable[[bytes | Iterator[bytes]], None]) -> None:
        self._put = put
        self._pending = bytearray()
        self._parts: queue.Queue[bytes | _Abandoned | None] = queue.Queue(maxsize=1)
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._ended = False

    def write(self, data: Buffer) -> None:
        self._pending += data
        if len(self._pending) >= PART_SIZE:
            if self._thread is None:
                self._thread = threading.Thread(target=self._upload, name="picstore-upload", daemon=True)
                self._thread.start()
            self._send_to_thread(bytes(self._pending))
            self._pending.clear()

    def close(self) -> None:
        self._ended = True
        if self._thread is None:
            self._put(bytes(self._pending))
            return
        if self._pending:
            self._send_to_thread(bytes(self._pending))
        self._send_to_thread(None)
        self._thread.join()
        self._raise_error()

    def abandon(self) -> None:
        if self._ended:
            return
        self._ended = True
        if self._thread is not None:
            self._send_to_thread(_Abandoned(), report=False)
            self._thread.join()

    def _send_to_thread(self, part: bytes | _Abandoned | None, *, report: bool = True) -> None:
        """Queue a part for the thread, and wait while the queue is full; returns at once if the thread has failed."""
        while True:
            if self._error is not None:
                if report:
                    self._raise_error()
                return
            with contextlib.suppress(queue.Full):
                self._parts.put(part, timeout=0.2)
                return

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _upload(self) -> None:
        try:
            self._put(self._queued_parts())
        except BaseException as error:  # raised in the writing thread by the next call
            self._error = error

    def _queued_parts(self) -> Iterator[bytes]:
        while (part := self._parts.get()) is not None:
            if isinstance(part, _Abandoned):
                raise part
            yield part
