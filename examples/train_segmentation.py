"""Train semantic segmentation: masks are cropped, flipped and resized with their images.

    python examples/train_segmentation.py train-shuffled --classes 21 --model lraspp_mobilenet_v3_large --device cuda

A mask is an attachment of a record, a grey PNG of the image's size whose values are classes, 255 for none:
``picstore.Writer(path, attachments=["mask"])`` and ``writer.add(image, attachments={"mask": png})``.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torchvision import models
from train_resnet import MEAN, STD

import picstore

IGNORED = 255


def make_model(name: str, classes: int) -> nn.Module:
    """One of torchvision's models, which yield logits of each pixel as ``"out"``, or ``"tiny"``."""
    if name != "tiny":
        return models.get_model(name, weights=None, weights_backbone=None, num_classes=classes)

    class Tiny(nn.Sequential):
        def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"out": super().forward(images)}

    return Tiny(nn.Conv2d(3, 32, 5, padding=2), nn.ReLU(), nn.Conv2d(32, classes, 1))


def count_pixels(logits: torch.Tensor, masks: torch.Tensor, classes: int) -> torch.Tensor:
    """Pixels of each class in a matrix of truth × prediction."""
    known = masks != IGNORED
    return torch.bincount(classes * masks[known] + logits.argmax(1)[known], minlength=classes**2).view(classes, -1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--classes", type=int, required=True)
    parser.add_argument("--model", default="lraspp_mobilenet_v3_large")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--size", type=int, default=480)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()

    torch.manual_seed(0)
    loader = picstore.Loader(
        options.dataset,
        batch_size=options.batch_size,
        transform=[
            picstore.RandomResizedCrop(options.size, scale=(0.25, 1.0)),
            picstore.RandomHorizontalFlip(),
            picstore.ColorJitter(0.2, 0.2, 0.2),
            picstore.Normalize(MEAN, STD),
        ],
        targets=["mask"],
        device=options.device,
    )
    model = make_model(options.model, options.classes).to(options.device)
    optimizer = torch.optim.AdamW(model.parameters(), options.lr)
    for epoch in range(options.epochs):
        counts = torch.zeros(options.classes, options.classes, dtype=torch.int64)
        for batch in loader:
            masks = torch.stack([target["mask"] for target in batch.targets]).to(options.device, torch.int64)
            logits = model(batch.images)["out"]
            loss = cross_entropy(logits, masks, ignore_index=IGNORED)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            counts += count_pixels(logits.detach(), masks, options.classes).cpu()
        unions = counts.sum(0) + counts.sum(1) - counts.diag()
        print(f"epoch {epoch} mean IoU {(counts.diag() / unions)[unions > 0].mean():.4f}", flush=True)


if __name__ == "__main__":
    main()
