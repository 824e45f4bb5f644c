"""FFCV's .beton as a source, from what its own writer wrote."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from source_files import DATA, decoded, extras, images, labels, pixels, put

from picstore.prepare.sources.open import open_source


@pytest.fixture
def beton(tmp_path: Path) -> Callable[[str], Path]:
    return lambda mode: put(
        tmp_path / f"{mode}.beton", gzip.decompress((DATA / "ffcv" / f"{mode}.beton.gz").read_bytes())
    )


def test_a_beton_is_read_jpegs_where_they_stand_and_raw_pixels_as_ppm(beton: Callable[[str], Path]) -> None:
    raw = open_source(beton("raw"))
    assert raw.kind == "ffcv"
    assert all(np.array_equal(decoded(data), pixels(k)) for k, data in enumerate(images(raw)))
    coded = open_source(beton("jpg"))
    for k, data in enumerate(images(coded)):
        assert data.startswith(b"\xff\xd8\xff")
        assert data.endswith(b"\xff\xd9")
        assert np.abs(decoded(data).astype(int) - pixels(k)).mean() < 12
    for listing in (raw, coded):
        assert labels(listing) == [0, 1, 2, 0, 1, 2]
        assert extras(listing)[3] == {"score": 1.5, "meta": {"k": [3], "name": "cat"}}
