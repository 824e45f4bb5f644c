"""Facts: what the indexes of all containers say of their records, such as ids, labels and sizes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from picstore.arrays import I64, Array, Table
from picstore.errors import Damage, NotADataset, UsageError
from picstore.storage.format.container import Container
from picstore.storage.location.resolve import map_concurrently

FACTS = np.dtype(  # 26 bytes
    [
        ("id", "<i8"),
        ("label", "<i8"),
        ("width", "<u2"),
        ("height", "<u2"),
        ("bytes", "<u4"),
        ("sampling", "u1"),
        ("encode_path", "u1"),  # with the other flags of the entry
    ]
)
_SOURCES = {"bytes": "length", "encode_path": "flags"}  # names of facts in an index entry


def collect_facts(
    records: Array, index: Callable[[int], Container], take: Callable[[Table], Array], dtype: np.dtype[Any]
) -> Array:
    """Join what ``take`` makes of the facts of each container, FACTS (n,): (sum of ``records``,).

    The id is -1 and the rest 0 where an index entry is damaged, or a file is missing.

    Args:
        records: number of records of each container.
        index: reads a container without its payload.
        dtype: of what is taken.
    """
    collected = np.empty(int(records.sum(dtype=np.int64)), dtype)
    end = 0
    for facts in map_concurrently(partial(_facts_in, index, records), range(len(records))):
        start, end = end, end + len(facts)
        collected[start:end] = take(facts)
    return collected


def _facts_in(index: Callable[[int], Container], records: Array, number: int) -> Table:
    facts: Table = np.zeros(int(records[number]), FACTS)
    facts["id"] = -1
    with contextlib.suppress(Damage, NotADataset):  # NotADataset where a file is missing
        container = index(number)
        for name in FACTS.names or ():
            facts[name][container.good] = container.index[_SOURCES.get(name, name)][container.good]
    return facts


def find_positions(stored: I64, ids: I64, *, where: str) -> I64:
    """Find the numbers in stored order of the records with these ids, given the ids of all.

    UsageError where one has no record; the message names the data set ``where`` they were looked for.
    """
    order = np.argsort(stored, kind="stable")
    at = np.searchsorted(stored, ids, sorter=order)
    at[at == len(stored)] = 0
    there = stored[order[at]] == ids if len(stored) else np.zeros(len(ids), dtype=np.bool_)
    if not there.all() or (ids < 0).any():
        missing = ids[~there | (ids < 0)]
        others = f" nor {len(missing) - 1:,} other ids that were given" if len(missing) > 1 else ""
        raise UsageError(f"{where} has no record with the id {missing[0]}{others}")
    positions: I64 = order[at]
    return positions
