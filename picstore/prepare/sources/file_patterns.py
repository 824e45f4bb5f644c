"""Shard files of a source: one file, the files of a folder by suffix, or names with braces as a shell expands them."""

from __future__ import annotations

import itertools
import re

from picstore.errors import NotADataset, UsageError
from picstore.prepare.sources.source_file import visible_entries
from picstore.prepare.sources.splits import choose_split
from picstore.storage.location.resolve import Location, locate, map_concurrently

_BRACES = re.compile(r"\{(?:(\d+)\.\.(\d+)|([^{}]*,[^{}]*))\}")
_MAX_NAMES = 1 << 20  # of one pattern


def shard_files(location: Location, *suffixes: str, split: str | None = None) -> list[Location]:
    """List the files of a location: a folder's files with a suffix, what a name with braces expands to, or itself.

    NotADataset if a file does not exist or the folder has none; UsageError for more than a million names, and for the
    files of several splits unless ``split`` chooses one.
    """
    if location.is_folder():
        found = [location / entry.name for entry in visible_entries(location) if entry.name.lower().endswith(suffixes)]
        if not found:
            raise NotADataset(f"{location} holds no files *{' or *'.join(suffixes)}")
        return choose_split(found, lambda file: file.name, split, location)
    files = [location] if location.exists() else [locate(name) for name in expand_braces(str(location))]
    for file, is_file in zip(files, map_concurrently(lambda file: file.is_file(), files), strict=True):
        if not is_file:
            raise NotADataset(f"{file} is not a file" if file.exists() else f"{file} does not exist")
    # Splits are what the braces stand for; the same folder is before all of them.
    folder = len(str(location).partition("{")[0].rpartition("/")[0])
    return choose_split(files, lambda file: str(file)[folder:], split, location)


def expand_braces(pattern: str) -> list[str]:
    """Expand ``a-{000..003}.tar`` or ``{train,val}-0.tar``; UsageError for more than a million names."""
    match = _BRACES.search(pattern)
    if match is None:
        return [pattern]
    first, last, words = match.groups()
    if words is not None:
        middles = words.split(",")
    else:
        step = 1 if int(last) >= int(first) else -1
        width = len(first) if first.startswith("0") else 1
        numbers = range(int(first), int(last) + step, step)
        middles = [f"{number:0{width}d}" for number in numbers[: _MAX_NAMES + 1]]
    rest = expand_braces(pattern[match.end() :])
    if len(middles) * len(rest) > _MAX_NAMES:
        raise UsageError(f"{pattern} stands for too many files; give braces for at most {_MAX_NAMES:,}")
    return [pattern[: match.start()] + middle + tail for middle, tail in itertools.product(middles, rest)]
