"""Two commands at once in one place: each takes effect whole or is refused; what reported success stays."""

from __future__ import annotations

import errno
import fcntl
import json
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import tree
from engine_tasks import InlineEngine
from samples import jpeg
from stores import Proxy

import picstore
from picstore.errors import Conflict, PicstoreError, Unfinished, UsageError
from picstore.prepare.convert import append_images as append_module
from picstore.prepare.convert import conversion_job as convert_module
from picstore.prepare.convert import resumable_job
from picstore.prepare.convert.append_images import append
from picstore.prepare.convert.conversion_job import ConvertOptions, Job, convert
from picstore.prepare.convert.retry import retry_failed
from picstore.prepare.convert.row_division import DatasetShape, Shard
from picstore.prepare.image.encode_settings import EncodeSettings
from picstore.prepare.sources.open import open_source
from picstore.prepare.upkeep.shuffled_copy import shuffle
from picstore.prepare.upkeep.verify_dataset import verify
from picstore.storage import manifest_writer
from picstore.storage.location import local, object_store, obstore_file
from picstore.storage.location.resumed_download import Retries
from picstore.storage.manifest import read_manifest
from picstore.storage.manifest_writer import edit_lock

SHAPE = DatasetShape(streams=2, container_size=8 << 10, file_size=16 << 10)


class Killed(BaseException):
    """Stands for the end of the process."""


def source(root: Path, count: int = 6, first: int = 0) -> Path:
    root.mkdir()
    for k in range(count):
        (root / f"{k}.jpg").write_bytes(jpeg(first + k))
    return root


def run(work: Callable[..., Any], images: Path, destination: Path | str, *, quality: int = 90, **arguments: Any) -> Any:
    encode = EncodeSettings(quality=quality, reencode=quality != 90)
    options = ConvertOptions(encode=encode, shape=SHAPE, workers=InlineEngine(1))
    return work(open_source(images), destination, options, **arguments)


def once(monkeypatch: pytest.MonkeyPatch, module: object, name: str, before: Callable[[], Any]) -> None:
    """Let something else happen just before a function is called for the first time."""
    function = getattr(module, name)

    def interposed(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(module, name, function)
        before()
        return function(*arguments, **options)

    monkeypatch.setattr(module, name, interposed)


def kill(*_: object) -> None:
    raise Killed


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return source(tmp_path / "images")


@pytest.fixture
def more(tmp_path: Path) -> Path:
    return source(tmp_path / "more", first=100)


@pytest.fixture
def dataset(images: Path, tmp_path: Path) -> Path:
    run(convert, images, tmp_path / "dataset")
    return tmp_path / "dataset"


@pytest.mark.parametrize("moment", ["choose_rows", "run"])
def test_a_conversion_that_another_overtakes_is_refused_and_the_other_kept(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    out, alone = tmp_path / "out", tmp_path / "alone"
    run(convert, images, alone, quality=50)
    refused: list[PicstoreError] = []

    def other() -> None:
        try:
            run(convert, images, out, quality=50)
        except (UsageError, Unfinished) as error:
            refused.append(error)

    once(monkeypatch, Job if moment == "run" else convert_module, moment, other)
    if moment == "choose_rows":
        with pytest.raises(UsageError, match="already a dataset"):
            run(convert, images, out)
        assert tree(out) == tree(alone)
    else:  # the other one comes when the job is held
        manifest = run(convert, images, out).manifest
        assert len(refused) == 1
        assert read_manifest(out) == manifest
    assert verify(out, workers=1).findings == []
    assert not (out / "unfinished").exists()


def test_a_conversion_never_takes_the_job_of_another_that_was_killed(
    images: Path, more: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, alone = tmp_path / "out", tmp_path / "alone"

    def other() -> None:
        once(monkeypatch, convert_module, "finish_dataset", kill)
        with pytest.raises(Killed):
            run(convert, more, out)

    once(monkeypatch, convert_module, "choose_rows", other)
    with pytest.raises(Conflict, match="begun a job"):
        run(convert, images, out)
    with pytest.raises(Unfinished, match="--resume"):
        run(convert, images, out)
    run(convert, more, out, resume=True)
    run(convert, more, alone)
    assert tree(out) == tree(alone)


def test_a_shard_and_a_whole_conversion_do_not_begin_together(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    once(monkeypatch, resumable_job, "hold_job", lambda: run(convert, images, out, shard=Shard(0, 2)))
    with pytest.raises(Conflict, match="begun a job"):
        run(convert, images, out)


@pytest.mark.parametrize("make", [shuffle, picstore.Writer])
def test_of_a_writer_or_shuffle_and_a_conversion_one_is_refused(
    dataset: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[..., Any]
) -> None:
    out = tmp_path / "out"
    once(monkeypatch, resumable_job, "hold_job", lambda: run(convert, images, out))
    with pytest.raises(UsageError, match="already a dataset"):
        if make is shuffle:
            shuffle(dataset, out, seed=1, method="transpose", workers=1)
        else:
            make(out)
    assert verify(out, workers=1).findings == []
    assert not (out / "unfinished").exists()


def test_an_append_that_is_killed_when_published_is_not_appended_again(
    dataset: Path, more: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    once(monkeypatch, resumable_job, "remove_job", kill)
    with pytest.raises(Killed):
        run(append, more, dataset)
    published = read_manifest(dataset)
    assert published.images == 12
    with pytest.raises(Unfinished, match="--resume"):
        run(append, more, dataset)
    done = run(append, more, dataset, resume=True)
    assert (done.manifest, done.tally.images) == (published, 6)
    assert not (dataset / "unfinished").exists()
    assert verify(dataset, workers=1).findings == []
    assert run(append, more, dataset, resume=True).manifest == published


def test_rows_of_a_job_that_was_removed_are_not_taken_for_those_of_another(
    dataset: Path, more: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    once(monkeypatch, append_module, "_finish_append", kill)
    with pytest.raises(Killed):
        run(append, more, dataset)
    (dataset / "unfinished" / "job.json").unlink()
    with pytest.raises(UsageError, match="rows of a job that was removed"):
        run(append, more, dataset)


@pytest.mark.parametrize("place", ["folder", "store"])
def test_deletions_and_columns_saved_while_an_append_is_published_stay(
    images: Path, more: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: Any, place: str
) -> None:
    root = tmp_path / "out" if place == "folder" else f"{request.getfixturevalue('bucket')}/out"
    run(convert, images, root)

    def edit() -> None:
        picstore.Dataset(root).without([2]).with_columns({"weight": [1.0]}, ids=[3]).save()

    once(monkeypatch, append_module, "publish_edit", edit)
    run(append, more, root)
    after = picstore.Dataset(root)
    assert sorted(after.ids.tolist()) == [0, 1, 3, 4, 5, *range(6, 12)]
    assert after.columns == ("weight",)
    assert verify(root, workers=1).findings == []


@pytest.mark.parametrize("moment", ["_describe_append", "hold_job"])
def test_of_two_appends_each_has_ids_of_its_own_or_is_refused(
    dataset: Path, more: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    third = source(tmp_path / "third", first=200)
    module = append_module if moment == "_describe_append" else resumable_job
    once(monkeypatch, module, moment, lambda: run(append, third, dataset))
    if moment == "hold_job":
        with pytest.raises(Conflict, match="edited since"):
            run(append, more, dataset)
    else:
        run(append, more, dataset)
    ids = picstore.Dataset(dataset).ids.tolist()
    assert len(ids) == len(set(ids)) == (12 if moment == "hold_job" else 18)
    assert verify(dataset, workers=1).findings == []
    assert not (dataset / "unfinished").exists()


def test_new_class_names_that_are_saved_during_an_append_are_not_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, root = tmp_path / "first", tmp_path / "second", tmp_path / "out"
    for folder in (first, second):
        folder.mkdir()
        source(folder / "ant", first=0 if folder == first else 50)
    run(convert, first, root)
    labels = {"label": [0] * 6}

    def rename() -> None:
        picstore.Dataset(root).with_columns(labels, classes=["bee"]).save()

    once(monkeypatch, append_module, "_finish_append", rename)
    with pytest.raises(UsageError, match=r"classes of .* were changed"):
        run(append, second, root)
    assert picstore.Dataset(root).classes == ["bee"]
    assert verify(root, workers=1).findings == []


def test_a_finished_conversion_that_is_resumed_leaves_an_append_alone(
    dataset: Path, images: Path, more: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    once(monkeypatch, append_module, "_finish_append", lambda: run(convert, images, dataset, resume=True))
    assert run(append, more, dataset).manifest.images == 12
    assert verify(dataset, workers=1).findings == []


def test_a_retry_and_an_edit_do_not_undo_each_other(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = (images / "3.jpg").read_bytes()
    (images / "3.jpg").write_bytes(b"\xff\xd8 broken")
    root = tmp_path / "out"
    run(convert, images, root)
    (images / "3.jpg").write_bytes(sound)
    from picstore.prepare.convert import retry

    once(monkeypatch, retry, "remove_manifest", lambda: picstore.Dataset(root).without([1]).save())
    with pytest.raises(Conflict, match="edited since"):
        run(retry_failed, images, root)
    assert sorted(picstore.Dataset(root).ids.tolist()) == [0, 2, 4, 5]
    assert verify(root, workers=1).findings == []


def test_of_two_simultaneous_edits_in_a_store_one_is_refused_copy_included(
    images: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = f"{bucket}/out"
    run(convert, images, root)
    late = picstore.Dataset(root).without([1])
    once(monkeypatch, manifest_writer, "replace_manifest", lambda: picstore.Dataset(root).without([2]).save())
    with pytest.raises(Conflict, match="edited since"):
        late.save()
    assert sorted(picstore.Dataset(root).ids.tolist()) == [0, 1, 3, 4, 5]
    assert verify(root, workers=1).findings == []


def test_a_write_that_is_repeated_after_a_lost_answer_has_succeeded_once(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = object_store.Bucket.parse("s3", bucket.removeprefix("s3://")) / "job"
    library = object_store.library()
    put = library.put

    def twice(*arguments: Any, **options: Any) -> Any:
        put(*arguments, **options)
        return put(*arguments, **options)

    monkeypatch.setattr(library, "put", twice)
    assert location.write_new(b"one")
    assert location.replace(b"two", expected=b"one")
    monkeypatch.setattr(library, "put", put)
    assert not location.write_new(b"three")
    assert not location.replace(b"three", expected=b"one")
    assert location.read_all(10) == b"two"


def test_an_edit_waits_for_another_one_and_is_refused_after_a_while(
    dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from picstore.storage import manifest_writer

    monkeypatch.setattr(manifest_writer, "_LOCK_WAIT", 0.05)
    root = picstore.Dataset(dataset)
    with edit_lock(root.path), pytest.raises(UsageError, match="being edited by another process"):
        root.without([1]).save()
    assert len(root.without([1]).save()) == 5


def test_a_file_system_without_locks_is_refused_and_nothing_changes(
    dataset: Path, images: Path, more: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = tree(dataset)

    def refuse(_file: int, operation: int) -> None:
        if not operation & fcntl.LOCK_SH:
            raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(local.fcntl, "flock", refuse)
    for change in (
        lambda: run(append, more, dataset),
        lambda: picstore.Dataset(dataset).without([1]).save(),
        lambda: run(convert, images, tmp_path / "out"),
    ):
        with pytest.raises(UsageError, match="has no locks"):
            change()
    (dataset / "unfinished" / "job.json").unlink()
    (dataset / "unfinished").rmdir()
    after = tree(dataset)
    assert {name: after[name] for name in before} == before
    assert len(picstore.Dataset(dataset)) == 6


class _Unconditional(Proxy):
    """A store that has no conditional writes, as its answer says."""

    def _handle(self, handler: BaseHTTPRequestHandler, server: str) -> None:
        if handler.headers.get("If-None-Match") or handler.headers.get("If-Match"):
            handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
            handler.send_error(501)
            return
        super()._handle(handler, server)


def test_a_store_without_conditional_writes_is_refused(
    s3: str, bucket: str, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(obstore_file, "retries", lambda **_: Retries(0))
    monkeypatch.setattr(obstore_file, "_clients", {})
    with _Unconditional(s3) as store:
        monkeypatch.setenv("AWS_ENDPOINT_URL", store.url)
        with pytest.raises(UsageError, match="no conditional writes"):
            run(convert, images, f"{bucket}/out")


def test_ids_that_two_records_have_are_damage(dataset: Path, more: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(append_module, "_next_id", lambda _: 4)
    run(append, more, dataset)
    (finding,) = verify(dataset, workers=1).findings
    assert finding.problem == "2 ids belong to several records, the first is 4"


def test_a_job_file_of_another_run_with_the_same_settings_is_told_apart(tmp_path: Path) -> None:
    root = local.Folder(tmp_path / "out")
    mine, others = (resumable_job.new_job(verb="convert", rows=1) for _ in range(2))
    with resumable_job.hold_job(root, others) as made, pytest.raises(UsageError, match="by another process"):
        assert made
        with resumable_job.hold_job(root, others):
            pass
    with pytest.raises(Conflict), resumable_job.hold_job(root, mine):
        pass
    assert json.loads((tmp_path / "out" / "unfinished" / "job.json").read_text()) == others
    assert np.all(np.array([len(each["run"]) for each in (mine, others)]) == 16)


def test_a_conversion_is_not_resumed_with_other_images_of_the_same_names(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    once(monkeypatch, convert_module, "finish_dataset", kill)
    with pytest.raises(Killed):
        run(convert, images, tmp_path / "out")
    other = tmp_path / "other"
    other.mkdir()
    for k in range(6):
        (other / f"{k}.jpg").write_bytes(jpeg(k, width=90 + k))
    with pytest.raises(UsageError, match="other images of the same names"):
        run(convert, other, tmp_path / "out", resume=True)
    (images / "0.jpg").write_bytes(jpeg(0, width=91))
    assert run(convert, images, tmp_path / "out", resume=True).manifest.images == 6
