"""Verification of a dataset: every byte is read, and all damage is listed with the number of lost records."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL.JpegImagePlugin import JpegImageFile

from picstore.arrays import I64, Table
from picstore.display.progress import Progress, ProgressCallback, begin_stage, progress_callback
from picstore.errors import Damage, ImageError, NotADataset, UnsupportedVersion
from picstore.prepare.engine import worker_processes
from picstore.prepare.engine.library_errors import foreign_errors
from picstore.prepare.image.encode_settings import EncodeSettings
from picstore.prepare.image.size_limits import check_size
from picstore.prepare.image.targets_and_masks import mask_problem
from picstore.prepare.image.training_jpeg import index_image, parse_image_info
from picstore.results import DamagedPlace
from picstore.storage.dataset import Dataset
from picstore.storage.edits.edit_entries import Edits, read_npy_file
from picstore.storage.edits.live_records import LiveRecords
from picstore.storage.format.container import Container, ContainerRef
from picstore.storage.format.container_index import FileSummary, index_rows, ordinals_of, read_summary
from picstore.storage.format.layout import ENTRY_POINTS, MAX_CONTAINER
from picstore.storage.format.maps import MapSpec, map_problem
from picstore.storage.format.read_container import recover_containers, unpack_container
from picstore.storage.format.segment_table import compute_entry_points, row_ends, stored_checksums, wrong_row
from picstore.storage.location.resolve import COPY, MANIFEST, Location, Where, file_name, locate, read_at
from picstore.storage.manifest import FileEntry, Manifest, read_index, read_manifest
from picstore.storage.manifest_writer import check_copy
from picstore.storage.record_counts import counts_name, read_counts
from picstore.storage.references import ReferencesRoot, find_references_root, read_references


class Verified(NamedTuple):
    """Result of :func:`verify`: the manifest; all damage, ordered by file; and remarks on other faults."""

    manifest: Manifest
    findings: list[DamagedPlace]
    remarks: list[str]


@dataclass(frozen=True, slots=True)
class FileCheck:
    """Task to check one file of a dataset.

    Attributes:
        rows: rows of the dataset's index for the file's containers; None if the index is damaged.
        deleted: for each container, the indices of its deleted records, whose damage loses nothing.
        max_pixels: limit of an image's pixels; None to decode no images.
        references: root of the image files to which containers refer; None if containers hold their images.
        maps: specifications of the attachments that are maps.
    """

    root: Location
    entry: FileEntry
    rows: Table | None
    deleted: tuple[I64, ...]
    fields: tuple[str, ...]
    max_pixels: int | None
    references: ReferencesRoot | None = None
    maps: Mapping[str, MapSpec] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """Damage found in one file, and the ids of the file's undamaged records, int64 (records,)."""

    findings: list[DamagedPlace]
    ids: I64 = field(default_factory=lambda: np.zeros(0, np.int64))

    @classmethod
    def join(cls, findings: list[DamagedPlace], ids: list[I64]) -> CheckedFile:
        """Build the result for a file from its damage, and the ids of undamaged records, an array per container."""
        return cls(findings, np.concatenate([np.zeros(0, np.int64), *ids]))


def verify(
    where: Where,
    *,
    root: Where | ReferencesRoot | None = None,
    decode: bool = False,
    workers: int | worker_processes.Engine,
    progress: Progress | None = None,
) -> Verified:
    """Read a whole dataset and list all damage.

    Arguments and errors are those of :func:`picstore.verify`. With ``decode``, each image's headers and entry points
    are also compared with the index. Raise Damage if the manifest is damaged, because the files are then unknown.
    """
    folder = locate(where)
    manifest = read_manifest(folder)
    references = find_references_root(folder, manifest, root)
    findings: list[DamagedPlace] = []
    remarks: list[str] = []
    try:
        check_copy(folder, manifest)
    except NotADataset:
        remarks.append(f"there is no copy of the manifest, {COPY}; `picstore repair` writes it")
    except Damage as error:
        findings.append(DamagedPlace(COPY, error.offset, error.what, 0))
    rows: Table | None = None
    try:
        rows = read_index(folder, manifest)
    except Damage as error:
        findings.append(DamagedPlace(Path(error.file).name, error.offset, error.what, 0))
    live = _check_edits(folder, manifest, rows, findings)
    max_pixels = _max_pixels(manifest) if decode else None
    tasks = deque(
        FileCheck(folder, entry, file_rows, deleted, manifest.attachments, max_pixels, references, manifest.maps)
        for entry, file_rows, deleted in _files(manifest, rows, live)
    )
    begin_stage(progress, "checking", manifest.images)
    checked = worker_processes.run_each(check_file, tasks, workers=workers, on_progress=progress_callback(progress))
    found = {(task.entry.file, task.entry.stream): result for task, result in checked}
    begin_stage(progress, "finishing")
    for entry in manifest.files:
        findings += found[entry.file, entry.stream].findings
    findings += _check_ids(found.values())
    if rows is not None:
        _check_counts(folder, manifest, findings, remarks, references)
    return Verified(manifest, findings, remarks)


def _check_counts(
    folder: Location,
    manifest: Manifest,
    findings: list[DamagedPlace],
    remarks: list[str],
    references: ReferencesRoot | None,
) -> None:
    """Check the file of record counts by label; if ``findings`` is empty, compare the counts with the records."""
    name = counts_name(manifest).rpartition("/")[2]
    try:
        kept = read_counts(folder, manifest)
    except NotADataset:
        remarks.append(f"there are no counts of labels, {name}; `picstore repair` writes them")
    except (Damage, UnsupportedVersion) as error:
        what = error.what if isinstance(error, Damage) else str(error)
        findings.append(DamagedPlace(name, 0, f"{what}; `picstore repair` writes them again", 0))
    else:
        images = None if references is None else references.folder
        if not findings and not kept.same(Dataset(folder, root=images).count_records()):
            text = "the counts of labels differ from the records'; `picstore repair` writes them again"
            findings.append(DamagedPlace(name, 0, text, 0))


def _max_pixels(manifest: Manifest) -> int:
    """Return the conversion's limit on an image's pixels, because Pillow's lower limit would reject intact images."""
    value = (manifest.encode or {}).get("max_pixels")
    return value if isinstance(value, int) else EncodeSettings().max_pixels


def _check_edits(
    root: Location, manifest: Manifest, rows: Table | None, findings: list[DamagedPlace]
) -> LiveRecords | None:
    """Check the files in ``edits/``, add damage to ``findings``, and return which records are live; None if unknown."""
    live: LiveRecords | None = None
    edits = manifest.edits or Edits()
    for npy_file in edits.npy_files:
        name = npy_file.file
        try:
            array = read_npy_file(root, npy_file)
            if npy_file == edits.tombstones and rows is not None:
                live = LiveRecords.from_deleted(rows["records"], array, file=name)
        except Damage as error:
            findings.append(DamagedPlace(name, error.offset, error.what, 0))
    return live


def _files(
    manifest: Manifest, rows: Table | None, live: LiveRecords | None
) -> Iterator[tuple[FileEntry, Table | None, tuple[I64, ...]]]:
    """Yield each file of the manifest, the index rows of its containers, and the deleted records of each container."""
    by_file: dict[tuple[int, int], tuple[Table | None, tuple[I64, ...]]] = {}
    if rows is not None:
        order = np.lexsort((rows["offset"], rows["file"], rows["stream"]))
        numbers = rows["stream"][order].astype(np.int64) << 32 | rows["file"][order]
        for group in np.split(order, np.flatnonzero(np.diff(numbers)) + 1) if len(order) else []:
            deleted = tuple(np.zeros(0, np.int64) if live is None else live.deleted_in(number) for number in group)
            stream, file = int(rows["stream"][group[0]]), int(rows["file"][group[0]])
            by_file[stream, file] = rows[group], deleted
    for entry in manifest.files:
        yield entry, *by_file.get((entry.stream, entry.file), (None, ()))


def _check_ids(checked: Iterable[CheckedFile]) -> list[DamagedPlace]:
    """Report ids that several records have, because ledger, columns, deletions and batches identify records by id."""
    ids = np.sort(np.concatenate([np.zeros(0, np.int64), *(each.ids for each in checked)]))
    again = np.unique(ids[1:][ids[1:] == ids[:-1]])
    if not len(again):
        return []
    return [DamagedPlace(MANIFEST, 0, f"{len(again)} ids belong to several records, the first is {again[0]}", 0)]


def check_file(task: FileCheck, on_progress: ProgressCallback) -> CheckedFile:
    """Check one file: return all its damage, and the ids of its undamaged records."""
    entry = task.entry
    name = file_name(entry.stream, entry.file)
    findings: list[DamagedPlace] = []
    rows = task.rows
    try:
        summary = read_summary(task.root, stream=entry.stream, file=entry.file)
        if (summary.crc, summary.records, summary.size) != (entry.crc32c, entry.records, entry.bytes):
            findings.append(DamagedPlace(name, 0, "this is another file than the manifest lists", 0))
        if rows is None:
            listed = FileSummary(entry.stream, entry.file, entry.bytes, entry.records, entry.crc32c, summary.footer)
            rows = index_rows([listed])
    except NotADataset:
        lost = entry.records - sum(map(len, task.deleted))
        return CheckedFile([DamagedPlace(name, 0, "the file is missing", lost)])
    except Damage as error:
        findings.append(DamagedPlace(name, error.offset, error.what, 0))
    if rows is None:
        return _check_recovered(task, findings, on_progress)
    ids = []
    for number, (row, ordinal) in enumerate(zip(rows, ordinals_of(rows), strict=True)):
        ref = ContainerRef(name, int(row["offset"]), entry.stream, entry.file, int(ordinal))
        records = int(row["records"])
        deleted = task.deleted[number] if task.deleted else np.zeros(0, np.int64)
        try:
            buffer = read_at(task.root / name, ref.offset, int(row["size"]), file=name)
            container = unpack_container(
                buffer, ref=ref, fields=task.fields, records=records, header_crc=int(row["header_crc"])
            )
            if task.references is not None:
                container = read_references(container, task.references, limit=int(row["referenced"]))
        except Damage as error:
            findings.append(DamagedPlace(name, error.offset, error.what, records - len(deleted)))
        else:
            findings += _check_container(container, task, deleted)
            ids.append(container.index["id"][container.good].astype(np.int64))
        on_progress(records)
    return CheckedFile.join(findings, ids)


def _check_recovered(task: FileCheck, findings: list[DamagedPlace], on_progress: ProgressCallback) -> CheckedFile:
    """Check a file by searching it for containers, because neither its footer nor the index is readable."""
    ids = []
    found = 0
    name = file_name(task.entry.stream, task.entry.file)
    for container in recover_containers(task.root, stream=task.entry.stream, file=task.entry.file, fields=task.fields):
        if task.references is not None:
            try:
                container = read_references(container, task.references, limit=MAX_CONTAINER)
            except Damage as error:
                findings.append(DamagedPlace(name, error.offset, error.what, len(container)))
                found += len(container)
                continue
        findings += _check_container(container, task, np.zeros(0, np.int64))
        ids.append(container.index["id"][container.good].astype(np.int64))
        found += len(container)
    on_progress(task.entry.records)
    if found < task.entry.records:
        findings.append(DamagedPlace(name, 0, "containers are missing", task.entry.records - found))
    return CheckedFile.join(findings, ids)


def _check_container(container: Container, task: FileCheck, deleted: I64) -> list[DamagedPlace]:
    """Return the damage of a container, except damage that concerns deleted records only."""
    max_pixels = task.max_pixels
    live = np.ones(len(container), dtype=np.bool_)
    live[deleted] = False
    # Decompress the extras, which can reveal damage that checksums do not show; it is added to ``container.damage``.
    _ = container.extras
    lost = int((live & ~container.good).sum())
    if not lost and not container.good.all():
        container.damage.clear()
    findings = []
    for number, error in enumerate(container.damage):
        last = number == len(container.damage) - 1
        findings.append(DamagedPlace(error.file, error.offset, error.what, lost if last else 0))
    for k in np.flatnonzero(container.good & live).tolist():
        problem = _wrong_row_checksum(container, k)
        if not problem and max_pixels is not None:
            problem = _decode_problem(container, k, max_pixels)
        lost = 1 if problem else 0
        if not problem and max_pixels is not None:
            # Wrong entry points or masks damage no pixels, so the record does not count as lost.
            problem = _wrong_entry_points(container, k)
            problem = problem or _wrong_mask(container, k, task.maps)
        if problem:
            text = f"record {container.index[k]['id']}: {problem}"
            findings.append(DamagedPlace(*container.locate(int(container.index[k]["offset"])), text, lost))
    return findings


def _wrong_mask(container: Container, k: int, maps: Mapping[str, MapSpec]) -> str:
    info = container.info(k)
    size = info.width, info.height
    found = (
        map_problem(name, blob, maps[name], size) if name in maps else mask_problem(name, bytes(blob), size)
        for name, blob in container.attachments(k).items()
        if len(blob)
    )
    return next(filter(None, found), "")


def _wrong_row_checksum(container: Container, k: int) -> str:
    table = container.segment_table
    crcs = None if table is None else stored_checksums(container.index, table, k)
    jpeg = container.jpeg(k)
    ends = None if crcs is None else row_ends(container.info(k), len(jpeg))
    if crcs is None or ends is None:
        return ""
    row = wrong_row(jpeg, ends, crcs, range(len(ends) - 1))
    return "" if row is None else f"the checksum of {f'tile row {row}' if row >= 0 else 'its header'} is wrong"


def _decode_problem(container: Container, k: int, max_pixels: int) -> str:
    """Decode an image, and compare it with the container's index; return a message about damage, or an empty string."""
    jpeg, stored = bytes(container.jpeg(k)), container.info(k)
    name, _ = container.locate(int(container.index[k]["offset"]))
    try:
        if container.origin is None:
            info = parse_image_info(jpeg)
        else:
            info = index_image(jpeg, settings=EncodeSettings(max_pixels=max_pixels), name=name, bounded=True).info
        check_size(info.width, info.height, max_pixels=max_pixels)
        if not info.foreign:
            with foreign_errors("damaged"):
                JpegImageFile(io.BytesIO(jpeg)).load()
    except ImageError as error:
        return f"does not decode: {error}"
    try:
        record = container.record(k)
        _ = record.extra
    except Damage as error:
        return error.what
    if info != stored:
        return f"is not what the index says: {info}, stored {stored}"
    if len(stored.segments) and not np.array_equal(info.segments, stored.segments):
        return "its segment table is wrong"
    return ""


def _wrong_entry_points(container: Container, k: int) -> str:
    if container.segment_table is None or not container.index["flags"][k] & ENTRY_POINTS:
        return ""
    stored = container.info(k).entry_points
    if stored is None:
        return "its entry points lie beyond the segment table, or their interval is impossible"
    same = np.array_equal(stored, compute_entry_points(container.jpeg(k), int(stored[0])))
    return "" if same else "its entry points are wrong"
