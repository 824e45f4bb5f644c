"""Caffe's lists as a source."""

from __future__ import annotations

from pathlib import Path

import pytest
from source_files import names, put

from picstore.errors import ImageError, UsageError
from picstore.prepare.sources.open import open_source, read_input


def test_a_list_gives_paths_and_labels_relative_to_root(tmp_path: Path) -> None:
    put(tmp_path / "photos" / "with space.jpg", b"1")
    put(tmp_path / "photos" / "b.jpg", b"2")
    text = "photos/with space.jpg 7\r\n\nphotos/b.jpg\t-1\nmissing.jpg 2\n"
    listing = open_source(put(tmp_path / "train.txt", text.encode()))
    assert listing.kind == "list"
    assert names(listing) == [("photos/with space.jpg", 7), ("photos/b.jpg", -1), ("missing.jpg", 2)]
    assert [read_input(source) for source in listing.inputs[:2]] == [b"1", b"2"]
    with pytest.raises(ImageError, match="No such file"):
        read_input(listing.inputs[2])
    elsewhere = open_source(put(tmp_path / "x" / "l.txt", b"with space.jpg 0"), root=tmp_path / "photos")
    assert read_input(elsewhere.inputs[0]) == b"1"


@pytest.mark.parametrize("line", ["nolabel.jpg", "a.jpg cat", "a.jpg 1x"])
def test_one_line_without_an_integer_label_is_one_input_that_fails(tmp_path: Path, line: str) -> None:
    path = put(tmp_path / "list.txt", f"ok.jpg 1\n{line}\nb.jpg 01\nc.jpg 3\n".encode())
    listing = open_source(path)
    assert [one.label for one in listing.inputs if not one.problem] == [1, 1, 3] and not listing.classes
    (bad,) = (one for one in listing.inputs if one.problem)
    assert repr(line.split()[-1]) in bad.problem


def test_a_text_of_lines_without_labels_is_refused_with_a_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="line 1: not `path label`"):
        open_source(put(tmp_path / "list.txt", b"a.jpg\nb.jpg\n"))


@pytest.mark.parametrize("label", ["cat", "1.5"])
def test_a_label_that_is_no_integer_needs_classes(tmp_path: Path, label: str) -> None:
    path = put(tmp_path / "list.txt", f"a.jpg {label}\nb.jpg dog\n".encode())
    with pytest.raises(UsageError, match=rf"the label '{label}' must be an integer, or a name in a file for --classes"):
        open_source(path)
    classes = put(tmp_path / "classes.txt", f"dog\n{label}\n".encode())
    listing = open_source(path, classes=classes)
    assert names(listing) == [("a.jpg", 1), ("b.jpg", 0)] and listing.classes == ["dog", label]


def test_a_list_of_absolute_paths_needs_a_root_that_holds_them(tmp_path: Path) -> None:
    photo = put(tmp_path / "photos" / "a.jpg", b"1")
    path = put(tmp_path / "lists" / "list.txt", f"{photo} 3\n".encode())
    with pytest.raises(UsageError, match=r"none of its 1 image can be read: .*; --root names another folder"):
        open_source(path)
    listing = open_source(path, root=tmp_path)
    assert names(listing) == [(str(photo), 3)] and read_input(listing.inputs[0]) == b"1"
