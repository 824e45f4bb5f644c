"""Exceptions of picstore, with a command's exit code: 2 usage, 3 damage or failed inputs, 4 missing library, else 1.

Exceptions of other libraries are converted to these where they occur, by ``raise … from``.
"""

from __future__ import annotations

from typing import Any


class PicstoreError(Exception):
    """Base class of picstore's exceptions. The message names the problem, the file and a remedy, on one line."""

    exit_code = 1


class UsageError(PicstoreError):
    """Error in a call or command: an argument is invalid, or arguments contradict each other."""

    exit_code = 2


class Conflict(UsageError):
    """Error because another process changed the dataset during an edit. Nothing was written; repeat the edit."""


class MissingDependency(PicstoreError):
    """Error because a library is not installed; the message has the command that installs it."""

    exit_code = 4


class NotADataset(PicstoreError):
    """Error because a path or URL is missing, is not a directory, or holds something other than a picstore dataset."""


class Unfinished(NotADataset):
    """Error because a directory holds an unfinished conversion or shuffle, and therefore no manifest."""


class UnsupportedVersion(PicstoreError):
    """Error because the dataset has a format version that this version of picstore does not know."""


class Damage(PicstoreError):
    """Error because stored bytes contradict docs/format.md, are missing, or cannot be read from the disk.

    Attributes:
        what: description of the problem.
        file: name, path or URL of the damaged file, for messages.
        offset: byte offset of the damage in the file.
    """

    exit_code = 3

    def __init__(self, what: str, file: str, offset: int = 0) -> None:
        super().__init__(what, file, offset)
        self.what = what
        self.file = file
        self.offset = offset

    def __str__(self) -> str:
        return f"{self.file} at byte {self.offset}: {self.what}"


class Truncated(Damage):
    """Error because bytes are missing at the end of a file, for example after an interrupted copy."""


class Corrupt(Damage):
    """Error raised if stored bytes are wrong: a checksum, a magic number or a field does not match."""


class Changed(Damage):
    """Error because a source file has changed since it was listed, so the byte offsets noted then may be wrong."""

    WHAT = "it has changed since it was listed, so nothing more of it is taken"


class TooLarge(Damage):
    """Error because a stored length exceeds the format's limit; it is raised before that much memory is allocated."""


class ImageError(PicstoreError):
    """Error because an image cannot be decoded or cannot become a training JPEG; the ledger has the message."""


class NotTranscodable(ImageError):
    """Error because restart markers cannot be added to a JPEG without loss; the message says why."""


class TooManyFailures(PicstoreError):
    """Error because more inputs of a conversion, or images of ``map``, failed than ``max_errors`` allows.

    A conversion has nevertheless written a dataset of the inputs that did not fail; ``map`` has not written the column.

    Attributes:
        result: the ``picstore.results.ConvertResult`` of the dataset; None if no dataset was written.
    """

    exit_code = 3

    def __init__(self, message: str, result: Any = None) -> None:
        super().__init__(message)
        self.result = result


def counted(number: int, noun: str, verb: str = "") -> str:
    """Return a number with a noun and perhaps a verb, in singular or plural: ``"1 rank"``, ``"2,000 ranks are"``."""
    if number == 1:
        noun, verb = f" {noun}", verb and f" { {'are': 'is', 'have': 'has'}.get(verb, verb + 's') }"
    else:
        noun, verb = f" {noun}{'es' if noun.endswith(('ch', 's', 'x')) else 's'}", verb and f" {verb}"
    return f"{number:,}{noun}{verb}"


def missing_extra(need: str, extra: str) -> MissingDependency:
    """Return the error to raise if a library is not installed; its message has the command that installs the library.

    Args:
        need: first half of the message, such as ``"an Arrow table needs pyarrow"``.
        extra: extra of picstore (a set of optional dependencies) that includes the library.
    """
    return MissingDependency(f"{need}: {install_command(extra)}")


def install_command(extra: str) -> str:
    """Return the pip command that installs picstore with an extra, from the clone if picstore is installed from one."""
    import json
    from importlib.metadata import PackageNotFoundError, distribution
    from pathlib import Path
    from urllib.parse import unquote, urlsplit

    try:
        origin = json.loads(distribution("picstore").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        origin = {"url": Path(__file__).parents[1].as_uri(), "dir_info": {}}
    clone = unquote(urlsplit(origin.get("url", "")).path)
    if "dir_info" not in origin or not (Path(clone) / "pyproject.toml").is_file():
        return f"pip install 'picstore[{extra}]'"
    editable = "-e " if origin["dir_info"].get("editable") else ""
    return f"pip install {editable}'{clone}[{extra}]'"
