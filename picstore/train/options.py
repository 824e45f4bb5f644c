"""Options of DataMux, most of them Loader's too: their names and types."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

import torch


class LoaderOptions(TypedDict, total=False):
    """Options of :class:`picstore.DataMux`, which describes them. A TOML configuration may hold any of them."""

    seed: int
    device: str | torch.device
    threads: int | None
    rank: int | None
    world_size: int | None
    lanes: int | None
    on_damage: str
    budget: int | None
    targets: Sequence[str]
    dtype: torch.dtype | None
    memory_format: torch.memory_format
    max_pixels: int
    decoder: str
    isolate: bool
    collate: Callable[[dict[str, Any]], Mapping[str, Any]] | None
    cache: str | os.PathLike[str] | None
    cache_limit: int | str
    epoch_batches: int | None
