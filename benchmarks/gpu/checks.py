"""Checks of a loader's batches on a GPU: corrupted memory, pixels against the CPU's, each record once."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import torch

import picstore
from benchmarks.gpu.device import Device, dataset
from benchmarks.harness import Row, Table
from benchmarks.options import Options

BATCHES, SIZE = 200, 64


def checks(options: Options) -> Table:
    """Corrupted batches of 200, differences from the CPU's decoder, records of an epoch that are missing or wrong."""
    device, count = Device(options), 2 if options.quick else BATCHES
    path = dataset(options)
    sums = [_checksums(device, path, count, busy=busy) for busy in (False, True)]
    rows: list[Row] = [
        {"check": "batches beside a busy stream that differ from a quiet GPU's", "of": count,
         "problems": int((sums[0] != sums[1]).sum())},
    ]  # fmt: skip
    if device.cuda:
        rows.append(_pixels(device, path, count))
    rows += _epoch(device, path)
    for row in rows:
        if row["problems"]:
            row["problem"] = "failed"
    return Table(device.about, rows)


def _checksums(device: Device, path: object, count: int, *, busy: bool) -> torch.Tensor:
    """A number for each batch that depends on each of its bytes and their positions."""
    loader, sums = device.loader(path, batch_size=SIZE, seed=3, drop_last=False), []
    for batch in islice(loader, count):
        # Nothing waits for the device here, so that batches are made while earlier ones are still being read.
        if busy:
            torch.stack([torch.rand(1 << 20 if device.cuda else 512, device=device.device) for _ in range(8)]).sort()
        flat = batch.images.flatten().to(torch.int64)
        sums.append((flat * (torch.arange(1, flat.numel() + 1, device=flat.device) * 2654435761 % 1000003)).sum())
    loader.close()
    return torch.stack(sums).cpu()


def _pixels(device: Device, path: object, count: int) -> Row:
    """Mean difference in levels, which decoders' chroma and full-size decoding explain up to 2."""
    batches = []
    for decoder in ("auto", "cpu"):
        loader = device.loader(path, batch_size=SIZE, seed=1, decoder=decoder)
        batches.append([(batch.ids.cpu(), batch.images.cpu().float()) for batch in islice(loader, min(count, 4))])
        loader.close()
    pairs = list(zip(*batches, strict=True))
    difference = max(float((one - other).abs().mean()) for (_, one), (_, other) in pairs)
    wrong = sum(not torch.equal(ids, others) for (ids, _), (others, _) in pairs) + (difference > 2)
    return {"check": "the GPU's batches against decoder='cpu'", "of": len(pairs), "problems": int(wrong),
            "mean levels apart": difference}  # fmt: skip


def _epoch(device: Device, path: object) -> list[Row]:
    """Each record once, with its label, and decoded by the device."""
    loader = device.loader(path, drop_last=False)
    expected = {record.id: record.label for record in picstore.Dataset(path)}
    ids, labels = [], []
    for batch in loader:
        ids += batch.ids.tolist()
        labels += batch.labels.tolist()
    fallbacks = loader.stats.fallbacks
    loader.close()
    counts = Counter(ids)
    problems = sum(counts[number] != 1 for number in expected) + sum(number not in expected for number in counts)
    problems += sum(expected.get(number) != label for number, label in zip(ids, labels, strict=True))
    return [
        {"check": "an epoch's ids and labels", "of": len(expected), "problems": problems},
        {
            "check": "images of an epoch that the device's decoder left to the CPU",
            "of": len(ids),
            "problems": fallbacks,
        },
    ]
