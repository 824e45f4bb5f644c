"""Text files of users: byte order marks, UTF-16, and bytes that are no text."""

from __future__ import annotations

import codecs
import io
import json
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import jpeg

import picstore
from picstore.errors import UsageError
from picstore.prepare.sources.lenient_json import json_object
from picstore.prepare.sources.open import open_source
from picstore.storage.location.resolve import locate
from picstore.storage.location.text_files import text_lines, text_of_file
from picstore.verbs.delete import read_ids

ENCODINGS = {
    "utf-8": (b"", "utf-8"),
    "mark": (codecs.BOM_UTF8, "utf-8"),
    "utf-16-le": (codecs.BOM_UTF16_LE, "utf-16-le"),
    "utf-16-be": (codecs.BOM_UTF16_BE, "utf-16-be"),
    "utf-32-le": (codecs.BOM_UTF32_LE, "utf-32-le"),
}


def encoded(text: str, encoding: str) -> bytes:
    mark, name = ENCODINGS[encoding]
    return mark + text.encode(name)


@given(st.text(st.characters(exclude_categories=["Cs"])), st.sampled_from(sorted(ENCODINGS)))
def test_a_text_is_the_same_in_each_encoding(text: str, encoding: str) -> None:
    if not text.startswith("\ufeff"):
        assert text_of_file(encoded(text, encoding)) == text


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_lines_have_neither_mark_nor_line_ends(encoding: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(encoded("é 1\r\n\r\nb\n\ufeffc", encoding))
    assert list(text_lines(locate(tmp_path / "a.txt"))) == ["é 1", "", "b", "\ufeffc"]


def test_a_file_of_bytes_is_refused_as_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(bytes(100))
    with pytest.raises(UsageError, match="not a text file"):
        list(text_lines(locate(tmp_path / "a.bin")))


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("list.txt", "a.jpg 1\r\nb.jpg 0\r\n"),
        ("table.csv", "path,label\r\na.jpg,1\r\nb.jpg,0\r\n"),
        ("quoted.csv", '"path","label"\r\n"a.jpg","1"\r\n"b.jpg","0"\r\n'),
        ("table.tsv", "path\tlabel\na.jpg\t1\nb.jpg\t0\n"),
        ("table.jsonl", '{"path": "a.jpg", "label": 1}\r\n{"path": "b.jpg", "label": 0}\r\n'),
    ],
)
def test_lists_and_tables_are_the_same_in_each_encoding(name: str, text: str, encoding: str, tmp_path: Path) -> None:
    for image in ("a.jpg", "b.jpg"):
        (tmp_path / image).write_bytes(jpeg(0))
    (tmp_path / name).write_bytes(encoded(text, encoding))
    listing = open_source(tmp_path / name)
    assert [(one.name, one.label, one.problem) for one in listing.inputs] == [("a.jpg", 1, ""), ("b.jpg", 0, "")]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_names_of_classes_and_synsets_are_the_same_in_each_encoding(encoding: str, tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        (tmp_path / "photos" / name / "0.jpg").write_bytes(jpeg(0))
        with tarfile.open(tmp_path / f"{name}.tar", "w") as tar:
            member = tarfile.TarInfo("0.jpg")
            member.size = len(jpeg(0))
            tar.addfile(member, io.BytesIO(jpeg(0)))
    order = tmp_path / "order.txt"
    order.write_bytes(encoded("dog\r\ncat\r\n", encoding))
    assert open_source(tmp_path / "photos", classes=order).classes == ["dog", "cat"]
    assert open_source(tmp_path, kind="imagenet", synsets=order).classes == ["dog", "cat"]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_json_ids_and_configurations_are_read_in_each_encoding(encoding: str, tmp_path: Path) -> None:
    assert json_object(encoded('{"a": "é"}', encoding)) == {"a": "é"}
    (tmp_path / "ids.txt").write_bytes(encoded("3\r\n4\r\n", encoding))
    assert read_ids(tmp_path / "ids.txt") == [3, 4]
    mux_config = pytest.importorskip("picstore.train.mux_config")
    with picstore.Writer(tmp_path / "train", classes=["a"]) as writer:
        writer.add(jpeg(0), label=0)
    for name, text in (("mux.tsv", "train 0 2\r\n"), ("mux.toml", '[[source]]\r\npath = "train"\r\ncount = 2\r\n')):
        (tmp_path / name).write_bytes(encoded(text, encoding))
        assert [each.count for each in mux_config.read_config(tmp_path / name).entries] == [2]


def test_marks_in_annotations_and_members_of_tars_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(jpeg(0))
    document = {"images": [{"id": 1, "file_name": "a.jpg", "width": 60, "height": 40}], "annotations": []}
    document |= {"categories": [{"id": 1, "name": "cat"}]}
    (tmp_path / "coco.json").write_bytes(codecs.BOM_UTF8 + json.dumps(document).encode())
    assert len(open_source(tmp_path, annotations=tmp_path / "coco.json").inputs) == 1
    with tarfile.open(tmp_path / "t.tar", "w") as tar:
        members = {"0.jpg": jpeg(0), "0.cls": b"7", "0.txt": b"a cat", "0.json": b'{"k": 1}'}
        for name, data in members.items():
            data = data if name == "0.jpg" else codecs.BOM_UTF8 + data
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    (only,) = open_source(tmp_path / "t.tar").inputs
    assert (only.label, json.loads(only.extra)) == (7, {"txt": "a cat", "k": 1})
