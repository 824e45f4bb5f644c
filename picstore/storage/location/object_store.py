"""Object stores as locations: S3 and compatible stores, Google Cloud Storage, Azure (docs/objects.md).

The library is obstore, which retries writes and listings with backoff; ``download`` retries reads. This module holds
its clients and makes them on first use. Locations are only URLs, so they survive pickling and forking.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from picstore.errors import NotADataset, PicstoreError, TooLarge, Truncated, UsageError
from picstore.storage.location.base import Allocate, AtomicWriter, Buffer, Entry, Location, Piece, Range, fresh
from picstore.storage.location.download import Download, OutOfRange, Retries, Unreachable, persist
from picstore.storage.location.multipart import PART_SIZE, MultipartUpload
from picstore.storage.location.obstore_fork import library
from picstore.storage.location.redact import has_credentials, redact

_CONCURRENT_PARTS = 2  # for each object; a worker of convert writes 16 objects, which makes 32 parts or 256 MiB
_MAX_REQUESTS = 10  # requests for parts of one object, side by side
_MAX_CONDITIONAL = 1 << 30  # bytes of an object that is written on a condition: a manifest or a job

_CREDENTIALS_HINTS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SKIP_SIGNATURE=true for a public bucket",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
    "hf": "HF_TOKEN",
    **dict.fromkeys(("http", "https"), "whether the files are public: nothing signs in to a web server"),
}
_ENDPOINT_HINTS = {
    "s3": "AWS_ENDPOINT_URL and AWS_REGION",
    "gs": "the bucket's name",
    "az": "AZURE_STORAGE_ACCOUNT_NAME",
    "hf": "HF_ENDPOINT",
    **dict.fromkeys(("http", "https"), "the URL"),
}
# Variables that name another endpoint. The library knows the first and the last. Google's own libraries name the second
# for an emulator, which is used without signing in.
_ENDPOINT_VARIABLES = {"s3": "AWS_ENDPOINT_URL", "gs": "STORAGE_EMULATOR_HOST", "az": "AZURE_STORAGE_ENDPOINT"}
_NO_ACCOUNT = {"disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")
# Failures that another attempt does not mend: answers of 4xx but for a timeout and too many requests, answers that
# contradict HTTP, and TLS (names of rustls' errors, with the reason that it gives for a certificate).
_REFUSED = re.compile(r"status code: 4(?!08|29)\d\d|Requested \S+ got|Header missing|redirect without LOCATION")
_TLS = re.compile(
    r"\b(?:InvalidCertificate\(\s*(?:Other\(\s*OtherError\(\s*)?(\w+)|AlertReceived|PeerIncompatible|InvalidMessage)"
)
_NO_RETRIES = Retries(0)
_clients: dict[tuple[int, str, Retries], Any] = {}  # by process too; a forked one does not use its parent's


@dataclass(frozen=True, slots=True)
class Bucket(Location):
    """A location in an object store.

    Attributes:
        scheme: "s3", "gs" or "az".
        bucket: name of the bucket, for Azure of the container.
        key: common prefix of the names of the objects here, without a slash at its end.
    """

    scheme: str
    bucket: str
    key: str = ""

    @classmethod
    def parse(cls, scheme: str, rest: str) -> Bucket:
        """Parse a URL, given as its scheme and the ``rest`` after ``scheme://``.

        UsageError if it names no bucket, or holds credentials, which would stand in manifests and messages.
        """
        if has_credentials(f"{scheme}://{rest}"):
            url = redact(f"{scheme}://{rest}")
            raise UsageError(f"{url} holds credentials; give them as {_CREDENTIALS_HINTS[scheme]}")
        bucket, *names = rest.split("/")
        if not bucket or {".", ".."} & {bucket, *names}:
            raise UsageError(f"{scheme}://{rest} is no URL of an object store; write {scheme}://bucket/name")
        library()
        return cls(scheme, bucket, "/".join(name for name in names if name))

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}" + (f"/{self.key}" if self.key else "")

    def __truediv__(self, name: str) -> Bucket:
        return Bucket(self.scheme, self.bucket, f"{self.key}/{name}" if self.key else name)

    @property
    def name(self) -> str:
        return (self.key or self.bucket).rpartition("/")[2]

    @property
    def parent(self) -> Bucket:
        return Bucket(self.scheme, self.bucket, self.key.rpartition("/")[0])

    def absolute(self) -> Bucket:
        return self

    def read(self, offset: int, size: int, *, file: str, allocate: Allocate = fresh) -> memoryview:
        if size == 0:
            return memoryview(b"")
        download = self._download_all_of(offset, size, file=file)
        view = allocate(size)
        download.fill(view)
        return view.toreadonly()

    def read_pieces(self, pieces: Sequence[Piece], *, file: str, near: int = 0) -> None:
        runs = _runs([piece for piece in pieces if len(piece[1])], near)
        if len(runs) < 2:
            for run in runs:
                self._read_run(run, file)
            return
        with ThreadPoolExecutor(min(len(runs), _MAX_REQUESTS), "picstore-read") as threads:
            for _ in threads.map(lambda run: self._read_run(run, file), runs):
                pass

    def _read_run(self, run: Sequence[Piece], file: str) -> None:
        """Read pieces, in order of their offsets, by one request."""
        begin, end = run[0][0], max(offset + len(memory) for offset, memory in run)
        download = self._download_all_of(begin, end - begin, file=file)
        if len(run) == 1:
            download.fill(run[0][1])
            return
        buffer = fresh(end - begin)
        download.fill(buffer)
        for offset, memory in run:
            memory[:] = buffer[offset - begin :][: len(memory)]

    def _download_all_of(self, offset: int, size: int, *, file: str) -> Download:
        """Begin to read bytes; Truncated if the object ends before the last of them."""
        try:
            download = self._download(file, offset, offset + size, patient=True)
            there = download.end - offset
        except OutOfRange as error:
            there = max(0, self.size() - offset)
            raise Truncated(f"the object ends after {there} of {size} bytes", file, offset) from error
        if there < size:
            raise Truncated(f"the object ends after {there} of {size} bytes", file, offset)
        return download

    def _download(self, file: str, begin: int = 0, end: int | None = None, *, patient: bool = False) -> Download:
        """Begin to read the object, or a part of it."""

        def get(range_: Range | None) -> Any:
            with self._translated(file):
                return library().get(client, self.key, options={} if range_ is None else {"range": range_})

        def stream(answer: Any, least: int) -> Iterator[Buffer]:
            with self._translated(file):
                for piece in answer.stream(min_chunk_size=least):
                    yield memoryview(piece)

        client = self._client(_NO_RETRIES)
        return Download(get, stream, retries(patient=patient), file=file, begin=begin, end=end)

    def read_all(self, limit: int) -> bytes:
        download = self._download(str(self))
        if download.end > limit:
            raise TooLarge(f"the object has {download.end} bytes, at most {limit} are possible", file=str(self))
        return b"".join(download)

    def lines(self) -> Iterator[bytes]:
        rest = b""
        for piece in self._download(str(self)):
            *whole, rest = (rest + bytes(piece)).split(b"\n")
            yield from (line + b"\n" for line in whole)
        if rest:
            yield rest

    def size(self) -> int:
        client, rule = self._client(_NO_RETRIES), retries(patient=False)

        def head() -> int:
            with self._translated(str(self)):
                return int(library().head(client, self.key)["size"])

        return persist(head, rule.waits(rule.deadline()))

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

    def entries(self) -> list[Entry]:
        with self._translated(str(self)):
            found = library().list_with_delimiter(self._client(retries(patient=False)), prefix=self.key or None)
        folders = {self._relative_name(path) for path in found["common_prefixes"]}
        files = {self._relative_name(one["path"]) for one in found["objects"]} - folders - {""}
        if not folders and not files:
            if self.is_file():
                raise UsageError(f"{self} is not a folder; give one")
            raise NotADataset(f"{self} does not exist")
        return sorted([Entry(name, True) for name in folders] + [Entry(name, False) for name in files])

    def files(self) -> Iterator[tuple[str, int]]:
        with self._translated(str(self)):
            for page in library().list(self._client(retries(patient=False)), prefix=self.key or None):
                for found in page:
                    if name := self._relative_name(found["path"]):  # empty for an object that marks a folder
                        yield name, int(found["size"])

    def _relative_name(self, path: str) -> str:
        return path[len(self.key) + 1 :] if self.key else path

    def write(self, data: bytes | Iterator[bytes]) -> None:
        """Write the object, from parts several at a time; an error that the parts raise aborts the upload."""
        with self._translated(str(self)):
            library().put(
                self._client(retries(patient=True)),
                self.key,
                data,
                chunk_size=PART_SIZE,
                max_concurrency=_CONCURRENT_PARTS,
            )

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
        """Write the object on a condition; returns whether it holds ``data`` now."""
        try:
            with self._translated(str(self)):
                library().put(self._client(retries(patient=False)), self.key, data, mode=mode)
        except _ConditionFailed:
            # A request that is repeated after its answer was lost fails because of itself.
            with contextlib.suppress(NotADataset):
                return self.read_all(_MAX_CONDITIONAL) == data
            return False
        return True

    def create(self) -> AtomicWriter:
        return MultipartUpload(self.write)

    def copy_to(self, target: Location) -> None:
        """Copy within the store if both are in one bucket, else through this machine."""
        if not isinstance(target, Bucket) or (target.scheme, target.bucket) != (self.scheme, self.bucket):
            Location.copy_to(self, target)
            return
        with self._translated(str(self)):
            library().copy(self._client(retries(patient=False)), self.key, target.key)

    def remove(self, *, keep: Collection[str] = ()) -> None:
        names = (name for name, _ in self.files() if name.partition("/")[0] not in keep)
        keys = [self.key] if self.is_file() else [(self / name).key for name in names]
        try:
            self._delete(keys)
        except NotADataset:  # removed before, but listed still
            for key in keys:
                with contextlib.suppress(NotADataset):
                    self._delete([key])

    def _delete(self, keys: list[str]) -> None:
        """Delete objects, a thousand by one request in some stores; NotADataset if others say that one is missing."""
        if keys:
            with self._translated(str(self)):
                library().delete(self._client(retries(patient=False)), keys)

    def sweep(self) -> None:
        """Do nothing: an object appears when it is complete."""

    def lock(self, busy: str, *, wait: float = 0, create: bool = False) -> contextlib.AbstractContextManager[None]:
        """Return a context that locks nothing: no lock of a store ends with its process."""
        return contextlib.nullcontext()

    def _client(self, retries: Retries) -> Any:
        """The client of this process that repeats requests by this rule."""
        bucket = f"{self.scheme}://{self.bucket}"
        client = _clients.get((os.getpid(), bucket, retries))
        if client is None:
            with self._translated(bucket):
                client = self._connect(retries)
            _clients[os.getpid(), bucket, retries] = client
        return client

    def _connect(self, retries: Retries) -> Any:
        """Make a client."""
        endpoint = os.environ.get(_ENDPOINT_VARIABLES[self.scheme], "")
        config = {}
        if has_credentials(endpoint):
            raise UsageError(
                f"{_ENDPOINT_VARIABLES[self.scheme]} holds a password, which errors would show; give credentials "
                f"as {_CREDENTIALS_HINTS[self.scheme]}"
            )
        if endpoint and self.scheme == "gs":
            endpoint = endpoint if "://" in endpoint else f"http://{endpoint}"
            config = {"service_account_key": json.dumps({**_NO_ACCOUNT, "gcs_base_url": endpoint})}
        options = {"timeout": "120s", "allow_http": endpoint.startswith("http://")}
        url = f"{self.scheme}://{self.bucket}"
        return library().store.from_url(url, config=config, client_options=options, retry_config=retries.config())

    @contextlib.contextmanager
    def _translated(self, file: str) -> Iterator[None]:
        """Translate errors of the library to picstore's."""
        errors = library().exceptions
        try:
            yield
        except FileNotFoundError as error:
            raise self._missing(file, str(error)) from error
        except (errors.PermissionDeniedError, errors.UnauthenticatedError, PermissionError) as error:
            clock = "the clock of this machine is wrong; " if "RequestTimeTooSkewed" in str(error) else ""
            raise PicstoreError(f"{file}: the store refuses access; {clock}{self._credentials}") from error
        except ValueError as error:
            raise UsageError(f"{file} is not the name of an object: {redact(str(error))}") from error
        except (errors.AlreadyExistsError, errors.PreconditionError) as error:
            raise _ConditionFailed(f"{file} was written by another process") from error
        except errors.NotSupportedError as error:
            raise self._unconditional(file) from error
        except errors.BaseError as error:
            shown = redact(str(error)) == str(error)  # a traceback shows the cause too
            raise self._failure(file, error) from (error if shown else None)

    def _failure(self, file: str, error: Exception) -> PicstoreError:
        text, _, details = str(error).partition("\n\nDebug source")
        if "416 Range Not Satisfiable" in text:
            return OutOfRange(f"{file} is shorter than what is read")
        if any(code in text for code in _NO_BUCKET):
            return self._missing(file, text)
        if "501 Not Implemented" in text:
            return self._unconditional(file)
        if tls := _TLS.search(details):
            refused = f"certificate is refused ({tls[1]})" if tls[1] else f"TLS is refused ({tls[0]})"
            return PicstoreError(
                f"{file}: the server's {refused}; check {_ENDPOINT_HINTS[self.scheme]}, the clock of this machine, and "
                "the authorities that it trusts (SSL_CERT_FILE)"
            )
        if "169.254.169.254" in text:  # asked for credentials on a cloud's machines when none are given
            return Unreachable(f"{file}: there are no credentials; {self._credentials}")
        what = redact(" ".join(text.partition("<")[0].split()).rstrip(": "))
        what = f"{file} cannot be reached; check the network and {_ENDPOINT_HINTS[self.scheme]}: {what}"
        return PicstoreError(what) if _REFUSED.search(text) else Unreachable(what)

    def _missing(self, file: str, text: str) -> NotADataset:
        none = f": there is no bucket {self.bucket}" if any(code in text for code in _NO_BUCKET) else ""
        return NotADataset(f"{file} is missing{none}")

    def _unconditional(self, file: str) -> PicstoreError:
        return UsageError(
            f"{file}: the store has no conditional writes, which protect a data set from two commands at once; write "
            "to a folder or another store, and copy the data set"
        )

    @property
    def _credentials(self) -> str:
        return f"check {_CREDENTIALS_HINTS[self.scheme]}, and what they allow"


class _ConditionFailed(PicstoreError):
    """The object is there, or is not what the condition of a write asks for."""


def retries(*, patient: bool) -> Retries:
    """Choose the rule of retries: 10, or as many as 3 minutes allow, so that a store may restart.

    Work begins with requests that are not patient, so a wrong setting is told soon: with waits of base 2, which stay
    short, 10 retries are over after 3 s.
    """
    return Retries(1000, base=3) if patient else Retries(10)


def _runs(pieces: Sequence[Piece], near: int) -> list[list[Piece]]:
    """Group pieces that are at most ``near`` bytes apart, in order of their offsets."""
    runs: list[list[Piece]] = []
    end = 0
    for piece in sorted(pieces, key=lambda piece: piece[0]):
        if runs and piece[0] <= end + near:
            runs[-1].append(piece)
        else:
            runs.append([piece])
        end = max(end, piece[0] + len(piece[1]))
    return runs
