"""A store that lists objects late, or lists removed ones still: nothing is lost, overwritten or left unfinished."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from commands import picstore_command
from grids import slow_except
from samples import jpeg
from source_files import put

import picstore
from picstore.prepare.convert import ledger, resumable_job
from picstore.prepare.upkeep.verify_dataset import verify
from picstore.storage.location import object_store, obstore_fork
from picstore.storage.location.object_store import Bucket
from picstore.storage.location.resolve import UNFINISHED, locate

LIST = Bucket.files
SHAPE = ("--streams", 2, "--container-size", "8KiB", "--file-size", "8KiB")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for k in range(20):
        put(tmp_path / "photos" / "a" / f"{k:02d}.jpg", jpeg(k, width=60, height=50))
    return tmp_path / "photos"


@pytest.fixture
def more(tmp_path: Path) -> Path:
    for k in range(4):
        put(tmp_path / "more" / "a" / f"{k:02d}.jpg", jpeg(100 + k))
    return tmp_path / "more"


def lists_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make stores list no object that is written from now on."""
    known: dict[str, list[tuple[str, int]]] = {}

    def files(self: Bucket) -> Iterator[tuple[str, int]]:
        return iter(known.setdefault(str(self), []))

    monkeypatch.setattr(Bucket, "files", files)


def lists_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make stores list whatever they have ever listed."""
    known: dict[str, dict[str, int]] = {}

    def files(self: Bucket) -> Iterator[tuple[str, int]]:
        found = known.setdefault(str(self), {})
        found.update(LIST(self))
        return iter(found.items())

    monkeypatch.setattr(Bucket, "files", files)


def images(where: str) -> list[bytes]:
    assert verify(where, workers=1).findings == []
    return [bytes(record.jpeg) for record in picstore.Dataset(where)]


@pytest.mark.parametrize("stale", slow_except([lists_late], [lists_late, lists_removed]))
def test_convert_and_append_make_the_same_data_set_whatever_a_store_lists(
    stale: Callable[[pytest.MonkeyPatch], None],
    photos: Path,
    more: Path,
    bucket: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    where = f"{bucket}/train"
    for source, options in ((photos, SHAPE), (more, ("--append",))):
        picstore_command("convert", source, tmp_path / "here", *options)
        with monkeypatch.context() as context:
            stale(context)
            picstore_command("convert", source, where, *options)
        picstore_command("convert", source, where, *options, "--resume")  # removes what was not listed
    assert images(where) == images(str(tmp_path / "here"))
    assert {name.partition("/")[0] for name, _ in LIST(locate(where))} == {  # type: ignore[arg-type]
        path.name for path in (tmp_path / "here").iterdir() if path.name != UNFINISHED
    }


def test_a_row_whose_fragment_is_only_listed_is_not_finished(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    root = locate(bucket)
    names = [ledger._fragment_name(row) for row in range(3)]
    for name in names:
        (root / UNFINISHED / name).write(b"")
    lists_removed(monkeypatch)
    assert ledger.finished_rows(root, 3) == [0, 1, 2]
    (root / UNFINISHED / names[1]).remove()
    assert ledger.finished_rows(root, 3) == [0, 2]


def test_a_job_is_removed_though_its_rows_are_listed_still(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    root = locate(bucket)
    (root / UNFINISHED / "job.json").write(b"{}")
    (root / UNFINISHED / "row-000000.jsonl").write(b"")
    lists_removed(monkeypatch)
    resumable_job.remove_job(root)
    assert list(LIST(root)) == []  # type: ignore[arg-type]


def test_a_listed_but_missing_object_does_not_keep_the_rest_from_removal(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    deleted = set()

    class Strict:
        """As stores of Google and Microsoft answer."""

        def __getattr__(self, name: str) -> object:
            return getattr(obstore_fork.library(), name)

        def delete(self, _: object, keys: list[str]) -> None:
            for key in keys:
                if key.endswith("ghost"):
                    raise FileNotFoundError(key)
                deleted.add(key)

    monkeypatch.setattr(object_store, "library", Strict)
    monkeypatch.setattr(Bucket, "files", lambda _: iter([("a", 1), ("ghost", 1), ("z", 1)]))
    (locate(bucket) / "folder").remove()
    assert deleted == {"folder/a", "folder/z"}
