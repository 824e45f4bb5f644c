"""Lightning's side of its tests: models that note what they train on, and trainers that write nothing."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

import picstore

__all__ = ["ModelCheckpoint", "Recorder", "Validator", "alone", "make_loader", "make_trainer", "note"]

Seen = tuple[list[int], int]  # ids and sum of the pixels

make_loader = partial(
    picstore.Loader, batch_size=8, transform=[picstore.RandomResizedCrop(24)], threads=1, isolate=False
)


def note(batch: picstore.Batch) -> Seen:
    return batch.ids.tolist(), int(batch.images.sum())


class Recorder(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.trained: list[Seen] = []
        self.validated: list[int] = []

    def training_step(self, batch: picstore.Batch, number: int) -> torch.Tensor:
        self.trained.append(note(batch))
        return self.weight * batch.images.float().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Validator(Recorder):
    def validation_step(self, batch: picstore.Batch, number: int) -> None:
        self.validated += batch.ids.tolist()


def make_trainer(**options: Any) -> lightning.Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return lightning.Trainer(accelerator="cpu", devices=1, **{"enable_checkpointing": False, **quiet, **options})


def alone(path: Path, epochs: int) -> list[Seen]:
    loader = make_loader(path)
    return [note(batch) for _ in range(epochs) for batch in loader]
