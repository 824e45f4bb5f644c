"""Options of Loader, DataMux and MapDataset: names, types and ranges, and what they refuse with what to write instead."""

from __future__ import annotations

import inspect
import os
import reprlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing.context import get_spawning_popen
from pathlib import Path
from typing import Any, TypeAlias, TypedDict, cast

import numpy as np
import torch
from torch.utils.data import DataLoader

from picstore.errors import UsageError
from picstore.jpeg.reducing import check_reducing_gap
from picstore.train.order.dealing import MAX_LANES
from picstore.train.order.position import MAX_POSITION
from picstore.train.transforms.arguments import checked_integer, is_number

_MAX_RANKS = 1 << 20

# Arguments of torch's DataLoader that a loader does not have, and what to do instead. DataLoader's default is taken.
_OF_DATALOADER = {
    "num_workers": "threads=N sets the number of decoding threads, one a core by default; processes=N divides them "
    "among N processes; workers=N is of engine='ray'",
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
_SHARED = ("batch_size", "shuffle", "drop_last")
_AROUND = "give it to the DataLoader that takes the data set"


def refuse_arguments(of: str, given: Mapping[str, Any]) -> None:
    """Raise UsageError that names all arguments of torch's DataLoader and ``transforms``, TypeError for another one."""
    others = _OF_DATALOADER if of != "MapDataset" else dict.fromkeys((*_OF_DATALOADER, *_SHARED), _AROUND)
    instead = {"transforms": "its name is transform=", **others}
    for name in sorted(given.keys() - instead):
        raise TypeError(f"{of}.__init__() got an unexpected keyword argument {name!r}")
    parameters = inspect.signature(DataLoader.__init__).parameters
    defaults = {name: each.default for name, each in parameters.items()}
    refused = [name for name in sorted(given) if repr(given[name]) != repr(defaults.get(name, ...))]
    if refused:
        raise UsageError(f"picstore.{of} has no " + "\n  no ".join(f"{name}: {instead[name]}" for name in refused))


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
    processes: int | None
    engine: str
    workers: int | None
    collate: Callable[[dict[str, Any]], Mapping[str, Any]] | None
    cache: str | os.PathLike[str] | None
    cache_limit: int | str
    epoch_batches: int | None
    global_counts: bool
    classes: str | None


_Check: TypeAlias = Callable[[Any, str], Any]  # from an argument's value and name, the value as Python's own


def _integer(least: int | None = None, most: int | None = None) -> _Check:
    return lambda value, name: checked_integer(value, name, least, most)


def _optional(check: _Check) -> _Check:
    return lambda value, name: None if value is None else check(value, name)


def _boolean(value: Any, name: str) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise UsageError(f"{name} is {reprlib.repr(value)}; give True or False")
    return bool(value)


def _positive(value: Any, name: str) -> float:
    if isinstance(value, bool) or not is_number(value) or value <= 0:
        raise UsageError(f"{name} is {reprlib.repr(value)}; give a positive number")
    return int(value) if isinstance(value, np.integer) else value if isinstance(value, int) else float(value)


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{name} is {reprlib.repr(value)}; give a name")
    return value


def _names(value: Any, name: str) -> tuple[str, ...]:
    if isinstance(value, str):
        raise UsageError(f"{name} is {value!r}; give a list: [{value!r}]")
    given = tuple(value) if isinstance(value, Iterable) else (None,)
    if not all(isinstance(each, str) for each in given):
        raise UsageError(f"{name} is {reprlib.repr(value)}; give a list of names")
    return given


def _classes(value: Any, name: str) -> str | None:
    if value not in (None, "join", "offset", "same"):
        raise UsageError(f"{name} is {reprlib.repr(value)}; give 'join', 'offset' or 'same'")
    return None if value is None else str(value)


def _engine(value: Any, name: str) -> str:
    if value not in ("local", "ray"):
        raise UsageError(f"{name} is {reprlib.repr(value)}; give 'local' or 'ray'")
    return str(value)


def _on_damage(value: Any, name: str) -> str:
    if value not in ("skip", "raise"):
        raise UsageError(f"{name} {reprlib.repr(value)} is neither 'skip' nor 'raise'")
    return str(value)


def _device(value: Any, name: str) -> torch.device:
    try:
        device = torch.device(value)
    except (RuntimeError, TypeError) as error:
        text = f"{name} is {reprlib.repr(value)}; give one of torch's, such as 'cpu', 'cuda' or 'cuda:1'"
        raise UsageError(text) from error
    if device.type == "cuda" and (count := torch.cuda.device_count()) <= (device.index or 0):
        found = f"{count} GPUs" if count else "no GPU" if torch.version.cuda else "no GPU, as it was built without CUDA"
        raise UsageError(f"{name} is {str(device)!r}; torch finds {found}; give one that is there, or 'cpu'")
    return device


def _path(value: Any, name: str) -> str | os.PathLike[str]:
    if not isinstance(value, (str, os.PathLike)):
        raise UsageError(f"{name} is {reprlib.repr(value)}; give a path or URL")
    return value


# What each argument by itself must be. Plans, outputs and pipelines check how arguments fit together.
_CHECKS: dict[str, _Check] = {
    "aug_repeats": _integer(1),
    "balance": _optional(_text),
    "batch_size": _optional(_integer(1)),
    "budget": _optional(_integer(1)),
    "cache": _optional(_path),
    "classes": _classes,
    "decoder": _text,
    "device": _device,
    "drop_last": _boolean,
    "engine": _engine,
    "epoch_batches": _optional(_integer(1, MAX_POSITION)),
    "global_batch_size": _optional(_integer(1)),
    "global_counts": _boolean,
    "isolate": _boolean,
    "lanes": _optional(_integer(1, MAX_LANES)),
    "max_pixels": _integer(1),
    "on_damage": _on_damage,
    "processes": _optional(_integer(1)),
    "rank": _optional(_integer(0)),
    "reducing_gap": lambda value, _: check_reducing_gap(value),
    "repeat": _positive,
    "seed": _integer(),
    "shuffle": _boolean,
    "targets": _names,
    "threads": _optional(_integer(1)),
    "workers": _optional(_integer(1)),
    "world_size": _optional(_integer(1, _MAX_RANKS)),
}


def check_arguments(**given: Any) -> dict[str, Any]:
    """Check each argument, and return all with Python's types in place of NumPy's, fit for a state.

    UsageError, with name, value and what to give instead, for one of another type or out of range.
    """
    return {name: _CHECKS[name](value, name) if name in _CHECKS else value for name, value in given.items()}


def check_options(options: LoaderOptions) -> LoaderOptions:
    """Check options as :func:`check_arguments` does."""
    return cast("LoaderOptions", check_arguments(**options))


def images_given(batch_size: int | None, global_batch_size: int | None, world_size: int) -> tuple[int | None, int]:
    """Return the size given for a batch, and its multiple in a global batch; UsageError if both sizes are given."""
    if batch_size is not None and global_batch_size is not None:
        text = f"batch_size is {batch_size} and global_batch_size {global_batch_size}"
        raise UsageError(f"{text}; give the images of a rank's batch or of all ranks' batches")
    return (batch_size, world_size) if global_batch_size is None else (global_batch_size, 1)


def records_of_batch(batch_size: int | None, aug_repeats: int) -> int:
    """Return the records of a batch; UsageError unless ``aug_repeats`` divides its images."""
    if batch_size is None:
        raise UsageError("give batch_size, images in a batch, or global_batch_size, in all ranks' batches together")
    if batch_size % aug_repeats:
        raise UsageError(f"aug_repeats is {aug_repeats}; give a number that divides the batch size, {batch_size}")
    return batch_size // aug_repeats


def check_main_guard() -> None:
    """Refuse to be sent to a process that would start others while it imports the main script.

    From Python 3.14 on, and on macOS under any, workers of a DataLoader are not forked but import the main script. One
    without a guard starts workers again there, which Python refuses; here all that arrives is a lost connection.

    Raises:
        UsageError: workers are being started, and nothing in the script asks for the name that it runs under.
    """
    main = sys.modules.get("__main__")
    path, spec = getattr(main, "__file__", None), getattr(main, "__spec__", None)
    package = spec is not None and spec.name.endswith("__main__")  # which multiprocessing does not import
    if get_spawning_popen() is None or path is None or package or sys.flags.interactive:
        return
    try:
        text = Path(path).read_bytes()
    except OSError:  # it has moved, or lies in an archive
        return
    if b"__name__" not in text and b"parent_process" not in text:
        raise UsageError(f'workers import {path}, which starts them: put what it runs under if __name__ == "__main__":')
