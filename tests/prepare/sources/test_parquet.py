"""Parquet files as a source."""

from __future__ import annotations

from pathlib import Path

import pytest
from source_files import DATA, JPEGS, NAMES, extras, images, labels, library, put

from picstore.errors import Damage, ImageError, UsageError
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
