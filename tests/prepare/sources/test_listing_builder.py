"""Listing of parts of a source by tasks of the engine: the same inputs, damage, remarks and order as without."""

from __future__ import annotations

import io
import os
import signal
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_tasks import InlineEngine

from picstore.errors import NotADataset, PicstoreError
from picstore.prepare.engine.worker_processes import Died, LocalEngine
from picstore.prepare.sources import listing_builder, tables_and_lists
from picstore.prepare.sources.inputs import Listing, read_input
from picstore.prepare.sources.listing_builder import FoundPart, list_parts
from picstore.prepare.sources.open import open_source
from picstore.prepare.sources.samples import SourceSample

PARTS = 40


def write_tar(path: Path, names: list[str]) -> None:
    with tarfile.open(path, "w") as tar:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = 5
            tar.addfile(info, io.BytesIO(b"bytes"))


def write_tars(folder: Path) -> None:
    """Tars, of which one breaks off and one is no tar."""
    for number in range(PARTS):
        names = [f"{number}_{k}.{suffix}" for k in range(5) for suffix in ("jpg", "seg.png", "html", "cls")]
        write_tar(folder / f"n{number:08d}.tar", names)
    (folder / "n00000020.tar").write_bytes((folder / "n00000020.tar").read_bytes()[:5000])
    (folder / "n00000030.tar").write_bytes(b"no tar" * 1000)


def write_folders(folder: Path) -> None:
    """Class folders with texts, a folder in one, and a link that leads out."""
    for number in range(PARTS):
        inner = folder / f"class{number:02d}"
        inner.mkdir()
        for k in range(number % 5):
            (inner / f"{k}.jpg").write_bytes(b"bytes")
        (inner / f"{PARTS - number}.txt").write_text("a text")
    (folder / "class39" / "below").mkdir()
    (folder / "class39" / "below" / "a.png").write_bytes(b"bytes")
    (folder / "class20" / "link.jpg").symlink_to(Path(__file__))


@pytest.fixture(params=["imagenet", "webdataset", "folder"])
def source(tmp_path: Path, request: pytest.FixtureRequest) -> tuple[Path, str]:
    """A source of many parts, and its kind."""
    write_folders(tmp_path) if request.param == "folder" else write_tars(tmp_path)
    return tmp_path, request.param


class Counting(InlineEngine):
    """Counts the tasks that end, the last of which ends first."""

    tasks = 0

    def run(self, function: Any, tasks: Any, *, on_progress: Any = lambda _: None) -> Iterator[tuple[Any, Any]]:
        for task, result in reversed(list(super().run(function, tasks, on_progress=on_progress))):
            Counting.tasks += 1
            yield task, result


@pytest.fixture(autouse=True)
def no_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Counting, "tasks", 0)


def fields_of(listing: Listing) -> tuple[Any, ...]:
    return listing.kind, list(listing.inputs), listing.classes, listing.attachments, listing.remarks


def test_tasks_list_what_one_process_lists_in_any_order(
    source: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, kind = source
    alone = open_source(path, kind=kind)
    monkeypatch.setattr(listing_builder, "_MIN_SECONDS", 0)
    if kind == "folder":
        assert len(alone.remarks) == 2
    else:
        assert len([one for one in alone.inputs if one.problem]) >= 2
    assert fields_of(open_source(path, kind=kind, engine=Counting(4))) == fields_of(alone)
    assert Counting.tasks == (PARTS - 16) / 2
    assert fields_of(open_source(path, kind=kind, engine=LocalEngine(2))) == fields_of(alone)
    assert read_input(alone.inputs[0]) == b"bytes"


def test_little_to_list_and_one_process_make_no_tasks(
    source: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, kind = source
    alone = open_source(path, kind=kind)
    assert fields_of(open_source(path, kind=kind, engine=Counting(64))) == fields_of(alone)
    monkeypatch.setattr(listing_builder, "_MIN_SECONDS", 0)
    assert fields_of(open_source(path, kind=kind, engine=Counting(1))) == fields_of(alone)
    assert Counting.tasks == 0


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_csv_of_many_parts_lists_what_one_part_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    rows = [f"images/{k}é.jpg,{'dog' if k % 3 else ''},caption {k}" for k in range(500)]
    path = tmp_path / "train.csv"
    path.write_bytes(("\ufeff" + end.join(["path,label,caption", *rows])).encode())
    alone = open_source(path)
    assert len(alone.inputs) == 500 and alone.classes == ["dog"]
    monkeypatch.setattr(tables_and_lists, "_PART_BYTES", 300)
    monkeypatch.setattr(listing_builder, "_MIN_SECONDS", 0)
    assert fields_of(open_source(path)) == fields_of(alone)
    assert fields_of(open_source(path, engine=Counting(3))) == fields_of(alone)
    assert Counting.tasks > 1
    path.write_bytes(path.read_bytes() + f"{end}images/x.jpg,a,b,c{end}".encode())
    assert open_source(path, engine=Counting(3)).inputs[-1].problem == "line 502: 4 values; give 3, one a column"
    path.write_text("path,label" + "x" * 2_000)  # a line without an end
    with pytest.raises(NotADataset, match="holds no images"):
        open_source(path, engine=Counting(3))
    quoted = tmp_path / "quoted.csv"  # whose rows may have several lines
    quoted.write_text("path,caption\n" + "".join(f'{k}.jpg,"two\nlines"\n' for k in range(500)))
    monkeypatch.setattr(Counting, "tasks", 0)
    assert [one.extra for one in open_source(quoted, engine=Counting(3)).inputs] == [b'{"caption":"two\\nlines"}'] * 500
    assert Counting.tasks == 0


def list_number(number: int) -> FoundPart:
    label = f"class {number % 7}" if number % 3 else None
    return FoundPart([SourceSample(f"{number}-{k}", "file", label=label) for k in range(3)], {"odd": (number % 2, "")})


@pytest.mark.parametrize("workers", [1, 3])
def test_labels_of_tasks_are_numbered_by_the_names_of_all(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing_builder, "_MIN_SECONDS", 0)
    found = list_parts(list_number, range(50), Counting(workers))
    assert found.notes == {"odd": (25, "")}
    listing = found.build("numbers")
    assert listing.classes == [f"class {k}" for k in range(7)]
    assert [(one.name, one.label) for one in listing.inputs] == [
        (f"{number}-{k}", number % 7 if number % 3 else -1) for number in range(50) for k in range(3)
    ]
    assert (Counting.tasks > 0) == (workers > 1)


def die_at_forty(number: int) -> FoundPart:
    if number == 40:
        os.kill(os.getpid(), signal.SIGKILL)
    return list_number(number)


def test_a_task_whose_process_dies_twice_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing_builder, "_MIN_SECONDS", 0)
    with pytest.raises(PicstoreError, match="died twice: its process was ended by SIGKILL"):
        list_parts(die_at_forty, range(50), LocalEngine(2))


class DyingOnce(InlineEngine):
    """Loses the task that begins with the first part that is left to tasks, once."""

    died = False

    def run(self, function: Any, tasks: Any, *, on_progress: Any = lambda _: None) -> Iterator[tuple[Any, Any]]:
        if not DyingOnce.died:
            DyingOnce.died = True
            yield tasks.popleft(), Died(-9)
        yield from super().run(function, tasks, on_progress=on_progress)


def test_a_task_whose_process_died_is_run_again_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing_builder, "_MIN_SECONDS", 0)
    monkeypatch.setattr(DyingOnce, "died", False)
    names = [one.name for one in list_parts(list_number, range(50), DyingOnce(2)).build("numbers").inputs]
    assert DyingOnce.died
    assert names == [f"{number}-{k}" for number in range(50) for k in range(3)]
