"""Object stores as locations: S3 and what speaks its protocol, Google Cloud Storage, Azure (docs/objects.md).

The library is obstore, which retries with backoff. Its clients live in this module, made when they are first needed:
locations are only URLs, and so survive pickling and forking.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from picstore.errors import NotADataset, PicstoreError, TooLarge, Truncated, UsageError
from picstore.storage.library import library
from picstore.storage.location import Allocate, Location, Sink, fresh

PART = 8 << 20  # bytes of an upload's parts; S3 takes 10,000 of them, so objects may have 78 GiB
_PARTS_AT_A_TIME = 2  # of one object; a worker of convert writes 16, so that it is 32 parts or 256 MiB
_STREAMED = 4 << 20  # bytes

_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SKIP_SIGNATURE=true for a public bucket",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}
_ENDPOINTS = {
    "s3": "AWS_ENDPOINT_URL and AWS_REGION",
    "gs": "the bucket's name",
    "az": "AZURE_STORAGE_ACCOUNT_NAME",
}
_clients: dict[tuple[int, str], Any] = {}  # by process and bucket; those of a parent process are not touched


@dataclass(frozen=True, slots=True)
class Bucket(Location):
    """A place in an object store.

    Attributes:
        scheme: "s3", "gs" or "az".
        bucket: its name, a container's for Azure.
        key: what the names of the objects here begin with; no slash at its end.
    """

    scheme: str
    bucket: str
    key: str = ""

    @classmethod
    def parse(cls, scheme: str, rest: str) -> Bucket:
        """The location of a URL's parts, ``rest`` being all behind ``scheme://``.

        Raises:
            UsageError: it names no bucket.
            MissingDependency: obstore is not installed.
        """
        bucket, *names = rest.split("/")
        if not bucket or {".", ".."} & {bucket, *names}:
            raise UsageError(f"{scheme}://{rest} is not a place in an object store; write {scheme}://bucket/name")
        library()
        return cls(scheme, bucket, "/".join(name for name in names if name))

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}" + (f"/{self.key}" if self.key else "")

    def __truediv__(self, name: str) -> Bucket:
        return Bucket(self.scheme, self.bucket, f"{self.key}/{name}" if self.key else name)

    def absolute(self) -> Bucket:
        return self

    def read(self, offset: int, size: int, *, place: str, allocate: Allocate = fresh) -> memoryview:
        if size == 0:
            return memoryview(b"")
        try:
            with self._translated(place):
                got = memoryview(library().get_range(self._client(), self.key, start=offset, length=size))
        except _OutOfRange as error:
            there = max(0, self.size() - offset)
            raise Truncated(f"the object ends after {there} of {size} bytes", place, offset) from error
        if len(got) < size:
            raise Truncated(f"the object ends after {len(got)} of {size} bytes", place=place, offset=offset)
        view = allocate(size)
        view[:] = got
        return view.toreadonly()

    def read_all(self, limit: int) -> bytes:
        with self._translated(str(self)):
            answer = library().get(self._client(), self.key)
            if (size := answer.meta["size"]) > limit:
                raise TooLarge(f"the object has {size} bytes, at most {limit} are possible", place=str(self))
            return bytes(answer.bytes())

    def lines(self) -> Iterator[bytes]:
        with self._translated(str(self)):
            rest = b""
            for piece in library().get(self._client(), self.key).stream(min_chunk_size=_STREAMED):
                *whole, rest = (rest + bytes(piece)).split(b"\n")
                yield from (line + b"\n" for line in whole)
            if rest:
                yield rest

    def size(self) -> int:
        with self._translated(str(self)):
            return int(library().head(self._client(), self.key)["size"])

    def is_file(self) -> bool:
        if not self.key:
            return False
        try:
            self.size()
        except NotADataset:
            return False
        return True

    def is_folder(self) -> bool:
        return next(self.files(), None) is not None

    def files(self) -> Iterator[tuple[str, int]]:
        start = len(self.key) + 1 if self.key else 0
        with self._translated(str(self)):
            for page in library().list(self._client(), prefix=self.key or None):
                for found in page:
                    yield found["path"][start:], int(found["size"])

    def write(self, data: bytes) -> None:
        with self._translated(str(self)):
            library().put(self._client(), self.key, data, chunk_size=PART, max_concurrency=_PARTS_AT_A_TIME)

    def create(self) -> Sink:
        return _ObjectSink(self)

    def copy_to(self, target: Location) -> None:
        """By the store, where both are in one bucket."""
        if not isinstance(target, Bucket) or (target.scheme, target.bucket) != (self.scheme, self.bucket):
            Location.copy_to(self, target)
            return
        with self._translated(str(self)):
            library().copy(self._client(), self.key, target.key)

    def remove(self) -> None:
        keys = [self.key] if self.is_file() else [(self / name).key for name, _ in self.files()]
        if keys:
            with self._translated(str(self)):
                library().delete(self._client(), keys)

    def sweep(self) -> None:
        """An object appears when it is complete, so there are none."""

    def lock(self, otherwise: str) -> contextlib.AbstractContextManager[None]:
        """Not locked: no lock of a store ends with the process. Two runs of one job write the same bytes."""
        return contextlib.nullcontext()

    def upload(self, parts: Iterator[bytes]) -> None:
        """Write the object in parts, several at a time; an error of ``parts`` takes back what was uploaded."""
        with self._translated(str(self)):
            library().put(self._client(), self.key, parts, chunk_size=PART, max_concurrency=_PARTS_AT_A_TIME)

    def _client(self) -> Any:
        bucket = f"{self.scheme}://{self.bucket}"
        client = _clients.get((os.getpid(), bucket))
        if client is None:
            plain = self.scheme == "s3" and os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://")
            options = {"timeout": "120s", **({"allow_http": True} if plain else {})}
            with self._translated(bucket):
                client = library().store.from_url(bucket, client_options=options, retry_config=retries())
            _clients[os.getpid(), bucket] = client
        return client

    @contextlib.contextmanager
    def _translated(self, place: str) -> Iterator[None]:
        """Errors of the library as ours."""
        errors = library().exceptions
        try:
            yield
        except FileNotFoundError as error:
            raise self._missing(place, str(error)) from error
        except (errors.PermissionDeniedError, errors.UnauthenticatedError, PermissionError) as error:
            raise PicstoreError(f"{place}: the store refuses access; {self._credentials}") from error
        except ValueError as error:
            raise UsageError(f"{place} is no name for an object: {error}") from error
        except errors.BaseError as error:
            raise self._failure(place, error) from error

    def _failure(self, place: str, error: Exception) -> PicstoreError:
        text = str(error).partition("\n\nDebug source")[0]
        if "416 Range Not Satisfiable" in text:
            return _OutOfRange(f"{place} is shorter than what is read")
        if "NoSuchBucket" in text:
            return self._missing(place, text)
        if "169.254.169.254" in text:  # where a cloud's machines ask for credentials when none are given
            return PicstoreError(f"{place}: there are no credentials; {self._credentials}")
        what = " ".join(text.partition("<")[0].split()).rstrip(": ")
        return PicstoreError(f"{place} cannot be reached; check the network and {_ENDPOINTS[self.scheme]}: {what}")

    def _missing(self, place: str, text: str) -> NotADataset:
        none = f": there is no bucket {self.bucket}" if "NoSuchBucket" in text or "ContainerNotFound" in text else ""
        return NotADataset(f"{place} is missing{none}")

    @property
    def _credentials(self) -> str:
        return f"check {_CREDENTIALS[self.scheme]}, and what they allow"


class _OutOfRange(PicstoreError):
    """The store has no byte of the range asked for."""


def retries() -> dict[str, Any]:
    """The library's retries: 10, with random waits that double from 0.1 to at most 15 s, for 3 minutes at most."""
    from datetime import timedelta

    return {"max_retries": 10, "retry_timeout": timedelta(minutes=3)}


class _Abandoned(Exception):
    """Ends an upload that is not to be finished."""


class _ObjectSink:
    """Uploads parts while they come, by a thread that begins with the second part; what is smaller is one request."""

    def __init__(self, target: Bucket) -> None:
        self._target = target
        self._pending = bytearray()
        self._parts: queue.Queue[bytes | _Abandoned | None] = queue.Queue(maxsize=1)
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._ended = False

    def write(self, data: bytes | bytearray) -> None:
        self._pending += data
        if len(self._pending) >= PART:
            if self._thread is None:
                self._thread = threading.Thread(target=self._upload, name="picstore-upload", daemon=True)
                self._thread.start()
            self._hand_over(bytes(self._pending))
            self._pending.clear()

    def close(self) -> None:
        self._ended = True
        if self._thread is None:
            self._target.write(bytes(self._pending))
            return
        if self._pending:
            self._hand_over(bytes(self._pending))
        self._hand_over(None)
        self._thread.join()
        self._raise()

    def abandon(self) -> None:
        if self._ended:
            return
        self._ended = True
        if self._thread is not None:
            self._hand_over(_Abandoned(), report=False)
            self._thread.join()

    def _hand_over(self, part: bytes | _Abandoned | None, *, report: bool = True) -> None:
        """Give the thread its next part, and wait while it has one; it takes none once it has failed."""
        while True:
            if self._error is not None:
                if report:
                    self._raise()
                return
            with contextlib.suppress(queue.Full):
                self._parts.put(part, timeout=0.2)
                return

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _upload(self) -> None:
        try:
            self._target.upload(self._take())
        except BaseException as error:  # a thread has nobody else to tell
            self._error = error

    def _take(self) -> Iterator[bytes]:
        while (part := self._parts.get()) is not None:
            if isinstance(part, _Abandoned):
                raise part
            yield part
