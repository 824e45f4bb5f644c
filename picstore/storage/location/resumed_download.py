"""Reading of an object's bytes by ranges, with retries: if an answer is cut short, the rest is requested.

obstore repeats requests, but continues a half-read answer only if the store gives an ETag. So this module repeats reads
itself, with one rule of retries for requests and answers.
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

# Seconds without bytes from a store after which a message is logged.
TELL_AFTER = 10.0
# Smallest number of seconds between two messages that a store is silent; many threads may wait for the same store.
_TELL_AGAIN = 60.0
_told = -math.inf  # ``time.monotonic()`` of this process's latest log message that a store is silent

# Smallest number of bytes to take from an answer at a time. Bytes arrive in pieces of 8 KiB; if Python handled each
# piece separately, 8 MiB would take 10 ms longer.
_PIECE = 1 << 20


class Unreachable(PicstoreError):
    """Error of a store that does not answer, or breaks off an answer; a later attempt may succeed."""


class OutOfRange(PicstoreError):
    """Error for an object that ends before the requested range."""


@dataclass(frozen=True, slots=True)
class Retries:
    """Rule for retries of failed requests; waits after the first are random.

    Attributes:
        most: maximum number of retries.
        base: maximum ratio of a wait to the previous wait.
        seconds: time in seconds from the first request, after which failures are no longer retried.
        first: first and shortest wait in seconds.
        longest: longest wait in seconds.
    """

    most: int
    base: float = 2
    seconds: float = 180
    first: float = 0.1
    longest: float = 15

    def deadline(self) -> float:
        """Return the ``time.monotonic()`` from which failures are no longer retried, if requests begin now."""
        return time.monotonic() + self.seconds

    def waits(self, until: float) -> Iterator[float]:
        """Yield the seconds to wait before each retry, as long as ``time.monotonic()`` is below ``until``."""
        wait = self.first
        for _ in range(self.most):
            if time.monotonic() >= until:
                return
            yield wait
            wait = min(self.longest, random.uniform(self.first, self.base * wait))  # noqa: S311

    def config(self) -> dict[str, Any]:
        """Return this rule of retries as the options of a client of obstore."""
        backoff = {
            "init_backoff": timedelta(seconds=self.first),
            "max_backoff": timedelta(seconds=self.longest),
            "base": self.base,
        }
        return {"max_retries": self.most, "retry_timeout": timedelta(seconds=self.seconds), "backoff": backoff}


def persist(request: Callable[[], T], waits: Iterator[float], *, since: float | None = None) -> T:
    """Call ``request`` until it does not raise Unreachable, and return its result.

    ``waits`` yields the seconds to wait between calls; when ``waits`` is exhausted, raise the last Unreachable.
    ``since``, by default the present time, is passed to :func:`wait`.
    """
    began = time.monotonic() if since is None else since
    while True:
        try:
            return request()
        except Unreachable as failure:  # noqa: PERF203 - a request takes longer
            wait(waits, failure, began)


def wait(waits: Iterator[float], failure: Unreachable, since: float) -> None:
    """Wait as many seconds as ``waits`` yields next; raise ``failure`` if ``waits`` is exhausted.

    ``since`` is the ``time.monotonic()`` at which the store last sent bytes, or was first asked. If this time is at
    least :data:`TELL_AFTER` seconds ago, log a warning, at most once a minute per process.
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
    """Download of the bytes ``begin`` to ``end`` of an object, or of the whole object; iterating yields the bytes.

    Args:
        get: function that requests a range, or the whole object, and returns obstore's answer.
        stream: function that yields the body of an answer in pieces of at least a given number of bytes.
        file: name of the object in messages.

    Attributes:
        meta: ``size``, ``e_tag``, ``last_modified`` and ``version`` of the object.
        end: offset of the last byte + 1; the object's size if the object ends before the requested end.

    Raises:
        OutOfRange: the object has no byte at ``begin``.
        Unreachable: the store cannot be reached, even after retries.
        PicstoreError: ``get`` raises it; or, while iterating, the object has changed or an answer is too long.
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
        # ``time.monotonic()`` at which the store last sent bytes, or the first request was sent.
        self._alive = time.monotonic()
        self._at = begin
        whole = None if end is None else (begin, end)
        self._answer = persist(lambda: get(whole), self._waits)
        self.meta: dict[str, Any] = self._answer.meta
        self.end = self.meta["size"] if end is None else min(end, self.meta["size"])

    def __iter__(self) -> Iterator[Buffer]:
        """Yield the bytes, in pieces of any size."""
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
            if self._at > before:  # The answer had bytes, so the store works: the next waits begin short again.
                self._waits = self._retries.waits(self._until)
                self._alive = time.monotonic()
            self._resume(failure)
            # After a failure, take pieces of any size, so that bytes of an answer that is soon cut short are not lost.
            least = 1

    def fill(self, memory: memoryview) -> None:
        """Read all bytes into ``memory``, which must have the same size."""
        at = 0
        for piece in self:
            memory[at : at + len(piece)] = piece
            at += len(piece)

    def _resume(self, failure: Unreachable) -> None:
        """Request the bytes that are still missing; raise ``failure`` if no retry is left."""
        wait(self._waits, failure, self._alive)
        try:
            self._answer = persist(lambda: self._get((self._at, self.end)), self._waits, since=self._alive)
            pairs = [(self.meta[name], self._answer.meta[name]) for name in ("size", "e_tag", "last_modified")]
            changed = any(before != after for before, after in pairs if None not in (before, after))
        except OutOfRange:
            changed = True
        if changed:
            raise PicstoreError(f"{self._file} was changed while it was read; read it again") from failure
