"""Large photographs, composed of the given ones, and what contenders read of them: files, tiles, a data set."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

import picstore
from benchmarks.options import Options
from benchmarks.photographs import encode, find
from picstore.prepare.convert.row_division import DatasetShape

# By megapixels: width, height and number of images.
SIZES = {
    1: (1200, 900, 96),
    2: (1632, 1224, 96),
    3: (2048, 1536, 64),
    12: (4000, 3000, 32),
    48: (8000, 6000, 12),
    100: (11584, 8688, 6),
}
TILE = 1024  # pixels of the side of tiles that are cut beforehand
_DATASET_BYTES = 2_000_000_000  # of a data set, which holds each image several times, so that an epoch is no start
_MAX_RECORDS = 512


@dataclass(frozen=True)
class LargeImages:
    """Images of one size.

    Attributes:
        files: JPEG files, quality 90, 4:2:0.
        tiles: folder of JPEG files of TILE × TILE pixels that these were cut into.
        dataset: made of the files without loss, with each several times.
    """

    width: int
    height: int
    files: list[Path]
    tiles: list[Path]
    dataset: Path

    @property
    def mean_bytes(self) -> float:
        """Mean size of the files."""
        return sum(path.stat().st_size for path in self.files) / len(self.files)


def make_images(options: Options, megapixels: int, *, count: int | None = None, tiles: bool = False) -> LargeImages:
    """Compose images of a size, unless an earlier run did, and convert them."""
    width, height, usual = SIZES[megapixels]
    count = min(usual, 3) if options.quick else count or usual
    folder = options.work / f"large-{megapixels}-{count}"
    images, cut, dataset = folder / "images", folder / "tiles", folder / "dataset"
    if not dataset.exists():
        images.mkdir(parents=True)
        parts = itertools.cycle(find(options.photographs))
        for number in range(count):
            (images / f"{number:03d}.jpg").write_bytes(encode(_compose(parts, width, height)))
        # Containers as full as in a large data set: convert would spread so few images over many rows.
        jpegs = [path.read_bytes() for path in sorted(images.iterdir())]
        records = count if options.quick else min(_MAX_RECORDS, _DATASET_BYTES * count // sum(map(len, jpegs)))
        with picstore.Writer(dataset, shape=DatasetShape(streams=2, file_size=16 << 20)) as writer:
            for _, jpeg in zip(range(records), itertools.cycle(jpegs), strict=False):
                writer.add(jpeg)
    if tiles and not cut.exists():
        cut.mkdir()
        for path in sorted(images.iterdir()):
            with Image.open(path) as image:
                for left, top in itertools.product(range(0, width, TILE), range(0, height, TILE)):
                    box = left, top, min(left + TILE, width), min(top + TILE, height)
                    (cut / f"{path.stem}-{top}-{left}.jpg").write_bytes(encode(image.crop(box)))
    made = sorted(cut.iterdir()) if tiles else []
    return LargeImages(width, height, sorted(images.iterdir()), made, dataset)


def _compose(parts: Iterator[Path], width: int, height: int) -> Image.Image:
    """Fill an image with photographs, row after row."""
    composed = Image.new("RGB", (width, height))
    top = 0
    while top < height:
        left = row = 0
        while left < width:
            with Image.open(next(parts)) as part:
                composed.paste(part.convert("RGB"), (left, top))
                left, row = left + part.width, min(row or part.height, part.height)
        top += row
    return composed


def evict(paths: list[Path]) -> None:
    """Take files out of the page cache."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
