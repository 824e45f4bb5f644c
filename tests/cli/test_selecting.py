"""Options that name some of a data set's images: ``--where`` and ``--split``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from commands import one_line, picstore_command, picstore_json, tree

import picstore

Make = Callable[..., Path]


def ids_in(path: Path) -> list[int]:
    return sorted(picstore.Dataset(path).ids.tolist())


def test_shuffle_copies_the_images_for_which_a_condition_holds(make_dataset: Make, tmp_path: Path) -> None:
    path = make_dataset()
    said = picstore_json("shuffle", path, tmp_path / "copy", "--where", "label = 3 AND id > 20", "--workers", 1)
    assert said["images"] == 6
    assert ids_in(tmp_path / "copy") == [23, 28, 33, 38, 43, 48]


def test_parts_of_a_split_are_those_of_the_python_function(make_dataset: Make, tmp_path: Path) -> None:
    path = make_dataset()
    split = ("--split", "0.6,0.2", "--split-seed", 4, "--split-by", "label", "--workers", 1)
    for part, wanted in enumerate(picstore.Dataset(path).split(0.6, 0.2, seed=4, by="label"), start=1):
        copy = tmp_path / str(part)
        picstore_command("shuffle", path, copy, *split, "--part", part)
        assert ids_in(copy) == sorted(wanted.ids.tolist())


def test_export_takes_a_part_of_what_a_condition_selects(make_dataset: Make, tmp_path: Path) -> None:
    path = make_dataset()
    options = ("--where", "label < 2", "--split", "0.5", "--part", 2)
    said = picstore_json("export", path, tmp_path / "out", "--format", "folder", *options)
    assert said["images"] == len(picstore.Dataset(path).where("label < 2").split(0.5)[1]) > 0


def test_info_says_when_a_copy_would_read_less(make_dataset: Make) -> None:
    path = make_dataset()
    facts = picstore_json("info", path, "--where", "id % 25 = 0")
    size = sum(int(row["size"]) for row in picstore.Dataset(path).rows)
    assert (facts["images"], facts["stored_images"]) == (2, 50)
    assert 0 < facts["copy_bytes"] < size / 20 < facts["read_bytes"] < size
    lines = picstore_command("info", path, "--where", "id % 25 = 0").stdout
    assert "2 of 50 images" in lines and "of a copy by picstore shuffle" in lines
    whole = picstore_json("info", path)
    assert whole["copy_bytes"] == whole["read_bytes"] == size
    assert "by picstore shuffle" not in picstore_command("info", path).stdout


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--where", "label ="), "is refused"),
        (("--where", "nothing = 1"), "columns are id, label"),
        (("--split", "0.5"), "belong together"),
        (("--part", "1"), "belong together"),
        (("--split", "0.5", "--part", "3"), "2 parts"),
        (("--split", "1.5", "--part", "1"), "fractions"),
        (("--split", "half", "--part", "1"), "list of numbers"),
        (("--split", "0.5", "--part", "1", "--split-by", "nothing"), "no column"),
    ],
)
def test_what_selects_nothing_is_refused_and_nothing_is_written(
    make_dataset: Make, tmp_path: Path, options: tuple[str, ...], reason: str
) -> None:
    path = make_dataset(10)
    before = tree(path)
    for command in (("shuffle", path, tmp_path / "out"), ("export", path, tmp_path / "out", "--format", "folder")):
        said = picstore_command(*command, *options, code=2)
        assert reason in said.stderr
    if "half" not in options:
        one_line(said)
    assert not (tmp_path / "out").exists()
    assert tree(path) == before
