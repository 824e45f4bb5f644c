"""Configurations of a mux: three words for each dataset, as in PicPoc, or TOML with options and transforms.

seed = 1                                        # any option of DataMux
schedule = [{ step = 10_000, counts = { cats-shuffled = 50 } }]   # counts from a step on
transform = [{ name = "CenterCrop", size = 224 }]     # for sources without transforms

[[source]]
path = "cats-shuffled"
name = "cats"                                   # used in the schedule; by default the path
where = "width > 256"                           # only some records
base = 0
count = 20
transform = [
    { name = "RandomResizedCrop", size = 224, scale = [0.2, 1.0] },
    { name = "RandomHorizontalFlip" },
]
"""

from __future__ import annotations

import os
import reprlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias, get_args, get_origin, get_type_hints

import torch

from picstore.errors import UsageError, counted
from picstore.storage.dataset import Dataset
from picstore.storage.location.local import Folder
from picstore.storage.location.resolve import checked_path
from picstore.storage.location.text_files import text_of_file
from picstore.train.loader_options import LoaderOptions
from picstore.train.order.mux_order import MuxSchedule
from picstore.train.order.state_checks import MAX_POSITION
from picstore.train.transforms.arguments import checked_integer
from picstore.train.transforms.from_torchvision import transform_from_config
from picstore.train.transforms.transform_plan import UserTransform

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Counts: TypeAlias = "Mapping[str, int] | Sequence[int]"  # Samples in a batch: of some sources by name, or of all.

# For each type of an option, the type of its value in TOML.
_TOML_TYPES = {bool: bool, int: int, float: float, str: str, Sequence[str]: list}
_DTYPES = {name: getattr(torch, name) for name in ("uint8", "float16", "bfloat16", "float32")}
_MEMORY_FORMATS = {name: getattr(torch, name) for name in ("contiguous_format", "channels_last")}
_CHOICES = {"dtype": _DTYPES, "memory_format": _MEMORY_FORMATS}


@dataclass(frozen=True, slots=True)
class MuxEntry:
    """Dataset of a mux: each batch has ``count`` records of ``path``, with ``base`` added to their labels."""

    path: Path | Dataset
    base: int
    count: int
    name: str = ""  # Name by which a schedule refers to the dataset.
    transform: tuple[UserTransform, ...] | None = None  # None for the transforms of the mux.
    where: str | None = None  # SQL condition that selects records.
    root: str | None = None  # Folder of the images, for an index of images.


@dataclass(frozen=True, slots=True)
class MuxConfig:
    """Configuration of a mux: datasets, transforms for datasets that have none, :class:`LoaderOptions`, schedule."""

    entries: tuple[MuxEntry, ...]
    transform: tuple[UserTransform, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    schedule: tuple[tuple[int, Counts], ...] = ()


def make_schedule(config: MuxConfig, given: Sequence[tuple[int, Counts]] | None = None) -> MuxSchedule:
    """Build a mux's schedule from its configuration or from ``given``; raise UsageError if a step or count is wrong."""
    names = [entry.name for entry in config.entries]
    steps, counts = [0], [[entry.count for entry in config.entries]]
    if given is not None and not isinstance(given, Iterable):
        raise UsageError(f"schedule is {given!r}; give a list of (step, counts)")
    for pair in config.schedule if given is None else given:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise UsageError(f"schedule has {pair!r}; give (step, counts)")
        step, chosen = pair
        steps.append(checked_integer(step, "a step of the schedule", 0, MAX_POSITION))
        counts.append(_scheduled(chosen, names, counts[-1]))
    if len(steps) > 1 and steps[1] == 0:
        del steps[0], counts[0]
    for entry, each in zip(config.entries, zip(*counts, strict=True), strict=True):
        if not any(each):
            raise UsageError(f"{entry.path} has count 0 at all steps; give at least 1, or leave it out")
    return MuxSchedule(tuple(steps), tuple(map(tuple, counts)))


def _scheduled(chosen: Any, names: list[str], before: list[int]) -> list[int]:
    """Return each source's count at a step; if ``chosen`` is a dict, sources that it lacks keep those in ``before``."""
    if isinstance(chosen, Mapping):
        for name in chosen:
            if names.count(name) != 1:
                raise UsageError(f"schedule names {name!r}; name one that stands once in {', '.join(names)}")
        counts = [chosen.get(name, count) for name, count in zip(names, before, strict=True)]
    else:
        counts = list(chosen) if isinstance(chosen, (tuple, list)) else [None]
        if len(counts) != len(names):
            raise UsageError(f"schedule has the counts {chosen!r}; give {len(names)}, one for each dataset, or a dict")
    pairs = zip(names, counts, strict=True)
    return [checked_integer(count, f"the schedule's count of {name}", 0, MAX_POSITION) for name, count in pairs]


def read_config(path: Any) -> MuxConfig:
    """Read a configuration; raise UsageError if it is not valid.

    Args:
        path: file, or a list of open datasets, each with its base label (the number added to its labels) and its count
            of records in a batch. A file whose name ends in .toml is TOML; others have PicPoc's format: path, base
            label and count of each dataset. Relative paths in a file are looked up in its folder, then in the working
            directory.
    """
    if not isinstance(path, (str, os.PathLike)):
        if not isinstance(path, Sequence) or isinstance(path, (bytes, bytearray)):
            raise UsageError(f"the mux is {reprlib.repr(path)}; give a configuration's path, or a list of datasets")
        if not path:
            raise UsageError("DataMux() needs at least one dataset, with base label and count")
        return MuxConfig(tuple(_given(triple) for triple in path))
    config = checked_path(path)
    if config.suffix.lower() == ".toml":
        return read_toml(config)
    words = _read_text(config).split()
    if not words or len(words) % 3:
        found = f"{config} holds {counted(len(words), 'word')}"
        raise UsageError(f"{found}; `path base_label count` for each dataset are needed")
    triples = zip(words[::3], words[1::3], words[2::3], strict=True)
    return MuxConfig(tuple(_from_triple(*triple, config) for triple in triples))


def _read_text(config: Path) -> str:
    try:
        return text_of_file(config.read_bytes())
    except OSError as error:
        raise UsageError(f"{config} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{config} cannot be read: {error}") from error


def _given(triple: Any) -> MuxEntry:
    if not isinstance(triple, Sequence) or len(triple) != 3 or not isinstance(triple[0], Dataset):
        raise UsageError(
            f"the mux: {reprlib.repr(triple)}; give (picstore.Dataset, base label, count) for each dataset"
        )
    dataset, base, count = triple
    return _checked(MuxEntry(dataset, base, count, name=str(dataset.path)), "the mux")


def _from_triple(name: str, base: str, count: str, config: Path) -> MuxEntry:
    try:
        numbers = int(base), int(count)
    except ValueError as error:
        raise UsageError(f"{config}: {name} {base} {count}: base label and count must be integers") from error
    return _entry(config, name, *numbers)


def _entry(config: Path, path: str, base: int, count: int, **options: Any) -> MuxEntry:
    beside = Folder(config.parent / path)
    found = beside.path if beside.exists() else Path(path)
    return _checked(MuxEntry(found, base, count, **{"name": path, **options}), f"{config}")


def _checked(entry: MuxEntry, config: str) -> MuxEntry:
    base = checked_integer(entry.base, f"{config}: base label of {entry.path}", 0, MAX_POSITION)
    count = checked_integer(entry.count, f"{config}: count of {entry.path}", 0, MAX_POSITION)
    return replace(entry, base=base, count=count)


def read_toml(config: Path, *, needs_source: bool = True) -> MuxConfig:
    """Read a TOML configuration; raise UsageError if it is not valid or, with ``needs_source``, has no dataset."""
    try:
        tables = tomllib.loads(_read_text(config))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{config} cannot be read: {error}") from error
    sources = tables.pop("source", [])
    if not isinstance(sources, list) or (needs_source and not sources):
        raise UsageError(f"{config} has no [[source]]; give at least one, with path and count")
    transform = _steps(tables.pop("transform", []), f"{config}")
    schedule = _pieces(tables.pop("schedule", []), config)
    entries = [_source(table, config, number) for number, table in enumerate(sources, start=1)]
    options = {name: _option(name, value, config) for name, value in tables.items()}
    return MuxConfig(tuple(entries), transform, options, schedule)


def _pieces(tables: Any, config: Path) -> tuple[tuple[int, Counts], ...]:
    if not isinstance(tables, list) or not all(
        isinstance(each, dict) and set(each) == {"step", "counts"} for each in tables
    ):
        raise UsageError(
            f"{config}: schedule is {tables!r}; give a list such as [{{ step = 1000, counts = [20, 80] }}]"
        )
    return tuple((each["step"], each["counts"]) for each in tables)


def _source(table: dict[str, Any], config: Path, number: int) -> MuxEntry:
    where = f"{config}: [[source]] number {number}"
    keys = {"path", "name", "root", "where", "base", "count", "transform"}
    if unknown := set(table) - keys:
        raise UsageError(f"{where} has {min(unknown)!r}; possible are {', '.join(sorted(keys))}")
    path, base, count = table.get("path"), table.get("base", 0), table.get("count", 0)
    if not isinstance(path, str) or type(base) is not int or type(count) is not int:
        raise UsageError(f"{where} has path {path!r}, base {base!r}, count {count!r}; a string and integers are needed")
    needs = {"name": "a string", "where": "a condition in SQL", "root": "a path or URL"}
    for key, needed in needs.items():
        if not isinstance(table.get(key), (str, type(None))):
            raise UsageError(f"{where} has {key} {table[key]!r}; {needed} is needed")
    given = {key: table[key] for key in needs if key in table}
    steps = _steps(table["transform"], where) if "transform" in table else None
    return _entry(config, path, base, count, transform=steps, **given)


def _steps(tables: Any, where: str) -> tuple[UserTransform, ...]:
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise UsageError(
            f'{where}: transform is {tables!r}; give a list such as [{{ name = "CenterCrop", size = 224 }}]'
        )
    try:
        return tuple(transform_from_config(table) for table in tables)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error


def _option(name: str, value: Any, config: Path) -> Any:
    """Return an option's value if ``LoaderOptions`` allows its type; convert names of dtypes and memory formats."""
    options = get_type_hints(LoaderOptions)
    if name not in options:
        raise UsageError(f"{config} has {name!r}; possible are source, transform, {', '.join(options)}")
    if name in _CHOICES:
        if not isinstance(value, str) or value not in _CHOICES[name]:
            raise UsageError(f"{config}: {name} is {value!r}; possible are {', '.join(_CHOICES[name])}")
        return _CHOICES[name][value]
    hint = options[name]
    members = (hint,) if get_origin(hint) is Sequence else get_args(hint) or (hint,)
    types = [_TOML_TYPES[member] for member in members if member in _TOML_TYPES]
    if float in types:
        types.append(int)
    if not types:
        raise UsageError(f"{config}: {name} is {value!r}; give it to DataMux, not in a file")
    if type(value) not in types:
        raise UsageError(f"{config}: {name} is {value!r}; it must be of type {' or '.join(t.__name__ for t in types)}")
    return value
