"""Train with Hugging Face's Trainer: batches from the loader, evaluation by index.

    python examples/train_trainer.py train-shuffled val --output run

The Trainer asks for a DataLoader of its own; the loader goes into it as it is and knows its rank. A callback tells it
the epoch: a resumed run skips the batches that were trained on, and goes on with the next. For evaluation the
Trainer takes a map-style data set, which its sampler deals to the ranks.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch.utils.data import DataLoader
from train_resnet import MEAN, STD
from transformers import (
    ResNetConfig,
    ResNetForImageClassification,
    Trainer,
    TrainerCallback,
    TrainerState,
    TrainingArguments,
)

import picstore


def to_inputs(batch: picstore.Batch) -> dict[str, torch.Tensor]:
    """The arguments of a model of transformers."""
    return {"pixel_values": batch.images, "labels": batch.labels}


def stack_items(items: list[tuple[torch.Tensor, int]]) -> dict[str, torch.Tensor]:
    """The same of single images."""
    images, labels = zip(*items, strict=True)
    return {"pixel_values": torch.stack(images), "labels": torch.tensor(labels)}


class SetEpoch(TrainerCallback):
    """Tells a loader the Trainer's epoch, also that in which a run is resumed."""

    def __init__(self, loader: picstore.Loader) -> None:
        self.loader = loader

    def on_epoch_begin(self, args: TrainingArguments, state: TrainerState, control: Any, **_: Any) -> None:
        """The epoch is a fraction in the middle of one."""
        self.loader.set_epoch(int(state.epoch))


class LoaderTrainer(Trainer):
    """A Trainer whose training batches come from a loader, as what ``to_inputs`` makes of them."""

    def __init__(self, *args: Any, loader: picstore.Loader, to_inputs: Any = to_inputs, **options: Any) -> None:
        super().__init__(*args, **options)
        self.batches = DataLoader(loader, batch_size=None, collate_fn=to_inputs)
        self.add_callback(SetEpoch(loader))

    def get_train_dataloader(self) -> DataLoader[Any]:
        """The loader's batches; each rank has its own, so that nothing is prepared."""
        return self.batches


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train")
    parser.add_argument("validation")
    parser.add_argument("--output", default="trainer")
    parser.add_argument("--epochs", type=int, default=18)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--resume", help="a checkpoint")
    parser.add_argument("--tiny", action="store_true", help="a model that a laptop trains in seconds")
    options = parser.parse_args()

    torch.manual_seed(0)
    size, normalize = options.size, picstore.Normalize(MEAN, STD)
    loader = picstore.Loader(
        options.train,
        batch_size=options.batch_size,
        transform=[picstore.RandomResizedCrop(size), picstore.RandomHorizontalFlip(), normalize],
    )
    crop = [picstore.Resize(size * 8 // 7), picstore.CenterCrop(size), normalize]
    shape = {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1]} if options.tiny else {}
    config = ResNetConfig(num_labels=len(loader.dataset.classes), **shape)
    trainer = LoaderTrainer(
        ResNetForImageClassification(config),
        TrainingArguments(
            options.output,
            num_train_epochs=options.epochs,
            per_device_train_batch_size=options.batch_size,
            per_device_eval_batch_size=options.batch_size,
            eval_strategy="epoch",
            save_strategy="epoch",
            learning_rate=1e-3,
            report_to="none",
        ),
        eval_dataset=picstore.MapDataset(options.validation, transform=crop),
        data_collator=stack_items,
        compute_metrics=lambda p: {"accuracy": (p.predictions.argmax(1) == p.label_ids).mean()},
        loader=loader,
    )
    trainer.train(resume_from_checkpoint=options.resume)
    print(trainer.evaluate())


if __name__ == "__main__":
    main()
