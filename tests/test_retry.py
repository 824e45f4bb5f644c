"""What can be done about inputs that fail or are there twice, and what convert says in the end."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from commands import ledger, picstore_command, picstore_json, tree
from samples import jpeg

import picstore
from picstore.errors import Unfinished, UsageError
from picstore.prepare import retry
from picstore.prepare.convert import convert
from picstore.prepare.dedupe import mark_duplicates
from picstore.prepare.job import Shape
from picstore.prepare.merge import Converted
from picstore.prepare.retry import retry_failed
from picstore.prepare.settings import EncodeSettings
from picstore.prepare.source import open_source

SHAPE = Shape(streams=2, file_size=16 << 10, container_size=8 << 10)
OPTIONS = ("--streams", 2, "--file-size", "16KiB", "--container-size", "8KiB")
COUNT = 100


def converted(source: Path, out: Path, *, how: object = convert, workers: int = 2, dedupe: bool = False) -> Converted:
    """A conversion in this process."""
    listing = open_source(source)
    if dedupe:
        listing = mark_duplicates(listing, workers=workers)
    return how(listing, out, encode=EncodeSettings(), shape=SHAPE, workers=workers)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder of images, all different and all sound."""
    folder = tmp_path / "source"
    folder.mkdir()
    for number in range(COUNT):
        (folder / f"{number:03d}.jpg").write_bytes(jpeg(number, width=80, height=60))
    return folder


def break_some(source: Path, numbers: tuple[int, ...]) -> None:
    for number in numbers:
        (source / f"{number:03d}.jpg").write_bytes(b"damaged")


def mend(source: Path, numbers: tuple[int, ...]) -> None:
    for number in numbers:
        (source / f"{number:03d}.jpg").write_bytes(jpeg(number, width=80, height=60))


# 0 and 99 are of the first and the last row; 30 and 33 of one row.
@pytest.mark.parametrize("broken", [(0, 30, 33, 99), tuple(range(75, 100))])
def test_after_a_retry_it_is_as_if_all_had_been_sound_from_the_start(
    source: Path, tmp_path: Path, broken: tuple[int, ...]
) -> None:
    converted(source, tmp_path / "sound")
    break_some(source, broken)
    out = tmp_path / "train"
    assert converted(source, out).tally.failed == len(broken)
    mend(source, broken)
    if len(broken) == 4:
        result = picstore_json("convert", source, out, *OPTIONS, "--retry-failed")
        assert (result["images"], result["status"]) == (COUNT, {"lossless": COUNT})
    else:  # the last row had no files
        converted(source, out, how=retry_failed)
    assert tree(out) == tree(tmp_path / "sound")


def test_a_retry_makes_anew_only_rows_in_which_something_became_sound(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "train"
    break_some(source, (10, 60))
    converted(source, out)
    before = {path: path.stat().st_ino for path in out.rglob("*.pic")}
    again = converted(source, out, how=retry_failed)  # nothing became sound: nothing is written
    assert again.tally.failed == 2
    assert {path: path.stat().st_ino for path in out.rglob("*") if path in before} == before
    mend(source, (60,))
    (source / "061.jpg").unlink()  # of that row, and only its reason is told
    (source / "061.jpg").write_bytes(b"")
    (source / "005.jpg").write_bytes(b"")  # of another row, which nobody reads
    again = converted(source, out, how=retry_failed)
    assert {line["id"] for line in ledger(out) if line["status"] == "failed"} == {10, 61}
    changed = {path for path in before if path.stat().st_ino != before[path]}
    assert len({path.name for path in changed}) == 1
    assert again.manifest == picstore.Dataset(out).manifest
    picstore_command("verify", out)


def test_a_retry_that_is_interrupted_is_an_unfinished_conversion(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    converted(source, tmp_path / "sound")
    break_some(source, (40,))
    out = tmp_path / "train"
    converted(source, out)
    mend(source, (40,))

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(retry, "convert", interrupt)
        converted(source, out, how=retry_failed)
    with pytest.raises(Unfinished, match="--resume"):
        picstore.Dataset(out)
    converted(source, out, how=retry_failed)
    assert tree(out) == tree(tmp_path / "sound")


def test_a_retry_takes_the_same_source_and_settings_and_no_shuffled_data_set(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "train"
    break_some(source, (40,))
    converted(source, out)
    picstore_command("shuffle", out, tmp_path / "shuffled")
    with pytest.raises(UsageError, match="is shuffled"):
        converted(source, tmp_path / "shuffled", how=retry_failed)
    (source / "101.jpg").write_bytes(jpeg(101))
    with pytest.raises(UsageError, match="of other inputs or with other settings"):
        converted(source, out, how=retry_failed)


def test_of_inputs_with_equal_bytes_the_first_is_kept_whatever_the_workers(source: Path, tmp_path: Path) -> None:
    for copy, first in (("050", "007"), ("090", "007"), ("020", "019"), ("071", "070")):
        shutil.copy(source / f"{first}.jpg", source / f"{copy}.jpg")
    break_some(source, (70, 71))  # equal, and not images
    almost = bytearray((source / "019.jpg").read_bytes())
    almost[200] ^= 1  # equal in size and end
    (source / "021.jpg").write_bytes(almost)
    result = picstore_json("convert", source, tmp_path / "a", *OPTIONS, "--dedupe", "--workers", 1, "--max-errors", 2)
    assert result["outcome"]["duplicate"] == 4
    assert result["images"] == len(picstore.Dataset(tmp_path / "a")) == COUNT - 5
    told = {line["id"]: line["of"] for line in ledger(tmp_path / "a") if line["status"] == "duplicate"}
    assert told == {50: 7, 90: 7, 20: 19, 71: 70}
    assert all("of" not in line for line in ledger(tmp_path / "a") if line["id"] not in told)
    converted(source, tmp_path / "b", workers=3, dedupe=True)
    assert tree(tmp_path / "b") == tree(tmp_path / "a")
    assert "4 duplicate" in picstore_command("info", tmp_path / "a").stdout


def test_a_retry_knows_what_has_become_a_duplicate(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "train"
    break_some(source, (5,))
    converted(source, out, dedupe=True)
    shutil.copy(source / "095.jpg", source / "005.jpg")
    converted(source, out, how=retry_failed, dedupe=True)
    assert {line["id"]: line["of"] for line in ledger(out) if line["status"] == "duplicate"} == {95: 5}
    converted(source, tmp_path / "fresh", dedupe=True)
    assert tree(out) == tree(tmp_path / "fresh")


def test_convert_says_how_long_its_stages_took(source: Path, tmp_path: Path) -> None:
    result = picstore_json("convert", source, tmp_path / "train", *OPTIONS, "--dedupe")
    assert list(result["stages"]) == ["listing", "dedupe", "sampling", "rows", "finishing"]
    assert sum(result["stages"].values()) <= result["seconds"] + 0.01
