"""Arguments of Loader, DataMux and MapDataset: each by itself, refused with its value or made Python's own."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_origin, get_type_hints

import numpy as np
import pytest

import picstore
from picstore.errors import UsageError
from picstore.train.loader_options import LoaderArguments, check_arguments
from picstore.train.mux import _DEFAULTS
from picstore.train.order.state_checks import MAX_POSITION

Make = Callable[..., Path]

INTEGERS = ("seed", "batch_size", "aug_repeats", "threads", "rank", "world_size", "lanes", "max_pixels", "budget")
HINTS = get_type_hints(LoaderArguments, include_extras=True)
BOOLEANS = ("shuffle", "drop_last", "isolate")


def loader_of(path: Path, **options: Any) -> picstore.Loader:
    return picstore.Loader(path, **{"batch_size": 4, "threads": 1, "isolate": False, **options})


def mux_of(path: Path, **options: Any) -> picstore.DataMux:
    return picstore.DataMux([(picstore.Dataset(path), 0, 4)], **{"threads": 1, "isolate": False, **options})


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("options") / "set"
    with picstore.Writer(where) as writer:
        for number in range(20):
            writer.add(np.full((16, 16, 3), number, np.uint8), label=number % 3)
    return where


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("value", ["4", 1.0, 2.5, True, np.True_, np.float64(4), np.nan, [4], np.timedelta64(4, "s")])
def test_an_integer_of_another_type_is_refused_with_its_value(path: Path, name: str, value: Any) -> None:
    other = {"rank": {"world_size": 2}, "world_size": {"rank": 0}}.get(name, {})
    with pytest.raises(UsageError, match=f"^{name} is ") as refused:
        loader_of(path, **{**other, name: value})
    assert repr(value)[:20] in str(refused.value) and "give an integer" in str(refused.value)


@pytest.mark.parametrize("name", BOOLEANS)
@pytest.mark.parametrize("value", [1, 0, "yes", None, np.int64(1)])
def test_a_choice_of_yes_and_no_takes_no_other_type(path: Path, name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"^{name} is .*give True or False$"):
        loader_of(path, **{name: value})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": None}, "seed is None; give an integer"),
        ({"threads": -1}, "threads is -1; give an integer of at least 1"),
        ({"budget": -5}, "budget is -5; give an integer of at least 1"),
        ({"max_pixels": 0}, "max_pixels is 0; give an integer of at least 1"),
        ({"lanes": 1 << 40}, "lanes is 1099511627776; give an integer from 1 to 65,536"),
        ({"rank": -1, "world_size": 2}, "rank is -1; give an integer of at least 0"),
        ({"rank": 0, "world_size": 1 << 30}, "world_size is 1073741824; give an integer from 1 to 1,048,576"),
        ({"repeat": True}, "repeat is True; give a positive number"),
        ({"repeat": "2"}, "repeat is '2'; give a positive number"),
        ({"repeat": np.inf}, "repeat is inf; give a positive number"),
        ({"balance": 5}, "balance is 5; give a name"),
        ({"targets": "boxes"}, "targets is 'boxes'; give a list: ['boxes']"),
        ({"targets": 5}, "targets is 5; give a list of names"),
        ({"targets": ["boxes", 5]}, "targets is ['boxes', 5]; give a list of names"),
        ({"device": "gpu"}, "device is 'gpu'; give one of torch's, such as 'cpu'"),
        ({"device": None}, "device is None; give one of torch's"),
        ({"decoder": 5}, "decoder is 5; give a name"),
        ({"cache": 5}, "cache is 5; give a path or URL"),
        ({"on_damage": []}, "on_damage is []; give 'skip' or 'raise'"),
    ],
)
def test_a_loaders_argument_is_refused_with_what_to_give(path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        loader_of(path, **options)
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize("make", [loader_of, mux_of])
def test_numpys_integers_and_truths_are_taken_as_pythons(path: Path, make: Callable[..., Any]) -> None:
    plain: dict[str, Any] = {"seed": 5, "threads": 1, "rank": 1, "world_size": 2, "lanes": 4, "max_pixels": 1 << 20}
    if make is loader_of:
        plain |= {"batch_size": 4, "repeat": 2, "shuffle": True, "drop_last": False, "aug_repeats": 2}
    numpys = {name: np.bool_(value) if value in (True, False) else np.int64(value) for name, value in plain.items()}
    numpys |= {"rank": np.int64(1), "threads": np.uint8(1)}
    one, other = make(path, **plain), make(path, **numpys)
    taken = [[batch.ids.tolist() for _, batch in zip(range(4), each, strict=False)] for each in (one, other)]
    assert taken[0] == taken[1]
    assert json.loads(json.dumps(other.state_dict())) == one.state_dict()


def test_a_map_dataset_and_a_mux_refuse_and_take_what_a_loader_does(path: Path) -> None:
    for options in ({"seed": "5"}, {"seed": True}, {"max_pixels": 0}, {"targets": "boxes"}):
        with pytest.raises(UsageError, match=f"^{next(iter(options))} is "):
            picstore.MapDataset(path, **options)
        with pytest.raises(UsageError, match=f"^{next(iter(options))} is "):
            mux_of(path, **options)
    for epoch_batches in (0, -1, 1.0, "3", 1 << 62):
        with pytest.raises(UsageError, match=r"^epoch_batches is "):
            mux_of(path, epoch_batches=epoch_batches)
    steps = [picstore.RandomResizedCrop(8)]
    one, other = (picstore.MapDataset(path, transform=steps, seed=seed)[3][0] for seed in (5, np.int64(5)))
    assert (one == other).all()


@pytest.mark.parametrize(
    ("triple", "message"),
    [
        ((0, 4.0), r"count of .* is 4\.0; give an integer from 0"),
        ((0, True), "count of .* is True"),
        ((0, 0), "has count 0 at all steps"),
        (("0", 4), "base label of .* is '0'; give an integer from 0"),
        ((-1, 4), "base label of .* is -1"),
        ((4,), "give .*Dataset, base label, count"),
    ],
)
def test_the_counts_of_a_mux_are_integers(path: Path, triple: tuple[Any, ...], message: str) -> None:
    dataset = picstore.Dataset(path)
    with pytest.raises(UsageError, match=message):
        picstore.DataMux([(dataset, *triple)])
    state = picstore.DataMux([(dataset, np.int64(1), np.uint8(4))], isolate=False).state_dict()
    assert json.loads(json.dumps(state)) == state and state["counts"] == [4]


@pytest.mark.parametrize("value", [-5, -1, 10**30, 1 << 63, MAX_POSITION + 1, True, None, "3", 1.0, float("nan")])
def test_a_position_that_cannot_be_is_refused(path: Path, value: Any) -> None:
    loader, mux = loader_of(path), mux_of(path)
    for name in ("epoch", "samples"):
        with pytest.raises(UsageError, match=f"^{name} is .*; give an integer from 0 to 4,398,046,511,104"):
            loader.load_state_dict({**loader.state_dict(), name: value})
    with pytest.raises(UsageError, match=r"^read is .*; give an integer from 0"):
        mux.load_state_dict({**mux.state_dict(), "read": value})
    with pytest.raises(UsageError, match=r"^taken of the state is .*; give an integer|after \[\d+\] samples"):
        mux.load_state_dict({**mux.state_dict(), "taken": [value]})
    for set_epoch in (loader.set_epoch, loader.sampler.set_epoch, picstore.MapDataset(path).set_epoch):
        with pytest.raises(UsageError, match=r"^epoch is "):
            set_epoch(value)
    with pytest.raises(UsageError, match=r"^batch is "):
        loader.make_batch(0, value)
    with pytest.raises(UsageError, match=r"^epoch is "):
        loader.make_batch(value, 0)
    assert loader.state_dict() == loader_of(path).state_dict()


def test_a_position_of_numpys_integers_is_taken_as_pythons(path: Path) -> None:
    loader, other = loader_of(path), loader_of(path)
    loader.load_state_dict({**loader.state_dict(), "epoch": np.int64(3), "samples": np.int32(8)})
    assert json.loads(json.dumps(loader.state_dict())) == {**other.state_dict(), "epoch": 3, "samples": 8}
    loader.set_epoch(np.int64(4))
    assert json.loads(json.dumps(loader.state_dict())) == {**other.state_dict(), "epoch": 4}


@pytest.mark.parametrize("change", [{"counts": ["4"]}, {"counts": [0]}, {"counts": [True]}, {"world_size": 0}])
def test_a_mux_refuses_a_state_of_counts_that_cannot_be(path: Path, change: dict[str, Any]) -> None:
    mux = mux_of(path)
    with pytest.raises(
        UsageError, match=r"counts of the state is .*; give|counts \[0\]; one above 0|world_size of the"
    ):
        mux.load_state_dict({**mux.state_dict(), "version": 1, "samples": 8, "world_size": 2, **change})


def test_every_argument_is_checked_in_one_place_or_where_it_is_opened() -> None:
    opened = {
        "path",
        "dataset",
        "transform",
        "weights",
        "dtype",
        "memory_format",
        "collate",
        "cache_limit",
        "config",
        "schedule",
    }
    checked = {name for name, hint in HINTS.items() if get_origin(hint) is Annotated}
    for kind in (picstore.Loader, picstore.MapDataset, picstore.DataMux):
        named = inspect.signature(kind.__init__).parameters.keys() - {"self", "unknown", "options"}
        assert named <= checked | opened
    assert HINTS.keys() <= checked | opened


def test_the_signature_of_the_loader_and_the_table_of_its_options_agree() -> None:
    """Their names, types, and defaults: a mux takes the loader's, and has three options of its own."""
    written = get_type_hints(
        picstore.Loader.__init__, localns=dict.fromkeys(("Transforms", "Views", "Progressive"), Any)
    )
    for name in ("return", "path", "transform", "unknown"):
        del written[name]
    of_the_mux = {"epoch_batches", "global_counts", "classes"}
    assert written == {name: hint for name, hint in get_type_hints(LoaderArguments).items() if name not in of_the_mux}
    assert _DEFAULTS.keys() >= HINTS.keys()
    assert check_arguments(_DEFAULTS).keys() == HINTS.keys(), "each default passes the check of its option"


@pytest.mark.parametrize(("name", "meant"), [("transfrom", "transform"), ("batchsize", "batch_size"), ("zzz", None)])
def test_a_misspelt_argument_is_answered_with_the_one_meant(make_dataset: Make, name: str, meant: str | None) -> None:
    path = make_dataset(8)
    for make in (picstore.Loader, picstore.MapDataset):
        if make is picstore.MapDataset and meant == "batch_size":
            continue
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'") as raised:
            make(path, **{name: 1})
        assert str(raised.value).endswith(f"; did you mean '{meant}'?" if meant else f"'{name}'")
    with pytest.raises(TypeError, match="did you mean 'global_counts'"):
        picstore.DataMux([(picstore.Dataset(path), 0, 4)], global_count=True)
