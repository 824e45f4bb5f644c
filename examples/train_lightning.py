"""Train with Lightning, which keeps the loader's state in its checkpoints and resumes in the middle of an epoch.

python examples/train_lightning.py train-shuffled --model resnet50 --resume checkpoints/last.ckpt
"""

from __future__ import annotations

import argparse

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from train_resnet import MEAN, STD, make_model

import picstore


class Classifier(lightning.LightningModule):
    """A model with cross-entropy."""

    def __init__(self, model: nn.Module, lr: float) -> None:
        super().__init__()
        self.model = model
        self.lr = lr

    def training_step(self, batch: picstore.Batch, number: int) -> torch.Tensor:
        images, labels = batch
        loss = nn.functional.cross_entropy(self.model(images), labels)
        self.log("loss", loss, prog_bar=True, batch_size=len(labels))
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--epochs", type=int, default=18)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--every", type=int, default=100, help="steps between checkpoints")
    parser.add_argument("--folder", default="checkpoints")
    parser.add_argument("--resume", help="a checkpoint")
    options = parser.parse_args()
    # --8<-- [start:fit]
    loader = picstore.Loader(
        options.dataset,
        batch_size=options.batch_size,
        transform=[
            picstore.RandomResizedCrop(options.size),
            picstore.RandomHorizontalFlip(),
            picstore.Normalize(MEAN, STD),
        ],
    )
    checkpoint = ModelCheckpoint(options.folder, every_n_train_steps=options.every, save_last=True)
    trainer = lightning.Trainer(max_epochs=options.epochs, callbacks=[checkpoint])
    model = Classifier(make_model(options.model, len(loader.dataset.classes)), lr=0.1)
    trainer.fit(model, loader, ckpt_path=options.resume)
    # --8<-- [end:fit]


if __name__ == "__main__":
    main()
