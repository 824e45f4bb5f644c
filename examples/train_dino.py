"""Train without labels by self-distillation on many crops of an image (DINO, Caron et al., ICCV 2021).

    python examples/train_dino.py photographs-shuffled --model vit_small_patch16_224 --device cuda

A record is read and decoded once; two large crops go to teacher and student, eight small ones to the student.
"""

from __future__ import annotations

import argparse
import copy

import torch
from torch import nn
from torch.nn import functional

import picstore

STUDENT, TEACHER = 0.1, 0.04  # temperatures


def make_backbone(name: str) -> tuple[nn.Module, int]:
    """One of timm's models and the width of its features, or ``"tiny"``, which a laptop trains in seconds."""
    if name != "tiny":
        import timm

        model = timm.create_model(name, num_classes=0, dynamic_img_size=True)
        return model, model.num_features
    layers = [nn.Conv2d(3, 16, 5, stride=4), nn.GroupNorm(4, 16), nn.GELU(), nn.Conv2d(16, 32, 3), nn.GELU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()), 32


def make_network(name: str, prototypes: int) -> nn.Module:
    """Backbone and projection head."""
    backbone, width = make_backbone(name)
    return nn.Sequential(backbone, nn.Linear(width, 256), nn.GELU(), nn.Linear(256, prototypes))


def main() -> None:
    """Train for a number of steps."""
    options = parse()
    torch.manual_seed(options.seed)
    # begin loader
    loader = picstore.Loader(
        options.dataset,
        batch_size=options.batch_size,
        transform=picstore.recipes.dinov2(options.size, options.small_size, local_views=options.local_views),
        seed=options.seed,
        device=options.device,
    )
    # end loader
    student = make_network(options.model, options.prototypes).to(options.device)
    teacher = copy.deepcopy(student).requires_grad_(False)
    center = torch.zeros(options.prototypes, device=options.device)
    optimizer = torch.optim.AdamW(student.parameters(), options.lr, weight_decay=0.04)
    step = 0
    while step < options.steps:
        for batch in loader:
            large = torch.cat([batch.views["global_1"], batch.views["global_2"]])  # (2, N, 3, H, W)
            small = batch.views["local"]
            with torch.no_grad():
                outputs = teacher(large.flatten(0, 1)).unflatten(0, large.shape[:2])
                targets = functional.softmax((outputs - center) / TEACHER, dim=-1)
                center = 0.9 * center + 0.1 * outputs.mean((0, 1))
            guesses = [student(views.flatten(0, 1)).unflatten(0, views.shape[:2]) for views in (large, small)]
            logs = functional.log_softmax(torch.cat(guesses) / STUDENT, dim=-1)
            # Each crop of the student against each large crop of the teacher but itself.
            losses = -torch.einsum("tnk,snk->ts", targets, logs) / len(batch.labels)
            loss = losses[~torch.eye(*losses.shape, dtype=torch.bool, device=losses.device)].mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for slow, fast in zip(teacher.parameters(), student.parameters(), strict=True):
                    slow.lerp_(fast, 1 - options.momentum)
            step += 1
            print(f"step {step} loss {loss.item():.6f}", flush=True)
            if step == options.steps:
                break


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--model", default="vit_small_patch16_224")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--small-size", type=int, default=96)
    parser.add_argument("--local-views", type=int, default=8)
    parser.add_argument("--prototypes", type=int, default=4096)
    parser.add_argument("--momentum", type=float, default=0.996)
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    return parser.parse_args()


if __name__ == "__main__":
    main()
