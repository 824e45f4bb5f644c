"""Crops/s out of large photographs, against decoders of whole images and tiles that are cut beforehand."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from PIL import Image
from torchvision.io import ImageReadMode, decode_jpeg, read_file

import picstore
from benchmarks.child import MissingError
from benchmarks.harness import Case, Row, Sample, Table, Unit, join, measure, tabulate
from benchmarks.large.photographs import TILE, LargeImages, evict, make_images
from benchmarks.options import Options
from benchmarks.torture.objects import object_stage
from picstore.storage import dataset_reader
from picstore.storage.format.container import Container
from picstore.storage.location.resolve import Location, locate
from picstore.train.batching.views_reach import needed_rows
from picstore.train.order.requests import TrainingSource
from picstore.train.transforms.transform_plan import plan_transforms

CROPS_PER_SECOND = Unit("crops/s", lambda sample: sample.items / sample.seconds)
DISK_SPEED = 300_000_000  # bytes a second
BATCH = 64
CROPS = 2048  # of a round of picstore
COLD = 160  # images of a round that begins without a page in the cache
DECODED = 8  # images of a round for peers that decode whole images
_CGROUP = Path("/sys/fs/cgroup/blkio/picstore-benchmark")

Box: TypeAlias = "tuple[int, int, int, int]"  # left, top, width, height
Decode: TypeAlias = Callable[[Path, Box], object]


def by_pillow(path: Path, box: Box) -> object:
    """Decode all with Pillow, and crop."""
    left, top, width, height = box
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB").crop((left, top, left + width, top + height)))


def by_torchvision(path: Path, box: Box) -> object:
    """Decode all with torchvision, and crop."""
    left, top, width, height = box
    pixels = decode_jpeg(read_file(str(path)), mode=ImageReadMode.RGB)
    return pixels[:, top : top + height, left : left + width].clone()


def by_pyvips(path: Path, box: Box, *, access: str) -> object:
    """Decode with libvips: with sequential access no further than the box."""
    import pyvips

    pyvips.cache_set_max(0)  # of decoded files
    return pyvips.Image.new_from_file(str(path), access=access).crop(*box).numpy()


def read_all(path: Path, _: Box) -> object:
    """Read the file, and decode nothing."""
    return path.read_bytes()


def crops(options: Options) -> Table:
    """Crops/s from memory; every case has as many threads as there are workers."""
    tables = []
    for megapixels in (2, 12) if options.quick else (2, 12, 48, 100):
        images = make_images(options, megapixels, tiles=True)
        for size in (256, 512):
            cases = [
                _loader("picstore", images.dataset, size, options),
                _files("Pillow", by_pillow, images, size, options),
                _files("torchvision", by_torchvision, images, size, options),
                _files("pyvips, sequential", partial(by_pyvips, access="sequential"), images, size, options),
                _files("pyvips, random", partial(by_pyvips, access="random"), images, size, options),
                _tiles(images, size, options),
            ]
            results = measure(cases, rounds=options.round_count(3), seconds=60)
            tables.append(_table(results, images, megapixels, size))
    about = f"composed photographs, quality 90, 4:2:0, in memory; batches of {BATCH}; {options.workers} threads each"
    return Table(about, join(tables).rows, join(tables).samples)


def disk(options: Options) -> Table:
    """Crops/s from a disk of 300 MB/s, each round without a page in the cache; needs root and cgroup v1's blkio."""
    images = make_images(options, 12, count=COLD)
    cold = [*images.files, *(path for path in images.dataset.rglob("*") if path.is_file())]
    before = partial(evict, cold)
    with _slow_disk(options.work):
        cases = [
            _loader("picstore", images.dataset, 256, options, before=before),
            _loader("picstore, whole containers", images.dataset, 256, options, before=before, whole=True),
            _files("whole files, read only", read_all, images, 256, options, before=before),
            _files("whole files, Pillow", by_pillow, images, 256, options, before=before),
        ]
        results = measure(cases, rounds=options.round_count(5))
    table = _table(results, images, 12, 256)
    about = f"12 megapixels, read_bps_device {DISK_SPEED:,}, nothing in the page cache; {options.workers} threads each"
    return Table(about, table.rows, table.samples)


def store(options: Options) -> Table:
    """Crops/s from an S3 server on this machine."""
    images = make_images(options, 12)
    with object_stage(options.work / "stage") as stage:
        for name, _ in locate(images.dataset).files():
            (locate(images.dataset) / name).copy_to(stage.dataset / name)
        cases = [
            _loader("picstore", stage.dataset, 256, options),
            _loader("picstore, whole containers", stage.dataset, 256, options, whole=True),
        ]
        results = measure(cases, rounds=options.round_count(3))
    table = _table(results, images, 12, 256)
    return Table(
        f"12 megapixels, moto's S3 server on this machine; {options.workers} threads", table.rows, table.samples
    )


def _table(results: list[Any], images: LargeImages, megapixels: int, size: int) -> Table:
    names: Row = {"megapixels": megapixels, "MB a file": round(images.mean_bytes / 1e6, 2), "crop": size}
    return tabulate(results, "", unit=CROPS_PER_SECOND, first="picstore", names=names)


def _loader(
    name: str,
    dataset: Path | Location,
    size: int,
    options: Options,
    *,
    before: Callable[[], None] | None = None,
    whole: bool = False,
) -> Case:
    """A loader of random crops; a cold round is its first epoch, another as many later ones as give CROPS crops."""
    transform = [picstore.RandomCrop(size)]
    opened = picstore.Dataset(dataset)
    epochs = 1 if before else -(-CROPS // len(opened))
    least = 1 << 40 if whole else dataset_reader.MIN_MEAN
    isolate = before is None and not whole  # a process would read as usual, and start while a cold round is timed

    def run(_: object) -> Sample:
        usual, dataset_reader.MIN_MEAN = dataset_reader.MIN_MEAN, least
        loader = picstore.Loader(
            dataset, batch_size=BATCH, transform=transform, threads=options.workers, isolate=isolate, drop_last=False
        )
        try:
            with contextlib.closing(loader):
                if before is not None:
                    before()
                else:
                    sum(1 for _ in loader)  # the first epoch starts the process
                start = time.perf_counter()
                done = sum(len(batch.ids) for _ in range(epochs) for batch in loader)
                return Sample(done, time.perf_counter() - start)
        finally:
            dataset_reader.MIN_MEAN = usual

    figures: Row = {"KB read a crop": round(_bytes_read(opened, transform, whole=whole) / len(opened) / 1e3)}
    return Case(name, run, figures=figures)


def _bytes_read(dataset: picstore.Dataset, transform: list[Any], *, whole: bool) -> int:
    """Bytes that an epoch reads."""
    if whole:
        return int(dataset.rows["size"].sum())
    rows_of = partial(needed_rows, TrainingSource(dataset, seed=0, plan=plan_transforms(transform)[0]), 0, 1 << 28)
    numbers = range(len(dataset.rows))
    read = (
        dataset.containers.read_in_part([number], rows_of, mask=dataset.live.mask, attachments=False)[0]
        for number in numbers
    )
    return sum(container.read_size for container in read if isinstance(container, Container))


def _files(
    name: str,
    decode: Decode,
    images: LargeImages,
    size: int,
    options: Options,
    *,
    before: Callable[[], None] | None = None,
) -> Case:
    """Random crops of the files, each opened, decoded and cropped by a thread."""
    draw = random.Random(0)
    chosen = images.files if before and decode is read_all else images.files[:DECODED]
    edges = images.width - size, images.height - size
    boxes = [(draw.randrange(edges[0]), draw.randrange(edges[1]), size, size) for _ in chosen]

    def run(_: object) -> Sample:
        if before is not None:
            before()
        start = time.perf_counter()
        with ThreadPoolExecutor(options.workers) as threads:
            done = len(list(threads.map(decode, chosen, boxes)))
        return Sample(done, time.perf_counter() - start)

    return Case(name, run, figures={"KB read a crop": round(images.mean_bytes / 1e3)})


def _tiles(images: LargeImages, size: int, options: Options) -> Case:
    """Crops of tiles that were cut beforehand, decoded whole by Pillow; no crop lies across two of them."""
    draw = random.Random(0)
    chosen = draw.choices(images.tiles, k=CROPS // 4)

    def run(_: object) -> float:
        with ThreadPoolExecutor(options.workers) as threads:
            return len(list(threads.map(by_pillow, chosen, [(0, 0, size, size)] * len(chosen))))

    mean = sum(path.stat().st_size for path in images.tiles) / len(images.tiles)
    return Case(f"tiles of {TILE}, Pillow", run, figures={"KB read a crop": round(mean / 1e3)})


@contextlib.contextmanager
def _slow_disk(folder: Path) -> Iterator[None]:
    """Limit what this process reads from the folder's disk; MissingError where that is not possible."""
    device = folder.stat().st_dev
    limit = f"{os.major(device)}:{os.minor(device)} {DISK_SPEED}"
    try:
        _CGROUP.mkdir(exist_ok=True)
        (_CGROUP / "blkio.throttle.read_bps_device").write_text(limit)
        (_CGROUP / "cgroup.procs").write_text(str(os.getpid()))
    except OSError as error:
        raise MissingError(f"cgroup v1's blkio for a slow disk: {error}") from error
    try:
        yield
    finally:
        (_CGROUP.parent / "cgroup.procs").write_text(str(os.getpid()))
        _CGROUP.rmdir()
