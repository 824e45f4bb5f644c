"""Options that Loader and DataMux share, declared once: LoaderOptions and MuxOptions."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from picstore.storage.cache import DEFAULT_LIMIT


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderOptions:
    """Options of :class:`picstore.Loader`, which describes them, and of :class:`picstore.DataMux`."""

    seed: int = 0
    device: str | torch.device = "cpu"
    threads: int | None = None
    rank: int | None = None
    world_size: int | None = None
    lanes: int | None = None
    on_damage: str = "skip"
    budget: int | None = None
    targets: Sequence[str] = ()
    dtype: torch.dtype | None = None
    memory_format: torch.memory_format = torch.contiguous_format
    decoder: str = "auto"
    isolate: bool = True
    cache: str | os.PathLike[str] | None = None
    cache_limit: int | str = DEFAULT_LIMIT


@dataclass(frozen=True, slots=True, kw_only=True)
class MuxOptions(LoaderOptions):
    """Options of :class:`picstore.DataMux`, which describes them. A TOML configuration may hold any of them."""

    epoch_batches: int | None = None
