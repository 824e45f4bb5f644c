"""Train timm's models by timm's recipe: Mixup and CutMix, label smoothing, random erasing, AdamW, cosine schedule, EMA.

    python examples/train_timm.py train-shuffled --validation val --model resnet50 --device cuda

The loader mixes images and labels, so timm's Mixup and its loader are not needed; the rest is timm's.
"""

from __future__ import annotations

import argparse

import timm
import torch
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import AverageMeter, ModelEmaV3, accuracy
from torch import nn

import picstore


@torch.no_grad()
def evaluate(model: nn.Module, loader: picstore.Loader) -> float:
    """The share of images in percent whose class is found."""
    model.eval()
    found = AverageMeter()
    for images, labels in loader:
        (right,) = accuracy(model(images), labels)
        found.update(right.item(), len(labels))
    return found.avg


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--validation", help="a data set")
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--ema-decay", type=float, default=0.9998)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()

    torch.manual_seed(0)
    classes = len(picstore.Dataset(options.dataset).classes)
    model = timm.create_model(options.model, num_classes=classes).to(options.device)
    data = timm.data.resolve_model_data_config(model)
    size, normalize = data["input_size"][1:], picstore.Normalize(data["mean"], data["std"])
    # begin loader
    mixes = [picstore.MixUp(0.8, label_smoothing=0.1), picstore.CutMix(1.0, label_smoothing=0.1)]
    loader = picstore.Loader(
        options.dataset,
        batch_size=options.batch_size,
        transform=[
            picstore.RandomResizedCrop(size, interpolation="random"),  # bilinear or bicubic
            picstore.RandomHorizontalFlip(),
            normalize,
            picstore.RandomErasing(0.25, value="random"),
            picstore.RandomChoice(mixes),
        ],
        device=options.device,
    )
    # end loader
    validation = options.validation and picstore.Loader(
        options.validation,
        batch_size=options.batch_size,
        transform=[
            picstore.Resize(round(size[0] / data["crop_pct"]), interpolation=data["interpolation"]),
            picstore.CenterCrop(size),
            normalize,
        ],
        shuffle=False,
        drop_last=False,
        device=options.device,
    )
    optimizer = create_optimizer_v2(model, "adamw", lr=options.lr, weight_decay=0.05)
    scheduler = CosineLRScheduler(optimizer, t_initial=options.epochs * len(loader), t_in_epochs=False)
    ema, loss_of = ModelEmaV3(model, decay=options.ema_decay), SoftTargetCrossEntropy()
    step = 0
    for epoch in range(options.epochs):
        model.train()
        for images, labels in loader:  # labels (N, classes)
            loss = loss_of(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            ema.update(model, step)
            scheduler.step_update(step)
            print(f"step {step} loss {loss.item():.4f}", flush=True)
        if validation:
            print(f"epoch {epoch} accuracy {evaluate(model, validation):.2f} ema {evaluate(ema, validation):.2f}")


if __name__ == "__main__":
    main()
