"""Checks of a loader's batches on a GPU: corrupted memory, pixels against the CPU's, each record once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

import picstore
from benchmarks.gpu.device import STANDARD, TINY, Device, dataset, datasets, on_device
from benchmarks.gpu.kernels import TINY_CROP
from benchmarks.harness import Row, Table
from benchmarks.options import Options
from picstore.train.pipeline import to_device as pipeline_device

BATCHES, SIZE = 200, 64


def checks(options: Options) -> Table:
    """Corrupted batches of 200, differences from the CPU's decoder, records of an epoch that are missing or wrong."""
    device = Device(options)
    rows: list[Row] = on_device("benchmarks.gpu.checks:check_picstore", options)
    rows += _kept("nvJPEG", lambda: _check_nvjpeg(device, options))
    for row in rows:
        if row["problems"]:
            row.setdefault("problem", "failed")
    return Table(device.about, rows)


def _kept(decoder: str, check: Callable[[], list[Row]]) -> list[Row]:
    """Rows of checks, or one row that says why they failed."""
    try:
        return check()
    except Exception as error:  # of a decoder, a driver or an allocator
        text = next(iter(str(error).splitlines()), type(error).__name__)
        return [{"decoder": decoder, "check": "runs", "of": 1, "problems": 1, "problem": text}]


def _check_nvjpeg(device: Device, options: Options) -> list[Row]:
    """Check the installed decoder that uses nvJPEG; ``"auto"`` without a GPU."""
    count, path, loaded = 2 if options.quick else BATCHES, dataset(options), {"decoder": device.nvjpeg}
    rows: list[Row] = [_corrupted(device, path, count, **loaded)]
    if device.cuda:
        rows.append(_pixels(device, path, count))
    rows += _epoch(device, path, **loaded)
    return [{**loaded, **row} for row in rows]


def check_picstore(fields: dict[str, Any]) -> list[Row]:
    """Check picstore's own decoder, in this process; its batches must be the CPU's, bit for bit."""
    options = Options.from_json(fields)
    device, rows = Device(options), []
    loaded: dict[str, Any] = {"decoder": "picstore"}
    count = BATCHES if device.cuda else 1
    if not device.cuda:
        transform = [picstore.RandomResizedCrop(TINY_CROP), *STANDARD[1:]]
        loaded |= {"batch_size": TINY, "transform": transform, "isolate": False, "threads": 1}
    # An interpreted batch takes half a second, so that none is made ahead.
    with nullcontext() if device.cuda else patch.object(pipeline_device, "most_ahead", lambda _: 1):
        for photographs, path in datasets(device, options).items():
            name = f"picstore, {photographs}"
            for check in (
                lambda path=path: [_equal(device, path, count, loaded)],
                lambda path=path: [_corrupted(device, path, count, **loaded)],
                lambda path=path: _epoch(device, path, **loaded),
            ):
                rows += [{"decoder": name, **row} for row in _kept(name, check)]
    return rows


def _equal(device: Device, path: Path, count: int, loaded: dict[str, Any]) -> Row:
    """Batches of picstore's decoder that differ from the CPU's in any bit."""
    loaders = [
        device.loader(path, **{"batch_size": SIZE, **loaded, "decoder": name, "seed": 1})
        for name in ("picstore", "cpu")
    ]
    compared = problems = 0
    for one, other in islice(zip(*loaders, strict=True), count):
        compared += 1
        problems += not (torch.equal(one.ids, other.ids) and torch.equal(one.images, other.images))
    for loader in loaders:
        loader.close()
    return {"check": "batches that differ from decoder='cpu' in any bit", "of": compared, "problems": problems}


def _corrupted(device: Device, path: Path, count: int, **loaded: Any) -> Row:
    sums = [_checksums(device, path, count, busy=busy, **loaded) for busy in (False, True)]
    return {"check": "batches beside a busy stream that differ from a quiet GPU's", "of": len(sums[0]),
            "problems": int((sums[0] != sums[1]).sum())}  # fmt: skip


def _checksums(device: Device, path: Path, count: int, *, busy: bool, **loaded: Any) -> torch.Tensor:
    """A number for each batch that depends on each of its bytes and their positions."""
    loader, sums = device.loader(path, **{"batch_size": SIZE, "seed": 3, "drop_last": False, **loaded}), []
    for batch in islice(loader, count):
        # Nothing waits for the device here, so that batches are made while earlier ones are still being read.
        if busy:
            torch.stack([torch.rand(1 << 20 if device.cuda else 512, device=device.device) for _ in range(8)]).sort()
        flat = batch.images.flatten().to(torch.int64)
        sums.append((flat * (torch.arange(1, flat.numel() + 1, device=flat.device) * 2654435761 % 1000003)).sum())
    loader.close()
    return torch.stack(sums).cpu()


def _pixels(device: Device, path: Path, count: int) -> Row:
    """Mean difference in levels, which decoders' chroma and full-size decoding explain up to 2."""
    batches = []
    for decoder in (device.nvjpeg, "cpu"):
        loader = device.loader(path, batch_size=SIZE, seed=1, decoder=decoder)
        batches.append([(batch.ids.cpu(), batch.images.cpu().float()) for batch in islice(loader, min(count, 4))])
        loader.close()
    pairs = list(zip(*batches, strict=True))
    difference = max(float((one - other).abs().mean()) for (_, one), (_, other) in pairs)
    wrong = sum(not torch.equal(ids, others) for (ids, _), (others, _) in pairs) + (difference > 2)
    return {"check": "the GPU's batches against decoder='cpu'", "of": len(pairs), "problems": int(wrong),
            "mean levels apart": difference}  # fmt: skip


def _epoch(device: Device, path: Path, **loaded: Any) -> list[Row]:
    """Each record once, with its label, and decoded by the device."""
    loader = device.loader(path, **{"drop_last": False, **loaded})
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
