"""Finding containers in a file whose footer is lost, by walking their headers (docs/format.md, "Recovery")."""

from __future__ import annotations

from collections.abc import Iterator

from picstore.errors import Damage
from picstore.storage.container import Container, Place, read_header, unpack
from picstore.storage.layout import ALIGNMENT, CONTAINER_MAGIC, SEALED
from picstore.storage.location import Where, file_name, locate, read_at


def walk(root: Where, *, stream: int, file: int, fields: tuple[str, ...] = ()) -> Iterator[Container]:
    """Yield every container that can still be read, in order.

    After damage the walk goes on at the next aligned block that begins with a container's magic and whose header holds
    its CRC, at worst with one bit put right; lengths in a header that does not are never trusted.
    """
    name = file_name(stream, file)
    path = locate(root) / name
    size = path.size()
    offset = ALIGNMENT
    while offset + SEALED <= size:
        step = ALIGNMENT
        head = read_at(path, offset, SEALED, place=name)
        if head[:4] == CONTAINER_MAGIC:
            try:
                header, _ = read_header(head, place=Place(name, offset, stream, file))
                buffer = read_at(path, offset, header.size, place=name)
                container = unpack(buffer, place=Place(name, offset, stream, file, header.ordinal), fields=fields)
            except Damage:
                pass  # whatever it is, the next aligned block is tried
            else:
                yield container
                step = header.size
        offset += step
