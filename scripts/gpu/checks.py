"""Checks: pixels of cuts, of decoders and of loaders, corrupted memory, and whether an epoch is whole."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import torch
from PIL import Image

import picstore
from gpu.bench import Bench
from gpu.case import Case, Row
from gpu.device import Decoder
from gpu.pictures import crop_boxes, cut_all
from picstore.train.cpu import fill_images

ITERATIONS = 200
LEVEL = 7  # of the memory that must stay as it is


def cases(bench: Bench) -> list[Case]:
    """All checks."""
    decoders = bench.device.decoders()
    found = []
    for name, decoder in decoders.items():
        if name == "nvimgcodec":  # its images have another layout, and picstore does not take them
            continue
        for subsampling in ("4:2:0", "4:4:4"):
            names = {"decoder": name, "subsampling": subsampling}
            found += [
                Case("Cut and decode against decode and cut", names, ignoring_time(cut_pixels, bench, decoder, names)),
                Case(
                    "The device's decoder against the CPU's", names, ignoring_time(device_pixels, bench, decoder, names)
                ),
            ]
        for drained in (False, True):
            names = {"decoder": name, "stream drained": "yes" if drained else "no"}
            check = ignoring_time(overwritten, bench, decoder, drained)
            found.append(Case("Memory that the decoder overwrites", names, check, weight=3))
    busy = ignoring_time(busy_loader, bench)
    found.append(Case("Loaders", {"check": "200 batches beside a busy stream"}, busy, weight=4))
    for data, text in (("444", "of 4:4:4, against decoder='cpu'"), ("once", "as they are, against decoder='cpu'")):
        found.append(Case("Loaders", {"check": f"pixels {text}"}, ignoring_time(two_loaders, bench, data), weight=2))
    found.append(Case("Loaders", {"check": "an epoch"}, ignoring_time(whole_epoch, bench), weight=2))
    return found


def ignoring_time(check: Callable[..., Row], *arguments: Any) -> Callable[[float], Row]:
    """A check takes what time it takes."""
    return lambda _: check(*arguments)


def cut_pixels(bench: Bench, decoder: Decoder, names: Row) -> Row:
    """How far pixels of cuts are from those of whole images on the same device."""
    jpegs = bench.photographs.encoded(subsampling=names["subsampling"])
    boxes = crop_boxes([image.size for image in bench.photographs.pixels])
    cuts, places = cut_all(jpegs, boxes)
    whole, parts = decode_in_batches(bench, decoder, jpegs), decode_in_batches(bench, decoder, cuts)
    differences = []
    for full, part, (left, top, width, height), (dx, dy) in zip(whole, parts, boxes, places, strict=True):
        expected = full[:, top : top + height, left : left + width]
        differences.append(apart(part[:, dy : dy + height, dx : dx + width], expected))
    return summary(differences)


def device_pixels(bench: Bench, decoder: Decoder, names: Row) -> Row:
    """How far whole images are from libjpeg-turbo's."""
    jpegs = bench.photographs.encoded(subsampling=names["subsampling"])[:64]
    images = decode_in_batches(bench, decoder, jpegs)
    return summary([apart(image, on_cpu(jpeg)) for image, jpeg in zip(images, jpegs, strict=True)])


def decode_in_batches(bench: Bench, decoder: Decoder, jpegs: list[bytes]) -> list[torch.Tensor]:
    """Decode some at a time; the images on the CPU."""
    images = []
    for start in range(0, len(jpegs), 64):
        decoded = bench.device.decode(decoder, decoder.prepare(jpegs[start : start + 64]))
        images += [image.cpu() for image in decoded]
    return images


def on_cpu(jpeg: bytes) -> torch.Tensor:
    """Decoded by Pillow's libjpeg-turbo: uint8 (3, h, w)."""
    levels = np.array(Image.open(io.BytesIO(jpeg)).convert("RGB"))
    return torch.from_numpy(levels).permute(2, 0, 1)


def apart(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Differences in levels."""
    return (one.cpu().float() - other.cpu().float()).abs()


def summary(differences: list[torch.Tensor]) -> Row:
    """What images differ by."""
    values = sum(difference.numel() for difference in differences)
    total = sum(float(difference.sum()) for difference in differences)
    return {
        "images": len(differences),
        "that differ": sum(bool(difference.any()) for difference in differences),
        "values that differ, %": 100 * sum(int((difference > 0).sum()) for difference in differences) / values,
        "at most, levels": max(float(difference.max()) for difference in differences),
        "on average": total / values,
    }


def overwritten(bench: Bench, decoder: Decoder, drained: bool) -> Row:
    """How often decoding changes memory that was given back while kernels on its stream still have to read it.

    Victims are as large as the images that are decoded, so that the allocator hands out their memory again.
    """
    device, count = bench.device, 4 if bench.tiny else 64
    streams = device.tensors(bench.photographs.encoded(equal=True)[:count])
    height, width = device.decode(decoder, list(streams))[0].shape[1:]
    device.synchronize()
    wrong, iterations = 0, 2 if bench.tiny else ITERATIONS
    with device.stream():
        for _ in range(iterations):
            shape = (3, height, width)
            victims = [torch.full(shape, LEVEL, dtype=torch.uint8, device=device.device) for _ in streams]
            device.drain()
            if device.cuda:
                torch.cuda._sleep(20_000_000)  # some 10 ms, for which what follows waits
            copies = [victim.clone() for victim in victims]
            del victims
            if drained:
                device.drain()
            images = decoder.decode(list(streams))
            device.drain()
            wrong += bool((torch.stack(copies) != LEVEL).any())
            del images, copies
    return {"batches": iterations, "corrupted": wrong}


def busy_loader(bench: Bench) -> Row:
    """Whether batches taken beside heavy work that takes and frees memory are those of a quiet GPU, bit for bit."""
    wanted = 2 if bench.tiny else ITERATIONS
    options = {"batch_size": min(bench.batch, 64), "transform": bench.standard, "seed": 3}
    sums: list[torch.Tensor] = []
    for busy in (False, True):
        loader = bench.device.loader(bench.work / "photographs", **options)
        # Nothing waits for the device in between, so that batches are made while those before are still being read.
        sums.append(torch.stack([checksum(bench, batch.images, busy=busy) for batch in islice(loader, wanted)]).cpu())
        loader.close()
    return {"batches": len(sums[0]), "corrupted": int((sums[0] != sums[1]).sum())}


def checksum(bench: Bench, images: torch.Tensor, *, busy: bool) -> torch.Tensor:
    """A number that depends on each byte of a batch and its place."""
    if busy:
        many = [torch.rand(512 if bench.tiny else 1 << 20, device=bench.device.device) for _ in range(8)]
        torch.stack(many).sort()
    flat = images.flatten().to(torch.int64)
    weights = torch.arange(1, flat.numel() + 1, device=flat.device) * 2654435761 % 1000003
    return (flat * weights).sum()


def two_loaders(bench: Bench, data: str) -> Row:
    """The same batches decoded and augmented on the device and on the CPU."""
    options = {"batch_size": min(bench.batch, 64), "transform": bench.standard, "seed": 1, "isolate": False}
    scales, fill_images.SCALES = fill_images.SCALES, False  # the device decodes no image smaller
    try:
        batches = []
        for decoder in ("auto", "cpu"):
            loader = bench.device.loader(bench.work / data, decoder=decoder, **options)
            batches.append([(batch.ids.cpu(), batch.images.cpu()) for batch in islice(loader, 1 if bench.tiny else 4)])
            loader.close()
    finally:
        fill_images.SCALES = scales
    for (ids, _), (others, _) in zip(*batches, strict=True):
        if not torch.equal(ids, others):
            raise RuntimeError(f"the loaders give different records: {ids.tolist()[:4]} and {others.tolist()[:4]}")
    pairs = [(a, b) for (_, one), (_, other) in zip(*batches, strict=True) for a, b in zip(one, other, strict=True)]
    return summary([apart(a, b) for a, b in pairs])


def whole_epoch(bench: Bench) -> Row:
    """Each record once, with its label, in each of two epochs."""
    path = bench.work / "once"
    loader = bench.device.loader(path, batch_size=bench.batch, transform=bench.standard, drop_last=False)
    expected = {record.id: record.label for record in picstore.Dataset(path)}
    problems = 0
    for _ in range(1 if bench.tiny else 2):
        ids, labels = [], []
        for batch in loader:
            ids += batch.ids.tolist()
            labels += batch.labels.tolist()
        counts = Counter(ids)
        problems += sum(counts[number] != 1 for number in expected) + sum(number not in expected for number in counts)
        problems += sum(expected.get(number) != label for number, label in zip(ids, labels, strict=True))
    damaged = loader.damaged
    loader.close()
    return {"images": len(expected), "wrong ids or labels": problems, "damaged": damaged}
