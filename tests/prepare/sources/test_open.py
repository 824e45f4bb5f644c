"""Opening a source: recognition, options, fields, classes, plug-ins, and damage in any format."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import re
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
from commands import one_line, picstore_command
from source_files import DATA, JPEGS, decoded, labels, library, put, write_picpoc

import picstore
from picstore.errors import Damage, ImageError, MissingDependency, NotADataset, UsageError, install_command
from picstore.prepare.sources.inputs import Input
from picstore.prepare.sources.open import KINDS, SourceProbe, open_source, read_input


def test_an_option_of_another_source_is_refused(tmp_path: Path) -> None:
    put(tmp_path / "class" / "a.jpg")
    with pytest.raises(UsageError, match="--root"):
        open_source(tmp_path, root=tmp_path)
    with pytest.raises(UsageError, match="--synsets"):
        open_source(tmp_path, synsets=tmp_path)
    with pytest.raises(UsageError, match="not a folder"):
        open_source(put(tmp_path / "file.txt", b"a 1"), kind="folder")


def test_a_source_that_is_missing_or_empty_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NotADataset, match="does not exist"):
        open_source(tmp_path / "nowhere")
    with pytest.raises(NotADataset, match="holds no images"):
        open_source(tmp_path)


def test_a_file_of_classes_names_integers_and_orders_names(tmp_path: Path) -> None:
    names = put(tmp_path / "names.txt", b"dog\ncat\nbird\nant\n")
    assert open_source(DATA / "mds", classes=names).classes == ["dog", "cat", "bird", "ant"]
    listing = open_source(DATA / "mds", label_field="name", classes=names)
    assert labels(listing) == [1, 0, 3, 1, 0, 3]
    with pytest.raises(UsageError, match="'ant'"):
        open_source(DATA / "mds", label_field="name", classes=put(tmp_path / "few.txt", b"cat\ndog\n"))
    with pytest.raises(UsageError, match="there is the label 2"):
        open_source(DATA / "mds", classes=put(tmp_path / "few.txt", b"cat\ndog\n"))


def test_a_field_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(UsageError, match="'image'"):
        open_source(DATA / "mds", image_field="picture")
    with pytest.raises(UsageError, match="--image-field belongs to the source"):
        open_source(DATA / "images", image_field="picture")
    with pytest.raises(UsageError, match=r"no source is called magic; there are auto, coco, ffcv"):
        open_source(DATA, kind="magic")


@pytest.mark.parametrize(
    ("kind", "module", "name"),
    [("parquet", "pyarrow.parquet", "parquet"), ("lmdb", "lmdb", "lmdb"), ("hdf5", "h5py", "hdf5")],
)
def test_a_missing_library_is_named_with_the_command_that_installs_it(
    kind: str, module: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, module, None)
    with pytest.raises(MissingDependency, match=rf"pip install .*\[{name}\]'"):
        open_source(put(tmp_path / "data.mdb", b"x"), kind=kind)


def cut_anywhere() -> list[tuple[str, bytes]]:
    """One whole file of each format that is read by our own code, to be damaged."""
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as archive:
        for name, data in (("a.jpg", JPEGS[0]), ("a.json", b'{"a": 1}')):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return [
        ("webdataset", tar.getvalue()),
        ("recordio", (DATA / "recordio" / "split.rec").read_bytes()),
        ("tfrecord", (DATA / "tfrecord" / "train-00000-of-00002").read_bytes()),
    ]


@pytest.mark.parametrize(
    "kind", ["webdataset", "recordio", "tfrecord", "mds", "litdata", "litdata-zstd-batch", "picpoc"]
)
def test_damage_gives_inputs_or_a_reason_within_the_memory_of_the_file(kind: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    folder, whole = tmp_path / "source", DATA / kind
    if kind == "picpoc":
        whole = tmp_path / "whole"
        write_picpoc(whole)
    for trial in range(150):
        if kind in ("webdataset", "recordio", "tfrecord"):
            path = put(tmp_path / "file.bin", dict(cut_anywhere())[kind])
            damaged = path
        else:
            shutil.copytree(whole, folder, dirs_exist_ok=True)
            path = folder
            damaged = sorted(file for file in folder.rglob("*") if file.is_file() and file.suffix != ".json")[0]
        data = bytearray(damaged.read_bytes())
        if trial % 3 == 0:
            del data[int(rng.integers(len(data))) :]
        else:
            at = int(rng.integers(min(len(data), 600) if trial % 3 == 1 else len(data)))
            data[at : at + 4] = rng.bytes(4)
        put(damaged, bytes(data))
        listing = None
        with contextlib.suppress(NotADataset, UsageError, Damage):
            listing = open_source(path, kind=kind.partition("-")[0])
        for source in listing.inputs if listing else ():
            with contextlib.suppress(ImageError):
                assert len(read_input(source)) <= 1 << 16


def test_an_input_stays_small_and_can_be_sent_to_another_process() -> None:
    for name in ("mds", "litdata-zstd-batch", "tfrecord"):
        listing = open_source(DATA / name)
        task = pickle.dumps(listing.inputs)
        assert len(task) < 400 * len(listing.inputs)
        assert [source.name for source in pickle.loads(task)] == [s.name for s in listing.inputs]  # noqa: S301


def test_every_kind_is_described_in_the_documentation() -> None:
    guide = (Path(__file__).parents[3] / "docs" / "sources.md").read_text()
    for kind in KINDS:
        assert f"`{kind}`" in guide, f"docs/sources.md lacks the source {kind}"


@pytest.mark.slow
def test_the_documented_source_of_another_package_is_found_and_converted(tmp_path: Path) -> None:
    guide = (Path(__file__).parents[3] / "CONTRIBUTING.md").read_text()
    section = guide[guide.index("## A source of another package") :]
    module = re.findall(r"```python\n(.*?)```", section, re.DOTALL)[0]
    declared = re.findall(r"```toml\n(.*?)```", section, re.DOTALL)[0]
    name, value = re.findall(r'^(\w+) = "(.*)"$', declared, re.MULTILINE)[-1]
    site = tmp_path / "site"
    put(site / f"{value.partition(':')[0]}.py", module.encode())
    put(site / "example-1.0.dist-info" / "METADATA", b"Metadata-Version: 2.1\nName: example\nVersion: 1.0\n")
    put(site / "example-1.0.dist-info" / "entry_points.txt", f"[picstore.sources]\n{name} = {value}\n".encode())
    source = tmp_path / "source"
    put(source / "images.bin", b"".join(JPEGS))
    sizes = list(map(len, JPEGS))
    lines = [f"{k}.jpg {k % 2} {sum(sizes[:k])} {size}" for k, size in enumerate(sizes)]
    put(source / "index.txt", "\n".join(lines).encode())
    environment = {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    for k, options in enumerate(([], ["--source", name])):
        out = tmp_path / f"out{k}"
        picstore_command("convert", source, out, *options, env=environment)
        dataset = sorted(picstore.Dataset(out), key=lambda record: record.id)
        assert [record.label for record in dataset] == [0, 1, 0, 1, 0, 1]
        assert picstore.Dataset(out).manifest.provenance["source"] == name
    put(site / f"{value.partition(':')[0]}.py", b"1 / 0")
    assert "cannot be loaded: ZeroDivisionError" in one_line(
        picstore_command("convert", source, tmp_path / "out", "--source", name, code=1, env=environment)
    )


@pytest.mark.parametrize(
    ("source", "options"),
    [
        ("huggingface", []),
        ("mds-zstd", []),
        ("litdata-zstd-batch", []),
        ("tfrecord", ["--label-field", "image/class/text"]),
    ],
)
def test_convert_reads_sources_in_its_worker_processes(source: str, options: list[str], tmp_path: Path) -> None:
    if source == "huggingface":
        library("pyarrow")
    picstore_command("convert", DATA / source, tmp_path / "out", *options, "--workers", 2)
    records = sorted(picstore.Dataset(tmp_path / "out"), key=lambda record: record.id)
    assert len(records) == len(JPEGS)
    for record, original in zip(records, JPEGS, strict=True):
        assert np.array_equal(decoded(record.jpeg), decoded(original))


@pytest.mark.slow
def test_a_missing_library_is_exit_code_4(tmp_path: Path) -> None:
    put(tmp_path / "site" / "h5py.py", b"raise ImportError('as if it were not installed')")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path / 'site'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    source = put(tmp_path / "a.h5", b"\x89HDF\r\n\x1a\n" + bytes(100))
    done = picstore_command("convert", source, tmp_path / "out", code=4, env=environment)
    assert install_command("hdf5") in one_line(done)


def test_a_reader_that_raises_anything_costs_its_input_only() -> None:
    with pytest.raises(ImageError, match="cannot be read: ZeroDivisionError"):
        read_input(Input("a", -1, "", reader=lambda _: bytes([1 // 0])))


def test_a_probe_of_nothing_is_no_folder(tmp_path: Path) -> None:
    assert not SourceProbe.inspect(tmp_path / "nothing").is_folder
