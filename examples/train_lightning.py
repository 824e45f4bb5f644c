"""Train with Lightning on any number of processes; its checkpoints resume in the middle of an epoch.

python examples/train_lightning.py train-shuffled --validation val --devices 4 --resume checkpoints/last.ckpt
"""

from __future__ import annotations

import argparse
from functools import partial

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

    def validation_step(self, batch: picstore.Batch, number: int) -> None:
        images, labels = batch
        right = (self.model(images).argmax(1) == labels).float().mean()
        self.log("accuracy", right, prog_bar=True, batch_size=len(labels), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train")
    parser.add_argument("--validation")
    parser.add_argument("--devices", default="auto", help="number of GPUs, or of processes with --cpu")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--epochs", type=int, default=18)
    parser.add_argument("--batch-size", type=int, default=256, help="of each process")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--every", type=int, default=100, help="steps between checkpoints")
    parser.add_argument("--folder", default="checkpoints")
    parser.add_argument("--resume", help="a checkpoint")
    options = parser.parse_args()

    size, normalize = options.size, picstore.Normalize(MEAN, STD)
    augment = [picstore.RandomResizedCrop(size), picstore.RandomHorizontalFlip(), normalize]
    center = [picstore.Resize(size * 8 // 7), picstore.CenterCrop(size), normalize]
    make_loader = partial(picstore.Loader, batch_size=options.batch_size)
    validate = partial(make_loader, options.validation, transform=center, shuffle=False, drop_last=False)
    # begin fit
    data = picstore.lightning.DataModule(
        train=partial(make_loader, options.train, transform=augment),
        val=validate if options.validation else None,
    )
    trainer = lightning.Trainer(
        accelerator="cpu" if options.cpu else "auto",
        devices=options.devices,
        max_epochs=options.epochs,
        callbacks=[ModelCheckpoint(options.folder, every_n_train_steps=options.every, save_last=True)],
    )
    model = Classifier(make_model(options.model, len(picstore.Dataset(options.train).classes)), lr=0.1)
    trainer.fit(model, datamodule=data, ckpt_path=options.resume)
    # end fit


if __name__ == "__main__":
    main()
