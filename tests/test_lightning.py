"""Lightning's data module: loaders of the trainer's ranks, whose checkpoints go on with the batch that follows."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from pictures import require

import picstore
from picstore.errors import UsageError, install_command

require(importlib.util.find_spec("lightning"), "lightning")

Make = Callable[..., Path]
STAGES = ("train", "val")

pytestmark = [
    pytest.mark.slow,  # importing Lightning takes 3 s
    pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated"),
    pytest.mark.filterwarnings("ignore:.*treespec, LeafSpec.* is deprecated"),
]


@pytest.fixture(scope="module")
def lightning_models() -> ModuleType:
    """Models and trainers, imported by tests alone: Lightning takes 4 s of each process that would collect them."""
    return importlib.import_module("lightning_models")


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")  # without the callback
def test_every_checkpoint_goes_on_to_the_batches_of_the_loader_alone(
    lightning_models: ModuleType, make_dataset: Make, tmp_path: Path
) -> None:
    """Saved after each step of two epochs of five, also the last of an epoch, and at the ends of both."""
    path = make_dataset(40)
    data = picstore.lightning.DataModule(train=partial(lightning_models.make_loader, path))
    checkpoints = [
        lightning_models.ModelCheckpoint(tmp_path / "steps", "{step}", every_n_train_steps=1, save_top_k=-1),
        lightning_models.ModelCheckpoint(tmp_path / "epochs", "{step}", save_on_train_epoch_end=True, save_top_k=-1),
    ]
    whole = lightning_models.Recorder()
    lightning_models.make_trainer(max_epochs=3, callbacks=checkpoints, enable_checkpointing=True).fit(
        whole, datamodule=data
    )
    expected = lightning_models.alone(path, 3)
    assert whole.trained == expected and len(expected) == 15
    for folder, steps in (("steps", range(1, 11)), ("epochs", (5, 10))):
        for step in steps:
            model = lightning_models.Recorder()
            again = picstore.lightning.DataModule(train=partial(lightning_models.make_loader, path))
            saved = tmp_path / folder / f"step={step}.ckpt"
            lightning_models.make_trainer(max_epochs=3).fit(model, datamodule=again, ckpt_path=saved)
            assert model.trained == expected[step:], saved


@pytest.mark.parametrize("step", [3, 7])
def test_a_run_that_a_limit_of_steps_ended_in_an_epoch_goes_on(
    lightning_models: ModuleType, make_dataset: Make, tmp_path: Path, step: int
) -> None:
    path = make_dataset(40)
    models: list[Any] = []
    for limit in (step, 13):
        data = picstore.lightning.DataModule(train=partial(lightning_models.make_loader, path))
        trainer, model = lightning_models.make_trainer(max_steps=limit), lightning_models.Recorder()
        trainer.fit(model, datamodule=data, ckpt_path=tmp_path / "at.ckpt" if models else None)
        trainer.save_checkpoint(tmp_path / "at.ckpt")
        models.append(model)
    assert models[0].trained + models[1].trained == lightning_models.alone(path, 3)[:13]


def test_validation_sees_every_record_and_a_test_leaves_training_alone(
    lightning_models: ModuleType, make_dataset: Make, tmp_path: Path
) -> None:
    path, validation = make_dataset(40), make_dataset(21, name="validation")
    every = partial(lightning_models.make_loader, validation, shuffle=False, drop_last=False)
    data = picstore.lightning.DataModule(train=partial(lightning_models.make_loader, path), val=every)
    model = lightning_models.Validator()
    trainer = lightning_models.make_trainer(max_epochs=2, num_sanity_val_steps=0)
    trainer.fit(model, datamodule=data)
    assert sorted(model.validated) == sorted([*range(21)] * 2)
    trainer.save_checkpoint(tmp_path / "at.ckpt")
    lightning_models.make_trainer().validate(model, datamodule=data, ckpt_path=tmp_path / "at.ckpt", verbose=False)
    assert len(model.validated) == 63
    fresh = lightning_models.Validator()
    lightning_models.make_trainer(max_epochs=1, num_sanity_val_steps=0).fit(
        fresh, datamodule=data
    )  # from the beginning, not from the validated checkpoint
    assert fresh.trained == lightning_models.alone(path, 1)


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers")
def test_the_sanity_check_leaves_the_batches_of_all_epochs(
    lightning_models: ModuleType, make_dataset: Make, steps: int
) -> None:
    path = make_dataset(40)
    models = []
    for checked, module in ((0, True), (steps, True), (steps, False)):
        loaders = {stage: partial(lightning_models.make_loader, path, seed=seed) for seed, stage in enumerate(STAGES)}
        trainer = lightning_models.make_trainer(max_epochs=2, num_sanity_val_steps=checked)
        model = lightning_models.Validator()
        if module:
            trainer.fit(model, datamodule=picstore.lightning.DataModule(**loaders))
        else:
            trainer.fit(model, *(make() for make in loaders.values()))
        models.append((model.trained, model.validated[8 * checked :]))
    assert models[0] == models[1] == models[2] and len(models[0][1]) == 80


def test_loaders_get_the_trainers_rank_and_device_unless_given_their_own(
    lightning_models: ModuleType, make_dataset: Make
) -> None:
    path, calls = make_dataset(40), []

    def make(**placed: Any) -> picstore.Loader:
        calls.append(placed)
        return lightning_models.make_loader(path, **placed)

    data = picstore.lightning.DataModule(train=make, test=partial(make, rank=1, world_size=2))
    assert data.test_dataloader().sampler.samples == 20
    lightning_models.make_trainer(max_steps=1).fit(lightning_models.Recorder(), datamodule=data)
    assert data.test_dataloader() is data.loaders["test"]
    ours = {"rank": 1, "world_size": 2}
    cpu = torch.device("cpu")
    assert calls == [ours, {"rank": 0, "world_size": 1, "device": cpu}, {**ours, "device": cpu}]


def test_an_endless_mux_is_refused_and_one_with_a_length_goes_on(
    lightning_models: ModuleType, make_dataset: Make, tmp_path: Path
) -> None:
    dataset = picstore.Dataset(make_dataset(40))
    make = partial(picstore.DataMux, [(dataset, 0, 4)], transform=[picstore.Resize((8, 8))], threads=1, isolate=False)
    with pytest.raises(UsageError, match="epoch_batches"):
        lightning_models.make_trainer(max_steps=1).fit(
            lightning_models.Recorder(), datamodule=picstore.lightning.DataModule(train=make)
        )
    models: list[Any] = []
    for limit in (7, 12):
        data = picstore.lightning.DataModule(train=partial(make, epoch_batches=5))
        trainer, model = lightning_models.make_trainer(max_steps=limit), lightning_models.Recorder()
        trainer.fit(model, datamodule=data, ckpt_path=tmp_path / "at.ckpt" if models else None)
        trainer.save_checkpoint(tmp_path / "at.ckpt")
        models.append(model)
    batches = iter(make())
    assert models[0].trained + models[1].trained == [lightning_models.note(next(batches)) for _ in range(12)]


def test_without_lightning_the_data_module_says_what_to_install() -> None:
    code = """
import sys
sys.modules["lightning"] = None  # as if it were not installed
import picstore
try:
    picstore.lightning
except picstore.MissingDependency as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"picstore.lightning needs Lightning: {install_command('lightning')}\n"
