"""Triton's interpreter without half of its time: what it patches again, and batches that tests do not take."""

from __future__ import annotations

import inspect
import os
from importlib.util import find_spec
from typing import Any

import pytest

if os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton"):
    from triton.runtime import interpreter

    _patch = interpreter._patch_lang
    _patched: set[int] = set()  # modules of Triton's language in the launch that runs

    def _patch_once(function: Any) -> Any:
        """Replace Triton's functions at a launch; not again at each call of a function in its kernel."""
        language = {id(each) for each in function.__globals__.values() if inspect.ismodule(each)}
        language &= {id(interpreter.tl), id(interpreter.tl.core)}
        if language and language <= _patched:
            return interpreter._LangPatchScope()
        scope = _patch(function)
        restore = scope.restore
        scope.restore = lambda: (_patched.clear(), restore())
        _patched.update(language)
        return scope

    interpreter._patch_lang = _patch_once


@pytest.fixture
def nothing_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the interpreter, which takes seconds for a batch, loaders make it when it is asked for, and no other."""
    from picstore.train.pipeline.device import AheadStage

    def receive(stage: AheadStage) -> Any:
        stage._submitted += 1
        queued = stage._make(stage._submitted - 1)
        return None if queued is None else queued.hand_over()

    if os.environ.get("TRITON_INTERPRET") == "1":
        monkeypatch.setattr(AheadStage, "receive", receive)
