"""Each sample of a cut source is an input as it was, an input that fails, or counted as lost."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from source_files import DATA, JPEGS, im2rec, library, make_tar, put, recordio, write_picpoc

from picstore.errors import ImageError, PicstoreError
from picstore.prepare.sources.inputs import Input, read_input
from picstore.prepare.sources.open import KINDS, open_source


def webdataset(root: Path) -> Path:
    for shard in range(2):
        members = [(f"{shard}{k}.{e}", d) for k in range(3) for e, d in (("jpg", JPEGS[k]), ("cls", b"%d" % k))]
        make_tar(root / f"{shard}.tar", members)
    return root


def imagenet(root: Path) -> Path:
    for k in range(2):
        make_tar(root / f"n{k}.tar", {f"{k}_{n}.JPEG": JPEGS[n] for n in range(3)})
    return root


def rec(root: Path) -> Path:
    return put(root / "a.rec", b"".join(recordio(im2rec(data, k, k)) for k, data in enumerate(JPEGS))).parent


def jsonl(root: Path) -> Path:
    for k, data in enumerate(JPEGS):
        put(root / f"{k}.jpg", data)
    return put(root / "t.jsonl", b"".join(b'{"path": "%d.jpg", "label": %d}\n' % (k, k) for k in range(6)))


def fixture(name: str, module: str = "") -> object:
    def copy(root: Path) -> Path:
        if module:
            library(module)
        return Path(shutil.copytree(DATA / name, root) if (DATA / name).is_dir() else shutil.copy(DATA / name, root))

    return copy


# By kind: how a source is made, which files are cut, and whether it states how many samples it has.
SOURCES = {
    "webdataset": (webdataset, "*.tar", False),
    "imagenet": (imagenet, "*.tar", False),
    "recordio": (rec, "*.rec", False),
    "table": (jsonl, "*.jsonl", False),
    "picpoc": (write_picpoc, "0/0", False),
    "mds": (fixture("mds"), "*.mds", True),
    "litdata": (fixture("litdata"), "*.bin", True),
    "tfrecord": (fixture("tfrecord"), "train-*", False),
    "parquet": (fixture("huggingface", "pyarrow"), "**/*.parquet", False),
}
# Whole files without samples inside, or sources that one damaged file refuses as a whole, by tests of their own.
OTHERS = {"folder", "list", "coco", "voc", "yolo", "index", "ffcv", "hdf5", "lmdb"}


def test_every_kind_of_source_has_an_entry_here() -> None:
    assert set(KINDS) == SOURCES.keys() | OTHERS


def content(one: Input) -> tuple[int, bytes] | None:
    try:
        return one.label, read_input(one)
    except ImageError:
        return None


@pytest.mark.parametrize("kind", SOURCES)
def test_of_a_cut_source_no_sample_is_lost_unsaid_or_wrong(tmp_path: Path, kind: str) -> None:
    make, files, stated = SOURCES[kind]
    source = make(tmp_path / "source")  # type: ignore[operator]
    whole = {one.name: content(one) for one in open_source(source, kind=kind).inputs}
    assert None not in whole.values()
    folder = source if source.is_dir() else source.parent
    target = sorted(folder.glob(files))[-1]
    data = target.read_bytes()
    rng = random.Random(kind)
    for _ in range(12):
        cut = rng.randrange(len(data))
        target.write_bytes(data[:cut])
        try:
            inputs = list(open_source(source, kind=kind).inputs)
        except PicstoreError:  # nothing can be read, and nothing is written
            continue
        found = {one.name: content(one) for one in inputs}
        assert len(found) == len(inputs)
        read = {name: value for name, value in found.items() if value is not None}
        assert read.items() <= whole.items()
        failed = len(inputs) - len(read)
        boundary = kind == "table" and data[:cut].endswith((b"}", b"}\n"))  # lines that follow cannot be missed
        assert len(read) == len(whole) or failed or boundary
        if stated:
            assert len(inputs) == len(whole)
        elif len(read) < len(whole) and not boundary:
            assert failed + sum(one.lost for one in inputs) > 0
            assert any(one.lost for one in inputs) or len(inputs) == len(whole)
