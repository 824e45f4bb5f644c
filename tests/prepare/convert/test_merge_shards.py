"""convert --shard and merge: shards of several machines give the bytes of one run."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import time
from functools import partial
from pathlib import Path

import pytest
from commands import PICSTORE, one_line, picstore_command, picstore_json, tree
from engine_tasks import InlineEngine
from samples import jpeg

import picstore
from picstore.errors import NotADataset, Unfinished, UsageError
from picstore.prepare.convert import merge_shards, resumable_job
from picstore.prepare.convert.conversion_job import ConvertOptions, convert
from picstore.prepare.convert.finish_dataset import ConversionResult
from picstore.prepare.convert.row_division import DatasetShape, Shard
from picstore.prepare.image.encode_settings import EncodeSettings
from picstore.prepare.sources.open import open_source
from picstore.storage.location.resolve import locate

SMALL = ("--streams", "2", "--file-size", "16KiB", "--container-size", "8KiB", "--max-errors", "2%")
SHAPE = DatasetShape(streams=2, file_size=16 << 10, container_size=8 << 10)
COUNT = 120
merge = partial(merge_shards.merge, workers=InlineEngine(1))


def convert_shard(
    source: Path, out: Path | str, shard: str, *, resume: bool = False, quality: int = 90
) -> ConversionResult:
    """Convert a shard in this process."""
    options = ConvertOptions(encode=EncodeSettings(quality=quality), shape=SHAPE, workers=InlineEngine(1))
    return convert(open_source(source), out, options, resume=resume, shard=Shard.parse(shard))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images of which one is damaged."""
    folder = tmp_path_factory.mktemp("source")
    for number in range(COUNT):
        path = folder / f"class{number % 3}" / f"{number:03d}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(jpeg(number % 20) if number != 50 else b"damaged")
    return folder


@pytest.fixture(scope="module")
def whole(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data set of one run."""
    out = tmp_path_factory.mktemp("whole") / "train"
    picstore_command("convert", source, out, *SMALL)
    assert len(list(out.glob("0000/*.pic"))) >= 4, "several rows are needed to show anything"
    return out


@pytest.fixture(scope="module")
def parts(source: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three shards, each in its own folder."""
    folder = tmp_path_factory.mktemp("parts")
    for index in range(3):
        convert_shard(source, folder / str(index), f"{index}/3")
    return [folder / str(index) for index in range(3)]


def test_shards_of_places_of_their_own_make_the_data_set_of_one_run(
    parts: list[Path], whole: Path, tmp_path: Path
) -> None:
    before = [tree(part) for part in parts]
    picstore_command("merge", tmp_path / "train", *parts, "--max-errors", 1)
    assert tree(tmp_path / "train") == tree(whole)
    assert [tree(part) for part in parts] == before
    again = picstore_json("merge", tmp_path / "train", *parts)  # says so again
    assert (again["uuid"], again["inputs"]) == (picstore.Dataset(whole).uuid, COUNT)
    assert tree(tmp_path / "train") == tree(whole)


@pytest.mark.slow
def test_shards_that_run_at_once_in_one_place_make_the_data_set_of_one_run(
    source: Path, whole: Path, tmp_path: Path
) -> None:
    out = tmp_path / "train"
    command = [*PICSTORE, "convert", str(source), str(out), *SMALL, "--workers", "1", "--json"]
    runs = [
        subprocess.Popen([*command, "--shard", f"{index}/2", "--max-errors", "1"], stdout=subprocess.PIPE, text=True)
        for index in range(2)
    ]
    results = [json.loads(run.communicate(timeout=120)[0]) for run in runs]
    assert sum(result["inputs"] for result in results) == COUNT
    assert all(0 < result["inputs"] < COUNT for result in results)
    with pytest.raises(picstore.NotADataset, match="unfinished"):
        picstore.Dataset(out)
    assert picstore_json("merge", out, "--max-errors", 0, code=3)["status"] == {"lossless": COUNT - 1, "failed": 1}
    assert tree(out) == tree(whole)
    assert "already a dataset" in one_line(picstore_command("merge", out, code=2))


def test_a_shard_that_was_killed_resumes_and_until_then_nothing_is_merged(
    source: Path, whole: Path, parts: list[Path], tmp_path: Path
) -> None:
    out = tmp_path / "train"
    command = [*PICSTORE, "convert", str(source), str(out), *SMALL, "--workers", "1", "--shard", "1/3"]
    process = subprocess.Popen(command, start_new_session=True)
    while not list(out.glob("unfinished/row-*.jsonl")):
        assert process.poll() is None
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    with pytest.raises(Unfinished, match="of the shards 1/3; convert these with --resume"):
        merge(out, [parts[0], parts[2]])
    assert not (out / "picstore.json").exists()
    with pytest.raises(Unfinished, match="continue it with --resume"):
        convert_shard(source, out, "1/3")
    convert_shard(source, out, "1/3", resume=True)
    merge(out)  # what the first attempt copied is there
    assert tree(out) == tree(whole)


def test_a_merge_that_copies_writes_the_same_bytes(
    parts: list[Path], whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    merge(tmp_path / "train", parts)
    assert tree(tmp_path / "train") == tree(whole)


def test_a_merge_that_was_killed_at_its_end_leaves_nothing_once_repeated(
    parts: list[Path], whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "train"
    with monkeypatch.context() as patch:
        patch.setattr(resumable_job, "remove_job", lambda _: None)  # as if it were killed
        merge(out, parts)
    assert (out / "unfinished").is_dir()
    assert merge(out, parts).tally.inputs == COUNT
    assert tree(out) == tree(whole)


def test_shards_in_a_store_make_the_data_set_of_one_run(
    source: Path, parts: list[Path], whole: Path, bucket: str
) -> None:
    picstore_command("convert", source, f"{bucket}/part", *SMALL, "--shard", "1/3", "--max-errors", 1)
    merge(f"{bucket}/train", [parts[0], f"{bucket}/part", parts[2]])
    root = locate(f"{bucket}/train")
    stored = {path: (root / path).read_all(1 << 30) for path, _ in root.files()}
    assert stored == {path: (whole / path).read_bytes() for path in tree(whole)}


def test_what_is_not_of_one_job_is_not_merged(source: Path, parts: list[Path], tmp_path: Path) -> None:
    other, half, both = tmp_path / "other", tmp_path / "half", tmp_path / "both"
    convert_shard(source, other, "1/3", quality=50)
    convert_shard(source, half, "1/2")
    out = tmp_path / "train"
    with pytest.raises(UsageError, match="different conversions: encode"):
        merge(out, [parts[0], other, parts[2]])
    assert not out.exists()
    with pytest.raises(UsageError, match="not of one conversion"):
        merge(out, [parts[0], half])
    with pytest.raises(Unfinished):
        merge(out, [parts[0]])
    with pytest.raises(UsageError, match="by 3 shards, not by 2"):
        merge(out, [half])
    for destination, sources in ((tmp_path / "nothing", []), (out, [tmp_path / "nothing"])):
        with pytest.raises(NotADataset, match="holds no shard"):
            merge(destination, sources)
    # Two shards that begin at once in one folder do not see each other.
    shutil.copytree(parts[0], both)
    shutil.copy(other / "unfinished" / "shard-1-of-3.json", both / "unfinished")
    with pytest.raises(UsageError, match="of different conversions"):
        merge(both)


def test_one_place_is_not_converted_with_and_without_shards(source: Path, parts: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "train"
    shutil.copytree(parts[0], out)
    message = one_line(picstore_command("convert", source, out, *SMALL, "--resume", code=2))
    assert f"picstore merge {out}" in message
    with pytest.raises(UsageError, match="by 3 shards, not by 4"):
        convert_shard(source, out, "1/4")
    begun = out / "unfinished" / "shard-0-of-3.json"
    begun.rename(out / "unfinished" / "job.json")
    with pytest.raises(UsageError, match="was begun without --shard"):
        convert_shard(source, out, "0/3", resume=True)


def test_a_shard_is_not_converted_twice_at_once(source: Path, parts: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "train"
    shutil.copytree(parts[0], out)
    with (out / "unfinished" / "shard-0-of-3.json").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        for run in (lambda: convert_shard(source, out, "0/3", resume=True), lambda: merge(out)):
            with pytest.raises(UsageError, match="written by another process"):
                run()


@pytest.mark.parametrize("text", ["4/4", "1/0", "-1/4", "1", "1/4/2", "a/b", "0/1000001"])
def test_a_shard_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"give 0/N to N-1/N|write 0/4"):
        Shard.parse(text)


def test_every_row_is_of_one_shard() -> None:
    for rows, count in ((10, 3), (2, 5), (256, 256)):
        dealt = [row for index in range(count) for row in Shard(index, count).rows(rows)]
        assert sorted(dealt) == list(range(rows))
