"""Repair of a dataset: restore manifest and index, and delete the records that cannot be read.

No file with images is changed. The index locates each container, so a file without tail or footer can still be read.
"""

from __future__ import annotations

import numpy as np

from picstore.arrays import Bools, Table
from picstore.display.progress import Progress, begin_stage
from picstore.errors import Corrupt, Damage, NotADataset
from picstore.results import Loss, RepairResult
from picstore.storage.dataset import Dataset
from picstore.storage.edits.edit_entries import Edits
from picstore.storage.format.checksum import crc32c
from picstore.storage.format.container_index import FileSummary, index_file, index_rows, read_summary
from picstore.storage.format.layout import FOOTER_ROW, SEALED
from picstore.storage.format.read_container import recover_containers
from picstore.storage.location.resolve import COPY, MANIFEST, Location, Where, WritableLocation, locate_writable
from picstore.storage.manifest import FileEntry, Manifest, read_index, read_manifest
from picstore.storage.manifest_writer import keep_counts, restore_manifest


def repair(where: Where, *, root: Where | None = None, progress: Progress | None = None) -> RepairResult:
    """Restore a dataset's manifest, manifest copy, index and counts if damaged, and delete unreadable records.

    Arguments and errors are those of :func:`picstore.repair`. Raise Damage if the manifest and its copy are damaged; if
    the index is damaged and cannot be rebuilt from the files; if a file in ``edits/`` is damaged; or if more than 2**24
    records lie beyond the ends of their files.
    """
    folder = locate_writable(where)
    restored = restore_manifest(folder)
    folder.sweep()
    index = _restore_index(folder, read_manifest(folder))
    dataset = Dataset(folder, root=root)
    dataset.containers.check_extent()
    begin_stage(progress, "checking", int(dataset.live.starts[-1]))
    losses, deleted, sound = [], [dataset.live.deleted], 0
    for number, start in enumerate(dataset.live.starts[:-1]):
        good, problem = _readable(dataset, number)
        live = dataset.live.mask(number)
        lost, sound = np.flatnonzero(live & ~good), sound + int((live & good).sum())
        if len(lost):
            ref = dataset.containers.container_ref(number)
            losses.append(Loss(ref.name, ref.offset, problem, len(lost)))
            deleted.append(start + lost)
        if progress is not None:
            progress.advance(len(good))
    if dataset.references is not None and losses and not sound:
        raise NotADataset(
            f"none of the images of {folder} is in {dataset.references.folder}; mount it, or give the root"
        )
    begin_stage(progress, "finishing")
    kept = dataset.kept_counts()
    saved = dataset.without_positions(np.unique(np.concatenate(deleted))).save()
    wrong = kept is not None and not losses and not kept.same(saved.count_records())
    if wrong:
        keep_counts(folder, saved.manifest, saved.count_records())
    return RepairResult(
        dataset=str(folder),
        uuid=saved.uuid,
        images=len(saved),
        manifest=restored == MANIFEST,
        copy=restored == COPY,
        index=index,
        counts=wrong or kept is None,
        records_lost=sum(loss.records for loss in losses),
        losses=losses,
    )


def _readable(dataset: Dataset, number: int) -> tuple[Bools, str]:
    """Return whether each of a container's records is undamaged, bool (records,); and a description of all damage."""
    try:
        container = dataset.containers.read(number)
    except (Damage, NotADataset) as error:  # NotADataset means that the file is missing.
        return np.zeros(int(dataset.rows["records"][number]), dtype=np.bool_), str(error)
    return container.good, "; ".join(error.what for error in container.damage)


def _restore_index(root: WritableLocation, manifest: Manifest) -> bool:
    try:
        read_index(root, manifest)
    except Damage as error:
        rows = index_rows([_summary(root, entry, manifest.attachments) for entry in manifest.files])
        if crc32c(rows.tobytes()) != manifest.index_crc32c:
            text = "the index is damaged and cannot be rebuilt, as files are damaged too; restore it from a backup"
            raise Corrupt(text, error.file) from error
        (root / (manifest.edits or Edits()).index).write(index_file(rows))
        return True
    return False


def _summary(root: Location, entry: FileEntry, fields: tuple[str, ...]) -> FileSummary:
    """Return the summary of a file from its footer; if the footer is lost, from the headers of the containers."""
    try:
        return read_summary(root, stream=entry.stream, file=entry.file)
    except NotADataset:
        footer: Table = np.zeros(0, dtype=FOOTER_ROW)
    except Damage:
        found = [
            (each.ref.offset, each.size, len(each), int.from_bytes(each.buffer[SEALED - 4 : SEALED], "little"), 0)
            for each in recover_containers(root, stream=entry.stream, file=entry.file, fields=fields)
        ]
        footer = np.array(found, dtype=FOOTER_ROW)
    return FileSummary(entry.stream, entry.file, entry.bytes, entry.records, entry.crc32c, footer)
