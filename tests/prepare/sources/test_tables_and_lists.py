"""CSV and JSON Lines as a source."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from source_files import JPEGS, extras, labels, put

from picstore.errors import ImageError, UsageError
from picstore.prepare.sources.open import open_source, read_input


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
        ("a.csv", "path,label\na.jpg\n", "line 2: 1 value; give 2, one a column"),
        ("a.csv", "path,path\na,b\n", "two columns of one name"),
        ("a.csv", "x,y\n1,2\n", "--image-field"),
        ("a.csv", "path,label\n,2\n", "line 2: no path"),
        ("a.jsonl", "[1]\n", "line 1: no JSON object"),
        ("a.jsonl", '{"path": "a", "x": NoN}\n', "line 1: no JSON object"),
        ("a.jsonl", '{"path": 7}', "no path"),
        ("a.jsonl", '{"path": "a", "attachments": {"m": "../../etc/passwd"}}', "leads out of the folder"),
    ],
)
def test_a_row_that_is_not_what_it_should_be_is_refused_with_its_line(
    tmp_path: Path, name: str, text: str, reason: str
) -> None:
    with pytest.raises(UsageError, match=reason.replace("(", r"\(")):
        open_source(put(tmp_path / name, text.encode()))


def test_a_damaged_row_fails_alone_and_its_neighbors_stay(tmp_path: Path) -> None:
    put(tmp_path / "a.jpg", JPEGS[0])
    for name, text in (
        ("t.csv", "path,label\na.jpg,1\na.jpg\na.jpg,1,2\n,1\na.jpg,1\n"),
        (
            "t.jsonl",
            '{"path": "a.jpg", "label": 1}\n[1]\n{"path": "a.jpg", "la\n{"label": 1}\n{"path": "a.jpg", "label": 1}\n',
        ),
    ):
        listing = open_source(put(tmp_path / name, text.encode()))
        assert [one.problem.partition(":")[0] for one in listing.inputs] == [
            "",
            *(f"line {k}" for k in LINES[name]),
            "",
        ]
        assert [one.label for one in listing.inputs if not one.problem] == [1, 1]


LINES = {"t.csv": [3, 4, 5], "t.jsonl": [2, 3, 4]}


def test_a_path_that_no_file_can_have_is_refused_alone(tmp_path: Path) -> None:
    put(tmp_path / "a.jpg", JPEGS[0])
    listing = open_source(put(tmp_path / "a.jsonl", b'{"path": "\\ud800.jpg"}\n{"path": "a.jpg"}\n'))
    assert listing.inputs[0].name == r"\xed\xa0\x80.jpg"
    with pytest.raises(ImageError):
        read_input(listing.inputs[0])
    assert read_input(listing.inputs[1]) == JPEGS[0]
