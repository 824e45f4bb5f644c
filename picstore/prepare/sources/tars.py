"""Tars as lists of stretches."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator

from picstore.errors import Corrupt, Damage
from picstore.prepare.inputs import SourceFile

_PACKED = {b"\x1f\x8b": "gzip", b"BZ": "bzip2", b"\xfd7": "xz", b"(\xb5": "zstd"}  # first bytes of compressed tars


def members_of(path: str) -> Iterator[tarfile.TarInfo]:
    """The regular files of a tar in order; ``offset_data`` and ``size`` say where each lies.

    Raises:
        Damage: the tar breaks off, after its whole members were given; or it is compressed, so that nothing in it can
            be read by itself.
    """
    with SourceFile(path) as file:
        if packed := _PACKED.get(file.read(0, min(2, file.size))):
            raise Corrupt(f"it is compressed by {packed}; unpack it to a plain tar", file.place)
        try:
            with file.stream() as stream, tarfile.open(fileobj=stream, mode="r:", errors="surrogateescape") as archive:
                for member in archive:
                    archive.members = []  # type: ignore[attr-defined]  # it keeps them all, 1.2 KB each
                    if member.isfile():
                        yield member
                end = archive.offset
        except (tarfile.TarError, OSError, EOFError) as error:
            raise Damage(str(error), file.place) from error
        # tarfile takes a broken header for the end of the tar; the end is a block of zeros.
        if file.read(end, tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
            raise Corrupt(f"no member and no end at byte {end}", file.place, end)
