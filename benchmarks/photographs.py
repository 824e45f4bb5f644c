"""Photographs: files of a folder, copies of them, encodings of them, and the boxes of RandomResizedCrop."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

import picstore
from picstore.jpeg.markers import Header, parse_header
from picstore.jpeg.tiles import restart_interval
from picstore.train.transforms.batch_random import BatchRandom
from picstore.train.transforms.geometry import Geometry

SUFFIXES = (".jpg", ".jpeg")
SUBSAMPLINGS = {"4:4:4": 0, "4:2:2": 1, "4:2:0": 2}  # Pillow's numbers
MARKERS = ("none", "row", "tile", "MCU")  # restart intervals by name
MAX_INTERVAL = 65_535  # MCUs (T.81, B.2.4.4)
SHORTER = 256  # pixels of the shorter side of resized photographs


def find(folder: Path, count: int | None = None) -> list[Path]:
    """JPEG files below a folder, ``count`` of them evenly chosen.

    Raises:
        ValueError: there are none.
    """
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    if not files:
        raise ValueError(f"{folder} has no JPEG files")
    return files if count is None else files[:: max(1, len(files) // count)][:count]


def read_markable(folder: Path, count: int | None) -> list[bytes]:
    """JPEG files that restart markers can be added to."""
    jpegs = []
    for path in find(folder, count):
        try:
            picstore.add_restart_markers(jpeg := path.read_bytes())
        except picstore.NotTranscodable:
            continue
        jpegs.append(jpeg)
    return jpegs


def copy_images(folder: Path, images: Path, copies: int, count: int | None = None) -> tuple[int, ...]:
    """Copy photographs into one folder a class, unless an earlier run did; returns the images of each class.

    Copies, not links: contenders that read files have as many bytes in the page cache as others.

    Raises:
        ValueError: the copies there are of other images.
    """
    source, marker = find(folder, count), images.with_name("source.json")
    origin = {"folder": str(folder.resolve()), "copies": copies, "files": len(source)}
    if not marker.exists():
        shutil.rmtree(images, ignore_errors=True)
        for path in source:
            target = images / (path.parent.name if path.parent != folder else "all")
            target.mkdir(parents=True, exist_ok=True)
            for copy in range(copies):
                shutil.copyfile(path, target / f"{path.stem}-{copy}.jpg")
        marker.write_text(json.dumps(origin))
    elif json.loads(marker.read_text()) != origin:
        raise ValueError(f"{marker.parent} holds copies of other images; name another --work")
    return tuple(sum(1 for _ in path.iterdir()) for path in sorted(images.iterdir()))


def size_of(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def pillow(jpeg: bytes) -> Image.Image:
    """Decode with Pillow, RGB."""
    with Image.open(io.BytesIO(jpeg)) as image:
        return image.convert("RGB")


def encode(image: Image.Image, *, quality: int = 90, subsampling: str = "4:2:0") -> bytes:
    """Encode with Pillow, "grey" too, and 4:4:0, which it lacks, with simplejpeg."""
    if subsampling == "4:4:0":
        import simplejpeg

        return bytes(simplejpeg.encode_jpeg(np.asarray(image), quality, "RGB", "440"))
    out = io.BytesIO()
    if subsampling == "grey":
        image.convert("L").save(out, "JPEG", quality=quality)
        return out.getvalue()
    image.save(out, "JPEG", quality=quality, subsampling=SUBSAMPLINGS[subsampling])
    return out.getvalue()


def shrink(
    image: Image.Image, shorter: int = SHORTER, kind: Image.Resampling = Image.Resampling.LANCZOS
) -> Image.Image:
    """Resize an image so that its shorter side has at most so many pixels."""
    scale = shorter / min(image.size)
    return image if scale >= 1 else image.resize((round(image.width * scale), round(image.height * scale)), kind)


def tile(header: Header) -> int:
    """MCUs of the default tile."""
    return restart_interval(header.mcus[0], header.mcu_size[0])


def mark(jpegs: Sequence[bytes], markers: str) -> list[bytes]:
    """Add restart markers at an interval of ``MARKERS``; "none" is one interval for the image, as far as it goes."""
    marked = []
    for jpeg in jpegs:
        header = parse_header(jpeg)
        columns, rows = header.mcus
        interval = {"MCU": 1, "tile": tile(header), "row": columns, "none": columns * rows}[markers]
        marked.append(picstore.add_restart_markers(jpeg, min(interval, MAX_INTERVAL)))
    return marked


def draws(count: int) -> BatchRandom:
    """Random numbers of the first ``count`` images of an epoch."""
    return BatchRandom(0, 0, np.arange(count))


def crop_geometry(sizes: Sequence[tuple[int, int]], output: int = 224) -> Geometry:
    """Geometry of RandomResizedCrop for images of these widths and heights."""
    size = np.array(sizes, np.int64)
    return picstore.RandomResizedCrop(output)(Geometry.identity(size[:, 0], size[:, 1]), draws(len(size)))


def cut_all(jpegs: Sequence[bytes]) -> tuple[list[bytes], list[tuple[int, int, int, int]], list[tuple[int, int]]]:
    """Cut RandomResizedCrop's boxes: the cuts, the boxes, and each box's left and top within its cut."""
    headers = [parse_header(jpeg) for jpeg in jpegs]
    corners = crop_geometry([(header.width, header.height) for header in headers]).clip.tolist()
    boxes = [(left, top, right - left, bottom - top) for left, top, right, bottom in corners]
    pairs = [picstore.cut(jpeg, box) for jpeg, box in zip(jpegs, boxes, strict=True)]
    return [pair[0] for pair in pairs], boxes, [pair[1] for pair in pairs]


def summary(jpegs: Sequence[bytes]) -> str:
    """Number and size of streams."""
    size = sum(map(len, jpegs))
    return f"{len(jpegs)} photographs of {size / len(jpegs) / 1e3:.0f} KB on average"
