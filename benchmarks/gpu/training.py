"""Training steps of ResNet-50 fed by picstore, by tensors that are on the GPU already, and by a DataLoader."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.models import resnet50
from torchvision.transforms import v2

import picstore
from benchmarks.gpu.device import SIZE, STANDARD, Device, dataset
from benchmarks.harness import Case, Sample, Table, measure, tabulate
from benchmarks.options import Options

WARM, WORKERS = 10, 16  # steps, processes
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

Batches = Iterator["tuple[torch.Tensor, torch.Tensor]"]


def training(options: Options) -> Table:
    """Images/s of steps in bf16, channels_last; the first case is the ceiling, of which 97 % are asked."""
    device, path = Device(options), dataset(options)
    loaders: dict[str, Callable[[], Batches]] = {
        "tensors on the GPU": lambda: _synthetic(device),
        "picstore": lambda: _picstore(device, path),
        "ImageFolder and DataLoader": lambda: _dataloader(device, options),
    }
    step, rounds = _step(device), options.round_count(2)
    seconds = device.seconds / rounds / len(loaders) / 2
    cases = [
        Case(name, lambda make_batches: _run(device, step, make_batches(), seconds), lambda f=f: f)
        for name, f in loaders.items()
    ]
    results = measure(cases, rounds=rounds, warmups=0, seconds=device.seconds)
    return tabulate(results, f"ResNet-50 in bf16; {device.about}", first="the ceiling")


def _step(device: Device) -> Callable[[torch.Tensor, torch.Tensor], None]:
    torch.backends.cudnn.benchmark = True
    network = resnet50(num_classes=1000).to(device.device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)

    def step(images: torch.Tensor, labels: torch.Tensor) -> None:
        with torch.autocast(images.device.type, torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(network(images), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return step


def _run(device: Device, step: Callable[..., None], batches: Any, seconds: float) -> Sample:
    try:
        for _ in range(WARM if device.cuda else 1):
            step(*next(batches))
        device.synchronize()
        start, images = time.perf_counter(), 0
        while not images or time.perf_counter() - start < seconds:
            batch, labels = next(batches)
            step(batch, labels)
            images += len(labels)
        device.synchronize()
        return Sample(images, time.perf_counter() - start)
    finally:
        batches.close()


def _synthetic(device: Device) -> Batches:
    images = torch.randn((device.batch, 3, SIZE, SIZE), device=device.device)
    labels = torch.arange(device.batch, device=device.device) % 1000
    ready = images.to(torch.bfloat16, memory_format=torch.channels_last)
    while True:
        yield ready, labels


def _picstore(device: Device, path: Any) -> Batches:
    transform = [*STANDARD, picstore.Normalize(MEAN, STD)]
    output = {"dtype": torch.bfloat16, "memory_format": torch.channels_last}
    loader = device.loader(path, transform=transform, **output)
    try:
        for batch in itertools.chain.from_iterable(itertools.repeat(loader)):
            yield batch.images, batch.labels
    finally:
        loader.close()


def _dataloader(device: Device, options: Options) -> Batches:
    """ImageFolder in workers, bytes to the GPU, normalized there."""
    transform = v2.Compose([v2.RandomResizedCrop(SIZE), v2.RandomHorizontalFlip(), v2.PILToTensor()])
    images = ImageFolder(str(options.photographs), transform=transform)
    workers = {"num_workers": 2 if options.quick else WORKERS, "persistent_workers": True}
    loader = DataLoader(images, device.batch, shuffle=True, drop_last=True, pin_memory=device.cuda, **workers)
    mean, std = (torch.tensor(values, device=device.device).view(3, 1, 1) * 255 for values in (MEAN, STD))
    for batch, labels in itertools.chain.from_iterable(itertools.repeat(loader)):
        values = (batch.to(device.device, non_blocking=True).float() - mean) / std
        ready = values.to(torch.bfloat16, memory_format=torch.channels_last)
        yield ready, labels.to(device.device, non_blocking=True)
