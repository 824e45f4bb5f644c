"""An index reaches files in its own folder alone, unless the user gives the root or has made the index."""

from __future__ import annotations

import copy
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import one_line, picstore_command, picstore_json
from hostile import rewrite_manifest
from samples import jpeg
from source_files import put
from web_server import WebServer

import picstore
from picstore.errors import Damage, NotADataset, UsageError
from picstore.prepare.upkeep.repair_dataset import repair
from picstore.prepare.upkeep.verify_dataset import verify
from picstore.storage.location import obstore_file

COUNT = 12


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for k in range(COUNT):
        put(tmp_path / "photos" / ("ant", "bee")[k % 2] / f"{k:02d}.jpg", jpeg(k))
    return tmp_path / "photos"


@pytest.fixture
def own(photos: Path, tmp_path: Path) -> Path:
    """An index that this user made."""
    picstore_command("index", photos, tmp_path / "index", "--container-size", "8KiB")
    return tmp_path / "index"


@pytest.fixture
def foreign(own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same index as another user, who has not made it, has it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    return own


@pytest.fixture
def stranger_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WebServer]:
    """A server to which all requests to stores and the web go, signed with the user's secrets."""
    pytest.importorskip("obstore")
    monkeypatch.setattr(obstore_file, "_clients", {})
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "HF_TOKEN"):
        monkeypatch.setenv(name, "secretsecret")
    with WebServer(tmp_path) as server:
        for name in ("AWS_ENDPOINT_URL", "STORAGE_EMULATOR_HOST", "HF_ENDPOINT"):
            monkeypatch.setenv(name, server.url)
        yield server


def moved(index: Path, root: str) -> Path:
    """Name another root in an index."""
    rewrite_manifest(index, references={"root": root, "foreign": 0})
    return index


def readable(dataset: picstore.Dataset) -> bool:
    return [bytes(record.jpeg) for record in dataset] == [bytes(dataset[k].jpeg) for k in range(COUNT)]


OPENED: list[Callable[..., Any]] = [
    picstore.Dataset,
    lambda index: picstore.Loader(index, batch_size=2, isolate=False),
    lambda index: picstore.MapDataset(index),
    lambda index, **root: verify(index, workers=1, **root),
    repair,
]
VERBS: list[list[object]] = [
    [verb, ..., *rest]
    for verb, *rest in (
        ["info"],
        ["verify"],
        ["repair"],
        ["bench", "--images", 12, "--batch-size", 4, "--no-isolate"],
        ["dupes", "--workers", 1],
        ["delete", "--id", 1],
        ["export", "exported", "--format", "folder"],
        ["convert", "converted"],
    )
]
ROOTS = ["s3://bucket/x", "gs://bucket/x", "hf://datasets/o/n", "http://…", "file:///", "/", "..", "a/../.."]


@pytest.mark.parametrize("root", ROOTS)
def test_an_index_from_elsewhere_is_refused_and_nothing_is_contacted(
    root: str, foreign: Path, stranger_server: WebServer
) -> None:
    root = root.replace("http://…", stranger_server.url)
    moved(foreign, root)
    for use in OPENED:
        with pytest.raises(UsageError, match="no `picstore index` of this user made it") as caught:
            use(foreign)
        named = os.path.normpath(foreign / root) if root.endswith("..") else root
        assert f"--root {named!r}" in str(caught.value) and f"root={named!r})" in str(caught.value)
    assert stranger_server.requests == []


def test_every_verb_refuses_an_index_from_elsewhere_and_takes_its_root(
    photos: Path, foreign: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    photos = photos.rename(tmp_path / "elsewhere")
    for verb in VERBS:
        words = [foreign if word is ... else word for word in verb]
        assert f"--root '{tmp_path / 'photos'}'" in one_line(picstore_command(*words, code=2))
        picstore_command(*words, "--root", photos)
    done = picstore_command("dupes", foreign, foreign, "--root", photos, code=2)
    assert "--root" in one_line(done)
    picstore_command("dupes", foreign, foreign, "--root", photos, "--other-root", photos, "--workers", 1)
    assert len(picstore.Dataset(tmp_path / "converted")) == COUNT - 1
    assert len(list((tmp_path / "exported").glob("*/*.jpg"))) == COUNT - 1


def test_an_index_that_this_user_made_is_opened_anywhere_and_edited_too(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    assert readable(picstore.Dataset(own))
    picstore.Dataset(own).with_columns({"caption": ["x"] * COUNT}).save()
    assert readable(picstore.Dataset(shutil.copytree(own, tmp_path / "copy")))
    picstore_command("info", own, process=True)


def test_another_index_of_the_same_root_is_not_taken_for_that_of_the_user(own: Path, tmp_path: Path) -> None:
    put(tmp_path / "photos" / "ant" / "more.jpg", jpeg(99))
    with pytest.MonkeyPatch.context() as another:
        another.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
        picstore_command("index", tmp_path / "photos", tmp_path / "foreign")
        assert len(picstore.Dataset(tmp_path / "foreign")) == COUNT + 1
    with pytest.raises(UsageError, match="no `picstore index` of this user made it"):
        picstore.Dataset(tmp_path / "foreign")


def test_an_index_made_before_is_noted_by_resuming_it(photos: Path, foreign: Path) -> None:
    with pytest.raises(UsageError):
        picstore.Dataset(foreign)
    picstore_command("index", photos, foreign, "--container-size", "8KiB", "--resume")
    assert readable(picstore.Dataset(foreign))


def test_an_index_that_cannot_be_noted_is_made_with_a_warning(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    picstore_command("index", photos, tmp_path / "index")
    assert "cannot be noted" in caplog.text and "--root" in caplog.text
    assert readable(picstore.Dataset(tmp_path / "index", root=photos))


def test_a_given_root_goes_with_copies_saved_edits_and_other_processes(
    photos: Path, foreign: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    dataset = picstore.Dataset("index", root="photos")
    pickled = pickle.dumps(dataset)
    monkeypatch.chdir("/")
    assert readable(pickle.loads(pickled))  # noqa: S301 - of this test
    monkeypatch.chdir(tmp_path)
    dataset = dataset.with_columns({"caption": ["x"] * COUNT}).save()
    assert readable(dataset)
    loader = picstore.Loader(dataset, batch_size=4, transform=[picstore.Resize((8, 8))])
    assert sorted(id_ for batch in loader for id_ in batch.ids.tolist()) == list(range(COUNT))
    loader.close()
    (tmp_path / "mux.toml").write_text(
        f'[[source]]\npath = "{foreign}"\nroot = "{photos}"\ncount = 4\n', encoding="utf-8"
    )
    mux = picstore.DataMux(tmp_path / "mux.toml", transform=[picstore.Resize((8, 8))], isolate=False)
    assert len(next(iter(mux)).labels) == 4
    mux.close()


def test_a_root_is_for_an_index_alone(make_dataset: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds its images"):
        picstore.Dataset(make_dataset(5), root=tmp_path)


# Roots in the index's own folder


@pytest.fixture
def packed(photos: Path, foreign: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An index of another user, with its images below it."""
    photos.rename(foreign / "photos")
    return moved(foreign, "photos")


def test_a_relative_root_lies_below_the_index_and_needs_no_trust(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cwd" / "photos").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "cwd")
    assert readable(picstore.Dataset(packed)) and readable(copy.copy(picstore.Dataset("../index")))
    assert verify(packed, workers=1).findings == []
    assert picstore_json("convert", packed, tmp_path / "out")["images"] == COUNT


def test_no_link_leads_out_of_the_folder_of_an_index_from_elsewhere(packed: Path, tmp_path: Path) -> None:
    dataset = picstore.Dataset(packed)
    victim = packed / "photos" / dataset[3].extra["path"]
    victim.rename(tmp_path / "outside.jpg")
    victim.symlink_to(tmp_path / "outside.jpg")
    for read in (lambda: dataset[3], lambda: copy.copy(dataset)[3]):
        with pytest.raises(Damage, match="leads out of the folder"):
            read()
    (finding,) = verify(packed, workers=1).findings
    assert "leads out of the folder" in finding.problem
    done = picstore_json("convert", packed, tmp_path / "out", "--max-errors", 1)
    assert done["images"] == COUNT - 1
    assert readable(picstore.Dataset(packed, root=packed / "photos")), "links of a root that is given are followed"
    (packed / "photos").rename(tmp_path / "photos")
    (packed / "photos").symlink_to(tmp_path / "photos")
    with pytest.raises(UsageError, match="outside of its folder"):
        picstore.Dataset(packed)


def test_attachments_of_a_strange_index_are_not_copied_from_other_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "secret" / "a.jpg", jpeg(1))
    put(tmp_path / "secret" / "key", b"of the user")
    put(tmp_path / "secret" / "list.jsonl", b'{"image": "a.jpg", "label": 0, "attachments": {"mask": "key"}}\n')
    picstore_command("index", tmp_path / "secret" / "list.jsonl", tmp_path / "index")
    assert bytes(picstore.Dataset(tmp_path / "index")[0].attachments["mask"]) == b"of the user"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    assert "--root" in one_line(picstore_command("convert", tmp_path / "index", tmp_path / "out", code=2))
    assert not (tmp_path / "out").exists()


def test_repair_deletes_nothing_where_no_image_is_there(photos: Path, own: Path) -> None:
    photos.rename(photos.with_name("unmounted"))
    photos.mkdir()
    before = picstore.Dataset(own).uuid
    with pytest.raises(NotADataset, match="mount it"):
        repair(own)
    assert picstore.Dataset(own).uuid == before
    photos.rmdir()
    photos.with_name("unmounted").rename(photos)
    (photos / picstore.Dataset(own)[2].extra["path"]).unlink()
    assert repair(own).images == COUNT - 1
