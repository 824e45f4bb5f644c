"""Where a loader is: what progress bars and schedulers of a resumed run ask for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

import picstore
from picstore.errors import UsageError

Make = Callable[..., Path]


def loader_of(path: Path, **options: Any) -> picstore.Loader:
    crop = [picstore.CenterCrop(8)]
    return picstore.Loader(path, **{"batch_size": 8, "transform": crop, "threads": 1, "isolate": False, **options})


def test_position_and_remaining_follow_the_batches_taken(make_dataset: Make) -> None:
    loader = loader_of(make_dataset(40))
    assert (loader.position, loader.remaining) == ((0, 0), 5)
    batches = iter(loader)
    for taken in range(1, 5):
        next(batches)
        assert (loader.position.epoch, loader.position.batch, loader.remaining) == (0, taken, 5 - taken)
    next(batches)
    assert (loader.position, loader.remaining) == ((1, 0), 5)
    loader.close()


def test_after_a_resume_remaining_is_what_the_next_iteration_yields(make_dataset: Make) -> None:
    path = make_dataset(40)
    resumed = loader_of(path)
    resumed.load_state_dict(loader_of(path).state_at(2, 3))
    first, remaining, total = resumed.position.batch, resumed.remaining, len(resumed)
    steps = [step for step, _ in enumerate(resumed, start=first)]
    assert (first, remaining, total, steps) == (3, 2, 5, [3, 4])
    assert (resumed.position, resumed.remaining) == ((3, 0), 5)
    resumed.close()


def test_a_look_at_one_batch_leaves_every_epoch_as_it_is(make_dataset: Make) -> None:
    path = make_dataset(40)
    loader, undisturbed = loader_of(path), loader_of(path)
    expected = [[batch.ids.tolist() for batch in undisturbed] for _ in range(2)]
    look = next(iter(loader)).ids.tolist()
    state = loader.state_dict()
    assert [[batch.ids.tolist() for batch in loader] for _ in range(2)] == expected and look == expected[0][0]
    loader.load_state_dict(state)  # The state goes on behind the batch.
    assert [batch.ids.tolist() for batch in loader] == expected[0][1:]
    loader.load_state_dict(state)
    assert next(iter(loader)).ids.tolist() == expected[0][1]
    loader.set_epoch(0)
    assert [batch.ids.tolist() for batch in loader] == expected[0][1:]
    assert [batch.ids.tolist() for batch in loader] == expected[1]
    loader.close()
    undisturbed.close()


def test_an_iterator_that_is_kept_counts_as_an_epoch(make_dataset: Make) -> None:
    loader = loader_of(make_dataset(40))
    pairs = [(one.ids.tolist(), other.ids.tolist()) for one, other in zip(loader, loader, strict=True)]
    assert len(pairs) == 5 and all(one != other for one, other in pairs)
    loader.close()


@pytest.mark.parametrize("isolate", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_an_iterator_in_use_is_refused_after_a_state_was_loaded(make_dataset: Make, isolate: bool) -> None:
    loader = loader_of(make_dataset(40), isolate=isolate)
    batches = iter(loader)
    next(batches)
    loader.load_state_dict(loader.state_at(3, 2))
    with pytest.raises(UsageError, match="while this iterator was in use"):
        next(batches)
    assert loader.position == (3, 2)
    assert len(list(loader)) == 3
    loader.close()


def test_an_epoch_that_is_set_meanwhile_is_the_next_iterations(make_dataset: Make) -> None:
    loader = loader_of(make_dataset(40))
    batches = iter(loader)
    next(batches)
    loader.set_epoch(7)
    assert next(batches) is not None and loader.position == (0, 2)
    assert len(list(batches)) == 3 and loader.position == (1, 0)
    assert next(iter(loader)).ids.tolist() == loader.make_batch(7, 0)[0].ids.tolist()
    loader.close()


def test_set_epoch_in_the_last_step_of_an_epoch_ends_no_loop(make_dataset: Make) -> None:
    loader = loader_of(make_dataset(40))
    for step, _ in enumerate(loader):
        if step == 4:
            loader.set_epoch(7)
    assert loader.position == (7, 0)
    loader.close()


def test_a_mux_refuses_an_iterator_in_use_after_a_state_too(make_dataset: Make) -> None:
    mux = picstore.DataMux([(picstore.Dataset(make_dataset(20)), 0, 4)], threads=1, isolate=False)
    batches = iter(mux)
    state = mux.state_dict()
    next(batches)
    mux.load_state_dict(state)
    with pytest.raises(UsageError, match="while this iterator was in use"):
        next(batches)
    assert mux.position == (0, 0)
    mux.close()


def test_a_mux_without_an_end_has_a_position_only(make_dataset: Make) -> None:
    entries = [(picstore.Dataset(make_dataset(20)), 0, 4)]
    mux = picstore.DataMux(entries)
    assert mux.position == (0, 0)
    with pytest.raises(TypeError, match="DataMux without epoch_batches has no end"):
        _ = mux.remaining
    assert picstore.DataMux(entries, epoch_batches=7).remaining == 7


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_the_position_is_unknown_where_workers_make_the_batches(make_dataset: Make) -> None:
    loader = loader_of(make_dataset(40))
    next(iter(DataLoader(loader, batch_size=None, num_workers=1)))
    for ask in (lambda: loader.position, lambda: loader.remaining):
        with pytest.raises(UsageError, match="while a DataLoader's workers make the batches"):
            ask()
