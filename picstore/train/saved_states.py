"""States of loaders in files: JSON, checkpoints of torch, Lightning and Accelerate, and folders of such files."""

from __future__ import annotations

import json
import os
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from picstore.errors import UsageError, counted
from picstore.storage.location.local import Folder
from picstore.storage.location.resolve import checked_path
from picstore.storage.location.text_files import text_of_file

_MAX_JSON = 1 << 28
# Endings of the files in a checkpoint's folder that may hold a state; .safetensors files hold only weights.
_ENDINGS = (".json", ".pt", ".pth", ".ckpt", ".bin", ".pkl", ".tar")
_MAX_FILES = 1000
_UNREAD = (
    "torch.load(…, weights_only=True) refuses what it holds, since reading it could run code; if you trust the file, "
    "load it in Python and save the loader's state as JSON: json.dump(checkpoint[…], open('state.json', 'w'))"
)

# The place where a state was found, such as ``last.ckpt: loops, fit_loop``, and the state.
Found = tuple[str, dict[str, Any]]


def find_states(value: Any, place: str = "") -> list[Found]:
    """Return all states of loaders and muxes, at any depth in a checkpoint's nested values, the outermost first."""
    found, waiting, met = [], [(place, value)], set()
    for where, each in waiting:
        if not isinstance(each, (dict, list, tuple)) or id(each) in met:
            continue
        met.add(id(each))
        if isinstance(each, dict) and {"seed", "lanes", "world_size"} <= each.keys() and each.keys() & _DATASETS:
            found.append((where, each))
            continue
        members = each.items() if isinstance(each, dict) else enumerate(each)
        separator = ", " if where and where != place else ": " if place else ""
        waiting.extend((f"{where}{separator}{name}", member) for name, member in members)
    return found


_DATASETS = {"dataset", "datasets"}


def find_state(value: Any) -> dict[str, Any]:
    """Return the outermost state in a checkpoint's nested values; raise UsageError if there is no state."""
    for _, state in find_states(value):
        return state
    raise UsageError("there is no loader's state; give an object with the members of loader.state_dict()")


def read_states(given: str | os.PathLike[str]) -> list[Found]:
    """Read all states of loaders in a file, or in the files of a folder and of its immediate subfolders.

    Raises:
        UsageError: ``given`` cannot be read or holds no state; the message names the files searched.
    """
    path = checked_path(given)
    if not Folder(path).is_folder():
        if found := find_states(_read(path), path.name):
            return found
        raise UsageError(f"{path}: there is no loader's state in it; save loader.state_dict() in your checkpoint")
    files = [each for each in (*path.iterdir(), *path.glob("*/*")) if each.suffix in _ENDINGS and each.is_file()]
    if len(files) > _MAX_FILES:
        raise UsageError(f"{path} has {counted(len(files), 'file')} that may hold a state; give the one that does")
    found, looked, unread = [], [], []
    for file in sorted(files):
        name = str(file.relative_to(path))
        try:
            found += find_states(_read(file), name)
            looked.append(name)
        except UsageError:
            unread.append(name)
    if found:
        return found
    text = f"{path}: there is no loader's state in {', '.join(looked) or 'its files'}"
    text += f"; {', '.join(unread)} cannot be read" if unread else ""
    raise UsageError(f"{text}; save loader.state_dict() in your checkpoint, as a Trainer does not do by itself")


def _read(path: Path) -> Any:
    """Read a file of JSON or ``torch.save`` without running code from the file; raise UsageError if it is neither."""
    try:
        with path.open("rb") as file:
            torch_made = file.read(1) == b"\x80" or zipfile.is_zipfile(path)
        if torch_made:
            return _read_torch(path)
        if path.stat().st_size > _MAX_JSON:
            raise UsageError(f"{path} has more than {_MAX_JSON:,} bytes; save the loader's state alone")
        return json.loads(text_of_file(path.read_bytes()))
    except (OSError, ValueError, RecursionError, zipfile.BadZipFile) as error:
        raise UsageError(f"{path} cannot be read as JSON or by torch.load: {error}") from error


def _read_torch(path: Path) -> Any:
    # Imported here because torch takes 1 s, which a state in JSON does not need.
    import torch

    try:
        # Tensors are mapped to memory, not read, because a checkpoint may have many GB.
        return torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError as error:
        raise UsageError(f"{path}: {_UNREAD}") from error
    except (RuntimeError, EOFError, LookupError, AttributeError, TypeError, AssertionError) as error:
        raise UsageError(f"{path} is damaged, or no checkpoint of torch.save: {error}") from error


def join_workers(states: list[Found]) -> tuple[list[Found], str]:
    """Return one state for all workers of a DataLoader: the least advanced, because all steps before it are done.

    Returns:
        The states; and a remark if the states of some workers are missing, otherwise "".
    """
    groups: dict[str, list[Found]] = {}
    for place, state in states:
        key = json.dumps({name: value for name, value in state.items() if name not in _POSITIONS}, default=repr)
        groups.setdefault(key if "worker" in state else f"{key} {_position(state)}", []).append((place, state))
    found, remark = [], ""
    for group in groups.values():
        place, state = min(group, key=lambda each: _position(each[1]))
        found.append((place, state))
        count = _workers(state)
        if len({str(each.get("worker")) for _, each in group}) < count:
            remark = (
                f"states of some of {counted(count, 'worker')} are missing: the last {count - 1} steps may not be done"
            )
    return found, remark


_POSITIONS = ("worker", "epoch", "samples", "batches", "taken")


def _position(state: Mapping[str, Any]) -> tuple[int, ...]:
    taken = state.get("taken")
    values = [state.get(name) for name in ("epoch", "samples", "batches")] + (taken if isinstance(taken, list) else [])
    return tuple(value if isinstance(value, int) else -1 for value in values)


def _workers(state: Mapping[str, Any]) -> int:
    """Return the number of workers of the DataLoader to which a worker's state belongs; raise UsageError if invalid."""
    worker = state.get("worker", [0, 1])
    if not isinstance(worker, list) or len(worker) != 2 or not all(type(each) is int for each in worker):
        raise UsageError(f"the state has worker {worker!r}; give what state_dict() returned")
    return int(worker[1])
