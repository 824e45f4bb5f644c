"""Train a classifier with plain PyTorch, resuming in the middle of an epoch.

    python examples/train_resnet.py train-shuffled --model resnet50 --device cuda --checkpoint run.pt

Run it again after an interruption: it goes on with the batch that would have come, to the same losses.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import nn
from torchvision import models

import picstore

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def make_model(name: str, classes: int) -> nn.Module:
    """One of torchvision's models, or ``"tiny"``, which a laptop trains in seconds.

    The tiny one treats each image by itself, so training it on several processes gives the losses of one.
    """
    if name != "tiny":
        return models.get_model(name, num_classes=classes)
    return nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=4),
        nn.GroupNorm(4, 16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, classes),
    )


def make_loader(options: argparse.Namespace) -> picstore.Loader:
    """Augmented, normalized batches."""
    return picstore.Loader(
        options.dataset,
        batch_size=options.batch_size,
        transform=[
            picstore.RandomResizedCrop(options.size),
            picstore.RandomHorizontalFlip(),
            picstore.ColorJitter(0.2, 0.2, 0.2),
            picstore.Normalize(MEAN, STD),
        ],
        seed=options.seed,
        device=options.device,
        memory_format=torch.channels_last,
    )


def save(path: Path, **parts: object) -> None:
    """Write a checkpoint so that an interruption leaves the old one or the new one."""
    temporary = path.with_suffix(".tmp")
    torch.save(parts, temporary)
    temporary.replace(path)


def main() -> None:
    options = parse()
    torch.manual_seed(options.seed)
    loader = make_loader(options)
    model = make_model(options.model, len(loader.dataset.classes)).to(options.device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9, weight_decay=5e-5)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, options.lr, total_steps=options.epochs * len(loader))
    loss_of = nn.CrossEntropyLoss(label_smoothing=0.1)
    step = 0
    if options.checkpoint and options.checkpoint.exists():
        state = torch.load(options.checkpoint, map_location="cpu", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        scheduler.load_state_dict(state["scheduler"])
        loader.load_state_dict(state["loader"])
        torch.set_rng_state(state["random"])  # dropout
        step = state["step"]

    model.train()
    while step < options.epochs * len(loader):
        for images, labels in loader:
            loss = loss_of(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            step += 1
            print(f"step {step} loss {loss.item():.9f}", flush=True)
            if options.checkpoint and step % options.every == 0:
                save(
                    options.checkpoint,
                    model=model.state_dict(),
                    optimizer=optimizer.state_dict(),
                    scheduler=scheduler.state_dict(),
                    loader=loader.state_dict(),
                    random=torch.get_rng_state(),
                    step=step,
                )
            if step == options.stop_after:
                return
    print(loader.stats)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--model", default="resnet50", help="of torchvision, or tiny")
    parser.add_argument("--epochs", type=int, default=18)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--lr", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--every", type=int, default=100, help="steps between checkpoints")
    parser.add_argument("--stop-after", type=int, help="end after this step, as an interruption would")
    return parser.parse_args()


if __name__ == "__main__":
    main()
