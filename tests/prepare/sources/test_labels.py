"""One table of images and labels, written in every format, gives the same labels; and what a label is."""

from __future__ import annotations

import csv
import json
import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from source_files import JPEGS, extras, im2rec, labels, library, make_tar, put, recordio

from picstore.errors import UsageError
from picstore.prepare.sources.labels import NoLabel, number_labels, number_of_text, to_label
from picstore.prepare.sources.open import open_source
from picstore.storage.format.checksum import crc32c, masked

Values = list[Any]


def is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def write_csv(path: Path, values: Values) -> Path:
    with (path / "t.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["path", "label"])
        rows.writerows([f"{k}.jpg", "" if is_missing(value) else value] for k, value in enumerate(values))
    return path / "t.csv"


def write_json_lines(path: Path, values: Values) -> Path:
    rows = [{"path": f"{k}.jpg", "label": None if is_missing(v) else v} for k, v in enumerate(values)]
    return put(path / "t.jsonl", "\n".join(map(json.dumps, rows)).encode())


def write_parquet(path: Path, values: Values) -> Path:
    library("pyarrow")
    import pyarrow as pa
    import pyarrow.parquet as pq

    images = [JPEGS[k] for k in range(len(values))]
    pq.write_table(pa.table({"image": pa.array(images), "label": pa.array(values)}), path / "t.parquet")
    return path / "t.parquet"


def write_cls(path: Path, values: Values) -> Path:
    members = []
    for k, value in enumerate(values):
        members += [(f"{k}.jpg", JPEGS[k]), (f"{k}.cls", b"" if is_missing(value) else f"{value}\n".encode())]
    return make_tar(path / "t.tar", members)


def write_json_members(path: Path, values: Values) -> Path:
    members = []
    for k, value in enumerate(values):
        text = json.dumps({"label": None if is_missing(value) else value})
        members += [(f"{k}.jpg", JPEGS[k]), (f"{k}.json", text.encode())]
    return make_tar(path / "t.tar", members)


def write_mds(path: Path, values: Values, encoding: str = "") -> Path:
    encoding = encoding or ("json" if None in values else {int: "int", float: "float64", str: "str"}[type(values[0])])
    pack = {
        "int": lambda value: struct.pack("<q", value),
        "float64": lambda value: struct.pack("<d", value),
        "str": str.encode,
        "json": lambda value: json.dumps(value).encode(),
    }[encoding]
    fixed = 8 if encoding in ("int", "float64") else None
    samples = []
    for k, value in enumerate(values):
        data = pack(value)
        sizes = struct.pack("<I", len(JPEGS[k])) + (b"" if fixed else struct.pack("<I", len(data)))
        samples.append(sizes + JPEGS[k] + data)
    offsets = [4 + 4 * (len(samples) + 1)]
    for sample in samples:
        offsets.append(offsets[-1] + len(sample))
    put(path / "shard.00000.mds", struct.pack(f"<{len(offsets) + 1}I", len(samples), *offsets) + b"".join(samples))
    shard = {
        "format": "mds",
        "version": 2,
        "column_names": ["image", "label"],
        "column_encodings": ["jpeg", encoding],
        "column_sizes": [None, fixed],
        "samples": len(samples),
        "raw_data": {"basename": "shard.00000.mds"},
        "zip_data": None,
    }
    put(path / "index.json", json.dumps({"version": 2, "shards": [shard]}).encode())
    return path


def write_litdata(path: Path, values: Values) -> Path:
    kind = {int: "int", float: "float", str: "str"}[type(values[0])]
    pack = {"int": lambda v: struct.pack("<q", v), "float": lambda v: struct.pack("<d", v), "str": str.encode}[kind]
    samples = []
    for k, value in enumerate(values):
        data = pack(value)
        samples.append(struct.pack("<2I", len(JPEGS[k]), len(data)) + JPEGS[k] + data)
    offsets = [4 + 4 * (len(samples) + 1)]
    for sample in samples:
        offsets.append(offsets[-1] + len(sample))
    chunk = struct.pack(f"<{len(offsets) + 1}I", len(samples), *offsets) + b"".join(samples)
    put(path / "chunk-0-0.bin", chunk)
    tree = {"type": "builtins.dict", "context": '["image", "label"]', "children_spec": [{"type": None}] * 2}
    config = {"data_format": ["jpeg", kind], "data_spec": json.dumps([1, tree]), "compression": None}
    entry = {"filename": "chunk-0-0.bin", "chunk_size": len(samples), "chunk_bytes": len(chunk)}
    put(path / "index.json", json.dumps({"chunks": [entry], "config": config}).encode())
    return path


def message(number: int, content: bytes) -> bytes:
    size, length = len(content), b""
    while size > 127:
        length, size = length + bytes([size & 127 | 128]), size >> 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + content


def tf_record(features: dict[str, tuple[int, bytes]]) -> bytes:
    entries = [
        message(1, message(1, name.encode()) + message(2, message(kind, message(1, data))))
        for name, (kind, data) in features.items()
    ]
    example = message(1, b"".join(entries))
    length = struct.pack("<Q", len(example))
    return length + struct.pack("<I", masked(crc32c(length))) + example + struct.pack("<I", masked(crc32c(example)))


def varint(value: int) -> bytes:
    value, out = value % (1 << 64), b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def tf_label(value: Any) -> tuple[int, bytes]:
    if isinstance(value, str):
        return 1, value.encode()
    return (2, struct.pack("<f", value)) if isinstance(value, float) else (3, varint(value))


def write_tfrecord(path: Path, values: Values) -> Path:
    records = [tf_record({"image": (1, JPEGS[k]), "label": tf_label(value)}) for k, value in enumerate(values)]
    return put(path / "t.tfrecord", b"".join(records))


def write_hdf5(path: Path, values: Values) -> Path:
    h5py = library("h5py")
    with h5py.File(path / "t.h5", "w") as file:
        images = file.create_dataset("image", len(values), h5py.vlen_dtype("uint8"))
        for k in range(len(values)):
            images[k] = list(JPEGS[k])
        file["label"] = values
    return path / "t.h5"


def write_recordio(path: Path, values: Values) -> Path:
    return put(path / "t.rec", b"".join(recordio(im2rec(JPEGS[k], v, k)) for k, v in enumerate(values)))


def write_list(path: Path, values: Values) -> Path:
    return put(path / "t.txt", "".join(f"{k}.jpg {value}\n" for k, value in enumerate(values)).encode())


WRITERS = {
    "csv": write_csv,
    "json-lines": write_json_lines,
    "parquet": write_parquet,
    "webdataset-cls": write_cls,
    "webdataset-json": write_json_members,
    "mds": write_mds,
    "litdata": write_litdata,
    "tfrecord": write_tfrecord,
    "hdf5": write_hdf5,
    "recordio": write_recordio,
    "list": write_list,
}
ONLY_NUMBERS = {"recordio"}
NAN = math.nan
COLUMNS: dict[str, tuple[Values, list[int], list[str]]] = {
    "integers": ([2, 10, 0], [2, 10, 0], []),
    "negative": ([3, -1, -7], [3, -1, -7], []),
    "floats with a gap": ([2.0, 10.0, NAN], [2, 10, -1], []),
    "texts of integers": (["2", "10", "+3"], [2, 10, 3], []),
    "texts of floats": (["2.0", "1e1", "nan"], [2, 10, -1], []),
    "fractions": ([0.5, 2.0, 1.0], [-1, 2, 1], []),
    "texts of fractions": (["0.5", "2", "1.0"], [-1, 2, 1], []),
    "names": (["dog", "cat", "dog"], [1, 0, 1], ["cat", "dog"]),
    "names and numbers": (["3", "cat", "0.5"], [1, 2, 0], ["0.5", "3", "cat"]),
    "names and a gap": (["dog", "", "cat"], [1, -1, 0], ["cat", "dog"]),
    "a word for a gap": (["7", "NA", "8"], [7, -1, 8], []),
}
CASES = [
    (source, column)
    for source in WRITERS
    for column, (values, _, classes) in COLUMNS.items()
    if not (source in ONLY_NUMBERS and isinstance(values[0], str))
    if not (source == "list" and (classes or "" in values))  # a list states names by --classes, and no gap
]


@pytest.mark.parametrize(("source", "column"), CASES)
def test_one_column_gives_equal_labels_in_every_format(tmp_path: Path, source: str, column: str) -> None:
    values, expected, classes = COLUMNS[column]
    listing = open_source(WRITERS[source](tmp_path, values))
    assert (labels(listing), listing.classes) == (expected, classes)
    remarks = " ".join(listing.remarks)
    assert ("class names" in remarks) == bool(classes)
    assert ("label of 1 image is a number that is not an integer" in remarks) == ("fractions" in column)
    assert ("1 of 3 images have none" in remarks) == (expected.count(-1) == 1 and "fractions" not in column)
    if "fractions" in column:
        field = "cls" if source == "webdataset-cls" else "label"
        assert float(extras(listing)[0][field]) == 0.5
        assert not any(field in (extra or {}) for extra in extras(listing)[1:])


@pytest.mark.parametrize("source", [name for name in WRITERS if name not in ("list", "recordio")])
def test_a_source_without_a_field_of_a_usual_name_says_so(tmp_path: Path, source: str) -> None:
    path = WRITERS[source](tmp_path, ["dog", "cat", "dog"])
    if source == "webdataset-cls":
        members = [
            (f"{k}.{field}", JPEGS[k] if field == "jpg" else b"dog") for k in range(3) for field in ("jpg", "txt")
        ]
        make_tar(path, members)
    elif source == "parquet":
        import pyarrow.parquet as pq

        pq.write_table(pq.read_table(path).rename_columns(["image", "genus"]), path)
    elif source == "hdf5":
        with library("h5py").File(path, "r+") as file:
            file.move("label", "genus")
    else:
        for file in path.iterdir() if path.is_dir() else [path]:
            file.write_bytes(file.read_bytes().replace(b"label", b"genus"))
    listing = open_source(path)
    assert set(labels(listing)) == {-1}
    field = "txt" if source == "webdataset-cls" else "genus"
    assert any(r.startswith("no labels: ") and repr(field) in r and "--label-field" in r for r in listing.remarks)
    named = open_source(path, label_field=field)
    assert named.classes[-1] == "dog"
    with pytest.raises(UsageError, match=r"no field 'none'|in the field 'none'"):
        open_source(path, label_field="none")


@pytest.mark.parametrize(
    ("value", "label"),
    [
        (True, 1),
        (3, 3),
        (3.0, 3),
        (0.5, NoLabel.NOT_INTEGER),
        (math.inf, NoLabel.NOT_INTEGER),
        (1 << 63, NoLabel.NOT_INTEGER),
        (-(1 << 63), -(1 << 63)),
        ([3], NoLabel.SEVERAL),
        ({"a": 1}, NoLabel.OTHER),
        (" ", None),
        ("NaN", None),
        (None, None),
    ],
)
def test_a_value_is_a_number_a_text_missing_or_not_a_label(value: object, label: object) -> None:
    assert to_label(value) == label


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("3", 3),
        (" 3 ", 3),
        ("+3", 3),
        ("-1", -1),
        ("007", 7),
        ("3.", 3),
        ("3e0", 3),
        ("30e-1", 3),
        ("True", 1),
        (".5", NoLabel.NOT_INTEGER),
        ("1e999999999", NoLabel.NOT_INTEGER),
        ("9223372036854775808", NoLabel.NOT_INTEGER),
        ("9223372036854775807", (1 << 63) - 1),
        ("٣", None),
        ("1_000", None),
        ("0x10", None),
        ("1,5", None),
        ("inf", None),
        ("9" * 100_000, None),
    ],
)
def test_a_text_is_a_number_as_csv_writers_write_it(text: str, number: object) -> None:
    assert number_of_text(text) == number


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=1))
def test_numbers_and_their_texts_have_the_same_labels(numbers: list[int]) -> None:
    as_texts = number_labels(dict.fromkeys(map(str, numbers), 1), ())
    as_numbers = number_labels(dict.fromkeys(numbers, 1), ())
    assert [as_texts.numbers[str(n)] for n in numbers] == [as_numbers.numbers[n] for n in numbers] == numbers


@given(st.lists(st.text(), min_size=1, unique=True))
def test_names_keep_their_texts_and_are_numbered_in_sorted_order(texts: list[str]) -> None:
    found = {label for text in [*texts, "a name"] if (label := to_label(text)) is not None}
    chosen = number_labels(dict.fromkeys(found, 1), ())
    assert chosen.names == sorted(found)
    assert all(chosen.names[chosen.numbers[text]] == text for text in found)


def test_a_label_outside_of_the_classes_is_refused(tmp_path: Path) -> None:
    library("pyarrow")
    write_classes_and_labels(tmp_path / "a.parquet", ["cat", "dog"], [0, 1, 2])
    with pytest.raises(UsageError, match="the label 2 is outside of its 2 classes"):
        open_source(tmp_path / "a.parquet")
    with pytest.raises(UsageError, match="the label 7 is outside of the 2 classes"):
        number_labels({0: 1, 7: 1}, ["cat", "dog"])


def write_classes_and_labels(path: Path, names: list[str] | None, values: Values, column: str = "label") -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path.parent.mkdir(exist_ok=True)
    table = pa.table({"image": pa.array([JPEGS[k] for k in range(len(values))]), column: pa.array(values)})
    if names:
        features = {column: {"names": names, "_type": "ClassLabel"}}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(table, path)


def test_class_names_of_parquet_files_are_joined_by_name(tmp_path: Path) -> None:
    library("pyarrow")
    write_classes_and_labels(tmp_path / "a.parquet", ["dog", "cat"], [0, 1, -1])
    write_classes_and_labels(tmp_path / "b.parquet", ["cat", "bird", "dog"], [0, 1, 2], "target")
    write_classes_and_labels(tmp_path / "c.parquet", None, ["ant", "cat", None])
    listing = open_source(tmp_path)
    assert listing.classes == ["dog", "cat", "bird", "ant"]
    assert labels(listing) == [0, 1, -1, 1, 2, 0, 3, 1, -1]
    assert listing.remarks[0] == "labels: read from 'label' of 2 files, 'target' of 1 file"
    write_classes_and_labels(tmp_path / "d.parquet", None, [0, 1])
    with pytest.raises(UsageError, match=r"d\.parquet has labels without class names, and other files"):
        open_source(tmp_path)


def test_numbers_without_names_are_those_of_the_other_files(tmp_path: Path) -> None:
    library("pyarrow")
    write_classes_and_labels(tmp_path / "a.parquet", None, [1, 0])
    write_classes_and_labels(tmp_path / "b.parquet", ["dog", "cat"], [0, 1])
    listing = open_source(tmp_path)
    assert (listing.classes, labels(listing)) == (["dog", "cat"], [1, 0, 0, 1])
    assert "a.parquet states no class names" in listing.remarks[0]
    write_classes_and_labels(tmp_path / "a.parquet", None, [2, 0])
    with pytest.raises(UsageError, match="the label 2 is outside of the 2 classes"):
        open_source(tmp_path)


def test_images_of_a_file_without_a_label_column_are_counted(tmp_path: Path) -> None:
    library("pyarrow")
    write_classes_and_labels(tmp_path / "a.parquet", None, [3, 4])
    write_classes_and_labels(tmp_path / "b.parquet", None, [5, 6, 7], "genus")
    listing = open_source(tmp_path)
    assert labels(listing) == [3, 4, -1, -1, -1]
    assert listing.remarks == [
        "labels: read from 'label' of 1 file, no field of 1 file",
        "labels: 3 of 5 images have none, which is the label −1",
    ]


def test_rows_whose_label_has_another_name_are_counted(tmp_path: Path) -> None:
    rows = [{"path": "a", "label": 3}, {"path": "b", "target": 4}, {"path": "c"}]
    listing = open_source(put(tmp_path / "t.jsonl", "\n".join(map(json.dumps, rows)).encode()))
    assert (labels(listing), extras(listing)[1]) == ([3, -1, -1], {"target": 4})
    assert "the label of 1 image is missing, and a field with another usual name is there" in listing.remarks[0]


def test_folders_in_a_tar_are_classes_if_nothing_else_is_a_label(tmp_path: Path) -> None:
    members = {"./photos/dog/1.jpg": JPEGS[0], "./photos/cat/2.jpg": JPEGS[1], "./photos/cat/more/3.jpg": JPEGS[2]}
    listing = open_source(make_tar(tmp_path / "a.tar", members))
    assert (listing.classes, labels(listing)) == (["cat", "dog"], [1, 0, 0])
    assert listing.remarks == ["labels: the 2 folders, such as 'cat', are the classes"]
    with_label = open_source(make_tar(tmp_path / "a.tar", {**members, "./x/4.jpg": JPEGS[3], "./x/4.cls": b"5"}))
    assert (with_label.classes, labels(with_label)) == ([], [-1, -1, -1, 5])
    for name in ("part-0", "part-1"):
        make_tar(tmp_path / "parts" / f"{name}.tar", members)
    assert open_source(tmp_path / "parts").classes == ["cat", "dog"]
    one = open_source(make_tar(tmp_path / "one.tar", {"cat/1.jpg": JPEGS[0], "cat/2.jpg": JPEGS[1]}))
    assert (one.classes, labels(one)) == ([], [-1, -1])
    assert one.remarks[0].startswith("no labels: ")


def test_a_table_beside_the_images_of_a_folder_is_named(tmp_path: Path) -> None:
    put(tmp_path / "1.jpg", JPEGS[0])
    table = put(tmp_path / "metadata.csv", b"file_name,label\n1.jpg,3\n")
    assert f"metadata.csv may have labels: convert {table} to read them" in open_source(tmp_path).remarks
    assert labels(open_source(table)) == [3]


def test_labels_in_a_column_of_one_are_those_of_its_rows(tmp_path: Path) -> None:
    with library("h5py").File(tmp_path / "t.h5", "w") as file:
        file.create_dataset("images", (3, 4, 4), "uint8")
        file["labels"] = [[2], [0], [1]]
    assert labels(open_source(tmp_path / "t.h5")) == [2, 0, 1]


def test_a_column_of_splits_is_named(tmp_path: Path) -> None:
    listing = open_source(put(tmp_path / "t.csv", b"path,label,split\na.jpg,1,train\nb.jpg,2,test\n"))
    assert listing.remarks == ["the field 'split' holds train, test: all of them are taken"]


def test_a_table_without_any_value_has_no_labels(tmp_path: Path) -> None:
    listing = open_source(put(tmp_path / "t.csv", b"path,label\na.jpg,\nb.jpg,\n"))
    assert listing.remarks == ["no labels: there is no other column than the image's that has values"]


def test_a_label_outside_of_the_names_of_a_file_is_refused(tmp_path: Path) -> None:
    classes = put(tmp_path / "classes.txt", b"ant\nbee\n")
    for outside in (2, -5):
        with pytest.raises(UsageError, match=f"has 2 names, but there is the label {outside}"):
            open_source(put(tmp_path / "t.csv", b"path,label\na,0\nb,%d\n" % outside), classes=classes)


def test_columns_with_blanks_around_their_names_are_found(tmp_path: Path) -> None:
    listing = open_source(put(tmp_path / "t.csv", b"path, Label\na.jpg,3\n"))
    assert labels(listing) == [3]


@pytest.mark.parametrize("write", [write_csv, write_cls])
def test_a_name_in_the_last_part_makes_names_of_all_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path, Values], Path]
) -> None:
    monkeypatch.setattr("picstore.prepare.sources.tables_and_lists._PART_BYTES", 16)
    for number, values in enumerate([["1", "2", "3"], ["2", "1", "dog"]]):
        path = write(tmp_path, values)
        path.rename(tmp_path / f"{number}{path.suffix}")
    if write is write_csv:
        second = (tmp_path / "1.csv").read_text().partition("\n")[2]
        listing = open_source(put(tmp_path / "t.csv", ((tmp_path / "0.csv").read_text() + second).encode()))
    else:
        listing = open_source(tmp_path / "{0..1}.tar")
    assert (labels(listing), listing.classes) == ([0, 1, 2, 1, 0, 3], ["1", "2", "3", "dog"])
    assert "numbers such as '1' are names too, since 'dog' is not a number" in listing.remarks[0]
