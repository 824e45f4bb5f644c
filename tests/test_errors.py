"""Messages that many functions share: libraries that are missing, paths that are misspelt, numbers of things."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import picstore
from picstore.errors import PicstoreError, UsageError, counted, install_command

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'picstore[sql]'"),
        ({"url": "https://host/picstore.whl", "archive_info": {}}, "pip install 'picstore[sql]'"),
        ({"url": "file:///removed", "dir_info": {}}, "pip install 'picstore[sql]'"),
        ({"url": ROOT.as_uri(), "dir_info": {}}, f"pip install '{ROOT}[sql]'"),
        ({"url": ROOT.as_uri(), "dir_info": {"editable": True}}, f"pip install -e '{ROOT}[sql]'"),
    ],
)
def test_an_extra_is_installed_from_where_picstore_came_from(
    monkeypatch: pytest.MonkeyPatch, origin: dict[str, object] | None, command: str
) -> None:
    told = None if origin is None else json.dumps(origin)
    monkeypatch.setattr(metadata.Distribution, "read_text", lambda self, name: told)
    monkeypatch.setattr(metadata.PathDistribution, "read_text", lambda self, name: told)
    assert install_command("sql") == command


def test_a_clone_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    assert install_command("sql") == f"pip install '{ROOT}[sql]'"


def exceptions(error: BaseException) -> int:
    """Number of exceptions that a traceback shows."""
    following = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return 1 + (0 if following is None else exceptions(following))


DOORS: dict[str, Callable[[Any, Path], Any]] = {
    "Dataset": lambda at, _: picstore.Dataset(at),
    "Loader": lambda at, _: picstore.Loader(at, batch_size=4),
    "MapDataset": lambda at, _: picstore.MapDataset(at),
    "DataMux": lambda at, _: picstore.DataMux(at),
    "append": lambda at, out: picstore.append(out, at),
    "compare": lambda at, out: picstore.compare(at, out),
    "convert": lambda at, out: picstore.convert(at, out),
    "delete": lambda at, _: picstore.delete(at, [1]),
    "dupes": lambda at, _: picstore.dupes(at),
    "export": lambda at, out: picstore.export(at, out, format="webdataset"),
    "index": lambda at, out: picstore.index(at, out),
    "info": lambda at, _: picstore.info(at),
    "merge": lambda at, out: picstore.merge(out, [at]),
    "repair": lambda at, _: picstore.repair(at),
    "shuffle": lambda at, out: picstore.shuffle(at, out),
    "verify": lambda at, _: picstore.verify(at),
    "view": lambda at, _: picstore.view(at),
}


@pytest.mark.parametrize("door", sorted(DOORS))
def test_a_misspelt_path_is_one_exception_that_names_the_path(door: str, tmp_path: Path) -> None:
    for missing in (tmp_path / "trian", str(tmp_path / "trian")):
        with pytest.raises(PicstoreError) as raised:
            DOORS[door](missing, tmp_path / "out")
        assert exceptions(raised.value) == 1 and "trian" in str(raised.value)


@pytest.mark.parametrize("door", sorted(DOORS))
def test_what_is_no_path_is_refused_by_its_value(door: str, tmp_path: Path) -> None:
    for wrong in (b"train", 17, None, 1.5):
        with pytest.raises(UsageError) as raised:
            DOORS[door](wrong, tmp_path / "out")
        assert repr(wrong) in str(raised.value)
        assert exceptions(raised.value) == 1


def test_numbers_have_nouns_and_verbs_in_singular_and_plural() -> None:
    assert [counted(number, "batch") for number in (0, 1, 2000)] == ["0 batches", "1 batch", "2,000 batches"]
    assert [counted(number, "class", "are") for number in (1, 2)] == ["1 class is", "2 classes are"]
    assert [counted(number, "record", "make") for number in (1, 2)] == ["1 record makes", "2 records make"]


def test_no_message_counts_in_the_plural_alone() -> None:
    """Numbers of things that may be one are formatted by ``counted``."""
    things = "images|records|ranks|files|containers|inputs|classes|samples|workers|threads|rows|kernels|shards"
    number = r"\{(?:len\([^{}]*\)|[\w.]*(?:count|images|records|total|ranks|world_size|threads|classes|inputs|files))"
    bare = re.compile(rf"""["( ]{number}(?::,)?\}} (?:{things})\b""")
    found = []
    chosen = re.compile(r"if .* == 1 else|if .* > 1 else|if len\(.*\) [=>]")
    for path in sorted((ROOT / "picstore").rglob("*.py")):
        if path.name == "results.py":  # It imports no other module.
            continue
        for line, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if bare.search(text) and not chosen.search(text):
                found.append(f"{path.relative_to(ROOT)}:{line}: {text.strip()}")
    assert found == []
