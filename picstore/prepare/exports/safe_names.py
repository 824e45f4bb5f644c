"""Names in exports that are valid on every file system and differ without regard to case."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable

_UNSAFE = re.compile(r"[^\w\-.+=@ ]+")
# Largest number of characters of a safe name. In UTF-8, up to 200 bytes of them are kept, because file systems allow
# names of 255 bytes, and suffixes are added.
_MAX_NAME = 100
# Names that Windows reserves for devices.
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)


def safe_name(text: str) -> str:
    """Turn a string into a file or folder name: without separators, not hidden, and valid on every file system."""
    name = _UNSAFE.sub("_", text)[:_MAX_NAME].encode()[:200].decode("utf-8", "ignore").strip(" .") or "_"
    return f"_{name}" if _RESERVED.fullmatch(name) else name


class UsedNames:
    """Set of used names in a folder or archive; names that differ only in case or Unicode normalization are equal.

    Only an 8-byte hash of each name is kept: 90 MB for 1.3 million names.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._hashes = {_name_hash(name) for name in names}

    def take(self, *names: str) -> bool:
        """Mark distinct names as used and return True; if any is used already, mark none and return False."""
        hashes = set(map(_name_hash, names))
        if self._hashes & hashes:
            return False
        self._hashes |= hashes
        return True


def _name_hash(name: str) -> int:
    folded = unicodedata.normalize("NFD", unicodedata.normalize("NFD", name).casefold())
    return int.from_bytes(hashlib.blake2b(folded.encode(), digest_size=8).digest(), "little")


def attachment_names(attachments: Iterable[str]) -> dict[str, str]:
    """Return a safe name for each attachment of a dataset; equal safe names are distinguished by a number."""
    used = UsedNames()
    names = {}
    for attachment in attachments:
        safe = name = safe_name(attachment)
        count = 1
        while not used.take(name):
            count += 1
            name = f"{safe}-{count}"
        names[attachment] = name
    return names
