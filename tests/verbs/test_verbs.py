"""The verbs as functions: the command line's options, results and promises, without a subprocess."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest
from commands import picstore_json, tree
from samples import jpeg

import picstore
from picstore.errors import NotADataset, TooManyFailures, Unfinished, UsageError
from picstore.results import ProgressReport, Result


def photos(folder: Path, numbers: range) -> Path:
    for k in numbers:
        path = folder / ("cat", "dog")[k % 2] / f"{k:03d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(k))
    return folder


def without_times(result: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in result.items() if name not in ("seconds", "stages", "dataset", "out")}


def test_a_result_is_what_the_command_prints(tmp_path: Path) -> None:
    source, more = photos(tmp_path / "photos", range(8)), photos(tmp_path / "more", range(7, 10))
    a, b = tmp_path / "a", tmp_path / "b"
    converted = picstore.convert(source, a, streams=2, workers=1)
    appended = picstore.append(more, a, workers=1)
    verified = picstore.verify(a, workers=1)
    duplicates = picstore.dupes(a, workers=1)
    deleted = picstore.delete(a, [10])
    pairs: list[tuple[Result, tuple[Any, ...]]] = [
        (converted, ("convert", source, b, "--streams", 2, "--workers", 1)),
        (appended, ("convert", more, b, "--append", "--workers", 1)),
        (verified, ("verify", b, "--workers", 1)),
        (duplicates, ("dupes", b, "--workers", 1)),
        (deleted, ("delete", b, "--id", 10)),
        (picstore.info(a), ("info", b)),
        (picstore.repair(a), ("repair", b)),
        (picstore.shuffle(a, tmp_path / "c", seed=3, workers=1), ("shuffle", b, tmp_path / "d", "--seed", 3)),
        (picstore.index(source, tmp_path / "e", workers=1), ("index", source, tmp_path / "f", "--workers", 1)),
        (picstore.export(a, tmp_path / "g", format="folder"), ("export", b, tmp_path / "h", "--format", "folder")),
        (picstore.measure_quality(source, 2, workers=1), ("convert", source, "--measure", 2, "--workers", 1)),
    ]
    for result, command in pairs:
        assert without_times(result.to_json()) == without_times(picstore_json(*command)), command
    assert (converted.images, converted.classes, appended.inputs, appended.images) == (8, 2, 3, 11)
    assert verified.ok and [group.id for group in duplicates.groups] == [7] and deleted.images == 10
    with pytest.raises(FrozenInstanceError):
        converted.images = 9  # type: ignore[misc]
    for one, other in (("a", "b"), ("c", "d"), ("g", "h")):
        assert tree(tmp_path / one) == tree(tmp_path / other)


def test_shards_of_a_conversion_are_merged(tmp_path: Path) -> None:
    source = photos(tmp_path / "photos", range(8))
    for k in range(2):
        part = picstore.convert(source, tmp_path / f"{k}", shard=f"{k}/2", file_size=4096, streams=1, workers=1)
        assert part.uuid is None and part.bytes is None
    merged = picstore.merge(tmp_path / "train", [tmp_path / "0", tmp_path / "1"])
    assert merged.images == 8 and merged.uuid == picstore.Dataset(tmp_path / "train").uuid


def test_an_open_selection_is_shuffled_exported_and_told_of(tmp_path: Path) -> None:
    picstore.convert(photos(tmp_path / "photos", range(8)), tmp_path / "train", workers=1)
    chosen = picstore.Dataset(tmp_path / "train").select(ids=[1, 2, 3])
    assert picstore.info(chosen).images == 3
    assert picstore.shuffle(chosen, tmp_path / "three", workers=1).images == 3
    assert picstore.export(chosen, tmp_path / "out", format="folder").images == 3
    both = picstore.shuffle([tmp_path / "train", tmp_path / "three"], tmp_path / "both", workers=1)
    assert both.images == 11
    half = picstore.info(tmp_path / "train", split=0.5, part=1).images
    assert half + picstore.info(tmp_path / "train", split=(0.5, 0.5), part=2).images == 8


def test_a_callback_is_told_of_stages_and_of_all_that_is_done(tmp_path: Path) -> None:
    told: list[ProgressReport] = []
    picstore.convert(photos(tmp_path / "photos", range(8)), tmp_path / "train", workers=1, progress=told.append)
    stages = list(dict.fromkeys(report.stage for report in told))
    assert stages == ["starting", "listing", "kernels", "sampling", "rows", "finishing"]
    rows = [report for report in told if report.stage == "rows" and report.total is not None]
    assert (rows[0].done, rows[-1].done, rows[-1].total) == (0, 8, 8)
    assert {report.verb for report in told} == {"convert"}


def test_what_a_callback_raises_ends_the_verb_and_resume_goes_on(tmp_path: Path) -> None:
    source = photos(tmp_path / "photos", range(8))

    def stop(report: ProgressReport) -> None:
        if report.stage == "finishing":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        picstore.convert(source, tmp_path / "train", workers=1, progress=stop)
    with pytest.raises(Unfinished):
        picstore.Dataset(tmp_path / "train")
    assert picstore.convert(source, tmp_path / "train", workers=1, resume=True).images == 8
    picstore.convert(source, tmp_path / "whole", workers=1)
    assert tree(tmp_path / "train") == tree(tmp_path / "whole")


def test_too_many_failures_are_an_error_with_the_result(tmp_path: Path) -> None:
    source = photos(tmp_path / "photos", range(4))
    (source / "cat" / "bad.jpg").write_bytes(b"no image")
    with pytest.raises(TooManyFailures) as error:
        picstore.convert(source, tmp_path / "train", workers=1)
    assert error.value.result.status == {"lossless": 4, "failed": 1}
    assert picstore.convert(source, tmp_path / "again", workers=1, max_errors=1).images == 4


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda at: picstore.convert(at, at.parent / "x", max_errors="some"), "neither a number of inputs"),
        (lambda at: picstore.convert(at, at.parent / "x", background="blue"), "write ffffff"),
        (lambda at: picstore.convert(at, at.parent / "x", engine="spark"), "known are local, ray"),  # type: ignore[arg-type]
        (lambda at: picstore.convert(at, at.parent / "x", workers=0), "give at least 1"),
        (lambda at: picstore.convert(at, at.parent / "x", shard="0/2", retry_failed=True), "exclude each other"),
        (lambda at: picstore.convert(at, at.parent / "x", file_size="8 apples"), "is not a size"),
        (lambda at: picstore.delete(at, []), "nothing to delete"),
        (lambda at: picstore.shuffle([], at.parent / "x"), "names no dataset"),
        (lambda at: picstore.measure_quality(at, 0), "give at least 1"),
        (lambda at: picstore.warm(processes=0), "give at least 1"),
    ],
)
def test_wrong_arguments_say_what_to_write(tmp_path: Path, call: Callable[[Path], object], words: str) -> None:
    photos(tmp_path / "photos", range(2))
    with pytest.raises(UsageError, match=words):
        call(tmp_path / "photos")


SCRIPT = """
import sys, picstore
print("main module runs", flush=True)
try:
    result = picstore.convert(sys.argv[1], sys.argv[2], workers=2, reencode=True, resume=len(sys.argv) > 3,
        progress=lambda report: print(report.stage, flush=True))
    print("images", result.images)
except KeyboardInterrupt:
    print("interrupted")
"""


def processes_of(group: int) -> list[int]:
    """Processes of a process group."""
    stats = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            stats.append(path.read_text().rpartition(")")[2].split())
    return [int(fields[2]) for fields in stats if int(fields[2]) == group and fields[0] != "Z"]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks into /proc")
def test_a_script_without_main_guard_is_interrupted_and_resumed(tmp_path: Path) -> None:
    source = photos(tmp_path / "photos", range(300))
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "script.py"), str(source), str(tmp_path / "train")]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert running.stdout is not None
    for line in running.stdout:
        if line == "rows\n":
            break
    os.killpg(running.pid, signal.SIGINT)
    with running.stdout as stdout:
        said = stdout.read().splitlines()
    assert said[-1] == "interrupted" and running.wait() == 0
    until = time.monotonic() + 60
    while processes_of(running.pid) and time.monotonic() < until:
        time.sleep(0.05)
    assert processes_of(running.pid) == []
    with pytest.raises(NotADataset):
        picstore.Dataset(tmp_path / "train")
    done = subprocess.run([*command, "--resume"], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "images 300" and not done.stderr
    assert done.stdout.count("main module runs") == 1  # no process of the engine imports it


@pytest.mark.parametrize("ids", [[1.5], ["1"], [None], 7, [True, 2.0]])
def test_ids_that_are_no_integers_delete_nothing(make_dataset: Callable[..., Path], ids: Any) -> None:
    path = make_dataset(8)
    with pytest.raises(UsageError, match=r"ids is 7; give a list|is not an id; give integers"):
        picstore.delete(path, ids)
    with pytest.raises(UsageError, match="ids are an array"):
        picstore.Dataset(path).without(ids)
    assert len(picstore.Dataset(path)) == 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"resize": 256}, "size 256 is not understood; write shorter:256"),
        ({"quality": "90"}, "quality is '90'; give an integer from 1 to 100"),
        ({"quality": True}, "quality is True"),
        ({"background": 1}, "background is 1; give a color"),
        ({"reencode": 1}, "reencode is 1; give True or False"),
        ({"workers": "2"}, "workers='2'; give at least 1"),
        ({"shard": 1}, "shard 1 is not understood; write 0/4"),
        ({"image_timeout": "x"}, "image_timeout='x'; give 0 to"),
    ],
)
def test_settings_of_another_type_are_named_with_their_value(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_bytes(jpeg(1))
    with pytest.raises(UsageError, match=message):
        picstore.convert(tmp_path / "photos", tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()
