"""Train with Hugging Face Accelerate, on any number of processes.

    accelerate launch examples/train_accelerate.py train-shuffled

Each process makes the batches of its own rank: the loader needs no ``prepare``. With ``--dispatch`` the first process
makes them all, and Accelerate cuts each and sends the parts to the others (``dispatch_batches``): for a data set that
only one machine can reach. It takes one batch for each process at a time, so the global batches are the same.
"""

from __future__ import annotations

import argparse

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from torch.utils.data import DataLoader
from train_resnet import MEAN, STD, make_model

import picstore


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--dispatch", action="store_true")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--epochs", type=int, default=18)
    parser.add_argument("--global-batch", type=int, default=1024)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--lr", type=float, default=0.5)
    options = parser.parse_args()

    config = DataLoaderConfiguration(dispatch_batches=options.dispatch)
    accelerator = Accelerator(cpu=options.cpu, dataloader_config=config)
    torch.manual_seed(0)
    # begin loader
    loader = picstore.Loader(
        options.dataset,
        batch_size=options.global_batch // accelerator.num_processes,
        transform=[
            picstore.RandomResizedCrop(options.size),
            picstore.RandomHorizontalFlip(),
            picstore.Normalize(MEAN, STD),
        ],
        rank=0 if options.dispatch else None,  # by default torch.distributed's
        world_size=1 if options.dispatch else None,
        device="cpu" if options.dispatch else accelerator.device,
    )
    model = make_model(options.model, len(loader.dataset.classes))
    # end loader
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9)
    model, optimizer = accelerator.prepare(model, optimizer)
    batches = DataLoader(loader, batch_size=None, collate_fn=tuple)  # Accelerate cuts tensors in tuples and dicts
    if options.dispatch:
        batches = accelerator.prepare(batches)
    for _ in range(options.epochs):
        for step, (images, labels) in enumerate(batches):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            mean = accelerator.reduce(loss.detach(), "mean")
            accelerator.print(f"step {step} loss {mean.item():.6f}", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
