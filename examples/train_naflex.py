"""Train timm's NaFlexVit on images of their own aspect ratios, cut into at most so many patches.

    python examples/train_naflex.py train-shuffled --device cuda

The length of the sequences is drawn for each batch, and the batch has as many images as its tokens allow. The length of
an epoch is known before, and a run on several ranks has the same length on all of them at each step.
"""

from __future__ import annotations

import argparse

import torch
from timm.models.naflexvit import NaFlexVit, NaFlexVitCfg
from torch import nn

import picstore


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 256, 576, 784, 1024])
    parser.add_argument("--tokens", type=int, default=16384, help="patches of a batch")
    parser.add_argument("--patch", type=int, default=16)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--depth", type=int, default=12)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()

    torch.manual_seed(0)
    # begin loader
    loader = picstore.Loader(
        options.dataset,
        transform=picstore.Sequences(
            options.lengths,
            lambda length: [
                picstore.ResizeToSequence(options.patch, length),
                picstore.RandomHorizontalFlip(),
                picstore.Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
            ],
            tokens=options.tokens,
        ),
        device=options.device,
    )
    # end loader
    config = NaFlexVitCfg(
        patch_size=options.patch,
        embed_dim=options.width,
        depth=options.depth,
        num_heads=max(1, options.width // 64),
        global_pool="avg",
    )
    model = NaFlexVit(config, num_classes=len(loader.dataset.classes)).to(options.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, weight_decay=0.05)
    step = 0
    for _ in range(options.epochs):
        for images, labels in loader:
            patches = picstore.patchify(images, options.patch, lengths=options.lengths)
            loss = nn.functional.cross_entropy(model(patches), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            batch, length = patches["patch_valid"].shape
            print(f"step {step} images {batch} length {length} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
