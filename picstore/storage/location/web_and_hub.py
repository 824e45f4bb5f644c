"""Web servers and the Hugging Face hub as read-only locations (docs/objects.md).

Servers and hub answer range requests, so obstore fetches bytes as from object stores. A dataset needs no listing,
because its manifest names all files. The hub lists folders; a web server does not.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from picstore.errors import NotADataset, PicstoreError, UsageError, missing_extra
from picstore.storage.location.abstract_location import Entry
from picstore.storage.location.obstore_file import RemoteFile, retries
from picstore.storage.location.obstore_fork import library
from picstore.storage.location.redact import has_credentials, redact
from picstore.storage.location.resumed_download import OutOfRange, Retries, Unreachable, persist

if TYPE_CHECKING:
    from typing_extensions import Self

# OWNER/NAME, revision and path in a URL. Only the revisions refs/convert/… and refs/pr/… have slashes.
_REPOSITORY = re.compile(r"datasets/([^/@]+/[^/@]+)(?:@(refs/(?:convert|pr)/[^/]+|[^/]+))?(?:/(.*))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class WebFile(RemoteFile):
    """Location on a web server, which cannot list files; ``bucket`` is host and port, ``key`` is the path."""

    @classmethod
    def parse(cls, scheme: str, rest: str) -> Self:
        """Parse a URL as :meth:`RemoteFile.parse` does; raise UsageError if it has a password, query or fragment."""
        url = f"{scheme}://{rest}"
        if has_credentials(url) or {"?", "#"} & set(rest):
            raise UsageError(f"{redact(url)} has a password or a query; leave them out, as files below it have neither")
        return cls._from_names(scheme, *rest.partition("/")[::2])

    @classmethod
    def _from_names(cls, scheme: str, bucket: str, key: str) -> Self:
        names = [name for name in key.split("/") if name]
        if not bucket or {".", ".."} & {bucket, *names}:
            raise UsageError(
                f"{scheme}://{bucket}/{key} is not a URL of a file or folder; give a host, and no '.' or '..'"
            )
        library()
        return cls(scheme, bucket, "/".join(names))

    def _meta(self) -> Mapping[str, Any]:
        """Request the file's first byte to learn size, ETag and date, because some servers reject HEAD requests."""
        try:
            return self._download(str(self), 0, 1).meta
        except OutOfRange:
            return {"size": 0, "e_tag": None, "last_modified": None}

    def is_folder(self) -> bool:
        return False

    def entries(self) -> list[Entry]:
        raise self._unlisted()

    def files(self) -> Iterator[tuple[str, int]]:
        raise self._unlisted()

    def _unlisted(self) -> UsageError:
        return UsageError(f"{self} cannot be listed or written: {self.scheme}:// is only read; give a file or dataset")

    def _connect(self, rule: Retries) -> Any:
        url = f"{self.scheme}://{self.bucket}"
        return _http_client(url, rule, {})

    def _missing(self, file: str, text: str) -> NotADataset:
        return NotADataset(f"{file} is missing")

    def _unconditional(self, file: str) -> PicstoreError:
        return PicstoreError(f"{file}: the server sends whole files only, not the ranges that picstore asks for")


@dataclass(frozen=True, slots=True)
class HubFile(WebFile):
    """Location in a dataset of the Hugging Face hub; ``bucket`` is ``datasets/OWNER/NAME[@REV]``, ``key`` the path."""

    @classmethod
    def parse(cls, scheme: str, rest: str) -> Self:
        """Parse ``datasets/OWNER/NAME[@REV]/path``; raise UsageError if ``rest`` has another form."""
        match = _REPOSITORY.fullmatch(rest)
        if match is None:
            raise UsageError(
                f"{scheme}://{redact(rest)} does not name a dataset; write hf://datasets/OWNER/NAME[@REVISION]/path"
            )
        _hub()
        path = match[3] or ""
        return cls._from_names(scheme, rest[: len(rest) - len(path)].rstrip("/"), path)

    def is_folder(self) -> bool:
        try:
            return bool(self._list()) and not self.is_file()
        except NotADataset:
            return False

    def entries(self) -> list[Entry]:
        if self.key and self.is_file():
            raise UsageError(f"{self} is not a folder; give one")
        return sorted(Entry(self._relative_name(each.path), not hasattr(each, "size")) for each in self._list())

    def files(self) -> Iterator[tuple[str, int]]:
        # Yield nothing if the folder is missing, as an object store does for a prefix without objects.
        with contextlib.suppress(NotADataset):
            for each in self._list(recursive=True):
                if hasattr(each, "size"):
                    yield self._relative_name(each.path), int(each.size)

    def _repository(self) -> tuple[str, str]:
        match = _REPOSITORY.fullmatch(self.bucket)
        if match is None:
            raise UsageError(f"{self} does not name a dataset; write hf://datasets/OWNER/NAME[@REVISION]/path")
        return match[1], match[2] or "main"

    def _list(self, *, recursive: bool = False) -> list[Any]:
        rule = retries(patient=False)
        return persist(lambda: self._list_once(recursive=recursive), rule.waits(rule.deadline()))

    def _list_once(self, *, recursive: bool) -> list[Any]:
        hub = _hub()
        name, revision = self._repository()
        api = hub.HfApi(endpoint=_endpoint(), token=hub.get_token() or False)
        try:
            return list(
                api.list_repo_tree(name, self.key or None, repo_type="dataset", revision=revision, recursive=recursive)
            )
        except (hub.errors.EntryNotFoundError, hub.errors.RepositoryNotFoundError):
            raise NotADataset(f"{self} does not exist, or HF_TOKEN has no access to it") from None
        except (hub.errors.HfHubHTTPError, *_transport_errors()) as error:
            status = getattr(getattr(error, "response", None), "status_code", 500)
            final = 400 <= status < 500 and status not in (408, 429)
            what = f"{self} cannot be listed: {redact(str(error))}"
            raise (PicstoreError(what) if final else Unreachable(what)) from error

    def _connect(self, rule: Retries) -> Any:
        name, revision = self._repository()
        url = f"{_endpoint()}/datasets/{name}/resolve/{quote(revision, safe='')}"
        token = _hub().get_token()
        return _http_client(url, rule, {"authorization": f"Bearer {token}"} if token else {})


def _http_client(url: str, rule: Retries, headers: dict[str, str]) -> Any:
    # The server must not compress the body, because byte ranges would then count compressed bytes.
    headers = {**headers, "accept-encoding": "identity"}
    options = {"timeout": "120s", "allow_http": url.startswith("http://"), "default_headers": headers}
    return library().store.HTTPStore(url, client_options=options, retry_config=rule.config())


def _transport_errors() -> tuple[type[Exception], ...]:
    """Return the types of errors that the hub's client raises for a lost answer."""
    found = [sys.modules[name].TransportError for name in ("httpx", "httpx2") if name in sys.modules]
    # The HTTP library may be ``httpx``, ``httpx2`` or ``requests``, whose errors are OSErrors. An answer that is cut
    # short is not JSON, which raises ValueError.
    return (OSError, ValueError, *found)


def _endpoint() -> str:
    return str(os.environ.get("HF_ENDPOINT") or _hub().constants.ENDPOINT).rstrip("/")


def _hub() -> Any:
    try:
        import huggingface_hub
        import huggingface_hub.constants
        import huggingface_hub.errors
    except ImportError as error:
        raise missing_extra("hf:// needs huggingface_hub", "hub") from error
    return huggingface_hub
