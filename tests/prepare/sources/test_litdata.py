"""LitData's chunks as a source, from what litdata.optimize wrote."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path

import pytest
from source_files import DATA, JPEGS, extras, images, labels

from picstore.errors import PicstoreError, UsageError
from picstore.prepare.sources.open import open_source


@pytest.mark.parametrize("name", ["litdata", "litdata-zstd-batch", "litdata-zstd-chunk", "litdata-zstd-sample"])
def test_litdata_chunks_are_read_as_optimize_wrote_them(name: str) -> None:
    listing = open_source(DATA / name)
    assert listing.kind == "litdata"
    assert images(listing) == JPEGS
    assert labels(listing) == [0, 1, 2, 0, 1, 2]
    assert extras(listing)[5] == {"name": "ant", "score": 2.5}


def test_samples_that_are_pickles_are_refused() -> None:
    with pytest.raises(UsageError, match="pickles, which could run anything"):
        open_source(DATA / "litdata-pickle")


@pytest.mark.parametrize("count", [1 << 32, (1 << 64) - 1])
def test_a_count_that_no_chunk_can_hold_is_refused(tmp_path: Path, count: int) -> None:
    root = shutil.copytree(DATA / "litdata", tmp_path / "set")
    index = json.loads((root / "index.json").read_bytes())
    index["chunks"][0]["chunk_size"] = count
    (root / "index.json").write_text(json.dumps(index))
    with contextlib.suppress(PicstoreError):
        assert any(source.problem for source in open_source(root).inputs)
