"""A Trainer of transformers takes a loader as its data set, saves, and resumes in the middle of an epoch."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pictures import require

import picstore
from picstore.errors import UsageError

Make = Callable[..., Path]
CROP = [picstore.RandomResizedCrop(16), picstore.RandomHorizontalFlip()]


class Model(torch.nn.Module):
    """A model of one weight that notes its batches."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))
        self.seen: list[bytes] = []

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        if self.training:
            self.seen.append(pixel_values.numpy().tobytes())
        logits = self.weight * pixel_values.flatten(1)[:, :5].float()
        return {"loss": self.weight * pixel_values.float().mean() / 255 + 0 * labels.sum(), "logits": logits}


def loader_of(path: Path) -> picstore.Loader:
    return picstore.Loader(path, batch_size=4, transform=CROP, threads=1, isolate=False)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_a_trainer_takes_a_loader_evaluates_saves_and_resumes_in_mid_epoch(make_dataset: Make, tmp_path: Path) -> None:
    from transformers import Trainer, TrainingArguments

    path = make_dataset(20)

    def trainer_of(output: str, **options: Any) -> Any:
        arguments = TrainingArguments(
            str(tmp_path / output),
            per_device_train_batch_size=1,
            save_strategy="steps",
            save_steps=7,
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
            logging_strategy="no",
            **{"num_train_epochs": 3, **options},
        )
        crop = picstore.MapDataset(path, transform=[picstore.CenterCrop(16)])
        return Trainer(
            Model(), arguments, train_dataset=loader_of(path), data_collator=picstore.Batch.as_inputs, eval_dataset=crop
        )

    whole = trainer_of("whole")
    whole.train()
    assert len(whole.model.seen) == 15 == len(set(whole.model.seen))
    alone = loader_of(path)
    expected = [batch.images.numpy().tobytes() for _ in range(3) for batch in alone]
    assert whole.model.seen == expected
    resumed = trainer_of("whole")
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-7"))
    assert resumed.model.seen == expected[7:]
    assert whole.evaluate()["eval_loss"] > 0


def test_inputs_are_of_one_batch(make_dataset: Make) -> None:
    batches = list(loader_of(make_dataset(8)))
    inputs = picstore.Batch.as_inputs(batches[:1])
    assert inputs["pixel_values"] is batches[0].images and inputs["labels"] is batches[0].labels
    with pytest.raises(
        UsageError, match="asks for 2 at a time; give its TrainingArguments per_device_train_batch_size=1"
    ):
        picstore.Batch.as_inputs(batches)


def test_the_trainers_own_collator_cannot_take_a_batch(make_dataset: Make) -> None:
    """As docs/frameworks.md says; were the symptom another one, the page would be wrong."""
    require(importlib.util.find_spec("transformers"), "transformers")
    from transformers import default_data_collator

    with pytest.raises(RuntimeError, match="Could not infer dtype of dict"):
        default_data_collator(list(loader_of(make_dataset(8)))[:1])


def test_skipping_batches_of_a_bare_loader_says_what_to_write(make_dataset: Make) -> None:
    require(importlib.util.find_spec("accelerate"), "accelerate")
    from accelerate import skip_first_batches

    with pytest.raises(UsageError, match=r"give it the loader as train_dataset with data_collator=picstore\.Batch"):
        skip_first_batches(loader_of(make_dataset(8)), 1)
