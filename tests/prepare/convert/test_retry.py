"""convert --retry-failed and --dedupe, and the stages that convert reports."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from commands import ledger, picstore_command, picstore_json, tree
from engine_tasks import InlineEngine
from grids import slow_except
from samples import jpeg

import picstore
from picstore.errors import Corrupt, Unfinished, UsageError
from picstore.prepare.convert import resumable_job, retry
from picstore.prepare.convert.conversion_job import ConvertOptions, convert
from picstore.prepare.convert.finish_dataset import ConversionResult
from picstore.prepare.convert.retry import retry_failed
from picstore.prepare.convert.row_division import DatasetShape, row_slice
from picstore.prepare.engine.worker_processes import Engine
from picstore.prepare.image.encode_settings import EncodeSettings
from picstore.prepare.sources.dedupe import mark_duplicates
from picstore.prepare.sources.inputs import Input, Listing
from picstore.prepare.sources.open import open_source
from picstore.storage.location.resolve import locate

SHAPE = DatasetShape(streams=2, file_size=16 << 10, container_size=8 << 10)
OPTIONS = ("--streams", 2, "--file-size", "16KiB", "--container-size", "8KiB")
COUNT = 100
INLINE = InlineEngine(1)


def converted(
    source: Path, out: Path, *, how: object = convert, workers: int | Engine = INLINE, dedupe: bool = False
) -> ConversionResult:
    """Convert in this process, without the command line."""
    listing = open_source(source)
    if dedupe:
        listing = mark_duplicates(listing, workers=2)
    return how(listing, out, ConvertOptions(encode=EncodeSettings(), shape=SHAPE, workers=workers))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder of images, all different and all readable."""
    folder = tmp_path / "source"
    folder.mkdir()
    for number in range(COUNT):
        (folder / f"{number:03d}.jpg").write_bytes(jpeg(number, width=80, height=60))
    return folder


def resumed(listing: Listing, out: Path, options: ConvertOptions) -> ConversionResult:
    return convert(listing, out, options, resume=True)


def break_some(source: Path, numbers: tuple[int, ...]) -> None:
    for number in numbers:
        (source / f"{number:03d}.jpg").write_bytes(b"damaged")


def restore(source: Path, numbers: tuple[int, ...]) -> None:
    for number in numbers:
        (source / f"{number:03d}.jpg").write_bytes(jpeg(number, width=80, height=60))


# 0 and 99 are of the first and the last row; 30 and 33 of one row.
@pytest.mark.parametrize("broken", [(0, 30, 33, 99), tuple(range(75, 100))])
def test_a_retry_gives_the_bytes_of_a_conversion_without_failures(
    source: Path, tmp_path: Path, broken: tuple[int, ...]
) -> None:
    converted(source, tmp_path / "expected")
    break_some(source, broken)
    out = tmp_path / "train"
    assert converted(source, out).tally.failed == len(broken)
    restore(source, broken)
    if len(broken) == 4:
        result = picstore_json("convert", source, out, *OPTIONS, "--retry-failed")
        assert (result["images"], result["status"]) == (COUNT, {"lossless": COUNT})
    else:  # the last row had no files
        converted(source, out, how=retry_failed)
    assert tree(out) == tree(tmp_path / "expected")


def test_a_retry_rewrites_only_rows_with_an_input_that_became_readable(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "train"
    break_some(source, (10, 60))
    converted(source, out)
    before = {path: path.stat().st_ino for path in out.rglob("*.pic")}
    again = converted(source, out, how=retry_failed)  # nothing became readable: nothing is written
    assert again.tally.failed == 2
    assert {path: path.stat().st_ino for path in out.rglob("*") if path in before} == before
    restore(source, (60,))
    again = converted(source, out, how=retry_failed)
    assert {line["id"] for line in ledger(out) if line["status"] == "failed"} == {10}
    changed = {path for path in before if path.stat().st_ino != before[path]}
    assert len({path.name for path in changed}) == 1
    assert again.manifest == picstore.Dataset(out).manifest
    picstore_command("verify", out)


def empty_all_but(source: Path, numbers: tuple[int, ...]) -> None:
    """Leave of the source only some inputs that can be read; the names of all stay."""
    for number in set(range(COUNT)).difference(numbers):
        (source / f"{number:03d}.jpg").write_bytes(b"")


def test_a_retry_reads_only_what_failed_from_the_source(source: Path, tmp_path: Path) -> None:
    for dedupe in (False, True):
        out, expected = tmp_path / f"train-{dedupe}", tmp_path / f"expected-{dedupe}"
        restore(source, tuple(range(COUNT)))
        shutil.copy(source / "029.jpg", source / "031.jpg")
        converted(source, expected, dedupe=dedupe)
        break_some(source, (0, 30, 33, 99))
        converted(source, out, dedupe=dedupe)
        restore(source, (0, 30, 99))
        empty_all_but(source, (0, 30, 99))
        again = converted(source, out, how=retry_failed, dedupe=dedupe)
        assert [line["id"] for line in ledger(out) if line["status"] == "failed"] == [33]
        assert again.tally.failed == 1
        restore(source, (33,))
        converted(source, out, how=retry_failed, dedupe=dedupe)
        assert tree(out) == tree(expected)


def test_a_record_keeps_its_label_extra_and_attachments(source: Path, tmp_path: Path) -> None:
    inputs = [
        replace(
            given,
            label=number % 3,
            extra=b'{"number": %d}' % number,
            attachments=(("mask", Input("mask", -1, str(source / f"{number:03d}.jpg"))),) if number % 4 else (),
        )
        for number, given in enumerate(open_source(source).inputs)
    ]
    listing = Listing("list", inputs, ["a", "b", "c"], ("mask", "depth"))
    options = ConvertOptions(encode=EncodeSettings(), shape=SHAPE, workers=INLINE)
    convert(listing, tmp_path / "expected", options)
    break_some(source, (50,))
    convert(listing, tmp_path / "train", options)
    restore(source, (50,))
    empty_all_but(source, (50,))
    retry_failed(listing, tmp_path / "train", options)
    assert tree(tmp_path / "train") == tree(tmp_path / "expected")


@pytest.mark.parametrize(
    "part",
    slow_except(
        ["an image", "the footer", "another file"],
        ["an image", "the segments", "the extras", "the footer", "a file", "another file"],
    ),
)
def test_where_a_stored_file_is_damaged_the_source_is_read(source: Path, tmp_path: Path, part: str) -> None:
    """And nothing else of it; the segments of an image can be found in the image."""
    converted(source, tmp_path / "expected")
    break_some(source, (40,))
    out = tmp_path / "train"
    converted(source, out)
    opened = picstore.Dataset(out)
    row = next(number for number in range(len(opened.rows)) if 41 in opened.entries(number)["id"])
    ref, container = opened.containers.container_ref(row), opened.containers.read(row)
    file = out / ref.name
    data = bytearray(file.read_bytes())
    lost = {int(id_) for id_ in container.index["id"]}
    tables = ref.offset + 64 + container.index.nbytes
    if part == "an image":
        data[ref.offset + int(container.index["offset"][0]) + 300] ^= 1
        lost = {int(container.index["id"][0])}
    elif part == "the segments":
        data[tables] ^= 1
        lost = set()
    elif part == "the extras":
        data[tables + container.segment_table.nbytes + 12] ^= 1
    elif part == "the footer":
        data = data[:-40]
        lost = set()
    file.write_bytes(data)
    if part in ("a file", "another file"):
        lost = {record.id for record in opened if record.id in ids_in(file)}
        file.unlink()
    if part == "another file":
        shutil.copy(next(path for path in sorted(out.rglob("*.pic")) if path != file), file)
    restore(source, (40,))
    empty_all_but(source, (40, *lost))
    converted(source, out, how=retry_failed)
    assert tree(out) == tree(tmp_path / "expected")


def ids_in(file: Path) -> set[int]:
    """The ids of the records of a file of a data set."""
    opened = picstore.Dataset(file.parents[1])
    refs = map(opened.containers.container_ref, range(len(opened.rows)))
    numbers = [number for number, ref in enumerate(refs) if opened.path / ref.name == locate(file)]
    return {int(id_) for number in numbers for id_ in opened.entries(number)["id"]}


@pytest.mark.parametrize(("by", "files_replaced"), [("retry", False), ("resume", True)])
def test_a_retry_that_is_interrupted_is_an_unfinished_conversion(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str, files_replaced: bool
) -> None:
    """And what was stored is not lost, so the source is not read again for it."""
    converted(source, tmp_path / "expected")
    break_some(source, (40,))
    out = tmp_path / "train"
    converted(source, out)
    restore(source, (40,))

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(retry, "convert", interrupt)
        converted(source, out, how=retry_failed)
    with pytest.raises(Unfinished, match="--resume"):
        picstore.Dataset(out)
    empty_all_but(source, (40,))
    if files_replaced:  # of the row some files are those of before and some are not
        row = next(path.name.split("-")[1] for path in (out / "unfinished").glob("kept-*"))
        for stream in ("0000", "0001"):
            (out / stream / f"{row}.pic").unlink()
        shutil.copy(tmp_path / "expected" / "0000" / f"{row}.pic", out / "0000")
    if by == "resume":
        picstore_command("convert", source, out, *OPTIONS, "--resume")
    else:
        converted(source, out, how=retry_failed)
    assert tree(out) == tree(tmp_path / "expected")


def test_a_retry_takes_the_same_source_and_settings_and_no_shuffled_copy(source: Path, tmp_path: Path) -> None:
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


def test_a_row_that_needs_fewer_files_than_before_leaves_none_behind(source: Path, tmp_path: Path) -> None:
    few = tmp_path / "few"
    few.mkdir()
    for number in range(2):
        shutil.copy(source / f"00{number}.jpg", few)
    (few / "000.jpg").write_bytes(b"damaged")
    out = tmp_path / "train"
    shutil.copy(source / "005.jpg", few / "002.jpg")
    converted(few, out, dedupe=True)
    assert len(list(out.rglob("*.pic"))) == 2
    shutil.copy(few / "001.jpg", few / "000.jpg")
    shutil.copy(few / "001.jpg", few / "002.jpg")  # which nobody reads
    converted(few, out, how=retry_failed, dedupe=True)
    assert {line["id"]: line.get("of") for line in ledger(out)} == {0: None, 1: 0, 2: 0}
    assert len(list(out.rglob("*.pic"))) == len(picstore.Dataset(out)) == 1


def test_an_edited_data_set_is_not_tried_again(source: Path, tmp_path: Path) -> None:
    """Its tombstones are numbers in stored order, which a retry changes."""
    break_some(source, (40,))
    converted(source, tmp_path / "train")
    edited = picstore.Dataset(tmp_path / "train").without([3]).save()
    restore(source, (40,))
    with pytest.raises(UsageError, match="was edited"):
        converted(source, tmp_path / "train", how=retry_failed)
    assert picstore.Dataset(tmp_path / "train").uuid == edited.uuid


def test_convert_says_how_long_its_stages_took(source: Path, tmp_path: Path) -> None:
    result = picstore_json("convert", source, tmp_path / "train", *OPTIONS, "--dedupe")
    assert " ".join(result["stages"]) == "starting listing dedupe kernels sampling rows finishing"
    assert sum(result["stages"].values()) <= result["seconds"] + 0.01


@pytest.mark.parametrize("bit", [0x01, 0x80], ids=["still JSON", "no text"])
def test_a_retry_refuses_a_damaged_ledger_and_changes_nothing(source: Path, tmp_path: Path, bit: int) -> None:
    break_some(source, (3,))
    out = tmp_path / "out"
    converted(source, out)
    path = out / "ledger.jsonl"
    raw = bytearray(path.read_bytes())
    raw[raw.index(b'"id": 17') + 6] ^= bit  # 17 becomes 07
    path.write_bytes(raw)
    before = tree(out)
    restore(source, (3,))
    with pytest.raises(Corrupt, match="line 18 is damaged; restore the file from a backup"):
        converted(source, out, how=retry_failed)
    assert tree(out) == before
    assert converted(source, out, how=resumed).tally.inputs == COUNT - 1


def test_a_row_with_a_damaged_part_of_the_ledger_is_converted_again(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    converted(source, out)
    whole = tree(out)
    job = {**picstore.Dataset(out).manifest.provenance}
    del job["outcome"]
    lines = (out / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    rows = max(entry.file for entry in picstore.Dataset(out).manifest.files) + 1
    job |= {"encode": picstore.Dataset(out).manifest.encode, "rows": rows}
    (out / "unfinished").mkdir()
    (out / "unfinished" / "job.json").write_text(json.dumps(job))
    for row in range(rows):
        text = b"".join(lines[k] for k in row_slice(COUNT, rows, row))
        (out / "unfinished" / f"row-{row:06d}.jsonl").write_bytes(
            text.replace(b"lossless", b"losslesS") if row == 1 else text
        )
    (out / "picstore.json").unlink()
    converted(source, out, how=resumed)
    assert tree(out) == whole


def test_resuming_a_finished_conversion_removes_what_a_killed_process_left(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    converted(source, out)
    whole = tree(out)
    (out / "picstore.json.0123abcd.partial").write_bytes(b"{")
    converted(source, out, how=resumed)
    assert tree(out) == whole


def test_a_retry_that_was_killed_at_its_end_leaves_nothing_once_repeated(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_some(source, (3,))
    out = tmp_path / "out"
    converted(source, out)
    restore(source, (3,))
    with monkeypatch.context() as patch:
        patch.setattr(resumable_job, "remove_job", lambda _: None)  # as if it were killed
        converted(source, out, how=retry_failed)
    assert (out / "unfinished" / "job.json").is_file()
    assert converted(source, out, how=retry_failed).tally.images == COUNT
    assert not (out / "unfinished").exists()
