"""Azure's and Google's stores: the main round trip, and their own words for what is not there.

Azure is Microsoft's emulator Azurite. For Google there is no emulator: its client talks to an S3 server (stores.py).
"""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest
from commands import PICSTORE, picstore_command, picstore_json, tree
from grids import slow_except
from PIL import Image
from samples import picture
from source_files import DATA, JPEGS
from stores import make_azure_container
from stores import request as ask

import picstore
from picstore.errors import Conflict, NotADataset, Truncated, Unfinished, UsageError
from picstore.prepare.sources.open import open_source, read_input
from picstore.storage.dataset import Dataset
from picstore.storage.location.abstract_location import Entry
from picstore.storage.location.object_store import PART_SIZE
from picstore.storage.location.resolve import UNFINISHED, locate, map_concurrently

SHAPE = ("--streams", 3, "--container-size", "8KiB", "--file-size", "16KiB")


@pytest.fixture(scope="module", params=slow_except(["gs"], ["az", "gs"]))
def container(request: pytest.FixtureRequest) -> str:
    """URL of an empty bucket of each kind."""
    if request.param == "az":
        make_azure_container(request.getfixturevalue("azure"), "picstore-tests")
    else:
        ask(f"{request.getfixturevalue('s3')}/picstore-tests", "PUT")
        request.getfixturevalue("google")
    return f"{request.param}://picstore-tests"


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of two classes, and a data set beside it."""
    folder = tmp_path_factory.mktemp("clouds") / "pictures"
    for number in range(120):
        path = folder / f"class{number % 2}" / f"{number:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture(number, width=90, height=70)).save(path)
    picstore_command("convert", folder, folder.parent / "converted", *SHAPE)
    return folder


def copied(folder: Path, where: str) -> str:
    """The files of a folder, as objects, and the folder that they are then."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        (locate(where) / path.relative_to(folder).as_posix()).write(path.read_bytes())
    return where


def test_a_write_on_a_condition_takes_effect_once(container: str) -> None:
    location = locate(container) / "conditional"
    assert location.write_new(b"one")
    assert not location.write_new(b"two")
    assert not location.replace(b"two", expected=b"other")
    assert location.replace(b"two", expected=b"one")
    assert not location.replace(b"three", expected=b"one")
    assert location.read_all(10) == b"two"
    assert not (locate(container) / "none").replace(b"x", expected=b"")


@pytest.mark.slow
def test_of_two_edits_at_once_one_is_refused(container: str, pictures: Path) -> None:
    root = copied(pictures.parent / "converted", f"{container}/edited")
    first, second = Dataset(root), Dataset(root)
    first.without([1]).save()
    with pytest.raises(Conflict, match="edited since"):
        second.without([2]).save()
    assert len(Dataset(root).without([2]).save()) == 118


def test_objects_are_written_listed_read_and_removed(container: str) -> None:
    root = locate(container) / "objects"
    assert not root.exists()
    data = bytes(range(256)) * 40_000
    assert len(data) > PART_SIZE
    sink = (root / "a b/large").create()
    for start in range(0, len(data), 1 << 20):
        sink.write(data[start : start + (1 << 20)])
    sink.close()
    (root / "c%20/ä").write(b"small")
    (root / "top").write(b"")
    assert sorted(root.files()) == [("a b/large", len(data)), ("c%20/ä", 5), ("top", 0)]
    assert root.entries() == [Entry("a b", True), Entry("c%20", True), Entry("top", False)]
    large = root / "a b/large"
    assert bytes(large.read(1000, 70_000, file="large")) == data[1000:71_000]
    assert large.read_all(1 << 30) == data
    assert large.open().read() == data
    assert list((root / "c%20/ä").lines()) == [b"small"]
    for offset in (len(data) - 5, len(data) + 5):
        with pytest.raises(Truncated):
            large.read(offset, 10, file="large")
    (root / "a b").remove()
    assert [name for name, _ in sorted(root.files())] == ["c%20/ä", "top"]
    root.remove()
    assert not root.is_folder()


@pytest.mark.slow
def test_more_objects_are_removed_than_one_request_may_name(container: str) -> None:
    root = locate(container) / "many"
    list(map_concurrently(lambda number: (root / f"{number}").write(b"x"), range(300)))  # Azure takes 256
    assert len(list(root.files())) == 300
    root.remove()
    assert list(root.files()) == []


def test_an_upload_that_is_given_up_leaves_nothing(container: str) -> None:
    root = locate(container) / "given-up"
    sink = (root / "large").create()
    for _ in range(20):
        sink.write(bytes(1 << 20))
    sink.abandon()
    assert list(root.files()) == []


def test_what_is_not_there_is_told(container: str) -> None:
    for action in (
        lambda location: location.size(),
        lambda location: location.read(0, 5, file="x"),
        lambda location: list(location.lines()),
    ):
        with pytest.raises(NotADataset, match="is missing"):
            action(locate(container) / "nothing")
    with pytest.raises(NotADataset, match="does not exist"):
        Dataset(f"{container}/nothing")
    scheme = container.partition(":")[0]
    with pytest.raises(NotADataset, match="there is no bucket no-such-bucket"):
        list(locate(f"{scheme}://no-such-bucket/x").files())
    with pytest.raises(UsageError, match="not a URL of an object store"):
        locate(f"{container}/..")


@pytest.mark.slow
def test_a_data_set_is_made_resumed_verified_and_read_through_a_cache(
    container: str, pictures: Path, tmp_path: Path
) -> None:
    where, here = f"{container}/train", pictures.parent / "converted"
    unfinished = locate(where) / UNFINISHED
    command = [*PICSTORE, "convert", str(pictures), where, *map(str, SHAPE), "--workers", "1"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while not any(name.startswith("row-") for name, _ in unfinished.files()):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    with pytest.raises(Unfinished, match="--resume"):
        Dataset(where)
    picstore_command("convert", pictures, where, *SHAPE, "--resume")
    assert picstore_json("verify", where)["ok"]
    there = locate(where)
    for name in tree(here):
        assert (there / name).read_all(1 << 30) == (here / name).read_bytes()
    assert {name for name, _ in there.files()} == tree(here).keys()

    expected = [record.jpeg for record in Dataset(here)]
    dataset = Dataset(where, cache=tmp_path / "cache")
    assert [record.jpeg for record in dataset] == expected
    entries = [path for path in (tmp_path / "cache").glob("*/*") if path.is_file()]
    assert len(entries) == len(dataset.rows)
    assert [record.jpeg for record in dataset] == expected
    options = {
        "batch_size": 16,
        "transform": [picstore.RandomResizedCrop(32)],
        "threads": 2,
        "seed": 5,
        "isolate": False,
    }
    batches = []
    for location in (here, where):
        loader = picstore.Loader(location, **options)
        batches.append([(batch.images.numpy().tobytes(), batch.ids.tolist()) for batch in loader])
        loader.close()
    assert batches[0] == batches[1]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mds-zstd", "tfrecord", "images"])
def test_sources_are_recognized_and_read(container: str, kind: str) -> None:
    listing = open_source(copied(DATA / kind, f"{container}/sources/{kind}"))
    assert listing.digest() == open_source(DATA / kind).digest()
    assert [read_input(one) for one in listing.inputs] == JPEGS
