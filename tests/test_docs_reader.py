"""docs/reader.py, the reader that needs no picstore, reads what picstore writes, and says what it leaves out."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import simplejpeg
from hostile import rewrite_manifest

import picstore

READER = Path(__file__).parents[1] / "docs" / "reader.py"
FIXTURES = Path(__file__).parent / "fixtures"
GOLDEN = FIXTURES / "golden"
FROZEN = FIXTURES / "versions" / "0.1.0" / "data"


@pytest.fixture(scope="module")
def reader() -> ModuleType:
    """The module of docs/reader.py."""
    spec = importlib.util.spec_from_file_location("reader", READER)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def plain(columns: dict[str, Any]) -> dict[str, Any]:
    return {name: np.asarray(value).tolist() for name, value in columns.items()}


@pytest.mark.parametrize(
    "path", [GOLDEN / "dataset", GOLDEN / "edited", FROZEN / "edited", FROZEN / "annotated", FROZEN / "index"], ids=str
)
def test_the_independent_reader_reads_what_picstore_reads(reader: ModuleType, path: Path) -> None:
    skipped: list[str] = []
    dataset = picstore.Dataset(path)
    for found, record in zip(reader.records(path, skip=skipped.append), dataset, strict=True):
        assert (found.id, found.label, found.jpeg) == (record.id, record.label, record.jpeg)
        assert found.attachments == {name: bytes(blob) for name, blob in record.attachments.items()}
        assert plain(found.columns) == plain(record.columns)
        if bytes(record.jpeg[:2]) == b"\xff\xd8":
            assert np.array_equal(found.image, simplejpeg.decode_jpeg(record.jpeg, "RGB"))
    assert skipped == []


def test_the_independent_reader_reads_extras_where_python_has_zstd(
    reader: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    zstd = pytest.importorskip("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")
    monkeypatch.setattr(reader, "zstd", zstd)
    for path in (GOLDEN / "dataset", FROZEN / "annotated"):
        extras = {record.id: record.extra for record in picstore.Dataset(path)}
        assert {record.id: record.extra for record in reader.records(path)} == extras
        assert any(extras.values())


def test_the_independent_reader_selects_by_id(reader: ModuleType) -> None:
    assert [record.id for record in reader.records(FROZEN / "edited", ids={3, 40, 4, 12})] == [3, 12, 40]


def test_the_independent_reader_needs_no_picstore_and_writes_everything(tmp_path: Path) -> None:
    program = f"import sys; sys.modules['picstore'] = None; sys.argv = ['reader.py', {str(GOLDEN / 'dataset')!r}]"
    program += f" + sys.argv[1:]; import runpy; runpy.run_path({str(READER)!r}, run_name='__main__')"
    for arguments in ([], [str(tmp_path / "out")]):
        command = [sys.executable, "-c", program, *arguments]
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "24 records\n"
    lines = [json.loads(line) for line in (tmp_path / "out" / "records.jsonl").read_text().splitlines()]
    for line, record in zip(lines, picstore.Dataset(GOLDEN / "dataset"), strict=True):
        assert (line["id"], line["label"]) == (record.id, record.label)
        assert (tmp_path / "out" / line["image"]).read_bytes() == record.jpeg
        for name, blob in record.attachments.items():
            assert (tmp_path / "out" / line[name]).read_bytes() == bytes(blob)


Damaged = Callable[[str, str, int], tuple[set[int], list[str]]]


@pytest.fixture
def damaged(reader: ModuleType, tmp_path: Path) -> Damaged:
    """Flip a bit of a file of a data set; gives the ids that are lost, and what the reader says."""

    def flip(path: str, name: str, offset: int) -> tuple[set[int], list[str]]:
        shutil.copytree(FIXTURES / path, tmp_path / "damaged")
        file = tmp_path / "damaged" / name
        data = bytearray(file.read_bytes())
        data[offset] ^= 1
        file.write_bytes(data)
        said: list[str] = []
        found = {record.id for record in reader.records(tmp_path / "damaged", skip=said.append)}
        return {*picstore.Dataset(FIXTURES / path).ids.tolist()} - found, said

    return flip


FIRST = "golden/dataset", "0000/000000.pic"


@pytest.mark.parametrize(
    ("offset", "lost", "said"),
    [
        (4096 + 10, 0, "a container's header fails its checksum; its images do not need it, its extras do"),
        (4096 + 64 + 30, 1, "record 0: its index entry is damaged"),
        (4096 + 64 + 8 * 64 + 5, 1, "record 0: the entry of its attachment mask is damaged"),
        (4096 + 1500, 1, "fails its checksum"),
        (4096 + 1152, 1, "record 0: its attachment mask fails its checksum"),
    ],
)
def test_damage_costs_the_independent_reader_one_record(damaged: Damaged, offset: int, lost: int, said: str) -> None:
    ids, lines = damaged(*FIRST, offset)
    assert len(ids) == lost
    assert len(lines) == 1
    assert lines[0].startswith("0000/000000.pic, container at byte 4096: ") and said in lines[0]


def test_the_independent_reader_finds_containers_without_a_sound_index(damaged: Damaged) -> None:
    ids, lines = damaged("versions/0.1.0/data/train", "picstore.idx", 100)
    assert (ids, lines) == (set(), ["the index fails its checksum: the containers are looked for"])


def test_the_independent_reader_leaves_a_damaged_column_out(damaged: Damaged) -> None:
    values = picstore.Dataset(FROZEN / "edited").manifest.edits
    assert values is not None
    caption = next(column for column in values.columns if column.name == "caption")
    ids, lines = damaged("versions/0.1.0/data/edited", caption.values.file, 200)
    assert (ids, lines) == (set(), [f"column caption: {caption.values.file} fails its checksum"])


@pytest.mark.parametrize("name", ["picstore.json", "tombstones"])
def test_the_independent_reader_stops_where_it_could_show_deleted_records(damaged: Damaged, name: str) -> None:
    edits = picstore.Dataset(FROZEN / "edited").manifest.edits
    assert edits is not None and edits.tombstones is not None
    with pytest.raises(ValueError, match="fails its checksum"):
        damaged("versions/0.1.0/data/edited", edits.tombstones.file if name == "tombstones" else name, 140)


def test_the_independent_reader_tells_of_files_that_are_missing(reader: ModuleType, tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "dataset", tmp_path / "set")
    (tmp_path / "set" / "0001" / "000000.pic").unlink()
    said: list[str] = []
    assert len(list(reader.records(tmp_path / "set", skip=said.append))) == 12
    assert len(said) == 2 and all("0001/000000.pic" in line and "records" in line for line in said)


def test_the_independent_reader_stays_in_the_folder_of_an_index(reader: ModuleType, tmp_path: Path) -> None:
    shutil.copytree(FROZEN / "index", tmp_path / "index")
    shutil.move(tmp_path / "index" / "shards", tmp_path / "shards")
    rewrite_manifest(tmp_path / "index", references={"root": str(tmp_path / "shards"), "foreign": 3})
    with pytest.raises(ValueError, match="give that folder as root if you trust the index"):
        list(reader.records(tmp_path / "index"))
    assert len(list(reader.records(tmp_path / "index", root=tmp_path / "shards"))) == 11
    with pytest.raises(ValueError, match="leads out"):
        reader.follow(bytes(16) + b"../secret", tmp_path)
