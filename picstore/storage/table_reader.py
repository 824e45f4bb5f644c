"""Reading the tables of containers, which precede the payload, and keeping them from one epoch to the next.

The tables of large images take some thousandth of a container. Kept, they save a fifth of the time in which one thread
reads crops from memory, and a request for each container to a store.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping

from picstore.arrays import Table
from picstore.errors import Damage, NotADataset
from picstore.storage.format.container import Container, ContainerRef
from picstore.storage.format.read_container import ParsedHeader, read_header
from picstore.storage.location.resolve import Location, fresh

_MIN_BYTES = 4096  # to read at first of a container
_MAX_SHARE = 1 / 64  # and at most this share of it: tables of photographs take a hundredth
# Some 4,000 containers; the ends of rows that are found in them take half as much again. The first ones are kept, as
# each epoch reads all, and would replace the others by its end.
_KEPT_BYTES = 64 << 20


class TableReader:
    """Reader of the tables of containers by number; any thread may call it.

    ``rows`` are ``layout.INDEX_ROW`` (containers,).
    """

    def __init__(self, rows: Table) -> None:
        self._rows = rows
        self._share = 0.0  # of a container, the largest that was seen
        self._kept: dict[int, Container] = {}
        self._kept_bytes = 0

    def read(
        self,
        places: Mapping[int, tuple[Location, ContainerRef]],
        unpack: Callable[[int, memoryview, ParsedHeader], Container],
    ) -> dict[int, Container]:
        """Read the tables of containers, given with their files and positions; damaged ones are left out.

        A damaged container is read whole elsewhere, which tells its good records. ``unpack`` makes a container of its
        number, its tables and its header. ``read_size`` is 0 where nothing was read.
        """
        begun = {number: self._begin(number, path) for number, (path, _) in places.items() if number not in self._kept}
        found = {}
        for number, (path, ref) in places.items():
            if number not in begun:
                found[number] = self._kept[number].without_payload()
                found[number].read_size = 0
                continue
            buffer, filled = begun[number]
            with contextlib.suppress(Damage, NotADataset):
                guess, size = len(buffer), int(self._rows["size"][number])
                buffer, header = self._finish(path, ref, buffer, size=size, filled=filled)
                tables = unpack(number, buffer, header)
                if not tables.damage:
                    self._keep(number, tables)
                    tables.read_size = max(guess, len(buffer))
                    found[number] = tables
        return found

    def _begin(self, number: int, path: Location) -> tuple[memoryview, bool]:
        """Make memory for what precedes a payload, by the largest share of a container seen, and fill it if cached."""
        size = int(self._rows["size"][number])
        buffer = fresh(min(size, max(_MIN_BYTES, int(size * (self._share or _MAX_SHARE)))))
        return buffer, path.read_cached([(0, len(buffer))], buffer, at=int(self._rows["offset"][number]))

    def _finish(
        self, path: Location, ref: ContainerRef, buffer: memoryview, *, size: int, filled: bool
    ) -> tuple[memoryview, ParsedHeader]:
        """Read what precedes the payload of a container of ``size`` bytes, unless it is there; and its header."""
        guess = len(buffer)
        if not filled:
            path.read_ranges([(0, guess)], buffer, at=ref.offset, file=ref.name)
        header = read_header(buffer, ref=ref)
        end = header[0].payload_at
        tables = fresh(end)  # no more than is kept: the first guesses are ten times as large
        tables[:guess] = buffer[:end]
        if end > guess:
            path.read_ranges([(guess, end)], tables[guess:], at=ref.offset, file=ref.name)
        self._share = min(max(self._share, end / size), _MAX_SHARE)
        return tables, header

    def _keep(self, number: int, tables: Container) -> None:
        """Keep the tables of a container while there is room.

        Without a lock, which a fork could find held for ever: a sum that misses some of four threads' does no harm.
        """
        if self._kept_bytes + len(tables.buffer) <= _KEPT_BYTES:
            self._kept[number] = tables.without_payload()  # which shares ``tile_rows``
            self._kept_bytes += len(tables.buffer)
