"""Reading a dataset's containers by number: whole, in part, or only the tables before the payload.

Containers are read as they are stored: edits are not applied, and deleted records are included.
"""

from __future__ import annotations

import contextlib
import copy
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from picstore.arrays import I64, Array, Bools, Table, read_only
from picstore.errors import Damage, NotADataset, Truncated
from picstore.storage.cache import Cache
from picstore.storage.format.container import Container, ContainerRef
from picstore.storage.format.container_index import ordinals_of
from picstore.storage.format.layout import SEALED
from picstore.storage.format.read_container import ParsedHeader, read_header, unpack_container
from picstore.storage.format.record import Record
from picstore.storage.joined_manifest import NO_SHIFT, RecordShift
from picstore.storage.location.local import Folder
from picstore.storage.location.resolve import Allocate, Location, Root, file_name, fresh, map_concurrently, read_at
from picstore.storage.partial_reader import MIN_MEAN, RowsOf, TableReader, plan_reads, whole_images
from picstore.storage.record_table import FACTS, collect_facts, find_positions
from picstore.storage.references import ReferencesRoot, open_references, read_references

if TYPE_CHECKING:
    from picstore.storage.container_kernel import SoundReader

# Number of bytes of containers' headers and tables to keep in memory. Those of a container have 10 kB, and reading them
# takes 0.26 ms.
_CACHED_BYTES = 32 << 20
_KEPT_EXTRAS = 4 << 20  # largest number of bytes of decompressed extras to keep with a container's index
# Largest number of records that the index may state beyond the ends of files. Readers have arrays with an element per
# record; without a limit, each 32 bytes of a hostile index could add 2**20 elements.
_MAX_MISSING = 1 << 24


class Readers(NamedTuple):
    """Number of threads to read containers with, and number of containers that each thread should read at a time."""

    threads: int
    together: int


class ContainerReader:
    """Reader of containers by number; any thread or forked process may use it, because no file stays open.

    Args:
        root: folder of the dataset.
        rows: a row for each container, ``layout.INDEX_ROW`` (containers,), in stored order.
        fields: names of the attachments.
        cache: cache for containers that are read whole; None for no cache.
        references: the files that containers refer to; None if containers hold their images.
    """

    def __init__(
        self,
        root: Root,
        rows: Table,
        fields: tuple[str, ...],
        *,
        cache: Cache | None = None,
        references: ReferencesRoot | None = None,
    ) -> None:
        self.root, self.rows, self.fields = root, read_only(rows), fields
        self.cache = cache
        self._references = references
        # Change of ids and labels if the records are read as part of a joined dataset (``Dataset.concat``); else None.
        self._shift: RecordShift | None = None
        self._ordinals = ordinals_of(rows)
        self._sound: SoundReader | None = None
        self._forget()

    def _forget(self) -> None:
        self._indexes: OrderedDict[int, Container] = OrderedDict()
        self._ids: I64 | None = None
        self._facts: Table | None = None
        self._tables = TableReader(self.rows)

    @property
    def readers(self) -> Readers:
        """Number of threads, and number of containers that each thread reads together, with which reading is fastest.

        For large images in a folder, one thread is fastest, because further threads only wait for the GIL: one thread
        reads 1,450 crops/s from images of 12 megapixels, four threads read 890. Containers of large images are read
        together, because a NumPy call takes as long for one as for many. From an object store, containers of small
        images are read one by one, because each then arrives sooner.
        """
        local = isinstance(self.root, Folder) and self.cache is None
        if self.cache is not None or self.rows["size"].sum() < MIN_MEAN * self.rows["records"].sum():
            return Readers(threads=2, together=8) if local else Readers(threads=4, together=1)
        return Readers(threads=1, together=64) if local else Readers(threads=4, together=16)

    def use_kernel(self) -> None:
        """Compile or load the kernel with which :meth:`read_in_part` then reads containers in a local folder."""
        local = isinstance(self.root, Folder) and self.cache is None and self._references is None
        if local and self._sound is None:
            # Imported here, because the module imports numba.
            from picstore.storage.container_kernel import SoundReader

            self._sound = SoundReader(str(self.root), self.rows, self._ordinals, self.fields)

    def shifted(self, shift: RecordShift) -> ContainerReader:
        """Return a reader of these containers for a joined dataset; ``shift`` changes the records' ids and labels."""
        reader = copy.copy(self)
        reader._forget()
        reader._shift = shift if self._shift is None else shift.after(self._shift)
        return reader

    def stream_source(self, stream: int) -> tuple[Root, int, RecordShift]:
        """Return the folder of a stream's dataset, the stream's number there, and the shift of ids and labels."""
        return self.root, stream, self._shift or NO_SHIFT

    def container_ref(self, number: int) -> ContainerRef:
        """Return the file of container ``number`` (index in stored order), and the container's place in the file."""
        row = self.rows[number]
        stream, file = int(row["stream"]), int(row["file"])
        name = file_name(stream, file) if self._shift is None else str(self._file(number))
        return ContainerRef(name, int(row["offset"]), stream, file, int(self._ordinals[number]))

    def held_bytes(self, number: int) -> int:
        """Return the bytes that a container takes in memory, including images in other files that it refers to."""
        return int(self.rows["size"][number]) + int(self.rows["referenced"][number])

    def read(self, number: int, *, allocate: Allocate = fresh) -> Container:
        """Read and check a whole container, into memory from ``allocate``.

        The result lists damage that was found. Raise Damage if nothing can be read, NotADataset if the file is missing.
        """
        if self._references is not None:
            return self._read_references(number, self._references, allocate=allocate)
        cached = None if self.cache is None else self._read_cached(self.cache, number, allocate)
        if cached is not None:
            return cached
        container = self._read_stored(number, allocate=allocate)
        if self.cache is not None and not container.damage:
            self.cache.store(self.container_ref(number), container.buffer)
        return container

    def _read_references(
        self, number: int, root: ReferencesRoot, *, wanted: Bools | None = None, allocate: Allocate = fresh
    ) -> Container:
        limit = int(self.rows[number]["referenced"])
        return read_references(self._read_stored(number), root, limit=limit, wanted=wanted, allocate=allocate)

    def _read_stored(self, number: int, *, allocate: Allocate = fresh) -> Container:
        ref, size = self.container_ref(number), int(self.rows[number]["size"])
        buffer = read_at(self._file(number), ref.offset, size, file=ref.name, allocate=allocate)
        return self._unpack(number, buffer)

    def read_in_part(
        self,
        numbers: Sequence[int],
        rows_of: RowsOf,
        *,
        mask: Callable[[int], Bools],
        attachments: bool,
        allocate: Allocate = fresh,
    ) -> list[Container | Damage]:
        """Read only the needed rows of restart tiles from containers of large images; read other containers whole.

        With a cache, all containers are read whole.

        Args:
            numbers: container numbers in stored order, each once.
            rows_of: function that returns the needed rows of restart tiles of each live image; see
                ``partial_reader.RowsOf``.
            mask: function that returns the mask of a container's live records, given the container number.
            attachments: whether attachments are needed too.

        Returns:
            For each number the container, or a Damage if nothing of the container can be read.
        """
        large = [number for number in numbers if self.cache is None and self._has_large_images(number)]
        done = self._read_rows(large, rows_of, mask=mask, attachments=attachments, allocate=allocate) if large else {}
        if self._sound is not None:
            done |= self._read_sound(self._sound, [number for number in numbers if number not in done], allocate)
        return [done.get(number) or self.read_whole(number, allocate) for number in numbers]

    def _read_sound(self, reader: SoundReader, numbers: Sequence[int], allocate: Allocate) -> dict[int, Container]:
        found = {
            number: container
            for number, container in zip(numbers, reader.read(numbers, allocate), strict=True)
            if container is not None
        }
        if self._shift is not None:
            for number, container in found.items():
                container.ref = self.container_ref(number)
                self._shift.apply(container)
        return found

    def _read_rows(
        self,
        numbers: Sequence[int],
        rows_of: RowsOf,
        *,
        mask: Callable[[int], Bools],
        attachments: bool,
        allocate: Allocate,
    ) -> dict[int, Container]:
        """Read only the rows of restart tiles that ``rows_of`` requests; return the containers by container number.

        Containers that are faster to read whole, or cannot be read, are left out.
        """
        paths = {number: self._file(number) for number in numbers}
        places = {number: (path, self.container_ref(number)) for number, path in paths.items()}
        tables = self._tables.read(places, self._unpack_tables)
        masks = [mask(number) for number in tables]
        planned = plan_reads([*tables.values()], masks, rows_of, attachments=attachments, allocate=allocate)
        reads = {number: read for number, read in zip(tables, planned, strict=True) if read is not None}
        waiting = [number for number, read in reads.items() if not read.run_cached(paths[number])]
        for number in waiting:
            with contextlib.suppress(Damage, NotADataset):
                reads[number].run(paths[number])
                continue
            del reads[number]  # Reading in part has failed; the caller reads the container whole, to report the damage.
        return {number: read.container for number, read in reads.items()}

    def read_records(self, number: int, rows_of: RowsOf, *, wanted: Bools, attachments: bool) -> Container:
        """Read the records of a container that ``wanted``, bool (records,), marks; of large images, only needed rows.

        ``good`` of the result is meaningless for unmarked records. The container is read whole if that is faster.
        """
        if self._references is not None:
            return self._read_references(number, self._references, wanted=wanted)
        tables = self.index(number)
        if tables.read is None:  # The container's header is damaged, so ``index`` has read the whole container.
            return tables
        if attachments:
            _ = tables.extras  # Decompress the extras before ``tables`` is copied, so that the copy shares them.
        container = tables.without_payload()
        tables.release_extras(above=_KEPT_EXTRAS)
        rows_of = rows_of if self._has_large_images(number) else whole_images
        (read,) = plan_reads([container], [wanted], rows_of, attachments=attachments, allocate=fresh)
        if read is None:
            return self.read(number)
        read.run(self._file(number))
        return container

    def index(self, number: int) -> Container:
        """Return a container without its payload; the latest results are kept in memory. Errors: see :meth:`read`."""
        container = self._indexes.get(number)
        if container is None:
            try:
                container = self._read_index(number)
            except Damage:
                container = self.read(number)
            self._indexes[number] = container
            # Containers without payload have similar sizes, so this container's size tells how many may be kept.
            held = len(container.buffer) + min(container.extras_size, _KEPT_EXTRAS)
            while len(self._indexes) > max(1, _CACHED_BYTES // held):
                self._indexes.popitem(last=False)
        return container

    def record(self, number: int, k: int) -> Record:
        """Read only record ``k`` of a container; raise Corrupt if it is damaged. Other errors: see :meth:`read`."""
        container = self.index(number)
        try:
            return container.record(k)
        finally:
            container.release_extras(above=_KEPT_EXTRAS)

    def ids(self) -> I64:
        """Return the ids of all stored records, read once: int64 (records,), read-only; -1 for a damaged index entry.

        Raise Truncated as :meth:`check_extent` does.
        """
        if self._ids is None:
            self._ids = read_only(self._collect(lambda facts: facts["id"], np.dtype(np.int64)))
        return self._ids

    def facts(self) -> Table:
        """Return a table of all stored records, ``record_table.FACTS`` (records,), read-only; errors: see ``ids``.

        Only the first call reads from storage. For a damaged index entry, the id is -1 and all other values are 0.
        """
        cache = None if self._shift else self.cache
        if self._facts is None and cache is not None:
            cached = cache.read_facts(int(self.rows["records"].sum(dtype=np.int64)) * FACTS.itemsize)
            self._facts = None if cached is None else np.frombuffer(cached, FACTS)
        if self._facts is None:
            self._facts = self._collect(lambda facts: facts, FACTS)
            if cache is not None and (self._facts["id"] >= 0).all():
                cache.store_facts(self._facts.tobytes())
        return read_only(self._facts)

    def derive(self, compute: Callable[[Table], Array], dtype: npt.DTypeLike) -> Array:
        """Compute a value for each stored record, (records,), from a table of the records' ``record_table.FACTS``.

        The table stays in memory only if there is a cache or :meth:`facts` was called before.
        """
        if self._facts is None and self.cache is None:
            return self._collect(compute, np.dtype(dtype))
        return compute(self.facts())

    def positions(self, ids: I64) -> I64:
        """Return the positions in stored order of the records ``ids``; raise UsageError if an id has no record."""
        return find_positions(self.ids(), ids, where=str(self.root))

    def check_extent(self) -> None:
        """Compare the index with the files' sizes, so that a hostile index cannot make readers run out of memory.

        Raise Truncated if more than 2**24 records lie beyond the ends of their files. Up to 2**24 count as damaged.
        """
        files, file_of = np.unique(self.rows[["stream", "file"]], return_inverse=True)
        sizes = np.array(list(map_concurrently(self._file_size, files.tolist())), dtype=np.uint64)
        beyond = self.rows["offset"] + self.rows["size"] > sizes[file_of]
        if (missing := int(self.rows["records"][beyond].sum(dtype=np.int64))) > _MAX_MISSING:
            text = f"{missing:,} records of the index lie beyond the ends of their files; restore them from a backup"
            raise Truncated(text, str(self.root))

    def _has_large_images(self, number: int) -> bool:
        row = self.rows[number]
        return int(row["size"]) >= MIN_MEAN * int(row["records"])

    def _file(self, number: int) -> Location:
        row = self.rows[number]
        return self.root / file_name(int(row["stream"]), int(row["file"]))

    def _file_size(self, numbers: tuple[int, int]) -> int:
        try:
            return (self.root / file_name(*numbers)).size()
        except NotADataset:
            return 0

    def _collect(self, take: Callable[[Table], Array], dtype: np.dtype[Any]) -> Array:
        self.check_extent()
        return collect_facts(self.rows["records"], self.index, take, dtype)

    def _read_cached(self, cache: Cache, number: int, allocate: Allocate) -> Container | None:
        ref = self.container_ref(number)
        buffer = cache.read(ref, int(self.rows[number]["size"]), allocate=allocate)
        if buffer is None:
            return None
        with contextlib.suppress(Damage):
            container = self._unpack(number, buffer)
            if not container.damage:
                return container
        cache.discard(ref)
        return None

    def read_whole(self, number: int, allocate: Allocate = fresh) -> Container | Damage:
        """Read a whole container, or return its Damage. The Damage has no traceback, which would keep buffers alive."""
        try:
            return self.read(number, allocate=allocate)
        except Damage as error:
            return type(error)(error.what, error.file, error.offset)
        except NotADataset:
            ref = self.container_ref(number)
            return Damage("the file is missing", ref.name, ref.offset)

    def _read_index(self, number: int) -> Container:
        if self._references is not None:
            limit = int(self.rows[number]["referenced"])
            return open_references(self._read_stored(number), self._references, limit=limit)
        ref = self.container_ref(number)
        path = self._file(number)

        def read(offset: int, length: int) -> memoryview:
            return read_at(path, ref.offset + offset, length, file=ref.name)

        parsed = read_header(read(0, SEALED), ref=ref)
        return self._unpack(number, read(0, parsed[0].payload_at), read, parsed)

    def _unpack_tables(self, number: int, buffer: memoryview, parsed: ParsedHeader) -> Container:
        container = self._unpack(number, buffer, _read_nothing, parsed)
        container.read = None
        return container

    def _unpack(
        self,
        number: int,
        buffer: memoryview,
        read: Callable[[int, int], memoryview] | None = None,
        parsed: ParsedHeader | None = None,
    ) -> Container:
        row = self.rows[number]
        container = unpack_container(
            buffer,
            ref=self.container_ref(number),
            fields=self.fields,
            records=int(row["records"]),
            header_crc=int(row["header_crc"]),
            size=int(row["size"]),
            read=read,
            parsed=parsed,
        )
        if self._shift is not None:
            self._shift.apply(container)
        return container


def _read_nothing(begin: int, size: int) -> memoryview:
    """Raise AssertionError; given as ``read``, this function tells ``unpack_container`` not to check the payload."""
    raise AssertionError((begin, size))
