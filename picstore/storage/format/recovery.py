"""Recovery of containers in a file whose footer is lost, by their headers (docs/format.md, "Recovery")."""

from __future__ import annotations

from collections.abc import Iterator

from picstore.errors import Damage
from picstore.storage.format.container import Container, ContainerRef
from picstore.storage.format.layout import ALIGNMENT, CONTAINER_MAGIC, SEALED
from picstore.storage.format.read_container import read_header, unpack_container
from picstore.storage.location.resolve import Location, Where, file_name, locate, read_at

_WINDOW = 1 << 20  # bytes read at once: a request for each block of 4 KiB would take minutes in an object store


def recover_containers(root: Where, *, stream: int, file: int, fields: tuple[str, ...] = ()) -> Iterator[Container]:
    """Yield every container that can still be read, in order; NotADataset if the file is missing.

    After damage the search goes on at the next aligned block that begins with a container's magic and whose header
    holds its CRC, if need be with one bit corrected. Lengths in other headers are never trusted.
    """
    name = file_name(stream, file)
    path = locate(root) / name
    size = path.size()
    offset = ALIGNMENT
    while (offset := _find_magic(path, offset, size, name)) < size:
        step = ALIGNMENT
        try:
            head = read_at(path, offset, SEALED, file=name)
            header, _ = read_header(head, ref=ContainerRef(name, offset, stream, file))
            buffer = read_at(path, offset, header.size, file=name)
            ref = ContainerRef(name, offset, stream, file, header.ordinal)
            container = unpack_container(buffer, ref=ref, fields=fields)
        except Damage:
            pass  # the next aligned block is tried
        else:
            yield container
            step = header.size
        offset += step


def _find_magic(path: Location, offset: int, size: int, name: str) -> int:
    """Find the next aligned block that begins with a container's magic and holds a whole header; else ``size``."""
    while offset + SEALED <= size:
        window = read_at(path, offset, min(_WINDOW, size - offset), file=name)
        for at in range(0, len(window) - SEALED + 1, ALIGNMENT):
            if window[at : at + len(CONTAINER_MAGIC)] == CONTAINER_MAGIC:
                return offset + at
        offset += len(window)
    return size
