"""``collate``: a function of the user's where batches are made, whose values come in ``batch.columns``."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from collate_functions import describe, fail

import picstore
from picstore.errors import PicstoreError, UsageError
from picstore.helper_process import NUMBA_EXTRAS
from picstore.train.pipeline.batch_threads import Pipeline

Make = Callable[..., Path]
CROP: list[Any] = [picstore.RandomResizedCrop(24)]
FLOATS = [*CROP, picstore.Normalize((0.5,) * 3, (0.2,) * 3)]


def kinds(batch: dict[str, Any]) -> dict[str, Any]:
    """Types and shapes of what the function gets, as text."""

    def kind(value: Any) -> str:
        if isinstance(value, dict):
            return "{" + ", ".join(f"{name}: {kind(each)}" for name, each in value.items()) + "}"
        if isinstance(value, list):
            return f"{len(value)} of {kind(value[0])}"
        return f"{value.dtype} {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__

    return {name: [kind(value)] * len(batch["ids"]) for name, value in batch.items()}


def loader_of(path: Path | picstore.Dataset, **options: Any) -> picstore.Loader:
    return picstore.Loader(path, **{"batch_size": 8, "transform": CROP, "threads": 2, "isolate": False, **options})


def batches(*args: Any, **options: Any) -> list[picstore.Batch]:
    loader = loader_of(*args, **options)
    taken = list(loader)
    loader.close()
    return taken


@pytest.mark.parametrize("isolate", [False, True])
def test_its_values_of_a_batch_come_with_it(make_dataset: Make, isolate: bool) -> None:
    path = make_dataset(40)
    captions = [f"picture {k * k}" for k in range(40)]
    dataset = picstore.Dataset(path).with_columns({"caption": captions}).save()
    caption_of = dict(zip(dataset.ids.tolist(), captions, strict=True))
    taken = batches(dataset, collate=describe, targets=["caption"], isolate=isolate)
    assert len(taken) == 5
    for batch in taken:
        assert list(batch.columns) == ["caption", "mean", "key", "tokens", "process"]
        expected = [caption_of[number] for number in batch.ids.tolist()]
        assert batch.columns["caption"] == [text.upper() for text in expected]
        assert torch.allclose(batch.columns["mean"], batch.images.double().mean(dim=(1, 2, 3)))
        assert torch.equal(batch.columns["key"], 1000 * batch.ids + batch.labels)
        assert batch.columns["tokens"].tolist() == [[len(text), 7] for text in expected]
        assert (batch.columns["process"][0] == os.getpid()) != isolate


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"images": "uint8 (8, 3, 24, 24)"}),
        ({"transform": FLOATS}, {"images": "float32 (8, 3, 24, 24)"}),
        ({"transform": FLOATS, "dtype": torch.float16}, {"images": "float16 (8, 3, 24, 24)"}),
        ({"transform": FLOATS, "dtype": torch.bfloat16}, {"images": "uint16 (8, 3, 24, 24)"}),
        ({"transform": []}, {"images": "8 of uint8 (3, 40, 60)"}),
        ({"targets": ["extra"]}, {"images": "uint8 (8, 3, 24, 24)", "targets": "8 of {extra: {number: int}}"}),
        ({"aug_repeats": 2}, {"images": "uint8 (2, 4, 3, 24, 24)", "labels": "int64 (4,)", "ids": "int64 (4,)"}),
        (
            {"transform": picstore.Views(a=(2, CROP), b=(1, [])), "targets": ["extra"]},
            {
                "images": "{a: uint8 (2, 8, 3, 24, 24), b: 1 of 8 of uint8 (3, 40, 60)}",
                "targets": "{a: 2 of 8 of {extra: {number: int}}, b: 1 of 8 of {extra: {number: int}}}",
            },
        ),
    ],
)
def test_it_gets_the_fields_of_a_batch_as_arrays(
    make_dataset: Make, options: dict[str, Any], expected: dict[str, str]
) -> None:
    loader = loader_of(make_dataset(8), collate=kinds, shuffle=False, **options)
    (batch, *_) = loader
    seen = {name: values[0] for name, values in batch.columns.items()}
    assert seen == {"labels": "int64 (8,)", "ids": "int64 (8,)", **expected}
    assert all(len(values) == len(batch.labels) for values in batch.columns.values())
    loader.close()


def test_images_that_a_device_will_decode_are_missing(make_dataset: Make) -> None:
    """A pipeline as of a loader on a GPU, which hands over streams."""
    loader = loader_of(make_dataset(8), collate=kinds)
    spec = loader._runner._spec
    pipeline = Pipeline(
        loader._order.requests(spec.sources, epoch=0), replace(spec, output=replace(spec.output, form="streams"))
    )
    batch = pipeline.receive()
    pipeline.close()
    loader.close()
    assert batch is not None and batch.encoded is not None
    assert list(batch.columns) == ["labels", "ids"]


def test_it_sees_replacements_and_not_damaged_records(make_dataset: Make) -> None:
    path = make_dataset(24)
    record = picstore.Dataset(path)[5]
    file = next(file for file in path.rglob("*.pic") if record.jpeg in file.read_bytes())
    data = bytearray(file.read_bytes())
    data[data.index(record.jpeg) + len(record.jpeg) // 2] ^= 1
    file.write_bytes(data)
    seen = [
        number
        for batch in batches(path, collate=lambda batch: {"seen": batch["ids"].copy()})
        for number in batch.columns["seen"].tolist()
    ]
    assert len(seen) == 24 and record.id not in seen


@pytest.mark.parametrize("isolate", [False, True])
def test_its_exception_ends_the_loop_with_its_traceback(make_dataset: Make, isolate: bool) -> None:
    loader = loader_of(make_dataset(24), collate=fail, isolate=isolate)
    for _ in range(2):  # a loader can be iterated again
        with pytest.raises(PicstoreError, match="collate raised ValueError: no tokens for 8 texts") as caught:
            next(iter(loader))
        assert "in fail" in str(caught.value) and "raise ValueError(f" in str(caught.value)
    loader.close()


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        (None, "returned NoneType; return a dict"),
        ([1], "returned list; return a dict"),
        ({"x": 3}, "returned 'x' of type int"),
        ({"x": "a text"}, "returned 'x' of type str"),
        ({"x": np.float64(3)}, "returned 'x' of type float64"),
        ({"x": [1, 2]}, "returned 'x' of 2 items; return 8"),
        ({"x": np.zeros((7, 8))}, "returned 'x' of 7 items; return 8"),
    ],
)
def test_what_is_no_mapping_of_values_of_records_is_refused(make_dataset: Make, returned: Any, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        batches(make_dataset(8), collate=lambda batch: returned)


def test_a_function_that_the_loaders_process_cannot_find_is_refused_early(
    make_dataset: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_dataset(8)
    with pytest.raises(UsageError, match=r"give a function of a batch"):
        loader_of(path, collate=3)
    with pytest.raises(UsageError, match="define collate in a module of its own, or give isolate=False"):
        loader_of(path, collate=lambda batch: {}, isolate=True)
    unknown = types.ModuleType("made_at_runtime")
    exec("def collate(batch): return {}", unknown.__dict__)  # noqa: S102
    monkeypatch.setitem(sys.modules, "made_at_runtime", unknown)
    loader = loader_of(path, collate=unknown.collate, isolate=True)
    with pytest.raises(UsageError, match="cannot import collate or a transform: No module named 'made_at_runtime'"):
        next(iter(loader))
    loader.close()


def test_its_module_may_import_what_numba_does_without(
    make_dataset: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in NUMBA_EXTRAS:
        pytest.importorskip(name)
    (tmp_path / "tokens_of_yaml.py").write_text(
        f"import {', '.join(NUMBA_EXTRAS)}\n"
        "def collate(batch): return {'tokens': [yaml.safe_load(f'a: {number}')['a'] for number in batch['ids']]}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    loader = loader_of(make_dataset(8), collate=importlib.import_module("tokens_of_yaml").collate, isolate=True)
    (batch,) = loader
    loader.close()
    assert batch.columns["tokens"] == batch.ids.tolist()


@pytest.mark.slow
def test_a_function_of_the_main_program_needs_isolate_false(make_dataset: Make, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, picstore\n"
        "def tokens(batch): return {'tokens': batch['ids'] + 1}\n"
        "for isolate in (False, True):\n"
        "    try:\n"
        "        loader = picstore.Loader(sys.argv[1], batch_size=8, isolate=isolate, collate=tokens)\n"
        "        print([(batch.columns['tokens'] - batch.ids).tolist() for batch in loader])\n"
        "    except picstore.UsageError as error:\n"
        "        print(error)\n"
    )
    done = subprocess.run([sys.executable, program, make_dataset(8)], capture_output=True, text=True, check=True)
    first, second = done.stdout.splitlines()
    assert first == "[[1, 1, 1, 1, 1, 1, 1, 1]]"
    assert second.startswith("the loader's process does not import your main module") and "isolate=False" in second


def test_one_thread_at_a_time_calls_it_ahead_of_the_training_loop(make_dataset: Make) -> None:
    running, most, names = [0], [0], set()

    def collate(batch: dict[str, Any]) -> dict[str, Any]:
        running[0] += 1
        most[0] = max(most[0], running[0])
        names.add(threading.current_thread().name)
        time.sleep(0.01)
        running[0] -= 1
        return {}

    loader = loader_of(make_dataset(64), collate=collate, threads=4)
    iterator = iter(loader)
    next(iterator)
    deadline = time.monotonic() + 60
    while len(names) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    list(iterator)
    loader.close()
    assert most == [1]
    assert threading.current_thread().name not in names


def test_a_mux_takes_it_but_not_from_a_file(make_dataset: Make, tmp_path: Path) -> None:
    make_dataset(20)
    config = tmp_path / "mux.toml"
    source = '[[source]]\npath = "dataset"\ncount = 4\n'
    config.write_text(f'transform = [{{ name = "CenterCrop", size = 16 }}]\n{source}{source}')
    mux = picstore.DataMux(config, isolate=False, collate=lambda batch: {"key": batch["ids"] * 3})
    sample = mux.read()
    assert sample.columns["key"] == 3 * sample.id
    mux.close()
    config.write_text(f'collate = "module.function"\n{source}')
    with pytest.raises(UsageError, match=r"collate is 'module\.function'; give it to DataMux, not in a file"):
        picstore.DataMux(config)
