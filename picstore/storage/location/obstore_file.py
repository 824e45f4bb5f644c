"""Files and folders that obstore reads: in object stores, on web servers, on the Hugging Face hub (docs/objects.md).

``resumed_download`` retries reads, obstore retries the requests of uploads in parts, and ``_ask`` retries all others.
This module creates and keeps obstore's clients. Locations hold only URLs, so they survive pickling and forking.
"""

from __future__ import annotations

import contextlib
import os
import re
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

from picstore.errors import Changed, NotADataset, PicstoreError, TooLarge, Truncated, UsageError
from picstore.storage.location.abstract_location import (
    MAX_LINE,
    Allocate,
    Buffer,
    Location,
    Piece,
    Range,
    first_of_runs,
    fresh,
)
from picstore.storage.location.obstore_fork import library
from picstore.storage.location.redact import redact
from picstore.storage.location.resumed_download import Download, OutOfRange, Retries, Unreachable, persist

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")

_MAX_REQUESTS = 10  # largest number of concurrent requests by which ``read_pieces`` reads parts of a file
CREDENTIALS_HINTS = {
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
NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")
# Texts in messages of errors that a retry cannot mend: statuses 4xx except 408 (timeout) and 429 (too many requests),
# and answers that violate HTTP.
_REFUSED = re.compile(r"status code: 4(?!08|29)\d\d|Requested \S+ got|Header missing|redirect without LOCATION")
_ODD_KEY = re.compile(r'invalid path: (?:Error parsing )?Path "(.*?)"', re.DOTALL)
# Names of TLS errors in messages of rustls, obstore's TLS library; the group matches why a certificate is rejected.
_TLS = re.compile(
    r"\b(?:InvalidCertificate\(\s*(?:Other\(\s*OtherError\(\s*)?(\w+)|AlertReceived|PeerIncompatible|InvalidMessage)"
)
# Content encodings that change the bytes of an answer; "identity" and "aws-chunked", which some clients store, do not.
_COMPRESSIONS = frozenset({"gzip", "x-gzip", "deflate", "br", "zstd", "compress"})
NO_RETRIES = Retries(0)
# obstore's clients, by process id, bucket and rule of retries. The key has the process id because a forked process
# inherits this dictionary, but must not use its parent's clients.
_clients: dict[tuple[int, str, Retries], Any] = {}


@dataclass(frozen=True, slots=True)
class RemoteFile(Location):
    """File or folder that obstore reads.

    Attributes:
        scheme: scheme of the URL, such as "s3".
        bucket: bucket, Azure container, host with port, or repository of the Hugging Face hub.
        key: path in the bucket, without a slash at its end.
        expected: version that the file must have when it is read, set by :meth:`pin`; empty for any version.
    """

    scheme: str
    bucket: str
    key: str = ""
    expected: str = ""

    @classmethod
    @abstractmethod
    def parse(cls, scheme: str, rest: str) -> Self:
        """Parse a URL, given as ``scheme`` and as the ``rest`` after ``scheme://``; raise UsageError if malformed."""

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}" + (f"/{self.key}" if self.key else "")

    def __truediv__(self, name: str) -> Self:
        return type(self)(self.scheme, self.bucket, f"{self.key}/{name}" if self.key else name)

    @property
    def name(self) -> str:
        return (self.key or self.bucket).rpartition("/")[2]

    @property
    def parent(self) -> Self:
        return type(self)(self.scheme, self.bucket, self.key.rpartition("/")[0])

    def absolute(self) -> Self:
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
        """Fill the memory of pieces, sorted by offset, with one request, which also reads the bytes between pieces."""
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
        """Begin a download of ``size`` bytes at ``offset``; raise Truncated if the object ends too early."""
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
        """Begin a download of the object or part of it; raise Changed if the object's version is not ``expected``."""

        def get(range_: Range | None) -> Any:
            with self._translated(file):
                answer = library().get(client, self.key, options={} if range_ is None else {"range": range_})
            coding = str(answer.attributes.get("Content-Encoding", "")).strip().lower()
            if coding in _COMPRESSIONS:
                raise PicstoreError(
                    f"{file}: the server compresses its answers (Content-Encoding: {coding}), so they are not the "
                    "bytes of the file; turn this off for the file"
                )
            return answer

        def stream(answer: Any, least: int) -> Iterator[Buffer]:
            with self._translated(file):
                for piece in answer.stream(min_chunk_size=least):
                    yield memoryview(piece)

        client = self._client_of(NO_RETRIES)
        download = Download(get, stream, retries(patient=patient), file=file, begin=begin, end=end)
        if self.expected and _version_of(download.meta) != self.expected:
            raise Changed(Changed.WHAT, file)
        return download

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
            if len(rest) >= MAX_LINE:
                yield rest
                rest = b""
        if rest:
            yield rest

    def size(self) -> int:
        return int(self._meta()["size"])

    def pin(self) -> tuple[Self, int]:
        """Return this file with ``expected`` set to its present version, and its size in bytes.

        Reading the returned file raises Changed if the file then has another version.
        """
        meta = self._meta()
        return replace(self, expected=_version_of(meta)), int(meta["size"])

    def _meta(self) -> Mapping[str, Any]:
        """Request ``size``, ``e_tag`` and ``last_modified`` of the file."""
        return self._ask(lambda client: library().head(client, self.key))

    def _ask(self, request: Callable[[Any], T], *, patient: bool = False) -> T:
        """Send a request; retry if the store fails or cuts an answer short, where obstore would not retry."""
        client, rule = self._client_of(NO_RETRIES), retries(patient=patient)

        def send() -> T:
            with self._translated(str(self)):
                return request(client)

        return persist(send, rule.waits(rule.deadline()))

    def is_file(self) -> bool:
        if not self.key:
            return False
        try:
            self.size()
        except NotADataset:
            return False
        return True

    def _relative_name(self, path: str) -> str:
        return path[len(self.key) + 1 :] if self.key else path

    def _client_of(self, rule: Retries) -> Any:
        bucket = f"{self.scheme}://{self.bucket}"
        client = _clients.get((os.getpid(), bucket, rule))
        if client is None:
            with self._translated(bucket):
                client = self._connect(rule)
            _clients[os.getpid(), bucket, rule] = client
        return client

    @abstractmethod
    def _connect(self, rule: Retries) -> Any:
        """Return a new client for the bucket, with a rule of retries."""

    @contextlib.contextmanager
    def _translated(self, file: str) -> Iterator[None]:
        """Return a context that translates errors of obstore to picstore's errors; messages name ``file``."""
        errors = library().exceptions
        try:
            yield
        except FileNotFoundError as error:
            raise self._missing(file, str(error)) from error
        except (errors.PermissionDeniedError, errors.UnauthenticatedError, PermissionError) as error:
            clock = "the clock of this machine is wrong; " if "RequestTimeTooSkewed" in str(error) else ""
            raise PicstoreError(f"{file}: the store refuses access; {clock}{self._credentials}") from error
        except ValueError as error:
            raise OddKey(f"{file} is not the name of an object: {redact(str(error))}") from error
        except (errors.AlreadyExistsError, errors.PreconditionError) as error:
            raise ConditionFailed(f"{file} was written by another process") from error
        except errors.NotSupportedError as error:
            raise self._unconditional(file) from error
        except errors.BaseError as error:
            # A traceback shows the cause's text too, so leave out obstore's error as the cause if it has credentials.
            shown = redact(str(error)) == str(error)
            raise self._failure(file, error) from (error if shown else None)

    def _failure(self, file: str, error: Exception) -> PicstoreError:
        text, _, details = str(error).partition("\n\nDebug source")
        if "416 Range Not Satisfiable" in text:
            return OutOfRange(f"{file} is shorter than what is read")
        if any(code in text for code in NO_BUCKET):
            return self._missing(file, text)
        if "501 Not Implemented" in text:
            return self._unconditional(file)
        if odd := _ODD_KEY.search(text):
            key = odd[1].encode("unicode_escape").decode()
            return OddKey(
                f"{file} cannot be listed: the object {key} has a name with an empty part, '.', '..' or a control "
                "character, which the client of stores refuses; rename it, or give the folders beside it"
            )
        if tls := _TLS.search(details):
            refused = f"certificate is refused ({tls[1]})" if tls[1] else f"TLS is refused ({tls[0]})"
            return PicstoreError(
                f"{file}: the server's {refused}; check {_ENDPOINT_HINTS[self.scheme]}, the clock of this machine, and "
                "the authorities that it trusts (SSL_CERT_FILE)"
            )
        # Without credentials, obstore requests some from this address, where clouds serve them to virtual machines.
        if "169.254.169.254" in text:
            return Unreachable(f"{file}: there are no credentials; {self._credentials}")
        if "Content-Length Header missing" in text:
            return PicstoreError(f"{file}: the server does not state the length of its answers (Content-Length)")
        what = redact(" ".join(text.partition("<")[0].split()).rstrip(": "))
        what = f"{file} cannot be reached; check the network and {_ENDPOINT_HINTS[self.scheme]}: {what}"
        return PicstoreError(what) if _REFUSED.search(text) else Unreachable(what)

    @property
    def _credentials(self) -> str:
        return f"check {CREDENTIALS_HINTS[self.scheme]}, and what they allow"

    @abstractmethod
    def _missing(self, file: str, text: str) -> NotADataset:
        """Return the error for a missing file; ``text`` is obstore's message."""

    @abstractmethod
    def _unconditional(self, file: str) -> PicstoreError:
        """Return the error for a server that does not support conditional requests or byte ranges."""


class OddKey(UsageError):
    """Error for an object that obstore can neither read nor list, because obstore rejects its key."""


class ConditionFailed(PicstoreError):
    """Error of a conditional write: the object exists, or has another version."""


def retries(*, patient: bool) -> Retries:
    """Return a rule of 10 retries; if ``patient``, of retries for 3 minutes, long enough for a store to restart.

    The first requests of a command are not patient, so that a wrong setting fails soon.
    """
    return Retries(1000, base=3) if patient else Retries(10)


def _version_of(meta: Mapping[str, Any]) -> str:
    return f"{meta['size']} {meta['e_tag'] or meta['last_modified']}"


def _runs(pieces: Sequence[Piece], near: int) -> list[list[Piece]]:
    import numpy as np

    ordered = sorted(pieces, key=lambda piece: piece[0])
    begins = np.array([offset for offset, _ in ordered], np.int64)
    ends = np.array([offset + len(memory) for offset, memory in ordered], np.int64)
    starts = first_of_runs(begins, ends, near)
    return [ordered[first:last] for first, last in pairwise([*starts.tolist(), len(ordered)])]
