"""Export to Parquet: the hub's schema of images, as its library writes and reads it, and the card."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from engine_tasks import InlineEngine
from huggingface_hub import DatasetCard
from samples import jpeg

import picstore
from picstore.prepare.exports.run_export import export

CLASSES = ["zebra", "a: 'b' \"c\"", "ä\n- x"]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    with picstore.Writer(tmp_path / "dataset", classes=CLASSES, attachments=["mask"]) as writer:
        for k in range(250):
            extra = {"path": f"{k}.png", "caption": "ä"} if k else None
            writer.add(jpeg(k % 5), label=k % 3 - (k == 7), extra=extra, attachments={"mask": b"\1"} if k % 2 else {})
    export(tmp_path / "dataset", tmp_path / "out", format="parquet", shard_size=150_000, workers=InlineEngine(1))
    return tmp_path / "out"


def card(out: Path) -> dict:
    return DatasetCard((out / "README.md").read_text()).data.to_dict()


def test_columns_are_those_of_the_hubs_images(out: Path) -> None:
    files = sorted((out / "data").iterdir())
    assert [file.name for file in files] == [f"train-{k:05d}.parquet" for k in range(len(files))] and len(files) > 1
    schema = pq.read_schema(files[0])
    assert str(schema.field("image").type) == "struct<bytes: binary, path: string>"
    assert {name: str(schema.field(name).type) for name in schema.names[1:]} == {
        "label": "int64",
        "extra": "string",
        "mask": "binary",
    }
    assert json.loads(schema.metadata[b"huggingface"])["info"]["features"] == {
        "image": {"_type": "Image"},
        "label": {"_type": "ClassLabel", "names": CLASSES},
        "extra": {"_type": "Value", "dtype": "string"},
        "mask": {"_type": "Value", "dtype": "binary"},
    }


def test_rows_are_the_records_in_stored_order(out: Path) -> None:
    rows = [row for file in sorted((out / "data").iterdir()) for row in pq.read_table(file).to_pylist()]
    records = list(picstore.Dataset(out.parent / "dataset"))
    assert [row["image"] for row in rows] == [{"bytes": r.jpeg, "path": f"{r.id:09d}.jpg"} for r in records]
    assert [row["label"] for row in rows] == [record.label for record in records]
    assert [json.loads(row["extra"]) for row in rows] == [record.extra or {} for record in records]
    assert [row["mask"] for row in rows] == [record.attachments.get("mask") for record in records]


def test_groups_have_at_most_100_rows_and_files_about_the_size_of_a_shard(out: Path) -> None:
    for file in (out / "data").iterdir():
        metadata = pq.read_metadata(file)
        assert max(metadata.row_group(k).num_rows for k in range(metadata.num_row_groups)) <= 100
        assert file.stat().st_size < 170_000
    tables = [pq.read_table(file).to_pylist() for file in sorted((out / "data").iterdir())]
    sizes = [
        [len(row["image"]["bytes"]) + len(row["extra"]) + len(row["mask"] or b"") for row in rows] for rows in tables
    ]
    assert all(sum(rows) <= 150_000 < sum(rows) + following[0] for rows, following in pairwise(sizes))


def test_the_card_names_files_columns_and_classes(out: Path) -> None:
    info = card(out)["dataset_info"]
    assert card(out)["configs"] == [
        {"config_name": "default", "data_files": [{"split": "train", "path": "data/train-*"}]}
    ]
    label = {"class_label": {"names": {str(k): name for k, name in enumerate(CLASSES)}}}
    assert info["features"] == [
        {"name": "image", "dtype": "image"},
        {"name": "label", "dtype": label},
        {"name": "extra", "dtype": "string"},
        {"name": "mask", "dtype": "binary"},
    ]
    assert [(each["name"], each["num_examples"]) for each in info["splits"]] == [("train", 250)]
    assert info["download_size"] == sum(file.stat().st_size for file in (out / "data").iterdir())


def test_an_empty_data_set_without_classes_is_a_file_without_rows(tmp_path: Path) -> None:
    with picstore.Writer(tmp_path / "dataset"):
        pass
    export(tmp_path / "dataset", tmp_path / "out", format="parquet", workers=InlineEngine(1))
    table = pq.read_table(tmp_path / "out" / "data" / "train-00000.parquet")
    assert (table.num_rows, table.column_names) == (0, ["image", "label", "extra"])
    assert card(tmp_path / "out")["dataset_info"]["features"][1] == {"name": "label", "dtype": "int64"}
