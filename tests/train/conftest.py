"""Fixtures of the training tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from picstore.arrays import Bools

if TYPE_CHECKING:
    from picstore.train.transforms.geometry import Geometry


@pytest.fixture
def stage_by_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loaders with ``isolate=False`` cut, decode and resample each image by itself: no fused kernel, no boxes."""

    def none(geometry: Geometry) -> Bools:
        return np.zeros(len(geometry.size), dtype=np.bool_)

    monkeypatch.setattr("picstore.train.cpu.fused.can_fuse", none)
    monkeypatch.setattr("picstore.train.cpu.decode_crop.decode_box", lambda *_, **__: None)


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loaders have one process of their own, on machines of many cores too, unless a test asks for more."""
    monkeypatch.setattr("picstore.train.loader_options.CORES_OF_A_PROCESS", 1 << 10)
