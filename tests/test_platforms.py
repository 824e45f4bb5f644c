"""What differs between platforms; scripts/platforms runs the tests on those that this machine can have."""

from __future__ import annotations

import importlib.util
import sys

import pytest

import picstore


def test_on_windows_the_import_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("picstore_on_windows", picstore.__file__)
    assert spec is not None and spec.loader is not None
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(ImportError, match="WSL 2"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
