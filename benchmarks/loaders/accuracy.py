"""Accuracy of a network that is trained through picstore, and through torchvision's loader with the same recipe."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import picstore
from benchmarks.child import MissingError
from benchmarks.command import command_seconds
from benchmarks.harness import Row, Table, say
from benchmarks.options import Options

SIDE, CROP = 40, 32  # pixels of the stored digits and of what the network sees
TESTED = 500  # digits that are held back
BATCH, EPOCHS, SEEDS = 64, 10, 5
MEAN, STD = (0.3, 0.3, 0.3), (0.35, 0.35, 0.35)


def accuracy(options: Options) -> Table:
    """Scikit-learn's digits as JPEGs: the same network, recipe and number of steps, five seeds a loader."""
    seeds, epochs = (1, 1) if options.quick else (options.round_count(SEEDS), EPOCHS)
    folders = {name: options.work / "digits" / name for name in ("train", "test")}
    _write_digits(folders)
    for name, folder in folders.items():
        command_seconds(("convert", folder, options.work / f"digits-{name}"))
    rows: list[Row] = []
    for name, loaders in (("picstore", _own_loaders), ("torchvision", _peer_loaders)):
        found = []
        for seed in range(seeds):
            found.append(_train(*loaders(options.work, seed), seed=seed, epochs=epochs))
            say(f"{name}, seed {seed}: {found[-1]:.2f} %")
        rows.append(_row(name, found))
    spread = max(rows[0]["standard deviation"], rows[1]["standard deviation"])
    rows[0]["difference / deviation"] = abs(rows[0]["accuracy, %"] - rows[1]["accuracy, %"]) / spread if spread else 0.0
    about = (
        f"{1797 - TESTED} digits of 8 × 8 pixels, enlarged to {SIDE} × {SIDE}, as JPEGs, {TESTED} held back; "
        f"RandomResizedCrop({CROP}, scale=(0.6, 1)), ColorJitter(0.3, 0.3) and Normalize; {epochs} epochs in batches "
        f"of {BATCH}; {seeds} seeds each"
    )
    return Table(about, rows)


def _row(name: str, found: list[float]) -> Row:
    deviation = statistics.stdev(found) if len(found) > 1 else 0.0
    return {
        "loader": name,
        "accuracy, %": statistics.mean(found),
        "standard deviation": deviation,
        "least": min(found),
        "greatest": max(found),
    }


def _write_digits(folders: dict[str, Path]) -> None:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise MissingError("scikit-learn is not installed: pip install 'picstore[dev]'") from error
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    for place, number in enumerate(order.tolist()):
        folder = folders["test" if place < TESTED else "train"] / str(digits.target[number])
        folder.mkdir(parents=True, exist_ok=True)
        levels = (digits.images[number] * 255 / 16).round().astype(np.uint8)
        image = Image.fromarray(levels).resize((SIDE, SIDE), Image.Resampling.BICUBIC).convert("RGB")
        image.save(folder / f"{number}.jpg", quality=95)


def _own_loaders(work: Path, seed: int) -> tuple[Iterable[Any], Iterable[Any]]:
    train = [
        picstore.RandomResizedCrop(CROP, scale=(0.6, 1.0)),
        picstore.ColorJitter(0.3, 0.3),
        picstore.Normalize(MEAN, STD),
    ]
    test = [picstore.Resize((CROP, CROP)), picstore.Normalize(MEAN, STD)]
    return (
        picstore.Loader(work / "digits-train", batch_size=BATCH, transform=train, seed=seed),
        picstore.Loader(work / "digits-test", batch_size=BATCH, transform=test, shuffle=False, drop_last=False),
    )


def _peer_loaders(work: Path, seed: int) -> tuple[Iterable[Any], Iterable[Any]]:
    end = [v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    train = v2.Compose([v2.RandomResizedCrop(CROP, scale=(0.6, 1.0)), v2.ColorJitter(0.3, 0.3), *end])
    test = v2.Compose([v2.Resize((CROP, CROP)), *end])
    generator = torch.Generator().manual_seed(seed)
    options: dict[str, Any] = {"num_workers": 2, "persistent_workers": True}
    folders = [ImageFolder(work / "digits" / name, transform) for name, transform in (("train", train), ("test", test))]
    shuffled = {"shuffle": True, "drop_last": True, "generator": generator}
    return DataLoader(folders[0], BATCH, **shuffled, **options), DataLoader(folders[1], BATCH, **options)


def _network() -> nn.Module:
    def block(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]

    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
    return nn.Sequential(*block(3, 16), *block(16, 32), *block(32, 64), *head)


def _train(training: Iterable[Any], testing: Iterable[Any], *, seed: int, epochs: int) -> float:
    """Train a network from new weights; returns its accuracy in percent."""
    torch.manual_seed(seed)
    network = _network()
    steps = epochs * len(training)  # type: ignore[arg-type]
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=steps)
    for _ in range(epochs):
        for images, labels in training:
            loss = nn.functional.cross_entropy(network(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    network.eval()
    with torch.no_grad():
        right = sum(int((network(images).argmax(1) == labels).sum()) for images, labels in testing)
    return 100 * right / TESTED
