"""What scripts written for torch's DataLoader ask of a loader: it works, or the error says what to write."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from grids import slow_except
from torch.utils.data import DataLoader, DistributedSampler

import picstore
from picstore.errors import UsageError
from picstore.train import loader_options

Make = Callable[..., Path]
SHARED = {"dataset", "batch_size", "shuffle", "drop_last"}  # with a loader, whose data set is the path


def loader_of(path: Path, **options: Any) -> picstore.Loader:
    return picstore.Loader(path, **{"batch_size": 8, "threads": 1, "isolate": False, **options})


def ids_of(batches: Any) -> list[list[int]]:
    return [batch.ids.tolist() for batch in batches]


@pytest.mark.parametrize("name", sorted(inspect.signature(DataLoader.__init__).parameters.keys() - {"self"} - SHARED))
def test_an_argument_of_dataloader_is_refused_with_what_to_write_instead(make_dataset: Make, name: str) -> None:
    path = make_dataset(20)
    with pytest.raises(UsageError) as refused:
        loader_of(path, **{name: 2})
    with pytest.raises(UsageError, match=f"^picstore.DataMux has no {name}: "):
        picstore.DataMux([(picstore.Dataset(path), 0, 2)], **{name: 2})
    message = str(refused.value)
    assert message.startswith(f"picstore.Loader has no {name}: ")
    known = inspect.signature(picstore.Loader.__init__).parameters.keys()
    for word in message.replace(",", " ").split():
        argument, equals, _ = word.partition("=")
        assert not equals or argument in known, f"the remedy {word} is no argument of Loader"


def test_all_refused_arguments_stand_in_one_message_and_defaults_are_taken(make_dataset: Make) -> None:
    path = make_dataset(20)
    loader_of(path, num_workers=0, pin_memory=False, persistent_workers=False, sampler=None, prefetch_factor=None)
    with pytest.raises(UsageError) as refused:
        loader_of(path, num_workers=4, pin_memory=True, transforms=[], persistent_workers=False)
    lines = str(refused.value).splitlines()
    assert [line.split(":")[0].split()[-1] for line in lines] == ["num_workers", "pin_memory", "transforms"]
    assert lines[2] == "  no transforms: its name is transform="
    for name in ("num_workers", "batch_size"):
        with pytest.raises(UsageError, match=f"picstore.MapDataset has no {name}: give it to the DataLoader"):
            picstore.MapDataset(path, **{name: 4})
    with pytest.raises(UsageError, match="DataMux has no transforms: its name is transform="):
        picstore.DataMux([(picstore.Dataset(path), 0, 2)], transforms=[])


def test_any_other_unknown_argument_is_a_type_error(make_dataset: Make) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'batchsize'"):
        loader_of(make_dataset(20), batchsize=2)


def test_every_refused_argument_is_listed_in_the_documentation() -> None:
    section = (
        (Path(__file__).parents[2] / "docs/reference/loader.md")
        .read_text()
        .split("## From a DataLoader")[1]
        .split("\n## ")[0]
    )
    for name in loader_options._OF_DATALOADER.keys() | SHARED:
        assert f"`{name}`" in section, f"docs/reference/loader.md does not tell of {name}"


def test_the_attributes_that_scripts_read_are_there(make_dataset: Make) -> None:
    loader = loader_of(make_dataset(45), rank=1, world_size=2, drop_last=False)
    assert (loader.batch_size, loader.drop_last, loader.num_workers) == (8, False, 0)
    assert len(loader.dataset) == 45
    reference = DistributedSampler(range(45), num_replicas=2, rank=1)  # type: ignore[arg-type]
    assert len(loader.sampler) == len(reference) == 23


def test_the_samplers_set_epoch_is_the_loaders(make_dataset: Make) -> None:
    path = make_dataset(60)
    loader, alone = loader_of(path), loader_of(path)
    for epoch in (3, 0, 1):
        loader.sampler.set_epoch(epoch)
        alone.set_epoch(epoch)
        assert ids_of(loader) == ids_of(alone)


@pytest.mark.parametrize("workers", slow_except([0], [0, 2]))
def test_set_epoch_of_a_loaded_states_epoch_goes_on_in_its_middle_once(make_dataset: Make, workers: int) -> None:
    path = make_dataset(60)
    alone = loader_of(path)
    epochs = [ids_of(alone) for _ in range(3)]
    first = loader_of(path)
    first.set_epoch(1)
    batches = iter(first)
    for _ in range(3):
        next(batches)
    resumed = loader_of(path)
    resumed.load_state_dict(first.state_dict())
    outside: Any = DataLoader(resumed, batch_size=None, num_workers=workers) if workers else resumed
    found = []
    for epoch in (1, 2, 1, 1):
        resumed.sampler.set_epoch(epoch)
        found.append(ids_of(outside))
    assert found == [epochs[1][3:], epochs[2], epochs[1], epochs[1]]


def test_set_epoch_after_loading_a_state_of_another_epoch_begins_the_epoch(make_dataset: Make) -> None:
    path = make_dataset(60)
    first = loader_of(path)
    next(iter(first))
    resumed = loader_of(path)
    resumed.load_state_dict(first.state_dict())
    resumed.set_epoch(2)
    first.set_epoch(2)
    assert ids_of(resumed) == ids_of(first)


def test_the_samplers_numbers_of_epochs_count_from_a_loaded_state(make_dataset: Make) -> None:
    path = make_dataset(60)
    alone = loader_of(path)
    epochs = [ids_of(alone) for _ in range(3)]
    first = loader_of(path)
    next(iter(first))
    resumed = loader_of(path)
    resumed.load_state_dict(first.state_dict())
    found = []
    for number in (7, 8, 9):
        resumed.sampler.set_epoch(number)
        found.append(ids_of(resumed))
    assert found == [epochs[0][1:], *epochs[1:]]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_the_state_of_a_loader_whose_workers_make_the_batches_is_refused(make_dataset: Make) -> None:
    loader = loader_of(make_dataset(60))
    assert loader.state_dict()["samples"] == 0
    batches = iter(DataLoader(loader, batch_size=None, num_workers=1))
    next(batches)
    with pytest.raises(UsageError, match="StatefulDataLoader"):
        loader.state_dict()
    del batches
    loader.set_epoch(4)
    assert loader.state_dict()["epoch"] == 4


def test_a_dataloader_that_would_collate_batches_is_told_a_batch_size(make_dataset: Make) -> None:
    with pytest.raises(UsageError, match="batch_size=None"):
        next(iter(DataLoader(loader_of(make_dataset(20), transform=[picstore.Resize((8, 8))]), batch_size=4)))
