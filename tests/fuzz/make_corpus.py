"""Write the seeds of tests/fuzz/corpus that code makes; those that guided runs found stay beside them.

python tests/fuzz/make_corpus.py
"""

from __future__ import annotations

import hashlib
import io
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random
from unittest.mock import patch

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import files  # noqa: E402
import h5py  # noqa: E402
import numpy as np  # noqa: E402
from jpeg_streams import jpeg, mutate_jpeg  # noqa: E402
from PIL import Image  # noqa: E402
from samples import picture  # noqa: E402
from source_files import DATA, JPEGS, make_tar  # noqa: E402

import picstore  # noqa: E402
from picstore.prepare.convert.ledger import LedgerLine, duplicate_line, write_lines  # noqa: E402
from picstore.prepare.convert.row_division import DatasetShape  # noqa: E402
from picstore.storage.format import segment_table  # noqa: E402
from picstore.storage.location.local import Folder  # noqa: E402

EXTRA = {"boxes": [[0, 0, 9, 5.5]], "box_labels": [3], "polygons": [[[0, 0, 4, 0, 4, 4]]], "keypoints": [[[1, 2, 2]]]}
TOML = b"""# A mux
seed = 1
batch_size = 8
transform = [ { name = "CenterCrop", size = 224 } ]
[[source]]
path = "cats"
base = 0
count = 20
transform = [ { name = "RandomResizedCrop", size = 224, scale = [0.2, 1.0] }, { name = "RandomHorizontalFlip" } ]
"""


def small(number: int, format: str = "JPEG", **options: object) -> bytes:
    """A tiny image file."""
    out = io.BytesIO()
    Image.fromarray(picture(number, width=17, height=9)).save(out, format, **options)
    return out.getvalue()


def dataset(work: Path, *, edited: bool) -> dict[str, bytes]:
    """Files of a data set with attachments and extras, and one with tombstones and columns too."""
    root = work / f"set-{edited}"
    shape = DatasetShape(streams=2 - edited, container_size=4096, file_size=4096)
    with picstore.Writer(root, classes=["a", "b"], attachments=["mask"], shape=shape) as writer:
        for k in range(4):
            attachments = {"mask": b"mask"} if k % 2 else None
            writer.add(np.asarray(Image.open(io.BytesIO(small(k)))), k % 2, extra=EXTRA, attachments=attachments)
    if edited:
        made = picstore.Dataset(root).with_columns({"caption": list("abcd"), "vector": np.eye(4)})
        made.without([1]).save()
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def dataset_with_rows(work: Path) -> dict[str, bytes]:
    """Files of a data set whose images have checksums of their rows of tiles, which only large ones get otherwise."""
    root = work / "set-rows"
    shape = DatasetShape(streams=1, container_size=1 << 20, file_size=1 << 20)
    with (
        patch.object(segment_table, "MIN_BYTES", 0),
        picstore.Writer(root, attachments=["mask"], shape=shape) as writer,
    ):
        for k in range(3):
            # The last one has entry points too.
            size = {"width": 176, "height": 20} if k == 2 else {"width": 33, "height": 70}
            writer.add(picture(k, **size), attachments={"mask": b"mask"} if k % 2 else None)
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def sources(work: Path) -> Iterator[dict[str, bytes]]:
    """Small sources of every kind, each with the way to open it."""
    fixtures = ("mds", "mds-zstd", "litdata", "litdata-pil", "litdata-zstd-sample", "recordio", "caffe")
    for name in fixtures:
        found = sorted((DATA / name).iterdir())
        kept = [p for p in found if p.stat().st_size < 5000 or name == "caffe"]
        where = "split.rec" if name == "recordio" else ""
        yield opened(where, {p.name: p.read_bytes() for p in kept if name != "recordio" or p.stem == "split"})
    yield opened("a.tfrecord", {"a.tfrecord": (DATA / "tfrecord" / "train-00000-of-00002").read_bytes()})
    pictures = {f"{'ab'[k % 2]}/{k}.jpg": small(k) for k in range(3)}
    yield opened("", pictures)
    yield opened("x.txt", {"x.txt": b"a/0.jpg 0\nb/1.jpg 1\n", **pictures})
    yield opened("x.csv", {"x.csv": b'path,label,caption\na/0.jpg,cat,"one, two"\nb/1.jpg,dog,\n', **pictures})
    lines = [{"path": "a/0.jpg", "label": 1, "extra": EXTRA, "attachments": {"mask": "b/1.jpg"}}, {"path": "b/1.jpg"}]
    yield opened("x.jsonl", {"x.jsonl": b"".join(json.dumps(line).encode() + b"\n" for line in lines), **pictures})
    yield opened("", {"boxes.json": json.dumps(coco()).encode(), **pictures}, annotations="boxes.json")
    tar = make_tar(work / "x.tar", {"0.jpg": small(0), "0.cls": b"1", "0.json": b'{"a":1}', "1.jpg": small(1)})
    yield opened("x.tar", {"x.tar": tar.read_bytes().rstrip(b"\0") + bytes(1024)})
    synsets = {f"n0{k}.tar": make_tar(work / f"n0{k}.tar", {"x.JPEG": small(k)}).read_bytes()[:3072] for k in range(2)}
    yield opened("", synsets, kind="imagenet")
    with h5py.File(work / "x.h5", "w", libver="latest") as file:
        file["images"] = np.stack([picture(k, width=4, height=3) for k in range(2)])
        file["labels"] = np.arange(2)
    yield opened("x.h5", {"x.h5": (work / "x.h5").read_bytes()})
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"image": [{"bytes": small(k), "path": "x"} for k in range(2)], "label": [0, 1]})
    pq.write_table(table, work / "x.parquet")
    yield opened("x.parquet", {"x.parquet": (work / "x.parquet").read_bytes()})


def coco() -> dict[str, object]:
    """Annotations of two images."""
    images = [{"id": k, "file_name": f"{'ab'[k]}/{k}.jpg", "width": 17, "height": 9} for k in range(2)]
    object_ = {"id": 1, "image_id": 0, "category_id": 7, "bbox": [1, 1, 4, 3], "segmentation": [[1, 1, 4, 1, 4, 3]]}
    counts = {"size": [9, 17], "counts": "04d4"}
    others = {"keypoints": [1, 2, 2], "iscrowd": 0, "area": 12.5}
    second = {"id": 2, "image_id": 1, "category_id": 7, "bbox": [0, 0, 1, 1], "iscrowd": 1, "segmentation": counts}
    return {"images": images, "annotations": [{**object_, **others}, second], "categories": [{"id": 7, "name": "cat"}]}


def opened(where: str, content: dict[str, bytes], **options: str) -> dict[str, bytes]:
    return {files.OPENED: json.dumps({"where": where, **options}).encode(), **content}


def seeds(work: Path) -> Iterator[tuple[str, bytes]]:
    """All seeds, with their targets."""
    for edited in (False, True):
        found = dataset(work, edited=edited)
        yield "dataset", files.pack(found)
        yield "manifest", found["picstore.json"]
        yield from (("array", data) for name, data in found.items() if name.endswith(".npy"))
    found = dataset_with_rows(work)
    yield "dataset", files.pack(found)
    yield "mux", files.pack(found)
    yield from (("source", files.pack(each)) for each in sources(work))
    lines = [LedgerLine("a/0.jpg", 0, "lossless", "", 9, 9), LedgerLine("b\n.png", 1, "reencoded", "PNG", 9, 9)]
    lines += [LedgerLine("x", 2, "failed", "no image"), duplicate_line("y", 3, 1)]
    write_lines(Folder(work / "l"), lines)
    yield "ledger", (work / "l").read_bytes()
    yield "targets", json.dumps(EXTRA).encode()
    yield "targets", json.dumps({**EXTRA, "boxes": [[0] * 4] * 3, "polygons": [[], [], []]}).encode()
    yield "config", TOML
    yield "config", b"cats 0 20\n../dogs 1000 12\n"
    for number in range(4):
        rng = Random(number)
        for target in ("headers", "decoder", "transcoder", "cut"):
            yield target, jpeg(rng)
    exif = b"Exif\0\0MM\0*\0\0\0\x08\0\1\1\x12\0\3\0\0\0\1\0\6\0\0\0\0\0\0"
    for options in ({"exif": exif}, {"progressive": True}, {"restart_marker_rows": 1}):
        yield "headers", small(0, **options)
        yield "image", small(0, **options)
    for kind in ("PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM", "JPEG2000"):
        yield "image", small(1, kind)
    yield "image", mutate_jpeg(JPEGS[0], Random(0))


def main() -> None:
    """Write each seed under the beginning of its SHA-256."""
    with tempfile.TemporaryDirectory() as work:
        for target, data in seeds(Path(work)):
            path = HERE / "corpus" / target / hashlib.sha256(data).hexdigest()[:12]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


if __name__ == "__main__":
    main()
