"""Reader of the containers of several datasets, one dataset after the other, as if they were a single dataset."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from picstore.arrays import I64, Bools, Table
from picstore.errors import Damage
from picstore.storage.dataset_reader import ContainerReader, Readers
from picstore.storage.format.container import Container, ContainerRef
from picstore.storage.format.record import Record
from picstore.storage.joined_manifest import RecordShift
from picstore.storage.location.resolve import Allocate, Location, Root, fresh, locate
from picstore.storage.partial_reader import RowsOf

T = TypeVar("T")


@dataclass(frozen=True)
class JoinedFolders(Root):
    """Folders of several datasets, read as if they were one folder, in which a file's name is its full path or URL."""

    folders: tuple[Root, ...]

    def __str__(self) -> str:
        return " + ".join(map(str, self.folders))

    def __truediv__(self, name: str) -> Location:
        return locate(name)

    @property
    def name(self) -> str:
        """Names of the folders, joined by plus signs."""
        return " + ".join(folder.name for folder in self.folders)

    def absolute(self) -> JoinedFolders:
        return JoinedFolders(tuple(folder.absolute() for folder in self.folders))


class JoinedReader(ContainerReader):
    """Reader of the containers of several datasets, from each dataset's reader and the shift of its ids and labels.

    Numbers of containers and of streams continue from each dataset to the next.
    """

    def __init__(self, parts: Sequence[ContainerReader], shifts: Sequence[RecordShift]) -> None:
        self.parts = [part.shifted(shift) for part, shift in zip(parts, shifts, strict=True)]
        tables, self._first_streams = [], []
        first = 0
        for part in self.parts:
            self._first_streams.append(first)
            tables.append(part.rows.copy())
            tables[-1]["stream"] += np.uint32(first)
            first = 1 + int(tables[-1]["stream"].max(initial=first))
        self._firsts = np.cumsum([0, *map(len, tables)]).tolist()
        folders = JoinedFolders(tuple(part.root for part in self.parts))
        super().__init__(folders, np.concatenate(tables), self.parts[0].fields)

    @property
    def readers(self) -> Readers:
        """The largest of the datasets' :attr:`ContainerReader.readers`, compared by number of threads first."""
        return max(part.readers for part in self.parts)

    def use_kernel(self) -> None:
        for part in self.parts:
            part.use_kernel()

    def shifted(self, shift: RecordShift) -> ContainerReader:
        return JoinedReader(self.parts, [shift] * len(self.parts))

    def stream_source(self, stream: int) -> tuple[Root, int, RecordShift]:
        number = bisect_right(self._first_streams, stream) - 1
        return self.parts[number].stream_source(stream - self._first_streams[number])

    def container_ref(self, number: int) -> ContainerRef:
        """Return the position of the ``number``-th container of all datasets; its file name is a full path or URL."""
        part, local = self._find(number)
        return part.container_ref(local)

    def read(self, number: int, *, allocate: Allocate = fresh) -> Container:
        part, local = self._find(number)
        return part.read(local, allocate=allocate)

    def read_in_part(
        self,
        numbers: Sequence[int],
        rows_of: RowsOf,
        *,
        mask: Callable[[int], Bools],
        attachments: bool,
        allocate: Allocate = fresh,
    ) -> list[Container | Damage]:
        found: dict[int, Container | Damage] = {}
        for part, (first, last) in zip(self.parts, pairwise(self._firsts), strict=True):
            mine = [number for number in numbers if first <= number < last]

            def mask_of(local: int, first: int = first) -> Bools:
                return mask(first + local)

            options: Any = {"mask": mask_of, "attachments": attachments, "allocate": allocate}
            results = part.read_in_part([number - first for number in mine], rows_of, **options) if mine else []
            found.update(zip(mine, results, strict=True))
        return [found[number] for number in numbers]

    def read_records(self, number: int, rows_of: RowsOf, *, wanted: Bools, attachments: bool) -> Container:
        part, local = self._find(number)
        return part.read_records(local, rows_of, wanted=wanted, attachments=attachments)

    def index(self, number: int) -> Container:
        part, local = self._find(number)
        return part.index(local)

    def record(self, number: int, k: int) -> Record:
        part, local = self._find(number)
        return part.record(local, k)

    def ids(self) -> I64:
        return np.concatenate([part.ids() for part in self.parts])

    def facts(self) -> Table:
        return np.concatenate([part.facts() for part in self.parts])

    def check_extent(self) -> None:
        for part in self.parts:
            part.check_extent()

    def _find(self, number: int) -> tuple[ContainerReader, int]:
        part = bisect_right(self._firsts, number) - 1
        return self.parts[part], number - self._firsts[part]
