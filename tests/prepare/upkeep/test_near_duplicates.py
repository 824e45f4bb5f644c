"""picstore dupes: groups of near-duplicates, and the images that two data sets share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from commands import picstore_command, picstore_json
from PIL import Image
from samples import picture

import picstore
from picstore.cli.print_result import print_result
from picstore.errors import UsageError
from picstore.prepare.upkeep import near_duplicates
from picstore.results import DupesResult, Duplicate, DuplicateGroup


def write(path: Path, numbers: Sequence[int]) -> Path:
    """A data set of pictures; a number that occurs again is a copy of another size and quality."""
    with picstore.Writer(path) as writer:
        for k, number in enumerate(numbers):
            copies = numbers[:k].count(number)
            image = Image.fromarray(picture(number, width=240, height=160))
            writer.add(image.resize((240 - 30 * copies, 160 - 20 * copies)), label=0)
    return path


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return write(tmp_path / "train", [0, 1, 2, 1, 3, 0, 1, 4])


def groups(result: dict) -> dict[int, list[int]]:
    return {group["id"]: [each["id"] for each in group["duplicates"]] for group in result["groups"]}


def test_copies_are_listed_with_the_first_of_them(dataset: Path) -> None:
    result = picstore_json("dupes", dataset)
    assert groups(result) == {0: [5], 1: [3, 6]}
    assert (result["images"], result["duplicates"], result["distance"], result["unreadable"]) == (8, 3, 6, 0)
    assert all(each["distance"] <= 6 for group in result["groups"] for each in group["duplicates"])


def test_deleting_the_listed_ids_leaves_one_image_of_each_group(dataset: Path, tmp_path: Path) -> None:
    done = picstore_command("dupes", dataset, "--ids", tmp_path / "ids")
    assert f"picstore delete {dataset} --ids {tmp_path / 'ids'}" in done.stdout
    picstore_command("delete", dataset, "--ids", tmp_path / "ids")
    assert sorted(picstore.Dataset(dataset).ids.tolist()) == [0, 1, 2, 4, 7]
    assert picstore_json("dupes", dataset)["groups"] == []


def test_images_that_are_in_another_data_set_are_listed_with_that_ones_ids(dataset: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "test", [9, 4, 1, 8])
    assert groups(picstore_json("dupes", dataset, other)) == {1: [7], 2: [1, 3, 6]}
    assert groups(picstore_json("dupes", other, dataset)) == {7: [1], 1: [2]}


def test_saved_hashes_are_taken_instead_of_reading_images(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = picstore_json("dupes", dataset, "--save")
    opened = picstore.Dataset(dataset)
    assert opened.columns == ("phash",)
    monkeypatch.setattr(near_duplicates, "perceptual_hash", None)  # would fail in this process
    hashed = [near_duplicates._hash_container(opened, number, lambda _: None) for number in range(len(opened.rows))]
    assert sum(len(each.ids) for each in hashed) == 8
    assert groups(picstore_json("dupes", dataset)) == groups(first)


def test_images_without_a_saved_hash_are_hashed(dataset: Path) -> None:
    opened = picstore.Dataset(dataset)
    opened.with_columns({"phash": [1 << 62]}, ids=[4]).save()
    assert groups(picstore_json("dupes", dataset)) == {0: [5], 1: [3, 6]}


def test_images_of_an_index_have_the_groups_that_they_have_once_converted(tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    for number in range(3):
        image, exif = Image.fromarray(picture(number, width=240, height=160)), Image.Exif()
        exif[0x112] = 6
        image.save(files / f"{number}a.jpg", progressive=True)
        image.rotate(90, expand=True).save(files / f"{number}b.jpg", exif=exif)
        image.convert("CMYK").save(files / f"{number}c.jpg")
        image.save(files / f"{number}d.png")
    picstore.index(files, tmp_path / "index")
    picstore.convert(files, tmp_path / "converted")
    results = [picstore.dupes(tmp_path / name) for name in ("index", "converted")]
    assert results[0].unreadable == 0
    assert sorted(len(group.duplicates) for group in results[1].groups) == [3, 3, 3]
    assert [len(group.duplicates) for group in results[0].groups] == [3, 3, 3]


def test_a_damaged_image_is_left_out_and_counted(dataset: Path) -> None:
    opened = picstore.Dataset(dataset)
    number = next(k for k in range(len(opened.rows)) if 3 in opened.entries(k)["id"])
    entry = next(each for each in opened.entries(number) if each["id"] == 3)
    ref = opened.containers.container_ref(number)
    file = dataset / ref.name
    data = bytearray(file.read_bytes())
    data[ref.offset + int(entry["offset"]) + 700] ^= 1
    file.write_bytes(data)
    result = picstore_json("dupes", dataset)
    assert (result["images"], result["unreadable"]) == (7, 1)
    assert groups(result) == {0: [5], 1: [6]}


def test_a_missing_file_leaves_out_its_images(dataset: Path) -> None:
    opened = picstore.Dataset(dataset)
    (dataset / opened.containers.container_ref(0).name).unlink()  # its only container
    assert picstore_json("dupes", dataset)["unreadable"] == int(opened.rows["records"][0])


def test_an_empty_data_set_has_no_duplicates(tmp_path: Path) -> None:
    assert picstore_json("dupes", write(tmp_path / "empty", []))["groups"] == []


def test_a_distance_out_of_range_is_a_usage_error(dataset: Path) -> None:
    assert "distance=12" in picstore_command("dupes", dataset, "--distance", 12, code=2).stderr
    empty = near_duplicates.hash_images(picstore.Dataset(dataset), workers=1)
    with pytest.raises(UsageError):
        near_duplicates.find_duplicates(empty, distance=64)


def test_long_lists_are_cut_short_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    groups = [DuplicateGroup(k, [Duplicate(100 + k, 0)] * 30) for k in range(25)]
    figures = {"distance": 6, "images": 900, "duplicates": 750, "unreadable": 0, "seconds": 1.0}
    print_result(DupesResult(dataset="d", other=None, groups=groups, ids=None, **figures), as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 23 and lines[0].endswith("and 10 more") and lines[20].startswith("… and 5 more groups")
