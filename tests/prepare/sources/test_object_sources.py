"""Sources in object stores: every kind gives what it gives from a folder, read by ranges."""

from __future__ import annotations

import gzip
import importlib.util
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from commands import one_line, picstore_command, picstore_json, tree
from grids import slow_except
from pictures import require
from PIL import Image
from samples import picture
from source_files import DATA, JPEGS, im2rec, make_tar, put, recordio, write_picpoc
from stores import UNAVAILABLE, Proxy, request

import picstore
from picstore.errors import ImageError, NotADataset, PicstoreError, UsageError
from picstore.prepare.sources import parquet
from picstore.prepare.sources.compressed_and_raw import decompress_block
from picstore.prepare.sources.inputs import Input, Listing, ReadAhead, read_input
from picstore.prepare.sources.open import KINDS, SourceFormat, SourceProbe, open_source
from picstore.storage.location.local import Folder
from picstore.storage.location.resolve import Location, locate, locate_writable

SHAPE = ("--streams", 3, "--container-size", "8KiB", "--file-size", "16KiB")


def put_all(folder: Path, where: str) -> str:
    """The files of a folder, as objects."""
    root = locate(where)
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        (root / path.relative_to(folder).as_posix()).write(path.read_bytes())
    return where


# A builder a kind: fills a folder, and returns the name of the source in it ("" for all of it) and options.
Built = tuple[str, dict[str, str]]


def folder(root: Path) -> Built:
    for k, data in enumerate(JPEGS):
        put(root / ("a-b", "a", "c")[k % 3] / ("deep" if k > 3 else "") / f"{k}.jpg", data)
    put(root / "a" / ".hidden.jpg", JPEGS[0])
    put(root / "README", b"text")
    return "", {}


def flat(root: Path) -> Built:
    for k, data in enumerate(JPEGS):
        put(root / "flat" / f"{k} ä%20.jpg", data)
    return "flat", {}


def tars(root: Path, *, pairs: bool) -> None:
    for number in range(2):
        members = []
        for k, data in enumerate(JPEGS[3 * number : 3 * number + 3]):
            members += [(f"{k}.jpg", data)] + [(f"{k}.cls", b"%d" % k), (f"{k}.seg.png", b"mask")] * pairs
        make_tar(root / f"t{number}.tar", members)


def webdataset(root: Path) -> Built:
    tars(root, pairs=True)
    return "", {}


def webdataset_by_braces(root: Path) -> Built:
    tars(root, pairs=True)
    return "t{0..1}.tar", {}


def imagenet(root: Path) -> Built:
    tars(root, pairs=False)
    return "", {}


def imagenet_in_the_order_of_synsets(root: Path) -> Built:
    tars(root, pairs=False)
    put(root / "order" / "synsets.txt", b"t1 one\nt0 none\n")
    for name in ("t0.tar", "t1.tar"):
        put(root / "tars" / name, (root / name).read_bytes())
    return "tars", {"synsets": "order/synsets.txt"}


def copied(name: str) -> Callable[[Path], Built]:
    def build(root: Path) -> Built:
        for path in (DATA / name).rglob("*"):
            if path.is_file():
                put(root / path.relative_to(DATA / name), path.read_bytes())
        return "", {}

    return build


def beton(mode: str) -> Callable[[Path], Built]:
    def build(root: Path) -> Built:
        put(root / "a.beton", gzip.decompress((DATA / "ffcv" / f"{mode}.beton.gz").read_bytes()))
        return "a.beton", {}

    return build


def parquet_of_paths(root: Path) -> Built:
    import pyarrow as pa
    import pyarrow.parquet as pq

    put(root / "images" / "0.jpg", JPEGS[0])
    rows = [{"bytes": None, "path": "images/0.jpg"}, {"bytes": JPEGS[1], "path": None}]
    image = pa.array(rows, pa.struct({"bytes": pa.binary(), "path": pa.string()}))
    pq.write_table(pa.table({"image": image, "label": [3, 4]}), root / "train.parquet")
    return "train.parquet", {}


def records(root: Path) -> Built:
    magic = (0xCED7230A).to_bytes(4, "little")
    split = JPEGS[2] + bytes(-len(JPEGS[2]) % 4) + magic + b"abcd"
    data = [im2rec(JPEGS[0], 3.0, 10), im2rec(JPEGS[1], [4.0, 0.5], 11), im2rec(split, 0.25, 12)]
    put(root / "train.rec", b"".join(map(recordio, data)))
    return "", {}


def picpoc(root: Path) -> Built:
    write_picpoc(root)
    return "", {}


def images_below(root: Path) -> None:
    for k, data in enumerate(JPEGS):
        put(root / "images" / f"{k}.jpg", data)


def csv(root: Path) -> Built:
    images_below(root)
    rows = "".join(f"images/{k}.jpg,{'ab'[k % 2]},text {k}\n" for k in range(6))
    put(root / "train.csv", f"path,label,caption\n{rows}".encode())
    return "train.csv", {}


def jsonl_with_a_root_and_classes(root: Path) -> Built:
    images_below(root)
    rows = [{"path": f"{k}.jpg", "label": k, "attachments": {"other": f"{(k + 1) % 6}.jpg"}} for k in range(6)]
    put(root / "lists" / "train.jsonl", "\n".join(map(json.dumps, rows)).encode())
    put(root / "classes.txt", b"a\nb\nc\nd\ne\nf\n")
    return "lists/train.jsonl", {"root": "images", "classes": "classes.txt"}


def caffes_list(root: Path) -> Built:
    images_below(root)
    put(root / "train.txt", "".join(f"images/{k}.jpg {k}\n" for k in range(6)).encode())
    return "train.txt", {}


def coco(root: Path) -> Built:
    images_below(root)
    document = {
        "images": [{"id": k, "file_name": f"{k}.jpg", "width": 24, "height": 16} for k in range(6)],
        "annotations": [{"id": k, "image_id": k, "category_id": 7, "bbox": [1, 2, 3, 4]} for k in range(6)],
        "categories": [{"id": 7, "name": "thing"}],
    }
    put(root / "instances.json", json.dumps(document).encode())
    return "images", {"annotations": "instances.json"}


def voc(root: Path) -> Built:
    text = "<annotation><object><name>a</name><bndbox><xmin>1</xmin><ymin>2</ymin><xmax>3</xmax><ymax>4</ymax></bndbox>"
    for k, data in enumerate(JPEGS):
        put(root / "JPEGImages" / f"{k}.jpg", data)
        put(root / "Annotations" / f"{k}.xml", f"{text}</object></annotation>".encode())
    return "", {}


def yolo(root: Path) -> Built:
    for k, data in enumerate(JPEGS):
        put(root / "images" / "train" / f"{k}.jpg", data)
        put(root / "labels" / "train" / f"{k}.txt", b"0 0.5 0.5 0.5 0.25")
    put(root / "data.yaml", b"names: [thing]")
    return "", {}


def index(root: Path) -> Built:
    folder(root / "images")
    picstore_command("index", root / "images", root / "index")
    return "index", {}


BUILDERS: dict[str, tuple[str, Callable[[Path], Built]]] = {
    **{build.__name__: ("folder", build) for build in (folder, flat)},
    **{build.__name__: ("webdataset", build) for build in (webdataset, webdataset_by_braces)},
    **{build.__name__: ("imagenet", build) for build in (imagenet, imagenet_in_the_order_of_synsets)},
    **{name: ("mds", copied(name)) for name in ("mds", "mds-zstd", "mds-gz", "mds-pil")},
    **{
        name: ("litdata", copied(name))
        for name in ("litdata", "litdata-pil", "litdata-zstd-batch", "litdata-zstd-chunk", "litdata-zstd-sample")
    },
    **{f"ffcv-{mode}": ("ffcv", beton(mode)) for mode in ("jpg", "raw")},
    "huggingface": ("parquet", copied("huggingface")),
    "parquet_of_paths": ("parquet", parquet_of_paths),
    "recordio": ("recordio", records),
    "tfrecord": ("tfrecord", copied("tfrecord")),
    "picpoc": ("picpoc", picpoc),
    **{build.__name__: ("table", build) for build in (csv, jsonl_with_a_root_and_classes)},
    "list": ("list", caffes_list),
    "coco": ("coco", coco),
    "voc": ("voc", voc),
    "yolo": ("yolo", yolo),
    "index": ("index", index),
}
LOCAL = {"lmdb", "hdf5"}


@pytest.fixture(params=BUILDERS)
def built(request: pytest.FixtureRequest, bucket: str, tmp_path: Path) -> tuple[str, list[str], str, dict[str, str]]:
    """A kind; a root on this machine and one in a bucket with the same files; a source in them and its options."""
    kind, build = BUILDERS[request.param]
    if kind == "parquet":
        require(importlib.util.find_spec("pyarrow"), "pyarrow")
    source, options = build(tmp_path / "source")
    return kind, [str(tmp_path / "source"), put_all(tmp_path / "source", f"{bucket}/some/source")], source, options


def test_every_kind_is_read_from_a_store_or_is_known_not_to_be() -> None:
    assert {kind for kind, _ in BUILDERS.values()} | LOCAL == set(KINDS)


def contents(listing: Listing) -> list[object]:
    """All that becomes part of a data set."""
    with ReadAhead(listing.inputs) as ahead:
        return [
            (
                ahead.read(one),
                one.label,
                one.extra,
                one.annotated,
                [(name, other.name, ahead.read(other)) for name, other in one.attachments],
            )
            for one in listing.inputs
        ]


def test_a_source_in_a_store_is_recognized_and_gives_what_a_folder_gives(
    built: tuple[str, list[str], str, dict[str, str]],
) -> None:
    kind, roots, source, options = built
    listed, found = (
        open_source(f"{root}/{source}".rstrip("/"), **{name: f"{root}/{value}" for name, value in options.items()})
        for root in roots
    )
    assert found.kind == listed.kind == kind
    assert found.classes == listed.classes
    assert found.attachments == listed.attachments
    assert found.digest() == listed.digest()
    assert [remark.replace(roots[1], roots[0]) for remark in found.remarks] == listed.remarks
    assert contents(found) == contents(listed)
    assert len(listed.inputs) > 1


WHOLE_FILES = {
    "folder",
    "list",
    "table",
    "coco",
    "voc",
    "yolo",
}  # kinds whose inputs are files, without offsets in them


def replace_file(file: Location) -> None:
    """Put another file of the same size and modification time in the place of one."""
    data = file.read_all(1 << 25)
    if isinstance(file, Folder):
        status = file.path.stat()
        other = put(file.path.with_name("other"), data[::-1])
        os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
        other.replace(file.path)
    else:
        locate_writable(file).write(data[::-1])


def test_nothing_is_read_from_a_file_that_took_the_place_of_the_listed_one(
    built: tuple[str, list[str], str, dict[str, str]],
) -> None:
    kind, roots, source, options = built
    if source == "train.parquet":  # its images are files beside it
        return
    if kind in WHOLE_FILES | {"index"}:  # an index has a checksum of each image
        return
    for root in roots:
        listing = open_source(f"{root}/{source}".rstrip("/"), **{k: f"{root}/{v}" for k, v in options.items()})
        inputs = [one for one in listing.inputs if not one.problem]
        assert all(read_input(one) for one in inputs)
        for path in {one.path for one in inputs}:
            replace_file(locate(path))
        decompress_block.cache_clear()  # what was read of the listed file may still be used
        parquet._open_file.cache_clear()
        for one in inputs:
            for each in (one, *(other for _, other in one.attachments if other.path == one.path)):
                with pytest.raises(ImageError, match="has changed since it was listed"):
                    read_input(each)


@pytest.mark.parametrize(
    "name",
    slow_except(
        ["huggingface", "folder"], ["huggingface", "jsonl_with_a_root_and_classes", "litdata-zstd-batch", "folder"]
    ),
)
def test_convert_writes_the_same_bytes_from_a_store(name: str, bucket: str, tmp_path: Path) -> None:
    kind, build = BUILDERS[name]
    if kind == "parquet":
        require(importlib.util.find_spec("pyarrow"), "pyarrow")
    source, options = build(tmp_path / "source")
    for root, out in ((str(tmp_path / "source"), "here"), (put_all(tmp_path / "source", f"{bucket}/source"), "there")):
        given = [part for option, value in options.items() for part in (f"--{option}", f"{root}/{value}")]
        picstore_command("convert", f"{root}/{source}".rstrip("/"), tmp_path / out, *SHAPE, *given, "--workers", 2)
    assert tree(tmp_path / "there") == tree(tmp_path / "here")


def test_an_index_in_a_store_of_objects_in_a_store_is_read_and_converted(bucket: str, tmp_path: Path) -> None:
    source, _ = webdataset(tmp_path / "source")
    shards = f"{put_all(tmp_path / 'source', f'{bucket}/source')}/{source}".rstrip("/")
    picstore_command("index", shards, f"{bucket}/index")
    dataset = picstore.Dataset(f"{bucket}/index")
    expected = [read_input(one) for one in open_source(shards).inputs]
    assert [bytes(record.jpeg) for record in dataset] == expected
    picstore_command("convert", f"{bucket}/index", tmp_path / "out")
    assert picstore.Dataset(tmp_path / "out").ids.tolist() == dataset.ids.tolist()
    name = locate(shards).files().__next__()[0] if locate(shards).is_folder() else ""
    (locate(shards) / name if name else locate(shards)).remove()
    lost = {finding["file"] for finding in picstore_json("verify", f"{bucket}/index", code=3)["damage"]}
    assert lost == {f"{shards}/{name}" if name else shards}


# What is not there, not reachable, or not read


def test_kinds_that_libraries_read_from_files_only_are_refused_in_stores(bucket: str, tmp_path: Path) -> None:
    (locate(bucket) / "db/data.mdb").write(bytes(16) + b"\xde\xc0\xef\xbe" + bytes(100))
    (locate(bucket) / "a.h5").write(b"\x89HDF\r\n\x1a\n" + bytes(100))
    for name in ("db", "db/data.mdb", "a.h5"):
        with pytest.raises(UsageError, match=rf"{name} is in an object store, .* copy it first"):
            open_source(f"{bucket}/{name}")
    for kind in LOCAL:
        with pytest.raises(UsageError, match="copy it first"):
            open_source(f"{bucket}/db", kind=kind)
    assert "copy it first" in one_line(picstore_command("convert", f"{bucket}/a.h5", tmp_path / "out", code=2))


def test_a_source_that_is_not_there_says_so(bucket: str, tmp_path: Path) -> None:
    assert "does not exist" in one_line(picstore_command("convert", f"{bucket}/none", tmp_path / "out", code=1))
    (locate(bucket) / "some/x.jpg").write(JPEGS[0])
    with pytest.raises(NotADataset, match=r"has no index\.json"):
        open_source(f"{bucket}/some", kind="mds")
    with pytest.raises(UsageError, match="is not a folder"):
        open_source(f"{bucket}/some/x.jpg", kind="folder")
    with pytest.raises(NotADataset, match=r"t2\.tar does not exist"):
        open_source(f"{bucket}/t{{2..3}}.tar")
    with pytest.raises(NotADataset, match="is missing"):
        open_source(f"{bucket}/some", annotations=f"{bucket}/none.json")


@pytest.mark.parametrize("name", ["mds", "litdata", "tfrecord", "huggingface"])
def test_a_file_that_is_missing_or_cut_off_costs_what_it_costs_in_a_folder(
    name: str, bucket: str, tmp_path: Path
) -> None:
    kind, build = BUILDERS[name]
    build(tmp_path / "source")
    put_all(tmp_path / "source", f"{bucket}/source")
    data = sorted(p for p in (tmp_path / "source").rglob("*") if p.is_file() and p.suffix != ".json")[-1]
    there = locate(f"{bucket}/source") / data.relative_to(tmp_path / "source").as_posix()
    for content in (data.read_bytes()[: data.stat().st_size // 2], None):
        data.unlink()
        there.remove()
        if content is not None:
            data.write_bytes(content)
            there.write(content)
        listed, found = (open_source(location, kind=kind) for location in (tmp_path / "source", f"{bucket}/source"))
        assert found.digest() == listed.digest()
        problems = [[one.problem for one in listing.inputs] for listing in (found, listed)]
        assert problems[0] == problems[1]


def test_sources_of_other_packages_read_stores_where_they_say_so(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = {
        name: EntryPoint(name, f"{__name__}:{name.upper()}", "picstore.sources") for name in ("stacked", "mapped")
    }
    monkeypatch.setattr("picstore.prepare.sources.source_kinds._plugins", lambda: entries)
    for root in (locate(bucket), locate(tmp_path)):
        (root / "set/stack.bin").write(b"".join(JPEGS))
    for where in (f"{bucket}/set", tmp_path / "set"):
        listing = open_source(where)
        assert listing.kind == "stacked"
        assert [read_input(one) for one in listing.inputs] == JPEGS
    with pytest.raises(UsageError, match="copy it first"):
        open_source(f"{bucket}/set", kind="mapped")


def list_stacked(location: Location) -> Listing:
    """A source of another package, with all images in one file."""
    assert [entry.name for entry in location.entries()] == ["stack.bin"]
    at = [0, *itertools.accumulate(map(len, JPEGS))]
    path = str(location / "stack.bin")
    return Listing("stacked", [Input(f"{k}", k, path, at[k], len(JPEGS[k])) for k in range(len(JPEGS))], [])


STACKED = SourceFormat(list_stacked, recognizes=lambda probe: "stack.bin" in probe.files, object_stores=True)
MAPPED = SourceFormat(
    lambda path: Listing("mapped", [Input(str(path), 0, str(path))], []),
    recognizes=lambda probe: (probe.path / "map").exists(),
)


def test_a_probe_of_nothing_in_a_store_is_no_folder(bucket: str) -> None:
    assert not SourceProbe.inspect(f"{bucket}/nothing").is_folder


def test_objects_that_mark_folders_are_no_images(bucket: str, s3: str) -> None:
    for name in ("photos/", "photos/a/", "photos/a/deep/"):  # as the consoles of stores make folders
        request(f"{s3}/{bucket.removeprefix('s3://')}/{name}", "PUT", b"")
    for name in ("a/1.jpg", "a/deep/2.jpg", "b/3.jpg"):
        (locate(bucket) / f"photos/{name}").write(JPEGS[0])
    listing = open_source(f"{bucket}/photos")
    assert [one.name for one in listing.inputs] == ["a/1.jpg", "a/deep/2.jpg", "b/3.jpg"]
    assert listing.remarks == []


def put_keys(s3: str, bucket: str, *keys: str) -> None:
    """An image at each key of any characters, without obstore, which refuses some."""
    boto3 = pytest.importorskip("boto3")
    client = boto3.client("s3", endpoint_url=s3)
    for key in keys:
        body = b"" if key.endswith("/") else JPEGS[0]
        client.put_object(Bucket=bucket.removeprefix("s3://"), Key=key, Body=body)


def test_an_odd_name_in_a_bucket_costs_its_object_only(bucket: str, s3: str) -> None:
    sound, odd = (
        ["cat/1.jpg", "dog/2.jpg"],
        ["/stray/9.jpg", "cat//9.jpg", "cat/a\tb.jpg", "dog/../x.jpg", "d\x7f/x.jpg"],
    )
    put_keys(s3, bucket, *(f"in/{name}" for name in (*sound, *odd, "/", "cat/", "cat//")))
    listing = open_source(f"{bucket}/in")
    assert listing.classes == ["cat", "dog"]
    assert listing.remarks == []
    assert {one.name: one.label for one in listing.inputs if not one.problem} == {"cat/1.jpg": 0, "dog/2.jpg": 1}
    assert sorted(one.name for one in listing.inputs if "control character" in one.problem) == sorted(odd)
    assert len(open_source(f"{bucket}/in/cat").inputs) == 3


def test_a_shard_of_an_odd_name_in_a_bucket_is_one_failed_input(bucket: str, tmp_path: Path, s3: str) -> None:
    tars(tmp_path, pairs=False)
    put_all(tmp_path, f"{bucket}/in")
    put_keys(s3, bucket, "in/t\t2.tar")
    listing = open_source(f"{bucket}/in", kind="webdataset")
    assert len(listing.inputs) == 7
    assert [one.problem for one in listing.inputs if one.problem] == [
        next(one.problem for one in listing.inputs if "not the name of an object" in one.problem)
    ]


def test_hidden_objects_of_a_store_are_counted_and_taken_when_asked_for(bucket: str, s3: str) -> None:
    put_keys(s3, bucket, "a/1.jpg", "a/.2.jpg", "a/.deep/3.jpg", ".net/4.jpg", ".DS_Store")
    listing = open_source(bucket)
    assert [one.name for one in listing.inputs] == ["a/1.jpg"]
    assert listing.remarks == ["4 hidden files and folders, such as .DS_Store: left out; --hidden takes them"]
    taken = open_source(bucket, hidden=True)
    assert taken.classes == [".net", "a"]
    assert [one.name for one in taken.inputs] == [".net/4.jpg", "a/.2.jpg", "a/.deep/3.jpg", "a/1.jpg"]


def test_objects_that_are_gone_or_no_images_stand_in_the_ledger(bucket: str, tmp_path: Path) -> None:
    for k in range(4):
        path = tmp_path / "pictures" / f"class{k % 2}" / f"{k}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture(k)).save(path)
    source = put_all(tmp_path / "pictures", f"{bucket}/pictures")
    (locate(source) / "class0/zzz.png").write(b"no picture")
    (locate(source) / "class0/empty.png").write(b"")
    listing = open_source(locate(source))
    locate(f"{source}/class1").remove()
    gone = next(one for one in listing.inputs if one.name == "class1/1.png")
    with ReadAhead(listing.inputs) as ahead, pytest.raises(ImageError, match="is missing"):
        ahead.read(gone)
    done = picstore_json("convert", source, tmp_path / "train", *SHAPE, "--max-errors", 5)
    assert done["images"] == 2
    lines = map(json.loads, (tmp_path / "train" / "ledger.jsonl").read_text().splitlines())
    failed = [line["input"] for line in lines if line["status"] == "failed"]
    assert failed == ["class0/empty.png", "class0/zzz.png"]


def test_a_name_that_leads_out_of_a_bucket_or_nowhere_costs_its_input_only(bucket: str) -> None:
    (locate(bucket) / "list.txt").write(b"../x.jpg 0\nnone.jpg 1\na.jpg 2\n")
    (locate(bucket) / "a.jpg").write(JPEGS[0])
    first, second, third = open_source(f"{bucket}/list.txt").inputs
    with pytest.raises(ImageError, match="leads out of the folder"):
        read_input(first)
    with pytest.raises(ImageError, match="is missing"):
        read_input(second)
    assert read_input(third) == JPEGS[0]


def test_a_store_that_is_away_is_not_taken_for_inputs_that_cannot_be_read(bucket: str, proxy: Proxy) -> None:
    require(importlib.util.find_spec("pyarrow"), "pyarrow")
    put_all(DATA / "huggingface", f"{bucket}/parquet")
    put_all(DATA / "mds-zstd", f"{bucket}/mds")
    (locate(bucket) / "list.txt").write(b"a.jpg 2\n")
    listings = [open_source(f"{bucket}/{name}") for name in ("parquet", "mds", "list.txt")]
    proxy.forever = UNAVAILABLE
    decompress_block.cache_clear()
    for listing in listings:
        with pytest.raises(PicstoreError, match="cannot be reached") as caught:
            read_input(listing.inputs[0])
        assert not isinstance(caught.value, ImageError)
    with pytest.raises(PicstoreError, match="cannot be reached"):
        open_source(f"{bucket}/mds")


def test_an_input_of_a_store_larger_than_the_limit_is_not_read_whole(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("picstore.prepare.sources.inputs.MAX_INPUT", 10)
    location = locate(f"{bucket}/a")
    location.write(bytes(11))
    for size in (-1, 11):
        with pytest.raises(ImageError, match="larger than"):
            read_input(Input("a", 0, str(location), size=size))
    location.write(bytes(10))
    assert read_input(Input("a", 0, str(location))) == bytes(10)


# Reading ahead


def test_inputs_that_are_passed_over_do_not_stop_the_reading_ahead(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("picstore.prepare.sources.inputs._MAX_AHEAD", 3)
    location = locate(f"{bucket}/bytes")
    location.write(bytes(range(50)))
    inputs = [Input(f"{k}", -1, str(location), k, 1) for k in range(50)]
    inputs[41] = inputs[40]  # twice the same
    with ReadAhead(inputs) as ahead:
        for k in (0, 1, 17, 18, 40, 41, 49):
            assert ahead.read(inputs[k]) == bytes([min(k, 40) if k < 42 else k])
            assert len(ahead._requests) <= 3


@pytest.mark.slow
def test_duplicates_are_found_in_a_store(bucket: str) -> None:
    for name, data in (("a/1.jpg", JPEGS[0]), ("a/2.jpg", JPEGS[1]), ("b/3.jpg", JPEGS[0]), ("b/4.jpg", JPEGS[2])):
        (locate(bucket) / f"photos/{name}").write(data)
    (locate(bucket) / "list.txt").write(b"photos/a/1.jpg 0\nphotos/none.jpg 0\nphotos/b/3.jpg 0\n")
    for source in ("photos", "list.txt"):  # in a process of its own, whose fork server knows the store
        code = (
            "from picstore.prepare.sources.dedupe import mark_duplicates\n"
            "from picstore.prepare.sources.open import open_source\n"
            f"print(mark_duplicates(open_source('{bucket}/{source}'), workers=1).duplicates)\n"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout == "{2: 0}\n"


def test_records_of_a_converted_store_say_where_they_came_from(bucket: str, tmp_path: Path) -> None:
    source, _ = csv(tmp_path / "source")
    put_all(tmp_path / "source", f"{bucket}/source")
    picstore_command("convert", f"{bucket}/source/{source}", f"{bucket}/train", "--workers", 1)
    extras = [record.extra for record in picstore.Dataset(f"{bucket}/train")]
    assert {"path": "images/3.jpg", "caption": "text 3"} in extras
