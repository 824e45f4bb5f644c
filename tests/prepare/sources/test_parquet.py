"""Parquet files as a source."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from source_files import DATA, JPEGS, NAMES, extras, images, images_before_damage, labels, library, put

from picstore.errors import Damage, ImageError, UsageError
from picstore.prepare.sources.inputs import Listing
from picstore.prepare.sources.open import open_source, read_input


def test_parquet_of_hugging_faces_datasets_is_read_with_its_class_names() -> None:
    library("pyarrow")
    listing = open_source(DATA / "huggingface")
    assert listing.kind == "parquet"
    assert images(listing) == JPEGS
    assert (listing.classes, labels(listing)) == (NAMES, [0, 1, 2, 0, 1, 2])
    assert extras(listing)[4] == {"caption": "picture 4"}
    backwards = [read_input(source) for source in reversed(listing.inputs)]
    assert backwards == JPEGS[::-1]


def test_a_binary_column_and_a_path_in_place_of_bytes_are_read_too(tmp_path: Path) -> None:
    library("pyarrow")
    import pyarrow as pa
    import pyarrow.parquet as pq

    plain = pa.table({"jpg": JPEGS, "class_name": ["b", "a", None, "b", "a", "a"], "embedding": [b"\0"] * 6})
    pq.write_table(plain, tmp_path / "plain.parquet", row_group_size=4)
    listing = open_source(tmp_path / "plain.parquet", image_field="jpg")
    assert images(listing) == JPEGS
    assert (listing.classes, labels(listing)) == (["a", "b"], [1, 0, -1, 1, 0, 0])
    assert listing.remarks[0] == "binary column embedding: left out of 6 samples"
    put(tmp_path / "images" / "0.jpg", JPEGS[0])
    rows = [{"bytes": None, "path": "images/0.jpg"}, {"bytes": None, "path": None}]
    image = pa.array(rows, pa.struct({"bytes": pa.binary(), "path": pa.string()}))
    pq.write_table(pa.table({"image": image, "when": pa.array([1, 2], pa.date32())}), tmp_path / "paths.parquet")
    paths = open_source(tmp_path / "paths.parquet")
    assert read_input(paths.inputs[0]) == JPEGS[0]
    assert extras(paths)[0] == {"when": "1970-01-02"}
    with pytest.raises(ImageError, match="no image"):
        read_input(paths.inputs[1])


def test_a_parquet_file_that_is_cut_off_is_told(tmp_path: Path) -> None:
    library("pyarrow")
    data = (DATA / "huggingface" / "data" / "train-00000-of-00002.parquet").read_bytes()
    with pytest.raises(Damage, match="not a Parquet file"):
        open_source(put(tmp_path / "a.parquet", data[: len(data) // 2]))
    with pytest.raises(Damage, match="not a Parquet file"):  # a name that is not UTF-8
        open_source(put(tmp_path / "c.parquet", data.replace(b"label", b"l\xb3bel")))
    damaged = bytearray(data)
    damaged[200:400] = bytes(200)
    listing = open_source(put(tmp_path / "b.parquet", bytes(damaged)))
    assert len(listing.inputs) in (1, 3)


def test_texts_and_times_that_python_cannot_hold_cost_no_row(tmp_path: Path) -> None:
    library("pyarrow")
    import pyarrow as pa
    import pyarrow.parquet as pq

    offsets = pa.array([0, 1, 3, 3], pa.int32()).buffers()[1]
    texts = pa.Array.from_buffers(pa.string(), 3, [None, offsets, pa.py_buffer(b"a\xff!")])
    columns = {
        "image": JPEGS[:3],
        "label": [0, 1, 2],
        "text": texts,
        "texts": pa.ListArray.from_arrays([0, 1, 2, 3], texts),
        "inner": pa.StructArray.from_arrays([texts], ["x"]),
        "time": pa.array([0, 1, 2], pa.timestamp("ns")),
        "day": pa.array([0, 1 << 30, 2], pa.date32()),
        "score": [0.5, float("nan"), float("inf")],
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    listing = open_source(tmp_path / "a.parquet")
    assert (images(listing), labels(listing)) == (JPEGS[:3], [0, 1, 2])
    second = extras(listing)[1]
    assert (second["text"], second["texts"], second["inner"]) == ("\ufffd!", ["\ufffd!"], {"x": "\ufffd!"})
    assert second["time"] == "1970-01-01 00:00:00.000000001" and second["score"] is None
    assert listing.remarks[0].endswith("null now: 2 (in score)")
    pq.write_table(pa.Table.from_arrays([pa.array(JPEGS[:1])] * 2, ["image", "image"]), tmp_path / "b.parquet")
    with pytest.raises(UsageError, match="two columns of one name"):
        open_source(tmp_path / "b.parquet")


def write_table(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    library("pyarrow")
    import pyarrow as pa
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, **options)
    return path


def attachments(listing: Listing) -> list[dict[str, bytes]]:
    return [{name: read_input(other) for name, other in source.attachments} for source in listing.inputs]


@pytest.mark.parametrize("statistics", [True, False])
def test_further_columns_of_images_become_attachments(tmp_path: Path, statistics: bool) -> None:
    put(tmp_path / "far" / "1.png", JPEGS[1])
    columns = {
        "image": [{"bytes": data, "path": None} for data in JPEGS],
        "mask": [{"bytes": JPEGS[0], "path": "x.png"}, None, *[{"bytes": None, "path": None}] * 3, {"bytes": JPEGS[3]}],
        "depth": [None, *JPEGS[1:]],
        "elsewhere": [{"bytes": None, "path": "far/1.png"}] * 6,
        "sound": [{"bytes": b"RIFF\0\0", "path": "x.wav"}] * 6,
        "embedding": [b"\0\1"] * 6,
        "frames": [[{"bytes": JPEGS[0], "path": None}] * 2] * 6,
        "views": [{"left": {"bytes": JPEGS[0]}}] * 6,
        "label": [0, 1, 2] * 2,
    }
    path = write_table(tmp_path / "a.parquet", columns, row_group_size=4, write_statistics=statistics)
    listing = open_source(path)
    assert (images(listing), labels(listing)) == (JPEGS, [0, 1, 2] * 2)
    far = {"elsewhere": JPEGS[1]}
    assert attachments(listing) == [
        {"mask": JPEGS[0], **far},
        *[{"depth": data, **far} for data in JPEGS[1:5]],
        {"mask": JPEGS[3], "depth": JPEGS[5], **far},
    ]
    assert extras(listing) == [None] * 6
    assert set(listing.attachments) == {"mask", "depth", "elsewhere"}
    assert listing.remarks == [
        "binary column embedding: left out of 6 samples",
        "binary column sound: left out of 6 samples",
        "column frames (several images or bytes in a row): left out of 6 samples",
        "column views (several images or bytes in a row): left out of 6 samples",
    ]
    assert read_input(open_source(path, image_field="depth").inputs[1]) == JPEGS[1]


def test_columns_in_the_names_of_folders_are_read(tmp_path: Path) -> None:
    library("pyarrow")
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"image": JPEGS, "label": ["a/b", "c", None] * 2, "year": [1, 2, 3] * 2})
    pq.write_to_dataset(table, tmp_path / "hive", partition_cols=["year", "label"])
    listing = open_source(tmp_path / "hive")
    assert (listing.kind, listing.classes, labels(listing)) == ("parquet", ["a/b", "c"], [0, 0, 1, 1, -1, -1])
    assert images(listing) == [JPEGS[k] for k in (0, 3, 1, 4, 2, 5)]
    assert extras(listing)[::2] == [{"year": "1"}, {"year": "2"}, {"year": "3"}]
    put(tmp_path / "hive" / "_delta_log" / "0.json")
    with pytest.raises(UsageError, match="Delta table"):
        open_source(tmp_path / "hive")


def test_splits_called_as_a_column_are_splits_and_classes_are_not(tmp_path: Path) -> None:
    for name in ("train", "test"):
        write_table(tmp_path / "classes" / f"label={name}" / "0.parquet", {"image": JPEGS[:1]})
        write_table(tmp_path / "splits" / f"split={name}" / "0.parquet", {"image": JPEGS[:1]})
    assert open_source(tmp_path / "classes").classes == ["test", "train"]
    with pytest.raises(UsageError, match="holds the splits test, train"):
        open_source(tmp_path / "splits")
    assert len(open_source(tmp_path / "splits", split="test").inputs) == 1


@pytest.mark.parametrize(
    "layout",
    [
        "default/{}/0000.parquet",
        "mnist/{}-00000-of-00001.parquet",
        "data/{}/0.parquet",
        "default/partial-{}/0000.parquet",
        "{}/0000.parquet",
        "test_of_names/{}/0000.parquet",
    ],
)
def test_the_layouts_of_the_hub_are_recognized_with_their_splits(tmp_path: Path, layout: str) -> None:
    put(tmp_path / "README.md")
    for split, data in (("train", JPEGS[:2]), ("test", JPEGS[2:])):
        write_table(tmp_path / layout.format(split), {"image": data})
    with pytest.raises(UsageError, match="holds the splits"):
        open_source(tmp_path)
    listing = open_source(tmp_path, split="test")
    assert (listing.kind, images(listing)) == ("parquet", JPEGS[2:])
    assert len(open_source(tmp_path, split="all").inputs) == 6 or layout.startswith("{}")


def test_of_several_configurations_one_has_to_be_given(tmp_path: Path) -> None:
    for name in ("en/train", "de/train", "de/test"):
        write_table(tmp_path / name / "0000.parquet", {"image": JPEGS[:1]})
    with pytest.raises(UsageError, match=r"in several folders, de, en; give one of them, such as .*/de, or"):
        open_source(tmp_path)
    assert len(open_source(tmp_path / "de", split="test").inputs) == 1
    assert len(open_source(tmp_path, split="all").inputs) == 3


def test_a_footer_that_claims_more_rows_than_bytes_is_one_failed_input(tmp_path: Path) -> None:
    def varint(number: int) -> bytes:
        return b"".join(bytes([number >> k & 127 | 128]) for k in (0, 7, 14, 21, 28, 35)) + bytes([number >> 42])

    options = {"use_dictionary": False, "store_schema": False, "write_statistics": False}
    path = write_table(tmp_path / "b.parquet", {"image": [*JPEGS, *[b"x"] * 6001]}, **options)
    data = path.read_bytes()
    size = int.from_bytes(data[-8:-4], "little")
    footer = data[-8 - size : -8].replace(b"\x16\xee\x5d", b"\x16" + varint(2 << 40))
    assert len(footer) > size
    path.write_bytes(data[: -8 - size] + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    write_table(tmp_path / "a.parquet", {"image": JPEGS})
    listing = open_source(tmp_path)
    assert images_before_damage(listing) == JPEGS
    assert "1,099,511,627,776 rows are said to be in" in listing.inputs[-1].problem


@pytest.mark.parametrize("number", [0, 1])
def test_a_parquet_file_with_a_damaged_footer_fails_and_no_other(tmp_path: Path, number: int) -> None:
    library("pyarrow")
    source = Path(shutil.copytree(DATA / "huggingface", tmp_path / "source"))
    file = source / "data" / f"train-0000{number}-of-00002.parquet"
    file.write_bytes(file.read_bytes()[:-9])
    listing = open_source(source)
    assert [(one.name, one.lost) for one in listing.inputs if one.problem] == [(f"data/{file.name}", 2)]
    assert [read_input(one) for one in listing.inputs if not one.problem] == JPEGS[3 - 3 * number :][:3]


def test_a_damaged_page_costs_the_rows_of_its_row_group(tmp_path: Path) -> None:
    library("pyarrow")
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"image": JPEGS, "text": [f"text {k}" for k in range(6)]})
    path = tmp_path / "a.parquet"
    options = {"use_dictionary": False, "write_statistics": False, "write_page_checksum": True}
    pq.write_table(table, path, row_group_size=2, compression="none", **options)
    data = path.read_bytes()
    for what, failing in ((b"text 3", {2, 3}), (JPEGS[1][300:320], {0, 1})):
        at = data.index(what)
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        inputs = open_source(path).inputs
        assert len(inputs) == 6
        for k, one in enumerate(inputs):
            if k in failing:
                with pytest.raises(ImageError):
                    read_input(one)
            else:
                assert read_input(one) == JPEGS[k]
