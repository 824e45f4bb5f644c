"""Files and folders that no source reads: named, with what to do, and without a byte of theirs in the message."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import pickle
import shutil
import sqlite3
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from samples import jpeg, picture

from picstore.errors import NotADataset, UsageError
from picstore.prepare.sources.open import open_source
from picstore.prepare.sources.refused_files import describe_foreign
from picstore.storage.format.zstd import compress


def zipped(name: str = "cat/0.jpg") -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(name, jpeg(0))
    return out.getvalue()


def tarred() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        member = tarfile.TarInfo("cat/0.jpg")
        member.size = len(jpeg(0))
        archive.addfile(member, io.BytesIO(jpeg(0)))
    return out.getvalue()


def image(kind: str) -> bytes:
    out = io.BytesIO()
    Image.fromarray(picture(0)).save(out, kind)
    return out.getvalue()


def saved(save: Callable[..., None], *values: object) -> bytes:
    out = io.BytesIO()
    save(out, *values)
    return out.getvalue()


def database(folder: Path) -> bytes:
    with sqlite3.connect(folder / "made") as connection:
        connection.execute("create table a (b)")
    connection.close()
    return (folder / "made").read_bytes()


HEADER = json.dumps({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}).encode()
FILES: dict[str, tuple[Callable[[Path], bytes], str]] = {
    "photos.zip": (lambda _: zipped(), "zip archive; unpack"),
    "photos.tar.gz": (lambda _: gzip.compress(tarred()), "gzip; unpack"),
    "photos.tgz": (lambda _: gzip.compress(tarred()), "gzip; unpack"),
    "photos.tar.bz2": (lambda _: bz2.compress(tarred()), "bzip2; unpack"),
    "photos.tar.xz": (lambda _: lzma.compress(tarred()), "xz; unpack"),
    "photos.tar.zst": (lambda _: compress(tarred()), "zstd; unpack"),
    "one.jpg": (lambda _: jpeg(0), r"image \(JPEG\); give the folder"),
    "one": (lambda _: image("PNG"), r"image \(PNG\); give the folder"),
    "one.tif": (lambda _: image("TIFF"), r"image \(TIFF\)"),
    "one.webp": (lambda _: image("WEBP"), r"image \(WebP\)"),
    "one.bmp": (lambda _: image("BMP"), r"image \(BMP\)"),
    "one.gif": (lambda _: image("GIF"), r"image \(GIF\)"),
    "a.npy": (lambda _: saved(np.save, picture(0)), "NumPy array"),
    "a.npz": (lambda _: saved(np.savez, picture(0)), "NumPy arrays"),
    "a.pt": (lambda _: zipped("archive/data.pkl"), "PyTorch"),
    "a.pkl": (lambda _: pickle.dumps({"images": [1]}), "pickle"),
    "a.db3": (database, "SQLite"),
    "a.safetensors": (lambda _: struct.pack("<Q", len(HEADER)) + HEADER + b"\0", "safetensors"),
    "images-idx3-ubyte": (lambda _: struct.pack(">4I", 0x803, 1, 28, 28) + bytes(784), "IDX"),
    "a.pdf": (lambda _: b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj\n\x00", "PDF"),
    "a.mp4": (lambda _: struct.pack(">I", 32) + b"ftypisom" + bytes(20), "video"),
    "a.mkv": (lambda _: b"\x1aE\xdf\xa3\x01\0\0\0\0\0\0\x1f", "video"),
    "a.7z": (lambda _: b"7z\xbc\xaf\x27\x1c\0\x04" + bytes(24), "7z"),
    "a.rar": (lambda _: b"Rar!\x1a\x07\x01\0" + bytes(24), "RAR"),
    "annotations.json": (lambda _: b'{"images": []}', "--annotations"),
    "zeros.bin": (lambda _: bytes(1 << 20), "no known format"),
    "zeros.csv": (lambda _: bytes(1 << 20), "no known format"),
    "photos.csv": (lambda _: zipped(), "zip archive"),
    "photos.jsonl": (lambda _: gzip.compress(b"{}"), "gzip"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_no_source_reads_is_named_with_what_to_do(name: str, tmp_path: Path) -> None:
    make, words = FILES[name]
    (tmp_path / name).write_bytes(make(tmp_path))
    with pytest.raises(UsageError, match=words) as raised:
        open_source(tmp_path / name)
    assert str(raised.value).replace(str(tmp_path), "").isprintable()
    assert len(str(raised.value)) < 400


@pytest.mark.parametrize("kind", ["list", "table"])
def test_a_named_source_refuses_files_of_other_kinds_alike(kind: str, tmp_path: Path) -> None:
    (tmp_path / "one.jpg").write_bytes(jpeg(0))
    with pytest.raises(UsageError, match="image"):
        open_source(tmp_path / "one.jpg", kind=kind)


def test_folders_that_other_libraries_wrote_are_named(tmp_path: Path) -> None:
    for names, words in (
        (("dataset_info.json", "state.json", "data-00000-of-00001.arrow"), "load_from_disk"),
        (("dataset_dict.json", "train/state.json"), "save_to_disk"),
        (("zarr.json",), "Zarr"),
    ):
        folder = tmp_path / names[0]
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(b"{}")
        with pytest.raises(UsageError, match=words):
            open_source(folder)


def test_what_datasets_saved_to_disk_is_named(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_dict({"label": [1]}).save_to_disk(tmp_path / "saved")
    with pytest.raises(UsageError, match="to_parquet"):
        open_source(tmp_path / "saved")


def test_a_folder_of_archives_alone_says_to_unpack_them(tmp_path: Path) -> None:
    for name in ("a.zip", "b.zip"):
        (tmp_path / name).write_bytes(zipped())
    with pytest.raises(UsageError, match=r"a\.zip is a zip archive; unpack"):
        open_source(tmp_path)
    (tmp_path / "c.jpg").write_bytes(jpeg(0))
    assert len(open_source(tmp_path).inputs) == 3  # the archives fail, by name


@pytest.mark.parametrize("name", ["BM_1", "MZ", "ORC", "070701", "GIF8", "8BPS", "GGUF", "OggS", "BZh", "RIFF....WEBP"])
def test_names_that_begin_as_magic_numbers_do_are_read_from_lists(name: str, tmp_path: Path) -> None:
    (tmp_path / f"{name}.jpg").write_bytes(jpeg(0))
    (tmp_path / "list.txt").write_text(f"{name}.jpg 0\n")
    assert [one.name for one in open_source(tmp_path / "list.txt").inputs] == [f"{name}.jpg"]


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"])))
def test_no_text_counts_as_a_file_of_another_kind(text: str) -> None:
    assert describe_foreign(text.encode(), "list.txt") is None


def test_a_folder_without_images_says_what_lies_there(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("a")
    with pytest.raises(NotADataset, match=r"1 file that is not an image, such as notes\.txt"):
        open_source(tmp_path)


def test_the_folder_of_img2dataset_is_a_web_dataset(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    with tarfile.open(tmp_path / "00000.tar", "w") as tar:
        for name, data in (("0.jpg", jpeg(0)), ("0.txt", b"a cat"), ("1.jpg", jpeg(1)), ("1.txt", b"a dog")):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    table = pyarrow.table({"url": ["u"], "caption": ["a cat"], "status": ["success"], "sha256": ["0f"]})
    parquet.write_table(table, tmp_path / "00000.parquet")
    (tmp_path / "00000_stats.json").write_text("{}")
    listing = open_source(tmp_path)
    assert (listing.kind, len(listing.inputs)) == ("webdataset", 2)


def test_tables_beside_class_folders_do_not_hide_these(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"file_name": ["cat/0.jpg"]}), tmp_path / "metadata.parquet")
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "0.jpg").write_bytes(jpeg(0))
    assert open_source(tmp_path).kind == "folder"
    shutil.copy(tmp_path / "metadata.parquet", tmp_path / "cat")
    assert len(open_source(tmp_path / "cat").inputs) == 1
