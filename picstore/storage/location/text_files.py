"""Text files of users: in UTF-8, with or without byte order mark, or in UTF-16 or UTF-32 with a byte order mark."""

from __future__ import annotations

import codecs
from collections.abc import Iterator

from picstore.errors import UsageError
from picstore.storage.location.abstract_location import Buffer
from picstore.storage.location.resolve import Location

# Largest size in bytes of a text file in UTF-16 or UTF-32, because such a file is read whole, not line by line.
MAX_WIDE = 1 << 30
# Encodings by byte order mark. UTF-32 comes first, because UTF-16's little-endian mark begins UTF-32's.
_WIDE = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


def text_of_file(data: Buffer, errors: str = "strict") -> str:
    """Decode a text file's bytes: as UTF-16 or UTF-32 if a byte order mark says so, else as UTF-8.

    ``errors`` is that of ``bytes.decode``; for UTF-16 and UTF-32, any value except "strict" means "replace".
    """
    start = bytes(memoryview(data)[:4])
    for mark, encoding in _WIDE.items():
        if start.startswith(mark):
            return str(data, encoding, errors if errors == "strict" else "replace")
    return str(data, "utf-8-sig", errors)


def is_wide(data: bytes) -> bool:
    """Return whether bytes begin with a byte order mark of UTF-16 or UTF-32."""
    return data.startswith(tuple(_WIDE))


def text_lines(location: Location) -> Iterator[str]:
    """Yield the lines of a text file, without line ends; bytes that are not UTF-8 become surrogates.

    Raise UsageError if the first line has a zero byte (the file is not text), NotADataset if the file is missing.
    """
    for number, line in enumerate(location.lines(), start=1):
        if number == 1 and is_wide(line):
            yield from text_of_file(location.read_all(MAX_WIDE), "replace").splitlines()
            return
        if number == 1 and b"\0" in line:
            raise UsageError(f"{location} is not a text file, as its first line has a zero byte; give one in UTF-8")
        decoded = text_of_file(line, "surrogateescape") if number == 1 else line.decode("utf-8", "surrogateescape")
        yield decoded.rstrip("\r\n")
