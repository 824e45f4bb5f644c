"""Triton's interpreter without half of its time: what changes no result, and batches that tests do not take."""

from __future__ import annotations

import os
from typing import Any

import pytest

from benchmarks.interpreter import quicken

quicken()


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
