"""The prefetcher where a store is gone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from picstore.errors import PicstoreError
from picstore.storage.dataset_reader import Readers
from picstore.train.pipeline.prefetch import ContainerKey, ContainerUse, Prefetcher


def test_a_read_that_fails_ends_all_that_wait_for_a_reader() -> None:
    tried: list[ContainerKey] = []

    def read(keys: Sequence[ContainerKey]) -> list[Any]:
        tried.extend(keys)
        raise PicstoreError("the store is gone")

    prefetcher = Prefetcher(read, budget=100, readers=Readers(threads=1, together=1))
    futures = prefetcher.request({ContainerKey(0, 0, k): ContainerUse(1) for k in range(5)}, wait=True)
    assert futures is not None
    for future in futures.values():
        with pytest.raises(PicstoreError, match="the store is gone"):
            future.result(10)
    assert len(tried) == 1
    prefetcher.close()
