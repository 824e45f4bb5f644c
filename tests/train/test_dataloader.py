"""The loader inside torch's DataLoader, torchdata's StatefulDataLoader and Lightning: no batch lost, none twice."""

from __future__ import annotations

import copy
import functools
import importlib.util
import multiprocessing
import pickle
import sys
import time
from collections.abc import Callable, Iterator
from itertools import product
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pytest
import torch
from grids import slow_except
from pictures import require
from torch.utils.data import DataLoader

import picstore
from picstore.errors import UsageError
from picstore.train.batch import Batch

Make = Callable[..., Path]
CROP = [picstore.RandomResizedCrop(24), picstore.RandomHorizontalFlip()]

pytestmark = [
    pytest.mark.filterwarnings(f"ignore:{text}")
    for text in (
        "This process .* is multi-threaded",
        "This DataLoader will create",  # more workers than there are cores
        "'set_vital' is deprecated",  # torchdata
        ".*LeafSpec.* is deprecated",  # Lightning
        "The 'train_dataloader' does not have many workers",
    )
]


def loader_of(path: Path, **options: Any) -> picstore.Loader:
    return picstore.Loader(path, **{"batch_size": 8, "transform": CROP, "threads": 1, "isolate": False, **options})


def mux_of(path: Path, **options: Any) -> picstore.DataMux:
    config = path.parent / "mux.tsv"
    config.write_text(f"{path} 0 3 {path} 100 5")
    return picstore.DataMux(config, **{"transform": CROP, "threads": 1, "isolate": False, **options})


def contents(batches: Any) -> list[tuple[list[int], torch.Tensor]]:
    return [(batch.ids.tolist(), batch.images.clone()) for batch in batches]


def same(one: list[tuple[list[int], torch.Tensor]], other: list[tuple[list[int], torch.Tensor]]) -> bool:
    assert one and [ids for ids, _ in one] == [ids for ids, _ in other]
    return all(torch.equal(a, b) for (_, a), (_, b) in zip(one, other, strict=True))


def take(iterator: Iterator[Batch], count: int) -> list[Batch]:
    return [next(iterator) for _ in range(count)]


@pytest.mark.parametrize(
    ("context", "persistent"),
    slow_except([("fork", False), ("fork", True)], [("fork", False), ("fork", True), ("spawn", True)]),
)
def test_workers_yield_the_loaders_batches_in_its_order_epoch_after_epoch(
    make_dataset: Make, context: str, persistent: bool
) -> None:
    path = make_dataset(90)
    alone = loader_of(path)
    workers = DataLoader(
        loader_of(path),
        batch_size=None,
        num_workers=1 if context == "spawn" else 2,  # each that is spawned imports torch
        multiprocessing_context=context,
        persistent_workers=persistent,
    )
    assert len(workers) == len(alone)
    for _ in range(2 if context == "spawn" else 3):
        assert same(contents(workers), contents(alone))


@pytest.mark.parametrize("workers", slow_except([0, 3], [0, 1, 3]))
def test_any_number_of_workers_gives_the_same(make_dataset: Make, workers: int) -> None:
    path = make_dataset(70)
    loader = DataLoader(loader_of(path), batch_size=None, num_workers=workers)
    alone = loader_of(path)
    for _ in range(2):
        assert same(contents(loader), contents(alone))


def test_keras_look_at_a_first_batch_leaves_the_epochs(make_dataset: Make) -> None:
    """Keras takes one batch to build the model, and then iterates anew; it calls no set_epoch."""
    path = make_dataset(70)
    loader, alone = DataLoader(loader_of(path), batch_size=None), loader_of(path)
    for _ in loader:
        break
    for _ in range(2):
        assert same(contents(loader), contents(alone))


@pytest.mark.slow
def test_more_workers_than_batches_give_the_same(make_dataset: Make) -> None:
    path = make_dataset(20)
    loader = DataLoader(loader_of(path), batch_size=None, num_workers=3)
    alone = loader_of(path)
    for _ in range(2):
        assert same(contents(loader), contents(alone))


@pytest.mark.parametrize("persistent", [False, True])
def test_set_epoch_reaches_workers(make_dataset: Make, persistent: bool) -> None:
    path = make_dataset(60)
    inner = loader_of(path)
    loader = DataLoader(inner, batch_size=None, num_workers=2, persistent_workers=persistent)
    alone = loader_of(path)
    for epoch in (5, 2):
        inner.set_epoch(epoch)
        alone.set_epoch(epoch)
        assert same(contents(loader), contents(alone))


def test_after_a_break_workers_begin_the_next_epoch(make_dataset: Make) -> None:
    path = make_dataset(60)
    loader = DataLoader(loader_of(path), batch_size=None, num_workers=2)
    for number, _ in enumerate(loader):
        if number:
            break
    alone = loader_of(path)
    alone.set_epoch(1)
    assert same(contents(loader), contents(alone))


def begin_late(broken_off: Event, number: int) -> None:
    if number:
        broken_off.wait()
        time.sleep(0.2)  # by then it has been told to end


def test_a_worker_ended_before_its_first_batch_joins_the_others_next_epoch(make_dataset: Make) -> None:
    path = make_dataset(60)
    inner = loader_of(path)
    options: dict[str, Any] = {"batch_size": None, "num_workers": 2}
    broken_off = multiprocessing.Event()
    for _ in DataLoader(inner, **options, worker_init_fn=functools.partial(begin_late, broken_off)):
        broken_off.set()
        break
    alone = loader_of(path)
    alone.set_epoch(1)
    assert same(contents(DataLoader(inner, **options)), contents(alone))


def test_a_loader_that_was_iterated_goes_on_in_workers_with_the_next_epoch(make_dataset: Make) -> None:
    path = make_dataset(60)
    inner = loader_of(path)
    alone = loader_of(path)
    for _ in range(2):
        assert same(contents(inner), contents(alone))
    assert same(contents(DataLoader(inner, batch_size=None, num_workers=2)), contents(alone))


def test_a_loaded_state_goes_on_in_workers_once(make_dataset: Make) -> None:
    path = make_dataset(90)
    alone = loader_of(path)
    iterator = iter(alone)
    take(iterator, 4)
    inner = loader_of(path)
    inner.load_state_dict(alone.state_dict())
    loader = DataLoader(inner, batch_size=None, num_workers=2)
    assert same(contents(loader), contents(iterator))
    assert same(contents(loader), contents(alone))


@pytest.mark.parametrize("kept", [False, True])
def test_workers_take_over_the_lanes_of_a_state(make_dataset: Make, kept: bool) -> None:
    path = make_dataset(90)
    alone = loader_of(path, lanes=7)
    iterator = iter(alone)
    take(iterator, 4)
    inner = loader_of(path)
    loader = DataLoader(inner, batch_size=None, num_workers=2, persistent_workers=kept)
    if kept:
        list(loader)  # its workers have begun with lanes of their own
    inner.load_state_dict(alone.state_dict())
    assert same(contents(loader), contents(iterator))
    assert same(contents(loader), contents(alone))


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize("kind", [loader_of, picstore.MapDataset])
def test_a_script_that_workers_would_run_again_is_told_what_to_write(
    make_dataset: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, kind: Callable[[Path], Any]
) -> None:
    script = tmp_path / "train.py"
    script.write_text("from picstore import Loader\n")
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(script), raising=False)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    loader = DataLoader(kind(make_dataset(20)), batch_size=None, num_workers=1, multiprocessing_context=method)
    with pytest.raises(UsageError, match=r"train\.py, which .* if __name__ == \"__main__\":"):
        iter(loader)


def test_batches_can_be_pinned_and_moved(make_dataset: Make) -> None:
    batch = next(iter(loader_of(make_dataset(20))))
    moved = batch.to("meta", non_blocking=True)
    assert isinstance(moved.images, torch.Tensor) and moved.images.device.type == "meta"
    assert moved.labels.device.type == moved.ids.device.type == "meta"


def test_a_loader_can_be_pickled_between_batches(make_dataset: Make) -> None:
    loader = loader_of(make_dataset(60))
    iterator = iter(loader)
    take(iterator, 3)
    state = loader.state_dict()
    again = pickle.loads(pickle.dumps(loader))  # noqa: S301 - our own
    again.load_state_dict(state)
    assert same(contents(again), contents(iterator))


# A mux.


@pytest.mark.parametrize("workers", [1, 2])
def test_a_mux_in_workers_yields_the_same_batches(make_dataset: Make, workers: int) -> None:
    path = make_dataset(40)
    alone, inside = iter(mux_of(path)), iter(DataLoader(mux_of(path), batch_size=None, num_workers=workers))
    assert same(contents(take(inside, 9)), contents(take(alone, 9)))


@pytest.mark.slow
def test_a_mux_with_an_end_goes_on_in_workers(make_dataset: Make) -> None:
    path = make_dataset(40)
    alone = mux_of(path, epoch_batches=5)
    loader = DataLoader(mux_of(path, epoch_batches=5), batch_size=None, num_workers=2)
    for _ in range(3):
        found = contents(loader)
        assert len(found) == 5
        assert same(found, contents(alone))


# torchdata.


def stateful(dataset: Any, workers: int) -> Any:
    require(importlib.util.find_spec("torchdata"), "torchdata")
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(dataset, batch_size=None, num_workers=workers)


@pytest.mark.parametrize(
    ("workers", "taken"),
    [
        *slow_except([(0, 9)], [(0, 9), *product([0, 2], [1, 10, 11]), (1, 11)]),
        *(pytest.param(1, taken, marks=pytest.mark.nightly) for taken in (1, 10)),
    ],
)
def test_a_stateful_data_loader_goes_on_with_the_following_batch(make_dataset: Make, workers: int, taken: int) -> None:
    path = make_dataset(90)
    alone = loader_of(path)
    expected = [contents(alone), contents(alone)]
    loader = stateful(loader_of(path), workers)
    iterator = iter(loader)
    assert same(contents(take(iterator, taken)), expected[0][:taken])
    state = copy.deepcopy(loader.state_dict())
    del iterator
    again = stateful(loader_of(path), workers)
    again.load_state_dict(state)
    found = contents(again)
    if taken < len(expected[0]):
        assert same(found, expected[0][taken:])
        found = contents(again)
    # With workers, what is left of an epoch of which all batches were taken is an epoch of none.
    assert same(found or contents(again), expected[1])


def test_a_workers_state_is_refused_by_another_number_of_workers(make_dataset: Make) -> None:
    loader = loader_of(make_dataset(60))
    state = {**loader.state_dict(), "worker": [1, 2]}
    with pytest.raises(UsageError, match="as many workers"):
        loader.load_state_dict(state)


# Lightning.


@pytest.mark.slow
def test_lightning_resumes_with_the_following_batch(make_dataset: Make, tmp_path: Path) -> None:
    require(importlib.util.find_spec("lightning"), "lightning")
    import lightning

    class Recorder(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(()))
            self.seen: list[list[int]] = []

        def training_step(self, batch: Batch, number: int) -> torch.Tensor:
            self.seen.append(batch.ids.tolist())
            assert isinstance(batch.images, torch.Tensor)
            return self.weight * batch.images.float().mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def run(model: Recorder, *, steps: int, resume: Path | None) -> None:
        trainer = lightning.Trainer(
            accelerator="cpu",
            devices=1,
            max_steps=steps,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(model, loader_of(path), ckpt_path=resume)
        trainer.save_checkpoint(tmp_path / "at.ckpt")

    path = make_dataset(60)
    whole, first, second = Recorder(), Recorder(), Recorder()
    run(whole, steps=17, resume=None)
    run(first, steps=10, resume=None)
    run(second, steps=17, resume=tmp_path / "at.ckpt")
    assert len(whole.seen) == 17
    assert first.seen + second.seen == whole.seen
