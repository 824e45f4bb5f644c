"""MosaicML's MDS as a source, from what its own writer wrote."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from source_files import DATA, JPEGS, decoded, extras, images, labels, pixels, put

from picstore.errors import UsageError
from picstore.prepare.sources.open import open_source


@pytest.mark.parametrize("name", ["mds", "mds-zstd", "mds-gz"])
def test_mds_shards_are_read_as_their_writer_wrote_them(name: str) -> None:
    listing = open_source(DATA / name)
    assert listing.kind == "mds"
    assert images(listing) == JPEGS
    assert labels(listing) == [0, 1, 2, 0, 1, 2]
    assert extras(listing)[4] == {"name": "dog", "score": 2.0, "meta": {"k": [4]}}
    assert listing.remarks == ["column secret (a pickle, which could run anything): left out of 6 samples"]
    by_name = open_source(DATA / name, label_field="name")
    assert (by_name.classes, labels(by_name)) == (["ant", "cat", "dog"], [1, 2, 0, 1, 2, 0])


def test_pil_images_of_mds_and_litdata_are_given_on_pixel_by_pixel() -> None:
    for name in ("mds-pil", "litdata-pil"):
        listing = open_source(DATA / name)
        assert labels(listing) == [0, 1, 2, 0, 1, 2]
        for k, data in enumerate(images(listing)):
            assert np.array_equal(decoded(data), pixels(k))


def test_compressions_that_are_not_read_are_refused_by_name() -> None:
    with pytest.raises(UsageError, match="compressed by br; zstd, gz, bz2 are read"):
        open_source(DATA / "mds-br")


def test_an_index_that_names_files_outside_its_folder_is_refused(tmp_path: Path) -> None:
    index = json.loads((DATA / "mds" / "index.json").read_text())
    index["shards"][0]["raw_data"]["basename"] = "../../secret"
    put(tmp_path / "index.json", json.dumps(index).encode())
    with pytest.raises(UsageError, match="leads out of the folder"):
        open_source(tmp_path)


def test_shards_of_equal_names_in_several_folders_give_distinct_inputs(tmp_path: Path) -> None:
    entries = []
    for split in ("a", "b"):
        shutil.copytree(DATA / "mds", tmp_path / split)
        for entry in json.loads((tmp_path / split / "index.json").read_text())["shards"]:
            entry["raw_data"]["basename"] = f"{split}/{entry['raw_data']['basename']}"
            entries.append(entry)
    (tmp_path / "index.json").write_text(json.dumps({"version": 2, "shards": entries}))
    names = [one.name for one in open_source(tmp_path).inputs]
    assert len(set(names)) == len(names) == 2 * len(open_source(DATA / "mds").inputs)
    assert names[0].startswith("a/shard.00000.mds/")


def test_splits_of_mds_beside_each_other_are_read_one_by_one(tmp_path: Path) -> None:
    for split in ("train", "val"):
        shutil.copytree(DATA / "mds", tmp_path / split)
    with pytest.raises(UsageError, match="give --split"):
        open_source(tmp_path)
    assert open_source(tmp_path, split="val").kind == "mds"
