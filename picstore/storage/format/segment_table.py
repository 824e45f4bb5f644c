"""Places of a record's entries in the segment table: segment lengths, row checksums, entry points (docs/format.md)."""

from __future__ import annotations

from typing import Any

from picstore.arrays import U16
from picstore.storage.format.layout import ENTRY_POINTS, MCU_SIZES, ROW_CRCS


def checksum_entries(entry: Any) -> int:
    """Count the entries of a record's row checksums, given its ``layout.ENTRY``."""
    if not entry["flags"] & ROW_CRCS or not entry["sampling"]:
        return 0
    return 2 * (1 - int(entry["height"]) // -MCU_SIZES[entry["sampling"]][1])


def find_entry_points(entry: Any, table: U16) -> slice | None:
    """Find a record's entries of entry points: MCUs between two, and bits; None for none or impossible ones."""
    if not entry["flags"] & ENTRY_POINTS:
        return None
    count, interval = int(entry["segment_count"]), int(entry["restart_interval"])
    first = int(entry["segment_first"]) + count + checksum_entries(entry)
    step = int(table[first]) if first < len(table) else 0
    if not 0 < step < interval:
        return None
    found = slice(first, first + 1 + count * points_of_segment(interval, step))
    return found if found.stop <= len(table) else None


def points_of_segment(interval: int, step: int) -> int:
    """Count the entry points of a segment of ``interval`` MCUs, one every ``step``."""
    return (interval - 1) // step


def entries_of(entry: Any, table: U16) -> slice:
    """Find all entries of a record in the table."""
    first, found = int(entry["segment_first"]), find_entry_points(entry, table)
    end = first + int(entry["segment_count"]) + checksum_entries(entry) if found is None else found.stop
    return slice(first, end)
