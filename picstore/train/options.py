"""Options of DataMux, most of them Loader's too: their names and types; and those that only a DataLoader has."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypedDict

import torch

from picstore.errors import UsageError

# Arguments of torch's DataLoader that a loader does not have, and what to do instead.
_OF_DATALOADER = {
    "num_workers": "threads=N sets the number of decoding threads, one a core by default",
    "collate_fn": "the batches are collated; collate= adds values to them, and a function of yours can take each",
    "pin_memory": 'leave it out; device="cuda" gives batches that are on the GPU',
    "pin_memory_device": 'leave it out; device="cuda:1" gives batches that are on that GPU',
    "persistent_workers": "leave it out; process and threads are kept from epoch to epoch",
    "prefetch_factor": "leave it out; budget= bounds the bytes that are read ahead",
    "multiprocessing_context": "leave it out; isolate= chooses between one process of the loader's own and threads",
    "worker_init_fn": "leave it out; there are no workers, and random numbers follow from seed, epoch and record",
    "generator": "seed= determines order and transforms",
    "sampler": "weights=, balance= and repeat= choose how often records come, Dataset.select which; "
    "picstore.MapDataset in a DataLoader takes any sampler",
    "batch_sampler": "picstore.MapDataset in a DataLoader takes any sampler",
    "timeout": "leave it out; an error of the loader's process is raised where the batch is asked for",
    "in_order": "leave it out; batches come in order",
}


def refuse_arguments(of: str, names: Iterable[str]) -> None:
    """Raise UsageError for an argument of torch's DataLoader, TypeError for any other."""
    for name in sorted(names):
        if name in _OF_DATALOADER:
            raise UsageError(f"picstore.{of} has no {name}: {_OF_DATALOADER[name]}")
        raise TypeError(f"{of}.__init__() got an unexpected keyword argument {name!r}")


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
    reducing_gap: float | None
    decoder: str
    isolate: bool
    collate: Callable[[dict[str, Any]], Mapping[str, Any]] | None
    cache: str | os.PathLike[str] | None
    cache_limit: int | str
    epoch_batches: int | None
