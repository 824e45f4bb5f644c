"""Division of a conversion into rows, and of its rows among shards; streams and sizes of the dataset.

Row *j* of a job is file *j* of every stream, made from consecutive inputs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from picstore.errors import UsageError
from picstore.storage.format.layout import ALIGNMENT, MAX_CONTAINER

MIB = 1 << 20
# Number of rows (ranges of inputs) to aim for in a job: enough to keep all cores of a large machine busy to the end.
TARGET_ROWS = 256
# To keep cores busy, inputs are divided into more rows, unless files would then have fewer bytes than this. Writing
# files of 1 MiB takes 6 % of a conversion's time; writing files of 256 KiB takes a third.
MIN_FILE_BYTES = 2 * MIB
MAX_SHARDS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetShape:
    """Streams and sizes of a dataset.

    Attributes:
        streams: number of streams (sub-directories to which records are dealt), 1 to 9999.
        file_size: target size of a file in bytes; shuffling holds one file in memory.
        container_size: size in bytes of a container (block of records that is read and checked whole), 4 KiB to 1 GiB.
        seed: 64-bit seed of the permutations that deal records to streams.

    Raises:
        UsageError: a value is out of its range.
    """

    streams: int = 16
    file_size: int = 256 * MIB
    container_size: int = 8 * MIB
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.streams <= 9999:
            raise UsageError(f"{self.streams} streams; 1 to 9999 are possible")
        if not ALIGNMENT <= self.container_size <= MAX_CONTAINER:
            raise UsageError(f"a container of {self.container_size} bytes; 4KiB to 1GiB are possible")
        if self.file_size < ALIGNMENT:
            raise UsageError(f"files of {self.file_size} bytes; at least 4KiB are needed")
        if not 0 <= self.seed < 1 << 64:
            raise UsageError(f"seed {self.seed}; 0 to 2**64 - 1 are possible")


@dataclass(frozen=True, slots=True)
class Shard:
    """One of ``count`` runs that share a conversion: it converts every ``count``-th row of inputs, from ``index`` on.

    Raises:
        UsageError: ``index`` is not below ``count``, or ``count`` is above MAX_SHARDS.
    """

    index: int
    count: int

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count <= MAX_SHARDS:
            raise UsageError(f"there is no shard {self}; give 0/N to N-1/N, for N shards, at most {MAX_SHARDS}")

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Parse a shard written as ``0/4``; raise UsageError if the string has another form."""
        match = re.fullmatch(r"([0-9]{1,6})/([0-9]{1,6})", str(text))
        if match is None:
            raise UsageError(f"shard {text!r} is not understood; write 0/4 for the first of four")
        return cls(int(match[1]), int(match[2]))

    def rows(self, rows: int) -> range:
        """Return the indices of the rows that this shard converts, if the whole conversion has ``rows`` rows."""
        return range(self.index, rows, self.count)

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


def count_rows(inputs: int, mean_bytes: float, shape: DatasetShape) -> int:
    """Return the number of rows (ranges) into which to divide ``inputs`` images of ``mean_bytes`` bytes on average.

    The number keeps files within ``file_size``. It is at least TARGET_ROWS, or fewer if files would then be smaller
    than MIN_FILE_BYTES, and at most ``inputs``.
    """
    total = inputs * mean_bytes
    needed = -int(-total // (shape.streams * shape.file_size))
    possible = int(total // (shape.streams * MIN_FILE_BYTES))
    return max(1, min(inputs, max(needed, min(TARGET_ROWS, possible))))


def row_slice(inputs: int, rows: int, row: int) -> range:
    """Return the range of inputs of a row; rows have consecutive ranges, whose lengths differ by at most 1."""
    return range(row * inputs // rows, (row + 1) * inputs // rows)
