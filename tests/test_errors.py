"""The message of a library that is not installed: the command works where picstore came from."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path

import pytest

from picstore.errors import install_command

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
