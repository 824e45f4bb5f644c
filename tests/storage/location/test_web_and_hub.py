"""Data sets and sources on web servers and on the Hugging Face hub, which are only read."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from commands import one_line, picstore_command, picstore_json, tree
from samples import jpeg
from web_server import TOKEN, Hub, WebServer

import picstore
from picstore.errors import NotADataset, PicstoreError, TooLarge, Truncated, UsageError
from picstore.prepare.upkeep.verify_dataset import verify
from picstore.storage.location import web_and_hub
from picstore.storage.location.abstract_location import Entry
from picstore.storage.location.resolve import Location, WritableLocation, locate, locate_writable
from picstore.storage.location.resumed_download import Retries


def served(server: WebServer, make_dataset: Callable[..., Path]) -> str:
    shutil.copytree(make_dataset(30), server.folder / "sets" / "train")
    return f"{server.url}/sets/train"


def test_a_data_set_on_a_web_server_is_that_of_the_folder(
    server: WebServer, make_dataset: Callable[..., Path], tmp_path: Path
) -> None:
    url = served(server, make_dataset)
    here, there = picstore.Dataset(server.folder / "sets" / "train"), picstore.Dataset(url)
    assert (there.uuid, str(there.path)) == (here.uuid, url)
    assert [(each.id, bytes(each.jpeg)) for each in there] == [(each.id, bytes(each.jpeg)) for each in here]
    assert bytes(there[7].jpeg) == bytes(here[7].jpeg)
    assert copy.copy(there)[3].id == here[3].id
    assert verify(url, workers=1).findings == []
    assert picstore_json("info", url)["images"] == 30
    picstore_command("export", url, tmp_path / "there", "--format", "webdataset")
    picstore_command("export", here.path, tmp_path / "here", "--format", "webdataset")
    assert tree(tmp_path / "there") == tree(tmp_path / "here")


def test_a_loader_reads_a_data_set_from_a_web_server(server: WebServer, make_dataset: Callable[..., Path]) -> None:
    url = served(server, make_dataset)
    loader = picstore.Loader(url, batch_size=10, transform=[picstore.Resize((32, 32))], isolate=False)
    assert sorted(id_ for batch in loader for id_ in batch.ids.tolist()) == list(range(30))
    loader.close()


def test_bytes_are_read_by_ranges_and_files_that_end_early_are_truncated(server: WebServer) -> None:
    (server.folder / "file é.bin").write_bytes(bytes(range(100)))
    (server.folder / "empty").write_bytes(b"")
    file = locate(f"{server.url}/file é.bin")
    assert (file.size(), file.is_file(), file.is_folder(), file.name) == (100, True, False, "file é.bin")
    assert bytes(file.read(10, 5, file="x")) == bytes(range(10, 15))
    first, second = memoryview(bytearray(3)), memoryview(bytearray(5))
    file.read_pieces([(40, first), (55, second)], file="x")
    assert bytes(first) + bytes(second) == bytes([40, 41, 42, *range(55, 60)])
    for offset, size in ((90, 20), (200, 1)):
        with pytest.raises(Truncated):
            file.read(offset, size, file="x")
    assert file.read_all(100) == bytes(range(100)) and next(iter(file.lines())) == bytes(range(11))
    with pytest.raises(TooLarge):
        file.read_all(99)
    assert locate(f"{server.url}/empty").size() == 0
    assert not {method for method, *_ in server.requests} - {"GET"}


def test_a_missing_data_set_is_not_a_data_set(server: WebServer) -> None:
    with pytest.raises(NotADataset):
        picstore.Dataset(f"{server.url}/none")
    assert "does not exist" in one_line(picstore_command("info", f"{server.url}/none", code=1))


def test_a_server_without_ranges_is_named_as_that(server: WebServer) -> None:
    (server.folder / "file").write_bytes(b"0123456789")
    server.ranges = False
    with pytest.raises(PicstoreError, match="whole files only"):
        locate(f"{server.url}/file").read(2, 3, file="x")


def test_nothing_is_written_to_a_web_server(server: WebServer, make_dataset: Callable[..., Path]) -> None:
    url = served(server, make_dataset)
    before = tree(server.folder)
    changes: list[Callable[[], object]] = [
        lambda: locate_writable(url),
        lambda: locate_writable(url).write(b""),
        lambda: picstore.Dataset(url).without([3]).save(),
        lambda: picstore.Dataset(url).save(),
        lambda: picstore.Writer(f"{server.url}/new"),
        lambda: picstore.repair(url),
        lambda: picstore.delete(url, ids=[3]),
        lambda: picstore.shuffle(url, f"{server.url}/new"),
    ]
    for change in changes:
        with pytest.raises(UsageError, match=r"cannot be written: http:// is only read; write to a folder or a store"):
            change()
    assert picstore_command("convert", server.folder, f"{server.url}/new", code=2).stderr
    assert tree(server.folder) == before
    assert "PUT" not in {method for method, *_ in server.requests}


def test_what_is_only_read_has_no_methods_that_write(server: WebServer, tmp_path: Path) -> None:
    writes = {name for name in WritableLocation.__abstractmethods__ if name not in Location.__abstractmethods__}
    assert writes == {"write", "write_new", "replace", "create", "remove", "sweep", "lock"}
    assert [name for name in writes if hasattr(locate(f"{server.url}/x"), name)] == []
    assert all(hasattr(locate(tmp_path / "x"), name) for name in writes)


def test_a_tar_and_a_list_on_a_web_server_are_sources(server: WebServer, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (server.folder / f"{name}.jpg").write_bytes(jpeg(ord(name)))
    (server.folder / "list.txt").write_text("a.jpg 0\nb.jpg 1\nmissing.jpg 0\n")
    options = ("--source", "list", "--max-errors", "50%")
    picstore_command("convert", f"{server.url}/list.txt", tmp_path / "there", "--root", server.url, *options)
    picstore_command("convert", server.folder / "list.txt", tmp_path / "here", "--root", server.folder, *options)
    there, here = (picstore.Dataset(tmp_path / name) for name in ("there", "here"))
    assert [bytes(each.jpeg) for each in there] == [bytes(each.jpeg) for each in here] != []


def test_folders_of_a_web_server_cannot_be_listed(server: WebServer) -> None:
    for names in (lambda: locate(server.url).entries(), lambda: list(locate(server.url).files())):
        with pytest.raises(UsageError, match="cannot be listed"):
            names()


@pytest.mark.parametrize(
    "url",
    [
        "https://user:password@host/x",
        "https://host/x?Signature=abc",
        "https://host/x?page=2",
        "https://",
        "https://host/../x",
        "hf://models/owner/name",
        "hf://datasets/name",
        "hf://datasets/owner/name/../x",
    ],
)
def test_urls_of_no_file_or_with_credentials_are_refused(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        locate(url)
    assert "password@" not in str(caught.value) and "abc" not in str(caught.value)


def test_a_data_set_on_the_hub_is_read_with_the_token_of_the_environment(
    hub: Hub, server: WebServer, make_dataset: Callable[..., Path]
) -> None:
    path = make_dataset(30)
    shutil.copytree(path, hub.folder / "owner" / "name" / "main" / "sets")
    dataset = picstore.Dataset("hf://datasets/owner/name/sets")
    assert [each.id for each in dataset] == [each.id for each in picstore.Dataset(path)]
    assert str(dataset.path) == "hf://datasets/owner/name/sets"
    assert {authorization for *_, authorization in hub.requests} == {f"Bearer {TOKEN}"}
    assert {authorization for *_, authorization in server.requests} == {None}  # the token stays with the hub


def test_a_revision_of_the_hub_is_named_after_an_at_sign(hub: Hub) -> None:
    paths = [f"hf://datasets/owner/name{revision}/photos/cat/a b.jpg" for revision in ("", "@main", "@v1")]
    assert [locate(path).read_all(1 << 20) for path in paths] == [jpeg(4), jpeg(4), jpeg(2)]
    assert locate("hf://datasets/owner/name@refs/convert/parquet/x/y").parent.name == "x"


def test_folders_of_the_hub_are_listed_and_are_sources(hub: Hub, tmp_path: Path) -> None:
    photos = locate("hf://datasets/owner/name/photos")
    assert photos.is_folder() and not (photos / "none").is_folder() and not (photos / "empty").is_folder()
    assert photos.entries() == [Entry("cat", True), Entry("empty", False)]
    assert sorted(photos.files()) == [("cat/a b.jpg", len(jpeg(4))), ("empty", 0)]
    assert photos.parent.entries() == [Entry("photos", True)]
    picstore_command("convert", "hf://datasets/owner/name/photos", tmp_path / "out", "--source", "folder")
    assert picstore.Dataset(tmp_path / "out").classes == ["cat"]


@pytest.mark.parametrize("failure", ["500", "cut", "429"])
def test_a_listing_of_the_hub_that_fails_is_asked_for_again(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    pytest.importorskip("huggingface_hub")
    (hub.folder / "owner" / "name" / "main" / "sets").mkdir(parents=True)
    (hub.folder / "owner" / "name" / "main" / "sets" / "x").write_bytes(b"x")
    monkeypatch.setattr(web_and_hub, "retries", lambda **_: Retries(3, first=0.001))
    answer, failures = hub.answer, [failure] * 2

    def failing(handler: BaseHTTPRequestHandler, path: str) -> None:
        if not failures or "/tree/" not in path:
            answer(handler, path)
        elif failures.pop() != "cut":
            hub.send(handler, int(failure), b"{}")
        else:
            handler.send_response(200)
            handler.send_header("Content-Length", "100")
            handler.end_headers()
            handler.wfile.write(b"[{")
            handler.close_connection = True

    monkeypatch.setattr(hub, "answer", failing)
    assert [name for name, _ in locate("hf://datasets/owner/name/sets").files()] == ["x"]


def test_a_wrong_token_is_refused_access_and_not_shown(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_wrong_token")
    photo = locate("hf://datasets/owner/name/photos/cat/a b.jpg")
    for action in (lambda: photo.read_all(100), lambda: photo.parent.entries()):
        with pytest.raises(PicstoreError) as caught:
            action()
        assert "HF_TOKEN" in str(caught.value) and "wrong" not in str(caught.value)


def test_nothing_is_written_to_the_hub(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "1.jpg").write_bytes(jpeg(1))
    done = picstore_command("convert", tmp_path, "hf://datasets/owner/name/out", "--source", "folder", code=2)
    assert "is only read" in one_line(done)
