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
    from picstore.train.pipeline.to_device import AheadStage

    def receive(stage: AheadStage) -> Any:
        host = stage._source.receive()
        return None if host is None else stage._make.start([host])[0]().hand_over()

    if os.environ.get("TRITON_INTERPRET") == "1":
        monkeypatch.setattr(AheadStage, "receive", receive)
