"""picstore.map: a column by a function of the images, compared with a plain loop over them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mapped_functions
import numpy as np
import pytest
import torch
from engine_tasks import InlineEngine
from grids import examples
from hypothesis import given
from hypothesis import strategies as st
from mapped_functions import Interrupted, Scorer, mean
from programs import Program

import picstore
from picstore.errors import TooManyFailures, Unfinished, UsageError
from picstore.prepare.convert.row_division import DatasetShape
from picstore.prepare.engine import worker_processes
from picstore.train import map_column

Make = Callable[..., Path]
SIZE = {"size": 24, "workers": 2}
COUNT = 60


def plain_loop(path: Path | picstore.Dataset, size: int = 24) -> dict[int, float]:
    """Each image's value, made one by one, by id."""
    dataset = path if isinstance(path, picstore.Dataset) else picstore.Dataset(path)
    images = picstore.MapDataset(dataset, transform=[picstore.Resize(size), picstore.CenterCrop(size)])
    return {id_: float(images[k][0].sum() / images[k][0].numel()) for k, id_ in enumerate(dataset.ids.tolist())}


def column(path: Path, name: str = "score") -> dict[int, Any]:
    held = picstore.Dataset(path).column(name)
    return dict(zip(*(each if isinstance(each, list) else each.tolist() for each in held.of(held.ids)), strict=True))


@pytest.fixture(scope="module")
def dataset(make_dataset_once: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of several containers that tests may map again and again."""
    made = make_dataset_once(COUNT, 5, DatasetShape(streams=3, container_size=16 << 10, file_size=64 << 10), 60, 40)
    return Path(shutil.copytree(made, tmp_path_factory.mktemp("mapped") / "dataset"))


@given(
    batch_size=st.integers(1, 70),
    failing=st.sets(st.integers(0, COUNT - 1), max_size=6),
    stops=st.lists(st.integers(1, 30), max_size=2),
    engine=st.sampled_from(["threads", "processes"]),
)
@examples(30)
def test_values_are_a_plain_loops_at_any_batch_size_failure_and_resume(
    dataset: Path, batch_size: int, failing: set[int], stops: list[int], engine: str
) -> None:
    """The tasks of processes run in this one; a test below has processes."""
    options: dict[str, Any] = {"column": "score", "batch_size": batch_size, "max_errors": COUNT, **SIZE}
    resume = False
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(worker_processes, "LocalEngine", InlineEngine)
        for stop in stops:
            with contextlib.suppress(Interrupted):
                picstore.map(dataset, Scorer(failing, stop), resume=resume, engine="threads", **options)
            resume = (dataset / "mapping/score").exists()
        result = picstore.map(dataset, Scorer(failing), resume=resume, engine=engine, **options)
    expected = {id_: value for id_, value in plain_loop(dataset).items() if id_ not in failing}
    assert column(dataset) == expected
    assert (result.images, result.values, result.failed) == (COUNT, COUNT - len(failing), len(failing))
    lines = [json.loads(line) for line in (dataset / "map-score.jsonl").read_text().splitlines()] if failing else []
    assert {line["id"]: line["reason"] for line in lines} == {k: f"ValueError: no value for {k}" for k in failing}
    assert failing or result.ledger is None
    assert not (dataset / "mapping/score").exists()


@pytest.mark.slow
def test_processes_give_the_values_of_threads(make_dataset: Make) -> None:
    path = make_dataset(COUNT)
    result = picstore.map(path, mean, column="score", batch_size=7, engine="processes", **SIZE)
    assert column(path) == plain_loop(path)
    assert result.values == COUNT


def test_after_sigkill_a_run_goes_on_where_it_stopped(
    make_dataset: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, calls, folder = make_dataset(COUNT), tmp_path / "calls", str(Path(__file__).parent)
    monkeypatch.setenv("MAPPED", str(calls))
    code = (
        f"import sys; sys.path.insert(0, {folder!r})\nimport picstore, mapped_functions\n"
        f"picstore.map({str(path)!r}, mapped_functions.die_at_call_8, column='score', size=24, batch_size=3)"
    )
    program = Program("-c", code, environment=dict(os.environ))
    program.communicate(120)
    assert program.returncode == -signal.SIGKILL
    parts, before = len(list((path / "mapping/score").glob("part-*"))), picstore.Dataset(path)
    assert parts >= 1 and before.columns == ()
    with pytest.raises(Unfinished, match="resume=True"):
        picstore.map(path, mapped_functions.die_at_call_8, column="score", batch_size=3, **SIZE)
    picstore.map(path, mapped_functions.die_at_call_8, column="score", batch_size=3, resume=True, **SIZE)
    assert column(path) == plain_loop(path)
    seen = [int(id_) for line in calls.read_text().splitlines() for id_ in line.split()]
    assert set(seen) == set(range(COUNT)) and len(seen) < COUNT + 24  # Only the part that was begun comes again.


def test_a_part_that_the_disk_damaged_is_made_anew(make_dataset: Make) -> None:
    path, scorer = make_dataset(COUNT), Scorer(end_at=12)
    with pytest.raises(Interrupted):
        picstore.map(path, scorer, column="score", batch_size=3, **SIZE)
    for part in (path / "mapping/score").glob("part-*"):
        raw = bytearray(part.read_bytes())
        raw[-20] ^= 1
        part.write_bytes(raw)
    again = Scorer()
    picstore.map(path, again, column="score", batch_size=3, resume=True, **SIZE)
    assert column(path) == plain_loop(path) and sum(map(len, again.seen)) == COUNT


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda batch: None, r"returned None for the batch of records \d+ to \d+; return a tensor"),
        (lambda batch: 0.5, "returned a float for the batch"),
        (lambda batch: batch.images.sum(), "returned a ndarray for the batch"),
        (lambda batch: [0.5] * (len(batch.ids) - 1), r"returned 9 values for the 10 images of the batch of records"),
        (lambda batch: [None if id_ == 17 else "text" for id_ in batch.ids.tolist()], "record 17 is None; return a"),
        (lambda batch: [float("nan") if id_ == 17 else 1 for id_ in batch.ids.tolist()], "(record|of) 17.* is float64"),
        (lambda batch: ["text" if id_ == 17 else 1.5 for id_ in batch.ids.tolist()], "17 is text|has text"),
        (lambda batch: [[1.0] * (1 + (id_ == 17)) for id_ in batch.ids.tolist()], r"17 is float64 of shape \(2,\)"),
        (lambda batch: [{"score": 1.0}] * len(batch.ids), r"is an array of object|is \{'score'"),
        (lambda batch: batch.images.flatten(1).sum(1) * 1j, "an array of complex"),
        (
            lambda batch: batch.labels if 17 in batch.ids else batch.labels.float(),
            "record [0-9]+ is (int64|float32), and",
        ),
    ],
)
def test_values_that_no_column_has_name_the_record_and_write_nothing(dataset: Path, function: Any, says: str) -> None:
    picstore.map(dataset, mean, column="score", **SIZE)
    before = picstore.Dataset(dataset).uuid
    with pytest.raises(UsageError, match=says):
        picstore.map(dataset, function, column="score", batch_size=10, **SIZE)
    assert picstore.Dataset(dataset).uuid == before
    shutil.rmtree(dataset / "mapping", ignore_errors=True)


@pytest.mark.parametrize(
    ("function", "expected", "form"),
    [
        (lambda batch: [f"Bild {id_} ä\0" for id_ in batch.ids.tolist()], lambda id_: f"Bild {id_} ä\0", "text"),
        (lambda batch: np.array([str(id_) for id_ in batch.ids.tolist()]), str, "text"),
        (lambda batch: [id_ % 2 == 0 for id_ in batch.ids.tolist()], lambda id_: int(id_ % 2 == 0), "int64"),
        (lambda batch: batch.ids % 2 == 0, lambda id_: int(id_ % 2 == 0), "int64"),
        (lambda batch: batch.ids.numpy().astype(np.uint8), int, "int64"),
        (lambda batch: batch.ids.bfloat16(), float, "float32"),
        (lambda batch: batch.ids.half().requires_grad_(), float, "float16"),
        (lambda batch: [float(id_) for id_ in batch.ids], float, "float64"),
        (lambda batch: torch.stack([batch.ids, -batch.ids], 1).float(), lambda k: [k, -k], "float32 of shape (2,)"),
        (lambda batch: [(int(k), 1) for k in batch.ids], lambda k: [k, 1], "int64 of shape (2,)"),
        (lambda batch: [each.float() for each in batch.ids], float, "float32"),
    ],
)
def test_numbers_texts_booleans_and_vectors_become_columns(
    dataset: Path, function: Any, expected: Any, form: str
) -> None:
    result = picstore.map(dataset, function, column="score", batch_size=9, **SIZE)
    assert column(dataset) == {id_: expected(id_) for id_ in range(COUNT)}
    assert (result.form, result.failed) == (form, 0)


def test_a_selection_gets_values_and_other_records_keep_theirs(make_dataset: Make) -> None:
    path = make_dataset(COUNT)
    picstore.Dataset(path).with_columns({"score": np.full(COUNT, -5.0, np.float32)}).save()
    picstore.map(path, Scorer({4}), column="score", where="label = 4", batch_size=5, max_errors=1, **SIZE)
    expected = {id_: value if id_ % 5 == 4 else -5.0 for id_, value in plain_loop(path).items() if id_ != 4}
    assert column(path) == expected
    assert len(picstore.Dataset(path).where("score IS NULL")) == 1
    with pytest.raises(UsageError, match="of other records has float32"):
        picstore.map(path, lambda batch: batch.ids, column="score", where="label = 4", **SIZE)
    picstore.map(path, lambda batch: batch.ids, column="score", **SIZE)  # All records, so of any type.
    assert column(path) == {id_: id_ for id_ in range(COUNT)}


def test_damaged_images_have_no_value_and_a_line_in_the_ledger(make_dataset: Make) -> None:
    path = make_dataset(COUNT)
    opened = picstore.Dataset(path)
    number, k = (int(each[0]) for each in opened.live.find(np.array([20])))
    container = opened.containers.read(number)
    id_, ref = int(container.index["id"][k]), opened.containers.container_ref(number)
    with (path / ref.name).open("r+b") as file:
        file.seek(ref.offset + int(container.index["offset"][k]) + 100)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 1]))
    result = picstore.map(path, mean, column="score", max_errors="2%", **SIZE)
    assert column(path) == plain_loop_without(path, id_)
    (line,) = map(json.loads, Path(result.ledger or "").read_text().splitlines())
    assert line["id"] == id_ and "fails its CRC" in line["reason"] and str(ref.name) in line["reason"]


def plain_loop_without(path: Path, id_: int) -> dict[int, float]:
    opened = picstore.Dataset(path)
    return plain_loop(opened.select(opened.ids != id_))


def test_a_missing_file_costs_its_images_alone(make_dataset: Make) -> None:
    path = make_dataset(COUNT)
    opened = picstore.Dataset(path)
    entry = opened.manifest.files[0]
    lost = {id_ for number in range(len(opened.rows)) for id_ in opened.entries(number)["id"].tolist()
            if (opened.rows[number]["stream"], opened.rows[number]["file"]) == (entry.stream, entry.file)}  # fmt: skip
    expected = {id_: value for id_, value in plain_loop(path).items() if id_ not in lost}
    (path / f"{entry.stream:04d}/{entry.file:06d}.pic").unlink()
    result = picstore.map(path, mean, column="score", max_errors=COUNT, **SIZE)
    assert column(path) == expected and result.failed == len(lost)


def test_more_failures_than_allowed_stop_the_run_and_keep_what_is_done(make_dataset: Make) -> None:
    path = make_dataset(COUNT)
    before = picstore.Dataset(path).uuid
    with pytest.raises(TooManyFailures, match="ValueError: no value for") as caught:
        picstore.map(path, Scorer(range(30)), column="score", batch_size=3, **SIZE)
    assert caught.value.exit_code == 3 and picstore.Dataset(path).uuid == before
    result = picstore.map(path, Scorer(range(30)), column="score", batch_size=3, resume=True, max_errors="50%", **SIZE)
    assert result.failed == 30


def test_a_resumed_run_must_be_the_one_that_was_interrupted(make_dataset: Make) -> None:
    path = make_dataset(COUNT)
    with pytest.raises(Interrupted):
        picstore.map(path, Scorer(end_at=12), column="score", batch_size=3, **SIZE)
    for other in ({"batch_size": 4}, {"size": 25}, {"where": "label = 1"}, {"dtype": torch.float32}):
        with pytest.raises(UsageError, match=r"the interrupted run in .* has (another|other)"):
            picstore.map(path, Scorer(), column="score", resume=True, **{"batch_size": 3, **SIZE, **other})
    with pytest.raises(UsageError, match="another function"):
        picstore.map(path, mean, column="score", resume=True, batch_size=3, **SIZE)


def test_a_first_call_that_fails_leaves_nothing_to_resume(make_dataset: Make) -> None:
    path = make_dataset(COUNT)
    with pytest.raises(UsageError):
        picstore.map(path, lambda batch: None, column="score", **SIZE)
    assert not (path / "mapping/score").exists()
    picstore.map(path, mean, column="score", **SIZE)


def test_another_process_may_edit_meanwhile_but_not_make_the_column(make_dataset: Make) -> None:
    path = make_dataset(COUNT)
    said: list[str] = []

    def edit(batch: picstore.Batch) -> torch.Tensor:
        if not said:
            picstore.Dataset(path).with_columns({"other": [1]}, ids=[3]).save()
            picstore.delete(path, [5])
            with pytest.raises(UsageError, match="being made by another process") as caught:
                picstore.map(path, mean, column="score", resume=True, **SIZE)
            said.append(str(caught.value))
        return mean(batch)

    expected = plain_loop(path)
    picstore.map(path, edit, column="score", **SIZE)
    after = picstore.Dataset(path)
    assert said and column(path) == expected and column(path, "other") == {3: 1} and len(after) == COUNT - 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"column": "width"}, "the table of every dataset has 'width'"),
        ({"column": "two words"}, "cannot be called 'two words'"),
        ({"function": "mean"}, "give a function of a batch"),
        ({"engine": "process"}, "engine 'process' is unknown; known are threads"),
        ({"engine": "processes", "function": lambda batch: batch.ids}, "define it in a module of its own"),
        ({"batch_size": 0}, "batch_size is 0; give an integer of at least 1"),
        ({"transform": [picstore.CenterCrop(24), picstore.MixUp()]}, "MixUp mixes the images of a batch"),
        ({"transform": picstore.Views(a=(1, [picstore.CenterCrop(24)]))}, "not Views"),
    ],
)
def test_wrong_arguments_are_refused_before_any_image_is_read(dataset: Path, options: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        picstore.map(dataset, **{"function": mean, "column": "fresh", **SIZE, **options})


def test_joined_datasets_and_unsaved_edits_are_refused(dataset: Path) -> None:
    opened = picstore.Dataset(dataset)
    with pytest.raises(UsageError, match="give map each dataset alone"):
        picstore.map(opened.concat(opened), mean, column="score", **SIZE)
    with pytest.raises(UsageError, match="save them first"):
        picstore.map(opened.without([3]), mean, column="score", **SIZE)


def test_the_function_gets_targets_columns_and_images_of_several_sizes(make_dataset: Make) -> None:
    path = make_dataset(COUNT)
    picstore.Dataset(path).with_columns({"caption": [f"c{id_}" for id_ in range(COUNT)]}, ids=range(COUNT)).save()

    def look(batch: picstore.Batch) -> list[str]:
        numbers = [target["extra"]["number"] for target in batch.targets]
        assert numbers == batch.ids.tolist() and isinstance(batch.images, list)
        return [f"{text} {image.shape[2]}" for text, image in zip(batch.columns["caption"], batch.images, strict=True)]

    picstore.map(path, look, column="seen", transform=[], targets=["caption", "extra"], batch_size=9)
    assert column(path, "seen") == {id_: f"c{id_} {60 + id_ % 7}" for id_ in range(COUNT)}


def test_the_column_weighs_samples_and_is_found_by_sql(make_dataset: Make) -> None:
    path = make_dataset(COUNT)
    picstore.map(path, lambda batch: (batch.ids < 6).float(), column="weight", **SIZE)
    loader = picstore.Loader(path, batch_size=10, transform=[picstore.CenterCrop(24)], weights="weight", isolate=False)
    assert {id_ for batch in loader for id_ in batch.ids.tolist()} == set(range(6))
    assert picstore.Dataset(path).where("weight > 0.5").ids.tolist() == sorted(
        range(6), key=picstore.Dataset(path).ids.tolist().index
    )


@pytest.mark.parametrize("counts", [[5], [3, 0, 4, 9, 1], [1] * 40])
def test_parts_are_consecutive_containers_with_at_least_four_batches(counts: list[int]) -> None:
    parts = map_column.divide_containers(np.array(counts), 2)
    assert [number for part in parts for number in part] == [k for k, count in enumerate(counts) if count]
    assert all(sum(counts[k] for k in part) >= 8 for part in parts[:-1])
    assert all(sum(counts[k] for k in part[:-1]) < 8 for part in parts)


def test_map_does_not_take_pythons_place_with_a_star() -> None:
    assert "map" not in picstore.__all__ and "map" in dir(picstore)
