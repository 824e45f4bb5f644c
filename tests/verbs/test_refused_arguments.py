"""Arguments that are refused: impossible paths, URLs where a local path is needed, and what has no effect."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from samples import picture

import picstore
from picstore.errors import PicstoreError, UsageError

IMPOSSIBLE = {"long name": "x" * 300, "long path": "a/" * 3000 + "b", "zero byte": "a\0b", "half a pair": "a\ud800b"}
Make = Callable[..., Path]


def open_mux(folder: Path, table: str) -> picstore.DataMux:
    file = folder / "mux.toml"
    file.write_text(f"[[source]]\nbase = 0\ncount = 1\n{table}")
    return picstore.DataMux(file)


# What takes a path, by name: functions of the path, of an existing dataset, and of a folder for what is written.
DOORS: dict[str, Callable[[str, Path, Path], Any]] = {
    "Dataset": lambda bad, dataset, _: picstore.Dataset(bad),
    "Loader": lambda bad, dataset, _: picstore.Loader(bad, batch_size=2),
    "DataMux": lambda bad, dataset, _: picstore.DataMux(bad),
    "a mux's TOML": lambda bad, dataset, folder: open_mux(folder, f"path = {json.dumps(bad)}"),
    "cache": lambda bad, dataset, _: picstore.Loader(dataset, batch_size=2, cache=bad),
    "convert": lambda bad, dataset, folder: picstore.convert(bad, folder / "out"),
    "convert's out": lambda bad, dataset, folder: picstore.convert(folder, bad),
    "convert's classes": lambda bad, dataset, folder: picstore.convert(folder, folder.parent / "out", classes=bad),
    "convert's annotations": lambda bad, dataset, folder: picstore.convert(folder, dataset / "out", annotations=bad),
    "index": lambda bad, dataset, folder: picstore.index(bad, folder / "out"),
    "append's out": lambda bad, dataset, folder: picstore.append(folder, bad),
    "measure_quality": lambda bad, dataset, _: picstore.measure_quality(bad),
    "audit": lambda bad, dataset, _: picstore.audit(bad, dataset),
    "audit's dataset": lambda bad, dataset, _: picstore.audit({"datasets": []}, bad),
    "delete's ids": lambda bad, dataset, _: picstore.delete(dataset, bad),
    "info": lambda bad, dataset, _: picstore.info(bad),
    "verify": lambda bad, dataset, _: picstore.verify(bad),
    "merge": lambda bad, dataset, _: picstore.merge(bad),
    "repair": lambda bad, dataset, _: picstore.repair(bad),
    "shuffle": lambda bad, dataset, folder: picstore.shuffle(bad, folder / "out"),
    "shuffle's out": lambda bad, dataset, folder: picstore.shuffle(dataset, bad),
    "export": lambda bad, dataset, folder: picstore.export(bad, folder / "out", format="folder"),
    "export's out": lambda bad, dataset, folder: picstore.export(dataset, bad, format="folder"),
    "compare's other": lambda bad, dataset, _: picstore.compare(dataset, bad),
    "view's inputs": lambda bad, dataset, _: picstore.view(dataset, inputs=bad).close(),
    "map": lambda bad, dataset, _: picstore.map(bad, len, column="n"),
}
LOCAL = ("DataMux", "cache", "audit", "delete's ids", "export's out", "view's inputs")  # no store holds such a file


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which is the working directory."""
    path = tmp_path / "folder"
    path.mkdir()
    monkeypatch.chdir(path)
    return path


@pytest.mark.parametrize("bad", IMPOSSIBLE.values(), ids=list(IMPOSSIBLE))
@pytest.mark.parametrize("door", DOORS)
def test_an_impossible_path_is_refused_by_a_message(make_dataset: Make, folder: Path, door: str, bad: str) -> None:
    dataset = make_dataset(8)
    with pytest.raises(PicstoreError):
        DOORS[door](bad, dataset, folder)
    assert {path.name for path in folder.iterdir()} <= {"mux.toml"}


@pytest.mark.parametrize("url", ["s3://bucket/x", "https://host.invalid/x", "hf://datasets/a/b", "ftp://host/x"])
@pytest.mark.parametrize("door", LOCAL)
def test_a_url_in_place_of_a_local_path_makes_no_folder_of_its_name(
    make_dataset: Make, folder: Path, door: str, url: str
) -> None:
    dataset = make_dataset(8)
    for given in (url, Path(url)) if url[0] != "f" else (url,):  # pathlib makes one slash of two
        with pytest.raises(UsageError, match="is a URL"):
            DOORS[door](given, dataset, folder)  # type: ignore[arg-type]
    assert not list(folder.iterdir())


def test_a_folder_that_may_not_be_read_is_an_error_of_picstore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "stat", refuse)
    with pytest.raises(PicstoreError, match="cannot be read: Permission denied"):
        picstore.Dataset(tmp_path)


def test_a_cache_is_not_given_beside_open_datasets(make_dataset: Make, tmp_path: Path) -> None:
    opened = picstore.Dataset(make_dataset(8))
    with pytest.raises(UsageError, match="has a cache of its own"):
        picstore.DataMux([(opened, 0, 1)], cache=tmp_path)


def test_the_ids_of_duplicates_have_a_possible_file_before_images_are_read(make_dataset: Make) -> None:
    with pytest.raises(UsageError, match="character that no path can have"):
        picstore.dupes(make_dataset(8), ids="a\0b")


# Arguments that mean nothing without another argument, and part of the message that refuses them.
ALONE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "root": (lambda path: picstore.info(picstore.Dataset(path), root=path), "has a root of its own"),
    "other_root of dupes": (lambda path: picstore.dupes(path, other_root=path), "give other too"),
    "other_root of view": (lambda path: picstore.view(path, other_root=path), "give other too"),
    "split_by": (lambda path: picstore.info(path, split_by="label"), "belong to a split"),
    "split_seed": (lambda path: picstore.view(path, split_seed=1), "belong to a split"),
    "cache_limit": (lambda path: picstore.Loader(path, batch_size=2, cache_limit="1GiB"), "give cache too"),
    "cache_limit of a mux of open datasets": (
        lambda path: picstore.DataMux([(picstore.Dataset(path), 0, 1)], cache_limit="1GiB"),
        "has a cache of its own",
    ),
    "cache_limit of an open dataset": (
        lambda path: picstore.Loader(picstore.Dataset(path), batch_size=2, cache_limit="1GiB"),
        "has a cache of its own",
    ),
}


@pytest.mark.parametrize("name", ALONE)
def test_an_argument_that_would_have_no_effect_is_refused(make_dataset: Make, name: str) -> None:
    call, message = ALONE[name]
    with pytest.raises(UsageError, match=message):
        call(make_dataset(8))


# Calls with an argument of a wrong type, by what is wrong.
untyped: Any = picstore
WRONG_TYPES: dict[str, Callable[[Path, Path], Any]] = {
    "classes of a Writer": lambda dataset, folder: untyped.Writer(folder / "out", classes="ab"),
    "attachments of a Writer": lambda dataset, folder: untyped.Writer(folder / "out", attachments="mask"),
    "maps of a Writer": lambda dataset, folder: untyped.Writer(folder / "out", maps=3),
    "a label that is a fraction": lambda dataset, folder: untyped.Writer(folder / "out").add(picture(0), label=1.5),
    "a label None": lambda dataset, folder: untyped.Writer(folder / "out").add(picture(0), label=None),
    "classes beside columns": lambda dataset, folder: untyped.Dataset(dataset).with_columns({}, classes="ab"),
    "columns": lambda dataset, folder: untyped.Dataset(dataset).with_columns(3),
    "a column": lambda dataset, folder: untyped.Dataset(dataset).with_columns({"a": 3}),
    "ids of a column": lambda dataset, folder: untyped.Dataset(dataset).with_columns({"a": [1]}, ids=[1.5]),
    "a condition": lambda dataset, folder: untyped.Dataset(dataset).where(3),
    "a dataset to join": lambda dataset, folder: untyped.Dataset(dataset).concat(str(dataset)),
    "a schedule": lambda dataset, folder: untyped.DataMux([(untyped.Dataset(dataset), 0, 1)], schedule=5),
    "progress": lambda dataset, folder: untyped.verify(dataset, progress=3),
    "a path": lambda dataset, folder: untyped.export(dataset, 3, format="folder"),
    "a state": lambda dataset, folder: untyped.audit(3, dataset),
    "images to cut": lambda dataset, folder: untyped.patchify([5], 16),
    "a patch": lambda dataset, folder: untyped.patchify([], 0),
    "a folder for a file of ids": lambda dataset, folder: untyped.dupes(dataset, ids=folder),
    "a folder for a Croissant file": lambda dataset, folder: untyped.info(dataset, croissant=folder),
}


@pytest.mark.parametrize("name", WRONG_TYPES)
def test_an_argument_of_a_wrong_type_is_refused_by_a_message(make_dataset: Make, folder: Path, name: str) -> None:
    dataset = make_dataset(6)
    with pytest.raises(UsageError, match=r"; give|takes|needs"):
        WRONG_TYPES[name](dataset, folder)
