"""Training steps of ResNet-50, fed by picstore, by tensors that are on the GPU already, and by a DataLoader."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from itertools import chain, repeat
from typing import Any

import torch
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.models import resnet18, resnet50
from torchvision.transforms import v2

import picstore
from gpu.bench import Bench
from gpu.case import Case, Row

WARM = 10  # steps
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CEILING, OWN = "tensors on the GPU", "picstore"
TABLE = "ResNet-50 in bf16, channels_last"


def cases(bench: Bench) -> list[Case]:
    """The ceiling before and after the others, since clocks change."""
    feeds = {CEILING: synthetic, OWN: by_picstore, "ImageFolder and DataLoader": by_dataloader}
    trainer = Trainer(bench)
    order = [CEILING, OWN, "ImageFolder and DataLoader", OWN, CEILING]
    return [Case(TABLE, {"fed by": name}, partial(run, trainer, feeds[name]), weight=2) for name in order]


class Trainer:
    """A network and its optimiser, made when first needed."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self._made: tuple[Any, Any] | None = None

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        """Forward, backward, update."""
        if self._made is None:
            torch.backends.cudnn.benchmark = True
            network = (resnet18 if self.bench.tiny else resnet50)(num_classes=1000)
            network = network.to(self.bench.device.device, memory_format=torch.channels_last)
            self._made = network, torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
        network, optimiser = self._made
        with torch.autocast(images.device.type, torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(network(images), labels)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()


def run(trainer: Trainer, feed: Any, seconds: float) -> Row:
    """Images/s of steps."""
    bench = trainer.bench
    batches = feed(bench)
    try:
        for _ in range(1 if bench.tiny else WARM):
            trainer.step(*next(batches))
        bench.device.synchronize()
        start, images = time.perf_counter(), 0
        while not images or time.perf_counter() - start < 2 * seconds:
            batch, labels = next(batches)
            trainer.step(batch, labels)
            images += len(labels)
        bench.device.synchronize()
        return {"images/s": images / (time.perf_counter() - start)}
    finally:
        batches.close()


def size_of(bench: Bench) -> int:
    """Pixels of a side: a ResNet needs 32."""
    return 32 if bench.tiny else bench.size


def synthetic(bench: Bench) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The same batch again and again."""
    shape = (bench.batch, 3, size_of(bench), size_of(bench))
    images = torch.randn(shape, device=bench.device.device).to(torch.bfloat16, memory_format=torch.channels_last)
    labels = torch.arange(bench.batch, device=bench.device.device) % 1000
    while True:
        yield images, labels


def by_picstore(bench: Bench) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Batches as the network takes them."""
    loader = bench.device.loader(
        bench.work / "photographs",
        batch_size=bench.batch,
        transform=[
            picstore.RandomResizedCrop(size_of(bench)),
            picstore.RandomHorizontalFlip(),
            picstore.Normalize(MEAN, DEVIATION),
        ],
        dtype=torch.bfloat16,
        memory_format=torch.channels_last,
    )
    try:
        for batch in chain.from_iterable(repeat(loader)):
            yield batch.images, batch.labels
    finally:
        loader.close()


def by_dataloader(bench: Bench) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """ImageFolder in 16 workers, bytes to the GPU, normalised there."""
    transform = v2.Compose([v2.RandomResizedCrop(size_of(bench)), v2.RandomHorizontalFlip(), v2.PILToTensor()])
    images = ImageFolder(str(bench.work / "files"), transform=transform)
    loader = DataLoader(
        images,
        bench.batch,
        shuffle=True,
        num_workers=2 if bench.tiny else 16,
        pin_memory=bench.device.cuda,
        drop_last=True,
        persistent_workers=True,
    )
    device = bench.device.device
    mean = torch.tensor(MEAN, device=device).view(3, 1, 1) * 255
    deviation = torch.tensor(DEVIATION, device=device).view(3, 1, 1) * 255
    for batch, labels in chain.from_iterable(repeat(loader)):
        values = (batch.to(device, non_blocking=True).float() - mean) / deviation
        ready = values.to(torch.bfloat16, memory_format=torch.channels_last)
        yield ready, labels.to(device, non_blocking=True)
