"""Write tests/fixtures/sources: data sets of the formats whose libraries are too heavy for the tests' environment.

    python scripts/make_source_fixtures.py mds|litdata|ffcv|tfrecord|huggingface|recordio|caffe

Each is made by the format's own library, which the interpreter must have: `.venv-peers` of scripts/bench-peers has
mosaicml-streaming, litdata and ffcv; tensorflow and datasets are installed anywhere. recordio wants mxnet (1.9.1, the
last one) with numpy<1.24, requests and opencv-python-headless<4.8; caffe wants lmdb, grpcio-tools and mxnet as well,
which has Caffe's caffe.proto: no Caffe can be installed. Six pictures of 24 × 16 pixels each; tests/prepare/sources
knows what is in them. The originals are in tests/fixtures/sources/images.
"""

from __future__ import annotations

import gzip
import importlib.util
import shutil
import struct
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent / "tests" / "fixtures" / "sources"
COUNT = 6
NAMES = ("cat", "dog", "ant")


def pixels(number: int) -> np.ndarray:
    """A picture whose colours tell its number."""
    x, y = np.meshgrid(np.arange(24), np.arange(16))
    return np.stack([x * 10, y * 15, np.full_like(x, 40 * number)], axis=-1).astype(np.uint8)


def jpeg(number: int) -> bytes:
    """The JPEG of a picture; made once, so that all versions of Pillow agree."""
    path = ROOT / "images" / f"{number}.jpg"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels(number)).save(path, quality=90)
    return path.read_bytes()


def empty(name: str) -> Path:
    folder = ROOT / name
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def mds() -> None:
    from streaming import MDSWriter

    columns = {"image": "bytes", "label": "int", "name": "str", "score": "float32", "meta": "json", "secret": "pkl"}
    for name, compression in (("mds", None), ("mds-zstd", "zstd"), ("mds-gz", "gz"), ("mds-br", "br")):
        folder = empty(name)
        with MDSWriter(out=str(folder), columns=columns, compression=compression, size_limit=2500) as writer:
            for k in range(COUNT):
                more = {"score": k / 2, "meta": {"k": [k]}, "secret": {k}}
                writer.write({"image": jpeg(k), "label": k % 3, "name": NAMES[k % 3], **more})
    with MDSWriter(out=str(empty("mds-pil")), columns={"img": "pil", "cls": "str_int"}) as writer:
        for k in range(COUNT):
            writer.write({"img": Image.fromarray(pixels(k)), "cls": k % 3})


def litdata() -> None:
    import litdata

    def run(name: str, function: object, **options: object) -> None:
        folder = empty(name)
        litdata.optimize(
            fn=function, inputs=list(range(COUNT)), output_dir=str(folder), chunk_size=4, num_workers=1, **options
        )

    run("litdata", litdata_sample)
    run("litdata-pil", litdata_pil)
    run("litdata-pickle", litdata_pickle)
    for level in ("batch", "chunk", "sample"):
        run(f"litdata-zstd-{level}", litdata_sample, compression="zstd", compression_level=level)


def litdata_sample(k: int) -> dict[str, object]:
    return {"image": jpeg(k), "label": k % 3, "name": NAMES[k % 3], "score": k / 2}


def litdata_pil(k: int) -> tuple[object, int]:
    return Image.fromarray(pixels(k)), k % 3


def litdata_pickle(k: int) -> tuple[object, int]:
    return {1, 2, k}, k


class Samples:
    """What FFCV's writer reads."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, k: int) -> tuple[object, ...]:
        return pixels(k), k % 3, k / 2, {"k": [int(k)], "name": NAMES[k % 3]}


def ffcv() -> None:
    from ffcv.fields import FloatField, IntField, JSONField, RGBImageField
    from ffcv.writer import DatasetWriter

    folder = empty("ffcv")
    folder.mkdir(parents=True)
    for mode in ("raw", "jpg"):
        fields = {"image": RGBImageField(write_mode=mode, jpeg_quality=95), "label": IntField(), "score": FloatField()}
        writer = DatasetWriter(str(folder / f"{mode}.beton"), {**fields, "meta": JSONField()}, num_workers=1)
        writer.from_indexed_dataset(Samples())
        data = (folder / f"{mode}.beton").read_bytes()  # at least 4 MiB, nearly all of it zeros
        (folder / f"{mode}.beton.gz").write_bytes(gzip.compress(data, mtime=0))
        (folder / f"{mode}.beton").unlink()


def tfrecord() -> None:
    import tensorflow as tf

    def feature(value: object) -> object:
        values = value if isinstance(value, list) else [value]
        if isinstance(values[0], bytes):
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
        if isinstance(values[0], float):
            return tf.train.Feature(float_list=tf.train.FloatList(value=values))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    folder = empty("tfrecord")
    folder.mkdir(parents=True)
    for shard in range(2):
        with tf.io.TFRecordWriter(str(folder / f"train-{shard:05d}-of-00002")) as writer:
            for k in range(shard * 3, shard * 3 + 3):
                features = {
                    "image/encoded": jpeg(k),
                    "image/class/label": k % 3,
                    "image/class/text": NAMES[k % 3].encode(),
                    "image/object/bbox/xmin": [0.25, 0.5],
                    "image/height": 16,
                    "offset": -k,
                    "hash": b"\xff\xfe",
                }
                example = tf.train.Example(
                    features=tf.train.Features(feature={name: feature(value) for name, value in features.items()})
                )
                writer.write(example.SerializeToString())


def huggingface() -> None:
    from datasets import ClassLabel, Dataset, Features, Value
    from datasets import Image as ImageFeature

    folder = empty("huggingface")
    (folder / "data").mkdir(parents=True)
    columns = {
        "image": [{"bytes": jpeg(k), "path": f"{k}.jpg"} for k in range(COUNT)],
        "label": [k % 3 for k in range(COUNT)],
        "caption": [f"picture {k}" for k in range(COUNT)],
    }
    features = Features(image=ImageFeature(), label=ClassLabel(names=list(NAMES)), caption=Value("string"))
    dataset = Dataset.from_dict(columns, features=features)
    for shard in range(2):
        path = folder / "data" / f"train-{shard:05d}-of-00002.parquet"
        dataset.shard(2, shard, contiguous=True).to_parquet(path, batch_size=2)


def mxnet_tools() -> Path:
    """The folder of MXNet's tools, found without importing it."""
    return Path(importlib.util.find_spec("mxnet").origin).parent / "tools"


def recordio() -> None:
    import mxnet

    folder = empty("recordio")
    folder.mkdir(parents=True)

    def write(name: str, samples: list[tuple[object, bytes]]) -> None:
        record = mxnet.recordio.MXIndexedRecordIO(str(folder / f"{name}.idx"), str(folder / f"{name}.rec"), "w")
        for k, (label, data) in enumerate(samples):
            record.write_idx(10 + k, mxnet.recordio.pack(mxnet.recordio.IRHeader(0, label, 10 + k, 0), data))
        record.close()

    write("one", [(k % 3, jpeg(k)) for k in range(COUNT)])
    write("several", [([k % 3, k / 2], jpeg(k)) for k in range(COUNT)])
    # The magic number where the writer must split a record: behind whole words, twice in a row, and at the end.
    magic, image = struct.pack("<I", 0xCED7230A), jpeg(2) + bytes(-len(jpeg(2)) % 4)
    write("split", [(0.25, image + magic + b"abcd" + magic + magic + b"end"), (1, jpeg(1)), (2, image + magic)])
    im2rec(folder)


def im2rec(folder: Path) -> None:
    """What MXNet's command makes of a folder a class, its lists and its encoding (PNG, which loses nothing)."""
    command = [sys.executable, str(mxnet_tools() / "im2rec.py")]
    with tempfile.TemporaryDirectory() as root:
        for k in range(COUNT):
            path = Path(root) / NAMES[k % 3] / f"{k}.png"
            path.parent.mkdir(exist_ok=True)
            Image.fromarray(pixels(k)).save(path)
        prefix = str(folder / "im2rec")
        subprocess.run([*command, prefix, root, "--list", "--recursive", "--no-shuffle"], check=True)
        subprocess.run([*command, prefix, root, "--encoding", ".png", "--quality", "9"], check=True)
    (folder / "im2rec.lst").unlink()


def caffe() -> None:
    """As Caffe's convert_imageset: Datums under numbered keys, encoded or as planes of blue, green and red."""
    import lmdb

    with tempfile.TemporaryDirectory() as generated:
        proto = mxnet_tools() / "caffe_converter"
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{proto}", f"--python_out={generated}", "caffe.proto"]
        subprocess.run(command, check=True)
        sys.path.insert(0, generated)
        from caffe_pb2 import Datum
    folder = empty("caffe")
    folder.mkdir(parents=True)
    with lmdb.open(str(folder), map_size=1 << 20) as environment, environment.begin(write=True) as transaction:
        planes = np.ascontiguousarray(pixels(3)[:, :, ::-1].transpose(2, 0, 1))
        shape = dict(zip(("channels", "height", "width"), planes.shape, strict=True))
        datums = [Datum(data=jpeg(0), label=7, encoded=True), Datum(data=planes.tobytes(), label=-1, **shape)]
        datums.append(Datum(data=jpeg(1), label=0, encoded=True, **shape))
        for k, datum in enumerate(datums):
            transaction.put(f"{k:08d}".encode(), datum.SerializeToString())
    (folder / "lock.mdb").unlink()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    makers = (mds, litdata, ffcv, tfrecord, huggingface, recordio, caffe)
    {make.__name__: make for make in makers}[sys.argv[1]]()
