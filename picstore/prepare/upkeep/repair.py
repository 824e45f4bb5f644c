"""Repairing a data set: what is lost is deleted, so that all that is left can be read; no file is written again.

The manifest is made anew first (``mend``). The index says where every container lies, so a file without its tail or its
footer is read as far as it goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from picstore.arrays import Table
from picstore.errors import Corrupt, Damage, NotADataset
from picstore.prepare.progress import Progress
from picstore.prepare.upkeep.repair_manifest import mend_manifest
from picstore.storage.dataset import Dataset
from picstore.storage.edits.manifest_entries import Edits
from picstore.storage.format.checksum import crc32c
from picstore.storage.format.file import FileSummary, read_summary
from picstore.storage.format.layout import FOOTER_ROW, SEALED
from picstore.storage.format.recovery import recover_containers
from picstore.storage.location.resolve import Location, Where, locate
from picstore.storage.manifest import FileEntry, Manifest, index_file, index_rows, read_index, read_manifest


@dataclass(frozen=True, slots=True)
class Loss:
    """Records of one container that cannot be read, and why."""

    file: str
    offset: int
    problem: str
    records: int


@dataclass(frozen=True, slots=True)
class Repaired:
    """A data set after its repair.

    Attributes:
        index: whether its index had to be written anew.
        losses: what was deleted now because it is damaged.
        manifest: whether its manifest had to be.
        remarks: what of the manifest could not be restored, or not for certain.
    """

    dataset: Dataset
    index: bool
    losses: list[Loss]
    manifest: bool = False
    remarks: list[str] = field(default_factory=list)

    @property
    def lost(self) -> int:
        """How many records were deleted."""
        return sum(loss.records for loss in self.losses)


def repair(where: Where, *, classes: Sequence[str] | None = None, progress: Progress | None = None) -> Repaired:
    """Write manifest and index anew if they are damaged, and delete the records that cannot be read.

    Args:
        classes: names of the classes, where the manifest has lost them; they replace those that it has.

    Raises:
        NotADataset: there is no data set.
        Damage: a file that the manifest names in ``edits/`` is damaged and must come from a copy; or the index is, and
            files have lost what it could be made of; or of the manifest what was deleted.
    """
    root = locate(where)
    correct_bit_flip = mend_manifest(root, classes=classes)
    anew = _mend_index(root, read_manifest(root)) or (correct_bit_flip is not None and correct_bit_flip.index)
    dataset = Dataset(root)
    if classes is not None:
        dataset = dataset.with_columns({}, classes=classes)
    if progress is not None:
        progress.set_total(int(dataset.live.starts[-1]), 0)
    losses, positions = [], [dataset.live.deleted]
    for number, start in enumerate(dataset.live.starts[:-1]):
        good, problem = _readable(dataset, number)
        lost = np.flatnonzero(dataset.live.mask(number) & ~good)
        if len(lost):
            place = dataset.place(number)
            losses.append(Loss(place.name, place.offset, problem, len(lost)))
            positions.append(start + lost)
        if progress is not None:
            progress.advance(len(good))
    saved = dataset.without_positions(np.concatenate(positions)).save()
    remarks = [] if correct_bit_flip is None else correct_bit_flip.remarks
    return Repaired(saved, anew, losses, manifest=correct_bit_flip is not None, remarks=remarks)


def _readable(dataset: Dataset, number: int) -> tuple[np.ndarray[tuple[int], np.dtype[np.bool_]], str]:
    """Which records of a container are sound, and what is wrong with it."""
    try:
        container = dataset.container(number)
    except (Damage, NotADataset) as error:  # the latter where the file is missing
        return np.zeros(int(dataset.rows["records"][number]), dtype=np.bool_), str(error)
    return container.good, "; ".join(error.what for error in container.damage)


def _mend_index(root: Location, manifest: Manifest) -> bool:
    """Make sure that there is a sound index; returns whether it had to be written."""
    try:
        read_index(root, manifest)
    except Damage as error:
        rows = index_rows([_summary(root, entry, manifest.attachments) for entry in manifest.files])
        if crc32c(rows.tobytes()) != manifest.index_crc32c:
            text = "the index is damaged, and files have lost what it could be made of; restore it from a copy"
            raise Corrupt(text, error.place) from error
        (root / (manifest.edits or Edits()).index).write(index_file(rows))
        return True
    return False


def _summary(root: Location, entry: FileEntry, fields: tuple[str, ...]) -> FileSummary:
    """What the footer of a file says, or where that is lost, what is found by walking through it."""
    try:
        return read_summary(root, stream=entry.stream, file=entry.file)
    except NotADataset:
        footer: Table = np.zeros(0, dtype=FOOTER_ROW)
    except Damage:
        found = [
            (each.place.offset, each.size, len(each), int.from_bytes(each.buffer[SEALED - 4 : SEALED], "little"), 0)
            for each in recover_containers(root, stream=entry.stream, file=entry.file, fields=fields)
        ]
        footer = np.array(found, dtype=FOOTER_ROW)
    return FileSummary(entry.stream, entry.file, entry.bytes, entry.records, entry.crc32c, footer)
