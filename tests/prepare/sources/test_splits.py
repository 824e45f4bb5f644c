"""Splits of a source: every format stops where it holds several, and reads the one that --split chooses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from source_files import JPEGS, labels, library, make_tar, names, put
from test_labels import WRITERS, tf_record, write_classes_and_labels

from picstore.errors import NotADataset, UsageError
from picstore.prepare.sources.open import open_source
from picstore.prepare.sources.splits import choose_split, match_split, split_of_name, split_of_word

PARTS = {"train": [1, 2], "validation": [3]}


def in_folders(write: Callable[[Path, list[int]], Path]) -> Callable[[Path], Path]:
    def write_all(path: Path) -> Path:
        for split, values in PARTS.items():
            (path / split).mkdir()
            write(path / split, values)
        return path

    return write_all


def in_shards(write: Callable[[Path, list[int]], Path], name: str) -> Callable[[Path], Path]:
    def write_all(path: Path) -> Path:
        for split, values in PARTS.items():
            write(path, values).rename(path / name.format(split))
        return path

    return write_all


def in_braces(path: Path) -> Path:
    in_shards(WRITERS["webdataset-cls"], "{}.tar")(path)
    return path / "{train,validation}.tar"


def in_one_index(path: Path) -> Path:
    shards = []
    for split, values in PARTS.items():
        (path / split).mkdir()
        index = WRITERS["mds"](path / split, values) / "index.json"
        shard = json.loads(index.read_text())["shards"][0]
        shard["raw_data"]["basename"] = f"{split}/shard.00000.mds"
        shards.append(shard)
    put(path / "index.json", json.dumps({"version": 2, "shards": shards}).encode())
    return path


def in_groups(path: Path) -> Path:
    with library("h5py").File(path / "t.h5", "w") as file:
        for split, values in PARTS.items():
            file[f"{split}/images"] = [[[0] * 4] * 4] * len(values)
            del file[f"{split}/images"]
            file.create_dataset(f"{split}/images", (len(values), 4, 4), "uint8")
            file[f"{split}/labels"] = values
    return path / "t.h5"


def in_names_of_data_sets(path: Path) -> Path:
    with library("h5py").File(path / "t.h5", "w") as file:
        for split, values in PARTS.items():
            file.create_dataset(f"X_{split}", (len(values), 4, 4), "uint8")
            file[f"y_{split}"] = values
    return path / "t.h5"


def in_folders_of_a_tar(path: Path) -> Path:
    members = {}
    for split, values in PARTS.items():
        for k, value in enumerate(values):
            members |= {f"./set/{split}/{k}.jpg": JPEGS[k], f"./set/{split}/{k}.cls": b"%d" % value}
    return make_tar(path / "set.tar", members)


LAYOUTS = {
    **{f"folders of {name}": in_folders(WRITERS[name]) for name in ("mds", "litdata", "tfrecord", "recordio")},
    "folders of parquet": in_folders(WRITERS["parquet"]),
    "folders of webdataset": in_folders(WRITERS["webdataset-json"]),
    "shards of webdataset": in_shards(WRITERS["webdataset-cls"], "{}-000000.tar"),
    "braces": in_braces,
    "shards of tfds": in_shards(WRITERS["tfrecord"], "a_test_set-{}.tfrecord-00000-of-00001"),
    "shards of tfrecord": in_shards(WRITERS["tfrecord"], "{}-00000-of-00001"),
    "shards of recordio": in_shards(WRITERS["recordio"], "{}_0.rec"),
    "shards of parquet": in_shards(WRITERS["parquet"], "{}-00000-of-00001.parquet"),
    "shards of one index": in_one_index,
    "groups of hdf5": in_groups,
    "names of hdf5": in_names_of_data_sets,
    "folders of a tar": in_folders_of_a_tar,
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_source_of_several_splits_is_read_only_with_one_chosen(tmp_path: Path, layout: str) -> None:
    source = LAYOUTS[layout](tmp_path)
    with pytest.raises(UsageError, match=r"holds the splits train.*, .*validation.*; give --split"):
        open_source(source)
    assert labels(open_source(source, split="train")) == [1, 2]
    assert labels(open_source(source, split="val")) == [3]
    with pytest.raises(UsageError, match=r"has no split 'test'; it has train.*, .*validation"):
        open_source(source, split="test")


@pytest.mark.parametrize("layout", ["shards of webdataset", "shards of parquet", "shards of tfds", "folders of a tar"])
def test_all_splits_are_read_together_where_they_are_shards(tmp_path: Path, layout: str) -> None:
    assert labels(open_source(LAYOUTS[layout](tmp_path), split="all")) == [1, 2, 3]


def test_folders_of_classes_are_splits_only_by_their_whole_names(tmp_path: Path) -> None:
    for name in ("train station/1.jpg", "test-tube/2.jpg", "evaluation.old/3.jpg"):
        put(tmp_path / name, JPEGS[0])
    assert len(open_source(tmp_path).classes) == 3
    for name in ("train", "test", "zebra"):
        put(tmp_path / "among" / name / "1.jpg", JPEGS[0])
        make_tar(tmp_path / "tars" / f"{name}.tar", {"1.jpg": JPEGS[0]})
        put(tmp_path / "flat" / f"{name}2017" / "1.jpg", JPEGS[0])
    assert open_source(tmp_path / "among").classes == ["test", "train", "zebra"]
    assert open_source(tmp_path / "tars", kind="imagenet").classes == ["test", "train", "zebra"]
    (tmp_path / "flat" / "zebra2017" / "1.jpg").unlink()
    with pytest.raises(UsageError, match="holds the splits test2017, train2017"):
        open_source(tmp_path / "flat")
    assert names(open_source(tmp_path / "flat", split="train")) == [("1.jpg", 0)]


def test_tars_of_splits_are_no_classes(tmp_path: Path) -> None:
    for name in ("train", "val"):
        make_tar(tmp_path / f"{name}.tar", {"1.jpg": JPEGS[0], "2.jpg": JPEGS[1]})
    with pytest.raises(UsageError, match=r"holds the splits train, val; .*--synsets"):
        open_source(tmp_path, kind="imagenet")
    listing = open_source(tmp_path, kind="imagenet", synsets=put(tmp_path / "names.txt", b"train\nval\n"))
    assert listing.classes == ["train", "val"]


def test_folders_of_a_tar_are_splits_only_if_all_are(tmp_path: Path) -> None:
    among = {f"{name}/{k}.jpg": JPEGS[k] for k, name in enumerate(("train", "test", "bus"))}
    assert open_source(make_tar(tmp_path / "a.tar", among)).classes == ["bus", "test", "train"]
    nested = {f"{name}.jpg": JPEGS[0] for name in ("train/dog/1", "train/cat/2", "val/dog/3")}
    with pytest.raises(UsageError, match="holds the splits train, val"):
        open_source(make_tar(tmp_path / "b.tar", nested))
    for split, expected in (("train", [1, 0]), ("all", [1, 0, 1])):
        listing = open_source(tmp_path / "b.tar", split=split)
        assert (listing.classes, labels(listing)) == (["cat", "dog"], expected)


def test_other_numbered_shards_beside_splits_are_splits_too(tmp_path: Path) -> None:
    library("pyarrow")
    for name in ("train", "unsupervised"):
        write_classes_and_labels(tmp_path / f"{name}-00000-of-00001.parquet", None, [1])
    with pytest.raises(UsageError, match="holds the splits train, unsupervised"):
        open_source(tmp_path)
    assert len(open_source(tmp_path, split="unsupervised").inputs) == 1
    (tmp_path / "train-00000-of-00001.parquet").rename(tmp_path / "part-00000-of-00001.parquet")
    assert len(open_source(tmp_path).inputs) == 2


def test_a_source_without_splits_refuses_to_choose_one(tmp_path: Path) -> None:
    put(tmp_path / "cat" / "1.jpg", JPEGS[0])
    put(tmp_path / "a.tfrecord", tf_record({"image": (1, JPEGS[0])}))
    for source in (tmp_path, tmp_path / "a.tfrecord"):
        with pytest.raises((UsageError, NotADataset), match="has no split 'train'; it has none, so leave out --split"):
            open_source(source, split="train")


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train-00000-of-00010", "train"),
        ("imagenet_VAL_3.tar", "val"),
        ("mnist-test.tfrecord-00000-of-00001", "test"),
        ("speech_test-train-0.tar", "train"),
        ("data/validation-0.parquet", "validation"),
        ("train/part-test.rec", "train"),
        ("train0001.tar", "train"),
        ("trains-0.tar", None),
        ("contest.tar", None),
        ("latest-0.tar", None),
    ],
)
def test_the_split_of_a_shard_is_a_word_of_its_name(name: str, split: str | None) -> None:
    assert split_of_name(name) == split


def test_words_of_one_meaning_choose_each_other_unless_both_are_there() -> None:
    assert match_split("val", ["train", "validation"]) == "validation"
    assert match_split("dev", ["train", "val2017"]) == "val2017"
    assert match_split("val", ["val", "valid"]) == "val"
    assert match_split("dev", ["val", "valid"]) is None
    assert split_of_word("Train.lmdb") == "train"
    assert choose_split(["a-0", "b-0"], str, None, "here") == ["a-0", "b-0"]
