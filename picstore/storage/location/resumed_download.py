"""Reading of an object's bytes by ranges, with retries: if an answer is cut short, the rest is requested.

obstore repeats requests, but continues a half-read answer only if the store gives an ETag. So this module repeats
reads, with one rule for requests and answers.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from picstore.errors import PicstoreError
from picstore.storage.location.abstract_location import Buffer, Range

T = TypeVar("T")

logger = logging.getLogger("picstore")

# Seconds without an answer of a store before the user is told.
TELL_AFTER = 10.0
# Seconds between two messages of a process, because all its readers wait for the same store.
_TELL_AGAIN = 60.0
_told = -math.inf  # time.monotonic() of the previous message

# Bytes to take from an answer at once. Pieces arrive with 8 KiB, and 8 MiB of such pieces take 10 ms of Python.
_PIECE = 1 << 20


class Unreachable(PicstoreError):
    """The store does not answer, or breaks off an answer; a later attempt may succeed."""


class OutOfRange(PicstoreError):
    """The object ends before the requested range."""


@dataclass(frozen=True, slots=True)
class Retries:
    """Rule of retries after random waits; each wait lies between ``first`` and ``base`` times the previous wait.

    Attributes:
        most: number of retries.
        seconds: time after which failures are no longer retried.
        first, longest: bounds of a wait, in seconds.
    """

    most: int
    base: float = 2
    seconds: float = 180
    first: float = 0.1
    longest: float = 15

    def deadline(self) -> float:
        """Return the time of ``time.monotonic()`` after which nothing is retried."""
        return time.monotonic() + self.seconds

    def waits(self, until: float) -> Iterator[float]:
        """Yield the seconds to wait before each retry until a time of ``time.monotonic()``."""
        wait = self.first
        for _ in range(self.most):
            if time.monotonic() >= until:
                return
            yield wait
            wait = min(self.longest, random.uniform(self.first, self.base * wait))  # noqa: S311

    def config(self) -> dict[str, Any]:
        """Return obstore's configuration for the same rule."""
        backoff = {
            "init_backoff": timedelta(seconds=self.first),
            "max_backoff": timedelta(seconds=self.longest),
            "base": self.base,
        }
        return {"max_retries": self.most, "retry_timeout": timedelta(seconds=self.seconds), "backoff": backoff}


def persist(request: Callable[[], T], waits: Iterator[float], *, since: float | None = None) -> T:
    """Call ``request`` until it does not raise Unreachable; between calls, wait the seconds of ``waits``.

    ``since`` is ``time.monotonic()`` of the store's last sign of life; now by default.
    """
    began = time.monotonic() if since is None else since
    while True:
        try:
            return request()
        except Unreachable as failure:  # noqa: PERF203 - a request takes longer
            wait(waits, failure, began)


def wait(waits: Iterator[float], failure: Unreachable, since: float) -> None:
    """Wait before a retry; raise ``failure`` if it is too late for a retry.

    Log that a store gave no bytes for :data:`TELL_AFTER` seconds, at most once a minute per process.
    """
    global _told
    seconds = next(waits, None)
    if seconds is None:
        raise failure
    now = time.monotonic()
    if now - since >= TELL_AFTER and now - _told >= _TELL_AGAIN:
        _told = now
        logger.warning("%s; tried for %.0f s, and trying again", failure, now - since)
    time.sleep(seconds)


class Download:
    """Bytes of an object from ``begin`` to ``end``, or of the whole object.

    Args:
        get: sends one request, for a range or the whole object, and returns obstore's answer.
        stream: iterates over the body of an answer in pieces of a least size.
        file: name of the object in messages.

    Attributes:
        meta: ``size``, ``e_tag``, ``last_modified`` and ``version`` of the object.
        end: offset of the last byte + 1; less than requested if the object ends before.

    Raises:
        OutOfRange: the object has no byte at ``begin``.
        Unreachable: the store cannot be reached, even after retries.
        PicstoreError: the errors of ``get``; and when iterating, the object has changed, or an answer is too long.
    """

    def __init__(
        self,
        get: Callable[[Range | None], Any],
        stream: Callable[[Any, int], Iterator[Buffer]],
        retries: Retries,
        *,
        file: str,
        begin: int = 0,
        end: int | None = None,
    ) -> None:
        self._get, self._stream, self._retries, self._file = get, stream, retries, file
        self._until = retries.deadline()
        self._waits = retries.waits(self._until)
        # Time at which the store last gave bytes, or was first asked.
        self._alive = time.monotonic()
        self._at = begin
        whole = None if end is None else (begin, end)
        self._answer = persist(lambda: get(whole), self._waits)
        self.meta: dict[str, Any] = self._answer.meta
        self.end = self.meta["size"] if end is None else min(end, self.meta["size"])

    def __iter__(self) -> Iterator[Buffer]:
        """Iterate over the bytes, in pieces of any size."""
        least = _PIECE
        while True:
            before, failure = self._at, Unreachable(f"{self._file}: an answer of the store ends early")
            try:
                for piece in self._stream(self._answer, least):
                    self._at += len(piece)
                    if self._at > self.end:
                        raise PicstoreError(f"{self._file}: the store sends more bytes than it was asked for")
                    yield piece
            except Unreachable as error:
                failure = error
            if self._at == self.end:
                return
            if self._at > before:  # waits are for stores that give no bytes
                self._waits = self._retries.waits(self._until)
                self._alive = time.monotonic()
            self._resume(failure)
            # Take single bytes too, so that each further answer brings the end nearer, however early the answer is cut.
            least = 1

    def fill(self, memory: memoryview) -> None:
        """Read all bytes into ``memory``, which must have the same size."""
        at = 0
        for piece in self:
            memory[at : at + len(piece)] = piece
            at += len(piece)

    def _resume(self, failure: Unreachable) -> None:
        """Request the rest of the bytes; raise ``failure`` if it is too late for a retry."""
        wait(self._waits, failure, self._alive)
        try:
            self._answer = persist(lambda: self._get((self._at, self.end)), self._waits, since=self._alive)
            pairs = [(self.meta[name], self._answer.meta[name]) for name in ("size", "e_tag", "last_modified")]
            changed = any(before != after for before, after in pairs if None not in (before, after))
        except OutOfRange:
            changed = True
        if changed:
            raise PicstoreError(f"{self._file} was changed while it was read; read it again") from failure
