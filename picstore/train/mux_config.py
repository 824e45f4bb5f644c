"""Configurations of a mux: PicPoc's, three words a data set, or TOML with options and transforms of its own.

seed = 1                                        # any option of DataMux
transform = [{ name = "CenterCrop", size = 224 }]     # of the sources that have none of their own

[[source]]
path = "cats-shuffled"
where = "width > 256"                           # of some of its records
base = 0
count = 20
transform = [
    { name = "RandomResizedCrop", size = 224, scale = [0.2, 1.0] },
    { name = "RandomHorizontalFlip" },
]
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import torch

from picstore.errors import UsageError
from picstore.storage.dataset import Dataset
from picstore.train.options import LoaderOptions
from picstore.train.transforms.compose import UserTransform, transform_from_config

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_TOML_TYPES = {bool: bool, int: int, str: str, Sequence[str]: list}  # by the type of an option
_DTYPES = {name: getattr(torch, name) for name in ("uint8", "float16", "bfloat16", "float32")}
_MEMORY_FORMATS = {name: getattr(torch, name) for name in ("contiguous_format", "channels_last")}
_CHOICES = {"dtype": _DTYPES, "memory_format": _MEMORY_FORMATS}


@dataclass(frozen=True, slots=True)
class MuxEntry:
    """One data set of a mux: ``count`` records of ``path`` in each batch, ``base`` added to their labels."""

    path: Path | Dataset
    base: int
    count: int
    transform: tuple[UserTransform, ...] | None = None  # None for the mux's own
    where: str | None = None  # condition in SQL on its records
    root: str | None = None  # of an index, the folder of its images


@dataclass(frozen=True, slots=True)
class MuxConfig:
    """A configuration: its data sets, the transforms of those that have none, and :class:`LoaderOptions`."""

    entries: tuple[MuxEntry, ...]
    transform: tuple[UserTransform, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)


def read_config(path: str | os.PathLike[str] | Sequence[tuple[Dataset, int, int]]) -> MuxConfig:
    """Read a configuration, TOML where its name ends so, else PicPoc's; UsageError for one that cannot be used.

    A relative path is looked for beside the configuration file, then in the working directory. Instead of a file, open
    data sets can be given, each with base label and count.
    """
    if not isinstance(path, (str, os.PathLike)):
        if not path:
            raise UsageError("a mux of no data sets")
        return MuxConfig(tuple(_checked(MuxEntry(*triple), "the mux") for triple in path))
    config = Path(path)
    try:
        text = config.read_text(encoding="utf-8")
        if config.suffix.lower() == ".toml":
            return _from_toml(tomllib.loads(text), config)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{config} cannot be read: {error}") from error
    words = text.split()
    if not words or len(words) % 3:
        raise UsageError(f"{config} holds {len(words)} words; `path base_label count` for each data set are needed")
    triples = zip(words[::3], words[1::3], words[2::3], strict=True)
    return MuxConfig(tuple(_from_triple(*triple, config) for triple in triples))


def read_recipe(path: str | os.PathLike[str]) -> MuxConfig:
    """Read a TOML configuration that may have no data sets; UsageError for one that cannot be used."""
    config = Path(path)
    try:
        return _from_toml(tomllib.loads(config.read_text(encoding="utf-8")), config, needs_source=False)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{config} cannot be read: {error}") from error


def _from_triple(name: str, base: str, count: str, config: Path) -> MuxEntry:
    try:
        numbers = int(base), int(count)
    except ValueError as error:
        raise UsageError(f"{config}: {name} {base} {count}: base label and count must be integers") from error
    return _entry(config, name, *numbers)


def _entry(config: Path, name: str, base: int, count: int, **options: Any) -> MuxEntry:
    beside = config.parent / name
    return _checked(MuxEntry(beside if beside.exists() else Path(name), base, count, **options), f"{config}")


def _checked(entry: MuxEntry, config: str) -> MuxEntry:
    if entry.base < 0 or entry.count < 1:
        numbers = f"base label {entry.base} and count {entry.count}"
        raise UsageError(f"{config}: {entry.path} has {numbers}; at least 0 and 1 are needed")
    return entry


def _from_toml(tables: dict[str, Any], config: Path, *, needs_source: bool = True) -> MuxConfig:
    sources = tables.pop("source", [])
    if not isinstance(sources, list) or (needs_source and not sources):
        raise UsageError(f"{config} has no [[source]]; give at least one, with path and count")
    transform = _steps(tables.pop("transform", []), f"{config}")
    entries = [_source(table, config, number) for number, table in enumerate(sources, start=1)]
    options = {name: _option(name, value, config) for name, value in tables.items()}
    return MuxConfig(tuple(entries), transform, options)


def _source(table: dict[str, Any], config: Path, number: int) -> MuxEntry:
    where = f"{config}: [[source]] number {number}"
    if unknown := set(table) - {"path", "root", "where", "base", "count", "transform"}:
        raise UsageError(f"{where} has {min(unknown)!r}; path, root, where, base, count and transform are possible")
    name, base, count = table.get("path"), table.get("base", 0), table.get("count")
    if not isinstance(name, str) or type(base) is not int or type(count) is not int:
        raise UsageError(f"{where} has path {name!r}, base {base!r}, count {count!r}; a string and integers are needed")
    for key, needed in (("where", "a condition in SQL"), ("root", "a path or URL")):
        if not isinstance(table.get(key), (str, type(None))):
            raise UsageError(f"{where} has {key} {table[key]!r}; {needed} is needed")
    steps = _steps(table["transform"], where) if "transform" in table else None
    return _entry(config, name, base, count, transform=steps, where=table.get("where"), root=table.get("root"))


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
    """Check an option by its type in :class:`LoaderOptions`, and make a torch object of a name."""
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
    if not types:
        raise UsageError(f"{config}: {name} is {value!r}; give it to DataMux, not in a file")
    if type(value) not in types:
        raise UsageError(f"{config}: {name} is {value!r}; it must be of type {' or '.join(t.__name__ for t in types)}")
    return value
