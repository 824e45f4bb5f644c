"""Train super-resolution on crops of large photographs: pairs of a crop and the same crop four times smaller.

    python examples/train_super_resolution.py prepare photographs/ pairs
    python examples/train_super_resolution.py train pairs --device cuda

``prepare`` stores each photograph whole and, as its attachment, a JPEG of a quarter of its sides. ``train`` reads and
decodes the tiles under each pair of crops, and nothing else.
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path

import torch
from PIL import Image, ImageOps
from torch import nn

import picstore

SCALE = 4


def prepare(folder: Path, out: Path) -> None:
    """Make a data set of pairs."""
    with picstore.Writer(out, attachments=["small"]) as writer:
        for path in sorted(folder.rglob("*.[jJ][pP]*[gG]")):
            with Image.open(path) as image:
                upright = ImageOps.exif_transpose(image).convert("RGB")
            size = upright.width - upright.width % SCALE, upright.height - upright.height % SCALE
            large, small = io.BytesIO(), io.BytesIO()
            upright.crop((0, 0, *size)).save(large, "JPEG", quality=95, subsampling=0)
            upright.crop((0, 0, *size)).resize((size[0] // SCALE, size[1] // SCALE), Image.Resampling.BICUBIC).save(
                small, "JPEG", quality=95, subsampling=0
            )
            writer.add(large.getvalue(), attachments={"small": picstore.add_restart_markers(small.getvalue())})


def train(options: argparse.Namespace) -> None:
    """Train a small network of sub-pixel convolution (Shi et al., CVPR 2016)."""
    torch.manual_seed(options.seed)
    loader = picstore.Loader(
        options.dataset,
        batch_size=options.batch_size,
        transform=[picstore.RandomCrop(options.size, multiple_of=SCALE), picstore.RandomHorizontalFlip()],
        targets=["small"],
        seed=options.seed,
    )
    model = nn.Sequential(
        nn.Conv2d(3, 64, 5, padding=2),
        nn.ReLU(),
        nn.Conv2d(64, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 3 * SCALE**2, 3, padding=1),
        nn.PixelShuffle(SCALE),
    ).to(options.device)
    optimizer = torch.optim.Adam(model.parameters(), options.lr)
    step = 0
    while step < options.steps:
        for batch in loader:
            large = batch.images.to(options.device).float() / 255
            small = torch.stack([target["small"] for target in batch.targets]).to(options.device).float() / 255
            loss = nn.functional.l1_loss(model(small), large)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            print(f"step {step} loss {loss.item():.5f}", flush=True)
            if step == options.steps:
                break
    print(loader.stats)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    preparing = verbs.add_parser("prepare")
    preparing.add_argument("folder", type=Path)
    preparing.add_argument("out", type=Path)
    training = verbs.add_parser("train")
    training.add_argument("dataset")
    training.add_argument("--steps", type=int, default=10_000)
    training.add_argument("--batch-size", type=int, default=16)
    training.add_argument("--size", type=int, default=256, help="of the larger crop, a multiple of 4")
    training.add_argument("--lr", type=float, default=1e-3)
    training.add_argument("--seed", type=int, default=0)
    training.add_argument("--device", default="cpu")
    options = parser.parse_args()
    if options.verb == "prepare":
        prepare(options.folder, options.out)
    else:
        train(options)


if __name__ == "__main__":
    main()
