"""Training steps of ResNet-50 fed by picstore, by tensors that are on the GPU already, and by a DataLoader."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.models import resnet18, resnet50
from torchvision.transforms import v2

import picstore
from benchmarks.gpu.device import Device, dataset, datasets, on_device
from benchmarks.gpu.expected import ASKED_TRAINING, expected
from benchmarks.gpu.kernels import Described
from benchmarks.harness import Case, Row, Sample, Table, measure, tabulate
from benchmarks.options import Options

WARM, WORKERS = 10, 16  # steps, processes
_STREAMS = 2
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

Batches = Iterator["tuple[torch.Tensor, torch.Tensor]"]


def training(options: Options) -> Table:
    """Images/s of steps in bf16, channels_last; the first case is the ceiling, of which 97 % are asked."""
    device, path = Device(options), dataset(options)
    loaders: dict[str, Callable[[], Batches]] = {"tensors on the GPU": lambda: _synthetic(device)}
    if device.cuda:
        loaders |= {
            f"picstore, decoder picstore, {photographs}, processes {count}": partial(
                _picstore, device, data, decoder="picstore", processes=count
            )
            for photographs, data in datasets(device, options).items()
            for count in (1, 2)
        }
    loaders |= {
        f"picstore, decoder {device.nvjpeg}": lambda: _picstore(device, path, decoder=device.nvjpeg),
        "ImageFolder and DataLoader": lambda: _dataloader(device, options),
    }
    step, rounds = make_step(device), options.round_count(2)
    seconds = device.sample_seconds(rounds * len(loaders))
    asked: Row = {"asked of the ceiling, %": int(100 * ASKED_TRAINING)}
    cases = [
        Case(
            name,
            lambda make_batches: _run(device, step, make_batches(), seconds),
            lambda f=f: f,
            figures=asked if name.startswith("picstore") else {},
        )
        for name, f in loaders.items()
    ]
    results = measure(cases, rounds=rounds, warmups=0, seconds=device.seconds)
    return tabulate(results, f"ResNet-50 in bf16; {device.about}", first="the ceiling")


def beside(options: Options) -> Table:
    """Steps of ResNet-50 in bf16 alone, and beside picstore's decoding in two threads with a stream each."""
    return Table(**on_device("benchmarks.gpu.training:measure_beside", options))


def measure_beside(fields: dict[str, Any]) -> dict[str, Any]:
    """Measure in this process."""
    options = Options.from_json(fields)
    device, rows = Device(options), []
    step, seconds = make_step(device), device.sample_seconds(5)
    alone = _run(device, step, _synthetic(device), seconds)
    rows.append({"photographs": "", "running": "steps alone", "steps, images/s": alone.items / alone.seconds})
    for photographs, path in datasets(device, options).items():
        described = Described(device, path)
        decoded = device.rate(described.run, seconds=seconds, threads=_STREAMS)
        speed = decoded.items / decoded.seconds
        rows.append({"photographs": photographs, "running": "decoding alone, 2 streams", "decoding, images/s": speed,
                     "predicted": expected("all of decoding", photographs)})  # fmt: skip
        both = _run_beside(device, step, described, seconds)
        slower = 100 * (1 - both["steps, images/s"] * alone.seconds / alone.items)
        rows.append({"photographs": photographs, "running": "both", **both, "steps slower, %": slower})
    return asdict(Table(f"ResNet-50 in bf16; {device.about}", rows))


def _run_beside(device: Device, step: Callable[..., None], described: Described, seconds: float) -> Row:
    """Run steps while threads decode one batch again and again, as fast as they can."""
    over, done = threading.Event(), [0] * _STREAMS
    failed: list[Exception] = []

    def decode(thread: int) -> None:
        try:
            with device.stream():
                while not over.is_set():
                    done[thread] += described.run()
        except Exception as error:  # raised again below
            failed.append(error)

    workers = [threading.Thread(target=decode, args=(thread,)) for thread in range(_STREAMS)]
    for worker in workers:
        worker.start()
    try:
        start, before = time.perf_counter(), sum(done)
        sample = _run(device, step, _synthetic(device), seconds)
        took, images = time.perf_counter() - start, sum(done) - before
    finally:
        over.set()
        for worker in workers:
            worker.join()
    if failed:
        raise failed[0]
    return {"steps, images/s": sample.items / sample.seconds, "decoding, images/s": images / took}


def make_step(device: Device) -> Callable[[torch.Tensor, torch.Tensor], None]:
    torch.backends.cudnn.benchmark = True
    make = resnet50 if device.cuda else resnet18
    network = make(num_classes=1000).to(device.device, memory_format=torch.channels_last)
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
    images = torch.randn((device.batch, 3, device.size, device.size), device=device.device)
    labels = torch.arange(device.batch, device=device.device) % 1000
    ready = images.to(torch.bfloat16, memory_format=torch.channels_last)
    while True:
        yield ready, labels


def _picstore(device: Device, path: Any, **options: Any) -> Batches:
    transform = [*device.standard, picstore.Normalize(MEAN, STD)]
    output = {"dtype": torch.bfloat16, "memory_format": torch.channels_last}
    loader = device.loader(path, transform=transform, **output, **options)
    try:
        for batch in itertools.chain.from_iterable(itertools.repeat(loader)):
            yield batch.images, batch.labels
    finally:
        loader.close()


def _dataloader(device: Device, options: Options) -> Batches:
    """ImageFolder in workers, bytes to the GPU, normalized there."""
    transform = v2.Compose([v2.RandomResizedCrop(device.size), v2.RandomHorizontalFlip(), v2.PILToTensor()])
    images = ImageFolder(str(options.photographs), transform=transform)
    workers = {"num_workers": 2 if options.quick else WORKERS, "persistent_workers": True}
    loader = DataLoader(images, device.batch, shuffle=True, drop_last=True, pin_memory=device.cuda, **workers)
    mean, std = (torch.tensor(values, device=device.device).view(3, 1, 1) * 255 for values in (MEAN, STD))
    for batch, labels in itertools.chain.from_iterable(itertools.repeat(loader)):
        values = (batch.to(device.device, non_blocking=True).float() - mean) / std
        ready = values.to(torch.bfloat16, memory_format=torch.channels_last)
        yield ready, labels.to(device.device, non_blocking=True)
