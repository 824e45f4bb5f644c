"""Reading the bytes of an input."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from source_files import put

from picstore.errors import ImageError
from picstore.prepare.sources.inputs import Input
from picstore.prepare.sources.open import open_source, read_input


def test_a_file_without_read_permission_gives_the_systems_reason(tmp_path: Path) -> None:
    secret = put(tmp_path / "class" / "secret.jpg")
    secret.chmod(0)
    (source,) = open_source(tmp_path).inputs
    as_root = os.geteuid() == 0
    if as_root:
        for folder in (tmp_path, *tmp_path.parents):
            if folder.stat().st_mode & 0o011 != 0o011:
                folder.chmod(folder.stat().st_mode | 0o011)
            if folder == Path("/tmp"):  # noqa: S108
                break
        os.seteuid(65534)
    try:
        with pytest.raises(ImageError, match=r"cannot be read: Permission denied"):
            read_input(source)
    finally:
        if as_root:
            os.seteuid(0)


def test_an_input_larger_than_the_limit_is_not_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("picstore.prepare.sources.inputs.MAX_INPUT", 10)
    with pytest.raises(ImageError, match="larger than"):
        read_input(Input("a", 0, str(put(tmp_path / "a", bytes(11)))))
    assert read_input(Input("b", 0, str(put(tmp_path / "b", bytes(10))))) == bytes(10)
