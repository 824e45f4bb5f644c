"""``picstore.Dataset``: random access by position, streaming in stored order, and edits of a finished dataset."""

from __future__ import annotations

import contextlib
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, cast, overload

import numpy as np
import numpy.typing as npt

from picstore.arrays import I64, U8, Array, Bools, Table
from picstore.errors import Corrupt, Damage, NotADataset, UnsupportedVersion, UsageError, counted
from picstore.storage.cache import DEFAULT_LIMIT, Cache
from picstore.storage.class_names import checked_names
from picstore.storage.dataset_reader import ContainerReader
from picstore.storage.edits.columns import LABEL, Column, FileBytes
from picstore.storage.edits.edit_entries import Edits
from picstore.storage.edits.edit_files import EditFiles, KeptColumns
from picstore.storage.edits.live_records import LiveRecords, SelectedRecords, integers, mask_of
from picstore.storage.format.layout import ENTRY
from picstore.storage.format.record import Record, copy_record
from picstore.storage.joined_manifest import align, join_columns, join_manifests
from picstore.storage.joined_reader import JoinedReader
from picstore.storage.location.resolve import Location, Root, Where, locate, locate_writable
from picstore.storage.manifest import Manifest, read_index, read_manifest, uuid_of_containers, with_uuid
from picstore.storage.manifest_writer import keep_counts, publish_edit
from picstore.storage.record_counts import (
    RecordCounts,
    count_records,
    counts_of_same_labels,
    end_of_ids,
    known_ids_end,
    read_counts,
)
from picstore.storage.record_table import FACTS, RecordTable, read_paths
from picstore.storage.references import ReferencesRoot, find_references_root
from picstore.storage.sizes import parse_size
from picstore.storage.split_parts import assign_parts, split_bounds

if TYPE_CHECKING:
    from picstore.display.figures import Figure

# Arguments ``root``, ``cache`` and ``cache_limit`` of a Dataset, in this order.
Options: TypeAlias = "tuple[Where | ReferencesRoot | None, str | os.PathLike[str] | None, int | str]"


class Dataset(Sequence[Record]):
    """A finished dataset.

    ``len(ds)`` is the number of records; ``ds[i]`` reads and checks only the i-th record in stored order. Opening takes
    two reads, iterating one read per container. Threads and forked processes can share a dataset.

    ``without`` and ``with_columns`` return edited datasets, which loaders can read and ``save`` writes to storage.
    ``select`` returns a dataset of some of the records; a selection cannot be saved.

    Args:
        path: the dataset's directory, or its URL in an object store, such as ``s3://bucket/train``.
        root: folder of the image files if the dataset is an index (a dataset that refers to images instead of holding
            them). By default the folder that the index names, if that folder lies in the index's folder or this user
            made the index; see docs/index-in-place.md.
        cache: local folder that keeps the containers read from a remote dataset. Processes and datasets may share the
            folder. ``ds[i]`` reads a single record and does not use the cache.
        cache_limit: maximum bytes of the cache folder, as a number or a string such as ``"50GiB"``.
        version: uuid of the version to open; by default the latest. Each edit makes a new version.

    Attributes:
        path: location of the dataset; ``str(ds.path)`` is its path or URL.
        references: folder of an index's images; None if the dataset is not an index.
        rows: a row for each container, ``layout.INDEX_ROW`` (containers,), in stored order.
        containers: reader of containers by number in stored order.
        live: the stored records that are not deleted; in a selection, only the selected records.

    Raises:
        NotADataset, Unfinished, UnsupportedVersion, Damage: see :func:`picstore.storage.manifest.read_manifest`.
            NotADataset also if the folder of an index's images does not exist.
        UsageError: the version does not exist, the cache cannot be used, or ``root`` is needed and not given.
        PicstoreError: an object store refuses access or cannot be reached, here or while reading.
        MissingDependency: obstore, which object stores need, is not installed.
    """

    def __init__(
        self,
        path: Where,
        *,
        root: Where | None = None,
        cache: str | os.PathLike[str] | None = None,
        cache_limit: int | str = DEFAULT_LIMIT,
        version: str | None = None,
    ) -> None:
        where = locate(path)
        manifest = read_manifest(where, version)
        self._open(where, manifest, manifest.uuid, {}, (root, cache, cache_limit))

    def _open(self, where: Location, manifest: Manifest, origin: str, unsaved: FileBytes, options: Options) -> None:
        root, cache, cache_limit = options
        self._origin = origin  # uuid of the saved version to which unsaved edits apply
        rows = read_index(where, manifest)
        if cache is None and parse_size(cache_limit) != parse_size(DEFAULT_LIMIT):
            raise UsageError(f"cache_limit {cache_limit!r} limits a cache; give cache too")
        local = None if cache is None else Cache(cache, cache_limit, uuid_of_containers(manifest, rows), where)
        self.references = find_references_root(where, manifest, root)
        self._options: Options = (self.references, None if local is None else local.folder, cache_limit)
        if self.references is not None and cache is not None:
            raise UsageError(f"{where} is an index, whose images a cache does not keep; convert it")
        self._joined: tuple[Dataset, ...] = ()
        self._ids_end: int | None = None  # number above all ids, from ``_find_ids_end``; None before its first call
        containers = ContainerReader(where, rows, manifest.attachments, cache=local, references=self.references)
        self._set_containers(containers)
        self._set_manifest(manifest, unsaved)

    def _set_containers(self, containers: ContainerReader) -> None:
        self.containers = containers
        self.path: Root = containers.root
        self.rows = containers.rows
        self._columns: KeptColumns = {}
        self._selected: U8 | None = None  # marks of a selection's records, ``SelectedRecords.bits``; else None

    def _set_manifest(self, manifest: Manifest, unsaved: FileBytes) -> None:
        """Set a manifest of the same containers; ``unsaved`` holds the bytes of unsaved edits' .npy files by name."""
        self.manifest = manifest
        self._edits = EditFiles(self.path, manifest.edits or Edits(), unsaved, kept=self._columns)
        deleted = self._edits.deleted()
        self.live: LiveRecords = LiveRecords.from_deleted(self.rows["records"], deleted, file=str(self.path))
        if len(self.live.deleted) != self._edits.edits.deleted:
            raise Corrupt("the tombstones and the manifest count deleted records differently", str(self.path))
        if self._selected is not None:
            self.live = SelectedRecords.from_bits(self.live, self._selected)

    def __getstate__(self) -> tuple[Any, ...]:
        """Return a state from which any process can open the same version, even in another working directory."""
        where = self._joined or self.path.absolute()
        return where, self.manifest, self._origin, self._edits.unsaved, self._options, self._selected, self._ids_end

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        where, manifest, origin, unsaved, options, selected, ids_end = state
        if isinstance(where, tuple):
            self.__dict__.update(where[0].concat(*where[1:]).__dict__)
        else:
            self._open(where, manifest, origin, unsaved, options)
        self._ids_end = ids_end
        if selected is not None or self._joined:
            self._selected = selected
            self._set_manifest(manifest, unsaved)

    @property
    def classes(self) -> list[str]:
        """Names of the classes: ``classes[k]`` is the name for label k; empty if the source had no names."""
        return list(self.manifest.classes)

    @property
    def class_to_idx(self) -> dict[str, int]:
        """Label of each class by name, as in torchvision's ImageFolder; if a name occurs twice, its first label."""
        return {name: label for label, name in reversed(list(enumerate(self.classes)))}

    @property
    def targets(self) -> list[int]:
        """Label of each record in stored order, as in torchvision's ImageFolder; ``table["label"]`` is an array."""
        return self.facts()["label"].tolist()  # type: ignore[no-any-return]

    @property
    def samples(self) -> list[tuple[str | None, int]]:
        """Path and label of each record in stored order, as in torchvision's ImageFolder.

        The path is that of the converted file in its source, or None if it was not stored. Each access reads the
        indexes and extras of all containers.

        Raises:
            Corrupt, NotADataset: extras are damaged, or a file is missing.
        """
        return list(zip(read_paths(self.containers.index, self.live), self.targets, strict=True))

    @property
    def uuid(self) -> str:
        """Uuid of the dataset's content: equal bytes have equal uuids; a selection has the whole dataset's uuid."""
        return self.manifest.uuid

    @property
    def identity(self) -> str:
        """Name of the dataset in a loader's saved state: ``order_uuid``, and for a selection a hash of its records."""
        if not isinstance(self.live, SelectedRecords):
            return self.order_uuid
        return f"{self.order_uuid}, selection {self.live.digest}"

    @property
    def order_uuid(self) -> str:
        """Uuid that stands for the order of the records: the dataset's own, or that of the index it was converted from.

        It is the index's uuid if all inputs of the conversion succeeded and the dataset was neither edited nor
        shuffled.
        """
        provenance = self.manifest.provenance
        changed = self.manifest.edits is not None or self.manifest.shuffle
        kept = not changed and provenance.get("outcome", {}).get("failed") == 0
        return str(provenance.get("index", self.uuid)) if kept else self.uuid

    @property
    def folders(self) -> tuple[Location, ...]:
        """Folders with the dataset's files: one for each joined dataset; for an index, also that of its images."""
        if self._joined:
            return tuple(folder for each in self._joined for folder in each.folders)
        images = () if self.references is None else (self.references.folder,)
        return (cast("Location", self.path), *images)

    @property
    def foreign(self) -> int:
        """Number of images that only the CPU decodes, because they are not upright JPEGs; 0 if this is not an index."""
        return 0 if self.manifest.references is None else self.manifest.references.foreign

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        return self._edits.columns

    @property
    def ids(self) -> I64:
        """Ids of the records in stored order, a new int64 array (len(ds),); -1 if an index entry is damaged."""
        stored = self.containers.ids()
        return stored.copy() if len(stored) == len(self) else stored[self.live.marks()]

    @property
    def table(self) -> RecordTable:
        """Table of the records' facts and columns, without images, read on first use: ``ds.table["width"]``."""
        return RecordTable(len(self), self.facts, {name: partial(self.column, name) for name in self.columns})

    def __len__(self) -> int:
        return len(self.live)

    def __repr__(self) -> str:
        return f"Dataset({str(self.path)!r}: {counted(len(self), 'image')}, {counted(len(self.classes), 'class')})"

    def describe_opening(self) -> str:
        """Return the code that opens the dataset, or the repr if it is joined, a selection or has unsaved edits."""
        whole = not self._joined and self._selected is None and not self._edits.unsaved
        return f"Dataset({str(self.path)!r})" if whole else repr(self)

    def _repr_html_(self) -> str:
        from picstore.display.markup import format_facts
        from picstore.storage.record_pictures import describe_manifest

        return format_facts(f"Dataset {self.path}", describe_manifest(self.manifest, len(self)))

    @overload
    def __getitem__(self, i: int) -> Record: ...
    @overload
    def __getitem__(self, i: slice) -> list[Record]: ...
    def __getitem__(self, i: int | slice) -> Record | list[Record]:
        """Read the record at a position in stored order.

        Raise Damage if the record's checksum is wrong or its file is cut off, NotADataset if the file is missing.
        """
        if isinstance(i, slice):
            return [self[k] for k in range(*i.indices(len(self)))]
        i = operator.index(i)
        k = i + len(self) if i < 0 else i
        if not 0 <= k < len(self):
            raise IndexError(f"position {i} of a dataset of {counted(len(self), 'record')}")
        (number,), (within,) = (each.tolist() for each in self.live.find(np.array([k])))
        record = self.containers.record(number, within)
        return copy_record(self.with_values(record))

    def __iter__(self) -> Iterator[Record]:
        # Skip containers without live records: `repair` deletes all records of a file that is missing.
        for number in np.flatnonzero(self.live.counts).tolist():
            container = self.containers.read(number)
            for k in np.flatnonzero(self.live.mask(number)).tolist():
                yield copy_record(self.with_values(container.record(k)))

    def show(self, count: int = 12, *, positions: Sequence[int] | None = None, columns: int = 4) -> Figure:
        """Draw images with class, id, boxes, polygons and keypoints; damaged images are grey.

        Args:
            count: number of images, evenly spaced in stored order.
            positions: positions of the images to draw, instead of ``count``.
            columns: number of images side by side.

        Returns:
            A matplotlib figure. MissingDependency is raised if matplotlib is not installed.
        """
        # Imported only here, because these modules load the decoder and its kernels.
        from picstore.display.figures import draw_tiles
        from picstore.storage.record_pictures import read_tile

        if positions is None:
            number = max(0, min(count, len(self)))
            positions = [k * len(self) // number for k in range(number)]
        return draw_tiles([read_tile(self.__getitem__, k, self.classes) for k in positions], columns=columns)

    def summary(self) -> Figure:
        """Plot histograms of the images' classes, widths, heights and sizes in bytes, as a matplotlib figure.

        Images with damaged index entries are counted in the title only. Raise MissingDependency if matplotlib is not
        installed.
        """
        from picstore.storage.record_pictures import draw_summary

        return draw_summary(self.table, self.classes, str(self.path))

    def entries(self, number: int) -> Table:
        """Read the index entries of the ``number``-th container, ``layout.ENTRY``, without reading its payload.

        Entries of damaged and deleted records are left out. Values of a column ``label`` replace the stored labels.
        Errors: see :meth:`ContainerReader.read`.
        """
        if not self.live.mask(number).any():
            return np.zeros(0, dtype=ENTRY)
        container = self.containers.index(number)
        entries: Table = container.index[container.good & self.live.mask(number)]
        entries["label"] = self.labels(entries["id"], entries["label"])
        return entries

    def labels(self, ids: npt.NDArray[np.integer[Any]], labels: I64) -> I64:
        """Return the label of each record in ``ids``: its value in the column ``label``, else that in ``labels``."""
        return self._edits.labels(ids, labels)

    def column(self, name: str) -> Column:
        """Return the column called ``name``, read (or, in a local folder, mapped) on first use.

        Raise UsageError if there is no such column.
        """
        return self._edits.column(name)

    def without(self, ids: Iterable[int]) -> Dataset:
        """Return the dataset without the records ``ids``; raise UsageError if an id belongs to no record.

        If this is a selection, the records are unselected, not deleted. Ids of deleted records are ignored.
        """
        positions = self.containers.positions(integers(list(ids) if isinstance(ids, Iterable) else ids, "ids"))
        if isinstance(self.live, SelectedRecords):
            return self._select(~np.isin(self.live.numbers, positions))
        return self.without_positions(np.union1d(self.live.deleted, positions))

    def without_positions(self, deleted: I64) -> Dataset:
        """Return a dataset in which exactly the records at ``deleted``, ascending stored positions, are deleted."""
        edits, files = self._edits.with_deleted(deleted)
        return self._edited(files, edits=edits)

    def select(self, chosen: npt.ArrayLike | None = None, *, ids: npt.ArrayLike | None = None) -> Dataset:
        """Select records by ids, or by ``chosen``: a mask, bool (len(ds),), or positions.

        The records keep their order. Selecting by ids reads all ids. Raise UsageError if the mask has another length,
        or a position or id does not exist.
        """
        if (chosen is None) == (ids is None):
            raise UsageError("select takes a mask or positions, or ids=; give one of them")
        if ids is None:
            return self._select(mask_of(chosen, len(self)))
        positions = self.containers.positions(integers(ids, "ids"))
        if np.isin(positions, self.live.numbers, invert=True).any():
            raise UsageError(f"{self.path}: some of the ids belong to deleted records or are not in the selection")
        return self._select(mask_of(np.searchsorted(self.live.numbers, positions), len(self)))

    def where(self, condition: str) -> Dataset:
        """Select the records for which a condition holds, such as ``"label = 3 AND width > 512"``.

        The condition is an expression in DuckDB's SQL over the columns of :attr:`table`. Errors: see
        :meth:`picstore.storage.record_table.RecordTable.where`.
        """
        return self._select(self.table.where(condition))

    def split(self, *fractions: float, seed: int = 0, by: str | None = None) -> tuple[Dataset, ...]:
        """Split the records at random: ``first, second = ds.split(0.9)``, ``train, val, test = ds.split(0.8, 0.1)``.

        Args:
            fractions: share of the records in each part; if the sum is below 1, the remaining records are a last part.
            seed: random seed.
            by: name of a column of :attr:`table`, such as ``"label"``. The fractions then also hold among the records
                with each value of the column, to within a few records. Appending does not change a record's part, but
                a deletion may change the parts of later records with the same value. Without ``by``, a record's part
                depends only on seed and id, and the sizes of the parts are random, with the fractions as their means.

        Raise UsageError unless the fractions are positive with a sum of at most 1, and the column exists.
        """
        bounds = split_bounds(fractions)
        number = assign_parts(self.ids, bounds, seed=seed, values=None if by is None else self.table[by])
        return tuple(self._select(number == part) for part in range(len(bounds) + 1))

    def concat(self, *others: Dataset) -> Dataset:
        """Read several datasets as one: the records of this dataset, then the records of ``others`` in the given order.

        The first dataset keeps its ids; a multiple of 2**40 is added to the ids of each further dataset to make all ids
        differ. Classes of the same name become one class, and labels are changed to match; columns of the same name
        become one column. Selections and edits remain in effect. The result cannot be saved; `picstore shuffle` writes
        a copy. Raise UsageError if only some datasets have class names, if the datasets' attachments differ, if columns
        with the same name differ in kind or shape, or if an id would need more than 63 bits.
        """
        datasets = (self, *others)
        if wrong := [each for each in others if not isinstance(each, Dataset)]:
            raise UsageError(f"concat takes open datasets, not {wrong[0]!r}; open it by picstore.Dataset(...)")
        manifests = [each.manifest for each in datasets]
        shifts = align(manifests, [each._find_ids_end() for each in datasets], [str(each.path) for each in datasets])
        joined = Dataset.__new__(Dataset)
        joined._joined, joined._options, joined.references = datasets, (None, None, 0), None
        joined._set_containers(JoinedReader([each.containers for each in datasets], shifts))
        firsts = np.cumsum([0, *(int(each.live.starts[-1]) for each in datasets)])
        deleted = np.concatenate([each.live.deleted + first for each, first in zip(datasets, firsts, strict=False)])
        columns = join_columns([{name: each.column(name) for name in each.columns} for each in datasets], shifts)
        manifest, files = join_manifests(manifests, joined.rows, deleted, columns)
        joined._origin, joined._ids_end = manifest.uuid, shifts[-1].first_id + (shifts[-1].ids_end or 0)
        joined._set_manifest(manifest, files)
        if all(each._selected is None for each in datasets):
            return joined
        return joined._select(np.concatenate([each.live.marks() for each in datasets])[joined.live.marks()])

    def with_columns(
        self,
        columns: Mapping[str, Sequence[Any] | Array],
        *,
        ids: Sequence[int] | I64 | None = None,
        classes: Sequence[str] | None = None,
        keep: bool | None = None,
    ) -> Dataset:
        """Attach captions, embeddings or labels to records; raise UsageError if a name, value or id is invalid.

        Args:
            columns: n strings, n numbers, or n arrays of one shape, by column name. A column ``label`` replaces the
                records' labels.
            ids: ids of the records to which the n values belong, int (n,). By default, value i belongs to ``ds[i]``.
            classes: class names for the labels in a column ``label``.
            keep: whether records without a new value keep the value that a column of the same name already has. By
                default True if ``ids`` are given or this is a selection, else False.
        """
        if not isinstance(columns, Mapping):
            raise UsageError(f"with_columns takes values by column name, such as {{'caption': [...]}}, not {columns!r}")
        chosen = self.ids if ids is None else integers(ids, "ids")
        if ids is not None:
            self.containers.positions(chosen)
        if len(np.unique(chosen)) != len(chosen) or (len(chosen) and chosen.min() < 0):
            raise UsageError(f"{self.path}: an id occurs twice, or an index entry is damaged; give ids, each once")
        names = self.manifest.classes if classes is None else checked_names(classes, "classes")
        if taken := set(columns) & set(self.manifest.attachments):
            raise UsageError(f"{self.path} has an attachment called {min(taken)!r}; give the column another name")
        if taken := set(columns) & set(FACTS.names or ()) - {LABEL, *self.columns}:
            text = f"the table of every dataset has {min(taken)!r}, which says it of the stored images"
            raise UsageError(f"{text}; give the column another name")
        if keep is None:
            keep = ids is not None or self._selected is not None
        edits, files = self._edits.with_columns(columns, chosen, keep=keep)
        edited = self._edited(files, edits=edits, classes=names)
        if names and LABEL in columns:
            labels = edited.column(LABEL).values
            if ((labels < -1) | (labels >= len(names))).any():
                known = counted(len(names), "class")
                raise UsageError(f"the column 'label' holds labels beyond the {known}; give classes=")
        return edited

    def record_counts(self) -> RecordCounts:
        """Return the number of records of each label: the stored counts, else the result of :meth:`count_records`."""
        return self.kept_counts() or self.count_records()

    def kept_counts(self) -> RecordCounts | None:
        """Read the stored number of records with each label; return None if the file is missing, damaged or outdated.

        Also return None for a selection, for joined datasets, and if there are unsaved edits.
        """
        if self._selected is not None or self._joined or self.uuid != self._origin:
            return None
        with contextlib.suppress(NotADataset, Damage, UnsupportedVersion):
            return read_counts(self.path, self.manifest)
        return None

    def count_records(self) -> RecordCounts:
        """Count records by label, without damaged entries; raise Damage or NotADataset if an index is unreadable."""
        numbers = np.flatnonzero(self.live.counts).tolist()
        return count_records(numbers, self.containers.index, live=self.live.mask, relabel=self.labels)

    def _find_ids_end(self) -> int:
        if self._ids_end is None:
            known = isinstance(self.path, Location) and known_ids_end(self.path, self.manifest, self._origin)
            self._ids_end = known or end_of_ids(self.containers.ids())
        return self._ids_end

    def column_files(self) -> tuple[Edits, FileBytes]:
        """Return edits that give a copy of this dataset or selection the same columns; and their .npy files by name."""
        return self._edits.all_columns() if self._selected is None else self._edits.columns_of(self.ids)

    def save(self) -> Dataset:
        """Write deletions and columns as a new version of the dataset, and return that version; no image is written.

        Processes that have opened an older version continue to read it. The dataset does not change until the last
        write, which replaces the manifest. The number of records with each label is written too, even without edits if
        it is missing. Raise UsageError for a selection or joined datasets, or if another process has edited the dataset
        since it was opened.
        """
        if self._selected is not None or not isinstance(self.path, Location):
            what = "several datasets" if self._joined else "a selection"
            raise UsageError(f"{what} cannot be saved; `picstore shuffle` writes a copy, save edits before")
        root = locate_writable(self.path)
        if self.uuid != self._origin:
            self._edits.write(root)
            publish_edit(root, self._origin, self.manifest, self._counts_to_save(root))
        elif self.kept_counts() is None and (counts := self._counts_to_save(root)) is not None:
            keep_counts(root, self.manifest, counts)
        return self.latest()

    @property
    def is_saved(self) -> bool:
        """Whether all edits of the dataset are saved; for a selection, all edits of the dataset it selects from."""
        return not self._edits.unsaved and self.uuid == self._origin

    def latest(self) -> Dataset:
        """Open the latest version of the dataset, which another process may have written, with the same options.

        For a selection, open the whole dataset. Raise UsageError for joined datasets; other errors: see the class.
        """
        if not isinstance(self.path, Location):
            raise UsageError(f"{self.path} are joined datasets without a version; use each dataset alone")
        manifest, latest = read_manifest(self.path), Dataset.__new__(Dataset)
        latest._open(self.path, manifest, manifest.uuid, {}, self._options)
        return latest

    def _counts_to_save(self, root: Location) -> RecordCounts | None:
        counts = counts_of_same_labels(root, self.manifest, self._origin)
        if counts is None:
            with contextlib.suppress(NotADataset, Damage):
                counts = self.count_records()
        return counts

    def _edited(self, files: Mapping[str, bytes], **fields: Any) -> Dataset:
        """Return a copy with ``fields`` of the manifest replaced; ``files`` are new .npy files of edits."""
        edited = Dataset.__new__(Dataset)
        edited.__dict__.update(self.__dict__)
        manifest = with_uuid(replace(self.manifest, **fields), self.rows)
        edited._set_manifest(manifest, {**self._edits.unsaved, **files})
        return edited

    def _select(self, chosen: Bools) -> Dataset:
        selection = Dataset.__new__(Dataset)
        selection.__dict__.update(self.__dict__)
        selection.live = selected = SelectedRecords.of(self.live, chosen)
        selection._selected = selected.bits
        return selection

    def derive(self, compute: Callable[[Table], Array], dtype: npt.DTypeLike) -> Array:
        """Compute a value for each record, (len(self),), from a table of the records' ``record_table.FACTS``.

        ``compute`` gets the stored labels, even if a column ``label`` replaces them.
        """
        derived = self.containers.derive(compute, dtype)
        return derived if len(derived) == len(self) else derived[self.live.marks()]

    def facts(self) -> Table:
        """Return ``record_table.FACTS`` of the records, (len(self),); the column ``label`` replaces stored labels."""
        facts = self.containers.facts()
        if len(facts) != len(self):
            facts = facts[self.live.marks()]
        if LABEL in self.columns:
            facts = facts.copy()
            facts["label"] = self.labels(facts["id"], facts["label"])
        return facts

    def with_values(self, record: Record) -> Record:
        """Add the columns' values to a record, and return it; a value in the column ``label`` becomes its label."""
        return self._edits.with_values(record)
