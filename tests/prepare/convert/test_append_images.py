"""convert --append: ids, labels and files of appended images; readers see all of an append or nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import ledger, one_line, picstore_command, picstore_json, tree
from engine_tasks import InlineEngine
from samples import jpeg

import picstore
from picstore.errors import PicstoreError, Unfinished, UsageError
from picstore.prepare.convert import append_images as append_module
from picstore.prepare.convert import conversion_job as convert_module
from picstore.prepare.convert import resumable_job
from picstore.prepare.convert.append_images import append
from picstore.prepare.convert.conversion_job import ConvertOptions, convert
from picstore.prepare.convert.row_division import DatasetShape
from picstore.prepare.engine.worker_processes import Engine
from picstore.prepare.image.encode_settings import EncodeSettings
from picstore.prepare.sources.open import open_source
from picstore.prepare.upkeep.shuffled_copy import shuffle
from picstore.prepare.upkeep.verify_dataset import verify
from picstore.storage.location.resolve import locate

SHAPE = DatasetShape(streams=3, container_size=8 << 10, file_size=16 << 10)
INLINE = InlineEngine(1)


def folder(root: Path, classes: Sequence[str], count: int = 5, first: int = 0) -> Path:
    """A source of ``count`` small JPEGs a class."""
    for number, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        for k in range(count):
            (root / name / f"{k}.jpg").write_bytes(jpeg(first + 100 * number + k))
    return root


def run(
    work: Callable[..., Any], source: Path, destination: Path | str, *, workers: int | Engine = INLINE, **arguments: Any
) -> Any:
    options = ConvertOptions(encode=EncodeSettings(), shape=SHAPE, workers=workers)
    return work(open_source(source), destination, options, **arguments)


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Ten images of the classes ant and bee."""
    run(convert, folder(tmp_path / "first", ["ant", "bee"]), tmp_path / "dataset")
    return tmp_path / "dataset"


@pytest.fixture
def more(tmp_path: Path) -> Path:
    """Fifteen images of the classes ape, bee and cat."""
    return folder(tmp_path / "more", ["ape", "bee", "cat"], first=1000)


def named(dataset: picstore.Dataset) -> dict[int, str]:
    return {record.id: dataset.classes[record.label] for record in dataset}


def test_ids_go_on_and_labels_go_by_the_names_of_classes(dataset: Path, more: Path) -> None:
    before = tree(dataset)
    done = run(append, more, dataset)
    assert (done.tally.inputs, done.manifest.images) == (15, 25)
    after = tree(dataset)
    assert {name for name in before if after[name] != before[name]} == {
        "picstore.json",
        "picstore.copy.json",
        "ledger.jsonl",
    }
    appended = picstore.Dataset(dataset)
    assert appended.classes == ["ant", "bee", "ape", "cat"]
    expected = ["ant"] * 5 + ["bee"] * 5 + ["ape"] * 5 + ["bee"] * 5 + ["cat"] * 5
    assert named(appended) == dict(enumerate(expected))
    assert sorted(record.id for record in appended) == list(range(25))
    assert [appended[k].id for k in range(25)] == appended.ids.tolist()
    assert [line["id"] for line in ledger(dataset)] == list(range(25))
    assert not verify(dataset, decode=True, workers=1)[1]
    loader = picstore.Loader(dataset, batch_size=4, threads=1, isolate=False, drop_last=False)
    assert sorted(id_ for batch in loader for id_ in batch.ids.tolist()) == list(range(25))


def test_who_has_the_data_set_open_goes_on_with_what_was_opened(dataset: Path, more: Path) -> None:
    old = picstore.Dataset(dataset)
    loader = picstore.Loader(dataset, batch_size=5, threads=1, drop_last=False)
    run(append, more, dataset)
    assert sorted(record.id for record in old) == list(range(10))
    assert sorted(id_ for batch in loader for id_ in batch.ids.tolist()) == list(range(10))
    loader.close()
    assert len(picstore.Dataset(dataset, version=old.uuid)) == 10


def test_a_damaged_line_of_the_ledger_stays_and_stops_no_append(dataset: Path, more: Path) -> None:
    path = dataset / "ledger.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    lines[3] = bytes([lines[3][0], lines[3][1] ^ 0x80]) + lines[3][2:]
    path.write_bytes(b"".join(lines))
    run(append, more, dataset)
    after = path.read_bytes().splitlines(keepends=True)
    assert (after[:10], len(after)) == (lines, 25)
    assert len(list(picstore.Dataset(dataset))) == 25


@pytest.mark.slow
def test_an_append_killed_at_its_end_is_only_cleared_away_in_a_store_too(
    tmp_path: Path, dataset: Path, bucket: str, more: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(convert, tmp_path / "first", f"{bucket}/ds")
    with monkeypatch.context() as patch:
        patch.setattr(resumable_job, "remove_job", lambda _: None)  # as if it were killed
        uuid = run(append, more, f"{bucket}/ds").manifest.uuid
    done = run(append, more, f"{bucket}/ds", resume=True)
    assert (done.manifest.uuid, done.tally.inputs) == (uuid, 15)
    assert not (locate(bucket) / "ds/unfinished").is_folder()


def test_any_number_of_workers_and_interruptions_write_the_same_bytes(
    tmp_path: Path, dataset: Path, more: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    run(convert, tmp_path / "first", other)
    run(append, more, dataset, workers=2)
    whole = tree(other)
    with monkeypatch.context() as patch:
        patch.setattr(append_module, "publish_edit", lambda *_: (_ for _ in ()).throw(PicstoreError("power cut")))
        with pytest.raises(PicstoreError, match="power cut"):
            run(append, more, other)
    assert tree(other)["picstore.json"] == whole["picstore.json"]
    assert len(list(picstore.Dataset(other))) == 10
    with pytest.raises(Unfinished, match="continue it with --resume"):
        run(append, more, other)
    with pytest.raises(UsageError, match="was begun with inputs 15, now it is 10"):
        run(append, tmp_path / "first", other, resume=True)
    run(append, more, other, resume=True)
    assert tree(other) == tree(dataset)
    done = run(append, more, other, resume=True)  # and once more changes nothing
    assert (done.tally.inputs, tree(other)) == (15, tree(dataset))


def test_deletions_and_columns_stay_and_appending_goes_on_behind_their_ids(dataset: Path, more: Path) -> None:
    opened = picstore.Dataset(dataset)
    opened.without([9, 2]).with_columns({"age": np.arange(10)[np.isin(np.arange(10), [2, 9], invert=True)]}).save()
    run(append, more, dataset)
    appended = picstore.Dataset(dataset)
    assert sorted(appended.ids.tolist()) == [k for k in range(25) if k not in (2, 9)]
    assert all(("age" in record.columns) == (record.id < 10) for record in appended)
    run(append, more, dataset)
    assert sorted(picstore.Dataset(dataset).ids.tolist()) == [k for k in range(40) if k not in (2, 9)]
    assert not verify(dataset, workers=1)[1]


def test_the_files_of_an_append_that_was_given_up_are_in_nobodys_way(
    dataset: Path, more: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    with monkeypatch.context() as patch:
        patch.setattr(append_module, "publish_edit", lambda *_: (_ for _ in ()).throw(PicstoreError("power cut")))
        with pytest.raises(PicstoreError, match="power cut"):
            run(append, more, dataset)
    shutil.rmtree(dataset / "unfinished")
    done = run(append, folder(tmp_path / "one", ["bee"], count=1), dataset)
    assert done.manifest.images == 11
    assert sorted(picstore.Dataset(dataset).ids.tolist()) == list(range(11))
    assert [line["id"] for line in ledger(dataset)] == list(range(11))


@pytest.mark.parametrize(("verb", "lost"), [("convert", 0), ("append", 1)])
def test_files_lost_before_the_end_are_named_and_no_data_set_is_made(
    verb: str, lost: int, tmp_path: Path, dataset: Path, more: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, root = (append_module, dataset) if verb == "append" else (convert_module, tmp_path / "new")
    run_rows = convert_module.run_rows

    def run_and_lose(*arguments: Any) -> Any:
        written = run_rows(*arguments)
        (root / "0001" / f"{lost:06d}.pic").unlink()
        return written

    monkeypatch.setattr(convert_module, "run_rows", run_and_lose)
    before = picstore.Dataset(dataset).uuid
    with pytest.raises(PicstoreError, match=rf"files {lost:06d} of .* are missing; remove .* and {verb} again"):
        run(getattr(module, verb), more, root)
    assert picstore.Dataset(dataset).uuid == before
    assert not (tmp_path / "new" / "picstore.json").exists()


def test_the_command_takes_the_data_sets_settings_where_none_are_given(tmp_path: Path) -> None:
    first, more = folder(tmp_path / "first", ["ant"], 3), folder(tmp_path / "more", ["ant"], 2, first=50)
    shape = ("--streams", 2, "--container-size", "16KiB", "--file-size", "64KiB")
    picstore_command("convert", first, tmp_path / "out", "--resize", "16x16", "--quality", 70, *shape, "--seed", 5)
    said = picstore_json("convert", more, tmp_path / "out", "--append", "--quality", 80)
    assert (said["inputs"], said["images"]) == (2, 5)
    manifest = picstore.Dataset(tmp_path / "out").manifest
    assert (manifest.streams, manifest.container_size) == (2, 16 << 10)
    (appended,) = manifest.provenance["appended"]
    assert (appended["encode"]["quality"], appended["encode"]["resize"], appended["shape"]["seed"]) == (80, "16x16", 5)
    assert {(record.width, record.height) for record in picstore.Dataset(tmp_path / "out")} == {(16, 16)}
    error = one_line(picstore_command("convert", more, tmp_path / "none", "--append", code=1))
    assert "does not exist" in error


def test_sources_that_do_not_fit_are_refused_before_anything_is_written(dataset: Path, tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("first/ant/0.jpg 7\n")
    before = tree(dataset)
    with pytest.raises(UsageError, match="label 7 without a name"):
        run(append, tmp_path / "list.txt", dataset)
    (tmp_path / "plain.txt").write_text("first/ant/0.jpg 1\n")
    run(convert, tmp_path / "plain.txt", tmp_path / "plain")
    with pytest.raises(UsageError, match="names its classes and the dataset does not"):
        run(append, tmp_path / "first", tmp_path / "plain")
    assert tree(dataset) == before
    assert run(append, tmp_path / "plain.txt", dataset).manifest.classes == ("ant", "bee")


def test_a_number_that_is_the_name_of_another_class_is_not_appended(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(jpeg(0))
    for name, values in (("names", ["dog", "0"]), ("numbers", ["1", "1"])):
        (tmp_path / f"{name}.csv").write_text("path,label\n" + "".join(f"a.jpg,{value}\n" for value in values))
    assert run(convert, tmp_path / "names.csv", tmp_path / "set").manifest.classes == ("0", "dog")
    assert run(append, tmp_path / "numbers.csv", tmp_path / "set").manifest.classes == ("0", "dog")
    with picstore.Writer(tmp_path / "moved", classes=["dog", "0", "cells", "cells"]) as writer:
        writer.add(jpeg(0), label=0)
        with pytest.raises(UsageError, match="the name of several classes; give the number of one"):
            writer.add(jpeg(0), label="cells")
    (tmp_path / "numbers.csv").write_text("path,label\na.jpg,0\n")
    with pytest.raises(UsageError, match="label 0 is the name of a class and the number of another one, 'dog'"):
        run(append, tmp_path / "numbers.csv", tmp_path / "moved")


def test_classes_of_one_name_stay_apart_or_are_refused(tmp_path: Path) -> None:
    for name, classes in (("a", ["cells", "cells"]), ("b", ["cells", "cells", "dust"]), ("c", ["dust", "cells"])):
        with picstore.Writer(tmp_path / name, classes=classes) as writer:
            for label in range(len(classes)):
                writer.add(jpeg(label), label=label)
    both = picstore.Dataset(tmp_path / "a").concat(picstore.Dataset(tmp_path / "b"))
    assert both.classes == ["cells", "cells", "dust"]
    assert sorted(record.label for record in both) == [0, 0, 1, 1, 2]
    with pytest.raises(UsageError, match="two classes are called 'cells'"):
        picstore.Dataset(tmp_path / "a").concat(picstore.Dataset(tmp_path / "c"))


def test_box_labels_are_renumbered_with_the_classes() -> None:
    from picstore.prepare.sources.inputs import Input, relabel_input

    source = Input("a.jpg", 1, "a.jpg", extra=b'{"boxes":[[0,0,1,1],[0,0,2,2]],"box_labels":[1,-1]}', targets="own")
    moved = relabel_input(source, [5, 3])
    assert (moved.label, b'"box_labels":[3,-1]' in moved.extra) == (3, True)


def test_a_data_set_in_a_store_is_appended_to_with_the_same_bytes(
    dataset: Path, more: Path, tmp_path: Path, bucket: str
) -> None:
    shape = ("--streams", 3, "--container-size", "8KiB", "--file-size", "16KiB")
    picstore_command("convert", tmp_path / "first", f"{bucket}/dataset", *shape)
    picstore_command("convert", more, f"{bucket}/dataset", "--append")
    run(append, more, dataset)
    there = picstore.Dataset(f"{bucket}/dataset")
    assert there.uuid == picstore.Dataset(dataset).uuid
    assert sorted(there.ids.tolist()) == list(range(25))
    assert len(there[24].jpeg) > 0


def test_an_append_of_other_images_of_the_same_names_is_not_a_finished_one(
    dataset: Path, more: Path, tmp_path: Path
) -> None:
    run(append, more, dataset, resume=True)
    assert run(append, more, dataset, resume=True).manifest.images == 25
    other = folder(tmp_path / "other", ["ape", "bee", "cat"], first=5000)
    for path in other.glob("*/*.jpg"):
        path.write_bytes(jpeg(len(path.name) + 7, width=90))
    assert run(append, other, dataset, resume=True).manifest.images == 40


def test_an_append_that_a_shuffled_copy_has_is_finished_there_too(dataset: Path, more: Path, tmp_path: Path) -> None:
    """The copy names the appends of its source, and has its ledger; without that the append begins anew."""
    run(append, more, dataset)
    shuffle(dataset, tmp_path / "copy", seed=1, method="uniform", workers=INLINE)
    assert ledger(tmp_path / "copy") == ledger(dataset)
    assert run(append, more, tmp_path / "copy", resume=True).manifest.images == 25
    (tmp_path / "copy" / "ledger.jsonl").unlink()
    for _ in range(2):
        assert run(append, more, tmp_path / "copy", resume=True).manifest.images == 40
    assert verify(tmp_path / "copy", workers=INLINE).findings == []
