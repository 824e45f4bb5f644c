"""Counts of the records of each row, kept in ``unfinished/`` beside its fragment of the ledger until the job ends.

The process that writes a row sees its labels; without its counts the end of a conversion reads the indexes of all
containers. It reads them for rows without counts, such as rows that a retry takes over.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from picstore.arrays import Bools
from picstore.errors import Damage, NotADataset, UnsupportedVersion
from picstore.prepare.convert.ledger import Tally
from picstore.storage.dataset_reader import ContainerReader
from picstore.storage.format.container_index import FileSummary, index_rows
from picstore.storage.location.resolve import UNFINISHED, Location, WritableLocation, map_concurrently
from picstore.storage.record_counts import RecordCounts, Relabel, count_records, counts_file, read_counts_file


def write_row_counts(root: WritableLocation, row: int, counts: RecordCounts) -> None:
    """Write the counts of a row, before the fragment that declares it finished."""
    (root / _name(row)).write(counts_file(counts))


def copy_row_counts(source: Location, target: WritableLocation, row: int) -> None:
    """Copy the counts of a row from one unfinished data set to another, if it has some."""
    if (counts := source / _name(row)).is_file():
        counts.copy_to(target / _name(row))


def join_row_counts(
    root: Location,
    tallies: Sequence[Tally],
    summaries: Sequence[FileSummary],
    *,
    fields: tuple[str, ...],
    first_file: int = 0,
    relabel: Relabel | None = None,
) -> RecordCounts | None:
    """Add the counts of all rows; rows without them are read from their files. None if these are damaged.

    Args:
        root: folder of the data set.
        tallies: of each row.
        summaries: of the files of all rows.
        fields: names of the attachments.
        first_file: number of the file of row 0.
        relabel: gives other labels than the stored ones; then all rows are read.
    """

    def read(row: int) -> RecordCounts | None:
        try:
            return None if relabel else read_counts_file(root / _name(row), records=tallies[row].images)
        except (NotADataset, Damage, UnsupportedVersion):
            return None

    unknown: set[int] = set()

    def known() -> Iterator[RecordCounts]:
        for row, counts in enumerate(map_concurrently(read, range(len(tallies)))):
            if counts is None:
                unknown.add(first_file + row)
            else:
                yield counts

    found = RecordCounts.join(known())
    rows = index_rows([summary for summary in summaries if summary.file in unknown])
    reader = ContainerReader(root, rows, fields)

    def all_live(number: int) -> Bools:
        return np.ones(int(rows["records"][number]), dtype=np.bool_)

    try:
        rest = count_records(range(len(rows)), reader.index, live=all_live, relabel=relabel)
    except (Damage, NotADataset):
        return None
    return RecordCounts.join([found, rest])


def _name(row: int) -> str:
    return f"{UNFINISHED}/row-{row:06d}.counts"
