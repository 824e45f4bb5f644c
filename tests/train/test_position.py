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
