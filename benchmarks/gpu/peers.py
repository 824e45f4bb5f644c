"""Peers that make batches of 224 × 224 crops on a GPU: torchvision one by one and in lists, DALI.

Their code is what one writes, so none of them drains its stream before it decodes.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torchvision.io import ImageReadMode, decode_jpeg, read_file

from benchmarks.gpu.device import SIZE, Device, dataset
from benchmarks.gpu.expected import ASKED_OF_PEERS
from benchmarks.gpu.standard_job import run_loader
from benchmarks.harness import Case, Row, Sample, Table, measure, tabulate
from benchmarks.options import Options
from benchmarks.peers.image_files import augmentation
from benchmarks.photographs import find

THREADS = 16


def peers(options: Options) -> Table:
    """Images/s; asked are 5 times one image at a time, and 2 times lists with transforms by image."""
    device, path = Device(options), dataset(options)
    files = find(options.photographs) * 4
    random.Random(0).shuffle(files)
    augment = augmentation(SIZE)
    rounds = options.round_count(2)
    seconds = device.sample_seconds(4 * rounds)

    def one_by_one(chosen: list[Path]) -> list[torch.Tensor]:
        decode = {"mode": ImageReadMode.RGB, "device": device.device}
        return [augment(decode_jpeg(read_file(str(file)), **decode)) for file in chosen]

    def in_lists(chosen: list[Path]) -> list[torch.Tensor]:
        streams = [read_file(str(file)) for file in chosen]
        return [augment(image) for image in decode_jpeg(streams, mode=ImageReadMode.RGB, device=device.device)]

    def rate(make: Callable[[list[Path]], list[torch.Tensor]]) -> Sample:
        def work(number: int) -> int:
            first = number * device.batch % max(1, len(files) - device.batch + 1)
            return len(torch.stack(make(files[first : first + device.batch])))

        return device.rate(work, seconds=seconds)

    def own(_: None) -> Sample:
        decoder = {"decoder": "picstore"} if device.cuda else {}
        return run_loader(device, device.loader(path, threads=THREADS, **decoder), seconds)

    cases = [
        Case("picstore", own),
        Case("one image at a time: read_file, decode_jpeg, v2", rate, lambda: one_by_one, figures=_asked(0)),
        Case("decode_jpeg of a list, v2 by image", rate, lambda: in_lists, figures=_asked(1)),
        Case("DALI, image_random_crop on the GPU", lambda run: device.rate(lambda _: len(run()[0]), seconds=seconds),
             lambda: _dali(device, files)),
    ]  # fmt: skip
    results = measure(cases, rounds=rounds, warmups=0, seconds=device.seconds)
    return tabulate(results, device.about, first="picstore")


def _asked(number: int) -> Row:
    return {"asked of picstore": f"{ASKED_OF_PEERS[number]}×"}


def _dali(device: Device, files: list[Path]) -> Callable[[], Any]:
    from nvidia.dali import fn, pipeline_def

    @pipeline_def
    def pipeline() -> Any:
        data, _ = fn.readers.file(files=[str(file) for file in files], random_shuffle=True, name="files")
        images = fn.decoders.image_random_crop(data, device="mixed", random_area=[0.08, 1.0])
        return fn.flip(fn.resize(images, size=[SIZE] * 2), horizontal=fn.random.coin_flip())

    made = pipeline(batch_size=device.batch, num_threads=THREADS, device_id=device.device.index or 0, seed=1)
    made.build()
    return made.run
