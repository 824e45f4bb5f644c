"""The tutorial and the how-to pages do what they say: every block runs, in order, on small data."""

from __future__ import annotations

import functools
import gzip
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.io
from commands import picstore_command
from samples import jpeg
from source_files import make_tar, put
from stores import request as send

import picstore

ROOT = Path(__file__).parents[1]
GUIDES = (
    "audit",
    "distributed",
    "environment",
    "frameworks",
    "imagenet",
    "index-in-place",
    "large-images",
    "map",
    "maps",
    "migrate",
    "mixing",
    "objects",
    "reference/python",
    "remote-workers",
    "sampling",
    "shapes",
    "targets",
    "training",
    "transforms",
    "tutorial",
)
PAGES = [ROOT / f"docs/{name}.md" for name in GUIDES]
FIXTURES = ROOT / "tests" / "fixtures" / "sources"
BLOCK = re.compile(r"^(?:<!-- (not run|run by): (.+?) -->\n)?```(bash|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COPIED = re.compile(r"<!-- begin copied (examples/\w+\.py):\w+ -->\n.*?<!-- end copied", re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A block of code.

    Attributes:
        language: "bash" or "python".
        code: its lines.
        run_by: the test module that runs it, relative to the checkout; "" if this one does.
        reason: why it does not run; "" if it does.
    """

    language: str
    code: str
    run_by: str
    reason: str


def blocks(page: Path) -> list[Block]:
    return [
        Block(language, code, text if mark == "run by" else "", text if mark == "not run" else "")
        for mark, text, language, code in BLOCK.findall(COPIED.sub("", page.read_text()))
    ]


# --- Data that pages take as given ----------------------------------------------------------------------------------


def photos(folder: Path, count: int = 12) -> None:
    for k in range(count):
        put(folder / "photos" / ("cat", "dog")[k % 2] / f"{k}.jpg", jpeg(k))


def imagenet(folder: Path) -> None:
    for synset in ("n01440764", "n01443537"):
        members = [(f"{synset}_{k}.JPEG", jpeg(k)) for k in range(6)]
        make_tar(put(folder / "ILSVRC2012_img_train" / f"{synset}.tar"), members)
    for k in range(5):
        put(folder / "ILSVRC2012_img_val" / f"ILSVRC2012_val_{k + 1:08}.JPEG", jpeg(k))
    kit = folder / "ILSVRC2012_devkit_t12" / "data"
    synsets = [(1, "n01443537", 0), (2, "n01440764", 0), (3, "n01428580", 2)]  # the last is above the others
    types = [("ILSVRC2012_ID", "f8"), ("WNID", "O"), ("num_children", "f8")]
    kit.mkdir(parents=True)
    scipy.io.savemat(kit / "meta.mat", {"synsets": np.array(synsets, types)})
    (kit / "ILSVRC2012_validation_ground_truth.txt").write_text("2\n1\n1\n2\n1\n")


def coco(folder: Path) -> None:
    images = [{"id": k, "file_name": f"{k}.jpg", "width": 60, "height": 40} for k in range(4)]
    outline = [10, 5, 40, 5, 40, 30, 10, 30]
    shape = {"category_id": 7, "bbox": [10, 5, 30, 25], "segmentation": [outline], "area": 750, "iscrowd": 0}
    annotations = [{"id": k, "image_id": k, **shape} for k in range(3)]
    for k in range(4):
        put(folder / "val2017" / f"{k}.jpg", jpeg(k))
    categories = [{"id": 7, "name": "cat"}]
    content = {"images": images, "annotations": annotations, "categories": categories}
    (folder / "instances_val2017.json").write_text(json.dumps(content))


def webdataset(folder: Path) -> None:
    for shard in range(2):
        members = [(f"{k}.{end}", data) for k in range(4) for end, data in (("jpg", jpeg(k)), ("cls", b"1"))]
        make_tar(put(folder / "shards" / f"train-{shard:03}.tar"), members)


def dataset(folder: Path, name: str, count: int = 16) -> None:
    classes = {"cats-shuffled": ["cat"], "dogs-shuffled": ["dog"]}.get(name, ["cat", "dog"])
    with picstore.Writer(folder / name, classes=classes) as writer:
        for k in range(count):
            label = k % len(classes)
            writer.add(jpeg(k), label=label, extra={"caption": f"picture {k}"})


def captioned_train(folder: Path) -> None:
    dataset(folder, "train", 600)
    opened = picstore.Dataset(folder / "train")
    opened.with_columns({"caption": [f"picture {k}" for k in range(len(opened))]}).save()


def unpacked(folder: Path, source: str, name: str) -> None:
    (folder / name).write_bytes(gzip.decompress((FIXTURES / source).read_bytes()))


GIVEN: dict[str, Callable[[Path], object]] = {
    "photos": photos,
    "photos of 300": functools.partial(photos, count=300),
    "s3": lambda folder: send(f"{os.environ['AWS_ENDPOINT_URL']}/bucket", "PUT"),
    "imagenet": imagenet,
    "coco": coco,
    "webdataset": webdataset,
    "mds": lambda folder: shutil.copytree(FIXTURES / "mds", folder / "mds"),
    "ffcv": lambda folder: unpacked(folder, "ffcv/jpg.beton.gz", "train.beton"),
    "lmdb": lambda folder: shutil.copytree(FIXTURES / "caffe", folder / "lmdb"),
    "parquet": lambda folder: shutil.copytree(FIXTURES / "huggingface", folder / "parquet"),
    "photographs": lambda folder: [put(folder / f"photographs/{k}.jpg", jpeg(k, width=400)) for k in range(20)],
    "train of 600": captioned_train,
    "train-shuffled of 300": functools.partial(dataset, name="train-shuffled", count=300),
    **{
        name: functools.partial(dataset, name=name)
        for name in ("train", "val", "captioned", "more", "others", "cats-shuffled", "dogs-shuffled")
    },
}


def given(page: Path) -> list[str]:
    """The names in the page's comment ``given``."""
    return [name for names in re.findall(r"<!-- given: (.+?) -->", page.read_text()) for name in names.split(", ")]


# --- Running ---------------------------------------------------------------------------------------------------------


def run_bash(code: str) -> None:
    """Run a block; commands of picstore alone in this process, which takes a tenth of the time."""
    lines = code.replace("\\\n", " ").splitlines()
    if all(line.startswith("picstore ") for line in lines):
        for line in lines:
            picstore_command(*shlex.split(line, comments=True)[1:])
        return
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    command = ["bash", "-euo", "pipefail", "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"{code}\n{done.stdout}{done.stderr}"


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_of_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(tmp_path)
    if "s3" in given(page):
        request.getfixturevalue("s3")
    for name in given(page):
        GIVEN[name](tmp_path)
    model, scheduler = SimpleNamespace(state_dict=dict), SimpleNamespace(step_update=lambda step: None)
    names: dict[str, object] = {"__name__": page.stem, "picstore": picstore, "model": model, "scheduler": scheduler}
    for block in blocks(page):
        if block.reason or block.run_by:
            continue
        if block.language == "bash":
            run_bash(block.code)
        else:
            code = block.code.replace("90)", "2)")  # epochs of a whole training
            exec(compile(code, f"{page.name}: {block.code[:40]}", "exec"), names)  # noqa: S102 - our own pages


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_code_that_a_page_copies_is_in_a_program_that_is_tested(page: Path) -> None:
    tested = (ROOT / "tests" / "test_examples.py").read_text()
    imported = "".join(path.read_text() for path in ROOT.glob("examples/*.py"))
    for path in COPIED.findall(page.read_text()):
        assert Path(path).name in tested or f"from {Path(path).stem} import" in imported


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_that_other_tests_run_have_the_programs_options(page: Path) -> None:
    for block in blocks(page):
        if not block.run_by or block.language == "python":
            continue
        for line in block.code.replace("\\\n", " ").splitlines():
            (program,) = re.findall(r"examples/(\w+\.py)", line)
            assert program in (ROOT / block.run_by).read_text()
            declared = set(re.findall(r'add_argument\("(--[\w-]+)"', (ROOT / "examples" / program).read_text()))
            assert set(re.findall(r"--[\w-]+", line.partition(program)[2])) <= declared


def test_few_blocks_do_not_run_and_each_says_why() -> None:
    every = [block for page in PAGES for block in blocks(page)]
    left_out = [block for block in every if block.reason]
    assert len(every) > 60 and len(left_out) <= 8
    assert all(len(block.reason) > 10 for block in left_out)
    texts = [COPIED.sub("", page.read_text()) for page in PAGES]
    fences = sum(len(re.findall(r"^```(?:bash|python)$", text, re.MULTILINE)) for text in texts)
    assert fences == len(every)
