"""Small data sets of every kind for the run that flips bits, and their bytes by what they hold."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import picstore
from benchmarks.torture.verbs import INLINE
from picstore.prepare.convert.append_images import append
from picstore.prepare.convert.conversion_job import ConvertOptions, convert
from picstore.prepare.convert.row_division import DatasetShape
from picstore.prepare.image.encode_settings import EncodeSettings
from picstore.prepare.sources.open import open_source
from picstore.storage.format.layout import SEALED, ContainerHeader

_SHAPE = DatasetShape(streams=1, container_size=4096, file_size=1 << 20)
_OPTIONS = ConvertOptions(encode=EncodeSettings(), shape=_SHAPE, workers=INLINE)


@dataclass(frozen=True)
class Place:
    """A range of a file's bytes, by what it holds."""

    name: str
    file: Path
    begin: int
    end: int


def _picture(number: int) -> np.ndarray[Any, Any]:
    y, x = np.mgrid[:16, :24]
    planes = [(7 * x + 31 * number) % 256, (5 * y + 17 * number) % 256, (3 * (x + y)) % 256]
    return np.stack(planes, axis=-1).astype(np.uint8)


def _photographs(folder: Path, classes: tuple[str, ...], first: int) -> Path:
    for k, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        Image.fromarray(_picture(first + k)).save(folder / name / "a.jpg", quality=60)
    return folder


def plain(folder: Path) -> Path:
    """A data set of two photographs."""
    convert(open_source(_photographs(folder / "photos", ("ant", "bee"), 0)), folder / "plain", _OPTIONS)
    return folder / "plain"


def attached(folder: Path) -> Path:
    """One with attachments and extras."""
    out = io.BytesIO()
    Image.fromarray(np.full((16, 24), 3, np.uint8)).save(out, "PNG")
    with picstore.Writer(folder / "attached", classes=["cat"], attachments=["mask"], shape=_SHAPE) as writer:
        for k in range(2):
            writer.add(_picture(k), 0, extra={"caption": f"picture {k}"}, attachments={"mask": out.getvalue()})
    return folder / "attached"


def edited(folder: Path) -> Path:
    """One with a deletion, columns and an append."""
    root = folder / "edited"
    convert(open_source(_photographs(folder / "first", ("ant", "bee", "cat"), 10)), root, _OPTIONS)
    dataset = picstore.Dataset(root).without([1]).save()
    vectors = np.arange(6, dtype=np.float32).reshape(2, 3)
    dataset.with_columns({"vector": vectors, "caption": ["one", "two"], "label": [2, 0]}).save()
    append(open_source(_photographs(folder / "second", ("bee", "dog"), 20)), root, _OPTIONS)
    return root


def places(root: Path) -> Iterator[Place]:
    """All bytes of a data set, by what they hold."""
    names = {"picstore.json": "manifest", "picstore.copy.json": "copy of the manifest", "picstore.idx": "index"}
    dataset = picstore.Dataset(root)
    for path in sorted(root.rglob("*")):
        if path.suffix == ".pic":
            yield from _container_places(dataset, path)
        elif path.is_file():
            kind = {".npy": "tombstones and columns", ".json": "earlier version's manifest", ".idx": "index"}
            kind[".counts"] = "counts by class"
            name = names.get(path.name) or ("ledger" if path.suffix == ".jsonl" else kind.get(path.suffix, path.name))
            yield Place(name, path, 0, path.stat().st_size)


def _container_places(dataset: picstore.Dataset, path: Path) -> Iterator[Place]:
    raw = path.read_bytes()
    yield Place("file header", path, 0, SEALED)
    yield Place("zeros behind the file header", path, SEALED, 4096)
    address = int(path.parent.name), int(path.stem)
    numbers = np.flatnonzero((dataset.rows["stream"] == address[0]) & (dataset.rows["file"] == address[1]))
    for number in numbers.tolist():
        at = int(dataset.rows["offset"][number])
        header = ContainerHeader.unpack(raw[at : at + SEALED], file=path.name, offset=at)
        entries = SEALED * (1 + header.records)
        ends = {
            "container header": SEALED,
            "entries": entries,
            "attachment table": header.segments_at,
            "segment table": header.extras_at,
            "extras": header.payload_at,
            "payload: images and attachments": header.payload[1],
            "padding": header.size,
        }
        begin = 0
        for name, end in ends.items():
            if end > begin:
                yield Place(name, path, at + begin, at + end)
            begin = end
    footer = len(raw) - SEALED - 24 * len(numbers)
    yield Place("footer", path, footer, len(raw) - SEALED)
    yield Place("file trailer", path, len(raw) - SEALED, len(raw))
