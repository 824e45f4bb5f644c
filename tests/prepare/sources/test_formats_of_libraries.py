"""Sources in the formats of other libraries: read from what those libraries wrote, or from their documented layout.

tests/fixtures/sources is written by tests/fixtures/make_source_fixtures.py with the formats' own libraries.
"""

from __future__ import annotations

import contextlib
import gzip
import importlib
import io
import json
import os
import pickle
import re
import shutil
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import one_line, picstore_command
from pictures import missing
from PIL import Image
from source_files import DATA, JPEGS, make_tar, picpoc_record, put, write_picpoc

import picstore
from picstore.errors import Damage, ImageError, MissingDependency, NotADataset, UsageError
from picstore.prepare.sources.file_patterns import expand_braces
from picstore.prepare.sources.inputs import Input, Listing
from picstore.prepare.sources.open import KINDS, SourceProbe, open_source, read_input
from picstore.storage.format.checksum import crc32c, masked

NAMES = ["cat", "dog", "ant"]


def library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        missing(name)


def images(listing: Listing) -> list[bytes]:
    """The bytes of all inputs, read as another process would: from a pickled input."""
    return [read_input(pickle.loads(pickle.dumps(source))) for source in listing.inputs]  # noqa: S301 - our own


def labels(listing: Listing) -> list[int]:
    return [source.label for source in listing.inputs]


def extras(listing: Listing) -> list[Any]:
    return [json.loads(source.extra) if source.extra else None for source in listing.inputs]


def decoded(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def pixels(number: int) -> np.ndarray:
    """The pictures of the fixtures, as tests/fixtures/make_source_fixtures.py draws them."""
    x, y = np.meshgrid(np.arange(24), np.arange(16))
    return np.stack([x * 10, y * 15, np.full_like(x, 40 * number)], axis=-1).astype(np.uint8)


def problems(listing: Listing) -> list[str]:
    return [source.problem for source in listing.inputs if source.problem]


# WebDataset


def test_shards_of_webdatasets_own_writer_are_read_with_label_json_and_text(tmp_path: Path) -> None:
    webdataset = library("webdataset")
    with webdataset.ShardWriter(str(tmp_path / "train-%03d.tar"), maxcount=4, verbose=0) as sink:
        for k, data in enumerate(JPEGS):
            more = {"cls": k % 3, "json": {"caption": f"picture {k}"}, "txt": "text", "npy": np.zeros(3), "pyd": {k}}
            sink.write({"__key__": f"folder/{k:04d}", "jpg": data, **more})
    listing = open_source(tmp_path)
    assert listing.kind == "webdataset"
    assert images(listing) == JPEGS
    assert labels(listing) == [0, 1, 2, 0, 1, 2]
    assert listing.inputs[4].name == "train-001.tar/folder/0004.jpg"
    assert extras(listing)[3] == {"caption": "picture 3", "txt": "text"}
    assert listing.remarks == ["field .npy: left out of 6 samples", "field .pyd: left out of 6 samples"]
    assert images(open_source(tmp_path / "train-001.tar")) == JPEGS[4:]
    assert images(open_source(tmp_path / "train-{000..001}.tar")) == JPEGS
    with pytest.raises(NotADataset, match=r"train-002\.tar does not exist"):
        open_source(tmp_path / "train-{000..002}.tar")


def test_labels_that_are_names_become_classes_by_sorted_name_and_missing_ones_minus_1(tmp_path: Path) -> None:
    members = [("a.jpg", JPEGS[0]), ("a.cls", b"zebra\n"), ("b.jpg", JPEGS[1]), ("b.txt", b"no class")]
    members += [("c.jpg", JPEGS[2]), ("c.json", b'{"label": "ant"}'), ("d.jpg", JPEGS[3]), ("d.cls", b"")]
    listing = open_source(make_tar(tmp_path / "a.tar", members))
    assert listing.classes == ["ant", "zebra"]
    assert labels(listing) == [1, -1, 0, -1]


def test_further_images_of_a_webdataset_sample_are_attachments_and_a_sample_without_any_is_told(tmp_path: Path) -> None:
    members = [("1.seg.png", b"mask"), ("1.jpg", JPEGS[0]), ("2.cls", b"1"), ("2.txt", b"t"), ("__index__", b"x")]
    listing = open_source(make_tar(tmp_path / "a.tar", members), kind="webdataset")
    assert listing.attachments == ("seg",)
    first, second = listing.inputs
    assert read_input(first) == JPEGS[0]
    assert [(name, read_input(one)) for name, one in first.attachments] == [("seg", b"mask")]
    assert second.problem == "no image among .cls, .txt"


def test_a_tar_that_breaks_off_or_is_compressed_ends_in_an_input_that_says_so(tmp_path: Path) -> None:
    members = [
        (f"{k}.{field}", data) for k, image in enumerate(JPEGS) for field, data in (("jpg", image), ("cls", b"1"))
    ]
    whole = make_tar(tmp_path / "a.tar", members).read_bytes()
    listing = open_source(put(tmp_path / "b.tar", whole[: 3 * len(whole) // 5]), kind="webdataset")
    assert images_until_problem(listing) == JPEGS[: len(listing.inputs) - 1]
    assert len(listing.inputs) > 1
    packed = open_source(put(tmp_path / "c.tar", gzip.compress(whole)), kind="webdataset")
    assert "unpack it" in packed.inputs[0].problem


def images_until_problem(listing: Listing) -> list[bytes]:
    assert listing.inputs[-1].problem.startswith("damaged"), listing.inputs[-1]
    return [read_input(source) for source in listing.inputs[:-1]]


def test_tars_without_pairs_stay_imagenet(tmp_path: Path) -> None:
    make_tar(tmp_path / "n01.tar", [("n01_1.JPEG", JPEGS[0]), ("n01_2.JPEG", JPEGS[1])])
    assert open_source(tmp_path).kind == "imagenet"


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a.tar", ["a.tar"]),
        ("a-{08..11}", ["a-08", "a-09", "a-10", "a-11"]),
        ("{x,y}-{0..1}", ["x-0", "x-1", "y-0", "y-1"]),
        ("{3..1}", ["3", "2", "1"]),
        ("a{b", ["a{b"]),
    ],
)
def test_braces_expand_as_a_shells(pattern: str, names: list[str]) -> None:
    assert expand_braces(pattern) == names


def test_braces_that_stand_for_too_many_files_are_refused() -> None:
    for pattern in ("{0..99999999999}", "{0..9999}{0..9999}"):
        with pytest.raises(UsageError, match="more than"):
            expand_braces(pattern)


# MosaicML


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
    with pytest.raises(UsageError, match="not the name of a file in its folder"):
        open_source(tmp_path)


# LitData


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


# FFCV


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


# TFRecord


def test_tf_examples_that_tensorflow_wrote_are_read_where_they_stand() -> None:
    listing = open_source(DATA / "tfrecord")
    assert listing.kind == "tfrecord"
    assert images(listing) == JPEGS
    assert all(source.reader is None for source in listing.inputs)
    assert labels(listing) == [0, 1, 2, 0, 1, 2]
    expected = {"image/class/text": "dog", "image/object/bbox/xmin": [0.25, 0.5], "image/height": 16, "offset": -4}
    assert extras(listing)[4] == expected
    assert listing.remarks == ["feature hash, bytes: left out of 6 samples"]
    by_name = open_source(DATA / "tfrecord" / "train-00001-of-00002", label_field="image/class/text")
    assert (by_name.classes, labels(by_name)) == (["ant", "cat", "dog"], [1, 2, 0])


def test_a_tfrecord_with_a_damaged_length_keeps_what_stands_before_it(tmp_path: Path) -> None:
    data = bytearray((DATA / "tfrecord" / "train-00000-of-00002").read_bytes())
    (length,) = struct.unpack_from("<Q", data)
    data[16 + length] ^= 1
    listing = open_source(put(tmp_path / "a.tfrecord", bytes(data)))
    assert images_until_problem(listing) == JPEGS[:1]


def test_an_example_that_is_no_protocol_buffer_fails_alone(tmp_path: Path) -> None:
    def record(data: bytes) -> bytes:
        length = struct.pack("<Q", len(data))
        return length + struct.pack("<I", masked(crc32c(length))) + data + struct.pack("<I", masked(crc32c(data)))

    good = (DATA / "tfrecord" / "train-00000-of-00002").read_bytes()
    for bad in (b"\x0a\xff\xff\xff\x7f", b"\x0b", b"\x0a\x02\x0a\x50", b"\xff" * 12):
        listing = open_source(put(tmp_path / "a.tfrecord", record(bad) + good))
        assert listing.inputs[0].problem.startswith("damaged")
        assert [read_input(source) for source in listing.inputs[1:]] == JPEGS[:3]


# Parquet


def test_parquet_of_hugging_faces_datasets_is_read_with_the_names_of_its_classes() -> None:
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
    assert listing.remarks == ["binary column embedding: left out"]
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
    damaged = bytearray(data)
    damaged[200:400] = bytes(200)
    listing = open_source(put(tmp_path / "b.parquet", bytes(damaged)))
    assert len(listing.inputs) in (1, 3)


# LMDB


def write_lmdb(path: Path, entries: dict[bytes, bytes]) -> Path:
    lmdb = library("lmdb")
    with lmdb.open(str(path), map_size=1 << 22) as environment, environment.begin(write=True) as transaction:
        for key, value in entries.items():
            transaction.put(key, value)
    return path


def test_caffes_lmdb_is_read_encoded_and_as_planes_of_blue_green_and_red() -> None:
    library("lmdb")
    listing = open_source(DATA / "caffe")
    assert listing.kind == "lmdb"
    assert labels(listing) == [7, -1, 0]
    encoded, planes, with_shape = images(listing)
    assert (encoded, with_shape) == (JPEGS[0], JPEGS[1])
    assert np.array_equal(decoded(planes), pixels(3))


def test_an_lmdb_of_keys_and_image_files_is_read_by_key(tmp_path: Path) -> None:
    path = write_lmdb(tmp_path / "plain", {f"b/{k}.jpg".encode(): data for k, data in enumerate(JPEGS)})
    listing = open_source(path)
    assert images(listing) == JPEGS
    assert [source.name for source in listing.inputs[:2]] == ["plain/b/0.jpg", "plain/b/1.jpg"]
    assert set(labels(listing)) == {-1}


# RecordIO


def test_recordio_of_mxnets_writer_is_read_with_one_label_or_several() -> None:
    listing = open_source(DATA / "recordio" / "one.rec")
    assert listing.kind == "recordio"
    assert images(listing) == JPEGS
    assert all(source.reader is None for source in listing.inputs)
    assert labels(listing) == [0, 1, 2, 0, 1, 2]
    assert extras(listing) == [{"id": 10 + k} for k in range(6)]
    several = open_source(DATA / "recordio" / "several.rec")
    assert images(several) == JPEGS
    assert labels(several) == [0, 1, 2, 0, 1, 2]
    assert extras(several)[3] == {"labels": [0.0, 1.5], "id": 13}


def test_records_that_mxnet_split_at_its_magic_number_are_joined() -> None:
    listing = open_source(DATA / "recordio" / "split.rec")
    magic, image = struct.pack("<I", 0xCED7230A), JPEGS[2] + bytes(-len(JPEGS[2]) % 4)
    assert images(listing) == [image + magic + b"abcd" + magic + magic + b"end", JPEGS[1], image + magic]
    assert labels(listing) == [-1, 1, 2]
    assert extras(listing) == [{"label": 0.25, "id": 10}, {"id": 11}, {"id": 12}]


def test_what_im2rec_makes_of_folders_is_read_by_its_file_and_in_a_folder() -> None:
    listing = open_source(DATA / "recordio" / "im2rec.rec")
    assert labels(listing) == [0, 0, 1, 1, 2, 2]  # ant, cat, dog
    assert all(
        np.array_equal(decoded(data), pixels(k)) for k, data in zip((2, 5, 0, 3, 1, 4), images(listing), strict=True)
    )
    folder = open_source(DATA / "recordio")
    assert folder.kind == "recordio"
    assert images(folder)[:12] == images(listing) + JPEGS  # im2rec.rec, one.rec, several.rec, split.rec


def test_a_recordio_that_breaks_off_keeps_its_whole_records(tmp_path: Path) -> None:
    data = (DATA / "recordio" / "one.rec").read_bytes()
    listing = open_source(put(tmp_path / "a.rec", data[:-40]))
    assert images_until_problem(listing) == JPEGS[:5]


# HDF5


def test_hdf5_of_variable_length_bytes_and_of_pixels_is_read(tmp_path: Path) -> None:
    h5py = library("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        group = file.create_group("train")
        rows = group.create_dataset("images", (6,), dtype=h5py.vlen_dtype(np.uint8))
        for k, data in enumerate(JPEGS):
            rows[k] = np.frombuffer(data, np.uint8)
        group["labels"] = np.arange(6) % 3
        group["name"] = NAMES * 2
        group["score"] = np.array([0.5, np.nan, 1, 2, 3, 4])
        group["features"] = np.zeros((6, 9))
    listing = open_source(tmp_path / "a.h5")
    assert listing.kind == "hdf5"
    assert images(listing) == JPEGS
    assert labels(listing) == [0, 1, 2, 0, 1, 2]
    assert extras(listing)[:2] == [{"name": "cat", "score": 0.5}, {"name": "dog", "score": None}]
    assert listing.remarks == ["data set train/features: left out"]


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_hdf5_arrays_become_images_pixel_by_pixel(tmp_path: Path, layout: str) -> None:
    h5py = library("h5py")
    stack = np.stack([pixels(k) for k in range(6)])
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        stored = stack if layout == "NHWC" else stack.transpose(0, 3, 1, 2)
        file.create_dataset("x", data=stored, compression="gzip", chunks=(2, *stored.shape[1:]))
        file["y"] = np.arange(6)
    listing = open_source(tmp_path / "a.hdf5")
    assert labels(listing) == list(range(6))
    assert all(np.array_equal(decoded(data), pixels(k)) for k, data in enumerate(images(listing)))


def test_hdf5_of_references_is_refused(tmp_path: Path) -> None:
    h5py = library("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["one"] = 1.0
        file.create_dataset("images", data=[file["one"].ref], dtype=h5py.ref_dtype)
    with pytest.raises(UsageError, match="objects or references"):
        open_source(tmp_path / "a.h5")


# PicPoc


@pytest.mark.parametrize("closed", [True, False])
def test_picpoc_is_read_in_numeric_order_also_a_file_that_was_never_closed(tmp_path: Path, closed: bool) -> None:
    listing = open_source(write_picpoc(tmp_path, closed=closed))
    assert listing.kind == "picpoc"
    assert images(listing) == JPEGS
    assert labels(listing) == [-1, 0, 1, 2, 3, 4]
    assert extras(listing)[3] == {"fname": "3.jpg", "serial": 103}


def test_a_damaged_record_of_picpoc_costs_the_rest_of_its_container(tmp_path: Path) -> None:
    write_picpoc(tmp_path)
    data = bytearray((tmp_path / "0" / "0").read_bytes())
    data[4096 + 16 + len(picpoc_record(JPEGS[0], 0, 0, b'{"fname": "0.jpg"}'))] ^= 1
    put(tmp_path / "0" / "0", bytes(data))
    listing = open_source(tmp_path)
    assert len(problems(listing)) == 1
    assert [read_input(source) for source in listing.inputs if not source.problem] == [JPEGS[0], *JPEGS[2:]]


# Tables


def test_a_csv_gives_paths_labels_and_extra(tmp_path: Path) -> None:
    put(tmp_path / "images" / "a,b.jpg", JPEGS[0])
    text = 'file_name,label,caption\n"a,b.jpg",dog,"two\nlines"\nmissing.jpg,cat,\nc.jpg,,x\n'
    table = put(tmp_path / "train.csv", b"\xef\xbb\xbf" + text.encode())
    listing = open_source(table, root=tmp_path / "images")
    assert listing.kind == "table"
    assert (listing.classes, labels(listing)) == (["cat", "dog"], [1, 0, -1])
    assert extras(listing) == [{"caption": "two\nlines"}, None, {"caption": "x"}]
    assert read_input(listing.inputs[0]) == JPEGS[0]
    with pytest.raises(ImageError, match="No such file"):
        read_input(listing.inputs[1])


def test_a_jsonl_gives_paths_labels_extra_and_attachments(tmp_path: Path) -> None:
    put(tmp_path / "a.jpg", JPEGS[0])
    put(tmp_path / "a.png", b"mask")
    rows = [{"image": "a.jpg", "cls": 3, "w": [1], "extra": {"k": 1}, "attachments": {"mask": "a.png"}}, {"image": "b"}]
    listing = open_source(put(tmp_path / "t.jsonl", "\n".join(map(json.dumps, rows)).encode()))
    assert labels(listing) == [3, -1]
    assert extras(listing) == [{"w": [1], "k": 1}, None]
    assert listing.attachments == ("mask",)
    assert read_input(dict(listing.inputs[0].attachments)["mask"]) == b"mask"


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("a.csv", "path,label\na.jpg\n", "line 2: 1 values, 2 columns"),
        ("a.csv", "path,path\na,b\n", "two columns of one name"),
        ("a.csv", "x,y\n1,2\n", "--image-field"),
        ("a.csv", "path,label\n,2\n", "line 2: no path"),
        ("a.jsonl", '{"path": "a"}\n[1]\n', "line 2: no JSON object"),
        ("a.jsonl", '{"path": "a", "x": NaN}', "line 1: no JSON object"),
        ("a.jsonl", '{"path": "a", "label": 0.5}', "0.5 is no label"),
        ("a.jsonl", '{"path": 7}', "no path"),
        ("a.jsonl", '{"path": "a", "attachments": {"m": "../../etc/passwd"}}', "does not lie below"),
    ],
)
def test_a_row_that_is_not_what_it_should_be_is_refused_with_its_line(
    tmp_path: Path, name: str, text: str, reason: str
) -> None:
    with pytest.raises(UsageError, match=reason.replace("(", r"\(")):
        open_source(put(tmp_path / name, text.encode()))


# All of them


def test_a_file_of_classes_names_integers_and_orders_names(tmp_path: Path) -> None:
    names = put(tmp_path / "names.txt", b"dog\ncat\nbird\nant\n")
    assert open_source(DATA / "mds", classes=names).classes == ["dog", "cat", "bird", "ant"]
    listing = open_source(DATA / "mds", label_field="name", classes=names)
    assert labels(listing) == [1, 0, 3, 1, 0, 3]
    with pytest.raises(UsageError, match="'ant'"):
        open_source(DATA / "mds", label_field="name", classes=put(tmp_path / "few.txt", b"cat\ndog\n"))
    with pytest.raises(UsageError, match="labels up to 2"):
        open_source(DATA / "mds", classes=put(tmp_path / "few.txt", b"cat\ndog\n"))


def test_a_field_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(UsageError, match="'image'"):
        open_source(DATA / "mds", image_field="picture")
    with pytest.raises(UsageError, match="--image-field belongs to the source"):
        open_source(DATA / "images", image_field="picture")
    with pytest.raises(UsageError, match=r"no source is called magic; there are auto, coco, ffcv"):
        open_source(DATA, kind="magic")


@pytest.mark.parametrize(
    ("kind", "module", "name"),
    [("parquet", "pyarrow.parquet", "parquet"), ("lmdb", "lmdb", "lmdb"), ("hdf5", "h5py", "hdf5")],
)
def test_a_library_that_is_missing_is_named_with_the_command_that_installs_it(
    kind: str, module: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, module, None)
    with pytest.raises(MissingDependency, match=rf"pip install 'picstore\[{name}\]'"):
        open_source(put(tmp_path / "data.mdb", b"x"), kind=kind)


def cut_anywhere() -> list[tuple[str, bytes]]:
    """One whole file of each format that is read by our own code, to be damaged."""
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as archive:
        for name, data in (("a.jpg", JPEGS[0]), ("a.json", b'{"a": 1}')):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return [
        ("webdataset", tar.getvalue()),
        ("recordio", (DATA / "recordio" / "split.rec").read_bytes()),
        ("tfrecord", (DATA / "tfrecord" / "train-00000-of-00002").read_bytes()),
    ]


@pytest.mark.parametrize(
    "kind", ["webdataset", "recordio", "tfrecord", "mds", "litdata", "litdata-zstd-batch", "picpoc"]
)
def test_damage_anywhere_gives_inputs_or_a_reason_and_never_more_memory_than_the_file(
    kind: str, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    folder, whole = tmp_path / "source", DATA / kind
    if kind == "picpoc":
        whole = tmp_path / "whole"
        write_picpoc(whole)
    for trial in range(150):
        if kind in ("webdataset", "recordio", "tfrecord"):
            path = put(tmp_path / "file.bin", dict(cut_anywhere())[kind])
            damaged = path
        else:
            shutil.copytree(whole, folder, dirs_exist_ok=True)
            path = folder
            damaged = sorted(file for file in folder.rglob("*") if file.is_file() and file.suffix != ".json")[0]
        data = bytearray(damaged.read_bytes())
        if trial % 3 == 0:
            del data[int(rng.integers(len(data))) :]
        else:
            at = int(rng.integers(min(len(data), 600) if trial % 3 == 1 else len(data)))
            data[at : at + 4] = rng.bytes(4)
        put(damaged, bytes(data))
        listing = None
        with contextlib.suppress(NotADataset, UsageError, Damage):
            listing = open_source(path, kind=kind.partition("-")[0])
        for source in listing.inputs if listing else ():
            with contextlib.suppress(ImageError):
                assert len(read_input(source)) <= 1 << 16


def test_an_input_stays_small_and_can_be_sent_to_another_process() -> None:
    for name in ("mds", "litdata-zstd-batch", "tfrecord"):
        listing = open_source(DATA / name)
        task = pickle.dumps(listing.inputs)
        assert len(task) < 400 * len(listing.inputs)
        assert [source.name for source in pickle.loads(task)] == [s.name for s in listing.inputs]  # noqa: S301


def test_every_kind_is_described_in_the_documentation() -> None:
    guide = (Path(__file__).parents[3] / "docs" / "sources.md").read_text()
    for kind in KINDS:
        assert f"`{kind}`" in guide, f"docs/sources.md lacks the source {kind}"


def test_the_documented_source_of_another_package_is_found_recognised_and_converted(tmp_path: Path) -> None:
    guide = (Path(__file__).parents[3] / "docs" / "sources.md").read_text()
    section = guide[guide.index("## A source of your own") :]
    module = re.findall(r"```python\n(.*?)```", section, re.DOTALL)[0]
    declared = re.findall(r"```toml\n(.*?)```", section, re.DOTALL)[0]
    name, value = re.findall(r'^(\w+) = "(.*)"$', declared, re.MULTILINE)[-1]
    site = tmp_path / "site"
    put(site / f"{value.partition(':')[0]}.py", module.encode())
    put(site / "example-1.0.dist-info" / "METADATA", b"Metadata-Version: 2.1\nName: example\nVersion: 1.0\n")
    put(site / "example-1.0.dist-info" / "entry_points.txt", f"[picstore.sources]\n{name} = {value}\n".encode())
    source = tmp_path / "source"
    put(source / "images.bin", b"".join(JPEGS))
    sizes = list(map(len, JPEGS))
    lines = [f"{k}.jpg {k % 2} {sum(sizes[:k])} {size}" for k, size in enumerate(sizes)]
    put(source / "index.txt", "\n".join(lines).encode())
    environment = {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    for k, options in enumerate(([], ["--source", name])):
        out = tmp_path / f"out{k}"
        picstore_command("convert", source, out, *options, env=environment)
        dataset = sorted(picstore.Dataset(out), key=lambda record: record.id)
        assert [record.label for record in dataset] == [0, 1, 0, 1, 0, 1]
        assert picstore.Dataset(out).manifest.provenance["source"] == name
    put(site / f"{value.partition(':')[0]}.py", b"1 / 0")
    assert "cannot be loaded: ZeroDivisionError" in one_line(
        picstore_command("convert", source, tmp_path / "out", "--source", name, code=1, env=environment)
    )


@pytest.mark.parametrize(
    ("source", "options"),
    [
        ("huggingface", []),
        ("mds-zstd", []),
        ("litdata-zstd-batch", []),
        ("tfrecord", ["--label-field", "image/class/text"]),
    ],
)
def test_convert_reads_sources_in_its_worker_processes(source: str, options: list[str], tmp_path: Path) -> None:
    if source == "huggingface":
        library("pyarrow")
    picstore_command("convert", DATA / source, tmp_path / "out", *options, "--workers", 2)
    records = sorted(picstore.Dataset(tmp_path / "out"), key=lambda record: record.id)
    assert len(records) == len(JPEGS)
    for record, original in zip(records, JPEGS, strict=True):
        assert np.array_equal(decoded(record.jpeg), decoded(original))


def test_a_missing_library_is_exit_code_4(tmp_path: Path) -> None:
    put(tmp_path / "site" / "h5py.py", b"raise ImportError('as if it were not installed')")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path / 'site'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    source = put(tmp_path / "a.h5", b"\x89HDF\r\n\x1a\n" + bytes(100))
    done = picstore_command("convert", source, tmp_path / "out", code=4, env=environment)
    assert "pip install 'picstore[hdf5]'" in one_line(done)


def test_a_reader_that_raises_anything_costs_its_input_only() -> None:
    with pytest.raises(ImageError, match="cannot be read: ZeroDivisionError"):
        read_input(Input("a", -1, "", reader=lambda _: bytes([1 // 0])))


def test_a_probe_of_nothing_is_no_folder(tmp_path: Path) -> None:
    assert not SourceProbe.inspect(tmp_path / "nothing").is_folder
