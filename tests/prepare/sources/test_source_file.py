"""Sources name only files below their folder, whatever leads elsewhere, and only regular files are opened."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from source_files import DATA, JPEGS, library, put

from picstore.errors import Damage, ImageError, PicstoreError, UsageError
from picstore.prepare.sources.inputs import Input
from picstore.prepare.sources.open import open_source, read_input
from picstore.prepare.sources.source_file import SourceFile, named_file
from picstore.storage.location.local import Folder
from picstore.storage.location.regular_file import open_regular

PRIVATE = JPEGS[5]


def a_list(folder: Path, name: str) -> dict[str, object]:
    return {"where": put(folder / "train.txt", f"{name} 0\n".encode())}


def a_table(folder: Path, name: str) -> dict[str, object]:
    return {"where": put(folder / "train.csv", f"path,label\n{name},0\n".encode())}


def an_attachment(folder: Path, name: str) -> dict[str, object]:
    row = {"path": "own.jpg", "attachments": {"mask": name}}
    return {"where": put(folder / "train.jsonl", json.dumps(row).encode())}


def annotations(folder: Path, name: str) -> dict[str, object]:
    images = [{"id": 1, "file_name": name, "width": 24, "height": 16}]
    document = {"images": images, "annotations": [], "categories": []}
    return {"where": folder, "annotations": put(folder / "coco.json", json.dumps(document).encode())}


def mds_index(folder: Path, name: str) -> dict[str, object]:
    index = json.loads((DATA / "mds" / "index.json").read_text())
    index["shards"][0]["raw_data"]["basename"] = name
    put(folder / "index.json", json.dumps(index).encode())
    return {"where": folder}


def litdata_index(folder: Path, name: str) -> dict[str, object]:
    index = json.loads((DATA / "litdata" / "index.json").read_text())
    index["chunks"][0]["filename"] = name
    put(folder / "index.json", json.dumps(index).encode())
    return {"where": folder}


def parquet_row(folder: Path, name: str) -> dict[str, object]:
    library("pyarrow")
    import pyarrow as pa
    import pyarrow.parquet as pq

    image = pa.array([{"bytes": None, "path": name}], pa.struct({"bytes": pa.binary(), "path": pa.string()}))
    pq.write_table(pa.table({"image": image}), folder / "x.parquet")
    return {"where": folder / "x.parquet"}


def refusal(source: Input) -> str:
    """Reason why an input cannot be read; nothing if it can, and is not private."""
    try:
        assert read_input(source) != PRIVATE
    except ImageError as error:
        return str(error)
    return ""


SOURCES = (a_list, a_table, an_attachment, annotations, mds_index, litdata_index, parquet_row)


def test_only_the_links_of_a_download_by_hugging_face_are_followed(tmp_path: Path) -> None:
    cache = tmp_path / "datasets--owner--name"
    snapshot = cache / "snapshots" / "0123"
    (snapshot / "images").mkdir(parents=True)
    put(cache / "blobs" / "ab12", JPEGS[0])
    put(cache / "private", PRIVATE)
    (cache / "blobs" / "cd34").symlink_to("../private")
    for name, blob in (("a.jpg", "ab12"), ("b.jpg", "cd34")):
        (snapshot / "images" / name).symlink_to(f"../../../blobs/{blob}")
    (snapshot / "c.jpg").symlink_to("../../private")
    assert named_file(Folder(snapshot), "images/a.jpg").read_all(1 << 20) == JPEGS[0]
    for name in ("images/b.jpg", "c.jpg"):
        with pytest.raises(UsageError, match="leads out"):
            named_file(Folder(snapshot), name)


@pytest.mark.parametrize("write", SOURCES)
@pytest.mark.parametrize("kind", ["absolute", "parent", "link", "link to a folder", "own"])
def test_no_source_names_a_file_outside_its_folder(
    tmp_path: Path, write: Callable[[Path, str], dict[str, object]], kind: str
) -> None:
    folder = tmp_path / "downloaded"
    private = put(tmp_path / "home" / "private.jpg", PRIVATE)
    put(folder / "own.jpg", JPEGS[0])
    (folder / "link.jpg").symlink_to(private)
    (folder / "links").symlink_to(private.parent)
    names = {"absolute": str(private), "parent": "../home/private.jpg", "link": "link.jpg", "own": "own.jpg"}
    refusals = []
    try:
        listing = open_source(**write(folder, names.get(kind, "links/private.jpg")))  # type: ignore[arg-type]
        every = [one for found in listing.inputs for one in (found, *(a for _, a in found.attachments))]
        refusals += map(refusal, every)
    except UsageError as error:
        refusals.append(str(error))
    assert any("leads out of the folder" in text for text in refusals) == (kind != "own"), refusals


@pytest.mark.parametrize("write", [a_list, a_table])
def test_root_names_the_folder_that_absolute_names_may_be_below(
    tmp_path: Path, write: Callable[[Path, str], dict[str, object]]
) -> None:
    image = put(tmp_path / "photos" / "a.jpg", JPEGS[0])
    (one,) = open_source(**write(tmp_path / "lists", str(image)), root=tmp_path).inputs  # type: ignore[arg-type]
    assert read_input(one) == JPEGS[0]


def test_a_link_inside_the_folder_and_a_folder_that_is_a_link_are_followed(tmp_path: Path) -> None:
    put(tmp_path / "real" / "blobs" / "1", JPEGS[0])
    (tmp_path / "real" / "a.jpg").symlink_to("blobs/1")
    (tmp_path / "linked").symlink_to("real")
    for folder in ("real", "linked", "real/../linked"):
        assert str(named_file(Folder(tmp_path / folder), "a.jpg")).endswith("a.jpg")


@pytest.mark.parametrize("name", ["", ".", "..", "a/../..", "a\0b", None, 7, "/"])
def test_what_is_no_name_of_a_file_below_a_folder_is_refused(tmp_path: Path, name: object) -> None:
    with pytest.raises(UsageError):
        named_file(Folder(tmp_path), name)


NAME_PARTS = st.sampled_from(["..", ".", "a", "b", "out", "in", "file", "", "/", "\n", "\x1b", "é", "~", "\\"])


@given(st.lists(NAME_PARTS, min_size=1, max_size=6).map("/".join))
def test_whatever_name_is_taken_leads_below_the_folder(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    root = tmp_path_factory.getbasetemp() / "property"
    folder = root / "a"
    if not folder.exists():
        (folder / "b").mkdir(parents=True)
        (folder / "out").symlink_to(root)
        (folder / "b" / "out").symlink_to("../..")
        (folder / "in").symlink_to("b")
        (folder / "file").symlink_to("/etc/passwd")
        (root / "b").mkdir()
    with contextlib.suppress(UsageError):
        location = named_file(Folder(folder), name)
        assert Path(str(location)).resolve().is_relative_to(folder.resolve())
        assert Path(str(location)).resolve() != folder.resolve()


def test_a_pipe_or_a_device_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    for path in (str(tmp_path / "pipe.jpg"), "/dev/zero", "/dev/tty"):
        with pytest.raises(ImageError, match=r"not a regular file|No such device"):
            read_input(Input("x", 0, path))
        with pytest.raises(Damage, match=r"not a regular file|No such device"):
            SourceFile(path)


@pytest.mark.parametrize("name", ["x.parquet", "x.h5", "x.tar", "x.tfrecord", "x.rec", "x.beton", "data.mdb"])
def test_a_source_that_is_a_pipe_is_refused_without_waiting(tmp_path: Path, name: str) -> None:
    kinds = {"parquet": "pyarrow", "hdf5": "h5py", "lmdb": "lmdb"}
    suffixes = {"h5": "hdf5", "tar": "webdataset", "rec": "recordio", "beton": "ffcv", "mdb": "lmdb"}
    os.mkfifo(tmp_path / name)
    kind = suffixes.get(name.partition(".")[2], name.partition(".")[2])
    library(kinds.get(kind, "json"))
    try:
        listing = open_source(tmp_path / name, kind=kind)
    except PicstoreError:
        return
    assert all(source.problem for source in listing.inputs)


def test_links_of_a_folder_that_lead_out_of_it_are_counted(tmp_path: Path) -> None:
    put(tmp_path / "home" / "a.jpg", JPEGS[0])
    put(tmp_path / "src" / "cat" / "own.jpg", JPEGS[1])
    (tmp_path / "src" / "cat" / "again.jpg").symlink_to("own.jpg")
    (tmp_path / "src" / "cat" / "a.jpg").symlink_to(tmp_path / "home" / "a.jpg")
    (tmp_path / "src" / "dog").symlink_to(tmp_path / "home")
    listing = open_source(tmp_path / "src")
    assert len(listing.inputs) == 4
    (remark,) = listing.remarks
    assert remark.startswith("2 links lead out of")


def test_a_name_that_no_file_can_have_is_a_missing_file(tmp_path: Path) -> None:
    for name in ("\ud800.jpg", "a\0.jpg"):
        with pytest.raises(FileNotFoundError):
            open_regular(f"{tmp_path}/{name}")


def test_a_shard_of_mds_whose_data_are_no_object_is_refused(tmp_path: Path) -> None:
    index = json.loads((DATA / "mds" / "index.json").read_text())
    index["shards"][0]["raw_data"] = "shard.mds"
    put(tmp_path / "index.json", json.dumps(index).encode())
    with pytest.raises(UsageError):
        open_source(tmp_path, kind="mds")
