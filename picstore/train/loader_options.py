"""Options of Loader, DataMux and MapDataset: names, types and ranges, and what to write in place of others."""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import reprlib
import sys
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.context import get_spawning_popen
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypedDict, cast, get_origin, get_type_hints

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader

from picstore.cores import count_cores
from picstore.errors import UsageError
from picstore.jpeg.reducing import check_reducing_gap
from picstore.storage.class_names import checked_names
from picstore.train.batching.spec import Collate
from picstore.train.order.rank_shares import MAX_LANES
from picstore.train.order.state_checks import MAX_POSITION
from picstore.train.transforms.arguments import checked_integer, is_number

_MAX_RANKS = 1 << 20
# By default, a loader has one process for every four cores, and at most eight. On the only GPU host that was measured,
# with 16 cores, four processes were fastest (docs/benchmarks.md); more than eight were never tried.
CORES_OF_A_PROCESS, MOST_PROCESSES = 4, 8

# Arguments of torch's DataLoader that a loader lacks, and what to do instead; their default values are accepted.
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
_AROUND = "give it to the DataLoader that takes the dataset"


def refuse_arguments(of: str, given: Mapping[str, Any]) -> None:
    """Raise UsageError for arguments of DataLoader and for ``transforms``, and TypeError for unknown arguments."""
    others = _OF_DATALOADER if of != "MapDataset" else dict.fromkeys((*_OF_DATALOADER, *_SHARED), _AROUND)
    instead = {"transforms": "its name is transform=", **others}
    for name in sorted(given.keys() - instead):
        own = inspect.signature(getattr(importlib.import_module("picstore"), of)).parameters
        known = [*own, *LoaderOptions.__annotations__] if of == "DataMux" else list(own)
        meant = "".join(f"; did you mean {each!r}?" for each in difflib.get_close_matches(name, known, 1))
        raise TypeError(f"{of}.__init__() got an unexpected keyword argument {name!r}{meant}")
    parameters = inspect.signature(DataLoader.__init__).parameters
    defaults = {name: each.default for name, each in parameters.items()}
    refused = [name for name in sorted(given) if repr(given[name]) != repr(defaults.get(name, ...))]
    if refused:
        raise UsageError(f"picstore.{of} has no " + "\n  no ".join(f"{name}: {instead[name]}" for name in refused))


# Function that checks the value of the argument with a given name, and returns the value in a type of Python's own.
_Check: TypeAlias = Callable[[Any, str], Any]


def _integer(least: int | None = None, most: int | None = None) -> _Check:
    return lambda value, name: checked_integer(value, name, least, most)


def _one_of(*choices: str) -> _Check:
    def check(value: Any, name: str) -> str:
        if not isinstance(value, str) or value not in choices:
            listed = ", ".join(map(repr, choices[:-1]))
            raise UsageError(f"{name} is {reprlib.repr(value)}; give {listed} or {choices[-1]!r}")
        return str(value)

    return check


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


class LoaderOptions(TypedDict, total=False):
    """Options of :class:`picstore.DataMux`; a configuration file may contain the options that TOML can express.

    An option's annotation names the function that checks it. Options without one are checked where they are used.
    """

    seed: Annotated[int, _integer()]
    device: Annotated[str | torch.device, _device]
    threads: Annotated[int | None, _optional(_integer(1))]
    rank: Annotated[int | None, _optional(_integer(0))]
    world_size: Annotated[int | None, _optional(_integer(1, _MAX_RANKS))]
    lanes: Annotated[int | None, _optional(_integer(1, MAX_LANES))]
    on_damage: Annotated[str, _one_of("skip", "raise")]
    budget: Annotated[int | None, _optional(_integer(1))]
    targets: Annotated[Sequence[str], checked_names]
    dtype: torch.dtype | None
    memory_format: torch.memory_format
    max_pixels: Annotated[int, _integer(1)]
    reducing_gap: Annotated[float | None, lambda value, _: check_reducing_gap(value)]
    decoder: Annotated[str, _text]
    isolate: Annotated[bool, _boolean]
    processes: Annotated[int | None, _optional(_integer(1))]
    engine: Annotated[str, _one_of("local", "ray")]
    workers: Annotated[int | None, _optional(_integer(1))]
    collate: Collate | None
    cache: Annotated[str | os.PathLike[str] | None, _optional(_path)]
    cache_limit: int | str
    epoch_batches: Annotated[int | None, _optional(_integer(1, MAX_POSITION))]
    global_counts: Annotated[bool, _boolean]
    classes: Annotated[str | None, _optional(_one_of("join", "offset", "same"))]


class LoaderArguments(LoaderOptions, total=False):
    """Arguments of :class:`picstore.Loader`, whose signature has their defaults. A test compares names and types."""

    batch_size: Annotated[int | None, _optional(_integer(1))]
    global_batch_size: Annotated[int | None, _optional(_integer(1))]
    aug_repeats: Annotated[int, _integer(1)]
    shuffle: Annotated[bool, _boolean]
    drop_last: Annotated[bool, _boolean]
    weights: str | npt.ArrayLike | None
    balance: Annotated[str | None, _optional(_text)]
    repeat: Annotated[float, _positive]


_CHECKS: dict[str, _Check] = {
    name: hint.__metadata__[0] if get_origin(hint) is Annotated else lambda value, _: value
    for name, hint in get_type_hints(LoaderArguments, include_extras=True).items()
}


def check_arguments(given: Mapping[str, Any]) -> LoaderArguments:
    """Check the arguments that ``LoaderArguments`` names, and leave out all others.

    Returns:
        The checked arguments; NumPy's numbers become Python's, which a state can contain.

    Raises:
        UsageError: an argument has a wrong type or is out of range; the message says what to give instead.
    """
    checked = {name: _CHECKS[name](value, name) for name, value in given.items() if name in _CHECKS}
    return cast("LoaderArguments", checked)


def images_given(batch_size: int | None, global_batch_size: int | None, world_size: int) -> tuple[int | None, int]:
    """Return the given batch size, and how many such batches form a global batch; raise UsageError for two sizes."""
    if batch_size is not None and global_batch_size is not None:
        text = f"batch_size is {batch_size} and global_batch_size {global_batch_size}"
        raise UsageError(f"{text}; give the images of a rank's batch or of all ranks' batches")
    return (batch_size, world_size) if global_batch_size is None else (global_batch_size, 1)


def records_of_batch(batch_size: int | None, aug_repeats: int) -> int:
    """Return the number of records in a batch; raise UsageError if ``aug_repeats`` does not divide ``batch_size``."""
    if batch_size is None:
        raise UsageError("give batch_size, images in a batch, or global_batch_size, in all ranks' batches together")
    if batch_size % aug_repeats:
        raise UsageError(f"aug_repeats is {aug_repeats}; give a number that divides the batch size, {batch_size}")
    return batch_size // aug_repeats


def check_main_guard() -> None:
    """Raise UsageError if a loader is pickled for a worker whose main script has no ``__name__`` guard.

    From Python 3.14 on, and on macOS always, a DataLoader's workers import the main script. Without a guard the script
    would start workers in each worker, which Python refuses, and the main process would only report a lost connection.
    A script that mentions ``__name__`` or ``parent_process`` counts as guarded.
    """
    main = sys.modules.get("__main__")
    path, spec = getattr(main, "__file__", None), getattr(main, "__spec__", None)
    package = spec is not None and spec.name.endswith("__main__")  # Workers do not import a package's ``__main__``.
    if get_spawning_popen() is None or path is None or package or sys.flags.interactive:
        return
    try:
        text = Path(path).read_bytes()
    except OSError:  # The script has moved, or is in an archive.
        return
    if b"__name__" not in text and b"parent_process" not in text:
        raise UsageError(f'workers import {path}, which starts them: put what it runs under if __name__ == "__main__":')


def count_processes(options: LoaderOptions) -> int:
    """Return the number of loader processes that options ask for, or 0; raise UsageError if they conflict."""
    count = options["processes"]
    if count is None:
        count = default_processes(options["threads"]) if options["engine"] == "local" else 1
    elif count > 1 and options["engine"] != "local":
        raise UsageError(f"processes is {count}; give workers={count} with engine='ray'")
    elif count > 1 and not options["isolate"]:
        raise UsageError(f"processes is {count} and isolate False, which makes batches in this process; leave one out")
    return count if options["isolate"] else 0


def default_processes(threads: int | None, environment: Mapping[str, str] = os.environ) -> int:
    """Return a rank's default number of loader processes: 1/4 of its cores, or of ``threads`` if fewer; 1 to 8."""
    ranks = environment.get("LOCAL_WORLD_SIZE", "")  # number of ranks on this machine, set by torchrun
    cores = count_cores() // max(1, int(ranks) if ranks.isdecimal() else 1)
    own = min(cores, cores if threads is None else threads)
    return max(1, min(own // CORES_OF_A_PROCESS, MOST_PROCESSES))
