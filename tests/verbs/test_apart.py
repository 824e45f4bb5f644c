"""Destinations inside of sources, and sources inside of destinations: refused by every verb that writes elsewhere."""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import tree
from samples import jpeg

import picstore
from picstore._public import NAMES
from picstore.errors import UsageError
from picstore.storage.location.object_store import Bucket
from picstore.storage.location.overlap_check import require_apart

WRITING = [name for module, names in NAMES.items() if module.startswith("verbs.") for name in names.split()]
WRITING = [name for name in WRITING if "out" in inspect.signature(getattr(picstore, name)).parameters]
# How each verb is called with a source and a destination.
CALLS: dict[str, Callable[[Path, Path], Any]] = {
    "append": picstore.append,
    "convert": picstore.convert,
    "export": lambda source, out: picstore.export(source, out, format="folder"),
    "index": picstore.index,
    "merge": lambda source, out: picstore.merge(out, [source]),
    "shuffle": picstore.shuffle,
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of photographs, a data set of them, and a shard of a conversion."""
    root = tmp_path_factory.mktemp("made")
    for k, name in enumerate(("cat", "zebra")):
        (root / "photos" / name).mkdir(parents=True)
        (root / "photos" / name / f"{k}.jpg").write_bytes(jpeg(k))
    picstore.convert(root / "photos", root / "dataset", streams=1, workers=1)
    picstore.convert(root / "photos", root / "shard", streams=1, workers=1, shard="0/1")
    return root


@pytest.fixture
def places(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "here")
    return tmp_path / "here"


def source_of(verb: str, root: Path) -> Path:
    return root / {"merge": "shard", "export": "dataset", "shuffle": "dataset"}.get(verb, "photos")


def test_every_verb_with_a_destination_is_tried_here() -> None:
    assert sorted(CALLS) == sorted(WRITING)


@pytest.mark.parametrize("verb", sorted(CALLS))
def test_a_destination_inside_of_the_source_is_refused(verb: str, places: Path) -> None:
    source, before = source_of(verb, places), tree(places)
    (places / "link").symlink_to(source)
    (places / "linked").symlink_to(source / "cat" if verb in ("append", "convert", "index") else source)
    inside = [source / "out", source / "a" / "b", places / "x" / ".." / source.name / "out", places / "link" / "out"]
    for out in [*inside, places / "linked" / "out", source / ".hidden", Path(f"{source}//./out")]:
        with pytest.raises(UsageError, match="lies in the source"):
            CALLS[verb](source, out)
    with pytest.raises(UsageError, match="lies in the source"):
        CALLS[verb](places / "link", source / "out")
    assert tree(places) == before


@pytest.mark.parametrize("verb", sorted(CALLS))
def test_a_source_inside_of_the_destination_is_refused(verb: str, places: Path) -> None:
    source, before = source_of(verb, places), tree(places)
    (places / "link").symlink_to(places)
    for out in (places, places / "link", source / ".."):
        with pytest.raises(UsageError, match="lies in the destination"):
            CALLS[verb](source, out)
    assert tree(places) == before


@pytest.mark.parametrize("verb", sorted(set(CALLS) - {"merge"}))
def test_a_destination_that_is_the_source_is_refused(verb: str, places: Path) -> None:
    source, before = source_of(verb, places), tree(places)
    (places / "link").symlink_to(source)
    for out in (source, places / "link", source / "cat" / ".." if (source / "cat").exists() else source):
        with pytest.raises(UsageError, match="is the source itself"):
            CALLS[verb](source, out)
    assert tree(places) == before


@pytest.mark.parametrize("verb", ["append", "convert", "index"])
def test_a_destination_in_a_linked_class_of_the_source_is_refused(verb: str, places: Path) -> None:
    shutil.move(places / "photos" / "cat", places / "elsewhere")
    (places / "photos" / "cat").symlink_to(places / "elsewhere")
    with pytest.raises(UsageError, match="lies in the source"):
        CALLS[verb](places / "photos", places / "elsewhere" / "out")


def test_the_folder_of_an_index_s_images_counts_as_its_source(places: Path) -> None:
    picstore.index(places / "photos", places / "index", workers=1)
    for verb in ("convert", "export"):
        with pytest.raises(UsageError, match="lies in the source"):
            CALLS[verb](places / "index", places / "photos" / "out")


def test_each_of_several_data_sets_counts_as_a_source(places: Path) -> None:
    shutil.copytree(places / "dataset", places / "other")
    for given in (
        [places / "dataset", places / "other"],
        picstore.Dataset(places / "dataset").concat(picstore.Dataset(places / "other")),
    ):
        with pytest.raises(UsageError, match="lies in the source"):
            picstore.shuffle(given, places / "other" / "out")


def test_shards_may_be_merged_where_they_were_converted(places: Path) -> None:
    assert picstore.merge(places / "shard", [places / "shard"]).images == 2


def test_a_list_beside_its_images_and_its_destination_is_converted(places: Path) -> None:
    (places / "photos" / "list.txt").write_text("cat/0.jpg 0\nzebra/1.jpg 1\n")
    assert picstore.convert(places / "photos" / "list.txt", places / "photos" / "train", workers=1).images == 2


def test_prefixes_of_one_bucket_are_compared_by_their_names() -> None:
    def bucket(key: str, name: str = "b", scheme: str = "s3") -> Bucket:
        return Bucket(scheme, name, key)

    for out, source in (("a/b", "a"), ("a", ""), ("a/b/c", "a"), ("", "a"), ("a", "a/b")):
        with pytest.raises(UsageError, match="lies in"):
            require_apart(bucket(out), [bucket(source)])
    with pytest.raises(UsageError, match="itself"):
        require_apart(bucket("a"), [bucket("a")])
    for apart in (bucket("ab"), bucket("a", "c"), bucket("a/b", scheme="gs")):
        require_apart(apart, [bucket("a")])
    require_apart(bucket("a"), [Path("a")])
