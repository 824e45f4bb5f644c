"""Loops of other libraries train on the batches of the loader alone, on two ranks, and after they were resumed."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable
from pathlib import Path

import framework_loops
import pytest
from framework_loops import EPOCHS, LOOPS, make_loader, note
from pictures import require
from programs import run_ranks
from torch.utils.data import DataLoader

import picstore

Make = Callable[..., Path]

pytestmark = pytest.mark.slow


def alone(path: Path, *, rank: int, world_size: int) -> list[list[object]]:
    """What a loader of this rank yields."""
    loader = make_loader(path, rank=rank, world_size=world_size)
    return [list(note(batch.ids, batch.images)) for _ in range(EPOCHS) for batch in loader]


def test_loops_on_two_ranks_train_on_the_batches_of_the_loader_alone(make_dataset: Make, tmp_path: Path) -> None:
    """DDP, Accelerate with a loader a rank and with dispatched batches, the Trainer of transformers, Lightning."""
    for library in ("accelerate", "transformers", "lightning"):
        require(importlib.util.find_spec(library), library)
    path = make_dataset(40)
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    modules = ["accelerate", "lightning", "transformers.trainer"]
    run_ranks(2, framework_loops.__file__, path, tmp_path, environment=environment, modules=modules)
    for loop in LOOPS:
        for rank in range(2):
            if loop is framework_loops.dispatch:  # of two batches of the first process each rank has one
                expected = alone(path, rank=0, world_size=1)[rank::2]
            else:
                expected = alone(path, rank=rank, world_size=2)
            assert json.loads((tmp_path / f"{loop.__name__}.{rank}.json").read_text()) == expected, loop


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata
@pytest.mark.parametrize("stop", [3, 10, 13])  # of ten steps an epoch
def test_a_loader_prepared_by_accelerate_goes_on_in_the_middle_of_an_epoch(
    make_dataset: Make, tmp_path: Path, stop: int
) -> None:
    """DataLoaderShard takes a batch ahead; with StatefulDataLoader its checkpoints are those of the batch before."""
    for library in ("accelerate", "torchdata"):
        require(importlib.util.find_spec(library), library)
    from accelerate import Accelerator, DataLoaderConfiguration

    path = make_dataset(40)
    seen: list[list[object]] = []
    for leg in range(2):
        config = DataLoaderConfiguration(use_stateful_dataloader=True)
        accelerator = Accelerator(cpu=True, dataloader_config=config)
        outside = DataLoader(make_loader(path), batch_size=None, collate_fn=picstore.Batch.asdict)
        batches = accelerator.prepare(outside)
        if leg:
            accelerator.load_state(str(tmp_path / "state"))
            batches.set_epoch(stop // 10)
        for _ in range(len(seen) // 10, 3):
            for batch in batches:
                seen.append(list(note(batch["ids"], batch["images"])))
                if leg == 0 and len(seen) == stop:
                    break
            if len(seen) == stop:
                break
        accelerator.save_state(str(tmp_path / "state"))
    loader = make_loader(path)
    assert seen == [list(note(batch.ids, batch.images)) for _ in range(3) for batch in loader]
