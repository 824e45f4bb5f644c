"""Object stores as locations: S3 and compatible stores, Google Cloud Storage, Azure (docs/objects.md).

An upload in several parts is aborted unless every part arrives.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import threading
import time
import zlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

from picstore.errors import NotADataset, PicstoreError, UsageError
from picstore.storage.location import obstore_file
from picstore.storage.location.abstract_location import AtomicWriter, Buffer, Entry, WritableLocation
from picstore.storage.location.obstore_file import (
    CREDENTIALS_HINTS,
    NO_BUCKET,
    NO_RETRIES,
    ConditionFailed,
    OddKey,
    RemoteFile,
)
from picstore.storage.location.obstore_fork import library
from picstore.storage.location.redact import has_credentials, redact
from picstore.storage.location.resumed_download import Retries, Unreachable, persist, wait
from picstore.storage.location.s3_listing import Page, is_odd, list_s3

# Size in bytes of a part of a multipart upload. S3 allows 10,000 parts, so an object can have 78 GiB.
PART_SIZE = 8 << 20
# Number of parts of an object to send concurrently; with 16 objects, a worker of `convert` holds 256 MiB of parts.
_CONCURRENT_PARTS = 2
# Largest size in bytes of an object that is written conditionally, such as a manifest or a job.
_MAX_CONDITIONAL = 1 << 30
# Environment variables, by scheme, that state the URL of a store other than the cloud's own. obstore reads the two of
# "s3" and "az" itself; the variable of "gs" is for emulators, to which picstore connects without credentials.
_ENDPOINT_VARIABLES = {"s3": "AWS_ENDPOINT_URL", "gs": "STORAGE_EMULATOR_HOST", "az": "AZURE_STORAGE_ENDPOINT"}
_NO_ACCOUNT = {"disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}


class _Abandoned(Exception):
    """Error that an iterator over an object's parts raises to abort the upload."""


class SentParts:
    """Parts of an object, over which an upload iterates; ``size`` and ``crc`` (CRC-32) cover the parts taken so far."""

    def __init__(self, parts: Iterator[bytes]) -> None:
        self._parts = parts
        self._first: bytes | None = None  # first part, kept for a new upload until a second part is taken
        self._count = 0
        self.size = self.crc = 0
        self.ended = False

    def all_unsent(self) -> bool:
        """Return whether a new upload can iterate over all parts, because at most the first part was taken so far."""
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
    """Writer of an object; a thread uploads its parts. An object of less than one part takes a single request.

    ``put`` uploads an object given as bytes or as an iterator of parts; an error of the iterator aborts the upload.
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
        """Pass a part, or None at the object's end, to the thread that uploads; wait while the thread's queue is full.

        If the thread has failed, raise its error, or do nothing if ``report`` is false.
        """
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
        except BaseException as error:  # The writer's next call will raise the error.
            self._error = error

    def _queued_parts(self) -> Iterator[bytes]:
        while (part := self._parts.get()) is not None:
            if isinstance(part, _Abandoned):
                raise part
            yield part


@dataclass(frozen=True, slots=True)
class Bucket(RemoteFile, WritableLocation):
    """Object in a store, or folder of the objects that share the prefix ``key``; ``scheme`` is "s3", "gs" or "az"."""

    @classmethod
    def parse(cls, scheme: str, rest: str) -> Bucket:
        """Parse a URL, given as its scheme and the ``rest`` after ``scheme://``.

        Raise UsageError if the URL names no bucket, or contains credentials, because manifests and messages would show
        them.
        """
        if has_credentials(f"{scheme}://{rest}"):
            url = redact(f"{scheme}://{rest}")
            raise UsageError(f"{url} holds credentials; give them as {CREDENTIALS_HINTS[scheme]}")
        bucket, *names = rest.split("/")
        if not bucket or {".", ".."} & {bucket, *names}:
            raise UsageError(f"{scheme}://{rest} is not a URL of an object store; write {scheme}://bucket/name")
        library()
        return cls(scheme, bucket, "/".join(name for name in names if name))

    def is_folder(self) -> bool:
        return next(self.files(), None) is not None

    def entries(self) -> list[Entry]:
        try:
            found = self._ask(lambda client: library().list_with_delimiter(client, prefix=self.key or None))
            folders = {self._relative_name(path) for path in found["common_prefixes"]}
            files = {self._relative_name(one["path"]) for one in found["objects"]} - folders - {""}
        except OddKey as error:
            rule, raised = obstore_file.retries(patient=False), error
            pages = persist(lambda: list(self._pages_with_odd_keys(raised, delimiter="/")), rule.waits(rule.deadline()))
            folders = {self._relative_name(path) for page in pages for path in page.folders}
            files = {self._relative_name(key) for page in pages for key, _ in page.objects} - folders - {""}
        if not folders and not files:
            if self.is_file():
                raise UsageError(f"{self} is not a folder; give one")
            raise NotADataset(f"{self} does not exist")
        return sorted([Entry(name, True) for name in folders] + [Entry(name, False) for name in files])

    def files(self) -> Iterator[tuple[str, int]]:
        """Yield the objects below this location; if an answer is cut short, resume after the greatest key received."""
        last = ""
        # Keys of empty objects listed so far. An object that marks a folder has a key with a final slash, but is listed
        # without it. A listing that is resumed after such a key without a slash therefore lists the object again.
        empty: set[str] = set()
        rule = obstore_file.retries(patient=False)
        waits, alive = rule.waits(rule.deadline()), time.monotonic()
        pages = self._pages(last)
        while True:
            try:
                for page in pages:
                    for key, size in page:
                        last = max(last, key)
                        if key in empty:
                            continue
                        if not size:
                            empty.add(key)
                        if name := self._relative_name(key):  # The name is empty for the object that marks this folder.
                            yield name, size
                    waits, alive = rule.waits(rule.deadline()), time.monotonic()
                break
            except OddKey as error:
                pages = (page.objects for page in self._pages_with_odd_keys(error, after=last))
            except Unreachable as failure:
                wait(waits, failure, alive)
                pages = self._pages(last)

    def _pages(self, after: str) -> Iterator[list[tuple[str, int]]]:
        """Yield pages of a listing, without retries: (key, size) of each object with a key greater than ``after``."""
        client = self._client_of(NO_RETRIES)
        with self._translated(str(self)):
            if is_odd(self.key):  # obstore would change the key and list another folder.
                raise OddKey(f"{self} cannot be listed")
            for page in library().list(client, prefix=self.key or None, offset=after or None, chunk_size=1000):
                yield [(found["path"], int(found["size"])) for found in page]

    def _pages_with_odd_keys(self, error: OddKey, *, after: str = "", delimiter: str = "") -> Iterator[Page]:
        """List a folder by botocore, because obstore rejects a key in it; raise ``error`` if the store is not S3."""
        if self.scheme != "s3":
            raise error
        prefix = f"{self.key}/" if self.key else ""
        request = {"Bucket": self.bucket, "Prefix": prefix, "Delimiter": delimiter, "StartAfter": after}
        yield from list_s3({name: value for name, value in request.items() if value}, where=str(self))

    def is_odd(self, name: str) -> bool:
        return is_odd(name)

    def write(self, data: bytes | Iterator[bytes]) -> None:
        """Write the object from bytes or from an iterator of parts; an error of the iterator aborts the upload."""
        if isinstance(data, bytes):
            self._ask(lambda client: library().put(client, self.key, data), patient=True)
            return
        parts = SentParts(data)
        try:
            self._upload(parts)
        except (Unreachable, NotADataset):
            if parts.all_unsent():  # The upload failed at its first request, so it can be repeated.
                self._upload(parts)
            # If the last request succeeded and only its answer was lost, the object holds all parts.
            elif not (parts.ended and self._holds(parts)):
                raise

    def _upload(self, parts: SentParts) -> None:
        client = self._client_of(obstore_file.retries(patient=True))
        with self._translated(str(self)):
            library().put(client, self.key, iter(parts), chunk_size=PART_SIZE, max_concurrency=_CONCURRENT_PARTS)

    def _holds(self, parts: SentParts) -> bool:
        download, crc = self._download(str(self), patient=True), 0
        if download.end != parts.size:
            return False
        for piece in download:
            crc = zlib.crc32(piece, crc)
        return crc == parts.crc

    def write_new(self, data: bytes) -> bool:
        return self._put_if(data, "create")

    def replace(self, data: bytes, *, expected: bytes) -> bool:
        try:
            download = self._download(str(self))
            if download.end != len(expected) or b"".join(download) != expected:
                return False
        except NotADataset:
            return False
        version = {name: download.meta[name] for name in ("e_tag", "version")}
        return self._put_if(data, {name: value for name, value in version.items() if value is not None})

    def _put_if(self, data: bytes, mode: Any) -> bool:
        """Write the object if obstore's condition ``mode`` is met; return whether the object now holds ``data``."""
        try:
            self._ask(lambda client: library().put(client, self.key, data, mode=mode))
        except ConditionFailed:
            # If the first request succeeded but its answer was lost, the repeated request fails. Then the object holds
            # ``data``, which counts as success.
            with contextlib.suppress(NotADataset):
                return self.read_all(_MAX_CONDITIONAL) == data
            return False
        return True

    def create(self) -> AtomicWriter:
        return MultipartUpload(self.write)

    def copy_to(self, target: WritableLocation) -> None:
        """Copy within the store if source and target are in the same bucket, else through this machine."""
        if not isinstance(target, Bucket) or (target.scheme, target.bucket) != (self.scheme, self.bucket):
            WritableLocation.copy_to(self, target)
            return
        self._ask(lambda client: library().copy(client, self.key, target.key))

    def remove(self, *, keep: Collection[str] = ()) -> None:
        names = (name for name, _ in self.files() if name.partition("/")[0] not in keep)
        keys = [self.key] if self.is_file() else [(self / name).key for name in names]
        try:
            self._delete(keys)
        except NotADataset:  # A listed object is already removed; delete the objects one by one.
            for key in keys:
                with contextlib.suppress(NotADataset):
                    self._delete([key])

    def _delete(self, keys: list[str]) -> None:
        """Delete the objects ``keys``; raise NotADataset if one is missing. Some stores ignore missing objects."""
        if keys:
            self._ask(lambda client: library().delete(client, keys))

    def sweep(self) -> None:
        """Do nothing: there are no incomplete objects to remove, because objects appear only when complete."""

    def lock(self, busy: str, *, wait: float = 0, create: bool = False) -> contextlib.AbstractContextManager[None]:
        """Return a context that locks nothing, because object stores have no locks that end with a process."""
        return contextlib.nullcontext()

    def _connect(self, rule: Retries) -> Any:
        endpoint = os.environ.get(_ENDPOINT_VARIABLES[self.scheme], "")
        config = {}
        if has_credentials(endpoint):
            raise UsageError(
                f"{_ENDPOINT_VARIABLES[self.scheme]} holds a password, which errors would show; give credentials "
                f"as {CREDENTIALS_HINTS[self.scheme]}"
            )
        if endpoint and self.scheme == "gs":
            endpoint = endpoint if "://" in endpoint else f"http://{endpoint}"
            config = {"service_account_key": json.dumps({**_NO_ACCOUNT, "gcs_base_url": endpoint})}
        options = {"timeout": "120s", "allow_http": endpoint.startswith("http://")}
        url = f"{self.scheme}://{self.bucket}"
        return library().store.from_url(url, config=config, client_options=options, retry_config=rule.config())

    def _missing(self, file: str, text: str) -> NotADataset:
        none = f": there is no bucket {self.bucket}" if any(code in text for code in NO_BUCKET) else ""
        return NotADataset(f"{file} is missing{none}")

    def _unconditional(self, file: str) -> PicstoreError:
        return UsageError(
            f"{file}: the store has no conditional writes, which protect a dataset from two commands at once; write "
            "to a folder or another store, and copy the dataset"
        )
