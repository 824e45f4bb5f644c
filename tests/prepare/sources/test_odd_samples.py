"""Odd names and metadata: each image arrives with its label and bytes, or its input fails with the reason."""

from __future__ import annotations

import itertools
import json
import math
import os
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from commands import ledger, picstore_command
from source_files import JPEGS, im2rec, library, make_tar, picpoc_file, picpoc_record, put, recordio
from test_labels import tf_label, tf_record

from picstore.prepare.sources.inputs import read_input
from picstore.prepare.sources.open import open_source

# JSON values that a record's extra cannot hold as they are, or that parsers stumble over.
VALUES = {
    "NaN": b"NaN",
    "infinity": b"-Infinity",
    "beyond doubles": b"[1e999, -1e999]",
    "5000 digits": b"1" * 5000,
    "30 digits": b"1" * 30,
    "70 levels": b"[" * 70 + b"]" * 70,
    "3,000 levels": b'{"a":' * 3000 + b"1" + b"}" * 3000,
    "not UTF-8": b'"caf\xe9"',
    "half of a pair": b'"\\ud83d"',
    "an invalid key": b'{"\\udc80": 1, "b\xff": 2, "": 3}',
    "control characters": b'"\\u0000\\n\\t\\u2028"',
    "17 MiB": b'"' + b"x" * (17 << 20) + b'"',
}
NAMES = [
    "größe".encode(),
    "日本語 🐈".encode(),
    b"caf\xe9",
    b"\xff\xfe",
    b"a\nb",
    b"a\tb",
    b"\x01\x7f",
    b" before",
    b"after ",
    b"..dots",
    b".hidden",
    b"-rf",
    b"a%20b#c?d",
    b"a\\b",
    b"'q\"{0}%s",
    "\u202eleft".encode(),
    b"x" * 240,
]
COUNT = len(NAMES)


def expected(count: int) -> list[tuple[int, bytes]]:
    return [(k % 3, JPEGS[k % 6]) for k in range(count)]


def arrives(path: Path, count: int, kind: str, **options: Any) -> list[Any]:
    """Require every sample with its label and bytes under a name of its own; returns the extras."""
    listing = open_source(path, kind=kind, **options)
    assert len(listing.inputs) == count, listing.remarks
    found = [(one.label, read_input(one)) for one in listing.inputs if not one.problem]
    assert sorted(found) == sorted(expected(count)), [one.problem for one in listing.inputs if one.problem]
    assert len({one.name.encode() for one in listing.inputs}) == count
    return [json.loads(one.extra, parse_constant=pytest.fail) if one.extra else {} for one in listing.inputs]


def document(k: int, value: bytes) -> bytes:
    return b'{"path": "%d.jpg", "label": %d, "caption": "x", "odd": %b}' % (k, k % 3, value)


def table(root: Path, values: Iterable[bytes]) -> Path:
    for k in range(len(VALUES)):
        put(root / f"{k}.jpg", JPEGS[k % 6])
    return put(root / "t.jsonl", b"\n".join(document(k, value) for k, value in enumerate(values)))


def webdataset(root: Path, values: Iterable[bytes]) -> Path:
    pairs = [[(f"{k}.jpg", JPEGS[k % 6]), (f"{k}.json", document(k, value))] for k, value in enumerate(values)]
    return make_tar(root / "t.tar", list(itertools.chain(*pairs)))


def mds(root: Path, values: Iterable[bytes]) -> Path:
    samples = []
    for k, value in enumerate(values):
        text = document(k, value)
        image = JPEGS[k % 6]
        samples.append(struct.pack("<2I", len(image), len(text)) + image + struct.pack("<q", k % 3) + text)
    offsets = list(itertools.accumulate(map(len, samples), initial=4 + 4 * (len(samples) + 1)))
    put(root / "0.mds", struct.pack(f"<{len(offsets) + 1}I", len(samples), *offsets) + b"".join(samples))
    columns: dict[str, Any] = {"column_names": ["image", "label", "extra"], "column_sizes": [None, 8, None]}
    columns["column_encodings"] = ["jpeg", "int", "json"]
    shard = {"format": "mds", "version": 2, "samples": len(samples), "raw_data": {"basename": "0.mds"}, **columns}
    put(root / "index.json", json.dumps({"version": 2, "shards": [{**shard, "zip_data": None}]}).encode())
    return root


def picpoc(root: Path, values: Iterable[bytes]) -> Path:
    records = [picpoc_record(JPEGS[k % 6], k % 3, k, document(k, value)) for k, value in enumerate(values)]
    return put(root / "0" / "0", picpoc_file([records])).parent.parent


PICPOC = {name: value for name, value in VALUES.items() if name != "17 MiB"}  # more than its records can have


@pytest.mark.parametrize("write", [table, webdataset, mds, picpoc], ids=lambda write: write.__name__)
def test_odd_json_costs_no_image_label_or_caption(
    tmp_path: Path, write: Callable[[Path, Iterable[bytes]], Path]
) -> None:
    values = PICPOC if write is picpoc else VALUES
    source = write(tmp_path / "in", values.values())
    extras = arrives(source, len(values), write.__name__)
    assert [name for name, extra in zip(values, extras, strict=True) if extra.get("caption") != "x"] == []
    assert sum(extra.get("odd") is None for extra in extras) >= 3
    remarks = "\n".join(open_source(source, kind=write.__name__).remarks)
    assert "NaN" in remarks and "not UTF-8" in remarks and "64 levels deep" in remarks


FLOATS = [math.nan, math.inf, -math.inf, 1e308, -0.0, 0.5]
TEXTS = [b"caf\xe9", b"\xff" * 9, b"a\0b", b"", b"a\n\t", b"x" * (17 << 20)]


def test_odd_features_of_tfrecord_cost_no_image_or_label(tmp_path: Path) -> None:
    floats = [(2, struct.pack("<f", value) if abs(value) < 1e38 else struct.pack("<f", math.inf)) for value in FLOATS]
    odd = [*floats, *((1, text) for text in TEXTS), (3, b"\xff" * 9 + b"\x01")]
    records = [
        tf_record({"image": (1, JPEGS[k % 6]), "label": tf_label(k % 3), name: value, "caption": (1, b"x")})
        for k, (value, name) in enumerate(zip(odd, itertools.cycle(["odd", "a\nb", "é" * 99]), strict=False))
    ]
    path = put(tmp_path / "a.tfrecord", b"".join(records))
    assert all(extra["caption"] == "x" for extra in arrives(path, len(odd), "tfrecord"))


def test_an_example_without_an_image_fails_alone(tmp_path: Path) -> None:
    records = [tf_record({"image": (1, data), "label": tf_label(k)}) for k, data in enumerate(JPEGS)]
    for where in (0, 3, 6):
        lacking = [*records[:where], tf_record({"label": tf_label(1)}), *records[where:]]
        listing = open_source(put(tmp_path / "a.tfrecord", b"".join(lacking)))
        assert [one.label for one in listing.inputs if not one.problem] == list(range(6))
        assert listing.inputs[where].problem.startswith("no image: which field of ")
    put(tmp_path / "a.tfrecord", tf_record({"label": tf_label(1)}) * 3)
    picstore_command("convert", tmp_path / "a.tfrecord", tmp_path / "out", code=2)


def test_odd_columns_of_parquet_cost_no_image_or_label(tmp_path: Path) -> None:
    arrow = library("pyarrow")
    deep: Any = 1
    for _ in range(30):
        deep = [deep]
    columns = {
        "image": [{"bytes": data, "path": f"{k}\n.jpg"} for k, data in enumerate(JPEGS)],
        "label": [k % 3 for k in range(6)],
        "caption": ["x"] * 6,
        "odd": FLOATS,
        "a\nb": TEXTS,
        "": arrow.array([2**64 - 1] * 6, arrow.uint64()),
        "é" * 99: [deep, *[None] * 5],
    }
    library("pyarrow.parquet").write_table(arrow.table(columns), tmp_path / "t.parquet")
    assert all(extra["caption"] == "x" for extra in arrives(tmp_path / "t.parquet", 6, "parquet"))


def test_odd_values_of_hdf5_cost_no_image_or_label(tmp_path: Path) -> None:
    h5py = library("h5py")
    with h5py.File(tmp_path / "t.h5", "w") as file:
        images = file.create_dataset("image", 6, h5py.vlen_dtype("uint8"))
        texts = file.create_dataset("odd text", 6, h5py.string_dtype())
        for k, data in enumerate(JPEGS):
            images[k], texts[k] = list(data), TEXTS[k].replace(b"\0", b"")
        file["label"], file["caption"], file["odd"] = [k % 3 for k in range(6)], ["x"] * 6, FLOATS
        file["a\nb"], file["large"] = [2**64 - 1] * 6, [[k] * 5 for k in range(6)]
    assert all(extra["caption"] == "x" for extra in arrives(tmp_path / "t.h5", 6, "hdf5"))


def test_odd_columns_of_litdata_cost_no_image_or_label(tmp_path: Path) -> None:
    samples = []
    for k, data in enumerate(JPEGS):
        fields = [data, struct.pack("<q", k % 3), struct.pack("<d", FLOATS[k]), TEXTS[k]]
        samples.append(struct.pack("<4I", *map(len, fields)) + b"".join(fields))
    offsets = list(itertools.accumulate(map(len, samples), initial=4 + 4 * 7))
    chunk = struct.pack("<8I", 6, *offsets) + b"".join(samples)
    put(tmp_path / "chunk-0-0.bin", chunk)
    tree = {"type": "builtins.dict", "context": '["image", "label", "a\\nb", "odd"]', "children_spec": [{}] * 4}
    config = {"data_format": ["jpeg", "int", "float", "str"], "data_spec": json.dumps([1, tree]), "compression": None}
    entry = {"filename": "chunk-0-0.bin", "chunk_size": 6, "chunk_bytes": len(chunk)}
    put(tmp_path / "index.json", json.dumps({"chunks": [entry], "config": config}).encode())
    arrives(tmp_path, 6, "litdata")


def test_odd_ids_and_labels_of_recordio_cost_no_image(tmp_path: Path) -> None:
    labels = [1.0, math.nan, math.inf, 0.5, -1.0, 3e38]
    records = [recordio(im2rec(JPEGS[k], label, 2**64 - 1 - k % 2)) for k, label in enumerate(labels)]
    listing = open_source(put(tmp_path / "a.rec", b"".join(records)))
    assert [read_input(one) for one in listing.inputs] == JPEGS
    assert [one.label for one in listing.inputs[:2]] == [1, -1]
    assert all(json.loads(one.extra or b"{}", parse_constant=pytest.fail) is not None for one in listing.inputs)


def named(root: Path, names: list[bytes], where: str = "", suffix: str = ".jpg") -> None:
    (root / where).mkdir(parents=True, exist_ok=True)
    for k, name in enumerate(names):
        put(root / where / (os.fsdecode(name) + suffix), JPEGS[k % 6])


def folder(root: Path) -> dict[str, Any]:
    for k in range(3):
        named(root, [name if n % 3 == k else b"" for n, name in enumerate(NAMES)], f"c{k}")
        (root / f"c{k}" / ".jpg").unlink()
    return {"hidden": True}


def tars(root: Path) -> dict[str, Any]:
    members = [
        (os.fsdecode(name) + suffix, data)
        for k, name in enumerate(b"k" + name.replace(b".", b"k") if b"." in name else name for name in NAMES)
        for suffix, data in ((".jpg", JPEGS[k % 6]), (".cls", b"%d" % (k % 3)))
    ]
    make_tar(root / "t.tar", members)
    return {}


def synsets(root: Path) -> dict[str, Any]:
    for k in range(3):
        make_tar(root / f"n{k}.tar", {os.fsdecode(NAMES[n]) + ".JPEG": JPEGS[n % 6] for n in range(k, COUNT, 3)})
    return {}


def paths(root: Path) -> dict[str, Any]:
    named(root, NAMES)
    rows = [
        b'{"path": %b, "label": %d}' % (json.dumps(os.fsdecode(name) + ".jpg", ensure_ascii=False).encode(
            "utf-8", "surrogateescape"), k % 3) for k, name in enumerate(NAMES)
    ]  # fmt: skip
    put(root / "t.jsonl", b"\n".join(rows))
    return {}


def objects(root: Path) -> dict[str, Any]:
    named(root, NAMES)
    images = [
        {"id": k, "file_name": os.fsdecode(name) + ".jpg", "width": 24, "height": 16} for k, name in enumerate(NAMES)
    ]
    for k in NO_LINES:
        images[k]["file_name"] = f"{k}.jpg"
        put(root / f"{k}.jpg", JPEGS[k % 6])
    document = {"images": images, "annotations": [], "categories": [{"id": 1, "name": "a b"}]}
    return {"annotations": put(root / "a.json", json.dumps(document).encode())}


# Names that COCO's source refuses with the path of the item, as they are not UTF-8 or not a line of text.
NO_LINES = [k for k, name in enumerate(NAMES) if name in (b"caf\xe9", b"\xff\xfe", b"a\nb", b"a\tb", b"\x01\x7f")]


def yolo(root: Path) -> dict[str, Any]:
    named(root, NAMES, "images")
    for name in NAMES:
        put(root / "labels" / (os.fsdecode(name) + ".txt"), b"0 0.5 0.5 0.25 0.5\n")
    put(root / "data.yaml", b"names: [a]")
    return {}


def voc(root: Path) -> dict[str, Any]:
    named(root, NAMES, "JPEGImages")
    for name in NAMES:
        put(root / "Annotations" / (os.fsdecode(name) + ".xml"), b"<annotation></annotation>")
    return {}


def keys(root: Path) -> dict[str, Any]:
    with library("lmdb").open(str(root), map_size=1 << 20) as environment, environment.begin(write=True) as transaction:
        for k, name in enumerate(NAMES):
            transaction.put(name, JPEGS[k % 6])
    return {}


def parquet(root: Path) -> dict[str, Any]:
    texts = [name.decode("utf-8", "replace") + ".jpg" for name in NAMES]
    images = [{"bytes": JPEGS[k % 6], "path": text} for k, text in enumerate(texts)]
    columns = {"image": images, "label": [k % 3 for k in range(COUNT)]}
    root.mkdir()
    library("pyarrow.parquet").write_table(library("pyarrow").table(columns), root / "t.parquet")
    return {}


KINDS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "folder": folder,
    "webdataset": tars,
    "imagenet": synsets,
    "table": paths,
    "coco": objects,
    "yolo": yolo,
    "voc": voc,
    "lmdb": keys,
    "parquet": parquet,
}


HIDDEN = {"yolo": b".", "voc": b"."}  # names that a kind leaves out with a remark


@pytest.mark.parametrize("kind", KINDS)
def test_odd_names_cost_no_image_and_stay_apart(tmp_path: Path, kind: str) -> None:
    options = KINDS[kind](tmp_path / "in")
    path = tmp_path / "in" / "t.jsonl" if kind == "table" else tmp_path / "in"
    listing = open_source(path, kind=kind, **options)
    left_out = {k for k, name in enumerate(NAMES) if name.startswith(HIDDEN.get(kind, b"/"))}
    assert len({one.name.encode() for one in listing.inputs}) == len(listing.inputs) == COUNT - len(left_out)
    assert not [one.problem for one in listing.inputs if one.problem]
    assert not left_out or any("× hidden file" in each for each in listing.remarks)
    has_labels = kind not in ("coco", "yolo", "voc", "lmdb")
    found = [(one.label if has_labels else 0, read_input(one)) for one in listing.inputs]
    whole = [(label if has_labels else 0, data) for k, (label, data) in enumerate(expected(COUNT)) if k not in left_out]
    assert sorted(found) == sorted(whole)
    if kind in ("folder", "webdataset", "yolo"):
        more = [f"--{name}" for name in options]
        picstore_command("convert", path, tmp_path / "out", "--source", kind, *more, "--streams", "1")
        lines = ledger(tmp_path / "out")
        assert len({line["input"] for line in lines}) == len(lines) == len(found)
        picstore_command("verify", tmp_path / "out")
