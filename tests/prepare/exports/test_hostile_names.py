"""Exports of names that a stranger chose: nothing outside OUT, nothing twice, nothing that steers a terminal."""

from __future__ import annotations

import json
import shutil
import tarfile
import tempfile
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest
from engine_tasks import InlineEngine
from grids import examples
from hypothesis import given
from hypothesis import strategies as st
from samples import jpeg

import picstore
from picstore.errors import UsageError
from picstore.prepare.exports import run_export
from picstore.prepare.exports.run_export import FORMATS, export
from picstore.prepare.exports.safe_names import attachment_names
from picstore.prepare.sources.open import open_source, read_input
from picstore.storage.format.record import Record

PARTS = st.sampled_from([
    "..", ".", "/", "\\", "a", "A", "é", "e\u0301", "É", "ß", "SS", "ss", " ", "?", "!", "-1", ".jpg", "con", "nul",
    "records.jsonl", "classes.txt", ".unfinished", "shard-000000.tar", "unlabelled", "0001",
    "\0", "\n", "\r", "\x1b[2J", "\x1b]0;owned\x07", "\x7f", "\x9b", "\u202e", "~", "$HOME", "C:", "%2e%2e", "*", "-rf",
])  # fmt: skip
NAMES = st.lists(PARTS, max_size=4).map("".join) | st.text(max_size=8)
IMAGE = jpeg(0)


@contextmanager
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp())
    try:
        yield path
    finally:
        shutil.rmtree(path)


def folded(name: str) -> str:
    return unicodedata.normalize("NFD", unicodedata.normalize("NFD", name).casefold())


def check_names(names: list[str]) -> None:
    """Names below a folder, no two of which are equal on any file system, and all of which can be printed."""
    assert len(set(map(folded, names))) == len(names)
    for name in names:
        assert not PurePosixPath(name).is_absolute()
        assert not {"..", "."} & set(PurePosixPath(name).parts)
        assert name.isprintable(), name
        assert "\\" not in name


@pytest.mark.parametrize("format", FORMATS)
@examples(60)
@given(
    classes=st.lists(NAMES, min_size=1, max_size=4),
    paths=st.lists(NAMES, min_size=1, max_size=4),
    attachments=st.lists(NAMES, max_size=3, unique=True),
)
def test_no_name_leads_out_or_is_there_twice(
    format: str, classes: list[str], paths: list[str], attachments: list[str]
) -> None:
    with folder() as root:
        try:
            with picstore.Writer(root / "dataset", classes=classes, attachments=attachments) as writer:
                for number, path in enumerate(paths):
                    blobs = dict.fromkeys(attachments, b"%d" % number)
                    writer.add(IMAGE, label=number % len(classes), extra={"path": path}, attachments=blobs)
        except UsageError:
            return  # names that no data set can have
        try:
            export(root / "dataset", root / "out", format=format, workers=InlineEngine(1))
        except UsageError as error:
            assert format in ("mds", "parquet"), error  # an attachment that is called as a column
            return
        assert sorted(path.name for path in root.iterdir()) == ["dataset", "out"]
        files = [str(path.relative_to(root / "out")) for path in (root / "out").rglob("*") if path.is_file()]
        check_names(files)
        if format == "folder":
            check_folder(root / "out", len(paths), len(attachments))
        if format == "webdataset":
            with tarfile.open(root / "out" / "shard-000000.tar") as tar:
                check_names(tar.getnames())
                assert len(tar.getnames()) == len(paths) * (3 + len(attachments))
        check_classes(root / "out", format, classes, [number % len(classes) for number in range(len(paths))])


def check_classes(out: Path, format: str, classes: list[str], labels: list[int]) -> None:
    """The export's own names of classes are read back as they were, also equal, blank and unprintable ones."""
    source = out / "records.jsonl" if format == "folder" else out
    listing = open_source(source, classes=None if format == "parquet" else out / "classes.txt")
    assert (listing.classes, sorted(one.label for one in listing.inputs)) == (classes, sorted(labels))


def check_folder(out: Path, images: int, attachments: int) -> None:
    """The table names every file once, and is a source that names nothing outside it."""
    rows = [json.loads(line) for line in (out / "records.jsonl").read_text().split("\n")[:-1]]
    named = [name for row in rows for name in (row["path"], *row.get("attachments", {}).values())]
    assert len(named) == images * (1 + attachments)
    assert all((out / name).is_file() for name in named)
    listing = open_source(out / "records.jsonl", kind="table")
    assert [read_input(source) for source in listing.inputs] == [(out / row["path"]).read_bytes() for row in rows]


@pytest.mark.parametrize("format", [each for each in FORMATS if each != "parquet"])  # whose columns take any name
def test_attachments_of_one_safe_name_are_made_distinct(tmp_path: Path, format: str) -> None:
    names = ["a b?", "a b!", "Mask", "mask", "mask-2", "É", "e\u0301"]
    with picstore.Writer(tmp_path / "dataset", attachments=names) as writer:
        writer.add(IMAGE, attachments={name: name.encode() for name in names})
    export(tmp_path / "dataset", tmp_path / "out", format=format, workers=InlineEngine(1))
    (source,) = open_source(tmp_path / "out" / ("records.jsonl" if format == "folder" else "")).inputs
    assert {read_input(one).decode() for _, one in source.attachments} == set(names)
    assert len(set(map(folded, attachment_names(names).values()))) == len(names)


def test_an_attachment_does_not_take_the_name_of_that_of_another_image(tmp_path: Path) -> None:
    with picstore.Writer(tmp_path / "dataset", attachments=["c", "b.c"]) as writer:
        writer.add(IMAGE, extra={"path": "a.jpg"}, attachments={"b.c": b"1"})
        writer.add(IMAGE, extra={"path": "a.b.jpg"}, attachments={"c": b"2"})
    export(tmp_path / "dataset", tmp_path / "out", format="folder", workers=InlineEngine(1))
    attached = [one.attachments for one in open_source(tmp_path / "out" / "records.jsonl").inputs]
    assert sorted(read_input(source) for some in attached for _, source in some) == [b"1", b"2"]


@pytest.mark.parametrize("format", FORMATS)
def test_a_link_in_out_is_not_written_through(tmp_path: Path, format: str) -> None:
    with picstore.Writer(tmp_path / "dataset", classes=["cat"]) as writer:
        writer.add(IMAGE, label=0)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out").mkdir()
    for name in ("cat", ".unfinished", "classes.txt"):
        link = tmp_path / "out" / name
        for target in (tmp_path / "elsewhere", tmp_path / "nothing"):
            link.symlink_to(target)
            with pytest.raises(UsageError):
                export(tmp_path / "dataset", tmp_path / "out", format=format, workers=InlineEngine(1))
            link.unlink()
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert not (tmp_path / "nothing").exists()


EXTRAS: list[bytes] = [
    b"{",
    b"\xff",
    b"[" * 100_000,
    b'{"a": ' * 990 + b"1" + b"}" * 990,
    b'{"n": 1' + b"0" * 5000 + b"}",
]


@pytest.mark.parametrize("format", FORMATS)
def test_a_record_whose_extra_is_no_json_is_left_out(
    tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile(monkeypatch, lambda record: EXTRAS[record.id] if record.id < len(EXTRAS) else b'{"text": "\\ud800"}')
    with picstore.Writer(tmp_path / "dataset") as writer:
        for _ in range(len(EXTRAS) + 1):
            writer.add(IMAGE)
    done = export(tmp_path / "dataset", tmp_path / "out", format=format, workers=InlineEngine(1))
    assert 1 <= done.images <= 2  # the second if it is not too deep for this Python
    assert done.images + done.lost == len(EXTRAS) + 1


def hostile(monkeypatch: pytest.MonkeyPatch, extra: Callable[[Record], bytes]) -> None:
    """Let data sets have extras that no writer would take."""
    with_columns = run_export._with_columns
    monkeypatch.setattr(
        run_export, "_with_columns", lambda record: with_columns(replace(record, extra_json=extra(record)))
    )
