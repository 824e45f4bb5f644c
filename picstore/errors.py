"""Exceptions of picstore, with a command's exit code: 2 usage, 3 damage or failed inputs, 4 missing library, else 1.

Errors of other libraries are translated where they arise, with ``from``.
"""

from __future__ import annotations

from typing import Any


class PicstoreError(Exception):
    """Base class of picstore's exceptions. The message names the problem, the file and the remedy in one line."""

    exit_code = 1


class UsageError(PicstoreError):
    """Invalid arguments, or arguments that contradict each other."""

    exit_code = 2


class Conflict(UsageError):
    """Another process changed the dataset meanwhile; nothing was written, and the change can be repeated."""


class MissingDependency(PicstoreError):
    """A needed library is not installed; the message has the command that installs the library."""

    exit_code = 4


class NotADataset(PicstoreError):
    """The path or URL is missing, is not a directory, or holds something other than a picstore dataset."""


class Unfinished(NotADataset):
    """The directory holds an unfinished conversion or shuffle, and so no manifest."""


class UnsupportedVersion(PicstoreError):
    """The dataset has a format version that this picstore does not know."""


class Damage(PicstoreError):
    """Stored bytes contradict docs/format.md, are missing, or cannot be read from the disk.

    Attributes:
        what: the problem.
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
    """Bytes are missing at the end of a file, for example after an interrupted copy."""


class Corrupt(Damage):
    """Stored bytes are wrong: a checksum, a magic number or a field does not match."""


class Changed(Damage):
    """A source file has changed since the source was listed, so that the listed byte offsets are no longer right."""

    WHAT = "it has changed since it was listed, so nothing more of it is taken"


class TooLarge(Damage):
    """A length exceeds the format's limit; the error is raised before memory of this length is allocated."""


class ImageError(PicstoreError):
    """One image cannot become a training JPEG, or cannot be decoded; the message is the ledger's reason."""


class NotTranscodable(ImageError):
    """A JPEG cannot be given restart markers without loss; the message names the reason."""


class TooManyFailures(PicstoreError):
    """More inputs of a conversion, or images of ``map``, failed than ``max_errors`` allows.

    A conversion has written the dataset of all other inputs, ``map`` no column.

    Attributes:
        result: the ``picstore.results.ConvertResult`` of the dataset; None if no image, and so no dataset, was written.
    """

    exit_code = 3

    def __init__(self, message: str, result: Any = None) -> None:
        super().__init__(message)
        self.result = result


def missing_extra(need: str, extra: str) -> MissingDependency:
    """Return the error for a library that is not installed, with the command that installs it.

    Args:
        need: the first half of the message, such as ``"an Arrow table needs pyarrow"``.
        extra: the extra (optional dependencies) of picstore that includes the library.
    """
    return MissingDependency(f"{need}: {install_command(extra)}")


def install_command(extra: str) -> str:
    """Return the command that installs an extra of picstore, from the repository's clone if picstore runs from one."""
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
