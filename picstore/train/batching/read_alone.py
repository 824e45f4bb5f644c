"""Reading of some records of a container, for batches that do not use it otherwise."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from picstore.errors import Damage, NotADataset
from picstore.storage.dataset import Dataset
from picstore.storage.row_reader import RowsOf
from picstore.train.batching.gather import ReadResult


def read_alone(
    dataset: Dataset, number: int, records: Collection[int], rows_of: RowsOf, *, attachments: bool
) -> ReadResult:
    """Read records of a container by number; all records where one is damaged, as another one replaces it."""
    wanted = np.zeros(int(dataset.rows["records"][number]), dtype=np.bool_)
    wanted[list(records)] = True
    try:
        container = dataset.containers.read_records(number, rows_of, wanted=wanted, attachments=attachments)
        return container if container.good[wanted].all() else dataset.containers.read(number)
    except Damage as error:
        return error
    except NotADataset:
        ref = dataset.containers.container_ref(number)
        return Damage("the file is missing", ref.name, ref.offset)
