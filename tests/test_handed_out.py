"""What public names hand out is the user's: writing into it changes nothing that is read or made later."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import picstore
from picstore import _public, recipes, results

COUNT = 12
# Methods that are asked too, with arguments; all others return None, another object of the list, or a figure.
CALLS: dict[str, tuple[Any, ...]] = {
    "column": ("score",),
    "derive": (lambda facts: facts["width"], np.int64),
    "entries": (0,),
    "facts": (),
    "record_counts": (),
    "count_records": (),
    "labels": (np.arange(3), np.arange(3)),
    "to_numpy": (),
    "state_dict": (),
    "state_at": (0, 0),
    "where": ("label = 1",),
}
VALUES = "Batch", "Record", "ImageInfo", "Column", "Sample"  # dataclasses whose fields are asked too
# Held by reference, and the same for the user: the data set of a loader, the location of a data set.
OBJECTS = (int, float, str, bytes, bool, type(None), tuple, torch.dtype, torch.device)


def members(value: Any) -> Iterator[Any]:
    """What a value of a kind that can be changed, or that holds such, consists of."""
    if isinstance(value, Mapping):
        yield from value.values()
    elif isinstance(value, (list, tuple, set)):
        yield from value
    elif is_dataclass(value) and (type(value).__name__ in VALUES or type(value).__module__ == results.__name__):
        yield from (getattr(value, field.name) for field in fields(value))


def scribble(value: Any) -> None:
    """Change all that a value lets one change."""
    for each in list(members(value)):
        scribble(each)
    with contextlib.suppress(ValueError, TypeError):  # read-only
        if isinstance(value, np.ndarray):
            value[...] = np.zeros((), value.dtype) if value.dtype.names else 77
        elif isinstance(value, torch.Tensor):
            value.fill_(77)
        elif isinstance(value, dict):
            value["scribbled"] = 77
        elif isinstance(value, list):
            value.append("scribbled")
        elif isinstance(value, set):
            value.clear()


def told(value: Any) -> Any:
    """A copy of what a value says, to compare."""
    if isinstance(value, (np.ndarray, torch.Tensor)):
        return repr(np.asarray(value).tolist())
    if isinstance(value, Mapping):
        return {key: told(each) for key, each in value.items()}
    inner = [told(each) for each in members(value)]
    return inner or (value if isinstance(value, OBJECTS) else type(value).__name__)


def answers(source: Any) -> dict[str, Any]:
    """All that an object answers: its attributes and properties, and CALLS."""
    found: dict[str, Any] = {}
    for name in dir(source):
        if name.startswith("_") or isinstance(inspect.getattr_static(type(source), name, None), (staticmethod, type)):
            continue
        with contextlib.suppress(picstore.PicstoreError, TypeError):
            value = getattr(source, name)
            if not callable(value) or isinstance(value, np.ndarray):
                found[name] = value
            elif name in CALLS:
                found[name] = value(*CALLS[name])
    return found


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("handed") / "set"
    with picstore.Writer(path, classes=["a", "b", "c"]) as writer:
        for k in range(COUNT):
            extra = {"boxes": [[1, 1, 30, 30]], "box_labels": [k], "names": [k]}
            writer.add(np.full((72, 80, 3), k * 20, np.uint8), label=k % 3, extra=extra)
    columns: dict[str, Any] = {
        "score": np.arange(float(COUNT)),
        "vector": np.ones((COUNT, 2)),
        "text": [str(k) for k in range(COUNT)],
    }
    picstore.Dataset(path).with_columns(columns).save()
    with picstore.Writer(path.with_name("one"), classes=["a", "b", "c"]) as writer:
        writer.add(np.zeros((16, 16, 3), np.uint8), label=2)
    return path


DATASETS: dict[str, Callable[[Path], picstore.Dataset]] = {
    "saved": picstore.Dataset,
    "one record": lambda root: picstore.Dataset(root.with_name("one")),
    "cached": lambda root: picstore.Dataset(root, cache=root.with_name("cache")),
    "unsaved": lambda root: picstore.Dataset(root).with_columns({"label": np.arange(COUNT) % 2}),
    "deleted": lambda root: picstore.Dataset(root).without([3]),
    "selected": lambda root: picstore.Dataset(root).select(np.arange(3, 7)),
    "joined": lambda root: picstore.Dataset(root).concat(picstore.Dataset(root)),
}


@pytest.mark.parametrize("kind", DATASETS)
def test_a_data_set_says_the_same_after_its_answers_are_changed(root: Path, kind: str) -> None:
    dataset = DATASETS[kind](root)

    def ask() -> list[Any]:
        table = dataset.table
        return [answers(dataset), answers(table), {name: table[name] for name in table.names}, dataset[0],
                dataset[0].extra, next(iter(dataset)), dataset[-2:]]  # fmt: skip

    expected = told(ask())
    for _ in range(2):
        scribble(ask())
        assert told(ask()) == expected
    ids = dataset.ids
    ids[:] = ids[::-1].copy()
    assert dataset.select(ids=ids[:1]).ids.tolist() == ids[:1].tolist()


def test_the_bytes_of_a_record_do_not_keep_or_change_its_container(root: Path) -> None:
    dataset = picstore.Dataset(root)
    segments = [record.info.segments for record in dataset]
    assert all(each.base is None and len(each) for each in segments)


LOADERS: dict[str, Callable[[picstore.Dataset], Any]] = {
    "loader": lambda dataset: picstore.Loader(dataset, batch_size=4, weights="score", repeat=2, **COMMON),
    "repeats": lambda dataset: picstore.Loader(dataset, batch_size=4, aug_repeats=2, **COMMON),
    "process": lambda dataset: picstore.Loader(dataset, batch_size=4, aug_repeats=2, **{**COMMON, "isolate": True}),
    "views": lambda dataset: picstore.Loader(
        dataset, batch_size=4, **{**COMMON, "transform": picstore.Views(a=(2, CROP), b=(1, CROP))}
    ),
    "mux": lambda dataset: picstore.DataMux([(dataset, 0, 4)], epoch_batches=3, **COMMON),
}
CROP: list[picstore.RandomResizedCrop] = [picstore.RandomResizedCrop(16)]
COMMON: dict[str, Any] = {
    "transform": CROP, "targets": ["boxes", "extra", "vector", "text"], "isolate": False, "threads": 1, "rank": 0,
    "world_size": 1,
}  # fmt: skip


def changeable(value: Any) -> Iterator[int]:
    """Identities of what can be changed in a value; of tensors the address of their memory."""
    if isinstance(value, torch.Tensor) and value.numel():
        yield value.data_ptr()
    elif isinstance(value, (dict, list)):
        yield id(value)
        for each in members(value):
            yield from changeable(each)


@pytest.mark.parametrize("kind", [*LOADERS])
def test_batches_stay_the_same_after_earlier_ones_are_changed(root: Path, kind: str) -> None:
    dataset = picstore.Dataset(root)
    with closing(LOADERS[kind](dataset)) as other:
        expected = [told(batch) for batch in other]
    with closing(LOADERS[kind](dataset)) as loader:
        scribble(answers(loader))
        found, kept = [], []
        for batch in loader:
            found.append(told(batch))
            scribble(batch)
            kept.append(batch)
            scribble(answers(loader))
        assert found == expected
        for batch in kept:
            of_targets = list(changeable(batch.targets))
            assert len(set(of_targets)) == len(of_targets)
        if kind != "process":
            made = [loader.make_batch(0, k)[0] for k in range(2)]
            assert [told(batch) for batch in made] == expected[:2]


def test_items_of_a_map_dataset_stay_after_earlier_ones_are_changed(root: Path) -> None:
    items = picstore.MapDataset(root, transform=CROP, targets=["boxes", "extra", "vector", "text"])
    items.set_epoch(0)
    expected = told([items.__getitems__([3, 3, 1]), answers(items)])
    for _ in range(2):
        scribble([items.__getitems__([3, 3, 1]), answers(items)])
        assert told([items.__getitems__([3, 3, 1]), answers(items)]) == expected


def test_results_and_public_modules_hold_nothing_that_can_be_changed(root: Path) -> None:
    expected = told(picstore.info(root))
    scribble(picstore.info(root))
    assert told(picstore.info(root)) == expected
    for module in (recipes, results, picstore.transforms, picstore):
        for name in (name for name in dir(module) if not name.startswith("_")):
            assert not isinstance(getattr(module, name), (list, dict, set, np.ndarray)), name


def test_an_audit_says_the_same_after_its_answers_are_changed(root: Path) -> None:
    with closing(picstore.Loader(root, batch_size=4, weights="score", **COMMON)) as loader:
        audit = picstore.audit(loader.state_at(2, 1), loader)

    def ask() -> list[Any]:
        ids = np.arange(COUNT)
        return [answers(audit), audit.samples(), list(audit.parts()), audit.find([1]), audit.counts(),
                audit.all_counts(), audit.unseen(), audit.status(ids), audit.ids(), audit.paths(ids),
                audit.positions(ids)]  # fmt: skip

    expected = told(ask())
    for _ in range(2):
        scribble(ask())
        assert told(ask()) == expected


def test_every_public_class_is_asked() -> None:
    asked = {"Dataset", "Record", "Loader", "Batch", "DataMux", "MapDataset", "Audit"}
    assert asked | {"Writer"} == {name for name in _public.modules_by_name(_public.NAMES) if is_class(name)}


def is_class(name: str) -> bool:
    value = getattr(picstore, name)
    return isinstance(value, type) and not issubclass(value, BaseException)
