"""Layout of batches: sizes that the sources' images must share."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from picstore.errors import UsageError
from picstore.train.batching.spec import check_one_size


def plan(*sizes: tuple[int, int] | None) -> Any:
    return SimpleNamespace(groups=[SimpleNamespace(size=size) for size in sizes])


def test_sources_share_batches_only_with_images_of_one_size() -> None:
    check_one_size([plan((4, 5), None), plan((4, 5), None)])
    check_one_size([plan((4, 5))])
    for other in (plan((5, 4)), plan(None)):
        with pytest.raises(UsageError, match="end all lists with the same size"):
            check_one_size([plan((4, 5)), other])
