"""Folders as a source: classes, order, names, links."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from source_files import names, put

from picstore.errors import ImageError, UsageError
from picstore.prepare.sources.open import open_source, read_input


def test_sub_folders_are_classes_in_sorted_order_with_all_deeper_folders(tmp_path: Path) -> None:
    for name in ("zebra/1.png", "ant/b/2.jpg", "ant/a.jpg", "ant/.hidden.jpg", "README.md"):
        put(tmp_path / name)
    (tmp_path / "empty").mkdir()
    listing = open_source(tmp_path)
    assert listing.kind == "folder"
    assert listing.classes == ["ant", "empty", "zebra"]
    assert names(listing) == [("ant/a.jpg", 0), ("ant/b/2.jpg", 0), ("zebra/1.png", 2)]
    assert "1 hidden file or folder, such as ant/.hidden.jpg: left out; --hidden takes them" in listing.remarks
    assert f"1 file directly in {tmp_path}, in no class folder: left out" in listing.remarks


def test_texts_and_desktops_files_are_left_out_and_counted(tmp_path: Path) -> None:
    for name in ("cat/1.jpg", "cat/readme.txt", "cat/Thumbs.db", "dog/more/2.jpg", "dog/more/desktop.ini"):
        put(tmp_path / name)
    listing = open_source(tmp_path)
    assert names(listing) == [("cat/1.jpg", 0), ("dog/more/2.jpg", 1)]
    assert listing.remarks == ["3 files that are not images, such as cat/Thumbs.db: left out"]


def test_the_parts_of_a_data_set_are_no_classes_unless_classes_name_them(tmp_path: Path) -> None:
    for name in ("train/cat/1.jpg", "train/dog/2.jpg", "val/cat/3.jpg"):
        put(tmp_path / "nested" / name)
    with pytest.raises(UsageError, match=r"holds the splits train, val; give --split .*--classes"):
        open_source(tmp_path / "nested")
    assert open_source(tmp_path / "nested", split="train").classes == ["cat", "dog"]
    assert names(open_source(tmp_path / "nested", split="validation")) == [("cat/3.jpg", 0)]
    with pytest.raises(UsageError, match="has no split 'test'; it has train, val"):
        open_source(tmp_path / "nested", split="test")
    classes = put(tmp_path / "classes.txt", b"train\nval\n")
    assert open_source(tmp_path / "nested", classes=classes).classes == ["train", "val"]
    put(tmp_path / "nested" / "zebra" / "4.jpg")  # photographs of trains and of zebras
    assert open_source(tmp_path / "nested").classes == ["train", "val", "zebra"]


def test_folders_of_splits_beside_one_without_images_are_splits(tmp_path: Path) -> None:
    for name in ("train/cat/1.jpg", "val/cat/2.jpg", "annotations/a.json"):
        put(tmp_path / name)
    with pytest.raises(UsageError, match="holds the splits train, val; give --split"):
        open_source(tmp_path)
    assert names(open_source(tmp_path, split="train")) == [("cat/1.jpg", 0)]


def test_a_folder_without_sub_folders_is_one_class_with_label_0(tmp_path: Path) -> None:
    put(tmp_path / "flat" / "b.jpg")
    put(tmp_path / "flat" / "a.whatever")
    listing = open_source(tmp_path / "flat")
    assert listing.classes == ["flat"]
    assert names(listing) == [("a.whatever", 0), ("b.jpg", 0)]


def test_a_name_that_is_not_utf_8_is_listed_and_can_be_read(tmp_path: Path) -> None:
    folder = tmp_path / "class"
    folder.mkdir()
    with open(os.fsencode(folder) + b"/caf\xe9.jpg", "wb") as file:  # noqa: PTH123 - a path of bytes
        file.write(b"bytes")
    (only,) = open_source(tmp_path).inputs
    assert only.name == "class/caf\\xe9.jpg"
    assert read_input(only) == b"bytes"


def test_links_are_followed_and_a_loop_of_links_ends(tmp_path: Path) -> None:
    put(tmp_path / "class" / "a.jpg")
    (tmp_path / "class" / "again").symlink_to(tmp_path / "class")
    (tmp_path / "class" / "b.jpg").symlink_to(tmp_path / "class" / "a.jpg")
    (tmp_path / "class" / "gone.jpg").symlink_to(tmp_path / "nowhere")
    (tmp_path / "class" / "circle.jpg").symlink_to("circle.jpg")
    (tmp_path / "circle").symlink_to("circle")
    listing = open_source(tmp_path)
    assert [name for name, _ in names(listing)] == ["class/a.jpg", "class/b.jpg", "class/circle.jpg", "class/gone.jpg"]
    for source in listing.inputs[2:]:
        with pytest.raises(ImageError, match=r"^a link to nothing$"):
            read_input(source)


def test_pipes_and_devices_and_links_to_them_fail_by_their_names(tmp_path: Path) -> None:
    put(tmp_path / "class" / "a.jpg")
    os.mkfifo(tmp_path / "class" / "b.jpg")
    (tmp_path / "class" / "c.jpg").symlink_to("b.jpg")
    (tmp_path / "class" / "d.jpg").symlink_to("/dev/zero")
    listing = open_source(tmp_path)
    for source, reason in zip(
        listing.inputs[1:],
        ("a named pipe, not a regular file", "a link to a named pipe", "a link to a device"),
        strict=True,
    ):
        with pytest.raises(ImageError, match=f"^{reason}$"):
            read_input(source)


def test_a_path_that_is_too_long_for_the_system_is_one_failed_input(tmp_path: Path) -> None:
    put(tmp_path / "a" / "x.jpg")
    name, folder = "d" * 200, os.open(tmp_path / "a", os.O_RDONLY)
    for _ in range(22):  # 4,400 bytes, and 4,096 are possible
        os.mkdir(name, dir_fd=folder)
        inner = os.open(name, os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(folder)
    listing = open_source(tmp_path)
    assert [bool(source.problem) for source in listing.inputs] == [True, False]
    assert "File name too long" in listing.inputs[0].problem
    shutil.rmtree(tmp_path / "a")
