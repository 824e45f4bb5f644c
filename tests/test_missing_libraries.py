"""What needs a library that is not installed names the extra that brings it.

``sitecustomize`` hides modules from every Python of a process tree, so that workers and decoders lack them too.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from commands import PICSTORE, ledger
from grids import slow_except
from samples import jpeg, picture
from test_packaging import EXTRAS

import picstore
from picstore.errors import install_command

HIDE = """
import importlib.machinery, os, sys


class Finder(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        hidden = name.partition(".")[0] in os.environ["HIDDEN_MODULES"].split()
        return None if hidden else super().find_spec(name, path, target)


sys.meta_path[sys.meta_path.index(importlib.machinery.PathFinder)] = Finder
"""
IMAGES = {
    "a.svg": b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><rect width="9" height="9"/></svg>',
    "a.jxl": b"\0\0\0\x0cJXL \r\n\x87\n" + bytes(40),
    "a.heic": b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(40),
    "a.dng": b"II*\0" + bytes(60),
    "sound.jpg": jpeg(1),
}

# By extra, modules that it brings, and commands and statements that need them. DATASET, SOURCES and OUT are places.
CASES: list[tuple[str, str, list[str]]] = [
    (
        "torch",
        "torch torchvision",
        ["picstore bench DATASET", "picstore.Loader", "picstore.DataMux"],
    ),
    ("torch", "torchvision", ["next(iter(boxes('DATASET'))).targets"]),
    ("objects", "obstore", ["picstore info s3://bucket/set", "picstore convert SOURCES/photos s3://bucket/set"]),
    ("objects", "botocore", ["list(s3_listing.list_s3({}, where='s3://bucket'))"]),
    ("hub", "huggingface_hub", ["picstore convert hf://datasets/owner/name OUT", "picstore info hf://datasets/a/b/c"]),
    ("mozjpeg", "pyvips", ["picstore convert SOURCES/photos OUT --encoder mozjpeg"]),
    ("parquet", "pyarrow", ["picstore convert SOURCES/a.parquet OUT", "picstore export DATASET OUT --format parquet"]),
    ("lmdb", "lmdb", ["picstore convert SOURCES/data.mdb OUT --source lmdb"]),
    ("hdf5", "h5py", ["picstore convert SOURCES/a.h5 OUT"]),
    ("yolo", "yaml", ["picstore convert SOURCES/yolo OUT"]),
    (
        "sql",
        "duckdb",
        [
            "picstore info DATASET --where 'label = 1'",
            "picstore shuffle DATASET OUT --where 'label = 1'",
            "picstore export DATASET OUT --format folder --where 'label = 1'",
            "picstore view DATASET --where 'label = 1'",
        ],
    ),
    ("sql", "pyarrow", ["picstore info DATASET --where 'label = 1'", "picstore.Dataset('DATASET').table.to_arrow()"]),
    ("view", "starlette", ["picstore view DATASET", "picstore.view('DATASET')"]),
    ("view", "uvicorn", ["picstore view DATASET"]),
    (
        "plot",
        "matplotlib",
        [
            "picstore convert SOURCES/photos --measure 1 --plot OUT.svg",
            "picstore.Dataset('DATASET').show()",
            "picstore.Dataset('DATASET').summary()",
        ],
    ),
    ("lightning", "lightning", ["import picstore.lightning"]),
    (
        "ray",
        "ray",
        [
            "picstore convert SOURCES/photos OUT --engine ray",
            "picstore shuffle DATASET OUT --engine ray",
            "picstore verify DATASET --engine ray",
            "picstore dupes DATASET --engine ray",
            "picstore export DATASET OUT --format folder --engine ray",
        ],
    ),
    ("exr", "OpenImageIO", ["picstore convert SOURCES/exr OUT --map 'depth=*.exr'"]),
]
# Runs each argument, and prints its exit code and what it wrote to stderr.
RUN = """
import contextlib, io, json, shlex, sys
import picstore, picstore.cli
from picstore.storage.location import s3_listing

boxes = lambda dataset: picstore.Loader(dataset, batch_size=2, targets=["boxes"], isolate=False)


def run(case):
    if case.startswith("picstore "):
        sys.argv = shlex.split(case)
        picstore.cli.main()
    else:
        exec(case)


for case in sys.argv[1:]:
    code = 0
    with contextlib.redirect_stderr(io.TextIOWrapper(io.BytesIO(), write_through=True)) as said:
        try:
            with contextlib.redirect_stdout(said):
                run(case)
        except picstore.MissingDependency as error:
            code = error.exit_code
            print(f"picstore: {error}", file=sys.stderr)
        except SystemExit as ended:
            code = ended.code
    print(json.dumps([case, code, said.buffer.getvalue().decode()]))
"""

Run = Callable[[str, Sequence[str]], "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set, and sources of which no more is read than says what they are."""
    folder = tmp_path_factory.mktemp("missing")
    with picstore.Writer(folder / "dataset", classes=["cat", "dog"]) as writer:
        for number in range(4):
            writer.add(picture(number), label=number % 2, extra={"boxes": [[1, 1, 9, 9]], "box_labels": [0]})
    sources = {
        "photos/cat/a.jpg": jpeg(1),
        "a.parquet": b"PAR1" + bytes(16) + b"PAR1",
        "a.h5": b"\x89HDF\r\n\x1a\n" + bytes(64),
        "data.mdb": bytes(8192),
        "yolo/data.yaml": b"names: [cat]\n",
        "yolo/images/a.jpg": jpeg(1),
        "exr/a.jpg": jpeg(1),
        "exr/a.exr": b"\x76\x2f\x31\x01",
        "yolo/labels/a.txt": b"0 0.5 0.5 0.2 0.2\n",
    }
    for name, data in sources.items():
        (folder / "sources" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "sources" / name).write_bytes(data)
    (folder / "hide").mkdir()
    (folder / "hide" / "sitecustomize.py").write_text(HIDE)
    return folder


@pytest.fixture
def run_without(folder: Path, tmp_path: Path) -> Run:
    """Runs a program in a tree of Pythons that lack modules."""

    def run(modules: str, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        places = {"DATASET": folder / "dataset", "SOURCES": folder / "sources", "OUT": tmp_path / "out"}
        words = [re.sub("DATASET|SOURCES|OUT", lambda found: str(places[found[0]]), word) for word in words]
        environment = {**os.environ, "PYTHONPATH": str(folder / "hide"), "HIDDEN_MODULES": modules}
        return subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=120)

    return run


# Numbers of CASES whose modules can be hidden at once, as a process costs a second.
TOGETHER = [[6], [0, 10], [1, 3, 4, 11, 13], [2, 5, 7, 8, 9, 12, 14, 15, 16, 17]]


@pytest.mark.parametrize("numbers", slow_except([[6]], TOGETHER))
def test_what_needs_a_missing_library_names_its_extra(run_without: Run, numbers: list[int]) -> None:
    together = [CASES[number] for number in numbers]
    extras = {case: extra for extra, _, cases in together for case in cases}
    modules = " ".join(modules for _, modules, _ in together)
    done = run_without(modules, [sys.executable, "-c", RUN, *extras])
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == len(extras), done.stderr
    for (_, code, errors), (case, extra) in zip(found, extras.items(), strict=True):
        assert code == 4, (case, errors)
        last = errors.splitlines()[-1]
        assert last.startswith("picstore: ") and install_command(extra) in last, case


def test_the_page_shows_pictures_without_pytorch(run_without: Run) -> None:
    program = """if True:
        import sys, urllib.request
        import picstore
        page = picstore.view(sys.argv[1])
        picture = urllib.request.urlopen(page.address + "thumbnail?position=0&size=64")
        print(picture.headers["content-type"])
        page.close()"""
    done = run_without("torch torchvision", [sys.executable, "-c", program, "DATASET"])
    assert (done.stdout, done.stderr) == ("image/jpeg\n", "")


def test_every_extra_for_users_has_a_case() -> None:
    assert sorted(number for numbers in TOGETHER for number in numbers) == [*range(len(CASES))]
    assert {*EXTRAS} - {"docs", "fuzz", "test", "dev", "formats"} == {extra for extra, _, _ in CASES}


@pytest.mark.slow
def test_images_that_need_a_missing_wheel_name_the_extra(run_without: Run, tmp_path: Path) -> None:
    """They are failures of single images, which do not stop a conversion."""
    (tmp_path / "photos").mkdir()
    for name, data in IMAGES.items():
        (tmp_path / "photos" / name).write_bytes(data)
    modules = "resvg_py pillow_heif pillow_jxl rawpy wand"
    done = run_without(modules, [*PICSTORE, "convert", str(tmp_path / "photos"), "OUT"])
    failed = [str(each) for each in ledger(tmp_path / "out") if "sound.jpg" not in str(each)]
    assert len(failed) == len(IMAGES) - 1, done.stderr
    assert all("pip install 'picstore[formats]'" in each for each in failed), failed
