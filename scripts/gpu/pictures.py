"""The photographs, encoded in several ways, and the data sets that are made of them."""

from __future__ import annotations

import io
import json
import math
import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from picstore import Dataset, RandomResizedCrop, cut
from picstore.jpeg.tiles import mcu_size, restart_interval
from picstore.prepare.convert.row_writer import RowWriter, make_record
from picstore.prepare.image.settings import EncodeSettings
from picstore.prepare.image.training_jpeg import make_training_jpeg
from picstore.storage.location.resolve import locate
from picstore.storage.publish import publish_dataset
from picstore.train.cpu.cut import boxes_to_cut
from picstore.train.transforms.batch_random import BatchRandom
from picstore.train.transforms.geometry import Geometry

QUALITY = 90
SUBSAMPLINGS = {"4:4:4": 0, "4:2:0": 2}  # Pillow's numbers
MARKERS = ("none", "row", "tile", "MCU")
EQUAL = (512, 384)


@dataclass(frozen=True)
class Photographs:
    """Some photographs with their classes.

    Attributes:
        jpegs: as they are.
        labels: 0, 1, …
    """

    jpegs: list[bytes]
    labels: list[int]

    @classmethod
    def of(cls, path: Path, limit: int) -> Photographs:
        """Those of a folder, or of a data set, evenly chosen."""
        if (path / "picstore.json").exists():
            data = Dataset(path)
            numbers = np.linspace(0, len(data) - 1, min(limit, len(data))).astype(int).tolist()
            records = [data[number] for number in numbers]
            return cls([bytes(record.jpeg) for record in records], [max(0, record.label) for record in records])
        files = [file for file in sorted(path.rglob("*")) if file.suffix.lower() in (".jpg", ".jpeg")]
        if not files:
            raise SystemExit(f"{path} has no JPEG files and is no data set")
        chosen = [files[number] for number in np.linspace(0, len(files) - 1, min(limit, len(files))).astype(int)]
        classes = {folder: label for label, folder in enumerate(sorted({file.parent for file in files}))}
        return cls([file.read_bytes() for file in chosen], [classes[file.parent] for file in chosen])

    def smaller(self, side: int) -> Photographs:
        """The same, of at most so many pixels a side."""

        def one(image: Image.Image) -> bytes:
            image.thumbnail((side, side))
            return encode(image, subsampling="4:2:0", markers="none")

        return Photographs(in_threads(one, self.pixels), self.labels)

    @cached_property
    def pixels(self) -> list[Image.Image]:
        """Decoded, RGB."""
        return in_threads(lambda jpeg: Image.open(io.BytesIO(jpeg)).convert("RGB"), self.jpegs)

    def encoded(self, *, subsampling: str = "4:2:0", markers: str = "tile", equal: bool = False) -> list[bytes]:
        """At quality 90 with markers of ``MARKERS``."""

        def one(image: Image.Image) -> bytes:
            picture = image.resize(EQUAL) if equal else image
            return encode(picture, subsampling=subsampling, markers=markers)

        return in_threads(one, self.pixels)


def in_threads(function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    """What becomes of each, by as many threads as there are cores."""
    with ThreadPoolExecutor() as threads:
        return list(threads.map(function, items))


def encode(image: Image.Image, *, subsampling: str, markers: str) -> bytes:
    """A JPEG of quality 90."""
    width, _ = mcu_size(components=3, subsampling=subsampling.replace(":", ""))
    interval = restart_interval(-(-image.width // width), width)
    options = {"none": {}, "row": {"restart_marker_rows": 1}, "MCU": {"restart_marker_blocks": 1}}
    options["tile"] = {"restart_marker_blocks": interval}
    out = io.BytesIO()
    image.save(out, "JPEG", quality=QUALITY, subsampling=SUBSAMPLINGS[subsampling], **options[markers])
    return out.getvalue()


def sized(image: Image.Image, name: str) -> Image.Image:
    """A picture as the standard job takes it: 640 × 480, or of a megapixel; tiny ones stay so."""
    if max(image.size) < 100:
        return image
    if name == "640x480":
        return image.resize((640, 480))
    scale = math.sqrt(1e6 / (image.width * image.height))
    return image.resize((max(1, round(image.width * scale)), max(1, round(image.height * scale))))


def crop_boxes(sizes: Sequence[tuple[int, int]], seed: int = 0) -> list[tuple[int, int, int, int]]:
    """What RandomResizedCrop reaches of images: left, top, width, height."""
    size = np.array(sizes, dtype=np.int64)
    start = Geometry.identity(size[:, 0], size[:, 1])
    reach = RandomResizedCrop(224)(start, BatchRandom(seed, 0, np.arange(len(size)))).reach
    boxes = boxes_to_cut(reach, size)
    boxes[:, 2:] -= boxes[:, :2]
    return [tuple(box) for box in boxes.tolist()]


def cut_all(
    jpegs: Sequence[bytes], boxes: Sequence[tuple[int, int, int, int]]
) -> tuple[list[bytes], list[tuple[int, int]]]:
    """The cuts of boxes, and where in each its box lies."""
    pairs = [cut(jpeg, box) for jpeg, box in zip(jpegs, boxes, strict=True)]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def write_dataset(path: Path, jpegs: Sequence[bytes], labels: Sequence[int], *, records: int) -> None:
    """A data set in which the JPEGs come again and again, as often as it takes."""
    settings = EncodeSettings.from_json({})
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    made = [make_training_jpeg(jpeg, settings=settings) for jpeg in jpegs]
    writer = RowWriter(locate(path), row=0, streams=16, container_size=8 << 20, seed=0)
    for number in range(records):
        one = made[number % len(made)]
        writer.add(make_record(one.jpeg, id=number, label=labels[number % len(made)], info=one.info))
    summaries = writer.close()
    about = {"classes": tuple(f"class {k}" for k in range(max(labels) + 1)), "attachments": ()}
    provenance = {"source": "bench_gpu", "inputs": records}
    publish_dataset(
        path, summaries, streams=16, container_size=8 << 20, encode=settings.to_json(), provenance=provenance, **about
    )


def write_all(work: Path, photographs: Photographs, *, records: int) -> None:
    """All data sets of the other parts, and a folder of the photographs for those that read files; once a folder."""
    images, labels = photographs.pixels, photographs.labels
    made, about = work / "made.json", json.dumps({"images": len(images), "records": records})
    if made.exists() and made.read_text() == about:
        return
    shutil.rmtree(work / "files", ignore_errors=True)
    plan = {
        "photographs": (photographs.jpegs, records),
        "once": (photographs.jpegs, len(images)),
        "444": (photographs.encoded(subsampling="4:4:4", markers="none"), len(images)),
        "640x480": (_resized(images, "640x480"), records // 4),
        "megapixel": (_resized(images, "megapixel"), records // 4),
    }
    for name, (jpegs, count) in plan.items():
        write_dataset(work / name, jpegs, labels, records=max(count, 1))
    for number, (jpeg, label) in enumerate(zip(photographs.jpegs, labels, strict=True)):
        folder = work / "files" / f"{label:04d}"
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{number}-0.jpg"
        file.write_bytes(jpeg)
        for copy in range(1, max(1, records // len(images))):
            os.link(file, folder / f"{number}-{copy}.jpg")
    made.write_text(about)


def _resized(images: Sequence[Image.Image], name: str) -> list[bytes]:
    return in_threads(lambda image: encode(sized(image, name), subsampling="4:2:0", markers="none"), images)
